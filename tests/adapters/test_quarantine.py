"""Putting the folder in order: real files, links and pointers, and nothing reported of it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from overnight.adapters.checkpoints.complete import identity_of
from overnight.adapters.checkpoints.quarantine import QUARANTINE, restore
from overnight.adapters.checkpoints.shelf import Shelf
from overnight.core.events import CheckpointGone, CheckpointSeen, Identity
from overnight.core.orders import Tidied, Tidying
from reports import Reports


class Folder:
    """A training script's folder under a shelf that watches it."""

    def __init__(self, workdir: Path, *patterns: str) -> None:
        self.out = workdir / "out"
        self.out.mkdir()
        self.reports = Reports()
        self.shelf = Shelf(
            name="nano",
            patterns=patterns,
            workdir=workdir,
            since_utc=time.time() - 5,
            report=self.reports.put,
        )
        self.shelf.start([])

    def save(self, name: str, data: bytes = b"weights") -> Identity:
        """A checkpoint, reported."""
        path = self.out / name
        temp = self.out / f".{name}.tmp"
        temp.write_bytes(data)
        temp.rename(path)
        return self.seen(path)

    def seen(self, path: Path) -> Identity:
        """The report of this path."""
        found = self.reports.next(CheckpointSeen)
        assert found.identity.path == str(path)
        return found.identity

    def tidy(self, aside: list[Identity], target: Identity | None, **more) -> Tidied:
        """The folder in order, and what was reported of it."""
        source = more.pop("source", target.path if target else None)
        latest = more.pop("latest", True)
        order = Tidying(tuple(aside), target, source, latest, since_utc=time.time() - 5)
        self.shelf.tidy(order)
        answer = self.reports.next(Tidied)
        assert not answer.problem
        return answer

    def names(self) -> set[str]:
        """What the script sees."""
        return {path.name for path in self.out.iterdir() if not path.name.startswith(".")}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    made = Folder(tmp_path, "out/ckpt*")
    yield made
    made.shelf.close()


def test_newer_ones_are_moved_kept_and_not_reported_as_lost(folder):
    good, bad = folder.save("ckpt_300.pt"), folder.save("ckpt_400.pt", b"poisoned")
    answer = folder.tidy([bad], good)
    assert folder.names() == {"ckpt_300.pt"}
    ((identity, where),) = answer.moved
    assert identity == bad
    assert Path(where).read_bytes() == b"poisoned"
    assert f"/{QUARANTINE}/nano/" in where
    assert not where.startswith(str(folder.out))  # no glob of the script reaches it
    folder.save("ckpt_310.pt")
    assert not [r for r in folder.reports.rest() if isinstance(r, CheckpointGone)]


def test_what_a_save_that_was_cut_off_has_left_is_moved_too(folder):
    good = folder.save("ckpt_300.pt")
    half = folder.out / "ckpt_400"
    half.mkdir()
    (half / "model.safetensors").write_bytes(b"half")
    other = folder.out / "notes_400.txt"
    other.write_text("mine")
    answer = folder.tidy([], good)
    assert [Path(identity.path).name for identity, _ in answer.moved] == ["ckpt_400"]
    assert folder.names() == {"ckpt_300.pt", "notes_400.txt"}


def test_half_a_directory_without_a_pattern_is_known_by_its_siblings(tmp_path):
    folder = Folder(tmp_path)
    good = folder.out / "checkpoint-300"
    good.mkdir()
    (good / "model.safetensors").write_bytes(b"all")
    (good / "trainer_state.json").write_text("{}")
    identity = folder.seen(good)
    half = folder.out / "checkpoint-400"
    half.mkdir()
    (half / "model.safetensors").write_bytes(b"half")
    answer = folder.tidy([], identity)
    assert [Path(one.path).name for one, _ in answer.moved] == ["checkpoint-400"]
    folder.shelf.close()


def test_an_older_sibling_stays(folder):
    old, good = folder.save("ckpt_200.pt"), folder.save("ckpt_300.pt")
    os.utime(old.path, ns=(good.mtime_ns - 10**9, good.mtime_ns - 10**9))
    folder.tidy([], good)
    assert folder.names() == {"ckpt_200.pt", "ckpt_300.pt"}


@pytest.mark.parametrize("absolute", [False, True])
def test_a_link_to_the_newest_leads_to_the_right_one(folder, absolute):
    good, bad = folder.save("ckpt_300.pt", b"good"), folder.save("ckpt_400.pt")
    link = folder.out / "latest"
    link.symlink_to(Path(bad.path) if absolute else "ckpt_400.pt")
    other = folder.out / "first"
    other.symlink_to("ckpt_300.pt")
    folder.tidy([bad], good)
    assert link.is_symlink()
    assert link.read_bytes() == b"good"
    assert link.readlink().is_absolute() is absolute
    assert other.readlink() == Path("ckpt_300.pt")


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("latest_checkpointed_iteration.txt", "400", "300"),
        ("latest", "ckpt_400.pt\n", "ckpt_300.pt\n"),
        ("last_checkpoint", "out/ckpt_400.pt", "out/ckpt_300.pt"),
        ("last_checkpoint", "{out}/ckpt_400.pt", "{out}/ckpt_300.pt"),
        ("latest", "something else", "something else"),
        ("readme_400.txt", "400", "400"),
    ],
)
def test_a_file_that_names_the_newest_names_the_right_one(folder, name, before, after):
    good, bad = folder.save("ckpt_300.pt"), folder.save("ckpt_400.pt")
    pointer = folder.out / name
    pointer.write_text(before.format(out=folder.out))
    pointer.chmod(0o640)
    folder.tidy([bad], good)
    assert pointer.read_text() == after.format(out=folder.out)
    assert pointer.stat().st_mode & 0o777 == 0o640


