"""divergence: the loss rises slowly, or has risen and stays up.

Two tests that a spike detector is blind to. The CUSUM adds up small residuals (Page 1954, with
clipped robust residuals so that one wild record cannot fill it). The two-window test holds the
median of the last records against the lowest such median of the run: without it 23 of 34 labelled
bad runs were found, with it 32 (docs/science.md).
"""

from __future__ import annotations

import math
from collections import deque

from pydantic import ConfigDict, Field

from overnight.core.detect.finding import Finding, spell
from overnight.core.detect.level import HealingConfig, LossLevel, Standing
from overnight.core.detect.window import SortedWindow
from overnight.core.events import Fault, Level, StepMetric

MEDIAN_ERROR = 1.2533
"""The standard error of a median of n normal numbers is 1.2533 sigma / sqrt(n)."""

CLIP = 6.0
"""Residuals are cut to this many deviations: no single record adds more than 4.5 to the sum."""

LUCKY = 0.6
"""The lowest median of thousands stands in a window that was lucky, also in how little it varied:
at least this part of the trailing baseline's deviation is believed."""

STAYS_RECORDS, STAYS_NEED = 12, 10
"""A loss that has doubled is no transient after this: 0 hits on the healthy curves."""


class DriftConfig(HealingConfig):
    """Thresholds of slow divergence, in records. The baseline is that of `[detect.spike]`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    enabled: bool = Field(default=True, description="watch for slow divergence at all")
    slack: float = Field(
        1.5, gt=0, description="CUSUM: deviations above the median that a record may be for free"
    )
    limit: float = Field(30.0, gt=0, description="CUSUM: the sum of deviations that is a drift")
    window: int = Field(
        50, ge=STAYS_RECORDS, description="records whose median is held against the best"
    )
    rise: float = Field(
        0.10, gt=0, description="CUSUM: the median must also be this fraction above the baseline"
    )
    best_rise: float = Field(
        0.20, gt=0, description="fraction above the lowest median of the run that is a divergence"
    )
    best_sigmas: float = Field(
        12.0, gt=0, description="and this many standard errors of a median above it"
    )
    doubled: float = Field(
        1.0,
        gt=0,
        description="10 of 12 records this many lowest medians above the lowest are a divergence",
    )


SPARSE_DRIFT = {"window": 20}
"""The same for logs with a line every 10 steps or rarer (docs/science.md)."""


class DriftDetector:
    """CUSUM against the trailing baseline, two windows against the best level of the run."""

    def __init__(self, config: DriftConfig, level: LossLevel) -> None:
        self._config = config
        self._level = level
        self._short = SortedWindow(config.window)
        self._window: deque[StepMetric] = deque(maxlen=config.window)
        self._sum = 0.0
        self._began: StepMetric | None = None
        self._rose: StepMetric | None = None
        self._best: float | None = None
        self._best_magnitude = 0.0
        self._best_sigma = 0.0
        self._waited = 0

    def observe(self, record: StepMetric) -> Finding | None:
        """A finding while the loss stands, or heads, materially above where it was."""
        standing = self._level.measure(record)
        if standing is None:
            return None
        self._short.push(standing.loss)
        self._window.append(record)
        found = self._cusum(record, standing)
        if len(self._short) == self._config.window:
            worse = self._against_best(record, standing)
            if worse and (found is None or worse.level > found.level):
                found = worse
        if found is None:
            self._waited = max(0, self._waited - 1)
        return found

    def _cusum(self, record: StepMetric, standing: Standing) -> Finding | None:
        config = self._config
        if self._sum == 0.0:
            self._began = record
        self._sum = max(0.0, self._sum + min(standing.z, CLIP) - config.slack)
        if self._sum <= 0.5 * config.limit or self._began is None:
            return None
        median, rise = standing.median, config.rise * standing.magnitude
        newest = self._level.newest() - median
        if newest <= rise:
            return None  # many small residuals: an epoch's running mean that begins anew
        level, healing = Level.SUSPECT, ""
        if (
            self._sum > config.limit
            and len(self._short) == config.window
            and self._short.median() - median > rise
        ):
            level, healing = self._brake(median)
        reason = (
            f"loss has drifted up since step {self._began.step}: median of the last"
            f" {len(self._short)} records {spell(self._short.median())}, before {spell(median)}"
        )
        evidence = {"loss": record.loss, "median": median, "cusum": self._sum}
        return Finding(level, Fault.DIVERGENCE, reason + healing, self._began, "drift", evidence)

    def _against_best(self, record: StepMetric, standing: Standing) -> Finding | None:
        config, now = self._config, self._short.median()
        if self._best is None or now <= self._best:
            self._best, self._best_sigma = now, self._short.sigma(now)
            self._best_sigma = max(self._best_sigma, LUCKY * standing.sigma)
            self._best_magnitude = max(abs(now), 2.0 * self._best_sigma)
            self._rose = None
            return None
        error = MEDIAN_ERROR * self._best_sigma / math.sqrt(config.window)
        limit = max(config.best_rise * self._best_magnitude, config.best_sigmas * error)
        up = now - self._best
        if up <= 0.25 * limit:
            self._rose = None
        else:
            self._rose = self._rose or self._window[0]
        doubled = self._doubled_since()
        if doubled is not None:
            return self._finding(
                record,
                self._best,
                self._rose or doubled,
                f"loss stays at {spell(self._level.newest())}, far above its lowest median"
                f" {spell(self._best)}, since step {doubled.step}",
            )
        if self._rose is None or up <= 0.5 * limit:
            return None
        reason = (
            f"loss is above its best level since step {self._rose.step}: median of the last"
            f" {config.window} records {spell(now)}, lowest {spell(self._best)}"
        )
        far_up = up > limit and self._level.newest() - self._best > 0.75 * limit
        return self._finding(record, self._best, self._rose, reason, brake=far_up)

    def _finding(
        self,
        record: StepMetric,
        best: float,
        onset: StepMetric,
        reason: str,
        *,
        brake: bool = True,
    ) -> Finding:
        """`brake`: certain unless it is healing; else suspect."""
        level, healing = self._brake(best) if brake else (Level.SUSPECT, "")
        evidence = {"loss": record.loss, "median": self._short.median(), "best": best}
        return Finding(level, Fault.DIVERGENCE, reason + healing, onset, "drift", evidence)

    def _doubled_since(self) -> StepMetric | None:
        """The first of nearly all of the last records that are at twice the best level."""
        if self._best is None:
            return None
        limit = self._best + self._config.doubled * self._best_magnitude
        if self._level.recent[-1] <= limit:
            return None  # nearly always: spares the look at the others
        recent = list(self._level.recent)[-STAYS_RECORDS:]
        high = [loss > limit for loss in recent]
        if sum(high) < STAYS_NEED:
            return None
        return self._window[high.index(True) - len(recent)]

    def _brake(self, level: float) -> tuple[Level, str]:
        """Critical, unless it is healing and has not been waited for too long."""
        self._waited += 1
        config = self._config
        if self._waited <= config.heal_records and self._level.healing(
            level, near=config.heal_ratio, far=config.heal_ratio_far
        ):
            return Level.SUSPECT, "; it is healing, waiting"
        return Level.CRITICAL, ""
