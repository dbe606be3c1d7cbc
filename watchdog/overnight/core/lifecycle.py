"""The states of a run and the only legal ways between them.

    starting -> running -> stopping -> backoff | cooling -> starting ...
    running -> backoff (exited by itself), any living state -> halted | completed | interrupted

All transitions live in the table; an illegal event raises and changes nothing.
"""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    """Where a run stands. `lost` is what a reader says of a run whose supervisor is gone."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    BACKOFF = "backoff"
    COOLING = "cooling"
    PAUSED = "paused"
    COMPLETED = "completed"
    HALTED = "halted"
    INTERRUPTED = "interrupted"
    LOST = "lost"


class Event(StrEnum):
    """What moves a run from state to state."""

    FIRST_RECORD = "first-record"
    STOP = "stop"
    WAIT = "wait"
    COOL = "cool"
    START = "start"
    PAUSE = "pause"
    COMPLETE = "complete"
    HALT = "halt"
    INTERRUPT = "interrupt"


ENDED = frozenset({State.COMPLETED, State.HALTED, State.INTERRUPTED, State.LOST})
"""States in which no worker of ours lives and none will be started."""

_ENDINGS = {
    Event.COMPLETE: State.COMPLETED,
    Event.HALT: State.HALTED,
    Event.INTERRUPT: State.INTERRUPTED,
}

TRANSITIONS: dict[State, dict[Event, State]] = {
    State.STARTING: {
        Event.FIRST_RECORD: State.RUNNING,
        Event.STOP: State.STOPPING,
        Event.WAIT: State.BACKOFF,
        Event.COOL: State.COOLING,
        **_ENDINGS,
    },
    State.RUNNING: {
        Event.STOP: State.STOPPING,
        Event.WAIT: State.BACKOFF,
        Event.COOL: State.COOLING,
        **_ENDINGS,
    },
    State.STOPPING: {
        Event.WAIT: State.BACKOFF,
        Event.COOL: State.COOLING,
        Event.PAUSE: State.PAUSED,
        **_ENDINGS,
    },
    # The target may vanish while we wait: the decision is then made, and the wait begun, again.
    State.BACKOFF: {Event.START: State.STARTING, Event.WAIT: State.BACKOFF, **_ENDINGS},
    State.COOLING: {Event.START: State.STARTING, Event.COOL: State.COOLING, **_ENDINGS},
    State.PAUSED: {Event.START: State.STARTING, **_ENDINGS},
    State.COMPLETED: {},
    State.HALTED: {},
    State.INTERRUPTED: {},
    State.LOST: {},
}


class IllegalTransitionError(Exception):
    """An event that the run's state does not know: a bug of ours, never the user's."""


class Lifecycle:
    """The current state of one run."""

    def __init__(self, state: State = State.STARTING) -> None:
        self.state = state

    def apply(self, event: Event) -> State:
        """Move on. Raises IllegalTransitionError and stays where it is."""
        target = TRANSITIONS[self.state].get(event)
        if target is None:
            raise IllegalTransitionError(f"{event} in state {self.state}")
        self.state = target
        return target

    @property
    def ended(self) -> bool:
        """Whether the run is over, one way or another."""
        return self.state in ENDED
