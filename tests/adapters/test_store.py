"""The store: what is committed is there, whoever dies; what is not committed leaves no trace."""

from __future__ import annotations

import math
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from overnight.adapters.store import KEEP_RECORDS, RESERVE_BYTES, Store, StoreReader
from overnight.core.events import Identity, Position
from overnight.core.orders import Batch
from overnight.core.proof import LrProof
from overnight.errors import StoreError
from store_lab import alert, entry, incident, record


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A fresh store, open for writing."""
    store = Store(tmp_path)
    yield store
    store.close()


def reader(directory: Path) -> StoreReader:
    """Another view of the store, as the command line has it."""
    return StoreReader(directory)


def test_everything_round_trips(store: Store, tmp_path: Path) -> None:
    """Run, incidents, checkpoints, records with NaN, and the outbox, while the writer is open."""
    full = incident(closed_utc=2000.0, lr_proof=LrProof.PROVED, outcome="healed", cost_s=3.5)
    strange = [record(1, loss=math.nan), record(2, loss=math.inf, grad_norm=-math.inf, lr=1e-5)]
    row = {"name": "a", "scales": {"1": 0.5}, "hello": None}
    rows = store.commit(
        Batch(row, [full, incident(2)], [alert()], records=strange, checkpoints=[entry()])
    )
    memory = reader(tmp_path).memory()
    assert memory is not None
    assert memory.run == row
    assert memory.incidents == [full, incident(2)]
    assert memory.entries == [entry()]
    assert memory.outbox == rows
    assert math.isnan(memory.records[0].loss or 0.0)
    assert memory.records[1] == strange[1]


def test_writing_again_replaces(store: Store, tmp_path: Path) -> None:
    """One row a run, an incident, a position and a checkpoint identity."""
    store.commit(Batch({"v": 1}, [incident()], records=[record(1)], checkpoints=[entry()]))
    later = entry(confirmed=True), incident(outcome="healed"), record(1, loss=9.0)
    store.commit(Batch({"v": 2}, [later[1]], records=[later[2]], checkpoints=[later[0]]))
    memory = reader(tmp_path).memory()
    assert memory is not None
    assert memory.run == {"v": 2}
    assert (memory.entries, memory.incidents, memory.records) == (
        [later[0]],
        [later[1]],
        [later[2]],
    )


def test_a_better_alert_takes_the_place_of_one_that_was_not_sent(
    store: Store, tmp_path: Path
) -> None:
    """A delivered one stays in the history."""
    first, second = store.commit(Batch(alerts=[alert(1), alert(2)]))
    store.sent(second.id, time_utc=1020.0)
    (third,) = store.commit(Batch(alerts=[alert(1)], replaces=[first.id, second.id]))
    assert reader(tmp_path).outbox() == [third]
    assert third.id not in {first.id, second.id}


def test_the_outbox_follows_what_the_receivers_say(store: Store, tmp_path: Path) -> None:
    """Delivered, to be tried later, given up; in the order in which they are due."""
    gone, later, dead = store.commit(Batch(alerts=[alert(1), alert(2), alert(3)]))
    store.sent(gone.id, time_utc=1011.0)
    store.not_sent(later.id, error="busy", due_utc=1300.0, time_utc=1011.0)
    store.not_sent(dead.id, error="404", due_utc=None, time_utc=1011.0)
    assert reader(tmp_path).outbox() == [replace(later, due_utc=1300.0, failures=1, error="busy")]
    assert reader(tmp_path).alert_counts() == {"waiting": 1, "failed": 1}
    store.due_now(time_utc=1100.0)
    assert reader(tmp_path).outbox()[0].due_utc == 1100.0


def test_only_delivered_alerts_are_pruned(store: Store, tmp_path: Path) -> None:
    """What nobody has seen is kept, however old."""
    old, waiting = store.commit(Batch(alerts=[alert(1), alert(2)]))
    store.sent(old.id, time_utc=10.0)
    store.prune(before_utc=2000.0)
    database = sqlite3.connect(tmp_path / "store.db")
    assert [row[0] for row in database.execute("SELECT id FROM alerts")] == [waiting.id]
    database.close()


def test_a_forgotten_checkpoint_is_forgotten_by_identity(store: Store, tmp_path: Path) -> None:
    """The one that was written to the same path later stays."""
    path = entry().identity.path
    other = entry(identity=Identity(path, 12, 1_700_000_000_000_000_001, 8192))
    store.commit(Batch(checkpoints=[entry(), other], forgotten=[entry().identity]))
    assert reader(tmp_path).checkpoints() == [other]


def test_the_last_5000_records_are_kept(store: Store, tmp_path: Path) -> None:
    """Across attempts, the oldest go first."""
    store.commit(Batch(records=[record(number) for number in range(1, KEEP_RECORDS + 1)]))
    later = [record(number, position=Position(2, number)) for number in range(1, 11)]
    store.commit(Batch(records=later))
    records = reader(tmp_path).records()
    assert len(records) == KEEP_RECORDS
    assert records[0].position == Position(1, 11)
    assert records[-10:] == later


WRITER = """
import sys; sys.path[:0] = sys.argv[2:]
from pathlib import Path
from overnight.adapters.store import Store
from overnight.core.orders import Batch
from store_lab import alert, incident, record
store = Store(Path(sys.argv[1]))
for n in range(1, 10**9):
    store.commit(Batch(incidents=[incident(n)], alerts=[alert(n)], records=[record(n)]))
    print(n, flush=True)
