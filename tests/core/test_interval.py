"""How often to save: the published figures, and what a person is told."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.core_lab import record

from overnight.core.events import Position
from overnight.core.interval import (
    History,
    advice,
    best_interval_s,
    daly_s,
    pace_s,
    save_cost_s,
)

HOUR = 3600.0
SEED = History(
    observed_s=41.8 * HOUR,
    faults=1,
    cost_s=15.0,
    step_s=3.32,
    interval_s=5000 * 3.32,
    max_loss_s=1800.0,
)
"""The story: 42 h, one NaN, 3.32 s a step, a save every 5000."""


@pytest.mark.parametrize(("hours", "minutes"), [(24, 117), (6, 57), (0.25, 9.1)])
def test_the_figures_of_the_paper(hours: float, minutes: float) -> None:
    """Daly 2006, for a save of 5 minutes."""
    assert daly_s(300.0, hours * HOUR) / 60 == pytest.approx(minutes, rel=0.01)


def test_a_save_longer_than_the_time_between_faults() -> None:
    assert daly_s(10.0, 4.0) == 4.0


def test_the_story() -> None:
    """Every 500 steps or so; its own habit would cost more than four hours."""
    free = replace(SEED, max_loss_s=10 * HOUR)
    assert 400 <= best_interval_s(free) / SEED.step_s <= 700
    first, second = advice(SEED)
    assert first == "save every 540 steps (30 min): a save costs about 15 s, 1 fault in 41 h 48 min"
    assert second.startswith("the script saves every 5,000 steps (4 h 37 min): a fault can cost")
    assert second.endswith("more than the 30 min of max_loss_s")


@pytest.mark.parametrize(
    ("change", "interval_s"),
    [
        ({"max_loss_s": 60.0}, 60.0),
        ({"cost_s": 600.0, "max_loss_s": 9e9}, 7200.0),
        ({"cost_s": None, "max_loss_s": 9e9}, 565.0),
    ],
)
def test_its_bounds(change: dict[str, float], interval_s: float) -> None:
    """What one is willing to lose, two hours, and a second for a save that does not show."""
    assert best_interval_s(replace(SEED, **change)) == pytest.approx(interval_s, rel=0.02)


def test_what_is_not_known_is_not_said() -> None:
    young = replace(SEED, cost_s=None, step_s=None, interval_s=None, faults=0)
    assert advice(young) == [
        "save every 13 min: what a save costs is not known yet, 0 faults in 41 h 48 min"
    ]
    cheap = advice(replace(SEED, cost_s=0.1, interval_s=100.0))
    assert "next to nothing" in cheap[0]
    assert cheap[1] == "the script saves every 30 steps (2 min)"


def test_what_a_save_costs() -> None:
    """Records each second; around the saves at 50 and 150 it took 8 s more."""
    records, now = [], 0.0
    for number in range(200):
        now += 9.0 if number in (50, 150) else 1.0
        records.append(now)
    saves = [records[50] - 2, records[150] - 2]
    assert save_cost_s(records, saves) == pytest.approx(8.0)
    assert save_cost_s(records, []) is None
    assert save_cost_s(records[:5], saves) is None


def test_the_pace_leaves_out_waits_and_steps_taken_twice() -> None:
    """2 s a step; an hour of waiting, then from step 60 again."""
    first = [record(step, time_utc=2.0 * step) for step in range(0, 110, 10)]
    again = [
        record(step, position=Position(2, step), time_utc=3800.0 + 2.0 * (step - 60))
        for step in range(60, 130, 10)
    ]
    assert pace_s([*first, *again]) == pytest.approx(2.0)
    assert pace_s([first[-1], again[0]]) is None
    assert pace_s([]) is None
