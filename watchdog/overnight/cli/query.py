"""`status`, `incidents`, `checkpoints`: what a run's store and its supervisor know.

Nothing here imports pydantic, psutil or the supervisor: an answer takes a tenth of a second.
"""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

import click

from overnight.adapters.control import ask
from overnight.adapters.lock import is_held
from overnight.adapters.store import StoreReader
from overnight.cli.text import age, number, state_parent
from overnight.core.status import public
from overnight.core.story import Incident, incident_json
from overnight.errors import ControlError, NoSuchRunError, StoreError

NO_HUMAN, NEEDS_HUMAN = 0, 1


def run_directories(name: str | None) -> list[Path]:
    """The state directories of one run, or of all, newest first. Raises NoSuchRunError."""
    parent = state_parent()
    if name is not None:
        found = [parent / name] if (parent / name / "store.db").is_file() else []
    else:
        stores = parent.glob("*/store.db") if parent.is_dir() else []
        found = [store.parent for store in stores if not store.parent.name.startswith(".")]
        found.sort(key=lambda directory: directory.stat().st_mtime, reverse=True)
    if not found:
        what = f"no run called {name}" if name else "no run yet"
        raise NoSuchRunError(f"{what} under {parent}", hint="overnight run -- python train.py")
    return found


def only_directory(name: str | None) -> Path:
    """The one run that is meant; without a name, the newest."""
    return run_directories(name)[0]


def echo_json(value: Any) -> None:
    """Stable JSON: non-finite numbers as strings, null for unknown."""
    click.echo(json.dumps(_plain(value), allow_nan=False))


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


# --- status ---------------------------------------------------------------------------------------


def describe_run(directory: Path) -> dict[str, Any]:
    """One run, from its supervisor if one answers, else from its store."""
    reader = StoreReader(directory)
    try:
        incidents, alerts, row = reader.incidents(), reader.alert_counts(), reader.run()
    finally:
        reader.close()
    alive = is_held(directory)
    live = None
    if alive:
        try:
            live = ask(directory, "status").get("run")
        except ControlError:
            live = None  # hung, or of another version: the store still answers
    snapshot = live or (row or {}).get("snapshot")
    if snapshot is None:
        raise StoreError(f"{directory / 'store.db'} holds no run yet")
    return public(snapshot, now_utc=time.time(), incidents=incidents, alerts=alerts, alive=alive)


@click.command(short_help="How far, how healthy, what would be lost.")
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.option("--watch", is_flag=True, help="Again every two seconds.")
def status(name: str | None, *, as_json: bool, watch: bool) -> int:
    """Say how far a run is, how healthy, and what would be lost if it died now.

    Exit status: 0 healthy, 1 a human is needed, 3 no such run.
    """
    while True:
        runs = [describe_run(directory) for directory in run_directories(name)]
        needy = any(run.pop("needs_you") for run in runs)
        if watch and not as_json:
            click.clear()
        if as_json:
            echo_json({"runs": runs})
        else:
            click.echo("\n\n".join(_screen(run) for run in runs))
        if not watch:
            return NEEDS_HUMAN if needy else NO_HUMAN
        time.sleep(2)


def _screen(run: dict[str, Any]) -> str:
    """One run for a person."""
    total = f" of {run['total_steps']:,}" if run["total_steps"] else ""
    step = "no record yet" if run["step"] is None else f"step {run['step']:,}{total}"
    running = run["state"] in ("starting", "running") and run["eta_s"] is not None
    eta = f", done in {age(run['eta_s'])}" if running else ""
    speed = f", {number(run['steps_per_s'])} steps/s" if run["steps_per_s"] else ""
    since = run["last_metric_age_s"]
    heard = "" if since is None else f" (last heard {age(since)} ago)"
    lines = [
        f"{run['name']}: {run['state']}, attempt {run['attempt']}",
        f"  progress    {step}{speed}{eta}{heard}",
        f"  loss        {number(run['loss'])}   grad norm {number(run['grad_norm'])}",
        f"  lr          {number(run['lr'])} (scale x{run['lr_scale']:g})",
        f"  checkpoint  {_checkpoint_line(run)}",
        f"  at risk     {risk_line(run)}",
        f"  resume      {run['resume_route']}",
        f"  incidents   {run['open_incidents']} open, {run['incidents_24h']} in 24 h",
        f"  alerts      {run['alerts']['waiting']} waiting, {run['alerts']['failed']} failed",
    ]
    lines[7:7] = [f"  gpu {gpu['index']}       {_gpu_line(gpu)}" for gpu in run["gpus"]]
    return "\n".join(lines)


