"""An incident is an episode: verdicts of one family near each other are one story, one row.

It opens at the first warning or critical verdict, escalates with stronger ones, and closes after
`CALM_RECORDS` records without another. A death within 10 s of a numeric verdict joins its row.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from overnight.core.events import (
    Action,
    Decision,
    Family,
    Fault,
    LrProof,
    Position,
    Severity,
    Verdict,
    family_of,
)

CALM_RECORDS = 100
"""Records without a bad one after which an episode is over."""

JOIN_S = 10.0
"""A death this soon after a numeric verdict has the same cause."""

_RANK = {Severity.INFO: 0, Severity.WARNING: 1, Severity.CRITICAL: 2}


@dataclass(frozen=True, slots=True)
class Incident:
    """The persisted story of one episode. Steps are the script's labels, times wall clock.

    `last_bad` counts records over the whole run; `progress` lists the sub-steps of the recovery
    that have been passed, each as (name, time_utc).
    """

    id: int
    fault: Fault
    severity: Severity
    opened_utc: float
    reason: str
    action: Action
    cause: str | None = None
    closed_utc: float | None = None
    onset: Position | None = None
    onset_step: int | None = None
    detected_step: int | None = None
    evidence: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    checkpoint_path: str | None = None
    checkpoint_step: int | None = None
    lr_scale_before: float | None = None
    lr_scale_after: float | None = None
    lr_proof: LrProof | None = None
    outcome: str | None = None
    cost_steps: int | None = None
    cost_s: float | None = None
    needs_you: bool = False
    advice: tuple[str, ...] = ()
    acked_utc: float | None = None
    drill: bool = False
    last_bad: int = 0
    recoveries: int = 0
    progress: tuple[tuple[str, float], ...] = ()
    unrecorded: bool = False

    @property
    def family(self) -> Family:
        """The episode family of its fault."""
        return family_of(self.fault)

    @property
    def open(self) -> bool:
        """Whether the episode is still going on."""
        return self.closed_utc is None

    def passed(self, name: str, time_utc: float) -> Incident:
        """The same incident with one more sub-step behind it."""
        return replace(self, progress=(*self.progress, (name, time_utc)))


class Change(StrEnum):
    """What a verdict did to the book."""

    OPENED = "opened"
    ESCALATED = "escalated"
    JOINED = "joined"


class Book:
    """All incidents of the run that are still open, and the numbering of new ones."""

    def __init__(self, incidents: Iterable[Incident] = (), *, next_id: int = 1) -> None:
        self._open = {incident.id: incident for incident in incidents if incident.open}
        self._next_id = next_id

    def open_incidents(self) -> list[Incident]:
        """Open incidents, oldest first."""
        return [self._open[key] for key in sorted(self._open)]

    def get(self, incident_id: int) -> Incident | None:
        """An open incident by id."""
        return self._open.get(incident_id)

    def put(self, incident: Incident) -> Incident:
        """Keep a changed incident; a closed one is let go."""
        if incident.open:
            self._open[incident.id] = incident
        else:
            self._open.pop(incident.id, None)
        return incident

    def home_of(self, verdict: Verdict, *, now_utc: float, record_count: int) -> Incident | None:
        """The open incident that this verdict belongs to, or None when it begins a new one."""
        family = family_of(verdict.fault)
        for incident in reversed(self.open_incidents()):
            near = record_count - incident.last_bad < CALM_RECORDS
            if incident.family is family and near:
                return incident
            dying = family is Family.EXIT and incident.family is Family.NUMERIC
            if dying and now_utc - incident.opened_utc <= JOIN_S:
                return incident
        return None

    def judge(
        self, verdict: Verdict, decision: Decision, *, now_utc: float, record_count: int
    ) -> tuple[Incident, Change]:
        """Open, escalate or join; the caller persists the incident that comes back."""
        home = self.home_of(verdict, now_utc=now_utc, record_count=record_count)
        if home is None:
            incident = self._new(verdict, now_utc=now_utc)
            self._next_id += 1
            return self.put(_decided(incident, decision, record_count)), Change.OPENED
        joins = family_of(verdict.fault) is not home.family
        if joins or _RANK[verdict.severity] < _RANK[home.severity]:
            joined = replace(home, cause=verdict.cause or home.cause, last_bad=record_count)
            return self.put(joined), Change.JOINED
        grown = replace(
            home,
            fault=verdict.fault,
            severity=verdict.severity,
            reason=verdict.reason,
            cause=verdict.cause or home.cause,
            onset=home.onset or verdict.onset,
            onset_step=verdict.onset_step if home.onset_step is None else home.onset_step,
            detected_step=verdict.detected_step,
            evidence=verdict.evidence,
            outcome=None,
        )
        return self.put(_decided(grown, decision, record_count)), Change.ESCALATED

    def _new(self, verdict: Verdict, *, now_utc: float) -> Incident:
        return Incident(
            id=self._next_id,
            fault=verdict.fault,
            severity=verdict.severity,
            opened_utc=now_utc,
            reason=verdict.reason,
            action=Action.RECORD,
            cause=verdict.cause,
            onset=verdict.onset,
            onset_step=verdict.onset_step,
            detected_step=verdict.detected_step,
            evidence=verdict.evidence,
        )

    def calm(self, *, record_count: int, now_utc: float, busy: int | None) -> list[Incident]:
        """Close what has been quiet long enough; `busy` is an incident still being recovered."""
        closed = []
        for incident in self.open_incidents():
            quiet = record_count - incident.last_bad >= CALM_RECORDS
            if quiet and incident.id != busy and not incident.needs_you:
                outcome = incident.outcome or "healed by itself"
                closed.append(self.put(replace(incident, closed_utc=now_utc, outcome=outcome)))
        return closed

    def close_all(self, *, now_utc: float, outcome: str) -> list[Incident]:
        """Close what is open at the end of the run; an outcome that is known stays."""
        return [
            self.put(replace(incident, closed_utc=now_utc, outcome=incident.outcome or outcome))
            for incident in self.open_incidents()
        ]


def _decided(incident: Incident, decision: Decision, record_count: int) -> Incident:
    """The incident with what was decided about it."""
    target = decision.target
    return replace(
        incident,
        action=decision.action,
        checkpoint_path=target.path if target else None,
        checkpoint_step=target.step if target else None,
        needs_you=decision.needs_you,
        advice=decision.advice,
        last_bad=record_count,
    )


def decided(incident: Incident, decision: Decision) -> Incident:
    """The incident after a decision was made again (the checkpoint turned out to be another)."""
    return _decided(incident, decision, incident.last_bad)


def to_json(incident: Incident) -> dict[str, Any]:
    """The public form (docs/protocol.md, `incidents --json`), as plain values."""
    path = incident.checkpoint_path
    return {
        "id": incident.id,
        "fault": incident.fault.value,
        "cause": incident.cause,
        "severity": incident.severity.value,
        "opened_utc": incident.opened_utc,
        "closed_utc": incident.closed_utc,
        "onset_step": incident.onset_step,
        "detected_step": incident.detected_step,
        "reason": incident.reason,
        "evidence": dict(incident.evidence),
        "action": incident.action.value,
        "checkpoint": {"path": path, "step": incident.checkpoint_step} if path else None,
        "lr_scale_before": incident.lr_scale_before,
        "lr_scale_after": incident.lr_scale_after,
        "lr_proof": incident.lr_proof.value if incident.lr_proof else None,
        "outcome": incident.outcome,
        "cost": {"steps": incident.cost_steps, "seconds": incident.cost_s},
        "needs_you": incident.needs_you,
        "drill": incident.drill,
    }
