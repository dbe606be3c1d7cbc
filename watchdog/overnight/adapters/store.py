"""One SQLite file a run: what happened, what was decided, what is still to be told.

A single thread owns the writing connection; the loop hands it whole transactions and waits at
most a second, because a disk that hangs must not stop a kill. Incidents, decisions and alerts are
committed with synchronous=FULL, records without. Reading is open to other processes (WAL), which
the command line uses when no supervisor answers.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from overnight.adapters.files import filesystem_type
from overnight.core.events import Identity, StepMetric
from overnight.core.orders import Batch, Memory, NewAlert, OutboxRow
from overnight.core.story import (
    Entry,
    Incident,
    decode_entry,
    decode_incident,
    decode_record,
    encode,
)
from overnight.errors import StoreError

SCHEMA_VERSION = 1
COMMIT_S = 1.0
RESERVE_BYTES = 8 << 20
"""Space kept aside so that a full disk does not silence the last incidents."""
KEEP_RECORDS = 5000
NETWORK_FILESYSTEMS = frozenset({"nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "ceph"})
APPLICATION_ID = 0x4F4E4754  # "ONGT"

_SCHEMA = """
CREATE TABLE run (id INTEGER PRIMARY KEY CHECK (id = 1), data TEXT NOT NULL);
CREATE TABLE records (
    attempt INTEGER, record INTEGER, step INTEGER, time_utc REAL, data TEXT NOT NULL,
    PRIMARY KEY (attempt, record)) WITHOUT ROWID;
CREATE TABLE checkpoints (
    path TEXT, inode INTEGER, mtime_ns INTEGER, size_bytes INTEGER, data TEXT NOT NULL,
    PRIMARY KEY (path, inode, mtime_ns, size_bytes)) WITHOUT ROWID;
CREATE TABLE incidents (id INTEGER PRIMARY KEY, closed_utc REAL, data TEXT NOT NULL);
CREATE TABLE alerts (
    id INTEGER PRIMARY KEY, incident INTEGER NOT NULL, moment TEXT NOT NULL,
    receiver TEXT NOT NULL, severity TEXT NOT NULL, title TEXT NOT NULL, body TEXT NOT NULL,
    created_utc REAL NOT NULL, due_utc REAL NOT NULL, failures INTEGER NOT NULL DEFAULT 0,
    delivered_utc REAL, failed_utc REAL, error TEXT NOT NULL DEFAULT '');
