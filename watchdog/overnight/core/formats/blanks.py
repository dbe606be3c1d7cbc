"""A number that is missing from a row that is otherwise as ever: a NaN that was written as nothing.

pandas writes NaN as an empty cell, orjson as `null`. But most empty cells mean only that this row
is about something else: an evaluation, a learning rate, every tenth step.
"""

from __future__ import annotations

import math

from overnight.core.formats.reading import Loss, Reading

SURE_ROWS = 4
"""After so many rows in succession that had the loss, its absence is news."""


class Blanks:
    """Feed it every row of one file, in order."""

    def __init__(self) -> None:
        self._others: tuple[str, ...] = ()
        self._rows = 0

    def judge(self, row: Reading) -> Reading:
        """The row; its loss is NaN where it was left blank and everything else is as before."""
        if row.loss is not None:
            self._rows = self._rows + 1 if row.others == self._others else 1
            self._others = row.others
        elif row.blank and row.eval_loss is None:
            if self._rows < SURE_ROWS or row.others != self._others:
                self._rows = 0
            else:
                row.loss, row.loss_key = math.nan, row.blank
                row.losses = (Loss(row.blank, math.nan, ""),)
        return row
