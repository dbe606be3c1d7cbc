"""The states of a run: every legal way, and that all others change nothing."""

from __future__ import annotations

import pytest

from overnight.core.lifecycle import ENDED, Event, IllegalTransitionError, Lifecycle, State

ENDINGS = {
    Event.COMPLETE: State.COMPLETED,
    Event.HALT: State.HALTED,
    Event.INTERRUPT: State.INTERRUPTED,
}
WORKER_GONE = {Event.STOP: State.STOPPING, Event.WAIT: State.BACKOFF, Event.COOL: State.COOLING}
LEGAL = {
    State.STARTING: {Event.FIRST_RECORD: State.RUNNING, **WORKER_GONE},
    State.RUNNING: WORKER_GONE,
    State.STOPPING: {
        Event.WAIT: State.BACKOFF,
        Event.COOL: State.COOLING,
        Event.PAUSE: State.PAUSED,
    },
    State.BACKOFF: {Event.START: State.STARTING, Event.WAIT: State.BACKOFF},
    State.COOLING: {Event.START: State.STARTING, Event.COOL: State.COOLING},
    State.PAUSED: {Event.START: State.STARTING},
}


@pytest.mark.parametrize("state", list(State), ids=str)
@pytest.mark.parametrize("event", list(Event), ids=str)
def test_every_pair_of_state_and_event(state: State, event: Event) -> None:
    """Legal ones lead where the design says; illegal ones raise and change nothing."""
    life = Lifecycle(state)
    legal = {} if state in ENDED else {**LEGAL[state], **ENDINGS}
    if event in legal:
        assert life.apply(event) is legal[event]
        assert life.state is legal[event]
        return
    with pytest.raises(IllegalTransitionError, match=f"{event} in state {state}"):
        life.apply(event)
    assert life.state is state


def test_a_night_of_a_run() -> None:
    """Start, fault, back-off, start, heat, cooling, start, the end."""
    life = Lifecycle()
    assert life.state is State.STARTING
    for event in (
        Event.FIRST_RECORD,
        Event.STOP,
        Event.WAIT,
        Event.START,
        Event.STOP,
        Event.COOL,
        Event.START,
        Event.FIRST_RECORD,
    ):
        life.apply(event)
        assert not life.ended
    life.apply(Event.COMPLETE)
    assert life.ended
