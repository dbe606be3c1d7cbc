"""`overnight demo`: the reference trainer under supervision, with a fault, in about half a minute.

Nothing is simulated: a real torch run, a real kill, a real rollback, a real alert over HTTP. The
exit status is 0 only if every point of the check list at the end really happened.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from overnight.cli.phone import Phone
from overnight.errors import UsageError

STEPS, SAVE_EVERY, FAULT_AT = 400, 50, 260
TIMEOUT_S = 600.0


@dataclass(frozen=True)
class Story:
    """A fault of the demo: how it is injected and what must come of it."""

    inject: tuple[str, ...]
    faults: tuple[str, ...]
    action: str
    tale: str
    lr_scale: float = 0.5
    config: str = ""


_NAN_TALE = """\
It is night. A language model trains with gradient clipping off. At step 260 a bad batch makes
the loss NaN, and with it every weight. The script does not notice; without a watchdog it would
run on for hours. Watch what happens:"""

STORIES = {
    "nan": Story((f"nan@{FAULT_AT}",), ("loss-nonfinite",), "rollback", _NAN_TALE),
    "spike": Story(
        (f"spike@{FAULT_AT}",),
        ("loss-spike", "grad-spike"),  # damaged weights show in both; the first to be sure speaks
        "rollback",
        "At step 260 the weights are damaged:",
    ),
    "grad-spike": Story(
        (f"grad-spike@{FAULT_AT}",),
        ("grad-spike",),
        "rollback",
        "At step 260 the gradients grow a thousandfold while the loss looks normal:",
    ),
    "stall": Story(
        (f"stall@{FAULT_AT}",),
        ("stall",),
        "restart",
        "At step 260 the worker hangs (the limit is set to 5 s instead of 15 min for the demo):",
        lr_scale=1.0,
        config="[detect.stall]\nfloor_s = 5\nwitness_s = 3\n",
    ),
    "crash": Story(
        (f"crash@{FAULT_AT}",), ("crash",), "restart", "At step 260 the script crashes:", 1.0
    ),
    "oom": Story(
        (f"cuda-oom@{FAULT_AT}",),
        ("cuda-oom",),
        "restart",
        "At step 260 the script dies of the error that CUDA raises when its memory is used up:",
        lr_scale=1.0,
    ),
    "corrupt-checkpoint": Story(
        ("corrupt-checkpoint@240", f"crash@{FAULT_AT}"),
        ("crash",),
        "restart",
        "The newest checkpoint has a flipped bit when the script crashes at step 260:",
        lr_scale=1.0,
    ),
}


@click.command(short_help="See it heal a real run, in about half a minute.")
@click.option("--fault", type=click.Choice(list(STORIES)), default="nan", show_default=True)
@click.option("--dir", "directory", type=click.Path(path_type=Path), help="Default: a new one.")
def demo(fault: str, directory: Path | None) -> int:
    """Train a tiny model on the CPU under supervision, break it on purpose, and watch.

    Needs PyTorch: in this environment, or in the interpreter that TORCH_PYTHON names.
    """
    story = STORIES[fault]
    python = torch_python()
    place = directory or Path(tempfile.mkdtemp(prefix="overnight-demo-"))
    place.mkdir(parents=True, exist_ok=True)
    click.secho(story.tale, bold=True)
    click.echo()
    phone = Phone(lambda text: click.secho(f"\nYour phone:\n{text}\n", fg="green"))
    try:
        status = _supervised(place, story, python=python, receiver=phone.url)
        incidents = _ask(place, "incidents")
        state = _ask(place, "status")["runs"][0]
    finally:
        phone.close()
    for command in ("status", "incidents", "checkpoints"):
        click.secho(f"\n$ overnight {command}", bold=True)
        subprocess.run([*_overnight(), command, "demo"], env=_env(place), check=False)
    passed = _report(check(story, status, incidents, state, phone.messages))
    click.echo(f"\nEverything it wrote is in {place}")
    return 0 if passed else 1


def torch_python() -> str:
    """An interpreter that can import torch. Raises UsageError with what to install."""
    named = os.environ.get("TORCH_PYTHON")
    if named is None and importlib.util.find_spec("torch") is not None:
        return sys.executable
    probe = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"
    for candidate in [named] if named else ["python3", "python"]:
        try:
            found = subprocess.run([candidate, "-c", probe], check=False, capture_output=True)
        except OSError:
            continue
        if found.returncode == 0:
            return candidate
    raise UsageError(
        f"{named} cannot import torch" if named else "the demo needs PyTorch",
        hint="TORCH_PYTHON=/path/to/python overnight demo, or install torch beside Overnight",
    )


def _overnight() -> list[str]:
    return [sys.executable, "-P", "-m", "overnight"]


def _env(place: Path) -> dict[str, str]:
    return {**os.environ, "OVERNIGHT_STATE_DIR": str(place / "state")}


def _trainer() -> str:
    """The reference trainer's directory; Python runs it as it stands, in any environment."""
    found = importlib.util.find_spec("overnight_trainer")
    if found is None or not found.submodule_search_locations:
        raise UsageError("overnight_trainer is not installed beside overnight")
    return found.submodule_search_locations[0]


