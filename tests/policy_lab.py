"""Situations for the tests of the policy."""

from __future__ import annotations

from core_lab import identity
from overnight.core.events import Fault, Health, Position, Target
from overnight.core.resume import Means, Route
from overnight.core.situation import PastRecovery, Situation

NUMERIC = [
    Fault.LOSS_NONFINITE,
    Fault.GRAD_NONFINITE,
    Fault.LOSS_SPIKE,
    Fault.GRAD_SPIKE,
    Fault.DIVERGENCE,
    Fault.COLLAPSE,
]


def target(step: int | None, health: Health = Health.HEALTHY) -> Target:
    """A checkpoint that may be resumed from."""
    path = f"ckpt/step_{step}.pt"
    return Target(
        path, step, health, Position(1, step or 0), identity(path), "clean steps followed"
    )


def past(fault: Fault, *, seen: int = 400, to: int | None = 300, reached: int | None = 450, **more):
    """A recovery of the past, of another incident unless told otherwise."""
    values = {"at_utc": 0.0, "incident": 99, "onset_step": seen, **more}
    return PastRecovery(
        fault=fault, detected_step=seen, target_step=to, reached_step=reached, **values
    )


def now(*targets: Target, **more) -> Situation:
    """A situation with these targets, newest first, and a script that can do everything."""
    values = {
        "now_utc": 1000.0,
        "means": Means(Route.ARGUMENTS, lowers_lr=True, skips=True),
        "targets": targets,
        "checkpoints_exist": bool(targets),
        "any_record": True,
        "lr_scale": 1.0,
        "incident": 1,
    }
    return Situation(**{**values, **more})
