"""How often to save: what a save costs against what a fault would cost.

Young (1974) to first order, Daly (Future Generation Computer Systems 22, 2006, doi
10.1016/j.future.2004.11.016) to higher order; docs/science.md has the figures.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from overnight.core.alerting import duration_text
from overnight.core.events import Action, StepMetric

PRIOR_S = 48 * 3600.0
"""A run without a fault so far is taken for one that has a fault in 48 h more."""

MAX_OVERHEAD = 0.02
"""Saving may take at most about this part of the time."""

LONGEST_S = 2 * 3600.0
"""Nobody should lose more, whatever a save costs."""

COSTLY = frozenset({Action.RESTART, Action.ROLLBACK, Action.HALT})
"""Incidents that ended so cost what was not saved; the others only told."""

CHEAPEST_S = 1.0
"""A save whose cost does not show in the log."""


def daly_s(cost_s: float, between_faults_s: float) -> float:
    """The interval in seconds that wastes least, of a save and a mean time between faults."""
    half = cost_s / (2 * between_faults_s)
    if half >= 1:
        return between_faults_s
    young = math.sqrt(2 * cost_s * between_faults_s)
    return young * (1 + math.sqrt(half) / 3 + half / 9) - cost_s


def save_cost_s(records_utc: Sequence[float], saved_utc: Sequence[float]) -> float | None:
    """What a save costs the training: how much longer the gap of records around it is than others.

    Both are wall-clock seconds, ascending. None where too little was seen.
    """
    gaps = list(pairwise(records_utc))
    if len(gaps) < 10:
        return None
    usual = median(end - begin for begin, end in gaps)
    around = [
        end - begin for begin, end in gaps if any(begin <= saved <= end for saved in saved_utc)
    ]
    return max(0.0, median(around) - usual) if around else None


def pace_s(records: Sequence[StepMetric]) -> float | None:
    """Seconds a step takes while the run runs: waits between attempts and steps taken twice do
    not count. None where no two records of one attempt tell."""
    paces = [
        (after.time_utc - before.time_utc) / (after.step - before.step)
        for before, after in pairwise(records)
        if before.time_utc is not None
        and after.time_utc is not None
        and before.position.attempt == after.position.attempt
        and before.step < after.step
    ]
    return median(paces) if paces else None


@dataclass(frozen=True, slots=True)
class History:
    """What is known of a run. Seconds; `step_s` and `interval_s` are None where unknown."""

    observed_s: float
    faults: int
    cost_s: float | None
    step_s: float | None
    interval_s: float | None
    max_loss_s: float


def best_interval_s(history: History) -> float:
    """How often it should save, in seconds."""
    cost_s = max(CHEAPEST_S, history.cost_s or 0.0)
    between_s = (history.observed_s + PRIOR_S) / (history.faults + 1)
    bounded = min(max(daly_s(cost_s, between_s), 2 * cost_s / MAX_OVERHEAD), LONGEST_S)
    return min(bounded, history.max_loss_s)


def advice(history: History) -> list[str]:
    """Lines for a person: how often to save and why, and what the script's own habit would cost."""
    best_s = best_interval_s(history)
    cost = "a save costs next to nothing"
    if history.cost_s is None:
        cost = "what a save costs is not known yet"
    elif history.cost_s >= CHEAPEST_S:
        cost = f"a save costs about {duration_text(history.cost_s)}"
    faults = f"{history.faults} fault{'' if history.faults == 1 else 's'}"
    why = f"{cost}, {faults} in {duration_text(history.observed_s)}"
    lines = [f"save every {_in_steps(best_s, history.step_s)}: {why}"]
    own_s = history.interval_s
    if own_s is not None and own_s > history.max_loss_s:
        lines.append(
            f"the script saves every {_in_steps(own_s, history.step_s)}: a fault can cost all of"
            f" that, more than the {duration_text(history.max_loss_s)} of max_loss_s"
        )
    elif own_s is not None:
        lines.append(f"the script saves every {_in_steps(own_s, history.step_s)}")
    return lines


def _in_steps(seconds: float, step_s: float | None) -> str:
    if not step_s:
        return duration_text(seconds)
    steps = max(1, round(seconds / step_s))
    digits = 10 ** max(0, len(str(steps)) - 2)
    return f"{max(1, steps // digits * digits):,} steps ({duration_text(seconds)})"
