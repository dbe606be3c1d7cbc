"""Stalls: silence against what was normal, with and without a second witness."""

from __future__ import annotations

import pytest

from core_lab import record
from overnight.core.detect.stall import StallConfig, StallDetector, Witness
from overnight.core.events import Fault, Severity

IDLE, BUSY, UNKNOWN = Witness(60.0), Witness(0.0), Witness(None)
WARNING, CRITICAL = Severity.WARNING, Severity.CRITICAL


def detector(*times: float, **config) -> StallDetector:
    """A detector of an attempt that began at 0 and gave records at these times."""
    found = StallDetector(StallConfig(**config), started_at=0.0)
    for step, at in enumerate(times, start=1):
        found.observe(record(step, at=at))
    return found


def severity(found: StallDetector, at: float, witness: Witness) -> Severity | None:
    """How loudly it speaks at a time."""
    verdict = found.check(at, witness)
    return verdict.severity if verdict else None


@pytest.mark.parametrize(
    ("times", "limit_s"),
    [
        pytest.param([], 3600, id="before-the-first-record"),
        pytest.param([500], 900, id="one-record-the-floor"),
        pytest.param([0, 1, 2, 3], 900, id="fast-records-the-floor"),
        pytest.param([0, 60, 120, 180], 1200, id="20-times-the-median-gap"),
        pytest.param([0, 10, 20, 620, 630, 640], 1800, id="3-times-the-longest-gap"),
    ],
)
def test_the_limit(times: list[float], limit_s: float) -> None:
    """max(900 s, 20 x median gap, 3 x longest gap), and an hour before the first record."""
    assert detector(*times).limit_s == limit_s


@pytest.mark.parametrize(
    ("silence_s", "witness", "expected"),
    [
        (900, IDLE, None),
        (901, IDLE, CRITICAL),
        (901, BUSY, WARNING),
        (901, UNKNOWN, WARNING),
        (901, Witness(9.9), WARNING),
        (1799, UNKNOWN, WARNING),
        (1800, BUSY, CRITICAL),
    ],
    ids=["at-limit", "idle", "busy", "unknown", "idle-too-short", "near-twice", "twice-without"],
)
def test_critical_needs_a_witness_or_twice_the_time(
    silence_s: float, witness: Witness, expected: Severity | None
) -> None:
    """No CPU time for 10 s proves it; else twice the limit does."""
    assert severity(detector(1.0, 2.0), 2.0 + silence_s, witness) is expected


def test_it_speaks_once_a_severity_and_never_softer() -> None:
    """A warning, then a critical verdict, then silence until a record comes."""
    found = detector(1.0)
    said = [severity(found, at, BUSY) for at in (902, 903, 1802, 1803)]
    assert said == [WARNING, None, CRITICAL, None]
    proved = detector(1.0)
    assert severity(proved, 902, IDLE) is CRITICAL
    assert severity(proved, 903, BUSY) is None


def test_a_record_ends_it_and_arms_it_again() -> None:
    """The gap that was survived is a healthy one from now on."""
    found = detector(1.0, 2.0)
    assert severity(found, 1000, BUSY) is WARNING
    found.observe(record(3, at=1002.0))
    assert found.limit_s == 20 * 500.5
    assert severity(found, 1500, BUSY) is None
    assert severity(found, 1002 + 20_000, BUSY) is WARNING


def test_records_of_one_read_make_no_gaps_of_zero() -> None:
    """Several lines that arrive together say nothing about the pace."""
    times = [at for at in (0.0, 100.0, 200.0) for _ in range(50)]
    assert detector(*times).limit_s == 2000


def test_an_announced_phase_starts_the_clock_anew_and_is_named() -> None:
    """A long phase may take as long as a start may; the verdict says where it hangs."""
    found = detector(1.0, 2.0)
    found.phase("eval", at=800.0)
    assert severity(found, 4300, IDLE) is None
    verdict = found.check(4401.0, IDLE)
    assert verdict is not None
    assert verdict.fault is Fault.STALL
    assert verdict.reason == (
        "no record for 3601 s since step 2 (limit 3600 s), and the worker has used no CPU time"
        " for 60 s, in its eval phase"
    )


def test_training_again_ends_the_phase() -> None:
    """After `phase train` the usual limit holds, and no phase is named."""
    found = detector(1.0, 2.0)
    found.phase("save", at=10.0)
    found.phase("train", at=20.0)
    verdict = found.check(921.0, IDLE)
    assert verdict is not None
    assert "phase" not in verdict.reason


def test_before_the_first_record_there_is_no_position() -> None:
    """A start that hangs has neither step nor position."""
    verdict = detector().check(3601.0, IDLE)
    assert verdict is not None
    assert (verdict.detected, verdict.detected_step, verdict.onset) == (None, None, None)
    assert "since the start" in verdict.reason


def test_the_witness_is_asked_just_before_the_limit() -> None:
    """CPU time is only measured where it may matter."""
    found = detector(0.0, 1.0)
    assert [found.wants_witness(at) for at in (500, 890, 892, 2000)] == [False, False, True, True]


def test_switched_off_it_is_silent() -> None:
    """`enabled = false` watches nothing."""
    found = detector(1.0, enabled=False)
    assert not found.wants_witness(1e9)
    assert severity(found, 1e9, IDLE) is None
