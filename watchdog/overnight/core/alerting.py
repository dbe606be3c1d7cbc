"""What an alert says, how loud it is, and when it leaves.

A title fits a lock screen; the body says what happened, what was done, what it cost and what the
reader has to do. A healed incident is never critical: only a needed human is worth waking.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from overnight.core.events import Action, Fault, Severity
from overnight.core.proof import LrProof
from overnight.core.story import Incident

OPENED_DELAY_S = 10.0
"""An incident that heals within this time is one message, not two."""

TITLE_CHARS = 60
"""What a phone shows of a title on its lock screen."""

FIRST_RETRY_S, LONGEST_RETRY_S, GIVE_UP_S = 5.0, 900.0, 86_400.0
"""Undelivered alerts are tried again after 5 s, doubling up to 15 min, for a day."""


class Moment(StrEnum):
    """The two moments at which an incident speaks."""

    OPENED = "opened"
    OUTCOME = "outcome"


@dataclass(frozen=True, slots=True)
class Alert:
    """A message about an incident, before it is addressed to anyone.

    `delay_s` is how long it waits for a better message to replace it.
    """

    incident: int
    moment: Moment
    severity: Severity
    title: str
    body: str
    delay_s: float


_NAMES = {
    Fault.LOSS_NONFINITE: "loss went NaN",
    Fault.GRAD_NONFINITE: "gradients not finite",
    Fault.LOSS_SPIKE: "loss spike",
    Fault.GRAD_SPIKE: "gradient spike",
    Fault.STALL: "stalled",
    Fault.CRASH: "crashed",
    Fault.CUDA_OOM: "out of GPU memory",
    Fault.HOST_OOM: "out of memory",
    Fault.STARTUP_FAILURE: "cannot start",
    Fault.GPU_HOT: "GPU too hot",
    Fault.LR_NOT_REDUCED: "learning rate not reduced",
}


def _name(fault: Fault) -> str:
    return _NAMES.get(fault, fault.value.replace("-", " "))


def _title(run: str, incident: Incident, ending: str) -> str:
    step = incident.detected_step
    where = f" at step {step:,}" if step is not None else ""
    tail = f": {ending}" if ending else ""
    drill = "drill: " if incident.drill else ""
    title = f"[{run}] {drill}{_name(incident.fault)}{where}"
    return title[: TITLE_CHARS - len(tail)] + tail  # how it ended is the part that matters


def opened(run: str, incident: Incident, *, backoff_s: float = 0.0) -> Alert | None:
    """The message for an incident that has just begun or grown; None where it is not worth one.

    A recovery that first waits `backoff_s` gets that much longer to be told in one message.
    """
    if incident.severity is Severity.INFO:
        return None
    needs_you = incident.needs_you
    severity = Severity.CRITICAL if needs_you else Severity.WARNING
    ending = "needs you" if needs_you else _doing(incident.action)
    return Alert(
        incident=incident.id,
        moment=Moment.OPENED,
        severity=severity,
        title=_title(run, incident, ending),
        body=_body(run, incident, outcome=None),
        delay_s=0.0 if needs_you else OPENED_DELAY_S + backoff_s,
    )


def outcome(run: str, incident: Incident, *, ending: str = "healed") -> Alert:
    """The message that ends the story, due at once."""
    severity = Severity.CRITICAL if incident.needs_you else Severity.WARNING
    return Alert(
        incident=incident.id,
        moment=Moment.OUTCOME,
        severity=severity,
        title=_title(run, incident, "needs you" if incident.needs_you else ending),
        body=_body(run, incident, outcome=incident.outcome),
        delay_s=0.0,
    )


def _doing(action: Action) -> str:
    doing = {
        Action.ROLLBACK: "rolling back",
        Action.RESTART: "restarting",
        Action.COOL: "cooling",
        Action.HALT: "halted",
    }
    return doing.get(action, "")


def _body(run: str, incident: Incident, *, outcome: str | None) -> str:
    lines = ["This is a drill: the fault was made on purpose."] if incident.drill else []
    lines.append(f"{incident.fault}: {incident.reason}.")
    if incident.cause:
        lines.append(f"Cause of death: {incident.cause}.")
    if incident.checkpoint_step is not None:
        lines.append(f"Checkpoint: step {incident.checkpoint_step:,}.")
    before, after = incident.lr_scale_before, incident.lr_scale_after
    if before is not None and after is not None and after != before:
        proof = f" ({incident.lr_proof})" if incident.lr_proof else ""
        lines.append(f"Learning rate scale: {before:g} -> {after:g}{proof}.")
    if outcome:
        lines.append(f"Outcome: {outcome}.")
    if incident.cost_steps is not None or incident.cost_s is not None:
        lines.append(f"Cost: {cost_text(incident)}.")
    if incident.needs_you:
        lines.append("What you need to do:")
        lines += incident.advice or (f"overnight incidents {run}",)
    else:
        lines.append("What you need to do: nothing.")
    return "\n".join(lines)


def cost_text(incident: Incident) -> str:
    """What an incident cost, in steps and time."""
    parts = []
    if incident.cost_steps is not None:
        parts.append(f"{incident.cost_steps:,} steps")
    if incident.cost_s is not None:
        parts.append(duration_text(incident.cost_s))
    return " / ".join(parts) or "unknown"


def duration_text(seconds: float) -> str:
    """Seconds as a person says them: `42 s`, `17 min`, `4 h 12 min`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 100:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min"


def healed_text(
    incident: Incident,
    *,
    resumed_step: int | None,
    silent: bool = False,
    in_place: bool = False,
    partial: bool = False,
) -> str:
    """The outcome of a recovery that worked, with the proof of its learning rate.

    `silent`: the resumed worker ended well, but without a single record; `in_place`: the worker
    was not restarted; `partial`: its checkpoint holds the weights alone.
    """
    step = "the beginning" if resumed_step is None else f"step {resumed_step:,}"
    text = f"went back in place to {step}, no restart" if in_place else f"resumed from {step}"
    if partial:
        text += ", in part: that checkpoint has no optimizer state, so the optimizer began anew"
    if silent:
        return f"{text}, and the worker ended at once with status 0: see whether that is right"
    proofs = {
        LrProof.PROVED: ", and the logged learning rate is the reduced one",
        LrProof.UNPROVEN: "; the log does not show whether the learning rate was reduced",
        LrProof.NOT_REDUCED: ", but the logged learning rate was NOT reduced",
    }
    return text + (proofs[incident.lr_proof] if incident.lr_proof else "")


def retry_delay_s(failures: int, *, age_s: float) -> float | None:
    """When to try an undelivered alert again, or None when a day has passed."""
    if age_s >= GIVE_UP_S:
        return None
    return min(LONGEST_RETRY_S, FIRST_RETRY_S * 2.0 ** max(0, failures - 1))
