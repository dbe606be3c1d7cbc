"""Ways to start the trainer, and what it says when it cannot."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from trainer_lab import TRAINER, Lab, series

from overnight_trainer.__main__ import main


def python(*argv: str, **env: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, *argv]
    return subprocess.run(
        command, env={**clean, **env}, capture_output=True, text=True, timeout=60, check=False
    )


def test_folder_run_does_not_see_its_neighbours(lab: Lab) -> None:
    """Started by path from a folder of packages, it takes nothing else from that folder."""
    packages = lab.folder / "site-packages"
    shutil.copytree(TRAINER / "overnight_trainer", packages / "overnight_trainer")
    for name in ("torch", "typing_extensions", "overnight"):
        (packages / f"{name}.py").write_text("raise SystemExit('the neighbour was imported')")
    done = python(str(packages / "overnight_trainer"), *lab.argv("--steps", 1))
    assert (done.returncode, done.stderr) == (0, "")
    assert lab.checkpoints() == [1]


def test_without_torch_it_says_what_to_install() -> None:
    """One line and exit 2; --help needs no PyTorch. -S hides the installed packages."""
    done = python("-S", "-m", "overnight_trainer", PYTHONPATH=str(TRAINER))
    assert done.returncode == 2
    assert done.stderr == ("overnight_trainer needs PyTorch >= 2.4: pip install torch\n")
    assert python("-S", str(TRAINER / "overnight_trainer"), "--help").returncode == 0


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--preset", "huge"], "choose one of tiny, small, base, large"),
        (["--data", "/no/such/file"], "check --data"),
    ],
)
def test_mistakes_are_one_line_and_exit_2(
    lab: Lab, capsys: pytest.CaptureFixture[str], flags: list[str], says: str
) -> None:
    """The line says what would be right."""
    assert lab.status(*flags)[0] == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    "flags", ["--steps 0", "--batch -1", "--lr nan", "--lr fast", "--device tpu", "--save-every 0"]
)
def test_bad_arguments_name_the_flag(capsys: pytest.CaptureFixture[str], flags: str) -> None:
    """argparse's usage, and the flag with the reason."""
    with pytest.raises(SystemExit) as caught:
        main(flags.split())
    assert caught.value.code == 2
    assert flags.split(maxsplit=1)[0] in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.slow
def test_two_ranks_train_as_one(lab: Lab) -> None:
    """Under torchrun two ranks of batch 1 see what one of batch 2 sees; the first one reports."""
    flags = lab.argv("--steps", 4, "--batch", 1, "--inject", "spike@4")
    launch = ["--standalone", "--nproc-per-node", "2", "-m", "overnight_trainer"]
    together = lab.folder / "together.jsonl"
    done = python(
        *("-m", "torch.distributed.run", *launch, *flags),
        PYTHONPATH=str(TRAINER),
        OVERNIGHT_METRICS=str(together),
        OVERNIGHT_LR_SCALE="0.5",
    )
    assert done.returncode == 0, done.stderr
    records = [json.loads(line) for line in Path(together).read_text().splitlines()]
    assert [record["event"] for record in records if "event" in record].count("hello") == 1
    (lab.out / ".injected-spike@4").unlink()
    alone = lab.run("--steps", 4, "--inject", "spike@4", lr_scale="0.5")
    assert series(records, "loss") == pytest.approx(series(alone, "loss"), rel=1e-4)
    assert series(records, "lr") == series(alone, "lr")
