"""What a drill has shown: one point a promise, with what to put into the config where it fails."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from overnight.core.advice import resume_advice
from overnight.core.alerting import duration_text
from overnight.core.events import Fault, Severity
from overnight.core.proof import LrProof
from overnight.core.resume import Means, Route
from overnight.core.story import Entry, Incident


@dataclass(frozen=True, slots=True)
class Point:
    """One line of the table. `held` is None where the drill could not find out."""

    what: str
    held: bool | None
    found: str
    advice: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Drilled:
    """The facts that a drill leaves: what its store holds when it has ended.

    `errors` are what receivers answered, by their label; `untouched` is "" where the user's own
    checkpoints are as they were, else why not.
    """

    incidents: Sequence[Incident]
    checkpoints: Sequence[Entry]
    records: int
    shows_lr: bool
    means: Means
    receivers: Sequence[str]
    errors: Sequence[str]
    budget_s: float
    ending: str
    untouched: str


def points(facts: Drilled) -> list[Point]:
    """The table of a drill, in the order in which a night would need it."""
    return [
        _metrics(facts),
        _rate_shown(facts),
        _checkpoint(facts),
        *(_fault(facts, fault) for fault in (Fault.LOSS_NONFINITE, Fault.STALL, Fault.CRASH)),
        _rate_lowered(facts),
        _alerts(facts),
        _left_alone(facts),
    ]


def _metrics(facts: Drilled) -> Point:
    if facts.records:
        return Point("metrics", True, f"{facts.records:,} records of loss and step were read")
    return Point(
        "metrics",
        False,
        f"no record within {duration_text(facts.budget_s)} ({facts.ending})",
        ("say where the loss is: [metrics] source, path or pattern (docs/formats.md), or --probe",),
    )


def _rate_shown(facts: Drilled) -> Point:
    if facts.shows_lr:
        return Point("rate in the log", True, "the learning rate is printed")
    advice = "print the learning rate beside the loss, so that a reduction can be proved"
    return Point("rate in the log", None if not facts.records else False, "not seen", (advice,))


def _checkpoint(facts: Drilled) -> Point:
    steps = [e.run_step for e in facts.checkpoints if e.run_step is not None]
    if facts.checkpoints:
        newest = f", the newest of step {max(steps):,}" if steps else ""
        return Point("checkpoint", True, f"{len(facts.checkpoints)} seen and verified{newest}")
    return Point(
        "checkpoint",
        False,
        f"none within the budget of {duration_text(facts.budget_s)}",
        (
            "save more often, or give the drill more time: --budget MINUTES",
            "if it does save: say where, --checkpoints 'out/ckpt-*.pt'",
        ),
    )


_INJECTED = {
    Fault.LOSS_NONFINITE: "a NaN",
    Fault.STALL: "a hanging worker",
    Fault.CRASH: "a worker that is killed",
}


def _fault(facts: Drilled, fault: Fault) -> Point:
    """How a fault that was injected ended."""
    what = _INJECTED[fault]
    critical = [i for i in facts.incidents if i.severity is Severity.CRITICAL]
    incident = next((i for i in critical if i.fault is fault), None)
    if incident is None:
        return Point(what, None, f"not tried: {facts.ending}")
    outcome = incident.outcome or "no end within the budget"
    took = _seconds_between(incident, "killed", "gone")
    killed = f"dead in {took:.1f} s; " if took is not None else ""
    if outcome.startswith(("resumed from step", "went back in place")):
        return Point(what, True, killed + outcome)
    if not facts.checkpoints:
        return Point(what, None, f"{killed}all but the resume is proved: there was no checkpoint")
    if facts.means.route is Route.NONE:
        return Point(what, False, killed + outcome, resume_advice(None))
    return Point(what, False, killed + outcome, incident.advice)


def _seconds_between(incident: Incident, first: str, second: str) -> float | None:
    times = dict(incident.progress)
    if first not in times or second not in times:
        return None
    return max(0.0, times[second] - times[first])


def _rate_lowered(facts: Drilled) -> Point:
    what = "lower rate"
    proofs = [i.lr_proof for i in facts.incidents if i.lr_proof is not None]
    if LrProof.PROVED in proofs:
        return Point(what, True, "the log shows the reduced rate after the rollback")
    if LrProof.NOT_REDUCED in proofs or not facts.means.lowers_lr:
        advice = (
            "let the script take it: {lr} in [resume] args, OVERNIGHT_LR_SCALE, or --probe",
            "apply it after loading the state: optimizer and scheduler bring their own rate along",
        )
        shown = "NOT reduced in the log" if proofs else "this script has no way to take one"
        return Point(what, False, shown, advice)
    return Point(what, None, "not proved: the log shows no learning rate to compare")


def _alerts(facts: Drilled) -> Point:
    if not facts.receivers:
        advice = ("tell somebody: --notify ntfy://ntfy.sh/my-topic, or [notify] receivers",)
        return Point("alerts", False, "nobody is told", advice)
    if facts.errors:
        advice = ("overnight alert-test tries each receiver",)
        return Point("alerts", False, "; ".join(facts.errors), advice)
    if not facts.incidents:
        return Point("alerts", None, "nothing was sent")
    return Point("alerts", True, f"delivered to {', '.join(facts.receivers)}")


def _left_alone(facts: Drilled) -> Point:
    if facts.untouched:
        return Point("your checkpoints", False, facts.untouched)
    return Point("your checkpoints", True, "as they were before the drill")
