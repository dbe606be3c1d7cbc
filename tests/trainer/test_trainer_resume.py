"""Resuming: the run goes on as if it had never stopped."""

from __future__ import annotations

import json
import shutil

import pytest
from trainer_lab import Lab, series


def hashes(lab: Lab, step: int) -> dict[str, str]:
    manifest = json.loads((lab.checkpoint(step) / "manifest.json").read_text())
    return {name: file["sha256"] for name, file in manifest["files"].items()}


@pytest.mark.parametrize("accum", [1, 2], ids=["one micro-batch", "two micro-batches"])
def test_resumed_run_repeats_losses_and_weights_bit_for_bit(lab: Lab, accum: int) -> None:
    """Steps 9-16 after a resume from 8 give the very floats, and files, of the unbroken run."""
    flags = ("--steps", 16, "--save-every", 8, "--accum", accum)
    whole = lab.run(*flags)
    first = hashes(lab, 16)
    shutil.rmtree(lab.checkpoint(16))
    again = lab.run(*flags, "--resume", lab.checkpoint(8))
    for key in ("loss", "grad_norm", "lr"):
        expected = {step: value for step, value in series(whole, key).items() if step > 8}
        assert series(again, key) == expected
    assert hashes(lab, 16) == first


def test_environment_wins_over_the_resume_flag(lab: Lab) -> None:
    """The watchdog's checkpoint is taken, whatever the command line says; empty means neither."""
    lab.run("--steps", 4, "--save-every", 2)
    flags = ("--steps", 5, "--resume", lab.checkpoint(4))
    assert lab.run(*flags, resume=lab.checkpoint(2))[0]["step"] == 2
    assert lab.run(*flags, resume="")[0]["step"] == 4


def test_newer_checkpoints_survive_a_rollback_until_overwritten(lab: Lab) -> None:
    """Rotation counts only what lies at or before the current step; the same name is replaced."""
    lab.run("--steps", 8, "--save-every", 2)
    inode = lab.checkpoint(4).stat().st_ino
    lab.run("--steps", 5, "--save-every", 2, "--keep", 1, "--resume", lab.checkpoint(2))
    assert lab.checkpoints() == [5, 6, 8]
    lab.run("--steps", 6, "--save-every", 2, "--keep", 0, "--resume", lab.checkpoint(5))
    assert lab.checkpoints() == [5, 6, 8]
    lab.run("--steps", 4, "--save-every", 2)
    assert lab.checkpoints() == [2, 4, 5, 6, 8]
    assert lab.checkpoint(4).stat().st_ino != inode
    assert not list(lab.checkpoint(4).parent.glob(".*"))


def test_finished_run_resumed_at_its_last_step_does_nothing(lab: Lab) -> None:
    """A resume at --steps exits 0 with a hello and no step."""
    lab.run("--steps", 2)
    records = lab.run("--steps", 2, "--resume", lab.checkpoint(2))
    assert [record["event"] for record in records] == ["hello"]


def test_checkpoint_of_another_size_is_refused(
    lab: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    """A checkpoint of `tiny` cannot go on as `small`: exit 2, with the flag that mends it."""
    lab.run("--steps", 1)
    status, _ = lab.status("--steps", 2, "--preset", "small", "--resume", lab.checkpoint(1))
    assert status == 2
    assert "--preset tiny" in capsys.readouterr().err
