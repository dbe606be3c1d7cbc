"""What one detector says about one record, and the small helpers that detectors share."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from overnight.core.events import Fault, Level, StepMetric


@dataclass(frozen=True, slots=True)
class Finding:
    """A level with its fault and reason; `onset` is the first record of what was found.

    `kind` names the class of evidence, so that NaN after a spike speaks again.
    """

    level: Level
    fault: Fault
    reason: str
    onset: StepMetric
    kind: str = ""
    evidence: Mapping[str, Any] = field(default_factory=dict)


class Detector(Protocol):
    """Judges accepted records one by one; state is its own and rebuilt, never stored."""

    def observe(self, record: StepMetric) -> Finding | None:
        """The finding for this record, or None when all is well."""
        ...


def is_finite(value: float | None) -> bool:
    """Whether there is a value and it is neither NaN nor infinite."""
    return value is not None and math.isfinite(value)


def spell(value: float | None) -> str:
    """A number as a person reads it in a reason."""
    if value is None:
        return "nothing"
    return f"{value:.4g}" if math.isfinite(value) else str(value)
