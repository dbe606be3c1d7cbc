"""The vault: a copy that neither rotation nor overwriting can reach, or a reason why not."""

from __future__ import annotations

import os
import stat
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from overnight.adapters.checkpoints.complete import identity_of
from overnight.adapters.checkpoints.vault import Vault
from overnight.core.events import CheckpointSecured
from reports import Reports
from waiting import wait_until


class Safe:
    """A vault and what it reports."""

    def __init__(self) -> None:
        self.reports = Reports()
        self.vault = Vault(name="nano", report=self.reports.put, clock=lambda: 7.0)

    def secure(self, path: Path, beside: Path, *, linkable: bool) -> CheckpointSecured:
        """The report about a copy of what is at `path` now."""
        identity = identity_of(path)
        assert identity is not None
        self.vault.secure(identity, beside=beside, linkable=linkable)
        answer = self.reports.next()
        assert isinstance(answer, CheckpointSecured)
        assert (answer.at, answer.identity) == (7.0, identity)
        return answer

    def path(self, path: Path, beside: Path, *, linkable: bool) -> Path:
        """Where the copy is, which must exist."""
        answer = self.secure(path, beside, linkable=linkable)
        assert answer.vault_path is not None, answer.reason
        return Path(answer.vault_path)


@pytest.fixture
def ckpts(tmp_path: Path) -> Path:
    """A folder with one checkpoint."""
    folder = tmp_path / "ckpts"
    folder.mkdir()
    (folder / "step_100.pt").write_bytes(b"weights")
    return folder


def leftovers(beside: Path) -> list[Path]:
    """Every file in the vault."""
    return [path for path in (beside / ".overnight-vault").rglob("*") if not path.is_dir()]


def test_a_link_survives_the_scripts_own_rotation(ckpts: Path, tmp_path: Path) -> None:
    """It costs nothing, keeps the name, and lies where no pattern looks."""
    safe = Safe()
    answer = safe.secure(ckpts / "step_100.pt", tmp_path, linkable=True)
    assert answer.method in {"hard link", "reflink"}
    copy = Path(answer.vault_path or "")
    assert copy.name == "step_100.pt"
    assert copy.is_relative_to(tmp_path / ".overnight-vault" / "nano")
    (ckpts / "step_100.pt").unlink()
    assert copy.read_bytes() == b"weights"
    assert stat.S_IMODE(copy.parent.stat().st_mode) == 0o700


def test_a_copy_survives_overwriting_in_place(ckpts: Path, tmp_path: Path) -> None:
    """torch.save to a fixed name rewrites the inode, and every hard link with it."""
    copy = Safe().path(ckpts / "step_100.pt", tmp_path, linkable=False)
    with (ckpts / "step_100.pt").open("r+b") as same_inode:
        same_inode.write(b"garbage")
    assert copy.read_bytes() == b"weights"


def test_a_directory_is_copied_whole(ckpts: Path, tmp_path: Path) -> None:
    """With folders in it; a symbolic link becomes what it leads to, for its target may go."""
    folder = ckpts / "checkpoint-500"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "shard.bin").write_bytes(b"shard")
    (folder / "model.safetensors").symlink_to("../step_100.pt")
    for linkable in (True, False):
        copy = Safe().path(folder, tmp_path, linkable=linkable)
        (ckpts / "step_100.pt").rename(ckpts / "away")
        assert (copy / "deep" / "shard.bin").read_bytes() == b"shard"
        assert (copy / "model.safetensors").read_bytes() == b"weights"
        (ckpts / "away").rename(ckpts / "step_100.pt")


def test_securing_again_gives_the_same_place(ckpts: Path, tmp_path: Path) -> None:
    """Asked twice after a restart of the supervisor."""
    safe = Safe()
    first = safe.path(ckpts / "step_100.pt", tmp_path, linkable=True)
    assert safe.path(ckpts / "step_100.pt", tmp_path, linkable=False) == first
    assert leftovers(tmp_path) == [first]


