"""One recovery as it passes through its phases (what each means stands in recovery.py)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from overnight.core.detect.gpu_hot import Cooling
from overnight.core.events import Action, Decision, Identity, Verdict
from overnight.core.exits import Death

CHECK_S = 30.0
"""Verifying on demand may take this long in all; what is not verified by then is no target."""

GPU_MEMORY_S = 60.0
"""How long to wait for the driver to release a dead worker's memory."""

SECURE_S = 120.0
"""How long a halting supervisor waits for its last vault copy."""

AUTOPSY_S = 8.0
"""How long the kill of a hanging worker waits for what it looks like to be written down."""

IN_PLACE_S = 30.0
"""How long the probe may take to restore a snapshot, beside ten times the usual gap of records."""

SAVE_S = 30.0
"""How long a worker may take to write the checkpoint that was asked for before a stop."""

COOL_S = 7200.0
"""A card that is not cool after this long, or no longer says so, needs a person."""

ACTING = frozenset({Action.RESTART, Action.ROLLBACK, Action.COOL, Action.HALT})
"""Actions that end the current attempt."""


class Phase(StrEnum):
    """Where a recovery stands."""

    IN_PLACE = "in place"
    STOPPING = "stopping"
    CHECKING = "checking"
    WAITING = "waiting"
    TIDYING = "tidying"
    STARTING = "starting"
    PROVING = "proving"
    SECURING = "securing"


@dataclass
class Recovery:
    """One recovery under way. `deadline` and `due` are monotonic seconds."""

    incident: int
    verdict: Verdict
    death: Death | None
    decision: Decision
    begun_utc: float
    phase: Phase = Phase.STOPPING
    saving_until: float | None = None
    examining_until: float = 0.0
    deadline: float = 0.0
    due: float = 0.0
    memory_deadline: float = 0.0
    checking: set[Identity] = field(default_factory=set)
    dead_pids: frozenset[int] = frozenset()
    cooling: Cooling | None = None
    cooled: bool = False
    order: int = 0
    asked_at: float = 0.0
    records_when_asked: int = 0
    snapshot_step: int | None = None
    snapshot_utc: float | None = None
