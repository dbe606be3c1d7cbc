"""Unmodified framework scripts with the probe inside, in an environment without Overnight.

`make test-slow` makes that environment and names its Python in FRAMEWORKS_PYTHON.
"""

from __future__ import annotations

import csv
import json
import math
import os
import re
from pathlib import Path

import pytest

from overnight_box import OVERNIGHT

WORKERS = Path(__file__).parents[1] / "workers"
PROBE = Path(__file__).parents[2] / "watchdog"
PYTHON = os.environ.get("FRAMEWORKS_PYTHON", "")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON, reason="FRAMEWORKS_PYTHON is not set: use make test-slow"),
]


def run(box, script):
    """(records, the two JSON lines that the script ends with)."""
    (box.workdir / "train.py").write_text((WORKERS / script).read_text())
    done = box.run([PYTHON, "train.py"], "--probe", resume=None, timeout_s=110)
    assert done.status == 0, done.err
    said = [
        json.loads(line)
        for line in box.log(1).splitlines()
        if line.startswith(('{"fin', "[[", "[{"))
    ]
    state, truth = said
    assert state == {"finite": True, "overnight": False}
    [incident] = box.incidents()
    assert (incident["severity"], incident["action"]) == ("warning", "notify")
    return [line for line in box.metrics(1) if "loss" in line], truth


def test_the_hugging_face_trainer(box):
    """Accelerate, clipping and gradient accumulation: what the Trainer logs itself is reported."""
    records, history = run(box, "hf_trainer.py")
    assert [r["step"] for r in records] == list(range(1, 501))
    logged = [entry for entry in history if "grad_norm" in entry]
    assert len(logged) == 50
    for entry in logged:
        here = records[entry["step"] - 1]
        assert float(entry["grad_norm"]) == pytest.approx(here["grad_norm"], rel=1e-3, nan_ok=True)
        window = [r["loss"] for r in records[entry["step"] - 10 : entry["step"]]]
        if all(map(math.isfinite, window)):  # the Trainer writes its own idea of a NaN
            assert float(entry["loss"]) == pytest.approx(sum(window) / 10, rel=1e-3)
    assert sum(r.get("skipped", False) for r in records) == 2  # one bad example, two epochs


def test_lightning(box):
    """The optimizer is given a closure; the schedule goes on; each number is the script's own."""
    records, truth = run(box, "lightning_script.py")
    assert len(records) == len(truth) == 500
    seen = [(r["loss"], r["grad_norm"]) for r in records]
    assert seen == [pytest.approx(tuple(pair), rel=1e-5, nan_ok=True) for pair in truth]
    assert (records[0]["lr"], records[-1]["lr"]) == (0.01, 0.005)
    assert sum(r.get("skipped", False) for r in records) == 2


RESTART = """
[checkpoints]
confirm_steps = 20
[policy.loss-nonfinite]
in_flight = "never"
[probe.guard]
skip_nonfinite = false
[budget]
backoff_s = 0.1
"""


@pytest.mark.parametrize("script", ["hf_resume.py", "lightning_resume.py"])
def test_a_trainer_resumes_without_a_flag(box, script):
    """A crash, then NaN: the probe hands the chosen checkpoint to a script that never asks."""
    (box.workdir / "train.py").write_text((WORKERS / script).read_text())
    (box.workdir / "overnight.toml").write_text(RESTART)
    argv = [*OVERNIGHT, "run", "--name", "night", "--probe", "--", PYTHON, "train.py"]
    done = box.call(argv, timeout_s=110)
    assert done.status == 0, done.err
    assert "can resume (the script cooperates), learning rate can be lowered" in done.err
    crash, poisoned = [i for i in box.incidents() if i["severity"] == "critical"]
    assert (crash["fault"], crash["action"], crash["checkpoint"]["step"]) == (
        "crash",
        "restart",
        125,
    )
    assert (poisoned["fault"], poisoned["action"]) == ("loss-nonfinite", "rollback")
    assert (poisoned["lr_scale_after"], poisoned["lr_proof"]) == (0.5, "proved")
    target = poisoned["checkpoint"]["step"]
    assert target in (225, 200)
    starts = [next(r["step"] for r in box.metrics(n) if "loss" in r) for n in (2, 3)]
    assert starts == [126, target + 1]
    assert json.loads(box.log(3).splitlines()[-1])["finite"]
    assert box.status()["total_steps"] == 500
    phases = [line["name"] for line in box.metrics(3) if line.get("event") == "phase"]
    assert "save" in phases


FLAGS = """
[checkpoints]
glob = "{glob}"
confirm_steps = 20
[resume]
args = "{args}"
"""
CSV = """
[metrics]
source = "file"
path = "out/lightning_logs/version_*/metrics.csv"
"""


def rates(text: str) -> dict[int, float]:
    """The learning rates that the Hugging Face Trainer has printed, by the count of its lines."""
    found = re.findall(r"'learning_rate': '?([\d.e-]+)", text)
    return {10 * number: float(rate) for number, rate in enumerate(found, start=1)}


