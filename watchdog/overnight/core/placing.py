"""Where a checkpoint stands in the history of a run: which step orders it, what lies before it."""

from __future__ import annotations

from collections.abc import Iterable

from overnight.core.events import Position, StepMetric
from overnight.core.story import Entry

BEFORE_ALL = Position(0, 0)
"""The position of what was saved before the run's first record."""

PACE_RECORDS = 3
"""Records between two checkpoints from which the steps of a record can be told."""


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


def pace_of(entries: Iterable[Entry]) -> int:
    """Steps that one record stands for in a log that prints none; 1 where nobody can tell.

    Such records are numbered (`order_step`), while the checkpoints' own names count steps: the
    Hugging Face Trainer prints a loss every `logging_steps`, and no step.
    """
    named = [
        (entry.position, entry.step)
        for entry in entries
        if entry.step is not None and entry.order_step is not None and not entry.abandoned
        if entry.step > entry.order_step == entry.position.record
    ]
    if not named:
        return 1
    (first, begin), (last, end) = min(named), max(named)
    records = last.record - first.record
    if first.attempt != last.attempt or records < PACE_RECORDS:
        return 1
    return max(1, (end - begin) // records)
