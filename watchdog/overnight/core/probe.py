"""The probe inside the worker, as the supervisor knows it: config, orders, answers. Values only."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from overnight.core.events import Fault, Severity, StepMetric, Verdict

AHEAD_S, AHEAD_STEPS = 1.0, 5
"""Processes that step together obey an order from a step on that none of them has reached yet."""


MAX_SAVES = 64
"""Saves whose steps are remembered until the files are found."""

ABSENT_RECORDS, ABSENT_S = 20, 30.0
"""A worker that has shown so many records for so long has made steps that a probe would see."""


class GuardConfig(BaseModel):
    """`[probe.guard]`: what is kept from the weights."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    skip_nonfinite: bool = Field(
        default=True, description="leave out an update whose gradients hold NaN or infinity"
    )
    clip: str = Field(
        "off",
        description='"off", a gradient norm to clip to, or "auto": clip what is an outlier of it;'
        " after a numeric rollback it is auto",
    )

    @field_validator("clip", mode="before")
    @classmethod
    def _is_rule(cls, value: object) -> object:
        if isinstance(value, int | float) and not isinstance(value, bool):
            value = str(value)
        if isinstance(value, str) and value not in ("off", "auto"):
            try:
                sane = math.isfinite(float(value)) and float(value) > 0
            except ValueError:
                sane = False
            if not sane:
                raise ValueError('clip is "off", "auto" or a number above 0')
        return value


class SnapshotConfig(BaseModel):
    """`[probe.snapshot]`: copies of the training state in host memory, to go back to in place."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    enabled: bool = Field(default=True, description="whether there are any")
    every_steps: int = Field(50, ge=1, description="steps between two snapshots, at least")
    every_s: float = Field(60, ge=0, description="seconds between two snapshots, at least")
    keep: int = Field(3, ge=1, description="snapshots that are kept")
    max_bytes: int = Field(
        0, ge=0, description="host memory for all of them; 0: half of what is available"
    )


class ProbeConfig(BaseModel):
    """`[probe]`: watch and steer an unmodified PyTorch script from inside."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    enabled: bool = Field(default=False, description="the same as `overnight run --probe`")
    guard: GuardConfig = Field(default_factory=GuardConfig)
    snapshot: SnapshotConfig = Field(default_factory=SnapshotConfig)

    def settings(self, *, first_step: int, applied_scale: float, clip: str | None) -> str:
        """What the probe is told at the start of a worker (OVERNIGHT_PROBE, JSON)."""
        return json.dumps(
            {
                "first_step": first_step,
                "applied_scale": applied_scale,
                "skip_nonfinite": self.guard.skip_nonfinite,
                "clip": clip or self.guard.clip,
                "snapshots": self.snapshot.enabled,
                "snapshot_steps": self.snapshot.every_steps,
                "snapshot_s": self.snapshot.every_s,
                "snapshot_bytes": self.snapshot.max_bytes,
                "keep": self.snapshot.keep,
            }
        )


@dataclass
class ProbeState:
    """What the probe of this attempt has said of itself."""

    alive: bool = False
    snapshots: bool = False
    ranks: int = 1
    told_of_skip: bool = False
    heard: bool = False
    saved: dict[str, int] = field(default_factory=dict)
    told_of_absence: bool = False

    def absence(self, records: int, training_s: float) -> str:
        """What to say, once, of a probe that has not been heard of; "" if nothing."""
        if self.heard or self.told_of_absence or records < ABSENT_RECORDS or training_s < ABSENT_S:
            return ""
        self.told_of_absence = True
        return (
            "the probe has not joined the worker, which is watched from outside: no torch optimizer"
            " (JAX?), or a Python that ignores PYTHONPATH (python -I, -E, -S, a container)"
        )

    def hear(self, said: Mapping[str, Any]) -> str | None:
        """Take in one of its events. Returns what a person should know of it, if anything."""
        self.heard = True
        if "hello" in said:
            self.alive = True
            self.ranks = said["ranks"] if isinstance(said.get("ranks"), int) else 1
            return f"probe: inside the worker, watching its {said.get('optimizer')}"
        if "off" in said:
            self.alive = self.snapshots = False
            return f"probe: switched off ({said['off']}); the worker is watched from outside"
        path, step = said.get("saved"), said.get("step")
        if isinstance(path, str) and isinstance(step, int):
            self.saved = dict([*self.saved.items(), (path, step)][-MAX_SAVES:])
        if "snapshots" in said:
            self.snapshots = said["snapshots"] is True
            if self.snapshots:
                return None
            return f"probe: no snapshots ({said.get('why')}): it cannot go back in place"
        return None


@dataclass(frozen=True, slots=True)
class PlaceOrder:
    """Go back in place, as the control file says it."""

    number: int
    onset_step: int
    healthy_step: int
    lr_scale: float
    from_step: int = 0

    def control(self) -> dict[str, Any]:
        """The content of the control file."""
        rollback = {
            "number": self.number,
            "before_step": self.onset_step,
            "healthy_step": self.healthy_step,
        }
        probe = {"clip": "auto", "from_step": self.from_step, "rollback": rollback}
        return {"lr_scale": self.lr_scale, "skip": "", "probe": probe}


def from_step(records: Sequence[StepMetric], ranks: int) -> int:
    """The step from which an order holds: at once for one process, for several a little ahead."""
    if ranks <= 1 or not records:
        return 0
    first, last = records[max(0, len(records) - 20)], records[-1]
    took = max(1e-3, (last.at - first.at) / max(1, last.step - first.step))
    return last.step + max(AHEAD_STEPS, math.ceil(AHEAD_S / took))


def is_poisoned(record: StepMetric) -> bool:
    """Whether the guard left this update out for its numbers: not a GradScaler, no rollback."""
    numbers = [value for value in (record.loss, record.grad_norm) if value is not None]
    bad = not all(map(math.isfinite, numbers))
    return record.skipped and record.loss_scale is None and bad


def skipped_verdict(record: StepMetric) -> Verdict:
    """The first update that the guard left out: told, because its cause is worth a look."""
    lost = record.loss is not None and not math.isfinite(record.loss)
    what = "loss and gradients are" if lost else "gradients are"
    return Verdict(
        at=record.at,
        fault=Fault.LOSS_NONFINITE if lost else Fault.GRAD_NONFINITE,
        severity=Severity.WARNING,
        reason=(
            f"{what} not finite at step {record.step}; the probe left this update out, and the"
            " weights are as before"
        ),
        onset=record.position,
        detected=record.position,
        onset_step=record.step,
        detected_step=record.step,
        evidence={"loss": record.loss, "grad_norm": record.grad_norm},
        line=record.line,
    )
