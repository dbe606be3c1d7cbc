"""Faults that must not be healed by guessing: halt, keep the evidence, tell a person."""

from __future__ import annotations

from pathlib import Path

import pytest

from receivers import Recorder


def test_no_resume_route_secures_halts_and_pages(box):
    """A script that cannot resume is never started again: that would overwrite its checkpoints."""
    with Recorder() as phone:
        done = box.run(
            box.command("--fault", "nan@230"), "--notify", phone.url("json"), resume=None
        )
        [message] = phone.wait(1, timeout_s=5)
    assert done.status == 1
    assert len(box.starts()) == 1
    [incident] = box.incidents()
    assert (incident["action"], incident["needs_you"]) == ("halt", True)
    kept = Path(incident["checkpoint"]["path"])
    assert ".overnight-vault" in kept.parts
    assert kept.name == "step_120.safetensors"
    assert kept.read_bytes() == (box.out / "step_120.safetensors").read_bytes()
    assert "--resume-args" in message.json["message"]
    assert "needs you" in message.json["title"]
    assert "no resume route" in done.err.splitlines()[2]
    assert box.overnight("status", "night").status == 1
    assert box.overnight("ack", "night").out == "acknowledged #1\n"


def test_crash_without_a_route_is_not_restarted_over_its_checkpoints(box):
    """The same for a crash once checkpoints exist."""
    done = box.run(box.command("--fault", "crash@230"), resume=None)
    assert done.status == 1
    assert len(box.starts()) == 1
    assert box.incidents()[0]["checkpoint"]["step"] == 220


def test_crash_before_any_checkpoint_starts_from_scratch(box):
    """With nothing to overwrite, a crash is simply started again."""
    done = box.run(box.command("--fault", "crash@15", "--steps", "60"), resume=None)
    assert done.status == 0, done.err
    assert len(box.starts()) == 2


def test_numeric_fault_before_any_checkpoint_halts(box):
    """There is nothing to go back to; starting over is the person's choice."""
    done = box.run(box.command("--fault", "nan@10", "--save-every", "500"))
    assert done.status == 1
    [incident] = box.incidents()
    assert incident["action"] == "halt"
    assert incident["checkpoint"] is None


def test_checkpoints_after_the_onset_are_never_used(box):
    """Only poisoned checkpoints exist: suspect, and no target; the run halts."""
    # The spike begins at 232 and is certain ten records later; the only save is in between.
    done = box.run(box.command("--fault", "spike@232", "--save-every", "235", "--steps", "400"))
    assert done.status == 1
    [incident] = box.incidents()
    assert incident["action"] == "halt"
    assert "no checkpoint from before the onset (step 232)" in incident["outcome"]
    assert box.checkpoints()[235]["health"] == "suspect"


def test_poisoned_checkpoints_are_suspect_and_listed_with_the_reason(box):
    """What is saved after the onset is finite, and still suspect; what was saved before is not."""
    done = box.run(box.command("--fault", "spike@236", "--steps", "290"), "--observe")
    assert done.status == 0, done.err
    found = box.checkpoints()
    for step in (240, 260, 280):
        assert found[step]["health"] == "suspect"
        assert "at or after the onset of" in found[step]["reason"]
    assert found[120]["health"] == "healthy"
    assert found[220]["health"] == "verified"


@pytest.mark.slow
def test_overwriting_in_place_does_not_take_the_vaulted_copy_along(box):
    """torch.save to a fixed name writes NaN into the same inode: the vault's copy stays whole."""
    done = box.run(
        box.command("--fault", "nan@230", "--fixed-name", "--save-every", "40", "--step-s", "0.01"),
    )
    assert done.status == 0, done.err
    [incident] = box.incidents()
    kept = Path(incident["checkpoint"]["path"])
    assert ".overnight-vault" in kept.parts
    assert kept.name == "model.safetensors"  # the script sees the name it knows
    assert incident["checkpoint"]["step"] < 230


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["python3", "-c", "import no_such_module_at_all"], "no_such_module_at_all"),
        (["python3", "no_such_script.py"], "no_such_script.py"),
        (["python3", "-c", "open('/nope/data.bin')"], "/nope/data.bin"),
    ],
    ids=["missing module", "missing script", "missing file"],
)
def test_startup_failure_is_not_retried(box, command, words):
    """A worker that can never start is started once; the error's last line is told."""
    with Recorder() as phone:
        done = box.run(command, "--notify", phone.url("json"), resume=None)
        [message] = phone.wait(1, timeout_s=5)
    assert done.status == 1
    [incident] = box.incidents()
    assert incident["fault"] == "startup-failure"
    assert box.status()["attempt"] == 1
    assert words in done.err
    assert words in message.json["message"]


def test_same_unknown_death_before_the_first_record_halts_at_the_second(box):
    """It may be bad luck once."""
    done = box.run(["python3", "-c", "import os; print('loading'); os._exit(7)"], resume=None)
    assert done.status == 1
    assert box.status()["attempt"] == 2


def test_observing_never_acts(box):
    """--observe tells what it would do, and lets the worker train on."""
    with Recorder() as phone:
        done = box.run(
            box.command("--fault", "nan@230"), "--observe", "--notify", phone.url("json")
        )
        messages = phone.wait(1, timeout_s=5)
    assert "only observing; would rollback" in messages[-1].json["message"]
    assert done.status == 0, done.err
    [incident] = box.incidents()
    assert incident["action"] == "notify"
    assert "would rollback" in done.err
    assert len(box.starts()) == 1
