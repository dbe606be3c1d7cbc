"""Loss and gradient-norm spikes: robust to one bad batch, blind to no lasting one.

Defaults and their measurements: docs/science.md (66 healthy public
curves, 87 labelled runs). The baselines hold clean records only (level.py).
"""

from __future__ import annotations

from collections import deque
from typing import Self

from pydantic import ConfigDict, Field, model_validator

from overnight.core.detect.finding import Finding, is_finite, spell
from overnight.core.detect.level import LARGEST, HealingConfig, LossLevel, Standing
from overnight.core.detect.window import SortedWindow
from overnight.core.events import Fault, Level, StepMetric


class SpikeConfig(HealingConfig):
    """Thresholds of the spike detectors, in records unless the name says otherwise."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    enabled: bool = Field(default=True, description="judge the level of the loss and gradient norm")
    window: int = Field(200, ge=20, description="clean records that make the baseline")
    min_records: int = Field(60, ge=10, description="records before the level is judged at all")
    z: float = Field(6.0, gt=0, description="robust deviations above the median that make a hit")
    rise: float = Field(0.10, gt=0, description="a hit must also be this fraction above the median")
    need: int = Field(
        10, ge=1, description="hits among the last `persist` records that are critical"
    )
    persist: int = Field(12, ge=3, description="records over which hits are counted")
    explosion: float = Field(
        10.0,
        gt=1,
        description="two records this many medians above the median are critical at once",
    )
    leap: float = Field(
        2.0,
        gt=0,
        description="three records this many medians above the median are critical unless falling",
    )
    grad_ratio: float = Field(
        5.0, gt=1, description="gradient norm over its median: 5 of 6 records"
    )
    grad_ratio_high: float = Field(10.0, gt=1, description="the same for 3 of 4 records")
    adversarial: bool = Field(
        default=False, description="GAN or RL losses: their level says nothing, judge NaN only"
    )

    @model_validator(mode="after")
    def _can_ever_speak(self) -> Self:
        if self.need > self.persist:
            raise ValueError(f"need ({self.need}) must not be above persist ({self.persist})")
        if self.min_records > self.window:
            raise ValueError(
                f"min_records ({self.min_records}) must not be above window ({self.window})"
            )
        return self


SPARSE = {"window": 100, "min_records": 20, "need": 4, "persist": 5}
"""The same for logs with a line every 10 steps or rarer (docs/science.md)."""

LEAP_RECORDS = 3
"""0 hits at a doubled loss in 290,000 records of real curves, GANs and PINNs included."""


class LossSpikeDetector:
    """Level plus persistence, with a brake for spikes that are healing."""

    def __init__(self, config: SpikeConfig, level: LossLevel | None = None) -> None:
        """`level` is shared with other detectors of the same records; default: one of its own."""
        self._config = config
        self._level = level or LossLevel(config.window, config.min_records)
        self._hits: deque[StepMetric | None] = deque([None] * config.persist, config.persist)
        self._onset: StepMetric | None = None
        self._exploded = 0
        self._leaps: deque[float] = deque(maxlen=LEAP_RECORDS)
        self._waited = 0

    def observe(self, record: StepMetric) -> Finding | None:
        """A finding while the loss stands out of its baseline."""
        standing = self._level.measure(record)
        if standing is None:
            return None
        excess, magnitude = standing.excess, standing.magnitude
        hit = standing.z > self._config.z and excess > self._config.rise * magnitude
        if not hit and self._onset is None:  # nothing is remembered, and nothing begins
            self._waited = max(0, self._waited - 1)
            return None
        self._hits.append(record if hit else None)
        exploding = excess > self._config.explosion * magnitude
        self._exploded = self._exploded + 1 if exploding else 0
        if hit and excess > self._config.leap * magnitude:
            self._leaps.append(standing.loss)
        else:
            self._leaps.clear()
        return self._judge(record, standing)

    def _judge(self, record: StepMetric, standing: Standing) -> Finding | None:
        hits = [hit for hit in self._hits if hit is not None]
        if not hits:
            self._onset = None
            self._exploded = 0
            return None
        onset = self._onset = self._onset or hits[0]  # a healing spike outlives its window
        median = standing.median
        evidence = {"loss": record.loss, "median": median, "z": standing.z, "hits": len(hits)}
        reason = (
            f"loss {spell(record.loss)} against a median of {spell(median)}"
            f" in {len(hits)} of the last {len(self._hits)} records since step {onset.step}"
        )
        level = Level.SUSPECT
        if self._exploded >= 2:
            level = Level.CRITICAL
            reason = f"loss exploded: {spell(record.loss)}, median {spell(median)}, two in a row"
        elif self._leapt():
            level = Level.CRITICAL
            reason = (
                f"loss leapt to {spell(record.loss)} from a median of {spell(median)}"
                f" and stays there for {LEAP_RECORDS} records since step {onset.step}"
            )
        elif len(hits) >= self._config.need:
            self._waited += 1
            if self._waited > self._config.heal_records or not self._healing(median):
                level = Level.CRITICAL
            else:
                reason += "; it is healing, waiting"
        elif self._hits[-1] is None:
            return None
        return Finding(level, Fault.LOSS_SPIKE, reason, onset, "spike", evidence)

    def _leapt(self) -> bool:
        """Three records far up, the newest no lower than the two before it on average."""
        leaps = self._leaps
        return len(leaps) == LEAP_RECORDS and 2 * leaps[-1] >= leaps[0] + leaps[1]

    def _healing(self, median: float) -> bool:
        near, far = self._config.heal_ratio, self._config.heal_ratio_far
        return self._level.healing(median, near=near, far=far)


class GradSpikeDetector:
    """Ratios to the trailing median; the rule had 0 false episodes in 215,477 real records."""

    def __init__(self, config: SpikeConfig, *, sparse: bool) -> None:
        self._config = config
        self._sparse = sparse
        self._baseline = SortedWindow(config.window)
        self._over: deque[tuple[StepMetric, float]] = deque(maxlen=6)

    def observe(self, record: StepMetric) -> Finding | None:
        """SUSPECT at one record above the high ratio, critical at a lasting one."""
        grad = record.grad_norm
        if grad is None or not is_finite(grad) or grad <= 0:
            return None
        grad = min(LARGEST, grad)
        if len(self._baseline) < self._config.min_records:
            self._baseline.push(grad)
            return None
        median = self._baseline.median()
        ratio = grad / median
        self._over.append((record, ratio))
        clean = ratio <= self._config.grad_ratio
        # An outlier counts as the largest clean value: the median may follow a slow rise only.
        self._baseline.push(grad if clean else self._config.grad_ratio * median)
        if clean and not any(value > self._config.grad_ratio for _entry, value in self._over):
            return None
        return self._judge(record, median=median, ratio=ratio)

    def _judge(self, record: StepMetric, *, median: float, ratio: float) -> Finding | None:
        low = [entry for entry, value in self._over if value > self._config.grad_ratio]
        last_four = list(self._over)[-4:]
        high = [entry for entry, value in last_four if value > self._config.grad_ratio_high]
        last_three = list(self._over)[-3:]
        sparse = [entry for entry, value in last_three if value > self._config.grad_ratio]
        critical = len(sparse) >= 2 if self._sparse else len(low) >= 5 or len(high) >= 3
        if not critical and ratio <= self._config.grad_ratio_high:
            return None
        onset = low[0] if low else record
        reason = (
            f"gradient norm {spell(record.grad_norm)} is {ratio:.0f}x its median {spell(median)}"
        )
        if critical:
            reason += f", {len(low)} of the last {len(self._over)} records since step {onset.step}"
        evidence = {"grad_norm": record.grad_norm, "median": median, "ratio": ratio}
        level = Level.CRITICAL if critical else Level.SUSPECT
        return Finding(level, Fault.GRAD_SPIKE, reason, onset, "grad-spike", evidence)
