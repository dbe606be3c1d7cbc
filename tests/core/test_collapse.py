"""A dead loss: the ways in which real runs died without a line that says NaN."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core_lab import INF, NAN, curve, flat, record
from overnight.core.detect.collapse import CollapseConfig, CollapseDetector
from overnight.core.detect.finding import Finding
from overnight.core.events import Fault, Level, StepMetric

OK, SUSPECT, WARNING, CRITICAL = Level.OK, Level.SUSPECT, Level.WARNING, Level.CRITICAL


def found(records: list[StepMetric], *, grace: int = 0, **config) -> list[Finding | None]:
    """The detector's answer to each record."""
    detector = CollapseDetector(CollapseConfig(**config), grace=grace)
    return [detector.observe(each) for each in records]


def levels(records: list[StepMetric], **more) -> list[Level]:
    """The level after each record."""
    return [finding.level if finding else OK for finding in found(records, **more)]


def after(healthy: int, *records: dict) -> list[StepMetric]:
    """So many healthy records, then these, numbered on."""
    start = flat(healthy)
    return [*start, *(record(healthy + i, **each) for i, each in enumerate(records, start=1))]


@pytest.mark.parametrize("name", ["gpt_dense", "gpt_loss_only", "t5_sparse"])
def test_real_curves_are_alive(name: str) -> None:
    """Nothing at all on runs that learned."""
    assert set(levels(list(curve(name)))) == {OK}


# --- zero -----------------------------------------------------------------------------------------


def test_zero_beside_a_nan_gradient_is_what_a_nan_filter_prints() -> None:
    """Hugging Face prints 0.0 for a NaN loss; three records in a row are certain."""
    dead = {"loss": 0.0, "grad": NAN}
    assert levels(after(1, dead, dead, dead, dead)) == [OK, WARNING, WARNING, CRITICAL, CRITICAL]


def test_one_such_record_is_certain_in_a_sparse_log() -> None:
    """The panel's preset: one line stands for ten steps."""
    assert levels(after(3, {"loss": 0.0, "grad": NAN}), zero_records=1)[-1] is CRITICAL


def test_loss_and_gradient_that_vanish_together_are_dead() -> None:
    """12.18, then 1.8e-06, then 0.0, with gradients of 231.7, then 0.0002, then 7e-09."""
    rows = [(12.18, 231.7), (1.787e-06, 0.0002), (0.0, 7.7e-09), (0.0, 7.0e-09)]
    records = [record(step, loss, grad) for step, (loss, grad) in enumerate(rows, start=1)]
    answers = found(records)
    assert answers[0] is None
    assert [each.level for each in answers[1:]] == [SUSPECT, SUSPECT, CRITICAL]
    assert answers[-1].onset.step == 2
    assert "12.18" in answers[-1].reason


@pytest.mark.parametrize(
    "row",
    [
        pytest.param({"loss": 0.0, "grad": 0.4}, id="grpo-starts-at-zero-with-gradients"),
        pytest.param({"loss": 0.0, "grad": None}, id="zero-nearly-from-the-start"),
        pytest.param({"loss": 1e-7, "grad": 1.0}, id="tiny-but-learning"),
        pytest.param({"loss": 12.05, "grad": 0.0}, id="no-gradient-but-a-loss"),
    ],
)
def test_a_loss_of_nothing_may_be_in_good_health(row: dict) -> None:
    """Without the gradient's word a zero proves nothing, and one with it proves less."""
    rows = [{**row, "grad": row["grad"] and row["grad"] * (1 + i / 100)} for i in range(100)]
    if row["loss"] == 12.05:
        rows = [{**each, "loss": 12.05 + 0.001 * (i % 7)} for i, each in enumerate(rows)]
    assert set(levels(after(5, *rows))) == {OK}


def test_zero_all_at_once_is_certain_though_no_gradient_is_printed() -> None:
    """Transformers before 4.38 prints nothing but 0.0; 10 in a row are certain."""
    rows = levels(after(30, *[{"loss": 0.0, "grad": None}] * 12))
    assert (rows[30], rows[31], rows[38], rows[39]) == (OK, SUSPECT, SUSPECT, CRITICAL)


def test_a_loss_that_is_learned_away_may_end_at_zero() -> None:
    """An overfit prints the values in between."""
    losses = [2.0 * 0.8**n for n in range(60)]
    rows = [{"loss": float(f"{loss:.4f}"), "grad": None} for loss in [*losses, *[0.0] * 100]]
    assert set(levels(after(0, *rows))) == {OK}


@pytest.mark.parametrize("grad", [0.0, 1.3371], ids=["no-gradient", "frozen-gradient"])
def test_zero_beside_a_gradient_that_stays_is_certain_after_long(grad: float) -> None:
    """Single steps without a gradient are normal in RL; fifty are not."""
    answers = levels([record(i, 0.0, grad) for i in range(1, 60)])
    assert answers.index(CRITICAL) in {49, 50}
    assert WARNING not in answers


