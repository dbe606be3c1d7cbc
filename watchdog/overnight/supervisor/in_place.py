"""Going back in place: the probe restores a snapshot, the worker's process goes on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from statistics import median
from typing import Any

from overnight.core.detect.panel import Panel
from overnight.core.placing import BEFORE_ALL
from overnight.core.probe import PlaceOrder, from_step
from overnight.core.situation import PastRecovery
from overnight.supervisor.attempt import Attempt
from overnight.supervisor.journal import Journal
from overnight.supervisor.phases import IN_PLACE_S, Phase, Recovery
from overnight.supervisor.ports import Effects
from overnight.supervisor.run import Run


class InPlace:
    """Asks the probe, and takes the run's history back when it has obeyed."""

    def __init__(self, run: Run, effects: Effects, journal: Journal) -> None:
        self._run = run
        self._effects = effects
        self._journal = journal
        self._orders = 0

    def ask(self, recovery: Recovery, *, confirm_steps: int) -> None:
        """Write the order; the answer comes with the metrics, or the deadline passes."""
        run, onset = self._run, recovery.verdict.onset_step or 0
        attempt = run.attempt
        assert attempt is not None
        self._orders += 1
        order = PlaceOrder(
            number=self._orders,
            onset_step=onset,
            healthy_step=onset - confirm_steps,
            lr_scale=recovery.decision.lr_scale,
            from_step=from_step(list(run.records), attempt.probe.ranks),
        )
        run.clip = "auto"
        recovery.phase = Phase.IN_PLACE
        recovery.asked_at = self._effects.clock()
        recovery.records_when_asked = attempt.records
        recovery.deadline = recovery.asked_at + IN_PLACE_S + 10 * self._usual_gap_s()
        recovery.order = order.number
        self._effects.write_control(run.settings.directory / "control.json", order.control())

    def _usual_gap_s(self) -> float:
        records = list(self._run.records)[-50:]
        gaps = [b.at - a.at for a, b in pairwise(records)]
        return median(gaps) if gaps else 0.0

    def is_refused(self, recovery: Recovery, at: float) -> bool:
        """Whether an answer is no longer to be waited for.

        Without an update there can be none, and nothing gets worse: an evaluation or a save may
        take as long as any that is no stall.
        """
        attempt = self._run.attempt
        if attempt is None or at < recovery.deadline:
            return False
        went_on = attempt.records > recovery.records_when_asked
        return went_on or at - recovery.asked_at > attempt.stall.limit_s

    def answered(self, recovery: Recovery, said: Mapping[str, Any]) -> str:
        """What the probe says of an order: "" where it has obeyed, else why it has not."""
        step, attempt = said.get("snapshot_step"), self._run.attempt
        if said.get("ok") is not True or not isinstance(step, int) or attempt is None:
            why = said.get("why") or said.get("off") or "it does not say why"
            return f"the probe could not go back ({why})"
        self._go_back(recovery, attempt, step)
        return ""

    def _go_back(self, recovery: Recovery, attempt: Attempt, step: int) -> None:
        run, verdict = self._run, recovery.verdict
        scale = recovery.decision.lr_scale
        watch = run.lr_watch(scale) if scale != run.lr_scale else None
        run.reached(run.last.step if run.last else 0)
        run.past.append(
            PastRecovery(
                at_utc=recovery.begun_utc,
                fault=verdict.fault,
                incident=recovery.incident,
                detected_step=verdict.detected_step,
                onset_step=verdict.onset_step,
                target_step=step,
                in_flight=True,
            )
        )
        assert verdict.onset is not None, "the policy goes back in place only from a known onset"
        recovery.snapshot_step = step
        recovery.snapshot_utc = next(
            (r.time_utc for r in reversed(run.records) if r.step <= step), run.started_utc
        )
        run.back_in_place(verdict.onset, new_scale=scale)
        self._journal.rewind(run.last.position if run.last else BEFORE_ALL)
        shifts = attempt.panel.shifts
        attempt.panel = Panel(run.settings.panel, run.level_records, shifts=shifts)
        if attempt.levels_ignored:
            attempt.panel.ignore_level()
        attempt.watch, attempt.lr_scale = watch, scale
        recovery.phase = Phase.PROVING
        recovery.decision = replace(recovery.decision, target=None)
