"""Builds a supervised run from its configuration; the only file that names concrete adapters."""

from __future__ import annotations

import glob
import os
import queue
import random
import shutil
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from overnight.adapters.checkpoints.discover import identity_of, step_of
from overnight.adapters.checkpoints.patterns import output_roots
from overnight.adapters.checkpoints.shelf import Shelf
from overnight.adapters.console import Console
from overnight.adapters.control import ControlServer
from overnight.adapters.files import private_directory, read_json, write_json
from overnight.adapters.gpu import GpuMonitor
from overnight.adapters.housekeeping import Chores
from overnight.adapters.lock import RunLock
from overnight.adapters.notify.dispatch import Dispatcher, unusable
from overnight.adapters.notify.receivers import Receiver, load_receivers
from overnight.adapters.patience import Patience
from overnight.adapters.probe import imports_torch, install_probe
from overnight.adapters.store import Store, StoreReader
from overnight.adapters.tail.attempt import AttemptTails
from overnight.adapters.tail.script_files import Place
from overnight.adapters.worker import WorkerTree, is_alive
from overnight.config import Config
from overnight.core.announcement import Plan, announcement
from overnight.core.environment import worker_environment
from overnight.core.events import AlertSent, StopRequested
from overnight.core.formats.files import CHANGES, DECODERS
from overnight.core.orders import Memory
from overnight.core.resume import base_lr
from overnight.errors import StoreError, UsageError
from overnight.supervisor import adoption
from overnight.supervisor.inbox import Inbox
from overnight.supervisor.journal import Journal
from overnight.supervisor.loop import Supervisor
from overnight.supervisor.ports import Effects
from overnight.supervisor.run import Run, Settings

GPU_INTERVAL_S = 2.0


@dataclass(frozen=True)
class Order:
    """What the command line asked for, after files and flags were merged."""

    config: Config
    name: str
    command: tuple[str, ...]
    workdir: Path
    state_parent: Path
    observe: bool = False
    fresh: bool = False
    echo: bool = False
    from_checkpoint: Path | None = None
    lr_scale: float | None = None
    detach: bool = False

    @property
    def directory(self) -> Path:
        """Where the run keeps its state."""
        return self.state_parent / self.name


def supervise(order: Order) -> int:
    """Supervise one run to its end. Returns the exit status.

    Raises UsageError for everything that must be right before anything is started.
    """
    _check_command(order)
    _script_files(order)  # a path that cannot be read is refused before the start
    receivers = load_receivers(order.config.notify.receivers)
    wrong = unusable(receivers)
    if wrong:
        raise UsageError("; ".join(wrong), hint="overnight alert-test tries each receiver")
    lock = _locked(order)
    try:
        return _supervise(order, receivers, lock)
    finally:
        lock.release()


def _check_command(order: Order) -> None:
    if not order.workdir.is_dir():
        raise UsageError(f"no such working directory: {order.workdir}")
    program = order.command[0]
    found = shutil.which(program, path=os.environ.get("PATH"))
    if "/" in program:
        found = shutil.which(str(order.workdir / program))
    if found is None:
        raise UsageError(f"cannot run {program}: no such program", hint="check the command")


def _locked(order: Order) -> RunLock:
    """The lock of the run's state directory, created if need be."""
    lock = RunLock(order.directory)
    try:
        if order.fresh and order.directory.exists():
            _archive(order)
        private_directory(order.directory)
        holder = lock.acquire()
    except OSError as error:
        raise UsageError(
            f"cannot use the state directory {order.directory}: {error.strerror}",
            hint="set OVERNIGHT_STATE_DIR to a directory that you can write",
        ) from error
    if holder is not None:
        raise UsageError(
            f"run {order.name} is already supervised (pid {holder})",
            hint=f"overnight status {order.name}, or choose another --name",
        )
    return lock


def _archive(order: Order) -> None:
    """Put an earlier run of this name aside; nothing is deleted. Refuses while it lives."""
    lock = RunLock(order.directory)
    if lock.acquire() is not None:
        raise UsageError(f"run {order.name} is being supervised", hint="overnight stop it first")
    try:
        memory = _memory(order.directory)
        if memory is not None:
            _refuse_living_worker(order.name, memory.run)
        stamp = f"{time.strftime('%Y%m%d-%H%M%S')}-{time.time_ns() % 10**9:09d}"
        shelf = private_directory(order.state_parent / ".archive")
        order.directory.rename(shelf / f"{order.name}-{stamp}")
    finally:
        lock.release()


