"""Numbers that decide: when a gradient is clipped, and whether a state is worth keeping."""

from __future__ import annotations

import math

WARM_UP_STEPS = 25
Z_LIMIT = 2.5
ALPHA = 0.97
LEAST_SPREAD = 0.1


class AutoClip:
    """A bound that follows the gradient norm: clip what is an outlier of its logarithm.

    After ZClip (Kumar et al. 2025, arXiv:2504.02507): an exponential average of mean and variance
    with alpha 0.97, a warm-up of 25 steps, and norms more than 2.5 deviations above the mean are
    clipped. Here of the logarithm, because norms spread by factors; and a deviation of at least
    0.1, so that a norm that hardly varies may double without being touched.
    """

    def __init__(self) -> None:
        self._mean = 0.0
        self._variance = 0.0
        self._seen = 0

    def observe(self, norm: float) -> None:
        """A gradient norm as it was before clipping; what is not finite teaches nothing.

        An outlier teaches no more than the bound itself would: spikes do not raise it.
        """
        if not (math.isfinite(norm) and norm > 0):
            return
        value, limit = math.log(norm), self.bound()
        if limit is not None:
            value = min(value, math.log(limit))
        self._seen += 1
        weight = max(1.0 / self._seen, 1.0 - ALPHA)
        difference = value - self._mean
        self._mean += weight * difference
        self._variance = (1.0 - weight) * (self._variance + weight * difference * difference)

    def bound(self) -> float | None:
        """The largest norm that is left alone; None during the warm-up."""
        if self._seen < WARM_UP_STEPS:
            return None
        spread = max(math.sqrt(self._variance), LEAST_SPREAD)
        return math.exp(self._mean + Z_LIMIT * spread)


class Clip:
    """How gradients are clipped: `off`, to a fixed norm, or to one that follows the norm."""

    def __init__(self, how: str) -> None:
        self._auto = AutoClip()
        self._fixed: float | None = None
        self.change(how)

    def change(self, how: str) -> None:
        """Take another rule; the statistics of `auto` are kept in any case. Raises ValueError.

        A fixed norm that was there before `auto` still holds.
        """
        self._how = how
        if how != "auto":
            self._fixed = None if how in ("off", "") else float(how)

    def observe(self, norm: float) -> None:
        """A norm before clipping."""
        self._auto.observe(norm)

    def bound(self) -> float | None:
        """The norm to clip to, None for none."""
        bounds = (self._fixed, self._auto.bound() if self._how == "auto" else None)
        return min((bound for bound in bounds if bound is not None), default=None)


RISE = 0.25
PATIENCE = 10


class Calm:
    """Whether the loss is where it was when the last snapshot was taken.

    While a run is going wrong, new snapshots would push the good ones out before anybody has
    decided to go back. A loss that has risen by a quarter (average over about 10 updates) is
    waited for; but a change of data is no fault, so not for more than PATIENCE snapshots.
    """

    def __init__(self) -> None:
        self._average: float | None = None
        self._kept: float | None = None
        self._missed = 0

    def observe(self, loss: float) -> None:
        """A loss as it was reported."""
        if not math.isfinite(loss):
            self._average = math.inf
        elif self._average is None or math.isinf(self._average):
            self._average = loss
        else:
            self._average += 0.1 * (loss - self._average)

    def allows(self) -> bool:
        """Whether a snapshot that is due may be taken."""
        average, kept = self._average, self._kept
        risen = average is not None and (
            math.isinf(average) or (kept is not None and average - kept > RISE * abs(kept))
        )
        if risen and self._missed < PATIENCE:
            self._missed += 1
            return False
        self._missed, self._kept = 0, average
        return True