def test_the_hugging_face_trainer_by_flags(box):
    """No probe: NaN, rollback, and its own log shows half the rate at the same steps."""
    (box.workdir / "train.py").write_text((WORKERS / "hf_flags.py").read_text())
    args = "--resume_from_checkpoint {checkpoint} --lr_scale {lr_scale}"
    (box.workdir / "overnight.toml").write_text(
        FLAGS.replace("{glob}", "out/checkpoint-*").replace("{args}", args)
    )
    argv = [*OVERNIGHT, "run", "--name", "night", "--", PYTHON, "train.py"]
    done = box.call(argv, timeout_s=110)
    assert done.status == 0, done.err
    [incident] = [i for i in box.incidents() if i["severity"] == "critical"]
    assert (incident["action"], incident["lr_proof"]) == ("rollback", "proved")
    assert incident["outcome"].startswith("resumed from step")
    target = int(incident["checkpoint"]["path"].rpartition("-")[2])  # the log prints no steps
    assert 150 <= target <= 225
    before, after = rates(box.log(1)), rates(box.log(2))
    first = target - target % 10  # the first line is of the next ten steps
    shared = {n: rate for n, rate in after.items() if first + n in before}
    assert len(shared) >= 3
    for number, rate in shared.items():
        assert rate == pytest.approx(before[first + number] / 2, rel=0.02)
    assert json.loads(box.log(2).splitlines()[-1]) == {"finite": True, "overnight": False}


def test_a_script_like_hugging_faces_examples_needs_no_flag(box):
    """Recognised by its command: the recipe resumes it, the probe lowers its rate."""
    (box.workdir / "train.py").write_text((WORKERS / "hf_example.py").read_text())
    (box.workdir / "overnight.toml").write_text(RESTART)
    flags = "--output_dir out --do_train --per_device_train_batch_size 8 --learning_rate 1e-2"
    flags += " --gradient_accumulation_steps 2 --num_train_epochs 2 --save_steps 25"
    flags += " --logging_steps 10 --report_to none --use_cpu true --disable_tqdm true"
    argv = [*OVERNIGHT, "run", "--name", "night", "--probe", "--", PYTHON, "train.py"]
    done = box.call([*argv, *flags.split()], timeout_s=110)
    assert done.status == 0, done.err
    assert "recipe hf-trainer" in done.err
    [incident] = [i for i in box.incidents() if i["severity"] == "critical"]
    assert (incident["action"], incident["lr_proof"]) == ("rollback", "proved")
    lists = [line for line in box.log(2).splitlines() if line.startswith("[")]
    given = json.loads(lists[0])
    assert given[given.index("--resume_from_checkpoint") + 1] == incident["checkpoint"]["path"]
    assert json.loads(box.log(2).splitlines()[-1])["finite"]


def test_lightning_by_flags(box):
    """No probe, and nothing printed: its own CSV file is read, and shows half the rate."""
    (box.workdir / "train.py").write_text((WORKERS / "lightning_flags.py").read_text())
    args = "--ckpt {checkpoint} --lr-scale {lr_scale}"
    pattern = "out/lightning_logs/version_*/checkpoints/*.ckpt"
    config = FLAGS.replace("{glob}", pattern).replace("{args}", args) + CSV
    (box.workdir / "overnight.toml").write_text(config)
    argv = [*OVERNIGHT, "run", "--name", "night", "--", PYTHON, "train.py"]
    done = box.call(argv, timeout_s=110)
    assert done.status == 0, done.err
    [incident] = [i for i in box.incidents() if i["severity"] == "critical"]
    assert (incident["action"], incident["lr_proof"]) == ("rollback", "proved")
    assert incident["outcome"].startswith("resumed from step")
    logs = sorted(box.workdir.glob("out/lightning_logs/version_*/metrics.csv"))
    first, second = (list(csv.DictReader(log.open())) for log in logs)
    before = {row["step"]: float(row["lr"]) for row in first}
    shared = [row for row in second if row["step"] in before]
    assert len(shared) >= 3
    assert all(float(row["lr"]) == pytest.approx(before[row["step"]] / 2) for row in shared)
    assert json.loads(box.log(2).splitlines()[-1]) == {"finite": True, "overnight": False}


BY_HAND = """
import sys
sys.path.insert(0, "PROBE")
from overnight_probe.callbacks import CALLBACK
"""


@pytest.mark.parametrize(
    ("script", "callback", "where"),
    [
        ("hf_trainer.py", "HuggingFaceCallback", "trainer.add_callback(HuggingFaceCallback())\n"),
        (
            "lightning_script.py",
            "LightningCallback",
            "trainer.callbacks.append(LightningCallback())\n",
        ),
    ],
)
def test_a_callback_by_hand_needs_no_probe(box, script, callback, where):
    """Exact numbers of each step, the length, and a NaN that the trainer would not print."""
    text = (WORKERS / script).read_text()
    head = BY_HAND.replace("PROBE", str(PROBE)).replace("CALLBACK", callback)
    begin = text.index("trainer.train()") if "hf" in script else text.index("trainer.fit(")
    (box.workdir / "train.py").write_text(head + text[:begin] + where + text[begin:])
    argv = [*OVERNIGHT, "run", "--name", "night", "--", PYTHON, "train.py"]
    done = box.call(argv, timeout_s=110)
    assert "HALTED" in done.err
    assert box.incidents()[-1]["fault"] in ("loss-nonfinite", "collapse")
    assert box.status()["total_steps"] == 500
    records = [line for line in box.metrics(1) if "loss" in line]
    assert records[0]["step"] in (1, 10)


@pytest.mark.parametrize("name", ["HuggingFaceCallback", "LightningCallback"])
def test_a_callback_without_overnight_does_nothing(box, name):
    """The script with the callback in it runs as before."""
    code = (
        f"import sys; sys.path.insert(0, {str(PROBE)!r});"
        f"from overnight_probe.callbacks import {name}; {name}().teller.saved('x', 1)"
    )
    assert box.call([PYTHON, "-c", code], timeout_s=60).status == 0
