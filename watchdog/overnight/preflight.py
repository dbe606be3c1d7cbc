"""Before the start: what was asked for, and everything that must be right for it.

Part of app.py's layer: it names concrete adapters, and starts nothing.
"""

from __future__ import annotations

import glob
import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from overnight.adapters.checkpoints.complete import identity_of
from overnight.adapters.checkpoints.keepsake import Keepsake
from overnight.adapters.checkpoints.naming import step_of
from overnight.adapters.checkpoints.patterns import output_roots
from overnight.adapters.config_copy import number_at
from overnight.adapters.files import private_directory, read_json
from overnight.adapters.lock import RunLock
from overnight.adapters.notify.receivers import Receiver
from overnight.adapters.store import StoreReader
from overnight.adapters.tail.script_files import Place
from overnight.adapters.worker import is_alive
from overnight.config import Config
from overnight.core.arguments import with_file
from overnight.core.events import Fault
from overnight.core.formats.files import CHANGES, DECODERS
from overnight.core.orders import Memory
from overnight.core.recipes import Recipe
from overnight.core.resume import with_recipe
from overnight.core.situation import FaultPolicy
from overnight.errors import StoreError, UsageError
from overnight.supervisor import adoption


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
    drill_s: float = 0.0

    @property
    def directory(self) -> Path:
        """Where the run keeps its state."""
        return self.state_parent / self.name


def check_command(order: Order) -> None:
    """Raises UsageError where the command cannot be run at all."""
    if not order.workdir.is_dir():
        raise UsageError(f"no such working directory: {order.workdir}")
    program = order.command[0]
    found = shutil.which(program, path=os.environ.get("PATH"))
    if "/" in program:
        found = shutil.which(str(order.workdir / program))
    if found is None:
        raise UsageError(f"cannot run {program}: no such program", hint="check the command")


def completed(order: Order) -> tuple[Order, Recipe | None]:
    """The order with `[resume]` completed by what is known of the command's framework."""
    resume, recipe = with_recipe(order.config.resume, order.command)
    config = order.config.model_copy(update={"resume": resume})
    return replace(order, config=config), recipe


def locked(order: Order) -> RunLock:
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
        memory = memory_of(order.directory)
        if memory is not None:
            refuse_living_worker(order.name, memory.run)
        stamp = f"{time.strftime('%Y%m%d-%H%M%S')}-{time.time_ns() % 10**9:09d}"
        shelf = private_directory(order.state_parent / ".archive")
        order.directory.rename(shelf / f"{order.name}-{stamp}")
    finally:
        lock.release()


def memory_of(directory: Path) -> Memory | None:
    """What a run of this name left in the store, if anything. Raises UsageError."""
    if not (directory / "store.db").exists():
        return None
    try:
        return StoreReader(directory).memory()
    except StoreError as error:
        hint = error.hint or "start with --fresh to put the old state aside"
        raise UsageError(str(error), hint=hint) from error


def refuse_living_worker(name: str, row: Mapping[str, Any]) -> None:
    """Raises UsageError while the worker of an earlier supervisor lives."""
    worker = row.get("worker")
    if worker and is_alive(worker["pid"], worker["start_time"], worker["boot_id"]):
        raise UsageError(
            f"the worker of an earlier supervisor of {name} still runs (pid {worker['pid']})",
            hint=f"let it finish, or end it with: kill {worker['pid']}",
        )


def refuse_unseen_end(order: Order, row: Mapping[str, Any]) -> None:
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


def wish_of(order: Order) -> adoption.Wish:
    """What the person asks of a run that may have a past."""
    chosen = None
    if order.from_checkpoint is not None:
        path = order.from_checkpoint.absolute()
        identity = identity_of(path)
        if identity is None:
            raise UsageError(f"no checkpoint at {path}", hint="check --from-checkpoint")
        chosen = adoption.Chosen(identity, step_of(path))
    return adoption.Wish(order.command, chosen, order.lr_scale)


def numbers_in_file(order: Order) -> dict[str, float]:
    """Placeholder -> the number that the script's own config file gives where it will stand.

    Raises UsageError for a file that cannot be patched, or that a resume could not name.
    """
    resume = order.config.resume
    if resume.config is None:
        return {}
    words = [*order.command, *resume.templates, *order.config.run.env.values()]
    if with_file(words, resume.config, "") == words and "{config}" not in " ".join(words):
        raise UsageError(
            f"[resume] config = {resume.config!r}: the command does not name this file",
            hint="write it as the command does, or use {config} in args, env or command",
        )
    path = order.workdir / resume.config
    try:
        found = {text: number_at(path, key) for key, text in resume.config_values.items()}
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    return {text: number for text, number in found.items() if number is not None}


def told_of(
    policies: Mapping[Fault, FaultPolicy], receivers: tuple[Receiver, ...]
) -> dict[Fault, tuple[str, ...]]:
    """The receivers of faults that not everybody is told of, by tag or kind. Raises UsageError."""
    kinds = {r.key: {*r.tags, r.url.reveal().partition("://")[0].lower()} for r in receivers}
    known = sorted(set().union(*kinds.values())) if kinds else []
    told = {}
    for fault, policy in policies.items():
        if policy.tell is None:
            continue
        unknown = [word for word in policy.tell if word not in known]
        if unknown:
            raise UsageError(
                f"[policy.{fault}] tell = {unknown[0]!r}: no receiver has this tag or kind",
                hint=f"there are: {', '.join(known) or 'none'}",
            )
        told[fault] = tuple(key for key, words in kinds.items() if words & set(policy.tell))
    return told


def script_files(order: Order) -> Place | None:
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


def practice_name(name: str) -> str:
    """The name under which a drill of this run runs."""
    return f"{name[:58]}-drill"


def keepsake_of(order: Order) -> Keepsake:
    """What keeps the checkpoints of a run as they are while a drill trains."""
    return Keepsake(
        name=order.name,
        practice=practice_name(order.name),
        patterns=order.config.checkpoints.glob,
        workdir=order.workdir,
        roots=output_roots(order.command, order.workdir),
    )
