"""Closed loop: did the resumed worker do what it was told?

The logged learning rate is held against the one that was logged at the same step before.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from overnight.core.events import StepMetric

LR_TOLERANCE = 1.1
"""A logged rate up to 10 % above the expected one still counts as reduced (rounding in logs)."""

NEARBY_TOLERANCE = 1.5
"""The same for steps never logged before: the schedule may have moved since the last known one."""

PROOF_RECORDS = 3
"""Records in a row that decide whether the reduction took effect."""


class LrProof(StrEnum):
    """Whether the logged learning rate showed that a reduction took effect."""

    PROVED = "proved"
    UNPROVEN = "unproven"
    NOT_REDUCED = "not-reduced"


@dataclass
class LrWatch:
    """Closed loop: is the logged learning rate what the new scale asks for?

    `logged` maps steps of earlier attempts to (lr logged there, scale in force there); `newest`
    is the last of them, for steps that no earlier attempt reached.
    """

    scale: float
    logged: Mapping[int, tuple[float, float]]
    newest: tuple[float, float] | None = None
    proof: LrProof | None = None
    evidence: dict[str, float] = field(default_factory=dict)
    _above: int = 0
    _below: int = 0
    _blind: int = 0

    def observe(self, record: StepMetric) -> LrProof | None:
        """The proof once it is decided (again on later calls), else None."""
        if self.proof is not None:
            return self.proof
        same_step = self.logged.get(record.step)
        earlier = same_step or self.newest
        tolerance = LR_TOLERANCE if same_step else NEARBY_TOLERANCE
        lr = record.lr if record.lr is not None and math.isfinite(record.lr) else None
        if lr is None or earlier is None or not self._can_tell(earlier, tolerance):
            self._blind += 1
            never_shown = not self.logged and self.newest is None
            patience = 1 if never_shown else 10
            if self._blind >= patience * PROOF_RECORDS:
                self.proof = LrProof.UNPROVEN
            return self.proof
        lr_then, scale_then = earlier
        expected = lr_then * self.scale / scale_then
        self.evidence = {"step": record.step, "lr": lr, "expected_lr": expected}
        if lr > tolerance * expected:
            self._above, self._below = self._above + 1, 0
        else:
            self._above, self._below = 0, self._below + 1
        if self._above >= PROOF_RECORDS:
            self.proof = LrProof.NOT_REDUCED
        elif self._below >= PROOF_RECORDS:
            self.proof = LrProof.PROVED
        return self.proof

    def _can_tell(self, earlier: tuple[float, float], tolerance: float) -> bool:
        """Whether a rate that was not reduced would stand out: not from 0, nor by a small cut."""
        lr_then, scale_then = earlier
        return lr_then > 0 and not scale_then > self.scale >= scale_then / tolerance
