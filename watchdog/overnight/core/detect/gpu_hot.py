"""gpu-hot: a card that stays too hot to go on, and the wait until it is cool enough to try again.

Temperatures that are not known are skipped: they neither fill a window nor break it. Only a
silence of more than SILENCE_S starts a window anew, since nobody knows what happened in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from overnight.core.events import Fault, GpuSample, Severity, Verdict

SILENCE_S = 60.0
"""Thirty polls of 2 s: longer than one NVML call was seen to hang (45 s, Xid 119)."""

MIN_SAMPLES = 3
"""A single wrong reading, or two, must not stop a run, however long the polls are apart."""

WARN_AFTER_S = 60.0
"""Long enough that a burst of load on a card that works near its target does not warn."""

REARM_BELOW_C = 3.0
"""NVML gives whole degrees, and fans swing a card by one or two around its target."""


class GpuHotConfig(BaseModel):
    """`[gpu]`: when heat ends an attempt, and when the next one may start."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    enabled: bool = Field(default=True, description="Whether a hot GPU is judged at all.")
    warn_c: float | None = Field(
        default=83,
        description="At or above this for 60 s the card is warm: a warning, no action. 83 is the "
        "target temperature that RTX 3080 to 4090 show in nvidia-smi -q: to stay above it means "
        "that the cooling does not keep up. `false` is no warning.",
    )
    kill_c: float = Field(
        default=88,
        description="At or above this for `window_s` the worker is stopped to cool the card. 88 is "
        "about the highest operating temperature that nvidia-smi -q shows for Ada, Hopper and "
        "Blackwell cards (87 to 88); they slow down 2 °C above it and switch off 5 to 8 °C above. "
        "Set 92 for an RTX 3080 or 3090 (slowdown at 95), 85 for an A100 (slowdown at 89).",
    )
    window_s: float = Field(
        default=10,
        ge=0,
        description="How long every sample, three at least, must be at or above `kill_c`: longer "
        "than the seconds a fan needs to answer a jump in load.",
    )
    resume_below_c: float = Field(
        default=65,
        description="Every GPU must be below this before the next attempt: more than 20 °C under "
        "`kill_c`, or a heatsink that is still warm brings the heat back within minutes.",
    )
    hold_s: float = Field(
        default=180,
        ge=0,
        description="How long it must stay below: the core cools in seconds once the load is gone, "
        "heatsink, memory and case in minutes.",
    )

    @field_validator("warn_c", mode="before")
    @classmethod
    def _off(cls, value: object) -> object:
        return None if value is False else value  # TOML has no null

    @model_validator(mode="after")
    def _levels_are_in_order(self) -> Self:
        for name, level in (("resume_below_c", self.resume_below_c), ("warn_c", self.warn_c)):
            if level is not None and level >= self.kill_c:
                raise ValueError(f"{name} ({level:g}) must be below kill_c ({self.kill_c:g})")
        return self


@dataclass(slots=True)
class _Streak:
    """How long known temperatures have been on one side of a level, without a long silence."""

    since: float = 0.0
    last: float = 0.0
    samples: int = 0

    def add(self, at: float, *, holds: bool) -> None:
        """Count a known temperature in, or end the streak with it."""
        if not holds:
            self.samples = 0
            return
        if self.samples == 0 or at - self.last > SILENCE_S:
            self.since, self.samples = at, 0
        self.last = at
        self.samples += 1

    @property
    def lasted_s(self) -> float:
        """From the first to the last known temperature of the streak."""
        return self.last - self.since if self.samples else 0.0


@dataclass(slots=True)
class _Heat:
    """What is known of one GPU: its streaks, and the strongest verdict of this excursion."""

    warm: _Streak
    hot: _Streak
    said: Severity | None = None


class GpuHotDetector:
    """One warning and one critical verdict at most for each excursion of each GPU, by its UUID.

    An excursion ends, and the verdicts are armed again, 3 °C below the lower of the levels.
    """

    def __init__(self, config: GpuHotConfig) -> None:
        self._config = config
        self._heat: dict[str, _Heat] = {}

    def reset(self) -> None:
        """Forget everything: a new attempt begins."""
        self._heat.clear()

    def observe(self, sample: GpuSample) -> Verdict | None:
        """Judge one GPU at one moment."""
        config, celsius = self._config, sample.temperature_c
        if not config.enabled or celsius is None:
            return None
        heat = self._heat.setdefault(sample.uuid, _Heat(_Streak(), _Streak()))
        lowest_c = config.kill_c if config.warn_c is None else config.warn_c
        heat.warm.add(sample.at, holds=celsius >= lowest_c)
        heat.hot.add(sample.at, holds=celsius >= config.kill_c)
        if celsius < lowest_c - REARM_BELOW_C:
            heat.said = None
        if heat.said is not Severity.CRITICAL and _filled(heat.hot, config.window_s):
            heat.said = Severity.CRITICAL
            return _verdict(sample, Severity.CRITICAL, config.kill_c, heat.hot.lasted_s)
        if config.warn_c is not None and heat.said is None and _filled(heat.warm, WARN_AFTER_S):
            heat.said = Severity.WARNING
            return _verdict(sample, Severity.WARNING, config.warn_c, heat.warm.lasted_s)
        return None


class Cooling:
    """The wait after a gpu-hot stop: over when every GPU has been cool for the whole hold time.

    It waits for each GPU whose temperature has been known since `at`; one that then falls silent
    does not become cool by that.
    """

    def __init__(self, config: GpuHotConfig, at: float) -> None:
        self._config = config
        self._began = at
        self._cool: dict[str, _Streak] = {}

    def observe(self, sample: GpuSample) -> bool:
        """Take one sample in; True when the next attempt may start."""
        celsius = sample.temperature_c
        if celsius is not None and sample.at >= self._began:
            streak = self._cool.setdefault(sample.uuid, _Streak())
            streak.add(sample.at, holds=celsius < self._config.resume_below_c)
        return bool(self._cool) and all(
            streak.samples > 0 and streak.lasted_s >= self._config.hold_s
            for streak in self._cool.values()
        )


def _filled(streak: _Streak, window_s: float) -> bool:
    return streak.samples >= MIN_SAMPLES and streak.lasted_s >= window_s


def _verdict(sample: GpuSample, severity: Severity, limit_c: float, lasted_s: float) -> Verdict:
    return Verdict(
        sample.at,
        Fault.GPU_HOT,
        severity,
        f"GPU {sample.index} ({sample.name}) at {sample.temperature_c:g} °C, "
        f"at or above {limit_c:g} °C for {lasted_s:.0f} s",
        evidence={
            "gpu": sample.index,
            "uuid": sample.uuid,
            "temperature_c": sample.temperature_c,
            "limit_c": limit_c,
            "lasted_s": lasted_s,
            "power_w": sample.power_w,
            "utilization_pct": sample.utilization_pct,
        },
    )
