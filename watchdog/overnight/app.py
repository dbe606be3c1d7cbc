"""Builds a supervised run from its configuration; the only file that names concrete adapters."""

from __future__ import annotations

import os
import queue
import random
import shutil
import sys
import time
from functools import partial
from pathlib import Path

from overnight.adapters.autopsy import examine
from overnight.adapters.checkpoints.patterns import output_roots
from overnight.adapters.checkpoints.quarantine import restore
from overnight.adapters.checkpoints.shelf import Shelf
from overnight.adapters.config_copy import write_patched
from overnight.adapters.console import Console
from overnight.adapters.control import ControlServer
from overnight.adapters.files import write_json
from overnight.adapters.gpu import GpuMonitor
from overnight.adapters.housekeeping import Chores
from overnight.adapters.kernel import kernel_lines, oom_kills
from overnight.adapters.lock import RunLock
from overnight.adapters.notify.dispatch import Dispatcher, unusable
from overnight.adapters.notify.receivers import Receiver, load_receivers
from overnight.adapters.patience import Patience
from overnight.adapters.probe import imports_torch, install_probe
from overnight.adapters.process import detach, handle_signals
from overnight.adapters.store import Store
from overnight.adapters.tail.attempt import AttemptTails
from overnight.adapters.worker import WorkerTree
from overnight.config import Config
from overnight.core.announcement import Plan, announcement
from overnight.core.environment import worker_environment
from overnight.core.events import AlertSent
from overnight.core.recipes import Recipe
from overnight.core.resume import base_batch, base_lr
from overnight.errors import UsageError
from overnight.preflight import (
    Order,
    check_command,
    completed,
    keepsake_of,
    locked,
    memory_of,
    numbers_in_file,
    refuse_living_worker,
    refuse_unseen_end,
    script_files,
    told_of,
    wish_of,
)
from overnight.supervisor import adoption
from overnight.supervisor.inbox import Inbox
from overnight.supervisor.journal import Journal
from overnight.supervisor.loop import Supervisor
from overnight.supervisor.ports import Effects
from overnight.supervisor.run import Run, Settings

GPU_INTERVAL_S = 2.0


def supervise(order: Order) -> int:
    """Supervise one run to its end. Returns the exit status.

    Raises UsageError for everything that must be right before anything is started.
    """
    check_command(order)
    order, recipe = completed(order)
    script_files(order)  # a path that cannot be read is refused before the start
    receivers = load_receivers(order.config.notify.receivers)
    wrong = unusable(receivers)
    if wrong:
        raise UsageError("; ".join(wrong), hint="overnight alert-test tries each receiver")
    lock = locked(order)
    try:
        return _supervise(order, receivers, lock, recipe)
    finally:
        lock.release()


def _supervise(
    order: Order, receivers: tuple[Receiver, ...], lock: RunLock, recipe: Recipe | None
) -> int:
    _undo_drill(order)
    memory = memory_of(order.directory)
    if memory is not None:
        adoption.refuse_other_run(memory.run, wish_of(order))
        refuse_living_worker(order.name, memory.run)
        refuse_unseen_end(order, memory.run)
    settings = _settings(order, receivers)
    config = order.config
    now_utc = time.time()
    run = adoption.restored(
        settings,
        config.checkpoints,
        config.policies,
        memory,
        now=time.monotonic(),
        now_utc=now_utc,
    )
    start = adoption.opening_of(run, wish_of(order), memory, now=time.monotonic(), now_utc=now_utc)
    if order.detach:
        detach(order.name)
        lock.renew()
    console = Console(order.directory / "supervisor.log")
    inbox = Inbox()
    store = Store(order.directory)
    if store.on_network:
        console.say("warning: the state lies on a network filesystem; a local one is safer")
    effects = _effects(order, run, receivers, console=console, inbox=inbox, store=store)
    journal = Journal(run, effects, memory.outbox if memory else ())
    if memory is not None:
        journal.note(adoption.seen_by_a_person(memory.incidents, now_utc=now_utc))
    supervisor = Supervisor(run, effects, journal, inbox)
    _announce(order, run, receivers, console, recipe)
    server, chores = _services(order, inbox, console)
    handle_signals(inbox.put, let_go=console.detach, say=console.say)
    try:
        return supervisor.supervise(start)
    finally:
        chores.close()
        if server is not None:
            server.close()
        store.close()


def _undo_drill(order: Order) -> None:
    """A drill that was killed has left its checkpoints where this run's belong."""
    try:
        moved = keepsake_of(order).put_back()
    except OSError as error:
        raise UsageError(f"cannot undo a drill that was killed: {error}") from error
    if moved is not None:
        print("the checkpoints are as they were before a drill that was killed", file=sys.stderr)


