"""An incident is an episode: verdicts of one family near each other are one story, one row.

It opens at the first warning or critical verdict, escalates with stronger ones, and closes after
`CALM_RECORDS` records without another. A death within 10 s of a numeric verdict joins its row.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from enum import StrEnum

from overnight.core.events import Action, Decision, Family, Severity, Verdict, family_of
from overnight.core.story import Incident

CALM_RECORDS = 100
"""Records without a bad one after which an episode is over."""

JOIN_S = 10.0
"""A death this soon after a numeric verdict has the same cause."""

_RANK = {Severity.INFO: 0, Severity.WARNING: 1, Severity.CRITICAL: 2}


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
            if family is Family.EXIT and _died_of(incident, verdict, now_utc=now_utc):
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
        rank, home_rank = _RANK[verdict.severity], _RANK[home.severity]
        if rank < home_rank:
            joined = replace(home, cause=verdict.cause or home.cause, last_bad=record_count)
            return self.put(_heard(joined, verdict, now_utc)), Change.JOINED
        if rank == home_rank and family_of(verdict.fault) is not home.family:
            # The number is the story, the death its end; but somebody has to act on a death.
            ended = replace(home, cause=verdict.cause or home.cause, outcome=None)
            return self.put(_decided(ended, decision, record_count)), Change.ESCALATED
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
        grown = _heard(grown, verdict, now_utc)
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
            last_verdict_utc=now_utc,
            last_attempt=_attempt_of(verdict),
        )

    def still_bad(self, family: Family, *, record_count: int) -> None:
        """A record that looks wrong keeps its family's episode open, without a new verdict."""
        for incident in self.open_incidents():
            if incident.family is family:
                self.put(replace(incident, last_bad=record_count))

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


def _attempt_of(verdict: Verdict) -> int | None:
    position = verdict.detected or verdict.onset
    return position.attempt if position else None


def _heard(incident: Incident, verdict: Verdict, now_utc: float) -> Incident:
    """The incident with the moment of its family's last verdict."""
    attempt = _attempt_of(verdict)
    return replace(incident, last_verdict_utc=now_utc, last_attempt=attempt)


def _died_of(incident: Incident, verdict: Verdict, *, now_utc: float) -> bool:
    """Whether a death ends this numeric incident: the same attempt, within JOIN_S."""
    if incident.family is not Family.NUMERIC or incident.last_verdict_utc is None:
        return False
    same = incident.last_attempt is not None and incident.last_attempt == _attempt_of(verdict)
    return same and now_utc - incident.last_verdict_utc <= JOIN_S


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
