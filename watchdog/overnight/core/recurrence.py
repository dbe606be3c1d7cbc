"""Whether a fault is an earlier one, come back: what did not help must not be tried again."""

from __future__ import annotations

from collections.abc import Sequence

from overnight.core.events import Verdict
from overnight.core.situation import PastRecovery

NEAR_STEPS = 200
"""A fault within this many steps of an earlier one is the same fault, come back."""

ALIKE_STEPS, ALIKE_FRACTION = 5, 0.05
"""So is one that comes equally long after its resume, within this much: what it resumes with
brings it along, so the next one goes further back."""


def same_fault(verdict: Verdict, past: Sequence[PastRecovery]) -> list[PastRecovery]:
    """Recoveries of this fault near this step, or as far behind their own resume."""
    here = verdict.detected_step
    if here is None:
        return []
    distance = _distance(here, past[-1] if past else None)
    same = []
    for before, recovery in zip((None, *past), past, strict=False):
        seen = recovery.detected_step
        if recovery.fault is not verdict.fault or seen is None:
            continue
        if abs(seen - here) <= NEAR_STEPS or _alike(_distance(seen, before), distance):
            same.append(recovery)
    return same


def _distance(step: int, resumed: PastRecovery | None) -> int | None:
    """Steps from the resume of an earlier recovery to a fault."""
    if resumed is None or resumed.target_step is None:
        return None
    return step - resumed.target_step


def _alike(one: int | None, other: int | None) -> bool:
    if one is None or other is None or one < 0:
        return False
    return abs(one - other) <= max(ALIKE_STEPS, ALIKE_FRACTION * one)


def oldest_tried(same: Sequence[PastRecovery]) -> int:
    """The oldest step that recoveries of this fault have resumed from."""
    tried = [past.target_step for past in same if past.target_step is not None]
    return min(tried) if tried else 0