# --- frozen ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loss", "digits", "critical"),
    [
        pytest.param(65.129, 5, True, id="five-digits-printed"),
        pytest.param(2.312, 4, False, id="four-digits-may-repeat"),
        pytest.param(2.31, 3, False, id="two-decimals-of-a-running-mean"),
        pytest.param(2.3127458, None, True, id="json-at-full-precision"),
        pytest.param(2.31, None, False, id="json-that-was-rounded"),
        pytest.param(0.0, None, False, id="zero-says-nothing-alone"),
    ],
)
def test_a_frozen_loss_counts_where_enough_digits_are_printed(
    loss: float, digits: int | None, critical: bool
) -> None:
    """Fifty identical losses; two decimals repeat in good health."""
    records = [record(i, loss, digits=digits) for i in range(1, 80)]
    answers = levels(records)
    assert (CRITICAL in answers) is critical
    if critical:
        assert answers.index(CRITICAL) == 49


def test_a_frozen_loss_names_its_first_record() -> None:
    """Forty-nine repeats of the record where it stopped."""
    answers = found(after(10, *[{"loss": 2.34567, "digits": 6}] * 60))
    critical = next(each for each in answers if each and each.level is CRITICAL)
    assert critical.onset.step in {11, 12}
    assert critical.kind == "frozen"
    assert "2.34567" in critical.reason


# --- gone -----------------------------------------------------------------------------------------


def test_a_loss_that_is_no_longer_printed_is_gone() -> None:
    """The records go on with a learning rate; ten without a loss are certain."""
    answers = levels(after(30, *[{"loss": None, "lr": 1e-4}] * 12))
    assert answers[30:] == [OK, *[SUSPECT] * 8, *[CRITICAL] * 3]


def test_a_script_that_prints_the_loss_now_and_then_is_well() -> None:
    """Gradient norms on lines of their own are a habit, no fault."""
    records = [record(i, 2.0 + i / 1000 if i % 12 == 0 else None, 1.0) for i in range(1, 300)]
    assert set(levels(records)) == {OK}


# --- updates --------------------------------------------------------------------------------------


def test_every_update_skipped_is_dead_though_the_loss_looks_good() -> None:
    """Twenty in a row, forty at the start, where a scaler settles."""
    rows = [{"loss": 2.0 + i / 1000, "skipped": True} for i in range(45)]
    assert levels(after(100, *rows)).index(CRITICAL) == 119
    assert levels(after(0, *rows), grace=60).index(CRITICAL) == 39


@pytest.mark.parametrize("skips", [1, 9])
def test_overflows_now_and_then_are_what_a_scaler_is_for(skips: int) -> None:
    """Isolated skips say nothing."""
    rows = [{"loss": 2.0 + i / 999, "skipped": i % 10 < skips} for i in range(200)]
    assert set(levels(after(100, *rows))) == {OK}


def test_a_loss_scale_at_its_minimum_that_overflows_is_dead() -> None:
    """It fell from 65536 to 1 and every update still overflows."""
    fall = [{"loss": 2.0 + i / 999, "loss_scale": 65536 / 2**i} for i in range(16)]
    low = [{"loss": 2.1 + i / 999, "loss_scale": 1.0, "grad": INF} for i in range(4)]
    answers = found(after(100, *fall, *low))
    assert [each.level if each else OK for each in answers[116:]] == [
        SUSPECT,
        SUSPECT,
        CRITICAL,
        CRITICAL,
    ]
    assert answers[118].evidence["loss_scale"] == 1.0


def test_an_overflow_now_and_then_at_a_low_loss_scale_is_healthy() -> None:
    """A fairseq run trains at 0.5 for thousands of updates."""
    rows = [
        {"loss": 9.0 - i / 999, "loss_scale": 64 / 2 ** min(7, i // 10), "skipped": i % 10 == 0}
        for i in range(200)
    ]
    assert CRITICAL not in levels(after(100, *rows))


def test_a_loss_scale_of_one_is_what_bf16_runs_print() -> None:
    """It never was higher."""
    rows = [{"loss": 2.0 + i / 999, "loss_scale": 1.0, "grad": 1.0} for i in range(100)]
    assert set(levels(after(0, *rows))) == {OK}


@given(
    st.lists(
        st.tuples(
            st.none() | st.floats(allow_nan=True, allow_infinity=True),
            st.none() | st.floats(allow_nan=True, allow_infinity=True),
            st.none() | st.floats(allow_nan=True, allow_infinity=True),
            st.booleans(),
        ),
        max_size=120,
    )
)
@settings(max_examples=60, deadline=None)
def test_no_numbers_break_it(rows: list[tuple]) -> None:
    """Whatever a script prints, it answers with its own fault."""
    records = [
        record(step, loss, grad, loss_scale=scale, skipped=skipped)
        for step, (loss, grad, scale, skipped) in enumerate(rows, start=1)
    ]
    assert {each.fault for each in found(records) if each} <= {Fault.COLLAPSE}
