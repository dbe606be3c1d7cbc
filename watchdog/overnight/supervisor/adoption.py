"""Taking up a run where an earlier supervisor left it."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from overnight.core.checkpoints import CheckpointsConfig
from overnight.core.climb import Climb
from overnight.core.events import NUMERIC_FAULTS, CheckpointSeen, Identity
from overnight.core.health import Ledger
from overnight.core.incidents import Book
from overnight.core.lifecycle import State
from overnight.core.orders import Memory
from overnight.core.policy import Policy
from overnight.core.resume import Route
from overnight.core.situation import PolicyConfig
from overnight.core.story import Incident
from overnight.errors import UsageError
from overnight.supervisor.opening import Start
from overnight.supervisor.run import Run, Settings


@dataclass(frozen=True)
class Chosen:
    """A checkpoint that a person picked by hand."""

    identity: Identity
    step: int | None


@dataclass(frozen=True)
class Wish:
    """What the person asks of a run that may have a past."""

    command: tuple[str, ...]
    checkpoint: Chosen | None = None
    lr_scale: float | None = None


def refuse_other_run(row: Mapping[str, Any], wish: Wish) -> None:
    """A name belongs to one run until it is started afresh. Raises UsageError."""
    name = row["name"]
    if row["state"] == State.COMPLETED and wish.checkpoint is None:
        hint = "--fresh starts it anew, --name names another"
        raise UsageError(f"run {name} has completed", hint=hint)
    if tuple(row["command"]) != wish.command and row["record_count"] > 0:
        raise UsageError(
            f"run {name} was started with another command: {shlex.join(row['command'])}",
            hint="--fresh starts anew under this name, --name names another run",
        )


def restored(
    settings: Settings,
    checkpoints: CheckpointsConfig,
    policies: PolicyConfig,
    memory: Memory | None,
    *,
    now: float,
    now_utc: float,
) -> Run:
    """A new run, or the continuation of what the store remembers.

    A person who starts a run again gives it a new budget; stories without an end are ended.
    """
    policy = Policy(policies)
    if memory is None:
        return Run(settings, Ledger(checkpoints), Book(), policy, started_utc=now_utc)
    row = memory.run
    book = Book(memory.incidents, next_id=max((i.id for i in memory.incidents), default=0) + 1)
    for incident in book.open_incidents():
        outcome = incident.outcome or "the supervisor ended; the run was started again"
        book.put(replace(incident, outcome=outcome, needs_you=False))
    run = Run(
        settings,
        Ledger(checkpoints, memory.entries),
        book,
        policy,
        started_utc=row["started_utc"],
        attempts=row["attempt"],
        lr_scale=row["lr_scale"],
        scales={int(attempt): scale for attempt, scale in row["scales"].items()},
        relief=row.get("relief", 0),
        climb=Climb.from_row(row.get("climb")),
        record_count=row["record_count"],
        first_step=row.get("first_step"),
        hello=row["hello"],
        total_steps=row["total_steps"],
    )
    # Their monotonic times are of another boot, perhaps; the wall clock brings them into ours.
    run.records.extend(
        replace(r, at=now - (now_utc - r.time_utc) if r.time_utc is not None else r.at)
        for r in memory.records
    )
    return run


def seen_by_a_person(incidents: Iterable[Incident], *, now_utc: float) -> list[Incident]:
    """Whoever starts the run again has seen what it asked for."""
    return [
        replace(incident, acked_utc=now_utc)
        for incident in incidents
        if incident.needs_you and incident.acked_utc is None
    ]


def opening_of(run: Run, wish: Wish, memory: Memory | None, *, now: float, now_utc: float) -> Start:
    """How this supervisor begins. Raises UsageError where a person's wish cannot be met."""
    if wish.lr_scale is not None:
        run.lr_scale = wish.lr_scale
    if wish.checkpoint is not None:
        return Start(
            continues=memory is not None, by_hand=_by_hand(run, wish.checkpoint, now, now_utc)
        )
    if memory is None:
        return Start()
    last = memory.incidents[-1] if memory.incidents else None
    numeric = last is not None and last.fault in NUMERIC_FAULTS
    return Start(continues=True, careful=numeric and memory.run["state"] == State.HALTED)


def _by_hand(run: Run, chosen: Chosen, now: float, now_utc: float) -> CheckpointSeen:
    if run.means.route is Route.NONE:
        hint = 'add --resume-args "--resume {checkpoint}"'
        raise UsageError("--from-checkpoint needs a known way to resume", hint=hint)
    return CheckpointSeen(now, chosen.identity, "chosen", chosen.step, saved_utc=now_utc)
