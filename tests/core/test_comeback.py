"""A resumed run must be where its checkpoint was, in steps and in loss."""

from __future__ import annotations

import math

import pytest

from overnight.core.comeback import Comeback
from overnight.core.events import Fault, Position, StepMetric, Verdict


def records(first: int, last: int, *, loss: float | None = 2.0, stride: int = 10, attempt: int = 1):
    """Records of these steps, with a little noise."""
    return [
        StepMetric(
            at=float(step),
            position=Position(attempt, number),
            step=step,
            loss=None if loss is None else loss + 0.01 * (number % 3),
        )
        for number, step in enumerate(range(first, last + 1, stride), start=1)
    ]


def comeback(**more) -> Comeback:
    """After a resume from step 1000, of a run that had saved 1200 and 1400 as well."""
    values = {
        "target_step": 1000,
        "lineage": records(10, 1000),
        "stride": 10,
        "left_behind": [1200, 1400, 800],
        "band_steps": 200,
    }
    return Comeback(**{**values, **more})


def first_verdict(watch: Comeback, *found: StepMetric) -> Verdict | None:
    """What is said of these records, if anything."""
    return next((v for record in found if (v := watch.observe(record)) is not None), None)


@pytest.mark.parametrize("first", [1000, 1001, 1010, 1030, 990, 900])
def test_where_it_should_be(first):
    watch = comeback()
    assert first_verdict(watch, *records(first, first + 500)) is None
    assert watch.placed
    assert watch.over


@pytest.mark.parametrize("first", [0, 1, 10, 100])
def test_a_run_that_began_anew_is_stopped_at_its_second_record(first):
    watch = comeback()
    early = records(first, first + 10, loss=9.0)
    assert watch.observe(early[0]) is None
    assert not watch.placed
    verdict = watch.observe(early[1])
    assert verdict.fault is Fault.STARTUP_FAILURE
    assert f"did not resume from step 1000: it went on at step {first} again" in verdict.reason
    assert first_verdict(watch, *records(first, first + 400, loss=9.0)) is None  # told once


def test_only_the_counter_began_anew():
    watch = comeback()
    assert first_verdict(watch, *records(1, 500)) is None
    assert watch.placed
    strict = comeback(by_steps=True)
    assert first_verdict(strict, *records(1, 500)).fault is Fault.STARTUP_FAILURE


def test_a_log_without_a_loss_has_only_its_steps():
    watch = comeback(lineage=records(10, 1000, loss=None))
    assert first_verdict(watch, *records(1, 50, loss=None)).fault is Fault.STARTUP_FAILURE


def test_a_run_that_is_too_young_to_tell():
    """Step 1 after a checkpoint of step 15 is within what a log leaves out."""
    watch = comeback(target_step=15, lineage=records(10, 10), left_behind=[])
    assert first_verdict(watch, *records(1, 300, loss=9.0)) is None


@pytest.mark.parametrize("saved", [1200, 1400])
def test_another_checkpoint_than_the_one_given(saved):
    watch = comeback()
    verdict = first_verdict(watch, *records(saved + 10, saved + 300))
    assert verdict.fault is Fault.STARTUP_FAILURE
    assert f"it went on from step {saved}" in verdict.reason
    assert verdict.detected_step == saved + 20


def test_an_older_one_than_the_one_given_is_no_harm():
    assert first_verdict(comeback(), *records(810, 1300)) is None


def test_a_loss_that_does_not_come_back():
    watch = comeback()
    verdict = first_verdict(watch, *records(1010, 1400, loss=3.0))
    assert (verdict.fault, verdict.detected_step) == (Fault.DIVERGENCE, 1210)
    assert verdict.onset < Position(1, 1)
    assert "200 steps after the resume the loss is 3.01" in verdict.reason


@pytest.mark.parametrize(
    "found",
    [
        pytest.param(records(1010, 1100, loss=3.0) + records(1110, 1400), id="it does in time"),
        pytest.param(records(1010, 1400, loss=2.2), id="within 15 %"),
        pytest.param(records(1010, 1400, loss=1.0), id="lower is better"),
        pytest.param(records(1010, 1400, loss=None), id="no loss"),
        pytest.param(records(1010, 1400, loss=math.nan), id="the business of another detector"),
    ],
)
def test_a_loss_that_is_no_reason_to_worry(found):
    assert first_verdict(comeback(), *found) is None


def test_a_band_that_nobody_wants_or_knows():
    high = records(1010, 1600, loss=9.0)
    assert first_verdict(comeback(band_steps=0), *high) is None
    assert first_verdict(comeback(lineage=records(970, 1000)), *high) is None


def test_the_noise_of_the_run_is_its_band():
    noisy = records(10, 400) + records(410, 440, loss=4.0) + records(450, 1000)
    assert first_verdict(comeback(lineage=noisy), *records(1010, 1600, loss=3.9)) is not None
    noisy = records(10, 700) + records(710, 740, loss=4.0) + records(750, 1000)
    assert first_verdict(comeback(lineage=noisy), *records(1010, 1600, loss=3.9)) is None
