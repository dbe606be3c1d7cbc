"""`overnight drill`: real kills and resumes on a script of the user's."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from nvml_stub import NvmlStub
from overnight_box import OVERNIGHT, RESUME
from receivers import Recorder
from waiting import wait_until

STORY = Path(__file__).parents[1] / "workers" / "torch_story.py"
PYTHON = os.environ.get("TORCH_PYTHON") or sys.executable
SCRIPT = ("--steps", "100000", "--step-s", "0.02", "--save-every", "20")


def argv(box, *flags: str, resume: str | None = RESUME, script: tuple[str, ...] = SCRIPT):
    """`overnight drill` on the script."""
    found = [*OVERNIGHT, "drill", "--name", "night", "--budget", "0.5"]
    found += ["--checkpoints", str(box.out / "*.safetensors")]
    found += ["--resume-args", resume] if resume else []
    return [*found, *flags, "--", *box.command(*script)]


def practised(box, *flags: str, **more):
    """The table of a drill by its points, and its exit status."""
    done = box.call([*argv(box, "--json", *flags, **more)])
    assert done.out, done.err
    return {point["what"]: point for point in json.loads(done.out)}, done


def test_everything_works(box):
    box.out.mkdir()
    mine = box.out / "step_7.safetensors"
    mine.write_bytes(b"mine, of last week")
    with Recorder() as phone:
        table, done = practised(box, "--notify", phone.url("json"))
    assert done.status == 0, done.err
    assert {point["held"] for point in table.values()} == {True}, table
    assert table["a NaN"]["found"].startswith("dead in 0.")
    assert "resumed from step" in table["a NaN"]["found"]
    assert mine.read_bytes() == b"mine, of last week"
    assert [path.name for path in box.out.glob("*.safetensors")] == [mine.name]
    assert len(box.starts()) == 4
    titles = [request.json["title"] for request in phone.requests]
    assert len(titles) == 3
    assert all("drill: " in title for title in titles)
    assert box.overnight("status", "night-drill").status == 3  # it is no run of its own
    assert (box.state / ".drill" / "night-drill" / "store.db").is_file()


def test_what_does_not_work_is_said_with_what_to_do(box):
    """No route, nobody to tell: the real run would have halted at its first NaN."""
    table, done = practised(box, resume=None)
    assert done.status == 1
    assert not table["a NaN"]["held"]
    assert any("--resume-args" in line for line in table["a NaN"]["advice"])
    assert table["a hanging worker"]["held"] is None
    assert not table["alerts"]["held"]
    assert table["your checkpoints"]["held"]
    assert len(box.starts()) == 1


@pytest.mark.slow
def test_a_script_that_saves_too_rarely(box):
    """All but the resume is proved, and said so."""
    rarely = ("--steps", "100000", "--step-s", "0.02", "--save-every", "50000")
    table, _ = practised(box, "--budget", "0.15", script=rarely)
    assert table["checkpoint"]["held"] is False
    assert "--budget MINUTES" in " ".join(table["checkpoint"]["advice"])
    assert table["a NaN"]["held"] is None
    assert "all but the resume is proved" in table["a NaN"]["found"]


@pytest.mark.slow
def test_a_script_that_ignores_its_flag(box):
    table, _ = practised(box, script=(*SCRIPT, "--deaf"))
    assert table["a NaN"]["held"] is False
    assert "did not resume" in json.dumps(table)


def test_it_refuses_while_the_run_lives(box):
    live = box.start(box.command(*SCRIPT))
    box.first_start()
    done = box.call(argv(box))
    assert done.status == 2
    assert "night is being supervised" in done.err
    live.process.send_signal(signal.SIGTERM)
    live.finish()


def test_a_drill_that_was_killed_is_undone_by_the_next_run(box):
    box.out.mkdir()
    mine = box.out / "step_7.safetensors"
    mine.write_bytes(b"mine, of last week")
    live = box.popen(argv(box))
    wait_until(lambda: len(list(box.out.glob("*.safetensors"))) > 1, box.out)
    mine.unlink()
    live.process.kill()
    live.process.wait()
    for start in box.starts():
        os.kill(start["pid"], signal.SIGKILL)
    done = box.run(box.command("--steps", "5"))
    assert done.status == 0, done.err
    assert "as they were before a drill that was killed" in done.err
    assert mine.read_bytes() == b"mine, of last week"
    assert [path.name for path in Path(box.out).glob("*.safetensors")] == [mine.name]


@pytest.mark.slow
def test_a_snapshot_of_the_probe_does_where_nothing_is_saved(box):
    text = STORY.read_text().replace('torch.save(model.state_dict(), "model.pt")', "pass")
    assert "torch.save" not in text
    (box.workdir / "train.py").write_text(text)
    (box.workdir / "overnight.toml").write_text("[probe.snapshot]\nevery_s = 0.1\n")
    box.env["STEPS"] = "100000"
    command = [*OVERNIGHT, "drill", "--budget", "0.3", "--probe", "--json", "--"]
    done = box.call([*command, PYTHON, "train.py"])
    table = {point["what"]: point for point in json.loads(done.out)}
    assert table["a NaN"]["held"], done.err
    assert table["a NaN"]["found"].startswith("went back in place")
    assert table["lower rate"]["held"]
    assert table["checkpoint"]["held"] is False


@pytest.mark.slow
def test_it_refuses_while_the_card_is_taken(box, tmp_path):
    """Another program computes on it: a drill would disturb both."""
    stub = NvmlStub(tmp_path)
    box.env.update(stub.env())
    stub.set({"gpu0.procs": "4711:1073741824"})
    done = box.call(argv(box))
    assert done.status == 2
    assert "GPU 0" in done.err
    assert "is used by process 4711" in done.err
    assert not box.starts()
