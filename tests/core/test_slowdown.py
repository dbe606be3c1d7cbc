"""Slowdowns: a lasting drop of the throughput, not one slow evaluation."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from core_lab import record
from overnight.core.detect.slowdown import SlowdownConfig, SlowdownDetector
from overnight.core.events import Fault, Position, Severity, StepMetric, Verdict


def paced(gaps: Iterable[float], *, tokens: float | None = None, stride: int = 1) -> list:
    """Records with these seconds between them."""
    at, records = 0.0, []
    for index, gap in enumerate(gaps, start=1):
        at += gap
        speed = tokens and tokens / gap
        records.append(
            record(index * stride, at=at, position=Position(1, index), tokens_per_s=speed)
        )
    return records


def said(records: list[StepMetric], **config) -> list[Verdict]:
    """The verdicts of a fresh detector."""
    detector = SlowdownDetector(SlowdownConfig(**config))
    return [found for each in records if (found := detector.observe(each))]


@pytest.mark.parametrize("tokens", [None, 8192.0], ids=["pace-of-records", "tokens"])
@pytest.mark.parametrize("stride", [1, 50])
def test_half_the_speed_for_long_is_told_once(tokens: float | None, stride: int) -> None:
    """A warning with numbers, never more than one for one slowdown."""
    records = paced([5.0] * 300 + [10.0] * 300, tokens=tokens, stride=stride)
    found = said(records)
    assert [(v.fault, v.severity) for v in found] == [(Fault.SLOWDOWN, Severity.WARNING)]
    assert 300 <= found[0].onset.record <= 330
    assert 30 <= found[0].detected.record - found[0].onset.record <= 40
    assert "50 % of the best" in found[0].reason


@pytest.mark.parametrize(
    "gaps",
    [
        pytest.param([5.0] * 600, id="steady"),
        pytest.param([5.0] * 300 + [6.5] * 300, id="three-quarters"),
        pytest.param(([5.0] * 99 + [600.0]) * 6, id="an-evaluation-each-hundred"),
        pytest.param([5.0] * 300 + [10.0] * 25 + [5.0] * 200, id="not-for-long"),
        pytest.param([0.05] * 300 + [0.1] * 300, id="many-records-in-few-seconds"),
        pytest.param([30.0] * 20 + [5.0] * 500, id="slow-start"),
        pytest.param([0.0, 0.0, 0.0, 0.0, 20.0] * 100, id="lines-that-arrive-together"),
        pytest.param([5.0] * 100 + [10.0] * 300, id="never-fast-for-long"),
    ],
)
def test_what_is_no_slowdown(gaps: list[float]) -> None:
    """Pauses, bursts and short drops are life."""
    assert said(paced(gaps)) == []


def test_the_next_slowdown_is_told_again() -> None:
    """When it was fast in between."""
    assert len(said(paced(([5.0] * 300 + [12.0] * 100) * 2))) == 2


def test_a_restart_keeps_the_best_speed_and_nothing_else() -> None:
    """The pause between attempts is no slowness; a slow new attempt is."""
    before = paced([5.0] * 300)
    later = [record(300 + i, at=9000.0 + 10.0 * i, position=Position(2, i)) for i in range(1, 120)]
    found = said([*before, *later])
    assert len(found) == 1
    assert found[0].onset.attempt == 2


def test_it_can_be_switched_off() -> None:
    """For runs whose sequences grow."""
    assert said(paced([5.0] * 300 + [20.0] * 300), enabled=False) == []
