"""Writing down before acting: incidents, alerts, records and the run's row.

If the store cannot commit, the supervisor acts anyway: alerts then live in memory until the end
of the process, and the incident is marked unrecorded.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from overnight.core.alerting import Alert, Moment, retry_delay_s
from overnight.core.events import AlertSent, Identity, Position, Severity, StepMetric
from overnight.core.orders import Batch, NewAlert, OutboxRow
from overnight.core.story import Entry, Incident
from overnight.errors import StoreError
from overnight.supervisor.ports import Effects
from overnight.supervisor.run import KEPT_RECORDS, Run, snapshot_of

RECORDS_EVERY_S = 2.0
"""Records are committed together; a power cut may cost the last seconds of them."""

BROKEN_EVERY_S = 30.0
"""A store that does not answer costs the loop a second each time it is asked."""

KEEP_ALERTS_S = 30 * 86_400.0
"""Delivered alerts are kept a month; incidents for ever."""

log = logging.getLogger("overnight")


class Journal:
    """The supervisor's memory on disk and the outbox of its alerts."""

    def __init__(self, run: Run, effects: Effects, waiting: Sequence[OutboxRow] = ()) -> None:
        self._run = run
        self._effects = effects
        self._outbox: dict[int, OutboxRow] = {row.id: row for row in waiting}
        self._in_flight: set[int] = set()
        self._told: set[int] = set()
        self._records: list[StepMetric] = []
        self._written_revision = -1
        self._written: dict[Identity, Entry] = {}
        self._flushed_at = 0.0
        self._unwritten: dict[int, Incident] = {}
        self._rewind: Position | None = None
        self._memory_ids = itertools.count(-1, -1)
        self._broken = False

    # --- writing ---------------------------------------------------------------------------------

    def incident(self, incident: Incident, alert: Alert | None) -> Incident:
        """One transaction: incident, alert for every receiver, run. Marks it where it failed."""
        told = self._effects.told.get(incident.fault)
        alerts = self._addressed(alert, told) if alert is not None else []
        replaced = self._replaced_by(alert) if alert is not None else []
        rows = self._commit(
            Batch(
                run=self._row(),
                incidents=[*self._unwritten.values(), incident],
                alerts=alerts,
                replaces=replaced,
                checkpoints=self._changed_entries(),
            )
        )
        for key in replaced:
            del self._outbox[key]
        if rows is None:
            self._written_revision = -1
            self._written.clear()
            incident = replace(incident, unrecorded=True)
            self._unwritten[incident.id] = incident
            rows = [self._in_memory(new) for new in alerts]
        self._outbox.update({row.id: row for row in rows})
        if alert is not None and alert.moment is Moment.OUTCOME:
            self._told.add(incident.id)
        return incident

    def _replaced_by(self, alert: Alert) -> list[int]:
        """Unsent *opened* alerts of the same incident: the new one tells their story better."""
        return [
            row.id
            for row in self._outbox.values()
            if row.incident == alert.incident
            and row.moment == Moment.OPENED
            and row.id not in self._in_flight
        ]

    def page(self, text: str) -> None:
        """An alert about ourselves, without an incident."""
        title = f"[{self._run.settings.name}] needs you"
        alert = Alert(0, Moment.OUTCOME, Severity.CRITICAL, title, text, delay_s=0.0)
        rows = self._commit(Batch(alerts=self._addressed(alert)))
        rows = rows or [self._in_memory(new) for new in self._addressed(alert)]
        self._outbox.update({row.id: row for row in rows})

    def note(self, incidents: Iterable[Incident]) -> None:
        """Incidents that changed without anything to say."""
        changed = {**self._unwritten, **{incident.id: incident for incident in incidents}}
        if self._commit(Batch(run=self._row(), incidents=list(changed.values()))) is None:
            self._unwritten = changed

    def rewind(self, position: Position) -> None:
        """Forget the records after this one: a rollback has left their future."""
        self._records = [record for record in self._records if record.position <= position]
        self._rewind = position

    def record(self, record: StepMetric) -> None:
        """Keep a record for the next flush."""
        self._records.append(record)

    def _changed_entries(self) -> list[Entry]:
        """Ledger entries that are not on disk as they are now."""
        if self._run.ledger.revision == self._written_revision:
            return []
        self._written_revision = self._run.ledger.revision
        changed = [
            entry
            for entry in self._run.ledger.described()
            if self._written.get(entry.identity) != entry
        ]
        self._written.update({entry.identity: entry for entry in changed})
        return changed

    def forget(self, identities: Sequence[Identity]) -> None:
        """Drop ledger entries whose bytes are gone."""
        if identities:
            self._commit(Batch(forgotten=identities))

    def flush(self, at: float, *, force: bool = False) -> None:
        """Commit what has gathered, every other second."""
        every_s = BROKEN_EVERY_S if self._broken else RECORDS_EVERY_S
        if not force and at - self._flushed_at < every_s:
            return
        self._flushed_at = at
        records, self._records = self._records, []
        entries = self._changed_entries()
        rows = self._commit(
            Batch(
                run=self._row(),
                incidents=list(self._unwritten.values()),
                records=records,
                checkpoints=entries,
                rewind=self._rewind,
            )
        )
        self._rewind = None if rows is not None else self._rewind
        if rows is None:  # keep them for when the disk answers again
            self._records = [*records, *self._records][-KEPT_RECORDS:]
            self._written_revision = -1
            self._written.clear()

    @property
    def now_utc(self) -> float:
        """The wall clock."""
        return self._effects.wall()

    def snapshot(self) -> dict[str, Any]:
        """The live answer to `overnight status`."""
        return snapshot_of(self._run, now_utc=self._effects.wall(), alerts_waiting=self.waiting)

    def _row(self) -> dict[str, Any]:
        return self._run.row(self.snapshot())

    def prune(self) -> None:
        """Forget alerts that were delivered long ago."""
        with contextlib.suppress(StoreError):
            self._effects.store.prune(before_utc=self._effects.wall() - KEEP_ALERTS_S)

    def _commit(self, batch: Batch) -> list[OutboxRow] | None:
        try:
            rows = self._effects.store.commit(batch)
        except StoreError as error:
            if not self._broken:
                self._effects.say(f"warning: {error}; going on from memory")
            self._broken = True
            return None
        if self._broken:
            self._effects.say("the store can be written again")
        self._broken = False
        self._unwritten.clear()
        return rows

    def _addressed(self, alert: Alert, told: Sequence[str] | None = None) -> list[NewAlert]:
        """For each receiver; `told` are those that the config names for this fault."""
        now = self._effects.wall()
        return [
            NewAlert(
                incident=alert.incident,
                moment=alert.moment.value,
                receiver=receiver,
                severity=alert.severity.value,
                title=alert.title,
                body=alert.body,
                created_utc=now,
                due_utc=now + alert.delay_s,
            )
            for receiver in (self._effects.receivers if told is None else told)
        ]

    def _in_memory(self, alert: NewAlert) -> OutboxRow:
        names = alert.__slots__
        values = {name: getattr(alert, name) for name in names}
        return OutboxRow(id=next(self._memory_ids), failures=0, error="", **values)

    # --- delivering ------------------------------------------------------------------------------

    def deliver(self) -> None:
        """Hand every alert that is due to the sender; never waits."""
        now = self._effects.wall()
        for row in sorted(self._outbox.values(), key=_due):
            if row.due_utc > now or row.id in self._in_flight:
                continue
            accepted = self._effects.dispatcher.send(
                row.id, row.receiver, title=row.title, body=row.body, severity=row.severity
            )
            if accepted:
                self._in_flight.add(row.id)

    def sent(self, answer: AlertSent) -> None:
        """Write down what a receiver answered; delivered only after it accepted."""
        self._in_flight.discard(answer.alert_id)
        row = self._outbox.get(answer.alert_id)
        if row is None:
            return
        now = self._effects.wall()
        if answer.ok:
            del self._outbox[row.id]
            self._quietly(row, lambda: self._effects.store.sent(row.id, time_utc=now))
            return
        delay = None
        if not answer.permanent:
            delay = retry_delay_s(row.failures + 1, age_s=now - row.created_utc)
        if row.moment == Moment.OPENED and row.incident in self._told:
            delay = None  # its outcome has been told: the beginning is no news any more
        due = None if delay is None else now + delay * (1 + 0.1 * self._effects.jitter())
        log.warning("alert %d not delivered: %s", row.id, answer.error)
        if due is None:
            del self._outbox[row.id]
            self._effects.say(f"an alert could not be delivered: {answer.error}")
        else:
            failures = row.failures + 1
            self._outbox[row.id] = replace(row, failures=failures, due_utc=due, error=answer.error)
        self._quietly(
            row,
            lambda: self._effects.store.not_sent(
                row.id, error=answer.error, due_utc=due, time_utc=now
            ),
        )

    def _quietly(self, row: OutboxRow, write: Callable[[], None]) -> None:
        if row.id > 0:  # alerts that were never stored have negative ids
            with contextlib.suppress(StoreError):
                write()

    def due_now(self) -> None:
        """The run ends: every alert may leave at once."""
        now = self._effects.wall()
        self._outbox = {
            key: replace(row, due_utc=min(row.due_utc, now)) for key, row in self._outbox.items()
        }
        with contextlib.suppress(StoreError):
            self._effects.store.due_now(time_utc=now)

    @property
    def waiting(self) -> int:
        """Alerts that no receiver has accepted yet."""
        return len(self._outbox)

    def next_due_s(self) -> float:
        """Seconds until the next alert may leave."""
        now = self._effects.wall()
        dues = [row.due_utc - now for row in self._outbox.values() if row.id not in self._in_flight]
        return max(0.0, min(dues, default=1.0))


def _due(row: OutboxRow) -> tuple[float, int]:
    return (row.due_utc, row.id)
