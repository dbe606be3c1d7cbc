"""Slow divergence: what rises for good is found, what heals or only wobbles is left alone."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core_lab import INF, NAN, curve, flat, inject, record
from overnight.core.detect.drift import DriftConfig, DriftDetector
from overnight.core.detect.finding import Finding
from overnight.core.detect.level import LossLevel
from overnight.core.events import Fault, Level, StepMetric

OK, SUSPECT, CRITICAL = Level.OK, Level.SUSPECT, Level.CRITICAL


def found(records: list[StepMetric], **config) -> list[Finding | None]:
    """The detector's answer to each record."""
    detector = DriftDetector(DriftConfig(**config), LossLevel(200, 60))
    return [detector.observe(each) for each in records]


def levels(records: list[StepMetric], **config) -> list[Level]:
    """The level after each record."""
    return [finding.level if finding else OK for finding in found(records, **config)]


def shaped(records: list[StepMetric], first: int, factor: Callable[[int], float]) -> list:
    """The records with the k-th loss from `first` on multiplied."""
    for k in range(len(records) - first):
        records = inject(records, first + k, 1, times=factor(k))
    return records


@pytest.mark.parametrize("name", ["gpt_dense", "gpt_loss_only"])
def test_a_real_curve_is_calm(name: str) -> None:
    """No divergence in runs that had none."""
    assert CRITICAL not in levels(list(curve(name)))


@pytest.mark.parametrize(
    ("name", "factor", "within"),
    [
        pytest.param("gpt_loss_only", lambda _k: 1.15, 60, id="fifteen-percent-kept"),
        pytest.param("gpt_loss_only", lambda _k: 1.25, 60, id="quarter-kept"),
        pytest.param("gpt_loss_only", lambda k: 1 + k / 2000, 650, id="one-percent-in-twenty"),
        pytest.param("gpt_loss_only", lambda k: math.exp(k / 50), 40, id="exponential"),
        pytest.param("gpt_dense", lambda _k: 1.4, 60, id="kept-while-the-loss-still-falls"),
        pytest.param("gpt_dense", lambda k: math.exp(k / 50), 40, id="exponential-while-falling"),
    ],
)
def test_what_rises_for_good_is_found(
    name: str, factor: Callable[[int], float], within: int
) -> None:
    """In the middle of a real curve, with an onset that is not before the fault's window."""
    records = shaped(list(curve(name)), 640, factor)
    critical = next(
        (index, each)
        for index, each in enumerate(found(records))
        if each and each.level is CRITICAL
    )
    index, finding = critical
    assert 640 <= index < 640 + within
    assert finding.fault is Fault.DIVERGENCE
    assert 590 <= records.index(finding.onset) <= index


@pytest.mark.parametrize(
    "factor",
    [
        pytest.param(lambda k: 2.0 if k < 5 else 1.0, id="five-records-doubled"),
        pytest.param(lambda k: 1 + math.exp(-k / 5), id="heals-quickly"),
        pytest.param(lambda k: 1 + math.exp(-k / 20), id="heals-slowly"),
        pytest.param(lambda _k: 1.05, id="five-percent-kept"),
        pytest.param(lambda _k: 0.3, id="falls"),
    ],
)
def test_what_heals_or_falls_is_left_alone(factor: Callable[[int], float]) -> None:
    """The brake waits while the excess shrinks; the tests are one-sided."""
    assert CRITICAL not in levels(shaped(flat(600), 300, factor))


def test_healing_is_waited_for_only_so_long() -> None:
    """A rise that shrinks and shrinks and never ends is a divergence after all."""
    records = shaped(flat(400), 300, lambda k: 1 + 8 * math.exp(-k / 40))
    assert CRITICAL not in levels(records, heal_records=1000)
    assert CRITICAL in levels(records, heal_records=20)


def test_a_doubled_loss_need_not_fill_the_window() -> None:
    """Ten of twelve records at twice the best level, not the median of fifty."""
    after = levels(shaped(flat(500), 300, lambda _k: 2.5)).index(CRITICAL) - 299
    assert after == 10


@pytest.mark.parametrize("level", [-5.0, 0.0, 1e-6], ids=["negative", "zero", "tiny"])
def test_noise_of_any_sign_is_no_drift(level: float) -> None:
    """Rises are measured in the larger of median and noise."""
    records = [record(i, level + 0.1 * ((i * 7) % 5 - 2)) for i in range(1, 600)]
    assert set(levels(records)) == {OK}


def test_a_negative_loss_that_rises_is_found() -> None:
    """Dice losses and likelihoods go the wrong way below zero, too."""
    records = [record(i, -5.0 + 0.02 * ((i * 7) % 5 - 2)) for i in range(1, 300)]
    records += [record(i, -3.5 + 0.02 * ((i * 7) % 5 - 2)) for i in range(300, 500)]
    assert CRITICAL in levels(records)[300:360]


def test_a_running_mean_that_begins_anew_each_epoch_is_calm() -> None:
    """Progress bars print a mean with two decimals, which jumps at the start of an epoch."""
    total, records = 0.0, []
    for index, each in enumerate(curve("gpt_loss_only")):
        total = (0.0 if index % 100 == 0 else total) + each.loss
        mean = round(total / (index % 100 + 1), 2)
        records.append(record(index + 1, mean, digits=3))
    assert set(levels(records)) == {OK}


def test_the_finding_has_its_numbers() -> None:
    """The reason names both medians and the onset."""
    answers = found(shaped(flat(800), 300, lambda _k: 1.3))
    first, last = (each for each in (answers[345], answers[-1]) if each)
    assert (first.kind, last.kind) == ("drift", "drift")
    assert first.reason == (
        "loss has drifted up since step 301: median of the last 50 records 2.6, before 2.01"
    )
    assert last.reason == (
        "loss is above its best level since step 276: median of the last 50 records 2.6, lowest 2"
    )
    assert last.evidence["best"] == pytest.approx(2.0, abs=0.01)


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=30, max_size=90))
@settings(max_examples=40, deadline=None)
def test_no_numbers_break_it(values: list[float]) -> None:
    """Whatever a script prints, it answers."""
    level = LossLevel(20, 10)
    detector = DriftDetector(DriftConfig(window=12), level)
    for step, value in enumerate([2.0] * 15 + values + [1.7e308] * 12, start=1):
        detector.observe(record(step, value))


def test_non_finite_losses_teach_nothing() -> None:
    """After a stretch of NaN a drift is still found."""
    records = inject(inject(flat(600), 200, 30, loss=NAN), 240, 5, loss=INF)
    assert CRITICAL in levels(shaped(records, 300, lambda _k: 1.4))