def _settings(order: Order, receivers: tuple[Receiver, ...]) -> Settings:
    config = order.config
    try:
        given = numbers_in_file(order)
        rate = base_lr(order.command, config.resume, in_file=given.get("{lr}"))
        batch = base_batch(order.command, config.resume, in_file=given.get("{batch}"))
    except ValueError as error:
        raise UsageError(str(error)) from None
    secrets = [*config.notify.receivers, *(receiver.url.reveal() for receiver in receivers)]
    env = worker_environment(
        os.environ,
        secrets=secrets,
        our_prefix=sys.prefix,
        our_path=str(Path(__file__).resolve().parents[1]),
        columns=shutil.get_terminal_size().columns if sys.stdout.isatty() else None,
    )
    return Settings(
        name=order.name,
        command=order.command,
        workdir=order.workdir,
        directory=order.directory,
        env=env | config.run.env,
        panel=config.panel,
        stall=config.detect.stall,
        gpu=config.gpu,
        resume=config.resume,
        metrics=config.metrics,
        probe=config.probe,
        grace_s=config.run.grace_s,
        max_loss_s=config.checkpoints.max_loss_s,
        base_lr=rate,
        base_batch=batch,
        observe=order.observe,
        drill_s=order.drill_s,
    )


def _effects(
    order: Order,
    run: Run,
    receivers: tuple[Receiver, ...],
    *,
    console: Console,
    inbox: Inbox,
    store: Store,
) -> Effects:
    return Effects(
        clock=time.monotonic,
        wall=time.time,
        worker=WorkerTree(inbox.put),
        tails=AttemptTails(
            inbox.put,
            echo_to=sys.stdout.fileno() if order.echo else None,
            script=script_files(order),
        ),
        checkpoints=Shelf(
            name=order.name,
            patterns=order.config.checkpoints.glob,
            workdir=order.workdir,
            roots=output_roots(order.command, order.workdir),
            since_utc=run.started_utc,
            report=inbox.put,
        ),
        store=store,
        dispatcher=Dispatcher(receivers=receivers, report=inbox.put),
        gpu=GpuMonitor(
            interval_s=GPU_INTERVAL_S,
            visible=os.environ.get("CUDA_VISIBLE_DEVICES"),
            report=inbox.put,
        ),
        say=console.say,
        write_control=write_json,
        autopsy=partial(examine, report=inbox.put, clock=time.monotonic),
        patch_config=write_patched,
        install_probe=install_probe,
        kernel_lines=kernel_lines,
        oom_kills=oom_kills,
        search=Patience().search,
        jitter=random.random,
        receivers=tuple(receiver.key for receiver in receivers),
        told=told_of(order.config.policy, receivers),
    )


def _announce(
    order: Order,
    run: Run,
    receivers: tuple[Receiver, ...],
    console: Console,
    recipe: Recipe | None,
) -> None:
    """Before the start: what is watched, which checkpoints, whether and how it can resume."""
    plan = Plan(
        name=order.name,
        command=order.command,
        logs=str(order.directory / "attempts"),
        metrics=order.config.metrics,
        globs=order.config.checkpoints.glob,
        places=[str(root) for root in output_roots(order.command, order.workdir)],
        means=run.means,
        recipe=recipe,
        alerts=[receiver.label for receiver in receivers],
        probe=order.config.probe.enabled,
        uses_torch=imports_torch(order.command, order.workdir),
    )
    for line in announcement(plan):
        console.say(line)


def _services(order: Order, inbox: Inbox, console: Console) -> tuple[ControlServer | None, Chores]:
    server = None
    try:
        server = ControlServer(order.directory, inbox.put)
    except OSError as error:
        console.say(f"warning: no control socket ({error.strerror or error}); stop with a signal")
    chores = Chores(inbox.put)
    chores.start()
    return server, chores


def send_test_alerts(config: Config) -> list[tuple[str, str]]:
    """Send one alert to each receiver. Returns (label, error) for each, "" where it was accepted.

    Raises UsageError for receivers that cannot be read.
    """
    receivers = load_receivers(config.notify.receivers)
    answers: queue.SimpleQueue[AlertSent] = queue.SimpleQueue()
    dispatcher = Dispatcher(receivers=receivers, report=answers.put)
    found = []
    for number, receiver in enumerate(receivers, start=1):
        title, body = "[overnight] test alert", "A test. What you need to do: nothing."
        dispatcher.send(number, receiver.key, title=title, body=body, severity="warning")
        answer = answers.get()  # the dispatcher answers for every alert it has accepted
        found.append((receiver.label, "" if answer.ok else answer.error))
    return found


def restore_checkpoint(quarantined: Path) -> Path:
    """Take one checkpoint out of quarantine. Returns where it is now. Raises UsageError."""
    try:
        return restore(quarantined)
    except OSError as error:
        where = error.filename or quarantined
        raise UsageError(f"cannot put it back: {where}: {error.strerror}") from error