def _checkpoint_line(run: dict[str, Any]) -> str:
    checkpoint, healthy = run["checkpoint"], run.get("healthy_step")
    if checkpoint is None:
        return "none verified yet"
    step = "unknown step" if checkpoint["step"] is None else f"step {checkpoint['step']:,}"
    older = healthy is not None and healthy != checkpoint["step"]
    newest_healthy = f"; the newest healthy one is of step {healthy:,}" if older else ""
    return f"{step}, {checkpoint['health']}, saved {age(checkpoint['age_s'])} ago{newest_healthy}"


def risk_line(run: dict[str, Any]) -> str:
    """What would be lost if the run died now."""
    risk = run["at_risk"]
    if run["state"] == "completed":
        return "nothing, the run is complete"
    steps = "unknown" if risk["steps"] is None else f"{risk['steps']:,} steps"
    return steps if risk["seconds"] is None else f"{steps}, {age(risk['seconds'])}"


def _gpu_line(gpu: dict[str, Any]) -> str:
    used = gpu["memory_used_bytes"]
    memory = "" if used is None else f", {used / 2**30:.1f} GiB used"
    return (
        f"{gpu['name']}: {number(gpu['temperature_c'])} °C, {number(gpu['power_w'])} W,"
        f" {number(gpu['utilization_pct'])} %{memory}"
    )


# --- incidents ------------------------------------------------------------------------------------


@click.command(short_help="What went wrong, and what was done.")
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="One JSON list.")
def incidents(name: str | None, *, as_json: bool) -> int:
    """List the incidents of a run, oldest first."""
    reader = StoreReader(only_directory(name))
    found = reader.incidents()
    reader.close()
    if as_json:
        echo_json([incident_json(incident) for incident in found])
    elif not found:
        click.echo("no incident")
    else:
        click.echo("\n\n".join(_story(incident) for incident in found))
    return 0


def _story(incident: Incident) -> str:
    """One incident for a person."""
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(incident.opened_utc))
    state = "open" if incident.open else "closed"
    lines = [
        f"#{incident.id} {incident.fault} ({incident.severity}, {state}) {when}",
        f"  why      {incident.reason}",
        f"  action   {incident.action}" + _target_text(incident),
    ]
    if incident.cause:
        lines.append(f"  cause    {incident.cause}")
    if incident.lr_scale_after is not None and incident.lr_scale_after != incident.lr_scale_before:
        proof = f", {incident.lr_proof}" if incident.lr_proof else ""
        scales = f"x{incident.lr_scale_before:g} -> x{incident.lr_scale_after:g}"
        lines.append(f"  lr       {scales}{proof}")
    if "autopsy" in incident.evidence:
        lines.append(f"  autopsy  {incident.evidence['autopsy']}")
    if incident.outcome:
        lines.append(f"  outcome  {incident.outcome}")
    if incident.cost_s is not None:
        lines.append(f"  cost     {incident.cost_steps} steps, {age(incident.cost_s)}")
    if incident.needs_you:
        lines.append("  needs YOU")
        lines += [f"    {line}" for line in incident.advice]
    return "\n".join(lines)


def _target_text(incident: Incident) -> str:
    if incident.checkpoint_step is None:
        return ""
    return f" from step {incident.checkpoint_step:,} ({incident.checkpoint_path})"
