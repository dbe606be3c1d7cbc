"""What the policy knows when it decides: its config, the past, and the state of things. Values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from overnight.core.events import Action, Fault, Target
from overnight.core.resume import Means


class FaultPolicy(BaseModel):
    """`[policy.FAULT]`: overrides of the defaults for one fault."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    action: Action | None = Field(None, description="record, notify, restart, rollback, cool, halt")
    lr_factor: float | None = Field(None, gt=0, le=1, description="multiplies the learning rate")
    lr_climb_after_steps: int | None = Field(
        None,
        ge=0,
        description="clean steps after which a lowered rate returns to what it was; 0: it stays"
        " down (the default, but 200 for gpu-hot)",
    )
    delay_s: float | None = Field(None, ge=0, description="wait at least this long before a start")
    tell: tuple[str, ...] | None = Field(
        None, description='which receivers are told, by kind, e.g. ["ntfy"]; []: nobody'
    )
    skip: bool | None = Field(None, description="skip the data around the fault when it comes back")
    in_flight: Literal["first", "only", "never"] | None = Field(
        None,
        description="go back in place, without a restart, where the probe runs: before everything"
        " else (the default), instead of everything else, or never",
    )

    @field_validator("action")
    @classmethod
    def _is_a_choice(cls, value: Action | None) -> Action | None:
        if value is Action.CHECKPOINT:
            raise ValueError("checkpoint is no action of a policy; use notify or restart")
        return value


class BudgetConfig(BaseModel):
    """`[budget]`: when to give up."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    attempts: int = Field(3, ge=1, description="recoveries for one incident")
    recoveries: int = Field(10, ge=1, description="recoveries within window_s")
    window_s: float = Field(86_400, gt=0, description="the window for `recoveries`")
    stuck: int = Field(3, ge=1, description="recoveries in a row without min_progress_steps")
    min_progress_steps: int = Field(200, ge=1, description="steps that count as real progress")
    backoff_s: float = Field(10, ge=0, description="wait before the second restart; doubles")
    backoff_max_s: float = Field(600, ge=0, description="longest wait between restarts")


class PolicyConfig(BaseModel):
    """All that decides: the budget and the per-fault overrides."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    budget: BudgetConfig = Field(default_factory=BudgetConfig)
    faults: dict[Fault, FaultPolicy] = Field(default_factory=dict)
    min_lr_scale: float = Field(0.0625, gt=0, le=1)
    from_scratch: bool = False


@dataclass(frozen=True, slots=True)
class PastRecovery:
    """One recovery of the past: what for, where it was seen, and where it resumed from."""

    at_utc: float
    fault: Fault
    incident: int
    detected_step: int | None
    onset_step: int | None
    target_step: int | None
    reached_step: int | None = None
    in_flight: bool = False

    @property
    def reach_steps(self) -> int | None:
        """How far before the onset it went back."""
        if self.onset_step is None or self.target_step is None:
            return None
        return self.onset_step - self.target_step


@dataclass(frozen=True, slots=True)
class Situation:
    """What the policy knows beside the verdict; `targets` are newest first, usable as they are.

    `relief`: what earlier OOMs were answered with (1: the allocator, 2 and more: batch halved).
    """

    now_utc: float
    means: Means
    targets: tuple[Target, ...]
    checkpoints_exist: bool
    any_record: bool
    lr_scale: float
    incident: int
    past: tuple[PastRecovery, ...] = ()
    records_since_resume: int | None = None
    signatures: tuple[str, ...] = ()
    relief: int = 0
