"""Published rules for a loss that has gone bad, re-expressed: True where the rule alarms.

2x mean of 100, 5 in a row    llm-foundry, KillLossSpike
3x mean of 10                 a doubling of the mean above it (Lightning, SpikeDetection)
mean + 6 sigma of 128         OLMo-core, SkipStepOptimizer
1.5x, 5x mean of 50           home-made callbacks
MAD z > 6 of 21               single-sample outlier tests
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Callable
from functools import partial


class MeanRule:
    """Loss above a multiple of the mean of the last `window` losses, `in_a_row` times."""

    def __init__(self, window: int, times: float, in_a_row: int = 1) -> None:
        self._losses: deque[float] = deque(maxlen=window)
        self._times, self._needed, self._count = times, in_a_row, 0

    def alarms(self, loss: float) -> bool:
        """Judge, then learn, as the callbacks do: a NaN in the window blinds them."""
        full = len(self._losses) == self._losses.maxlen
        high = full and loss > self._times * statistics.fmean(self._losses)
        self._count = self._count + 1 if high else 0
        self._losses.append(loss)
        return self._count >= self._needed


class SigmaRule:
    """Loss above mean + 6 sigma of the last 128."""

    def __init__(self) -> None:
        self._losses: deque[float] = deque(maxlen=128)

    def alarms(self, loss: float) -> bool:
        """Judge, then learn."""
        high = False
        if len(self._losses) == self._losses.maxlen:
            mean = statistics.fmean(self._losses)
            variance = statistics.fmean((x - mean) ** 2 for x in self._losses)
            high = loss > mean + 6 * math.sqrt(variance)
        self._losses.append(loss)
        return high


class MadRule:
    """One loss more than 6 robust deviations above the median of the last 21."""

    def __init__(self) -> None:
        self._losses: deque[float] = deque(maxlen=21)

    def alarms(self, loss: float) -> bool:
        """Judge, then learn."""
        high = False
        if len(self._losses) == self._losses.maxlen:
            middle = statistics.median(self._losses)
            mad = statistics.median(abs(x - middle) for x in self._losses)
            high = loss - middle > 6 * 1.4826 * mad > 0
        self._losses.append(loss)
        return high


Rule = MeanRule | SigmaRule | MadRule
RULES: dict[str, Callable[[], Rule]] = {
    "2x mean of 100, 5 in a row": partial(MeanRule, 100, 2.0, 5),
    "3x mean of 10": partial(MeanRule, 10, 3.0),
    "mean + 6 sigma of 128": SigmaRule,
    "1.5x mean of 50": partial(MeanRule, 50, 1.5),
    "5x mean of 50": partial(MeanRule, 50, 5.0),
    "MAD z > 6 of 21": MadRule,
}
