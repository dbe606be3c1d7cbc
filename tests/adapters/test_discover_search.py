"""What discovery takes for a checkpoint: by pattern, by the default rules, by announcement."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from discovery_lab import HOUR_S, SILENT_S, Watch, begun, rename_into
from overnight.adapters.checkpoints.complete import being_written
from overnight.adapters.checkpoints.naming import step_of

Watching = Callable[..., Watch]


def test_without_patterns_new_checkpoints_of_the_folder_are_found(
    watching: Watching, tmp_path: Path
) -> None:
    """By suffix or marker; no pretrained model, no package, no single file of a directory."""
    for old in ("pretrained.pt", "venv/lib/x.pt", "site-packages/torch/y.pth"):
        path = tmp_path / old
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        os.utime(path, (1000, 1000))
    (tmp_path / "venv" / "lib" / "new.pt").touch()
    (tmp_path / "manifest.json").touch()  # a web page's, say: the folder is no checkpoint
    watch = watching(since_utc=time.time() - 2 * HOUR_S)
    hf = tmp_path / "out" / "checkpoint-500"
    hf.mkdir(parents=True)
    for name in ("model.safetensors", "optimizer.pt", "rng_state_0.pth", "notes.txt"):
        (hf / name).write_bytes(b"x")
    assert watch.reports.silent_for(SILENT_S)
    (hf / "trainer_state.json").write_bytes(b"{}")
    assert watch.seen(hf).step == 500
    watch.seen(rename_into(tmp_path / "ckpt_12000.pt"))
    assert watch.reports.silent_for(0.1)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """One that any user may enter (a start of pytest closes its own to others), called tmp…."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_a_folder_that_may_not_be_read_hides_nothing_else(open_folder: Path) -> None:
    """As an ordinary user: one closed folder must not end every search."""
    if os.getuid() != 0:
        pytest.skip("only root can make a folder that another user may not read")
    shut = open_folder / "lost+found"
    shut.mkdir(mode=0o700)
    (open_folder / "step_1.pt").touch()
    code = (
        "import os, sys, queue; from pathlib import Path\n"
        "from overnight.adapters.checkpoints.discover import CheckpointWatcher\n"
        "os.setuid(65534); found = queue.Queue()\n"
        "CheckpointWatcher(patterns=(), workdir=Path(sys.argv[1]), since_utc=0,"
        " report=found.put).start()\n"
        "print(found.get(timeout=20).identity.path)"
    )
    argv = [sys.executable, "-c", code, str(open_folder)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == str(open_folder / "step_1.pt"), done.stderr


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("**/*.pt", "a/b/step_7.pt"),
        ("ckpt[0-9]/step_?.pt", "ckpt3/step_7.pt"),
        ("[!a]*/step_*.pt", "b/step_7.pt"),
        ("*", "step_7.anything"),
    ],
)
def test_patterns_find_by_event_and_by_poll(
    watching: Watching, tmp_path: Path, pattern: str, path: str
) -> None:
    """Wildcards in folders, `**` and classes; one that is there before, one that comes later."""
    first = tmp_path / path
    first.parent.mkdir(parents=True, exist_ok=True)
    first.touch()
    watch = watching(pattern)
    watch.seen(first)
    watch.seen(rename_into(first.with_name(first.name.replace("7", "8"))))


def test_a_folder_with_brackets_in_its_name_is_no_pattern(tmp_path: Path) -> None:
    """`exp[lr=0.1]` is what people call their experiments."""
    workdir = tmp_path / "exp[lr=0.1]*"
    (workdir / "ckpts").mkdir(parents=True)
    (workdir / "ckpts" / "step_1.pt").touch()
    watch = begun(Watch(workdir, ("ckpts/*.pt",)), workdir / "ckpts")
    watch.seen(rename_into(workdir / "ckpts" / "step_2.pt"))
    watch.watcher.close()


def test_symbolic_links_are_other_names_of_what_is_found_anyway(
    watching: Watching, ckpts: Path, tmp_path: Path
) -> None:
    """A `latest` link, to a file or to a folder."""
    (tmp_path / "latest").symlink_to(ckpts)
    (ckpts / "last.pt").symlink_to("step_1.pt")
    watch = begun(watching("**/*.pt"), ckpts)
    watch.seen(rename_into(ckpts / "step_2.pt"))
    (ckpts / "last.pt").unlink()
    (ckpts / "last.pt").symlink_to("step_2.pt")
    assert watch.reports.silent_for(SILENT_S)


def test_an_announcement_needs_no_pattern(watching: Watching, ckpts: Path, tmp_path: Path) -> None:
    """The worker knows best; the same one is not reported twice, a missing one not at all."""
    watch = begun(watching("ckpts/*.pt"), ckpts)
    path = tmp_path / "elsewhere.bin"
    path.write_bytes(b"x")
    watch.watcher.announce(path, step=77)
    assert watch.seen(path).step == 77
    watch.watcher.announce(path, step=77)
    watch.watcher.announce(tmp_path / "missing", step=1)
    assert watch.reports.silent_for(0.2)


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("ckpt_12000.pt", 12000),
        ("checkpoint-500", 500),
        ("step_00000150", 150),
        ("epoch=3-step=1500.ckpt", 1500),
        ("model.safetensors", None),
    ],
)
def test_the_step_is_the_last_number_of_the_name(name: str, step: int | None) -> None:
    """In the spellings of the common frameworks."""
    assert step_of(Path("/runs/7") / name) == step


def test_a_writer_is_seen_and_a_reader_is_not_taken_for_one(tmp_path: Path) -> None:
    """For a file, and for any file in a directory."""
    path = tmp_path / "folder" / "file"
    path.parent.mkdir()
    path.touch()
    with path.open("rb"):
        assert not being_written(path)
    with path.open("ab"):
        assert being_written(path)
        assert being_written(path.parent)
        assert not being_written(tmp_path / "fold")