def _supervise(order: Order, receivers: tuple[Receiver, ...], lock: RunLock) -> int:
    memory = _memory(order.directory)
    if memory is not None:
        adoption.refuse_other_run(memory.run, _wish(order))
        _refuse_living_worker(order.name, memory.run)
        _refuse_unseen_end(order, memory.run)
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
    start = adoption.opening_of(run, _wish(order), memory, now=time.monotonic(), now_utc=now_utc)
    if order.detach:
        _detach(order.name)
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
    _announce(order, run, receivers, console)
    server, chores = _services(order, inbox, console)
    _handle_signals(inbox, console)
    try:
        return supervisor.supervise(start)
    finally:
        chores.close()
        if server is not None:
            server.close()
        store.close()


def _memory(directory: Path) -> Memory | None:
    """What a run of this name left in the store, if anything. Raises UsageError."""
    if not (directory / "store.db").exists():
        return None
    try:
        return StoreReader(directory).memory()
    except StoreError as error:
        hint = error.hint or "start with --fresh to put the old state aside"
        raise UsageError(str(error), hint=hint) from error


def _refuse_living_worker(name: str, row: Mapping[str, Any]) -> None:
    worker = row.get("worker")
    if worker and is_alive(worker["pid"], worker["start_time"], worker["boot_id"]):
        raise UsageError(
            f"the worker of an earlier supervisor of {name} still runs (pid {worker['pid']})",
            hint=f"let it finish, or end it with: kill {worker['pid']}",
        )


def _refuse_unseen_end(order: Order, row: Mapping[str, Any]) -> None:
    """A worker whose supervisor was killed may have completed its run while nobody watched."""
    worker = row.get("worker")
    if not worker or order.from_checkpoint is not None:
        return
    record = read_json(order.directory / "attempts" / f"{worker['attempt']:04d}" / "exit.json")
    if record is not None and record.get("code") == 0:
        raise UsageError(
            f"run {order.name} has completed while no supervisor watched it",
            hint="--fresh starts it anew, --from-checkpoint goes on from a checkpoint",
        )


def _wish(order: Order) -> adoption.Wish:
    """What the person asks of a run that may have a past."""
    chosen = None
    if order.from_checkpoint is not None:
        path = order.from_checkpoint.absolute()
        identity = identity_of(path)
        if identity is None:
            raise UsageError(f"no checkpoint at {path}", hint="check --from-checkpoint")
        chosen = adoption.Chosen(identity, step_of(path))
    return adoption.Wish(order.command, chosen, order.lr_scale)


def _settings(order: Order, receivers: tuple[Receiver, ...]) -> Settings:
    config = order.config
    try:
        rate = base_lr(order.command, config.resume)
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
        observe=order.observe,
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
            script=_script_files(order),
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
        install_probe=install_probe,
        search=Patience().search,
        jitter=random.random,
        receivers=tuple(receiver.key for receiver in receivers),
    )


def _script_files(order: Order) -> Place | None:
    """The metrics files of the script's own, where the config names some."""
    metrics = order.config.metrics
    if metrics.source == "stdout" or metrics.path is None:
        return None
    place = Path(order.workdir, Path(metrics.path).expanduser())
    if place.exists() and not place.is_file():
        what = "is a directory" if place.is_dir() else "is no regular file"
        hint = f'a file or a glob, such as path = "{metrics.path.rstrip("/")}/*.csv"'
        raise UsageError(f"[metrics] path = {metrics.path!r} {what}", hint=hint)
    here = glob.escape(str(order.workdir.absolute()))
    return Place(
        pattern=str(Path(here, Path(metrics.path).expanduser())),
        decoder=DECODERS[metrics.source],
        change=CHANGES[metrics.source],
    )


def _announce(order: Order, run: Run, receivers: tuple[Receiver, ...], console: Console) -> None:
    """Before the start: what is watched, which checkpoints, whether and how it can resume."""
    plan = Plan(
        name=order.name,
        command=order.command,
        logs=str(order.directory / "attempts"),
        metrics=order.config.metrics,
        globs=order.config.checkpoints.glob,
        places=[str(root) for root in output_roots(order.command, order.workdir)],
        means=run.means,
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


def _handle_signals(inbox: Inbox, console: Console) -> None:
    """SIGINT and SIGTERM end the run, SIGHUP lets go of the terminal, SIGTSTP is refused."""

    def stop(number: int, _frame: object) -> None:
        inbox.put(StopRequested(time.monotonic(), number))

    def hang_up(_number: int, _frame: object) -> None:
        console.detach()

    def refuse(_number: int, _frame: object) -> None:
        console.say("a stopped watchdog watches nothing: Ctrl-Z is ignored (Ctrl-C ends the run)")

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGHUP, hang_up)
    signal.signal(signal.SIGTSTP, refuse)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)


def _detach(name: str) -> None:
    """Go on in a session of our own; the shell gets its prompt back. Before any thread exists."""
    if os.fork() > 0:
        print(f"watching in the background: overnight status {name}", flush=True)
        os._exit(0)
    os.setsid()
    quiet = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(quiet, descriptor)


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
