"""How a recovery ends, written down: each ending is one transaction of incident and alert."""

from __future__ import annotations

from dataclasses import replace

from overnight.core import alerting
from overnight.core.events import Target
from overnight.core.incidents import decided
from overnight.core.lifecycle import Event
from overnight.core.proof import LrProof
from overnight.core.story import Incident
from overnight.supervisor.journal import Journal
from overnight.supervisor.phases import Recovery
from overnight.supervisor.ports import Effects
from overnight.supervisor.run import Run


class Outcomes:
    """Keeps the incident of a recovery up to date, from sub-step to outcome."""

    def __init__(self, run: Run, effects: Effects, journal: Journal) -> None:
        self._run = run
        self._effects = effects
        self._journal = journal

    def incident(self, recovery: Recovery) -> Incident:
        """The incident that is being recovered."""
        incident = self._run.book.get(recovery.incident)
        assert incident is not None, "an incident stays open while it is recovered"
        return incident

    def passed(self, recovery: Recovery, step: str) -> None:
        """Write a passed sub-step before the next one is begun."""
        incident = self.incident(recovery).passed(step, self._effects.wall())
        self._journal.note([self._run.book.put(incident)])

    def healed(self, recovery: Recovery, proof: LrProof | None) -> None:
        """The recovery is over and worked: outcome and alert in one transaction."""
        incident = replace(self.incident(recovery), lr_proof=proof)
        target = recovery.decision.target
        in_place = recovery.snapshot_step is not None
        step = recovery.snapshot_step if in_place else target.step if target else None
        partial = target is not None and target.partial and not in_place
        ending = "resumed in part" if partial else "healed"
        silent = self._run.attempt is not None and self._run.attempt.records == 0
        incident = replace(
            incident,
            outcome=alerting.healed_text(
                incident,
                resumed_step=step,
                silent=silent,
                in_place=in_place,
                partial=partial,
            ),
            cost_steps=self._lost_steps(recovery, step),
            cost_s=self._lost_s(recovery, target),
            last_bad=self._run.record_count,
        ).passed(ending, self._effects.wall())
        alert = alerting.outcome(self._run.settings.name, incident, ending=ending)
        incident = self._journal.incident(incident, alert)
        self._run.book.put(incident)
        cost = alerting.cost_text(incident)
        self._effects.say(f"{ending}: {incident.outcome}; it cost {cost}")

    def _lost_steps(self, recovery: Recovery, resumed_step: int | None) -> int | None:
        seen, target = recovery.verdict.detected_step, recovery.decision.target
        if seen is None or (resumed_step is None and target is not None):
            return None
        return max(0, seen - (resumed_step or 0))

    def _lost_s(self, recovery: Recovery, target: Target | None) -> float | None:
        """From the moment that the resumed state was first reached until now."""
        now = self._effects.wall()
        entry = self._run.ledger.find(target.path) if target else None
        since = entry.saved_utc if entry else recovery.snapshot_utc or self._run.started_utc
        return max(0.0, min(recovery.begun_utc, now) - since) + (now - recovery.begun_utc)

    def halted(self, recovery: Recovery) -> None:
        """Giving up: the run ends, a person is told what to do."""
        run = self._run
        incident = self.incident(recovery)
        decision = recovery.decision
        path = None
        if decision.target is not None:
            entry = run.ledger.find(decision.target.path)
            path = entry.vault_path or entry.path if entry else decision.target.path
        before = decision.target.path if decision.target else ""
        advice = tuple(line.replace(before, path) if path else line for line in decision.advice)
        incident = replace(
            decided(incident, decision),
            outcome=f"halted: {decision.reason}",
            checkpoint_path=path or incident.checkpoint_path,
            needs_you=True,
            advice=advice,
        ).passed("halted", self._effects.wall())
        run.life.apply(Event.HALT)
        run.ending = decision.reason
        alert = alerting.outcome(run.settings.name, incident)
        incident = self._journal.incident(incident, alert)
        run.book.put(incident)
        self._effects.say(f"HALTED: {decision.reason}")
        for line in advice:
            self._effects.say(f"  {line}")

    def needs_somebody(self, recovery: Recovery, why: str) -> None:
        """The recovery cannot go on by itself; it does go on if the obstacle disappears."""
        incident = replace(self.incident(recovery), needs_you=True, advice=(why,))
        alert = alerting.opened(self._run.settings.name, incident)
        self._run.book.put(self._journal.incident(incident, alert))

    def abandoned(self, recovery: Recovery, why: str) -> None:
        """The fault came back before the proof: its own alert tells the rest."""
        incident = replace(self.incident(recovery), outcome=why)
        self._journal.note([self._run.book.put(incident)])

    def stopped(self, recovery: Recovery, why: str) -> None:
        """A person stopped the run meanwhile: the last word is theirs."""
        incident = replace(self.incident(recovery), outcome=why, needs_you=False)
        alert = alerting.outcome(self._run.settings.name, incident, ending="stopped")
        self._run.book.put(self._journal.incident(incident, alert))