def test_without_a_target_nothing_names_what_is_gone(folder):
    bad = folder.save("ckpt_400.pt")
    (folder.out / "latest").symlink_to("ckpt_400.pt")
    (folder.out / "last_step.txt").write_text("400")
    folder.tidy([bad], None)
    assert folder.names() == set()


def test_a_fixed_name_gets_the_right_bytes_and_a_best_one_does_not(folder):
    good = folder.save("ckpt_300.pt", b"good")
    moved = [folder.save("ckpt_last.pt", b"bad"), folder.save("ckpt_best.pt", b"best")]
    folder.tidy(moved, good)
    assert folder.names() == {"ckpt_300.pt", "ckpt_last.pt"}
    assert (folder.out / "ckpt_last.pt").read_bytes() == b"good"
    assert not folder.reports.rest()  # our own copy is nothing new


def test_only_a_script_that_looks_for_its_newest_gets_copies(folder):
    good, bad = folder.save("ckpt_300.pt"), folder.save("ckpt_last.pt")
    folder.tidy([bad], good, latest=False)
    assert folder.names() == {"ckpt_300.pt"}


def test_one_file_overwritten_for_ever_gets_its_older_bytes_back(folder, tmp_path):
    good = folder.save("ckpt.pt", b"good")
    vault = tmp_path / "vault" / "ckpt.pt"
    vault.parent.mkdir()
    vault.write_bytes(b"good")
    os.utime(vault, ns=(good.mtime_ns, good.mtime_ns))
    bad = folder.save("ckpt.pt", b"poisoned")
    answer = folder.tidy([bad], good, source=str(vault))
    path = folder.out / "ckpt.pt"
    assert path.read_bytes() == b"good"
    assert answer.placed == identity_of(path)
    assert answer.placed.mtime_ns == good.mtime_ns
    assert Path(answer.moved[0][1]).read_bytes() == b"poisoned"
    assert vault.stat().st_ino != path.stat().st_ino  # what is overwritten next is not the vault


def test_another_filesystem_in_the_way(tmp_path):
    memory = Path("/dev/shm")
    if not memory.is_dir() or memory.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("no second filesystem")
    mounted = memory / f"overnight-test-{os.getpid()}"
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "out").symlink_to(mounted)
    mounted.mkdir()
    try:
        reports = Reports()
        shelf = Shelf(
            name="nano",
            patterns=["out/ckpt*"],
            workdir=tmp_path / "run",
            since_utc=0,
            report=reports.put,
        )
        path = tmp_path / "run" / "out" / "ckpt_400.pt"
        path.write_bytes(b"bad")
        shelf.tidy(Tidying((identity_of(path),), None, None, latest=False, since_utc=0))
        answer = reports.next(Tidied)
        assert not answer.problem
        assert not path.exists()
        assert (mounted / QUARANTINE).is_dir()
    finally:
        for inner in sorted(mounted.rglob("*"), reverse=True):
            inner.rmdir() if inner.is_dir() else inner.unlink()
        mounted.rmdir()


def test_putting_back(folder):
    good, bad = folder.save("ckpt_300.pt"), folder.save("ckpt_400.pt", b"bad")
    where = Path(folder.tidy([bad], good).moved[0][1])
    assert restore(where) == folder.out / "ckpt_400.pt"
    assert (folder.out / "ckpt_400.pt").read_bytes() == b"bad"
    assert not where.parent.exists()
    assert identity_of(folder.out / "ckpt_400.pt") == bad


def test_putting_back_never_overwrites(folder):
    good, bad = folder.save("ckpt_300.pt"), folder.save("ckpt_400.pt", b"bad")
    where = Path(folder.tidy([bad], good).moved[0][1])
    folder.save("ckpt_400.pt", b"new")
    with pytest.raises(FileExistsError, match="something else"):
        restore(where)
    assert where.read_bytes() == b"bad"
    with pytest.raises(OSError, match="no quarantine"):
        restore(folder.out / "ckpt_400.pt")


def test_no_room_is_a_problem_told(folder, tmp_path):
    good = folder.save("ckpt.pt")
    order = Tidying((), good, str(tmp_path / "not there"), latest=True, since_utc=0)
    folder.shelf.tidy(order)
    assert "not there" in folder.reports.next(Tidied).problem
