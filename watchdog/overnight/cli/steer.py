"""`stop` and `ack`: commands to a running supervisor."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from overnight.adapters.control import ask
from overnight.adapters.lock import is_held
from overnight.adapters.store import Store, StoreReader
from overnight.cli.query import only_directory
from overnight.core.orders import Batch
from overnight.errors import ControlError, UsageError

STOP_S = 3600.0
"""A worker may take long to save; the supervisor kills it after its own grace time."""


@click.command(short_help="Save, stop, and end the run's supervisor.")
@click.argument("name")
@click.option("--wait/--no-wait", default=True, help="Return when the run has stopped.")
def stop(name: str, *, wait: bool) -> int:
    """Let the worker save and exit, then end its supervisor with status 0."""
    directory = only_directory(name)
    if not is_held(directory):
        raise ControlError(f"no supervisor runs {name}", hint=f"overnight status {name}")
    answer = ask(directory, "stop")
    if "error" in answer:
        raise ControlError(str(answer["error"]))
    until = time.monotonic() + STOP_S
    while wait and is_held(directory) and time.monotonic() < until:
        time.sleep(0.1)
    click.echo(f"{name} stopped" if not is_held(directory) else f"{name} is stopping")
    return 0


@click.command(short_help="Acknowledge incidents.")
@click.argument("what")
@click.option("--run", "name", help="The run that an incident id belongs to.")
def ack(what: str, *, name: str | None) -> int:
    """Acknowledge WHAT: a run's name (all its open incidents), or an incident's id."""
    incident = int(what) if what.isdigit() else None
    directory = only_directory(name if incident is not None else what)
    if is_held(directory):
        answer = ask(directory, "ack", {"incident": incident})
    else:
        answer = _ack_on_disk(directory, incident)
    if "error" in answer:
        raise UsageError(str(answer["error"]), hint=f"overnight incidents {directory.name}")
    acked = ", ".join(f"#{number}" for number in answer["acked"])
    click.echo(f"acknowledged {acked}" if acked else "nothing is open")
    return 0


def _ack_on_disk(directory: Path, wanted: int | None) -> dict[str, Any]:
    """The run has ended: mark what still asks for a person in the store itself."""
    reader = StoreReader(directory)
    asking = [i for i in reader.incidents() if i.needs_you and i.acked_utc is None]
    reader.close()
    chosen = [incident for incident in asking if wanted in (None, incident.id)]
    if wanted is not None and not chosen:
        return {"error": f"incident {wanted} does not ask for anybody"}
    store = Store(directory)
    store.commit(Batch(incidents=[replace(i, acked_utc=time.time()) for i in chosen]))
    store.close()
    return {"acked": [incident.id for incident in chosen]}
