"""Taking up a run where an earlier supervisor left it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from overnight.core.events import Health, Identity, Target
from overnight.core.health import CheckpointsConfig, Ledger
from overnight.core.incidents import Book
from overnight.core.lifecycle import State
from overnight.core.orders import Memory
from overnight.core.policy import Policy, PolicyConfig
from overnight.core.resume import Route
from overnight.errors import UsageError
from overnight.supervisor.run import Run, Settings, past_from


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
    if tuple(row["command"]) != wish.command:
        raise UsageError(
            f"run {name} was started with another command: {' '.join(row['command'])}",
            hint="--fresh starts anew under this name, --name names another run",
        )


def restored(
    settings: Settings,
    checkpoints: CheckpointsConfig,
    policies: PolicyConfig,
    memory: Memory | None,
    *,
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
        record_count=row["record_count"],
        past=past_from(row["past"]),
        hello=row["hello"],
        total_steps=row["total_steps"],
    )
    run.past.clear()
    run.records.extend(memory.records)
    return run


def first_target(run: Run, wish: Wish, *, continues: bool) -> Target | None:
    """Where the first attempt begins; None means from scratch. Raises UsageError."""
    if wish.lr_scale is not None:
        run.lr_scale = wish.lr_scale
    if wish.checkpoint is not None:
        return _by_hand(run, wish.checkpoint)
    targets = run.ledger.targets() if continues else []
    if not targets:
        return None
    _require_route(run)
    healthy = [target for target in targets if target.health is Health.HEALTHY]
    return (healthy or targets)[0]


def _by_hand(run: Run, chosen: Chosen) -> Target:
    _require_route(run)
    entry = run.ledger.find(chosen.identity.path)
    return Target(
        path=chosen.identity.path,
        step=entry.step if entry else chosen.step,
        health=Health.UNVERIFIED,
        position=entry.position if entry else None,
        identity=entry.identity if entry else chosen.identity,
        why="chosen by hand",
    )


def _require_route(run: Run) -> None:
    if run.means.route is Route.NONE:
        raise UsageError(
            f"run {run.settings.name} has checkpoints, but no known way to resume from them",
            hint='add --resume-args "--resume {checkpoint}", or start over with --fresh',
        )
