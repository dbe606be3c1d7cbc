"""Between probe and supervisor: settings from the environment, metrics out, orders in."""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Settings:
    """What the supervisor asks for (`[probe]` of its config, as JSON in OVERNIGHT_PROBE).

    `first_step` is the step of the run at which this process begins; `applied_scale` is the part
    of the learning-rate scale that the command line carries already.
    """

    metrics: str
    control: str
    lr_scale: float = 1.0
    applied_scale: float = 1.0
    first_step: int = 0
    skip_nonfinite: bool = True
    clip: str = "off"
    snapshots: bool = True
    snapshot_steps: int = 50
    snapshot_s: float = 60.0
    snapshot_bytes: int = 0
    keep: int = 3


def settings_of(environ: Mapping[str, str]) -> Settings | None:
    """The settings, None where no supervisor asks. Raises ValueError or TypeError on nonsense."""
    text, metrics = environ.get("OVERNIGHT_PROBE"), environ.get("OVERNIGHT_METRICS")
    if not text or not metrics:
        return None
    return Settings(
        metrics=metrics,
        control=environ.get("OVERNIGHT_CONTROL", ""),
        lr_scale=float(environ.get("OVERNIGHT_LR_SCALE") or 1.0),
        **json.loads(text),
    )


def is_main_process(environ: Mapping[str, str]) -> bool:
    """Whether this process reports: rank 0 of a distributed run, or the only one."""
    return environ.get("RANK", "0") == "0"


class Report:
    """Appends JSON lines to the metrics file. A full disk costs lines, never the training."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file: int | None = None
        self._pid = 0

    def write(self, values: Mapping[str, Any]) -> None:
        """One line, in one write: other processes may append to the same file."""
        line = json.dumps({key: value for key, value in values.items() if value is not None})
        try:
            if self._file is None or self._pid != os.getpid():  # a forked child has its own
                flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
                self._file = os.open(self._path, flags, 0o600)
                self._pid = os.getpid()
            os.write(self._file, line.encode() + b"\n")
        except OSError:
            return


def holds(path: str) -> bool:
    """Whether this process is the one that reports: the first that asked, while it lives.

    A script may start another one that trains, too; both would be taken for one run.
    """
    place = f"{path}.probe-pid"
    for _attempt in range(2):
        try:
            file = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(file, "w", encoding="ascii") as lock:
                lock.write(str(os.getpid()))
            return True
        except FileExistsError:
            if _is_other(place):
                return False
        except OSError:
            return True  # a full disk: nobody can tell
    return True


def _is_other(place: str) -> bool:
    """Whether the file names another process that lives; one of a dead process is removed."""
    try:
        with open(place, encoding="ascii") as lock:
            pid = int(lock.read())
        if pid == os.getpid():
            return False
        os.kill(pid, 0)
    except (OSError, ValueError):
        with contextlib.suppress(OSError):
            os.unlink(place)
        return False
    return True


@dataclass(frozen=True)
class Rollback:
    """An order to go back to the newest snapshot before a step, if it has one."""

    number: int
    before_step: int
    healthy_step: int


@dataclass(frozen=True)
class Orders:
    """What the control file says. They hold from `from_step` on, so that all ranks obey alike."""

    lr_scale: float = 1.0
    clip: str = ""
    rollback: Rollback | None = None
    from_step: int = 0


class Control:
    """Reads the control file again whenever it has changed: one `stat` a step."""

    def __init__(self, path: str, lr_scale: float) -> None:
        self._path = path
        self._seen: Any = None
        self.orders = Orders(lr_scale=lr_scale)
        self._waiting: Orders | None = None

    @property
    def goes_back(self) -> bool:
        """Whether an order to go back waits for its step."""
        waiting = self._waiting
        return waiting is not None and waiting.rollback != self.orders.rollback

    def read(self, step: int) -> Orders:
        """The orders in force at this step."""
        try:
            status = os.stat(self._path)
            seen = (status.st_ino, status.st_mtime_ns, status.st_size)
            if seen != self._seen:
                self._seen = seen
                with open(self._path, encoding="utf-8") as source:
                    self._waiting = _orders(json.load(source), self.orders)
        except (OSError, ValueError):
            pass  # not there, or half a file of somebody who does not rename: as before
        if self._waiting is not None and step >= self._waiting.from_step:
            self.orders, self._waiting = self._waiting, None
        return self.orders


def _orders(values: Any, before: Orders) -> Orders:
    if not isinstance(values, dict):
        return before
    probe: dict[str, Any] = values.get("probe") or {}
    scale = values.get("lr_scale")
    sane = isinstance(scale, (int, float)) and math.isfinite(scale) and 0 < scale <= 1
    order = probe.get("rollback")
    return Orders(
        lr_scale=float(scale) if sane else before.lr_scale,
        clip=str(probe.get("clip", before.clip)),
        rollback=Rollback(**{k: int(v) for k, v in order.items()}) if order else before.rollback,
        from_step=int(probe.get("from_step", 0)),
    )


def now() -> float:
    """Monotonic seconds."""
    return time.monotonic()
