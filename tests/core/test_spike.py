"""Spikes of loss and gradient norm: one bad batch stays quiet, a lasting rise does not."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from core_lab import INF, NAN, flat, inject, record
from overnight.core.detect.spike import GradSpikeDetector, LossSpikeDetector, SpikeConfig
from overnight.core.detect.window import MAD_TO_SIGMA, UPPER_PART, SortedWindow
from overnight.core.events import Level, StepMetric

OK, SUSPECT, CRITICAL = Level.OK, Level.SUSPECT, Level.CRITICAL


def loss_levels(records: list[StepMetric], **config) -> list[Level]:
    """The loss detector's level after each record."""
    detector = LossSpikeDetector(SpikeConfig(**config))
    found = [detector.observe(each) for each in records]
    return [finding.level if finding else OK for finding in found]


def grad_levels(records: list[StepMetric], *, sparse: bool = False) -> list[Level]:
    """The gradient detector's level after each record."""
    detector = GradSpikeDetector(SpikeConfig(), sparse=sparse)
    found = [detector.observe(each) for each in records]
    return [finding.level if finding else OK for finding in found]


# --- loss ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "critical_after"),
    [
        pytest.param({"times": 1.0, "count": 200}, None, id="nothing"),
        pytest.param({"times": 2.0, "count": 1}, None, id="one-record-doubled"),
        pytest.param({"times": 2.0, "count": 5}, None, id="five-records-doubled"),
        pytest.param({"times": 1.05, "count": 200}, None, id="five-percent-kept"),
        pytest.param({"times": 1.25, "count": 200}, 10, id="25-percent-kept"),
        pytest.param({"times": 100.0, "count": 200}, 2, id="explosion-two-in-a-row"),
        pytest.param({"times": 100.0, "count": 1}, None, id="one-record-exploded"),
    ],
)
def test_what_is_critical_and_how_soon(fault: dict, critical_after: int | None) -> None:
    """Level plus persistence: ten of twelve records, or two that explode."""
    found = loss_levels(inject(flat(400), 200, fault["count"], times=fault["times"]))
    first = found.index(CRITICAL) - 199 if CRITICAL in found else None
    assert first == critical_after


def test_a_falling_loss_is_never_an_alarm() -> None:
    """The test is one-sided."""
    assert set(loss_levels(inject(flat(400), 200, 200, times=0.01))) == {OK}


@pytest.mark.parametrize("level", [-5.0, 0.0, 1e-6], ids=["negative", "zero", "tiny"])
def test_a_noisy_loss_of_any_sign_is_quiet(level: float) -> None:
    """Floors use the larger of median and noise, so losses near zero do not alarm."""
    records = [record(i, level + 0.1 * ((i * 7) % 5 - 2)) for i in range(1, 400)]
    assert CRITICAL not in loss_levels(records)


def test_a_spike_that_heals_is_waited_for() -> None:
    """A decaying excess stays suspect."""
    records = flat(400)
    for i in range(60):
        records = inject(records, 200 + i, 1, times=1 + 1.0 * 0.8**i)
    found = loss_levels(records)
    assert SUSPECT in found
    assert CRITICAL not in found


def test_a_spike_that_is_too_slow_to_heal_has_the_onset_where_it_began() -> None:
    """The onset is the first hit, though the wait was longer than the window of hits."""
    records = flat(500)
    for i in range(200):
        records = inject(records, 200 + i, 1, times=1 + 30.0 * 0.955**i)
    detector = LossSpikeDetector(SpikeConfig(explosion=1000.0, heal_records=50))
    found = [detector.observe(each) for each in records]
    after, critical = next((i, f) for i, f in enumerate(found) if f and f.level is CRITICAL)
    assert after > 250
    assert critical.onset.step == 201


def test_nothing_is_judged_before_there_is_a_baseline() -> None:
    """The first min_records records only teach."""
    assert set(loss_levels(inject(flat(60), 30, 5, times=50.0))) == {OK}