"""


@pytest.mark.parametrize("lines", [1, 7, 40])
def test_a_killed_writer_loses_nothing_that_it_was_told_is_safe(tmp_path: Path, lines: int) -> None:
    """SIGKILL amid commits: every acknowledged incident is there, with its alert, none torn."""
    argv = [sys.executable, "-c", WRITER, str(tmp_path), *sys.path]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        for _ in range(lines):
            writer.stdout.readline()
        writer.kill()
        last = lines + len(writer.stdout.read().splitlines())
    view = reader(tmp_path)
    numbers = [found.id for found in view.incidents()]
    assert numbers[:last] == list(range(1, last + 1))
    assert len(numbers) <= last + 1
    assert [row.incident for row in view.outbox()] == numbers
    assert [found.position.record for found in view.records()] == numbers
    again = Store(tmp_path)
    again.commit(Batch(incidents=[incident(10_000)]))
    again.close()


def test_a_reader_works_while_the_writer_is_open_and_after_it_closed(tmp_path: Path) -> None:
    """A closed WAL database has no side files any more."""
    store = Store(tmp_path)
    store.commit(Batch(incidents=[incident()]))
    view = reader(tmp_path)
    assert view.incidents() == [incident()]
    store.commit(Batch(incidents=[incident(2)]))
    assert len(view.incidents()) == 2
    view.close()
    store.close()
    assert reader(tmp_path).incidents() == [incident(), incident(2)]


def test_the_files_are_private(store: Store, tmp_path: Path) -> None:
    """Alerts quote training logs."""
    store.commit(Batch(incidents=[incident()]))
    modes = {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.glob("store.db*")}
    assert modes == {0o600}


def test_a_newer_schema_is_refused_by_both_sides(tmp_path: Path) -> None:
    """Nothing is written to it, and the hint says what to do."""
    Store(tmp_path).close()
    database = sqlite3.connect(tmp_path / "store.db")
    database.execute("PRAGMA user_version = 99")
    database.close()
    before = (tmp_path / "store.db").read_bytes()
    for side in (Store, StoreReader):
        with pytest.raises(StoreError, match="newer Overnight") as caught:
            side(tmp_path)
        assert "--fresh" in caught.value.hint
    assert (tmp_path / "store.db").read_bytes() == before


def test_a_store_that_was_never_written_is_no_run(tmp_path: Path) -> None:
    """The supervisor was killed between creating the file and its first commit."""
    (tmp_path / "store.db").touch()
    assert reader(tmp_path).memory() is None
    Store(tmp_path).close()
    assert reader(tmp_path).memory() is None


@pytest.mark.parametrize("make", [Store, StoreReader])
def test_what_is_no_database_is_an_error_of_ours(
    tmp_path: Path, make: Callable[[Path], object]
) -> None:
    """Not a traceback."""
    (tmp_path / "store.db").write_bytes(b"no database" * 1000)
    with pytest.raises(StoreError, match=r"cannot (open|read)"):
        make(tmp_path)


def test_a_missing_store_cannot_be_read_and_is_not_made(tmp_path: Path) -> None:
    """A query never leaves files behind."""
    with pytest.raises(StoreError, match="cannot read"):
        StoreReader(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_state_path_may_hold_what_a_url_may_not(tmp_path: Path) -> None:
    """The reader opens by URI; `?`, `#` and `%` are letters of a folder's name."""
    directory = tmp_path / "50% done? #1"
    directory.mkdir()
    store = Store(directory)
    store.commit(Batch({"name": "a"}))
    store.close()
    assert reader(directory).run() == {"name": "a"}


