"""`checkpoints`: each with its health, what is at risk now, and how often to save."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import click

from overnight.adapters.control import ask
from overnight.adapters.lock import is_held
from overnight.adapters.store import StoreReader
from overnight.cli.query import describe_run, echo_json, only_directory, risk_line
from overnight.cli.text import age, table
from overnight.core.events import Health
from overnight.core.interval import COSTLY, History, advice, pace_s, save_cost_s
from overnight.core.story import checkpoint_json
from overnight.errors import ControlError, UsageError


@click.command(short_help="Each checkpoint with its health and why.")
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="One JSON list.")
@click.option("--restore", metavar="FILE", help="Take this one (or this step) out of quarantine.")
def checkpoints(name: str | None, *, as_json: bool, restore: str | None) -> int:
    """List the checkpoints of a run by step, each with its health and the reason."""
    directory = only_directory(name)
    rows = list(_checkpoint_rows(directory))
    if restore is not None:
        return _restore(directory, rows, restore)
    if as_json:
        echo_json(rows)
    elif not rows:
        click.echo("no checkpoint seen")
    else:
        head = ("step", "health", "size", "saved", "vault", "file", "why")
        click.echo(table(head, [_checkpoint_cells(row) for row in rows]))
    if not as_json:
        click.echo(f"\nat risk now: {risk_line(describe_run(directory))}")
        for sentence in advice(_history(directory)):
            click.echo(sentence)
    return 0


def _restore(directory: Path, rows: Iterable[dict[str, Any]], wanted: str) -> int:
    """Put a quarantined checkpoint back to where the script wrote it."""
    if is_held(directory):
        raise UsageError(
            f"run {directory.name} is supervised, and its script may take the newest checkpoint",
            hint=f"overnight stop {directory.name} first",
        )
    known = {str(row["quarantine_path"]): row for row in rows if row["quarantined"]}
    found = [
        path
        for path, row in known.items()
        if wanted in (path, row["path"], str(row["step"])) or row["path"] == os.path.abspath(wanted)  # noqa: PTH100
    ]
    if len(found) != 1:
        what = "more than one" if found else "no"
        raise UsageError(
            f"{what} quarantined checkpoint is called {wanted}",
            hint="overnight checkpoints lists them; the whole path of one always works",
        )
    from overnight.app import restore_checkpoint

    click.echo(f"put back: {restore_checkpoint(Path(found[0]))}")
    return 0


def _history(directory: Path) -> History:
    """What the run's store tells about saving: its cost, its rhythm, and the faults so far."""
    reader = StoreReader(directory)
    try:
        row, records, entries = reader.run() or {}, reader.records(), reader.checkpoints()
        faults = [i for i in reader.incidents() if i.action in COSTLY and not i.drill]
    finally:
        reader.close()
    timed = [r for r in records if r.time_utc is not None]
    begun = float(row.get("started_utc", time.time()))
    ended = max([begun, *(r.time_utc for r in timed if r.time_utc is not None)])
    own = sorted(entry.saved_utc for entry in entries if entry.position.attempt)
    gaps = [later - earlier for earlier, later in pairwise(own)]
    return History(
        observed_s=ended - begun,
        faults=len(faults),
        cost_s=save_cost_s([r.time_utc for r in timed if r.time_utc is not None], own),
        step_s=pace_s(timed),
        interval_s=median(gaps) if gaps else None,
        max_loss_s=float(row.get("max_loss_s", 1800.0)),
    )


def _checkpoint_rows(directory: Path) -> Iterable[dict[str, Any]]:
    if is_held(directory):
        try:
            found = ask(directory, "checkpoints").get("checkpoints")
        except ControlError:
            found = None
        if isinstance(found, list):
            return found
    reader = StoreReader(directory)
    entries = reader.checkpoints()
    reader.close()
    rows = [
        checkpoint_json(entry, Health(entry.health), entry.health_reason)
        for entry in entries
        if entry.available
    ]
    return sorted(rows, key=lambda row: (row["step"] is None, row["step"] or 0))


def _checkpoint_cells(row: dict[str, Any]) -> tuple[str, ...]:
    return (
        "?" if row["step"] is None else f"{row['step']:,}",
        row["health"],
        f"{row['size_bytes'] / 2**20:.1f} MiB",
        f"{age(time.time() - row['saved_utc'])} ago",
        "yes" if row["vaulted"] else "aside" if row.get("quarantined") else "",
        _near(row["path"]),
        row["reason"],
    )


def _near(path: str) -> str:
    """The path as seen from here, where that is shorter."""
    return min(os.path.relpath(path), path, key=len)
