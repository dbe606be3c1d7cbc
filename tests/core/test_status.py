"""The answer to `overnight status`, from values only."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest

from core_lab import identity, record
from overnight.core.events import Action, Fault, GpuSample, Health, Position, Severity
from overnight.core.status import Now, public, snapshot, steps_per_s
from overnight.core.story import Entry, Incident

NOW = Now(
    name="gpt",
    state="running",
    attempt=2,
    pid=77,
    started_utc=1000.0,
    now_utc=2000.0,
    total_steps=1000,
    lr_scale=0.5,
    resume_route="arguments",
    alerts_waiting=1,
)
ENTRY = Entry(identity("250.pt"), "torch", 1900.0, Position(1, 250), step=250, order_step=250)
INCIDENT = Incident(1, Fault.CRASH, Severity.CRITICAL, 1500.0, "x", Action.RESTART)


def records(count: int, *, first: int = 251, every_s: float = 2.0, attempt: int = 2) -> list:
    """Records of one attempt, `every_s` apart."""
    return [
        record(first + i, lr=1e-4, position=Position(attempt, i + 1), time_utc=1000.0 + every_s * i)
        for i in range(count)
    ]


def taken(**more) -> dict:
    """A snapshot with records up to step 300, and what else is given."""
    values = {
        "records": records(50),
        "best": (ENTRY, Health.HEALTHY),
        "gpus": [GpuSample(0.0, 0, "GPU-0", "RTX 4090", 61.0, 300.0, 99.0, 1 << 30)],
        "open_incidents": [INCIDENT],
    }
    return snapshot(more.pop("now", NOW), **{**values, **more})


def printed(data: dict, *, alive: bool = True, incidents: tuple = (INCIDENT,)) -> dict:
    """It as it is printed at 2000."""
    alerts = {"waiting": 1, "failed": 0}
    return public(data, now_utc=2000.0, incidents=incidents, alerts=alerts, alive=alive)


def test_the_public_fields_are_all_there() -> None:
    """The contract of `status --json`."""
    fields = (
        "name state attempt pid started_utc step total_steps loss grad_norm lr lr_scale"
        " steps_per_s eta_s last_metric_age_s resume_route gpus checkpoint at_risk"
        " open_incidents incidents_24h alerts"
    )
    data = printed(taken())
    assert set(fields.split()) <= data.keys()
    assert (data["step"], data["lr"], data["last_metric_age_s"]) == (300, 1e-4, 902.0)
    assert (data["steps_per_s"], data["eta_s"]) == (0.5, 1400.0)
    assert data["checkpoint"] == {"path": "250.pt", "step": 250, "health": "healthy", "age_s": 100}
    assert data["at_risk"] == {"steps": 50, "seconds": 100.0}
    assert data["gpus"][0]["temperature_c"] == 61.0
    assert (data["open_incidents"], data["incidents_24h"]) == (1, 1)


def test_what_is_not_known_is_none() -> None:
    """Never 0 for an unknown."""
    now = replace(NOW, total_steps=None, pid=None)
    data = printed(taken(now=now, records=[], best=None, gpus=[], open_incidents=[]))
    for name in ("step", "loss", "lr", "steps_per_s", "eta_s", "last_metric_age_s", "checkpoint"):
        assert data[name] is None, name
    assert data["at_risk"] == {"steps": 0, "seconds": None}


def test_without_a_checkpoint_all_is_at_risk() -> None:
    """Since the start of the run."""
    assert printed(taken(best=None))["at_risk"] == {"steps": 300, "seconds": 1000.0}


@pytest.mark.parametrize(
    ("given", "speed"),
    [
        pytest.param(records(2), None, id="too-few"),
        pytest.param(records(3), 0.5, id="three-records"),
        pytest.param(records(9, every_s=0.0), None, id="no-time-passed"),
        pytest.param([*records(40, attempt=1), *records(2)], None, id="a-new-attempt"),
        pytest.param([record(i) for i in range(9)], None, id="no-times"),
    ],
)
def test_speed(given: list, speed: float | None) -> None:
    """Over the last records of the newest attempt."""
    assert steps_per_s(given) == speed


@pytest.mark.parametrize(
    ("state", "alive", "shown", "needs_you"),
    [
        ("running", True, "running", False),
        ("running", False, "lost", True),
        ("backoff", False, "lost", True),
        ("completed", False, "completed", False),
        ("interrupted", False, "interrupted", False),
        ("halted", False, "halted", True),
    ],
)
def test_a_run_without_its_supervisor_is_lost(
    state: str, alive: bool, shown: str, needs_you: bool
) -> None:
    """Unless it has ended."""
    data = printed(taken(now=replace(NOW, state=state)), alive=alive)
    assert (data["state"], data["needs_you"]) == (shown, needs_you)


def test_an_open_incident_for_a_person_needs_you_until_it_is_acknowledged() -> None:
    """`ack` is the end of the alarm."""
    waiting = replace(INCIDENT, needs_you=True)
    assert printed(taken(), incidents=(waiting,))["needs_you"]
    assert not printed(taken(), incidents=(replace(waiting, acked_utc=1.0),))["needs_you"]
    assert printed(taken(), incidents=(replace(waiting, closed_utc=1.0),))["needs_you"]


def test_a_snapshot_can_be_printed_again_and_again() -> None:
    """Printing changes nothing in it."""
    data = taken()
    before = copy.deepcopy(data)
    assert printed(data) == printed(data)
    assert data == before
