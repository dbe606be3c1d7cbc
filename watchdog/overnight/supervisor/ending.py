"""The end of a worker, and of a run: why it died, whether it was done, and the books closed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from overnight.core.events import (
    NUMERIC_FAULTS,
    AlertSent,
    CheckpointChecked,
    CheckpointGone,
    CheckpointSecured,
    CheckpointSeen,
    ExitRecord,
)
from overnight.core.exits import Death, diagnose
from overnight.core.lifecycle import State
from overnight.supervisor.attempt import Attempt
from overnight.supervisor.inbox import Inbox
from overnight.supervisor.journal import Journal
from overnight.supervisor.keeping import Keeper
from overnight.supervisor.ports import Effects
from overnight.supervisor.run import Run

FLUSH_S = 10.0
"""How long the end of the run waits for receivers and verifiers; the rest waits on disk."""

RECENT_S = 120.0
"""What the kernel said so long before a death has to do with it; earlier, with somebody else's."""

_AWAITED = (AlertSent, CheckpointSeen, CheckpointGone, CheckpointChecked, CheckpointSecured)


def finish(
    run: Run,
    effects: Effects,
    journal: Journal,
    keeper: Keeper,
    inbox: Inbox,
    handlers: Mapping[type, Callable[[Any], None]],
) -> None:
    """Close the books, then let receivers answer and the last checkpoint be verified."""
    if run.life.state is State.COMPLETED:
        run.exit_status, run.ending = 0, "the run completed"
    ending = run.ending or "the run ended"
    journal.note(run.book.close_all(now_utc=effects.wall(), outcome=ending))
    journal.due_now()
    journal.deliver()
    until = effects.clock() + FLUSH_S
    while journal.waiting or keeper.busy:
        observation = inbox.get(min(0.5, until - effects.clock()))
        journal.deliver()
        if isinstance(observation, _AWAITED):
            handlers[type(observation)](observation)
        if effects.clock() >= until:
            break
    journal.flush(effects.clock(), force=True)
    effects.checkpoints.close()
    effects.gpu.close()
    if journal.waiting:
        many = "alert waits" if journal.waiting == 1 else "alerts wait"
        effects.say(f"{journal.waiting} {many} for the next start")


def death_of(attempt: Attempt, record: ExitRecord, effects: Effects) -> Death:
    """Why a worker has ended, by its own last words and what the kernel has to say."""
    before, now = attempt.oom_kills, effects.oom_kills()
    return diagnose(
        record,
        [line for line in attempt.tail if line],
        any_record=attempt.records > 0,
        kernel=effects.kernel_lines(max(attempt.started_at, effects.clock() - RECENT_S)),
        oom_kills=None if before is None or now is None else now - before,
    )


def is_done(run: Run, record: ExitRecord, death: Death) -> bool:
    """Whether the run is over: by the worker's status, unless its last words say otherwise.

    Scripts stop themselves on a bad number with status 0, and crash in the teardown of a process
    that has trained to its end.
    """
    total, last = run.total_steps, run.last
    trained = total is not None and last is not None and last.step >= total
    if record.code != 0:
        return death.cause == "completed"
    return trained or not (death.died and death.fault in NUMERIC_FAULTS)
