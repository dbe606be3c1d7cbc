"""The table of a drill: every promise has a line, and every failure something to do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from overnight.core.drill import Drilled, Point, points
from overnight.core.events import (
    Action,
    Fault,
    Health,
    Identity,
    Position,
    Severity,
)
from overnight.core.proof import LrProof
from overnight.core.resume import Means, Route
from overnight.core.story import Entry, Incident


def incident(fault: Fault, **more) -> Incident:
    """One that ended well."""
    values = {"outcome": "resumed from step 40", "progress": (("killed", 5.0), ("gone", 5.2))}
    return Incident(
        1, fault, Severity.CRITICAL, 0.0, "bad", Action.ROLLBACK, drill=True, **{**values, **more}
    )


SAVED = Entry(
    Identity("o/40.pt", 1, 1, 1), "pt", 1.0, Position(1, 40), step=40, checked=Health.VERIFIED
)
GOOD = Drilled(
    incidents=(
        incident(Fault.LOSS_NONFINITE, lr_proof=LrProof.PROVED),
        incident(Fault.STALL),
        incident(Fault.CRASH),
    ),
    checkpoints=(SAVED,),
    records=120,
    shows_lr=True,
    means=Means(Route.ARGUMENTS, lowers_lr=True),
    receivers=("ntfy://…",),
    errors=(),
    budget_s=600.0,
    ending="the drill is over",
    untouched="",
)


def line(what: str, **changed) -> Point:
    """One line of the table after a change to the facts."""
    return next(point for point in points(replace(GOOD, **changed)) if point.what == what)


def test_a_good_night():
    table = points(GOOD)
    assert len(table) == 9
    assert all(point.held for point in table)
    assert not any(point.advice for point in table)
    assert line("a NaN").found == "dead in 0.2 s; resumed from step 40"


@pytest.mark.parametrize(
    ("what", "changed", "held", "found"),
    [
        ("metrics", {"records": 0}, False, "no record within 10 min"),
        ("rate in the log", {"shows_lr": False}, False, "not seen"),
        ("rate in the log", {"shows_lr": False, "records": 0}, None, "not seen"),
        ("checkpoint", {"checkpoints": ()}, False, "none within the budget of 10 min"),
        ("a hanging worker", {"incidents": ()}, None, "not tried: the drill is over"),
        (
            "a NaN",
            {"incidents": (incident(Fault.LOSS_NONFINITE, outcome="halted: x"),)},
            False,
            "halted: x",
        ),
        (
            "a NaN",
            {
                "incidents": (incident(Fault.LOSS_NONFINITE, outcome="halted: x"),),
                "checkpoints": (),
            },
            None,
            "all but the resume is proved",
        ),
        (
            "a NaN",
            {
                "incidents": (incident(Fault.LOSS_NONFINITE, outcome="halted: x"),),
                "means": Means(Route.NONE, lowers_lr=False),
            },
            False,
            "halted: x",
        ),
        ("a NaN", {"incidents": (incident(Fault.LOSS_NONFINITE, outcome=None),)}, False, "no end"),
        (
            "a worker that is killed",
            {
                "incidents": (incident(Fault.CRASH, outcome="resumed from the beginning"),),
                "checkpoints": (),
            },
            None,
            "there was no checkpoint",
        ),
        (
            "lower rate",
            {"incidents": (incident(Fault.LOSS_NONFINITE, lr_proof=LrProof.NOT_REDUCED),)},
            False,
            "NOT reduced",
        ),
        (
            "lower rate",
            {"incidents": (incident(Fault.LOSS_NONFINITE, lr_proof=LrProof.UNPROVEN),)},
            None,
            "not proved",
        ),
        (
            "lower rate",
            {"incidents": (), "means": Means(Route.ARGUMENTS, lowers_lr=False)},
            False,
            "no way to take one",
        ),
        ("alerts", {"receivers": ()}, False, "nobody is told"),
        ("alerts", {"errors": ("ntfy://…: 404",)}, False, "ntfy://…: 404"),
        ("alerts", {"incidents": ()}, None, "nothing was sent"),
        ("your checkpoints", {"untouched": "o/40.pt: Read-only"}, False, "Read-only"),
    ],
)
def test_what_a_night_would_miss(what, changed, held, found):
    point = line(what, **changed)
    assert point.held is held
    assert found in point.found


def test_each_failure_says_what_to_do():
    poor = replace(
        GOOD,
        incidents=(incident(Fault.LOSS_NONFINITE, outcome="halted: x", advice=("do this",)),),
        checkpoints=(SAVED,),
        records=0,
        receivers=(),
        means=Means(Route.ARGUMENTS, lowers_lr=False),
    )
    failed = [point for point in points(poor) if point.held is False]
    assert len(failed) >= 4
    assert all(point.advice for point in failed)
