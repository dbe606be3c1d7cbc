"""Faults on purpose: a NaN, a hanging worker, a killed worker, one after the other.

Everything behind them is what a night would see: the real detectors, policy, kill and resume.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum

from overnight.core.events import (
    Fault,
    Health,
    Position,
    Severity,
    StepMetric,
    Verdict,
)
from overnight.supervisor.judging import Judge
from overnight.supervisor.ports import Effects
from overnight.supervisor.reading import Reader
from overnight.supervisor.recovery import Recoverer
from overnight.supervisor.run import Run

READY_RECORDS = 5
"""Records of an attempt before something is done to it: the script has settled."""

SAVE_SHARE = 0.6
"""So much of the budget is waited for a checkpoint; the rest is for the faults."""


class Stage(StrEnum):
    """What comes next."""

    NAN = "nan"
    STALL = "stall"
    CRASH = "crash"
    DONE = "done"


_NEXT = {Stage.NAN: Stage.STALL, Stage.STALL: Stage.CRASH, Stage.CRASH: Stage.DONE}


class Driller:
    """Asked once a second by the loop; injects the next fault when the run is ready for it."""

    def __init__(
        self,
        run: Run,
        effects: Effects,
        *,
        reader: Reader,
        judge: Judge,
        recoverer: Recoverer,
        stop: Callable[[str], None],
    ) -> None:
        self._run = run
        self._effects = effects
        self._reader = reader
        self._judge = judge
        self._recoverer = recoverer
        self._stop = stop
        self._stage = Stage.NAN
        self._began = effects.clock()
        self._asked = False

    def advance(self, at: float) -> None:
        """Do what is due."""
        run = self._run
        if run.life.ended or run.stop is not None:
            return
        if at - self._began >= run.settings.drill_s:
            self._stop("the budget of the drill is used up")
        elif self._is_ready(at):
            stage, self._stage = self._stage, _NEXT.get(self._stage, Stage.DONE)
            self._effects.say(f"drill: {stage}")
            self._inject(stage, at)

    def _is_ready(self, at: float) -> bool:
        """Whether the worker trains, nothing is being recovered, and there is a way back."""
        attempt = self._run.attempt
        if attempt is None or attempt.condemned or self._recoverer.current is not None:
            return False
        if attempt.records < READY_RECORDS or attempt.exited is not None:
            return False
        return self._stage is not Stage.NAN or self._has_way_back(at)

    def _has_way_back(self, at: float) -> bool:
        """A healthy checkpoint, a snapshot of the probe, or no more time to wait for one."""
        self._ask_for_checkpoint()
        waited = at - self._began >= SAVE_SHARE * self._run.settings.drill_s
        saved = self._run.ledger.newest(Health.HEALTHY) is not None
        probed = self._run.means.in_flight and waited
        return saved or probed or waited

    def _ask_for_checkpoint(self) -> None:
        wanted = bool(self._run.hello and self._run.hello.get("checkpoint_signal"))
        if wanted and not self._asked:
            self._asked = True
            self._effects.worker.signal(signal.SIGUSR1)

    def _inject(self, stage: Stage, at: float) -> None:
        attempt = self._run.attempt
        assert attempt is not None
        assert attempt.last is not None
        if stage is Stage.NAN:
            for number in (1, 2, 3):
                if not attempt.condemned:
                    self._reader.inject(_nan(attempt.last, number, self._run.stride, at=at))
        elif stage is Stage.STALL:
            self._effects.worker.signal(signal.SIGSTOP)
            self._judge.judge(_stalled(attempt.last, at=at))
        elif stage is Stage.CRASH:
            self._effects.worker.signal(signal.SIGKILL)
        else:
            self._stop("the drill is over")


def _nan(last: StepMetric, number: int, stride: int, *, at: float) -> StepMetric:
    """A record that the worker did not print."""
    position = Position(last.position.attempt, last.position.record + 1)
    step = last.step + (stride if number == 1 else 1)
    return replace(last, at=at, position=position, step=step, loss=math.nan, grad_norm=math.nan)


def _stalled(last: StepMetric, *, at: float) -> Verdict:
    return Verdict(
        at=at,
        fault=Fault.STALL,
        severity=Severity.CRITICAL,
        reason="a drill: the worker was stopped (SIGSTOP), as if it hung",
        detected=last.position,
        detected_step=last.step,
    )
