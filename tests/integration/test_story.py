"""The story: a real torch run goes NaN at night and is saved."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from receivers import Recorder

TRAINER = Path(__file__).parents[2] / "trainer" / "overnight_trainer"
PYTHON = os.environ.get("TORCH_PYTHON") or sys.executable


@pytest.fixture
def torch_worker(box):
    """The reference trainer's command, in this box."""
    probe = [PYTHON, "-c", "import torch"]
    if subprocess.run(probe, capture_output=True, check=False).returncode != 0:
        pytest.skip("needs torch: make test installs it")

    def command(*arguments: str) -> list[str]:
        argv = [PYTHON, str(TRAINER), "--preset", "tiny", "--out", str(box.out), "--keep", "0"]
        argv += ["--steps", "300", "--save-every", "40", "--clip", "0", "--threads", "1"]
        return [*argv, *arguments]

    return command


def run_argv(box, command: list[str], *flags: str) -> list[str]:
    """`overnight run` with nothing but the pattern: the trainer cooperates."""
    argv = box.run_argv(command, *flags, resume=None)
    pattern = argv.index("--checkpoints") + 1
    argv[pattern] = str(box.out / "checkpoints" / "step_*")
    return argv


def test_nan_at_night(box, torch_worker):
    """Right checkpoint, lr x0.5 in the worker's own metrics, proved, one alert, exit 0."""
    with Recorder() as phone:
        worker = torch_worker("--inject", "nan@215", "--save-every", "24")
        argv = run_argv(box, worker, "--notify", phone.url("json"))
        done = box.call(argv, timeout_s=100)
        phone.wait(1, timeout_s=5)
        assert len(phone.requests) == 1
    assert done.status == 0, done.err
    [incident] = box.incidents()
    assert incident["fault"] == "loss-nonfinite"
    assert incident["onset_step"] == 215
    assert incident["checkpoint"]["step"] == 96  # 120 has only 95 clean steps behind it
    aside = [row for row in box.json("checkpoints", "night") if row["quarantined"]]
    names = {Path(row["path"]).name: row["health"] for row in aside}
    assert set(names) >= {f"step_{step:08d}" for step in (120, 144, 168, 192, 216)}
    assert names["step_00000216"] in ("suspect", "corrupt")  # saved after the onset
    assert (incident["lr_scale_after"], incident["lr_proof"]) == (0.5, "proved")
    before = {m["step"]: m["lr"] for m in box.metrics(1) if "lr" in m}
    after = {m["step"]: m["lr"] for m in box.metrics(2) if "lr" in m}
    assert min(after) == 97
    assert max(after) == 300
    common = sorted(set(before) & set(after))
    assert len(common) > 100
    for step in common:
        assert after[step] == pytest.approx(0.5 * before[step])
    assert box.status()["state"] == "completed"
    assert done.err.splitlines()[2].endswith("learning rate can be lowered")


@pytest.mark.slow
def test_a_flipped_bit_in_the_newest_checkpoint_is_not_resumed_from(box, torch_worker):
    """A checkpoint that was damaged after it was written is corrupt; the one before it is used."""
    faults = ("--inject", "corrupt-checkpoint@190", "--inject", "crash@215")
    done = box.call(run_argv(box, torch_worker(*faults)), timeout_s=100)
    assert done.status == 0, done.err
    [incident] = box.incidents()
    assert incident["checkpoint"]["step"] == 160
    assert "step_00000200 is corrupt" in done.err


@pytest.mark.slow
def test_the_stored_row_is_json_for_everyone(box, torch_worker):
    """NaN in evidence is a string in --json output: any JSON reader can take it."""
    done = box.call(
        run_argv(box, torch_worker("--inject", "nan@215", "--steps", "230")), timeout_s=100
    )
    assert done.status == 0, done.err
    text = box.overnight("incidents", "night", "--json").out

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    [incident] = json.loads(text, parse_constant=refuse)
    assert incident["evidence"]["loss"] == "NaN"
