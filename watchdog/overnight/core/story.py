"""What is written down and outlives the process: checkpoints and incidents, and their JSON form."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from overnight.core.events import (
    Action,
    Family,
    Fault,
    Health,
    Identity,
    Position,
    Severity,
    StepMetric,
    family_of,
)
from overnight.core.proof import LrProof

LAG = 1.2
"""A log that is buffered may be this far behind the checkpoint that has just been saved."""


@dataclass(frozen=True, slots=True)
class Entry:
    """All that is known of one checkpoint, by identity.

    `position` is that of the last record that had arrived when it became complete; `order_step`
    the step it is compared by (its own, where that lies within a log stride of the logged one).
    `tainted` means suspect records after it, `unseen` records after it that were never read.
    `linked`: the vault's copy is a hard link, which is rewritten together with its original.
    `partial`: it holds the weights alone. `quarantine_path`: where a rollback has put it.
    `health` and its reason are filled in for readers of the store; the ledger derives them.
    """

    identity: Identity
    format: str
    saved_utc: float
    position: Position
    step: int | None = None
    order_step: int | None = None
    in_place: bool = False
    checked: Health | None = None
    reason: str = ""
    confirmed: bool = False
    tainted: bool = False
    unseen: bool = False
    clean_records: int = 0
    clean_steps: int = 0
    poisoned: str = ""
    abandoned: bool = False
    gone: bool = False
    vault_path: str | None = None
    linked: bool = False
    quarantine_path: str | None = None
    partial: bool = False
    health: Health = Health.CANDIDATE
    health_reason: str = ""

    @property
    def run_step(self) -> int | None:
        """The step of the run at which it was saved.

        That of its name, where the log agrees (it may lag behind, and so may we); not an epoch
        (`epoch_3.pt`), nor a count of batches where the log counts updates.
        """
        named, logged = self.step, self.order_step
        if named is None or logged is None:
            return named if logged is None else logged
        return named if logged <= LAG * named and named <= LAG * logged else logged

    @property
    def path(self) -> str:
        """Where the worker can load it from now: the original while unchanged, else the vault."""
        return self.vault_path if self.gone and self.vault_path else self.identity.path

    @property
    def available(self) -> bool:
        """Whether its bytes still exist somewhere."""
        return not self.gone or self.vault_path is not None or self.quarantine_path is not None


@dataclass(frozen=True, slots=True)
class Incident:
    """The persisted story of one episode. Steps are the script's labels, times wall clock.

    `last_bad` counts records over the whole run, `last_verdict_utc` and `last_attempt` tell when
    and in which attempt a verdict of its own family last spoke; `progress` lists the sub-steps
    of the recovery that have been passed, each as (name, time_utc).
    """

    id: int
    fault: Fault
    severity: Severity
    opened_utc: float
    reason: str
    action: Action
    cause: str | None = None
    closed_utc: float | None = None
    onset: Position | None = None
    onset_step: int | None = None
    detected_step: int | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict)
    checkpoint_path: str | None = None
    checkpoint_step: int | None = None
    lr_scale_before: float | None = None
    lr_scale_after: float | None = None
    lr_proof: LrProof | None = None
    outcome: str | None = None
    cost_steps: int | None = None
    cost_s: float | None = None
    needs_you: bool = False
    advice: tuple[str, ...] = ()
    acked_utc: float | None = None
    drill: bool = False
    last_bad: int = 0
    last_verdict_utc: float | None = None
    last_attempt: int | None = None
    recoveries: int = 0
    progress: tuple[tuple[str, float], ...] = ()
    unrecorded: bool = False

    @property
    def family(self) -> Family:
        """The episode family of its fault."""
        return family_of(self.fault)

    @property
    def open(self) -> bool:
        """Whether the episode is still going on."""
        return self.closed_utc is None

    def passed(self, name: str, time_utc: float) -> Incident:
        """The same incident with one more sub-step behind it."""
        return replace(self, progress=(*self.progress, (name, time_utc)))


def incident_json(incident: Incident) -> dict[str, Any]:
    """The public form (docs/protocol.md, `incidents --json`), as plain values."""
    path = incident.checkpoint_path
    return {
        "id": incident.id,
        "fault": incident.fault.value,
        "cause": incident.cause,
        "severity": incident.severity.value,
        "opened_utc": incident.opened_utc,
        "closed_utc": incident.closed_utc,
        "onset_step": incident.onset_step,
        "detected_step": incident.detected_step,
        "reason": incident.reason,
        "evidence": dict(incident.evidence),
        "action": incident.action.value,
        "checkpoint": {"path": path, "step": incident.checkpoint_step} if path else None,
        "lr_scale_before": incident.lr_scale_before,
        "lr_scale_after": incident.lr_scale_after,
        "lr_proof": incident.lr_proof.value if incident.lr_proof else None,
        "outcome": incident.outcome,
        "cost": {"steps": incident.cost_steps, "seconds": incident.cost_s},
        "needs_you": incident.needs_you,
        "drill": incident.drill,
    }


def checkpoint_json(entry: Entry, health: Health, reason: str) -> dict[str, Any]:
    """The public form of a ledger entry (docs/protocol.md, `checkpoints --json`)."""
    return {
        "path": entry.identity.path,
        "step": entry.run_step,
        "format": entry.format,
        "size_bytes": entry.identity.size_bytes,
        "saved_utc": entry.saved_utc,
        "health": health.value,
        "reason": reason,
        "vaulted": entry.vault_path is not None,
        "quarantined": entry.quarantine_path is not None,
        "quarantine_path": entry.quarantine_path,
    }


def encode(value: Any) -> str:
    """A frozen dataclass as JSON, without the fields that are None."""

    def plain(item: Any) -> Any:
        if isinstance(item, tuple):
            return [plain(part) for part in item]
        if hasattr(item, "__dataclass_fields__"):
            found = {name: plain(getattr(item, name)) for name in item.__dataclass_fields__}
            return {name: part for name, part in found.items() if part is not None}
        return item

    return json.dumps(plain(value))


def _position(value: Any) -> Position | None:
    return Position(value["attempt"], value["record"]) if value else None


def decode_record(text: str) -> StepMetric:
    """The inverse of `encode` for a StepMetric."""
    data = json.loads(text)
    data["position"] = _position(data["position"])
    return StepMetric(**data)


def decode_entry(text: str) -> Entry:
    """The inverse of `encode` for a checkpoint's Entry."""
    data = json.loads(text)
    data["identity"] = Identity(**data["identity"])
    data["position"] = _position(data["position"])
    data["health"] = Health(data["health"])
    if "checked" in data:
        data["checked"] = Health(data["checked"])
    return Entry(**data)


def decode_incident(text: str) -> Incident:
    """The inverse of `encode` for an Incident."""
    data = json.loads(text)
    data["fault"] = Fault(data["fault"])
    data["severity"] = Severity(data["severity"])
    data["action"] = Action(data["action"])
    data["onset"] = _position(data.get("onset"))
    if "lr_proof" in data:
        data["lr_proof"] = LrProof(data["lr_proof"])
    data["progress"] = tuple((name, time_utc) for name, time_utc in data.get("progress", ()))
    data["advice"] = tuple(data.get("advice", ()))
    return Incident(**data)
