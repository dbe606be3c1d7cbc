"""Every way to resume, with real processes: by itself, by a patched file, by a whole command."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest

from overnight_box import OVERNIGHT

WORKERS = Path(__file__).parents[1] / "workers"
PYTHON = os.environ.get("TORCH_PYTHON") or sys.executable
NAN = ("--steps", "320", "--fault", "nan@260")


def healed(box) -> int:
    """The step of a healthy checkpoint from which the one incident was healed, at half the rate."""
    [incident] = box.incidents()
    assert incident["fault"] == "loss-nonfinite"
    assert incident["lr_proof"] == "proved"
    step = incident["checkpoint"]["step"]
    assert incident["outcome"].startswith(f"resumed from step {step}")
    assert 100 <= step <= 160  # 100 clean steps followed it, as far as the poll could tell
    return step


@pytest.mark.parametrize("link", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_script_that_takes_its_newest(box, link):
    """The poisoned steps 260 and 280 are out of its sight; a link to them leads to 160."""
    command = box.command(*NAN, "--latest", "--stride", "1", "--save-every", "20")
    if link:
        box.out.mkdir()
        (box.out / "latest").symlink_to("step_260.safetensors")
    (box.workdir / "overnight.toml").write_text('[resume]\nmode = "latest"\nargs = "--lr {lr}"\n')
    done = box.run(command, resume=None)
    assert done.status == 0, done.err
    step = healed(box)
    quarantined = [row for row in box.json("checkpoints", "night") if row["quarantined"]]
    names = {Path(row["path"]).stem for row in quarantined}
    assert names >= {f"step_{n}" for n in range(step + 20, 261, 20)}
    assert all(Path(row["quarantine_path"]).is_file() for row in quarantined)
    assert box.checkpoints()[step]["health"] == "healthy"
    if link:
        assert (box.out / "latest").readlink() == Path(f"step_{step}.safetensors")
    assert "--resume" not in box.starts()[1]["argv"]


@pytest.mark.slow
def test_a_script_with_one_file_for_ever(box):
    """It was overwritten with NaN; the older bytes are back under its name."""
    (box.workdir / "overnight.toml").write_text('[resume]\nmode = "latest"\nargs = "--lr {lr}"\n')
    slowly = ("--step-s", "0.01", "--save-every", "40")  # each save is verified before the next
    done = box.run(box.command(*NAN, "--latest", "--fixed-name", *slowly), resume=None)
    assert done.status == 0, done.err
    assert f"Step {healed(box) + 1} " in box.log(2)


def test_a_quarantined_checkpoint_can_be_put_back(box):
    box.run(box.command(*NAN))
    aside = [row for row in box.json("checkpoints", "night") if row["quarantined"]]
    first = aside[0]
    assert not Path(first["path"]).exists() or first["path"] in {r["path"] for r in aside}
    wrong = box.overnight("checkpoints", "night", "--restore", "nonsense")
    assert wrong.status == 2
    assert "no quarantined checkpoint is called nonsense" in wrong.err
    Path(first["path"]).unlink(missing_ok=True)
    shown = box.overnight("checkpoints", "night").out
    assert "at risk now: nothing, the run is complete" in shown
    assert "1 fault in " in shown
    assert "the script saves every " in shown
    done = box.overnight("checkpoints", "night", "--restore", first["quarantine_path"])
    assert done.status == 0, done.err
    assert Path(first["path"]).is_file()


@pytest.mark.slow
def test_a_flag_that_the_script_ignores(box):
    """It would train from step 1 over its own checkpoints: it is stopped after two lines."""
    done = box.run(box.command(*NAN, "--deaf", "--step-s", "0.02"))
    assert done.status == 1
    assert re.search(r"did not resume from step \d+: it went on at step 1 again", done.err)
    assert "healed" not in done.err
    numeric, startup = box.incidents()
    assert (numeric["fault"], startup["fault"]) == ("loss-nonfinite", "startup-failure")
    assert startup["needs_you"]
    assert len(box.starts()) == 2


def test_values_in_a_copy_of_the_scripts_config(box):
    config = box.workdir / "train.toml"
    config.write_text("[train]\nlr = 3e-4  # peak\n")
    (box.workdir / "overnight.toml").write_text(
        '[resume]\nconfig = "train.toml"\n'
        '[resume.config_values]\n"train.resume" = "{checkpoint}"\n"train.lr" = "{lr}"\n'
    )
    done = box.run(box.command(*NAN, "--config", "train.toml"), resume=None)
    assert done.status == 0, done.err
    healed(box)
    assert config.read_text() == "[train]\nlr = 3e-4  # peak\n"
    argv = box.starts()[1]["argv"]
    copy = Path(argv[argv.index("--config") + 1])
    assert copy.is_relative_to(box.state)
    assert "lr = 0.00015  # peak" in copy.read_text()


@pytest.mark.slow
def test_a_whole_command(box):
    command = box.command(*NAN)
    other = [*command[:-4], "--steps", "320", "--resume", "{checkpoint}", "--lr", "{lr}"]
    lines = ["[resume]", f"command = {json.dumps(other)}", "base_lr = 3e-4"]
    (box.workdir / "overnight.toml").write_text("\n".join(lines))
    done = box.run(command, resume=None)
    assert done.status == 0, done.err
    healed(box)


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ('[resume]\nconfig = "no.toml"\nconfig_values = {lr = "{lr}"}', "does not name this file"),
        ('[resume]\nrecipe = "yolo"', "no recipe called yolo"),
        ('[resume]\nmode = "newest"', "resume.mode"),
        ('[policy.crash]\ntell = ["pager"]', "no receiver has this tag or kind"),
        ('[resume]\nargs = "--x {chekpoint}"', "unknown placeholder {chekpoint}"),
    ],
)
def test_a_mistake_is_told_before_the_start(box, config, problem):
    (box.workdir / "overnight.toml").write_text(config + "\n")
    done = box.run(box.command("--steps", "5"), resume=None)
    assert done.status == 2
    assert problem in done.err
    assert not box.starts()


@pytest.mark.slow
def test_a_script_of_nanogpts_kind_needs_nothing(box):
    """Recognised by its command: one ckpt.pt that is overwritten for ever, and no --resume."""
    (box.workdir / "train.py").write_text((WORKERS / "nano_train.py").read_text())
    (box.workdir / "config").mkdir()
    (box.workdir / "config" / "train_tiny.py").write_text("max_iters = 400\n")
    command = [PYTHON, "train.py", "config/train_tiny.py", "--learning_rate=1e-2"]
    done = box.call([*OVERNIGHT, "run", "--name", "night", "--", *command])
    assert done.status == 0, done.err
    assert "recipe nanogpt" in done.err
    step = healed_from(box)
    assert "Resuming training from out" in box.log(2)
    assert f"iter {step}: loss" in box.log(2)
    assert box.log(2).splitlines()[-1] == "finite True lr 0.005"


def healed_from(box) -> int:
    """The step of the one critical incident's checkpoint."""
    [incident] = [i for i in box.incidents() if i["severity"] == "critical"]
    assert incident["lr_proof"] == "proved"
    step = incident["checkpoint"]["step"]
    assert step in (120, 160)
    return step
