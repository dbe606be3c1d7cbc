"""Discovery: each checkpoint once, when it is complete, and never half of one."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from discovery_lab import HOUR_S, SILENT_S, Watch, begun, rename_into
from overnight.adapters.checkpoints.complete import identity_of

Watching = Callable[..., Watch]


def test_an_atomic_rename_is_seen_at_its_moment(watching: Watching, ckpts: Path) -> None:
    """Not when a poll noticed, and with the step of its name."""
    watch = begun(watching("ckpts/*.pt"), ckpts)
    before = time.time()
    seen = watch.seen(rename_into(ckpts / "step_150.pt"))
    assert before <= seen.saved_utc <= time.time()
    assert (seen.step, seen.format, seen.in_place) == (150, "pt", False)


def test_a_slow_write_is_not_reported_before_its_close(watching: Watching, ckpts: Path) -> None:
    """Not even when its writer pauses for longer than two polls."""
    watch = begun(watching("ckpts/*.pt"), ckpts)
    with (ckpts / "step_2.pt").open("wb", buffering=0) as out:
        out.write(b"half")
        assert watch.reports.silent_for(SILENT_S)
        out.write(b" and half")
    assert watch.seen(ckpts / "step_2.pt").identity.size_bytes == 13


@pytest.mark.parametrize(
    "name", [".step_2.pt", "tmp_2.pt", "step_2.tmp.pt", "step_2_tmp.pt", "step_2.pt~", "2.pt.part"]
)
def test_temporary_names_are_never_reported(watching: Watching, ckpts: Path, name: str) -> None:
    """Neither when closed nor when they lie there."""
    watch = begun(watching("ckpts/*"), ckpts)
    (ckpts / name).write_bytes(b"x")
    watch.seen(rename_into(ckpts / "step_3.pt"))
    assert watch.reports.silent_for(0.1)


def test_rewritten_in_place_is_gone_first_and_then_seen_so(watching: Watching, ckpts: Path) -> None:
    """torch.save to a fixed name: same inode, other bytes, same size."""
    watch = begun(watching("ckpts/*.pt"), ckpts)
    old = identity_of(ckpts / "step_1.pt")
    (ckpts / "step_1.pt").write_bytes(b"other")
    assert watch.gone(ckpts / "step_1.pt").identity == old
    assert watch.seen(ckpts / "step_1.pt").in_place
    assert watch.reports.silent_for(0.1)


def test_a_long_rewrite_is_gone_once_and_seen_when_closed(watching: Watching, ckpts: Path) -> None:
    """The poll sees the loss; the close brings the new one."""
    watch = begun(watching("ckpts/*.pt"), ckpts)
    with (ckpts / "step_1.pt").open("wb", buffering=0) as out:
        out.write(b"half of it")
        watch.gone(ckpts / "step_1.pt")
        assert watch.reports.silent_for(SILENT_S)
    assert watch.seen(ckpts / "step_1.pt").in_place


def test_replaced_by_rename_is_not_in_place(watching: Watching, ckpts: Path) -> None:
    """The old bytes live on in a hard link."""
    watch = begun(watching("ckpts/*.pt"), ckpts)
    rename_into(ckpts / "step_1.pt", b"other")
    watch.gone(ckpts / "step_1.pt")
    assert not watch.seen(ckpts / "step_1.pt").in_place


@pytest.mark.parametrize("how", ["unlink", "rename"])
def test_a_checkpoint_that_leaves_is_gone(watching: Watching, ckpts: Path, how: str) -> None:
    """Deleted or moved away, at once; what comes there next was not rewritten in place."""
    watch = begun(watching("ckpts/*.pt"), ckpts)
    path = ckpts / "step_1.pt"
    if how == "unlink":
        path.unlink()
    else:
        path.rename(ckpts / "old")
    watch.gone(path)
    path.write_bytes(b"again")
    assert not watch.seen(path).in_place


def test_a_folder_that_appears_later_is_watched(watching: Watching, tmp_path: Path) -> None:
    """Also one that is removed and made again, and one below a wildcard."""
    watch = watching("out/ckpts/*.pt", "runs/*/ckpts/*.pt")
    for number in (1, 2):
        folder = tmp_path / "out" / "ckpts"
        folder.mkdir(parents=True)
        path = rename_into(folder / f"step_{number}.pt")
        late = watch.reports.next()  # the folder may be found by a poll
        assert late.identity == identity_of(path)
        watch.seen(rename_into(folder / f"step_{number + 10}.pt"))
        shutil.rmtree(tmp_path / "out")
        assert {watch.reports.next().identity.path for _ in range(2)} == {
            str(path),
            str(folder / f"step_{number + 10}.pt"),
        }
    deep = tmp_path / "runs" / "a" / "ckpts"
    deep.mkdir(parents=True)
    assert watch.reports.silent_for(SILENT_S)  # polls find the folders, there is nothing in them
    watch.seen(rename_into(deep / "step_1.pt"))


def test_a_directory_is_complete_with_its_marker(watching: Watching, ckpts: Path) -> None:
    """It grows for long; its files are not checkpoints of their own."""
    watch = begun(watching("ckpts/*"), ckpts)
    folder = ckpts / "checkpoint-500"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"m" * 10)
    assert watch.reports.silent_for(SILENT_S)
    (folder / "optimizer.pt").write_bytes(b"o" * 10)
    (folder / "trainer_state.json").write_bytes(b"{}")
    seen = watch.seen(folder)
    assert (seen.step, seen.format, seen.identity.size_bytes) == (500, "directory", 22)
    shutil.rmtree(folder)
    watch.gone(folder)


def test_a_directory_without_a_marker_must_be_quiet_for_long(
    watching: Watching, ckpts: Path
) -> None:
    """Its moment is that of its last file; an empty one is nothing."""
    for name, age_s in (("step_2", 0), ("step_3", HOUR_S / 4)):
        (ckpts / name).mkdir()
        (ckpts / name / "weights.bin").touch()
        os.utime(ckpts / name / "weights.bin", (time.time() - age_s,) * 2)
    (ckpts / "step_4").mkdir()
    watch = watching("ckpts/*")
    paths = {watch.reports.next().identity.path for _ in range(2)}
    assert paths == {str(ckpts / "step_1.pt"), str(ckpts / "step_3")}
    assert watch.reports.silent_for(SILENT_S)


def test_a_renamed_directory_is_complete(watching: Watching, ckpts: Path) -> None:
    """With or without a marker that we know."""
    watch = begun(watching("ckpts/*"), ckpts)
    temp = ckpts / ".tmp-step_20"
    temp.mkdir()
    (temp / "weights.bin").write_bytes(b"w")
    watch.seen(temp.rename(ckpts / "step_20"))


def test_what_is_known_is_not_reported_again(watching: Watching, ckpts: Path) -> None:
    """A supervisor that starts again; what has left meanwhile is gone."""
    kept, lost = ckpts / "step_1.pt", ckpts / "step_2.pt"
    lost.touch()
    known = [identity_of(kept), identity_of(lost)]
    lost.unlink()
    watch = watching("ckpts/*.pt", known=known)
    watch.gone(lost)
    kept.write_bytes(b"other")
    watch.gone(kept)
    assert watch.seen(kept).in_place
