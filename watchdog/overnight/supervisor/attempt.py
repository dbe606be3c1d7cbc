"""One attempt as the supervisor follows it: its files, its detectors, how it ended."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from overnight.core.buffering import BlockBuffering
from overnight.core.comeback import Comeback
from overnight.core.detect.overdue import OverdueDetector
from overnight.core.detect.panel import Judgement, Panel
from overnight.core.detect.stall import StallDetector, Witness
from overnight.core.events import ExitRecord, StepMetric, Target, Verdict, WorkerStarted
from overnight.core.exits import TAIL_LINES
from overnight.core.probe import ProbeState
from overnight.core.proof import LrWatch
from overnight.core.records import RecordStream

BUSY_CPU_S = 0.05
"""CPU seconds between two looks that count as work; an idle interpreter uses less."""


@dataclass
class Attempt:
    """The state of one start of the worker. `condemned` attempts are being ended by us; `oom_kills`
    is the kernel's count when it began."""

    number: int
    started_at: float
    started_utc: float
    resumed: Target | None
    lr_scale: float
    stream: RecordStream
    panel: Panel
    stall: StallDetector
    buffering: BlockBuffering
    overdue: OverdueDetector
    watch: LrWatch | None
    comeback: Comeback | None = None
    oom_kills: int | None = None
    process: WorkerStarted | None = None
    exited: ExitRecord | None = None
    draining: bool = False
    drained: bool = False
    condemned: bool = False
    levels_ignored: bool = False
    cut_lines: int = 0
    probe: ProbeState = field(default_factory=ProbeState)
    records: int = 0
    first_at: float | None = None
    last: StepMetric | None = None
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=TAIL_LINES))
    _cpu_s: float | None = None
    _cpu_idle_since: float | None = None

    @property
    def over(self) -> bool:
        """Nothing of it is left, and everything it wrote has been read."""
        return self.exited is not None and self.drained

    @property
    def identity(self) -> dict[str, Any] | None:
        """What makes the worker's process unique for ever, for the run's row."""
        if self.process is None:
            return None
        names = ("attempt", "pid", "recorder_pid", "start_time", "boot_id")
        return {name: getattr(self.process, name) for name in names}

    def observe(self, record: StepMetric) -> Judgement:
        """Run the detectors over one record."""
        self.records += 1
        self.first_at = record.at if self.first_at is None else self.first_at
        self.last = record
        self.stall.observe(record)
        self._cpu_idle_since = None
        return self.panel.observe(record)

    def check_stall(self, at: float, cpu_s: float | None) -> Verdict | None:
        """Judge the silence; `cpu_s` is the CPU time of the tree, asked for only when needed."""
        busy = self._cpu_s is None or cpu_s is None or abs(cpu_s - self._cpu_s) > BUSY_CPU_S
        if busy or self._cpu_idle_since is None:
            self._cpu_idle_since = at
        self._cpu_s = cpu_s
        idle = None if cpu_s is None else at - self._cpu_idle_since
        return self.stall.check(at, Witness(cpu_idle_s=idle))
