"""Numbers that decide whether an update is clipped: an adaptive bound on the gradient norm."""

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
        self.change(how)

    def change(self, how: str) -> None:
        """Take another rule; the statistics of `auto` are kept in any case. Raises ValueError."""
        self._how = how
        self._fixed = None if how in ("off", "auto", "") else float(how)

    def observe(self, norm: float) -> None:
        """A norm before clipping."""
        self._auto.observe(norm)

    def bound(self) -> float | None:
        """The norm to clip to, None for none."""
        return self._auto.bound() if self._how == "auto" else self._fixed
