"""A level shift that comes back, alike, at the same place in the data is the data's doing.

Data whose order has parts (a new corpus, longer documents) lifts the loss at the same step in
each attempt, whatever the learning rate. Damage does not come back alike, with gradients that are
finite and normal and a loss that is falling again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

SAME_PLACE_RECORDS = 6
"""How far apart the onsets may be, in records: half of what a hit is counted over."""

SAME_HEIGHT = 0.25
"""How much the two rises may differ, as a part of the larger one."""


@dataclass(frozen=True, slots=True)
class Shift:
    """A critical rise: where it began, and how high it was in magnitudes of the level before.

    `calm`: the gradient norms were there, finite and normal, and the loss was not rising further.
    """

    step: int
    rise: float
    calm: bool


class ShiftMemory:
    """The critical rises of the run. Give it on from one attempt to the next."""

    def __init__(self, known: Iterable[Shift] = ()) -> None:
        self._earlier = tuple(known)
        self._new: list[Shift] = []

    @property
    def known(self) -> tuple[Shift, ...]:
        """All that were seen, for the next attempt."""
        return (*self._earlier, *self._new)

    def recognizes(self, shift: Shift, *, stride: float) -> bool:
        """Whether an earlier attempt had this one, and it is the data; else it is remembered.

        `stride`: steps between two records. What this attempt has seen itself proves nothing: one
        rise is often found by two tests.
        """
        again = shift.calm and any(
            abs(shift.step - old.step) <= SAME_PLACE_RECORDS * stride
            and abs(shift.rise - old.rise) <= SAME_HEIGHT * max(shift.rise, old.rise)
            for old in self._earlier
        )
        if not again:
            self._new.append(shift)
        return again