def test_two_checkpoints_of_one_moment_do_not_share_a_place(ckpts: Path, tmp_path: Path) -> None:
    """File systems count in ticks of milliseconds; releasing one must keep the other."""
    safe = Safe()
    other = ckpts / "ema_100.pt"
    other.write_bytes(b"ema")
    for path in (other, ckpts / "step_100.pt"):
        os.utime(path, ns=(10**18, 10**18))
    first = safe.path(ckpts / "step_100.pt", tmp_path, linkable=True)
    second = safe.path(other, tmp_path, linkable=True)
    safe.vault.release(str(first))
    wait_until(lambda: not first.exists(), first.parent.parent)
    assert second.read_bytes() == b"ema"


def test_what_has_changed_already_is_refused(ckpts: Path, tmp_path: Path) -> None:
    """The vault holds what was verified, or nothing."""
    identity = identity_of(ckpts / "step_100.pt")
    assert identity is not None
    (ckpts / "step_100.pt").write_bytes(b"other bytes")
    safe = Safe()
    safe.vault.secure(identity, beside=tmp_path, linkable=False)
    answer = safe.reports.next()
    assert (answer.vault_path, answer.method) == (None, "none")
    assert answer.reason == "it was overwritten while being copied"
    assert leftovers(tmp_path) == []


def test_what_changes_while_it_is_copied_is_refused(ckpts: Path, tmp_path: Path) -> None:
    """A writer that never rests: a mixture of old and new is not kept."""
    path = ckpts / "big.pt"
    path.write_bytes(b"x" * (32 << 20))
    stop, writing = threading.Event(), threading.Event()

    def write() -> None:
        with path.open("r+b", buffering=0) as out:
            while not stop.is_set():
                out.seek(0)
                out.write(b"y" * 4096)
                writing.set()

    writer = threading.Thread(target=write)
    writer.start()
    assert writing.wait(20)
    safe = Safe()
    answer = safe.secure(path, tmp_path, linkable=False)
    stop.set()
    writer.join(20)
    assert answer.vault_path is None
    assert leftovers(tmp_path) == []


def test_a_missing_source_is_a_reason(ckpts: Path, tmp_path: Path) -> None:
    """It was rotated away before its turn came."""
    identity = identity_of(ckpts / "step_100.pt")
    assert identity is not None
    (ckpts / "step_100.pt").unlink()
    safe = Safe()
    safe.vault.secure(identity, beside=tmp_path, linkable=True)
    assert safe.reports.next().reason == "no protected copy: No such file or directory"
    assert leftovers(tmp_path) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MiB: never a gigabyte free."""
    place = tmp_path / "disk"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", place]).returncode:
        pytest.skip("may not mount a file system here")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


@pytest.mark.parametrize("kind", ["file", "directory"])
def test_too_little_space_is_a_reason_and_leaves_nothing(small_disk: Path, kind: str) -> None:
    """A full disk would kill the training that we protect; half a copy would fill it."""
    source = small_disk / "ckpts" / "step_100"
    source.parent.mkdir()
    if kind == "directory":
        source.mkdir()
        (source / "a").write_bytes(b"x" * (1 << 20))
    else:
        source.write_bytes(b"x" * (1 << 20))
    answer = Safe().secure(source, small_disk, linkable=False)
    assert answer.reason == "no protected copy: not enough free disk space"
    assert leftovers(small_disk) == []


@pytest.mark.parametrize(
    "place",
    [
        "precious/file",
        "x/.overnight-vault/file",
        "x/.overnight-vault/nano/file",
        "x/.overnight-vault/other/1/file",
        "x/.overnight-vault/nano/1/../../../../precious/file",
    ],
)
def test_release_removes_nothing_but_our_own_copies(tmp_path: Path, place: str) -> None:
    """A path from an old or damaged store must not cost anybody's data."""
    path = tmp_path / place
    (tmp_path / "x/.overnight-vault/nano/1").mkdir(parents=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"precious")
    before = threading.active_count()
    Safe().vault.release(str(path))
    assert threading.active_count() == before  # removal would be under way
    assert path.read_bytes() == b"precious"