def test_a_nan_teaches_nothing_and_a_later_spike_is_still_seen() -> None:
    """Non-finite losses never enter the baseline."""
    records = inject(inject(flat(400), 150, 50, loss=NAN), 250, 150, times=1.5)
    records = inject(records, 100, 20, loss=INF)
    found = loss_levels(records)
    assert set(found[:250]) == {OK}
    assert CRITICAL in found[250:265]


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=30, max_size=90))
@settings(max_examples=40, deadline=None)
def test_no_numbers_break_the_detectors(values: list[float]) -> None:
    """Whatever a script prints, they answer and go on working."""
    config = SpikeConfig(window=20, min_records=10)
    loss, grad = LossSpikeDetector(config), GradSpikeDetector(config, sparse=False)
    for step, value in enumerate([1.7e308] * 12 + values, start=1):
        loss.observe(record(step, value))
        grad.observe(record(step, 2.0, abs(value)))


def test_absurd_numbers_do_not_deafen_the_detectors() -> None:
    """A start at the end of the floats is forgotten like any other."""
    huge = [record(step, 1.7e308, 1.7e308) for step in range(1, 62)]
    records = [*huge, *inject(flat(400, first=62), 350, 50, times=1.5, grad_times=20.0)]
    assert CRITICAL in loss_levels(records)[-50:]
    assert CRITICAL in grad_levels(records)[-50:]


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param({"need": 13}, id="more-hits-than-records"),
        pytest.param({"window": 50}, id="window-below-its-minimum"),
    ],
)
def test_a_config_that_could_never_alarm_is_refused(wrong: dict) -> None:
    """A detector that is deaf by mistake is worse than none."""
    with pytest.raises(ValidationError, match="must not be above"):
        SpikeConfig(**wrong)


# --- gradient norm -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("times", "count", "worst"),
    [
        pytest.param(4.9, 50, OK, id="below-five-times-for-ever"),
        pytest.param(6.0, 4, OK, id="four-above-five-times"),
        pytest.param(6.0, 5, CRITICAL, id="five-of-six-above-five-times"),
        pytest.param(11.0, 1, SUSPECT, id="one-above-ten-times"),
        pytest.param(11.0, 2, SUSPECT, id="two-above-ten-times"),
        pytest.param(11.0, 3, CRITICAL, id="three-of-four-above-ten-times"),
        pytest.param(1000.0, 15, CRITICAL, id="thousandfold"),
    ],
)
def test_gradient_ratios(times: float, count: int, worst: Level) -> None:
    """The rule that had no false episode in 215,477 real records."""
    assert max(grad_levels(inject(flat(300), 200, count, grad_times=times))) is worst


def test_two_of_three_suffice_in_a_sparse_log() -> None:
    """A line every ten steps gives fewer chances."""
    assert CRITICAL in grad_levels(inject(flat(300), 200, 2, grad_times=6.0), sparse=True)
    assert CRITICAL not in grad_levels(inject(flat(300), 200, 2, grad_times=6.0))


@pytest.mark.parametrize("grad", [0.0, NAN, INF, None], ids=str)
def test_gradients_without_a_ratio_are_left_to_others(grad: float | None) -> None:
    """Zero, non-finite and missing norms neither alarm nor enter the baseline."""
    found = grad_levels([*flat(100), *(record(i, 2.0, grad) for i in range(101, 140))])
    assert set(found) == {OK}


def test_the_baseline_follows_a_slow_rise_only() -> None:
    """A thousandfold norm does not become normal."""
    found = grad_levels(inject(flat(400), 200, 90, grad_times=1000.0))
    assert set(found[210:290]) == {CRITICAL}


# --- the window ----------------------------------------------------------------------------------


@given(
    st.lists(st.floats(min_value=-1e6, max_value=1e6), min_size=1, max_size=60),
    st.integers(min_value=1, max_value=20),
)
@settings(max_examples=100, deadline=None)
def test_median_and_deviation_are_exact(values: list[float], size: int) -> None:
    """The clever search gives what sorting gives, for the newest `size` values."""
    window = SortedWindow(size)
    for value in values:
        window.push(value)
    kept = values[-size:]
    median = statistics.median(kept)
    distances = sorted(abs(value - median) for value in kept)
    assert len(window) == len(kept)
    assert window.median() == pytest.approx(median, abs=1e-9)
    upper = sorted(kept)[3 * (len(kept) - 1) // 4] - median
    expected = MAD_TO_SIGMA * max(distances[len(kept) // 2], UPPER_PART * upper)
    assert window.sigma(median) == pytest.approx(expected, abs=1e-6)
