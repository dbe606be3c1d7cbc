"""Where the loss stands: the baseline that spike and drift share, and whether an excess heals.

The baseline is a median and MAD of the last clean records. An outlier enters it cut to GATE
deviations, so it teaches slowly; a number that is not finite never enters it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field

from overnight.core.detect.finding import is_finite
from overnight.core.detect.window import SortedWindow
from overnight.core.events import StepMetric

LARGEST = 1e100
"""Numbers are cut to this before judging: far above float32, and their squares and sums stay
finite, so that no printed number can put an infinity into a baseline."""

GATE = 4.0
"""Records beyond this many deviations enter the baseline cut to it, so outliers teach slowly."""

QUARTET = 4
"""A level is a mean of this many records where one record alone would be noise."""

HEAL_NEAR = 12
"""Records in which a spike that heals quickly can be told from noise."""

HEAL_MEMORY = 36
"""Records that the healing test looks back: a spike that decays by 1/e in 20 records has lost
five sixths of its height by then, one that stays up has lost nothing."""


class HealingConfig(BaseModel):
    """When a rise of the loss is left alone because it is coming down by itself."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    heal_records: int = Field(
        100, ge=0, description="how long a rise that is shrinking may take to heal"
    )
    heal_ratio: float = Field(
        0.9,
        gt=0,
        lt=1,
        description="healing: the excess of the last 4 records over the worst 4 of the last 12",
    )
    heal_ratio_far: float = Field(
        0.8, gt=0, lt=1, description="healing: the same over the worst 4 of the last 36 records"
    )


@dataclass(frozen=True, slots=True)
class Standing:
    """One loss against the baseline before it. `z` is in robust deviations.

    `magnitude` is what a relative rise is measured by: max(|median|, 2 sigma), so that thresholds
    stay sane for losses near zero or below it.
    """

    loss: float
    median: float
    magnitude: float
    z: float
    sigma: float

    @property
    def excess(self) -> float:
        """How far the loss is above the median, in the loss's unit."""
        return self.loss - self.median


class LossLevel:
    """The trailing baseline of the loss; each record is measured once and then taught."""

    def __init__(self, window: int, min_records: int) -> None:
        """`window` clean records make the baseline; below `min_records` nothing is measured."""
        self._baseline = SortedWindow(window)
        self._min_records = min_records
        self._measured: StepMetric | None = None
        self._standing: Standing | None = None
        self.recent: deque[float] = deque(maxlen=HEAL_MEMORY)

    def measure(self, record: StepMetric) -> Standing | None:
        """Where this record stands; None without a finite loss or a baseline.

        Asked again about the same record it repeats its answer, so that detectors can share it.
        """
        if record is self._measured:
            return self._standing
        self._measured, self._standing = record, None
        loss = record.loss
        if loss is None or not is_finite(loss):
            return None
        loss = max(-LARGEST, min(LARGEST, loss))
        self.recent.append(loss)
        if len(self._baseline) < self._min_records:
            self._baseline.push(loss)
            return None
        median = self._baseline.median()
        sigma = self._baseline.sigma(median)
        scale = max(sigma, 0.01 * abs(median), 1e-12)
        z = (loss - median) / scale
        self._baseline.push(loss if z < GATE else median + GATE * scale)
        self._standing = Standing(loss, median, max(abs(median), 2.0 * sigma), z, sigma)
        return self._standing

    def newest(self) -> float:
        """The mean of the last four losses."""
        newest = list(self.recent)[-QUARTET:]
        return sum(newest) / len(newest)

    def healing(self, level: float, *, near: float, far: float) -> bool:
        """Whether the excess over `level` shrinks.

        It does when the mean of the last four records is below `near` times the worst four running
        of the last HEAL_NEAR records, or below `far` times that of the last HEAL_MEMORY records.
        """
        values = [loss - level for loss in self.recent]
        if len(values) < HEAL_NEAR:
            return False
        fours = [sum(values[end - QUARTET : end]) for end in range(QUARTET, len(values) + 1)]
        newest, lately = fours[-1], max(fours[QUARTET - HEAL_NEAR - 1 :])
        return newest < max(near * lately, far * max(fours))
