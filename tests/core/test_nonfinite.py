"""NaN and infinity: how many in a row are certain, and what a missing number means."""

from __future__ import annotations

import pytest

from core_lab import INF, NAN, record
from overnight.core.detect.nonfinite import NonfiniteConfig, NonfiniteDetector
from overnight.core.events import Fault, Level, StepMetric

OK, SUSPECT, WARNING, CRITICAL = Level.OK, Level.SUSPECT, Level.WARNING, Level.CRITICAL


def levels(records: list[StepMetric], *, sparse: bool = False, grace: int = 0, **config) -> list:
    """The level after each record."""
    detector = NonfiniteDetector(NonfiniteConfig(**config), sparse=sparse, grace=grace)
    found = [detector.observe(each) for each in records]
    return [finding.level if finding else OK for finding in found]


def losses(*values: float | None, **more) -> list[StepMetric]:
    """Records with these losses."""
    return [record(step, loss, **more) for step, loss in enumerate(values, start=1)]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        pytest.param([2.0, NAN], [OK, WARNING], id="the-first-nan-is-a-warning"),
        pytest.param([NAN, NAN, NAN], [WARNING, WARNING, CRITICAL], id="three-in-a-row-certain"),
        pytest.param([INF, NAN, -INF], [WARNING, WARNING, CRITICAL], id="inf-and-nan-together"),
        pytest.param([NAN, NAN, 2.0, NAN], [WARNING, WARNING, OK, WARNING], id="streak-ends"),
        pytest.param([NAN] * 4, [WARNING] * 2 + [CRITICAL] * 2, id="stays-critical"),
        pytest.param([0.0, -3.0, 1e38], [OK, OK, OK], id="any-finite-loss-is-fine"),
    ],
)
def test_losses_in_a_row(values: list[float], expected: list[Level]) -> None:
    """One NaN may be a glitch of the report, three are not."""
    assert levels(losses(*values)) == expected


def test_one_is_certain_in_a_sparse_log() -> None:
    """Where a line stands for ten steps, one NaN is ten poisoned updates."""
    assert levels(losses(2.0, NAN), sparse=True) == [OK, CRITICAL]


def test_skipped_updates_poison_nothing() -> None:
    """A scaler that skips its step leaves the weights alone: 20 in a row, and no warning."""
    found = levels(losses(*[NAN] * 20, skipped=True))
    assert found == [SUSPECT] * 19 + [CRITICAL]


@pytest.mark.parametrize("needed", [64, 65, 66, 150])
def test_long_streaks_are_counted_to_their_end(needed: int) -> None:
    """A config that asks for many records gets a verdict, with the onset where it began."""
    detector = NonfiniteDetector(NonfiniteConfig(loss_records=needed), sparse=False, grace=0)
    found = [detector.observe(each) for each in losses(*[NAN] * needed)]
    assert [f.level for f in found if f] == [WARNING] * (needed - 1) + [CRITICAL]
    assert found[-1] is not None
    assert found[-1].onset.step == 1


@pytest.mark.parametrize(
    ("count", "expected"),
    [(1, OK), (3, OK), (4, SUSPECT), (19, SUSPECT), (20, CRITICAL)],
)
def test_gradient_overflows_are_tolerated_for_long(count: int, expected: Level) -> None:
    """A GradScaler overflows by design; four in a row are suspect, twenty certain."""
    assert levels([record(step, 2.0, INF) for step in range(1, count + 1)])[-1] is expected


def test_a_settling_scaler_may_overflow_twice_as_long() -> None:
    """Within the grace at the start, 40 overflows are needed."""
    found = levels([record(step, 2.0, NAN) for step in range(1, 41)], grace=60)
    assert found.index(CRITICAL) == 39


def test_a_vanished_loss_with_a_nan_gradient_is_a_nan_loss() -> None:
    """Some frameworks drop the loss field when it is NaN."""
    found = levels([record(step, None, NAN) for step in range(1, 4)])
    assert found == [WARNING, WARNING, CRITICAL]


def test_a_record_without_a_loss_neither_ends_nor_continues_a_streak() -> None:
    """Loss and gradient norm may come on separate lines."""
    lines = [record(1, NAN), record(1, None, 1.0), record(2, NAN), record(2, None, 1.0)]
    assert levels([*lines, record(3, NAN)]) == [WARNING, OK, WARNING, OK, CRITICAL]


def test_a_record_without_a_gradient_does_not_end_its_streak() -> None:
    """The same for gradient norms."""
    lines = [each for step in range(1, 6) for each in (record(step), record(step, 2.0, NAN))]
    assert SUSPECT in levels(lines)


def test_the_finding_says_what_and_since_when() -> None:
    """Reason, kind, onset and evidence are filled."""
    detector = NonfiniteDetector(NonfiniteConfig(), sparse=False, grace=0)
    assert detector.observe(record(6)) is None
    detector.observe(record(7, INF))
    found = detector.observe(record(8, NAN, 3.0))
    assert found is not None
    assert found.fault is Fault.LOSS_NONFINITE
    assert (found.kind, found.onset.step) == ("nan", 7)
    assert found.reason == (
        "loss is nan at step 8, 2 records in a row since step 7; 3 in a row would be certain"
    )
    assert found.evidence["grad_norm"] == 3.0
