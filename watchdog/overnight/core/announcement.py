"""What a person is told before the start: what is watched, and what could be done."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from overnight.core.formats.given import MetricsConfig
from overnight.core.recipes import Recipe
from overnight.core.resume import Means, Route


@dataclass(frozen=True)
class Plan:
    """Everything that is known of a run before its first attempt."""

    name: str
    command: Sequence[str]
    logs: str
    metrics: MetricsConfig
    globs: Sequence[str]
    places: Sequence[str]
    means: Means
    recipe: Recipe | None
    alerts: Sequence[str]
    probe: bool
    uses_torch: bool


def announcement(plan: Plan) -> list[str]:
    """The lines in the terminal before the start."""
    lines = [f"watching {shlex.join(plan.command)} as {plan.name}, logs under {plan.logs}"]
    if plan.metrics.path is not None:
        lines.append(f"metrics: {plan.metrics.source} {plan.metrics.path}")
    new = f"new .pt .pth .ckpt .safetensors files under {', '.join(plan.places)}"
    lines.append(f"checkpoints: {', '.join(plan.globs) or new}")
    sentence = plan.means.sentence
    if plan.means.route is Route.NONE:
        sentence += "; a script that cooperates says so when it starts"
    if plan.recipe is not None and plan.recipe.args:
        sentence += f"; recipe {plan.recipe.name}"
        sentence += f" ({plan.recipe.advice})" if not plan.means.lowers_lr else ""
    lines.append(f"resume: {sentence}")
    if plan.probe:
        lines.append("probe: joins the worker when it imports torch")
    elif plan.uses_torch:
        lines.append(
            "probe: off (--probe would watch every step, leave out NaN updates, lower the learning"
            " rate and go back in place, without a change to the script)"
        )
    lines.append(f"alerts: {', '.join(plan.alerts) or 'nobody is told (add --notify URL)'}")
    return lines