def test_odd_names_and_huge_numbers_do_not_stop_the_store(store: Store, tmp_path: Path) -> None:
    """A path that is not UTF-8, an inode of 64 bits, a step that is no step."""
    odd = entry("/runs/\udcff.pt", identity=Identity("/runs/\udcff.pt", 2**64 - 1, 5, 6))
    big = record(1, step=10**30)
    store.commit(Batch(alerts=[alert(body="\udcff")], records=[big], checkpoints=[odd]))
    assert reader(tmp_path).checkpoints() == [odd]
    assert reader(tmp_path).records() == [big]
    store.commit(Batch(forgotten=[odd.identity]))
    assert reader(tmp_path).checkpoints() == []


def test_what_cannot_be_stored_is_refused_and_the_next_is_not(store: Store, tmp_path: Path) -> None:
    """Half a transaction is none, and the writer lives on."""
    with pytest.raises(StoreError, match="cannot write"):
        store.commit(Batch(incidents=[incident(1), incident(2**64)]))
    store.commit(Batch(incidents=[incident(3)]))
    assert [found.id for found in reader(tmp_path).incidents()] == [3]


def test_a_commit_that_takes_too_long_is_given_up_and_leaves_no_trace(
    store: Store, tmp_path: Path
) -> None:
    """The caller acts from memory after about a second; nothing is written twice later."""
    blocker = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    began = time.monotonic()
    with pytest.raises(StoreError, match="does not answer"):
        store.commit(Batch(incidents=[incident(1)], alerts=[alert(1)]))
    assert 0.9 < time.monotonic() - began < 2.9
    began = time.monotonic()
    with pytest.raises(StoreError, match="still does not answer"):
        store.commit(Batch(incidents=[incident(2)]))
    assert time.monotonic() - began < 0.5  # each kill would have to wait otherwise
    blocker.execute("ROLLBACK")
    blocker.close()
    until = time.monotonic() + 10
    while True:  # the writer needs a moment to give the old one up
        try:
            store.commit(Batch(incidents=[incident(3)], alerts=[alert(3)]))
            break
        except StoreError:
            assert time.monotonic() < until
    assert [found.id for found in reader(tmp_path).incidents()] == [3]
    assert [row.incident for row in reader(tmp_path).outbox()] == [3]


def test_a_reserve_that_was_cut_short_is_completed(tmp_path: Path) -> None:
    """A start on a full disk must not cost the reserve of every later one."""
    (tmp_path / "reserve").write_bytes(b"x")
    Store(tmp_path).close()
    assert (tmp_path / "reserve").stat().st_size == RESERVE_BYTES
