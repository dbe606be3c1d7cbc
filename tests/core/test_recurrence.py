"""A fault that comes back: at the same step, or equally long after each resume."""

from __future__ import annotations

import pytest

from overnight.core.events import Fault, Severity, Verdict
from overnight.core.recurrence import oldest_tried, same_fault
from policy_lab import past

NAN = Fault.LOSS_NONFINITE


def nan_at(step: int | None, fault: Fault = NAN) -> Verdict:
    """A fault at this step."""
    return Verdict(0.0, fault, Severity.CRITICAL, "bad", onset_step=step, detected_step=step)


def test_near_the_same_step():
    before = [past(NAN, seen=1000, to=800), past(Fault.CRASH, seen=1000, to=800)]
    assert same_fault(nan_at(1150), before) == before[:1]
    assert same_fault(nan_at(5000), before) == []
    assert same_fault(nan_at(None), before) == []


@pytest.mark.parametrize(
    ("distance", "same"), [(700, True), (730, True), (800, False), (10, False)]
)
def test_equally_long_after_each_resume(distance, same):
    """NaN 700 steps after the start from 800; now as long after the start from 5000."""
    before = [past(Fault.CRASH, seen=900, to=800), past(NAN, seen=1500, to=5000)]
    assert len(same_fault(nan_at(5000 + distance), before)) == same


def test_the_first_recovery_has_no_resume_before_it():
    assert same_fault(nan_at(5000), [past(NAN, seen=1000, to=4000)]) == []


def test_the_oldest_that_was_tried():
    assert oldest_tried([past(NAN, to=300), past(NAN, to=100), past(NAN, to=None)]) == 100
    assert oldest_tried([]) == 0
