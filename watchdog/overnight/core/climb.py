"""A learning rate that was lowered for a while: when it returns to what it was."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class Climb:
    """The way back to the scale `back_to`, after so many clean steps in a row.

    Only where the training itself was sound (heat). `since` is the step from which they are
    counted, None before the first record.
    """

    back_to: float
    after_steps: int
    since: int | None = None

    def after(self, step: int, *, clean: bool) -> Climb:
        """The climb once a record of this step has been seen; a bad one begins the count anew."""
        if self.since is None or not clean or step < self.since:
            return replace(self, since=step)
        return self

    def is_due(self, step: int) -> bool:
        """Whether enough clean steps have passed."""
        return self.since is not None and step - self.since >= self.after_steps

    def as_row(self) -> dict[str, Any]:
        """The form in which it is kept on disk."""
        return asdict(self)

    @classmethod
    def from_row(cls, row: Mapping[str, Any] | None) -> Climb | None:
        """The inverse of `as_row`."""
        return cls(**row) if row else None