CREATE INDEX alerts_waiting ON alerts (due_utc) WHERE delivered_utc IS NULL AND failed_utc IS NULL;
"""


@dataclass
class _Job:
    work: Callable[[sqlite3.Connection, _Job], Any]
    done: threading.Event = field(default_factory=threading.Event)
    result: Any = None
    error: Exception | None = None
    _abandoned: bool = False
    _committing: bool = False
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def abandon(self) -> bool:
        """Nobody waits any more: leave no trace, or it would be done twice. False: too late."""
        with self._turn:
            self._abandoned = not self._committing
            return self._abandoned

    def check_wanted(self, *, committing: bool = False) -> None:
        """Raise when it was abandoned; `committing`: there is no way back after this."""
        with self._turn:
            if self._abandoned:
                raise sqlite3.OperationalError("abandoned: the disk did not answer in time")
            self._committing = committing


class Store:
    """The writing side, owned by the supervisor of the run."""

    def __init__(self, directory: Path) -> None:
        """Open or create `directory`/store.db. Raises StoreError."""
        self._directory = directory
        self._stuck: _Job | None = None
        self.on_network = filesystem_type(directory) in NETWORK_FILESYSTEMS
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        try:
            self._connection = self._open(directory / "store.db")
        except (sqlite3.Error, OSError) as error:
            raise StoreError(f"cannot open {directory / 'store.db'}: {error}") from error
        self._thread = threading.Thread(target=self._write, name="store", daemon=True)
        self._thread.start()

    def _open(self, path: Path) -> sqlite3.Connection:
        connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        path.chmod(0o600)
        connection.execute("PRAGMA busy_timeout = 5000")
        version = _schema_version(path, connection)
        # WAL needs memory that all readers share, which no network filesystem has.
        mode = "DELETE" if self.on_network else "WAL"
        connection.execute(f"PRAGMA journal_mode = {mode}")
        connection.execute("PRAGMA synchronous = FULL")
        if version == 0:
            connection.executescript(
                f"BEGIN; {_SCHEMA} PRAGMA user_version = {SCHEMA_VERSION};"
                f" PRAGMA application_id = {APPLICATION_ID}; COMMIT;"
            )
        with contextlib.suppress(OSError):
            _reserve(self._directory / "reserve")
        return connection

    def _write(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job.check_wanted()
                job.result = job.work(self._connection, job)
            except (sqlite3.Error, OSError, ValueError, OverflowError) as error:
                with contextlib.suppress(sqlite3.Error):
                    self._connection.execute("ROLLBACK")
                job.error = error
            job.done.set()
        self._connection.close()

    def _do(self, work: Callable[[sqlite3.Connection, _Job], Any]) -> Any:
        if self._stuck is not None and not self._stuck.done.is_set():
            raise StoreError("the disk still does not answer")
        job = _Job(work)
        self._jobs.put(job)
        in_time = job.done.wait(COMMIT_S) or (not job.abandon() and job.done.wait(COMMIT_S))
        if not in_time:
            self._stuck = job
            raise StoreError("the disk does not answer")
        if job.error is not None:
            raise StoreError(f"cannot write the store: {job.error}") from job.error
        return job.result

    def _execute(self, sql: str, arguments: tuple[Any, ...]) -> None:
        self._do(lambda connection, _job: connection.execute(sql, arguments))

    def commit(self, batch: Batch) -> list[OutboxRow]:
        """Write one transaction durably; the alerts come back as outbox rows.

        A full disk gets the reserve file and one more try. Raises StoreError; the caller then
        acts from memory.
        """
        try:
            rows = self._do(lambda connection, job: _apply(connection, job, batch))
        except StoreError:
            with contextlib.suppress(OSError):
                (self._directory / "reserve").unlink()
            rows = self._do(lambda connection, job: _apply(connection, job, batch))
        assert isinstance(rows, list)
        return rows

    def sent(self, alert_id: int, *, time_utc: float) -> None:
        """The receiver has accepted the alert. Raises StoreError."""
        sql = "UPDATE alerts SET delivered_utc = ?, error = '' WHERE id = ?"
        self._execute(sql, (time_utc, alert_id))

    def not_sent(
        self, alert_id: int, *, error: str, due_utc: float | None, time_utc: float
    ) -> None:
        """The receiver did not take it; `due_utc` None gives it up. Raises StoreError."""
        sql = (
            "UPDATE alerts SET failures = failures + 1, error = ?,"
            " due_utc = coalesce(?, due_utc), failed_utc = ? WHERE id = ?"
        )
        failed = None if due_utc is not None else time_utc
        self._execute(sql, (_storable(error), due_utc, failed, alert_id))

    def due_now(self, *, time_utc: float) -> None:
        """Every waiting alert may leave now (the run ends). Raises StoreError."""
        sql = (
            "UPDATE alerts SET due_utc = min(due_utc, ?)"
            " WHERE delivered_utc IS NULL AND failed_utc IS NULL"
        )
        self._execute(sql, (time_utc,))

    def prune(self, *, before_utc: float) -> None:
        """Forget delivered alerts older than this; incidents stay for ever. Raises StoreError."""
        sql = "DELETE FROM alerts WHERE delivered_utc < ?"
        self._execute(sql, (before_utc,))

    def close(self) -> None:
        """Finish what is queued and close; waits a second at most."""
        self._jobs.put(None)
        self._thread.join(COMMIT_S)


def _schema_version(path: Path, connection: sqlite3.Connection) -> int:
    """The schema of an open store, 0 while nothing was written. Raises StoreError for a newer."""
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if version > SCHEMA_VERSION:
        connection.close()
        raise StoreError(
            f"{path} was written by a newer Overnight (schema {version})",
            hint="upgrade Overnight, or start the run afresh with --fresh",
        )
    return version


def _reserve(path: Path) -> None:
    """Make it, or complete one that a full disk cut short."""
    with path.open("ab") as out:
        os.posix_fallocate(out.fileno(), 0, RESERVE_BYTES)


def _storable(value: Any) -> Any:
    """What SQLite can hold: a path need not be UTF-8, an inode or a step not fit 63 bits."""
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        return str(value)
    return value


def _apply(connection: sqlite3.Connection, job: _Job, batch: Batch) -> list[OutboxRow]:
    # What is acted on or told must survive a power cut; the last second of records need not.
    durable = bool(batch.incidents or batch.alerts)
    connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
    try:
        return _transaction(connection, job, batch)
    finally:
        if not connection.in_transaction:  # after an error it still is, and the caller ends it
            connection.execute("PRAGMA synchronous = FULL")


def _transaction(connection: sqlite3.Connection, job: _Job, batch: Batch) -> list[OutboxRow]:
    connection.execute("BEGIN IMMEDIATE")
    if batch.run is not None:
        connection.execute("REPLACE INTO run VALUES (1, ?)", (json.dumps(batch.run),))
    for incident in batch.incidents:
        row = (incident.id, incident.closed_utc, encode(incident))
        connection.execute("REPLACE INTO incidents VALUES (?, ?, ?)", row)
    for alert_id in batch.replaces:
        connection.execute("DELETE FROM alerts WHERE id = ? AND delivered_utc IS NULL", (alert_id,))
    rows = [_insert_alert(connection, alert) for alert in batch.alerts]
    if batch.rewind is not None:
        key = (batch.rewind.attempt, batch.rewind.record)
        connection.execute("DELETE FROM records WHERE (attempt, record) > (?, ?)", key)
    _apply_records(connection, batch.records)
    for entry in batch.checkpoints:
        row = (*_key(entry.identity), encode(entry))
        connection.execute("REPLACE INTO checkpoints VALUES (?, ?, ?, ?, ?)", row)
    for gone in batch.forgotten:
        connection.execute(
            "DELETE FROM checkpoints"
            " WHERE path = ? AND inode = ? AND mtime_ns = ? AND size_bytes = ?",
            _key(gone),
        )
    job.check_wanted(committing=True)
    connection.execute("COMMIT")
    return rows


def _key(identity: Identity) -> tuple[Any, ...]:
    parts = (identity.path, identity.inode, identity.mtime_ns, identity.size_bytes)
    return tuple(_storable(part) for part in parts)


def _insert_alert(connection: sqlite3.Connection, alert: NewAlert) -> OutboxRow:
    names = [item.name for item in fields(NewAlert)]
    values = [getattr(alert, name) for name in names]
    marks = ", ".join("?" * len(names))
    cursor = connection.execute(
        f"INSERT INTO alerts ({', '.join(names)}) VALUES ({marks})",  # noqa: S608 - own names
        [_storable(value) for value in values],
    )
    assert cursor.lastrowid is not None
    return OutboxRow(cursor.lastrowid, *values, 0, "")  # type: ignore[call-arg] # by name order


def _apply_records(connection: sqlite3.Connection, records: Sequence[StepMetric]) -> None:
    if not records:
        return
    connection.executemany(
        "REPLACE INTO records VALUES (?, ?, ?, ?, ?)",
        [
            (r.position.attempt, r.position.record, _storable(r.step), r.time_utc, encode(r))
            for r in records
        ],
    )
    connection.execute(
        "DELETE FROM records WHERE (attempt, record) < (SELECT attempt, record FROM records"
        " ORDER BY attempt DESC, record DESC LIMIT 1 OFFSET ?)",
        (KEEP_RECORDS - 1,),
    )


def _empty(unwritten: sqlite3.Connection) -> sqlite3.Connection:
    """A supervisor that was killed as it made its store has left nothing to be read."""
    unwritten.close()
    connection = sqlite3.connect(":memory:")
    connection.executescript(_SCHEMA)
    return connection


# --- reading ----------------------------------------------------------------------------------


class StoreReader:
    """A read-only view, for the command line and for a supervisor that starts again."""

    def __init__(self, directory: Path) -> None:
        """Open `directory`/store.db. Raises StoreError when there is none or it is unreadable."""
        path = directory / "store.db"
        try:
            self._connection = self._open(path)
        except sqlite3.Error as error:
            raise StoreError(f"cannot read {path}: {error}") from error

    @staticmethod
    def _open(path: Path) -> sqlite3.Connection:
        """A cleanly closed WAL database of another user can only be read as immutable."""
        for mode in ("mode=ro", "immutable=1"):
            connection = sqlite3.connect(f"{path.absolute().as_uri()}?{mode}", uri=True)
            try:
                version = _schema_version(path, connection)
            except sqlite3.OperationalError:
                connection.close()
                if mode == "immutable=1":
                    raise
            else:
                return connection if version else _empty(connection)
        raise AssertionError

    def _column(self, sql: str, arguments: Sequence[Any] = ()) -> Iterator[Any]:
        try:
            for row in self._connection.execute(sql, arguments):
                yield row[0]
        except sqlite3.Error as error:
            raise StoreError(f"cannot read the store: {error}") from error

    def run(self) -> dict[str, Any] | None:
        """The run's own row: command, state, attempt, scale, last snapshot."""
        for text in self._column("SELECT data FROM run"):
            value = json.loads(text)
            assert isinstance(value, dict)
            return value
        return None

    def incidents(self) -> list[Incident]:
        """All incidents, oldest first."""
        return [decode_incident(t) for t in self._column("SELECT data FROM incidents ORDER BY id")]

    def checkpoints(self) -> list[Entry]:
        """All checkpoints that the ledger knows."""
        return [decode_entry(text) for text in self._column("SELECT data FROM checkpoints")]

    def records(self) -> list[StepMetric]:
        """The last records of the run, oldest first."""
        sql = "SELECT data FROM records ORDER BY attempt, record"
        return [decode_record(text) for text in self._column(sql)]

    def outbox(self) -> list[OutboxRow]:
        """Alerts that wait, in the order in which they are due."""
        names = ", ".join(item.name for item in fields(OutboxRow))
        sql = (
            f"SELECT {names} FROM alerts"  # noqa: S608 - own names
            " WHERE delivered_utc IS NULL AND failed_utc IS NULL ORDER BY due_utc, id"
        )
        try:
            return [OutboxRow(*row) for row in self._connection.execute(sql)]
        except sqlite3.Error as error:
            raise StoreError(f"cannot read the store: {error}") from error

    def alert_counts(self) -> dict[str, int]:
        """How many alerts wait and how many were given up."""
        waiting = "delivered_utc IS NULL AND failed_utc IS NULL"
        sql = "SELECT count(*) FROM alerts WHERE "
        return {
            "waiting": next(self._column(sql + waiting)),
            "failed": next(self._column(sql + "failed_utc IS NOT NULL")),
        }

    def undelivered(self) -> list[str]:
        """`receiver: error` of each alert that did not arrive."""
        sql = "SELECT receiver || ': ' || error FROM alerts WHERE delivered_utc IS NULL ORDER BY id"
        return list(self._column(sql))

    def memory(self) -> Memory | None:
        """All of it, for a supervisor that starts again; None when no run was ever written."""
        run = self.run()
        if run is None:
            return None
        return Memory(run, self.incidents(), self.checkpoints(), self.records(), self.outbox())

    def close(self) -> None:
        """Release the file."""
        self._connection.close()
