"""Rows for the store: an incident, an alert, a record, a checkpoint, with what a test changes."""

from __future__ import annotations

from typing import Any

from overnight.core.events import Action, Fault, Health, Identity, Position, Severity, StepMetric
from overnight.core.orders import NewAlert
from overnight.core.story import Entry, Incident


def incident(number: int = 1, **changes: Any) -> Incident:
    """An open NaN incident."""
    values: dict[str, Any] = {
        "id": number,
        "fault": Fault.LOSS_NONFINITE,
        "severity": Severity.CRITICAL,
        "opened_utc": 1000.5,
        "reason": "loss is NaN",
        "action": Action.ROLLBACK,
        "onset": Position(1, 400),
        "evidence": {"loss": "NaN"},
        "advice": ("look at it",),
        "progress": (("signalled", 1001.0),),
    }
    return Incident(**(values | changes))


def alert(number: int = 1, **changes: Any) -> NewAlert:
    """An *opened* alert that is due in ten seconds."""
    values: dict[str, Any] = {
        "incident": number,
        "moment": "opened",
        "receiver": "phone",
        "severity": "critical",
        "title": "loss is NaN",
        "body": "rolling back",
        "created_utc": 1000.0,
        "due_utc": 1010.0,
    }
    return NewAlert(**(values | changes))


def record(number: int, **changes: Any) -> StepMetric:
    """The record of that number."""
    values: dict[str, Any] = {
        "at": 5.0,
        "position": Position(1, number),
        "step": number * 100,
        "loss": 2.5,
        "time_utc": 1000.0 + number,
    }
    return StepMetric(**(values | changes))


def entry(path: str = "/runs/a/step_100.pt", **changes: Any) -> Entry:
    """A verified checkpoint."""
    values: dict[str, Any] = {
        "identity": Identity(path, 12, 1_700_000_000_000_000_001, 4096),
        "format": "pt",
        "saved_utc": 1000.25,
        "position": Position(1, 4),
        "step": 100,
        "checked": Health.VERIFIED,
    }
    return Entry(**(values | changes))
