"""Closed loop: is the resumed run where its checkpoint was, in its steps and in its loss?

A flag that a script ignores starts it at step 0, over its own checkpoints; one that it takes for
"the newest" loads what was just rolled back. Both show in the first lines it prints.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from statistics import median

from overnight.core.events import Fault, Position, Severity, StepMetric, Verdict

ANEW_FRACTION = 0.1
"""A first step below this part of the checkpoint's is one of a run that began anew."""

STRIDES = 2
"""A script prints its first line at most so many of its usual distances after its checkpoint."""

SURE_RECORDS = 2
"""Records that must say so: a counter may be printed once before it is loaded."""

BAND_RECORDS, LATEST_RECORDS = 50, 5
"""The level of the loss is known from so many records before the checkpoint, and judged by the
median of so many after it."""

BAND_FRACTION = 0.15
"""So far above its median, or above the highest of them, a loss is out of its old band."""


class Comeback:
    """Judges the first records after a resume."""

    def __init__(
        self,
        *,
        target_step: int,
        lineage: Sequence[StepMetric],
        stride: int,
        left_behind: Iterable[int],
        band_steps: int,
        by_steps: bool = False,
    ) -> None:
        """`lineage` are the records before the checkpoint, `left_behind` the steps of those
        checkpoints that must not be resumed from; `band_steps` 0: any loss will do; `by_steps`:
        a run so young that its loss is that of its beginning is judged by its steps alone."""
        self._target = target_step
        self._stride = max(1, stride)
        far = target_step + STRIDES * self._stride
        self._left_behind = sorted(step for step in left_behind if step > far)
        losses = [r.loss for r in lineage[-BAND_RECORDS:] if _is_number(r.loss)]
        self._ceiling = _ceiling([loss for loss in losses if loss is not None])
        self._band_steps = band_steps
        self._by_steps = by_steps
        self._latest: deque[float] = deque(maxlen=LATEST_RECORDS)
        self._odd: list[StepMetric] = []
        self._first: StepMetric | None = None
        self.placed = False
        """Whether the steps are what they should be, as far as they can tell."""
        self.over = False
        """Whether there is nothing left to find out."""

    def observe(self, record: StepMetric) -> Verdict | None:
        """A verdict once something is wrong with the resume; None while it may be right."""
        if self.over:
            return None
        self._first = self._first or record
        if record.loss is not None and _is_number(record.loss):
            self._latest.append(record.loss)
        if not self.placed:
            return self._place(record)
        return self._level(record)

    # --- steps ---------------------------------------------------------------------------------

    def _place(self, record: StepMetric) -> Verdict | None:
        anew = self._began_anew(record)
        wrong = self._resumed_elsewhere(record)
        self._odd = [*self._odd, record] if anew or wrong is not None else []
        if not self._odd:
            self.placed = True
        elif len(self._odd) >= SURE_RECORDS:
            if anew and not (self._by_steps or self._out_of_band):
                self.placed = True  # only the counter began anew: the loss is that of the run
                return None
            self.over = True
            first = self._odd[0]
            where = f"from step {wrong}" if wrong is not None else f"at step {first.step} again"
            reason = (
                f"the script did not resume from step {self._target}: it went on {where}."
                " It is stopped before it overwrites what is good"
            )
            return self._verdict(Fault.STARTUP_FAILURE, reason, record)
        return None

    def _began_anew(self, record: StepMetric) -> bool:
        begins = max(STRIDES * self._stride, ANEW_FRACTION * self._target)
        before = self._target - STRIDES * self._stride
        return (record.step <= begins or bool(self._odd)) and max(record.step, begins) < before

    def _resumed_elsewhere(self, record: StepMetric) -> int | None:
        """The checkpoint of a left future behind which the script goes on, if it does."""
        near = STRIDES * self._stride * SURE_RECORDS
        return next((s for s in self._left_behind if s <= record.step <= s + near), None)

    # --- loss ----------------------------------------------------------------------------------

    @property
    def _out_of_band(self) -> bool:
        """Whether the loss is higher than it was; also where nobody can tell."""
        if self._ceiling is None or not self._latest:
            return True
        return median(self._latest) > self._ceiling

    def _level(self, record: StepMetric) -> Verdict | None:
        assert self._first is not None
        self.over = not self._band_steps or self._ceiling is None
        enough = len(self._latest) == LATEST_RECORDS
        if self.over or not enough or record.step - self._first.step < self._band_steps:
            return None
        self.over = True
        if not self._out_of_band:
            return None
        reason = (
            f"{self._band_steps} steps after the resume the loss is"
            f" {median(self._latest):.4g}, before the checkpoint it was at most"
            f" {self._ceiling:.4g}: the checkpoint is not as good as it looked"
        )
        return self._verdict(Fault.DIVERGENCE, reason, record)

    def _verdict(self, fault: Fault, reason: str, record: StepMetric) -> Verdict:
        assert self._first is not None
        return Verdict(
            at=record.at,
            fault=fault,
            severity=Severity.CRITICAL,
            reason=reason,
            onset=Position(record.position.attempt, 0),
            detected=record.position,
            onset_step=self._first.step,
            detected_step=record.step,
            evidence={"resumed_step": self._target, "first_step": self._first.step},
        )


def _is_number(loss: float | None) -> bool:
    return loss is not None and math.isfinite(loss)


def _ceiling(losses: Sequence[float]) -> float | None:
    """The highest loss that still belongs to the old band; None where too few were seen."""
    if len(losses) < LATEST_RECORDS:
        return None
    level = median(losses)
    return max(*losses, level + BAND_FRACTION * abs(level))
