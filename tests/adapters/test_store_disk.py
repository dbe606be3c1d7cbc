"""The store on a small disk of its own: full, and read-only."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from overnight.adapters.store import RESERVE_BYTES, Store, StoreReader
from overnight.core.orders import Batch
from overnight.errors import StoreError
from store_lab import incident, record


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 12 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m", "none", place]).returncode:
        pytest.skip("may not mount a file system here")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


def fill(disk: Path) -> None:
    """Leave no free byte."""
    with contextlib.suppress(OSError), (disk / "log").open("ab", buffering=0) as out:
        while True:
            out.write(b"x" * 4096)
    assert shutil.disk_usage(disk).free == 0


def test_a_full_disk_gets_the_reserve_and_the_incident_is_written(disk: Path) -> None:
    """When that is spent too, the refusal is an error of ours, and what was written stays."""
    store = Store(disk)
    store.commit(Batch({"name": "a"}))
    assert (disk / "reserve").stat().st_size == RESERVE_BYTES
    fill(disk)
    big = incident(evidence={"lines": "x" * (1 << 20)})
    store.commit(Batch(incidents=[big]))
    assert not (disk / "reserve").exists()
    assert StoreReader(disk).incidents() == [big]
    fill(disk)
    with pytest.raises(StoreError, match="full"):
        store.commit(Batch(incidents=[incident(2, evidence={"lines": "x" * (4 << 20)})]))
    assert [found.id for found in StoreReader(disk).incidents()] == [1]
    (disk / "log").unlink()
    store.commit(Batch(incidents=[incident(3)], records=[record(1)]))
    assert [found.id for found in StoreReader(disk).incidents()] == [1, 3]
    store.close()


def test_a_closed_store_can_be_read_where_nothing_can_be_written(disk: Path) -> None:
    """Another user's, or on a read-only disk: opened as immutable."""
    store = Store(disk)
    store.commit(Batch({"name": "a"}, [incident()]))
    store.close()
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    memory = StoreReader(disk).memory()
    assert memory is not None
    assert memory.incidents == [incident()]
    with pytest.raises(StoreError, match="cannot open"):
        Store(disk)
