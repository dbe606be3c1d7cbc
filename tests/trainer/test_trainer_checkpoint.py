"""Checkpoint files: complete, verified, never half."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from trainer_lab import Lab

from overnight_trainer import CheckpointError, checkpoint

PARTS = {
    "model.pt": {"w": torch.arange(1000.0)},
    "optimizer.pt": {"step": 3},
    "state.pt": {"step": 3},
}


def flip_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "flipped byte": (
        lambda path: flip_a_byte(path / "model.pt"),
        "model.pt does not match its SHA-256",
    ),
    "truncated file": (
        lambda path: os.truncate(path / "optimizer.pt", 100),
        "optimizer.pt has 100 bytes of",
    ),
    "missing file": (lambda path: (path / "state.pt").unlink(), "state.pt"),
    "no manifest": (lambda path: (path / "manifest.json").unlink(), "manifest.json"),
    "torn manifest": (lambda path: (path / "manifest.json").write_text('{"fo'), "manifest.json"),
    "odd manifest": (lambda path: (path / "manifest.json").write_text("[]"), "manifest.json"),
    "manifest without files": (
        lambda path: (path / "manifest.json").write_text(
            '{"format": "overnight-trainer/1", "files": {}}'
        ),
        "manifest.json",
    ),
    "another format": (
        lambda path: (path / "manifest.json").write_text('{"format": "x/9", "files": {}}'),
        "has format 'x/9'",
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_found_before_anything_is_loaded(tmp_path: Path, name: str) -> None:
    """Each kind of damage is one line that names the checkpoint and the file."""
    path = checkpoint.save(tmp_path, 3, PARTS)
    damage, expected = DAMAGE[name]
    damage(path)
    with pytest.raises(CheckpointError) as caught:
        checkpoint.load(path)
    assert expected in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["flipped byte", "no manifest"])
def test_broken_checkpoint_ends_the_run_with_exit_3(
    lab: Lab, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """The trainer does not start from a broken checkpoint, and says why in one line."""
    lab.run("--steps", 1)
    DAMAGE[name][0](lab.checkpoint(1))
    status, records = lab.status("--steps", 2, "--resume", lab.checkpoint(1))
    assert (status, records) == (3, [])
    assert capsys.readouterr().err.count("\n") == 1


def test_absent_checkpoint_is_exit_3(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    """A path that does not exist is named."""
    assert lab.status("--steps", 2, resume="/no/such/step_1")[0] == 3
    assert "/no/such/step_1 is missing" in capsys.readouterr().err


def test_failed_save_leaves_no_checkpoint_and_the_old_one_intact(tmp_path: Path) -> None:
    """What cannot be written has no name; the checkpoint that was there still verifies."""
    path = checkpoint.save(tmp_path, 3, PARTS)
    with pytest.raises(Exception, match="pickle"):
        checkpoint.save(tmp_path, 3, {**PARTS, "state.pt": lambda: None})
    with pytest.raises(Exception, match="pickle"):
        checkpoint.save(tmp_path, 4, {**PARTS, "state.pt": lambda: None})
    assert [path.name for path in tmp_path.glob("step_*")] == ["step_00000003"]
    checkpoint.verify(path)


def test_replacing_never_writes_into_the_old_files(tmp_path: Path) -> None:
    """A hard link to an older file keeps its content when the same step is saved again."""
    path = checkpoint.save(tmp_path, 3, PARTS)
    vaulted = tmp_path / "vaulted.pt"
    vaulted.hardlink_to(path / "model.pt")
    checkpoint.save(tmp_path, 3, {**PARTS, "model.pt": {"w": torch.zeros(1000)}})
    assert torch.equal(torch.load(vaulted)["w"], torch.arange(1000.0))


def test_rotation_keeps_the_newest_and_sweeps_leftovers(tmp_path: Path) -> None:
    """`keep` counts checkpoints; half-written ones go, and what was renamed aside is not ours."""
    for step in (1, 2, 3):
        checkpoint.save(tmp_path, step, PARTS)
    (tmp_path / ".tmp-step_00000009").mkdir()
    (tmp_path / "step_00000001.suspect").mkdir()
    checkpoint.rotate(tmp_path, keep=2, step=3)
    kept = ["step_00000001.suspect", "step_00000002", "step_00000003"]
    assert sorted(path.name for path in tmp_path.iterdir()) == kept
    checkpoint.rotate(tmp_path, keep=0, step=3)
    assert sorted(path.name for path in tmp_path.iterdir()) == kept


def test_files_hold_tensors_and_plain_values_only(lab: Lab) -> None:
    """Every file loads with weights_only; the manifest has the sizes and was written last."""
    lab.run("--steps", 3)
    path = lab.checkpoint(3)
    manifest = json.loads((path / "manifest.json").read_text())
    assert (manifest["format"], manifest["step"]) == ("overnight-trainer/1", 3)
    assert set(manifest["files"]) == {"model.pt", "optimizer.pt", "state.pt"}
    written = (path / "manifest.json").stat().st_mtime_ns
    for name, file in manifest["files"].items():
        torch.load(path / name, weights_only=True)
        assert (path / name).stat().st_size == file["bytes"]
        assert (path / name).stat().st_mtime_ns <= written
    model, _, state = checkpoint.load(path)
    assert all(isinstance(tensor, torch.Tensor) for tensor in model.values())
    assert (state["step"], state["position"], state["lr_scale"]) == (3, 6, 1.0)
