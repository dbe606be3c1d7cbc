"""Where a checkpoint stands in the history of a run: which step orders it, what lies before it."""

from __future__ import annotations

from overnight.core.events import Position, StepMetric

BEFORE_ALL = Position(0, 0)
"""The position of what was saved before the run's first record."""


def is_past(step: int | None, first_step: int) -> bool:
    """Whether a checkpoint that was there before the run can be what the run continues from."""
    return step is not None and step <= first_step


def order_step_of(step: int | None, *, last: StepMetric | None, stride: int) -> int | None:
    """The step that orders a checkpoint: its own while within one log stride of the logged one."""
    if last is None:
        return step
    if step is not None and abs(step - last.step) <= max(stride, 1):
        return step
    return last.step
