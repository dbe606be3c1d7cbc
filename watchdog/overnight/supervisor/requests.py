"""What people may ask of a running supervisor, beside ending it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from overnight.core.story import checkpoint_json
from overnight.supervisor.journal import Journal
from overnight.supervisor.run import Run


def answer(op: str, args: Mapping[str, Any], *, run: Run, journal: Journal) -> dict[str, Any]:
    """The answer to one request; unknown ones are answered, never raised."""
    if op == "status":
        return {"run": journal.snapshot()}
    if op == "checkpoints":
        return {"checkpoints": [checkpoint_json(*row) for row in run.ledger.listing()]}
    if op == "ack":
        return _ack(args, run=run, journal=journal)
    return {"error": f"unknown request {op!r}"}


def _ack(args: Mapping[str, Any], *, run: Run, journal: Journal) -> dict[str, Any]:
    """Acknowledge one open incident, or all."""
    wanted = args.get("incident")
    chosen = [i for i in run.book.open_incidents() if wanted is None or i.id == wanted]
    if wanted is not None and not chosen:
        return {"error": f"no open incident {wanted}"}
    acked = [run.book.put(replace(incident, acked_utc=journal.now_utc)) for incident in chosen]
    if acked:
        journal.note(acked)
    return {"acked": [incident.id for incident in acked]}
