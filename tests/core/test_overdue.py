"""Checkpoints that are overdue: how much work would be lost by dying now."""

from __future__ import annotations

import pytest

from overnight.core.detect.overdue import OverdueDetector, Safety
from overnight.core.events import Fault, Severity


@pytest.mark.parametrize(
    ("safety", "told"),
    [
        pytest.param(Safety(None), False, id="nothing-trained-yet"),
        pytest.param(Safety(9000.0), False, id="young-run"),
        pytest.param(Safety(0.0), True, id="no-checkpoint-for-long"),
        pytest.param(Safety(0.0, healthy_at=9000.0), False, id="fresh-checkpoint"),
        pytest.param(Safety(0.0, healthy_at=8000.0), False, id="a-little-late"),
        pytest.param(Safety(0.0, healthy_at=5000.0), True, id="old-checkpoint"),
        pytest.param(Safety(9500.0, healthy_at=5000.0), False, id="resumed-from-an-old-one"),
    ],
)
def test_age_of_the_newest_healthy_one_against_the_limit(safety: Safety, told: bool) -> None:
    """Half an hour is wanted, and a quarter more is let pass."""
    verdict = OverdueDetector(1800.0).check(10_000.0, safety)
    assert (verdict is not None) is told


def test_it_is_told_once_until_a_checkpoint_comes() -> None:
    """A warning with the minutes, and again for the next gap."""
    detector = OverdueDetector(1800.0)
    safety = Safety(0.0, healthy_at=600.0, healthy_step=250)
    first = detector.check(6000.0, safety)
    assert first is not None
    assert (first.fault, first.severity) == (Fault.CHECKPOINT_OVERDUE, Severity.WARNING)
    assert first.reason == (
        "90 min of work would be lost now: the newest healthy checkpoint is that of step 250"
        " (at most 30 min wanted; overnight checkpoints says how often to save)"
    )
    assert detector.check(9000.0, safety) is None
    assert detector.check(9100.0, Safety(0.0, healthy_at=9000.0)) is None
    assert detector.check(20_000.0, Safety(0.0, healthy_at=9000.0)) is not None


@pytest.mark.parametrize(
    ("safety", "words"),
    [
        (Safety(0.0), "no checkpoint is healthy yet"),
        (Safety(0.0, healthy_at=1.0), "the newest healthy checkpoint is that old"),
    ],
)
def test_the_reason_says_what_is_known(safety: Safety, words: str) -> None:
    """A checkpoint whose step nobody knows has no step in the sentence."""
    verdict = OverdueDetector(60.0).check(10_000.0, safety)
    assert verdict is not None
    assert words in verdict.reason