def _supervised(place: Path, story: Story, *, python: str, receiver: str) -> int:
    """Run `overnight run` on the reference trainer, live in this terminal."""
    config = place / "overnight.toml"
    pattern = place / "out" / "checkpoints" / "step_*"
    config.write_text(
        f"[checkpoints]\nglob = {json.dumps(str(pattern))}\n\n"
        f"[notify]\nreceivers = [{json.dumps(receiver)}]\n\n{story.config}"
    )
    worker = [python, _trainer(), "--preset", "tiny", "--out", str(place / "out")]
    worker += ["--steps", str(STEPS), "--save-every", str(SAVE_EVERY), "--keep", "0"]
    worker += ["--clip", "0", "--threads", "1", "--log-every", "20"]
    for injected in story.inject:
        worker += ["--inject", injected]
    command = [*_overnight(), "run", "--config", str(config), "--name", "demo", "--echo"]
    command += ["--fresh", "--", *worker]
    env = _env(place) | {"FORCE_COLOR": ""}
    return subprocess.run(command, env=env, check=False, timeout=TIMEOUT_S).returncode


def _ask(place: Path, command: str) -> Any:
    """The JSON answer of one of our own commands."""
    argv = [*_overnight(), command, "demo", "--json"]
    answer = subprocess.run(argv, env=_env(place), check=False, capture_output=True)
    return json.loads(answer.stdout)


def check(
    story: Story,
    status: int,
    incidents: list[dict[str, Any]],
    state: dict[str, Any],
    messages: list[dict[str, Any]],
) -> list[tuple[str, bool]]:
    """What must have happened, and whether it did."""
    found = [incident for incident in incidents if incident["fault"] in story.faults]
    incident: dict[str, Any] = found[0] if found else {}
    checkpoint = incident.get("checkpoint") or {}
    onset = incident.get("onset_step") or incident.get("detected_step") or 0
    points = [
        ("the run completed (exit 0)", status == 0 and state["state"] == "completed"),
        (f"it reached step {STEPS}", state["step"] == STEPS),
        (f"one incident, {' or '.join(story.faults)}", len(incidents) == len(found) == 1),
        (f"answered by a {story.action}", incident.get("action") == story.action),
        (
            f"from a checkpoint of before the fault (step {checkpoint.get('step')})",
            0 < (checkpoint.get("step") or 0) < onset,
        ),
        (
            f"learning rate x1 -> x{story.lr_scale:g}",
            incident.get("lr_scale_after") == state["lr_scale"] == story.lr_scale,
        ),
        ("one alert reached the phone", len(messages) == 1),
    ]
    if story.lr_scale != 1.0:
        points.insert(6, ("proved by the log", incident.get("lr_proof") == "proved"))
    return points


def _report(points: list[tuple[str, bool]]) -> bool:
    click.secho("\nWhat really happened:", bold=True)
    for text, held in points:
        click.secho(f"  {'ok  ' if held else 'FAIL'} {text}", fg="green" if held else "red")
    return all(held for _, held in points)
