"""The user's checkpoints before and after a drill: every way in which a script may change them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from overnight.adapters.checkpoints.keepsake import KEEPSAKE, Keepsake


def keepsake(workdir: Path, *patterns: str) -> Keepsake:
    """What keeps the checkpoints of a run in this folder."""
    return Keepsake(
        name="nano", practice="nano-drill", patterns=patterns, workdir=workdir, roots=[workdir]
    )


def tree(folder: Path) -> dict[str, object]:
    """Everything that can be seen: links, and files with bytes and time."""
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if KEEPSAKE in name:
            continue
        if path.is_symlink():
            found[name] = path.readlink()
        elif path.is_file():
            saved = path.suffix in (".pt", ".safetensors")  # of others only the words count
            found[name] = (path.read_bytes(), path.stat().st_mtime_ns if saved else None)
    return found


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """A folder with two numbered checkpoints, one fixed name, a directory and a link."""
    folder = tmp_path / "out"
    folder.mkdir()
    for name in ("ckpt-100.pt", "ckpt-200.pt", "ckpt.pt"):
        (folder / name).write_bytes(name.encode())
    (folder / "ckpt-300").mkdir()
    (folder / "ckpt-300" / "trainer_state.json").write_text("{}")
    (folder / "ckpt-300" / "model.safetensors").write_bytes(b"weights")
    (folder / "latest").symlink_to("ckpt-200.pt")
    (folder / "last_checkpoint").write_text("ckpt-200.pt")
    (folder / "notes.txt").write_text("mine")
    return folder


def rewritten(out: Path) -> None:
    with (out / "ckpt.pt").open("r+b") as file:
        file.write(b"other")


def begun_again(out: Path) -> None:
    """From step 0, into the same inode."""
    with (out / "ckpt-100.pt").open("r+b") as file:
        file.write(b"other")


def replaced(out: Path) -> None:
    (out / "new").write_bytes(b"other")
    (out / "new").rename(out / "ckpt.pt")


def rotated(out: Path) -> None:
    (out / "ckpt-100.pt").unlink()
    shutil.rmtree(out / "ckpt-300")


def added(out: Path) -> None:
    (out / "ckpt-400.pt").write_bytes(b"of the drill")
    (out / "ckpt-500").mkdir()
    (out / "ckpt-500" / "model.safetensors").write_bytes(b"half of it")


def relinked(out: Path) -> None:
    added(out)
    (out / "latest").unlink()
    (out / "latest").symlink_to("ckpt-400.pt")
    (out / "last_checkpoint").write_text("ckpt-400.pt")


def unlinked(out: Path) -> None:
    (out / "latest").unlink()


def wiped(out: Path) -> None:
    for path in out.glob("ckpt*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


@pytest.mark.parametrize(
    "change",
    [
        rewritten,
        begun_again,
        replaced,
        rotated,
        added,
        relinked,
        unlinked,
        wiped,
        lambda _out: None,
    ],
)
def test_as_it_was(tmp_path: Path, out: Path, change: Callable[[Path], None]):
    before = tree(out)
    kept = keepsake(tmp_path, "out/ckpt*")
    assert kept.take() == 4
    change(out)
    assert kept.put_back() is not None
    assert tree(out) == before
    assert kept.put_back() is None
    assert not (tmp_path / KEEPSAKE / "nano").exists()


def test_what_the_drill_saved_is_moved_not_deleted(tmp_path: Path, out: Path):
    kept = keepsake(tmp_path, "out/ckpt*")
    kept.take()
    added(out)
    assert kept.put_back() == 2
    saved = {path.name for path in kept.drilled.rglob("*")}
    assert {"ckpt-400.pt", "ckpt-500", "model.safetensors"} <= saved


def test_its_vault_and_quarantine_go_with_it(tmp_path: Path, out: Path):
    kept = keepsake(tmp_path, "out/ckpt*")
    kept.take()
    for folder in (".overnight-vault", ".overnight-quarantine"):
        (tmp_path / folder / "nano-drill" / "1-2").mkdir(parents=True)
        (tmp_path / folder / "nano-drill" / "1-2" / "ckpt-400.pt").write_bytes(b"x")
    (tmp_path / ".overnight-vault" / "nano").mkdir()
    assert kept.put_back() == 1
    assert not (tmp_path / ".overnight-quarantine").exists()
    assert [path.name for path in (tmp_path / ".overnight-vault").iterdir()] == ["nano"]


def test_a_drill_that_was_killed_is_undone_by_another_process(tmp_path: Path, out: Path):
    before = tree(out)
    keepsake(tmp_path, "out/ckpt*").take()
    wiped(out)
    added(out)
    assert keepsake(tmp_path, "out/ckpt*").put_back() == 2
    assert tree(out) == before


def test_a_pretrained_model_stays_where_the_script_loads_it(tmp_path: Path):
    """Without a pattern: it cannot be told from a checkpoint, so it is kept and not moved."""
    model = tmp_path / "pretrained.pt"
    model.write_bytes(b"gpt2")
    os.utime(model, (1, 1))
    kept = keepsake(tmp_path)
    assert kept.take() == 1
    assert model.read_bytes() == b"gpt2"
    (tmp_path / "ckpt.pt").write_bytes(b"of the drill")
    assert kept.put_back() == 1
    assert [path.name for path in tmp_path.glob("*.pt")] == ["pretrained.pt"]


def test_no_room_changes_nothing(tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch):
    before = tree(out)
    free = shutil.disk_usage(tmp_path)._replace(free=0)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: free)
    kept = keepsake(tmp_path, "out/ckpt*")
    with pytest.raises(OSError, match="no room to keep a copy"):
        kept.take()
    assert tree(out) == before
    assert kept.put_back() is None
