"""The end of a run: books closed, receivers and verifiers given a moment, what is left written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from overnight.core.events import (
    AlertSent,
    CheckpointChecked,
    CheckpointGone,
    CheckpointSecured,
    CheckpointSeen,
)
from overnight.core.lifecycle import State
from overnight.supervisor.inbox import Inbox
from overnight.supervisor.journal import Journal
from overnight.supervisor.keeping import Keeper
from overnight.supervisor.ports import Effects
from overnight.supervisor.run import Run

FLUSH_S = 10.0
"""How long the end of the run waits for receivers and verifiers; the rest waits on disk."""

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
