"""A number that is missing from a row that is otherwise as ever: a NaN that was written as nothing.

pandas writes NaN as an empty cell, orjson as `null`. But most empty cells mean only that this row
is about something else (an evaluation, a learning rate), or that the loss is written now and then.
"""

from __future__ import annotations

import math

from overnight.core.formats.reading import Loss, Reading

EXPECTED_TO_FAIL = ("grad_norm", "eval_loss")
"""What goes NaN together with the loss does not tell one row from another."""

MAX_WORD_CHARS = 16

SURE_ROWS = 4
"""Rows with a loss in succession before its absence can be news."""

CAREFUL_ROWS, MAX_WAIT_ROWS = 100, 20
"""After 100 rows with a loss the first one without is news. After fewer it may have been written at
each of the first steps only: 20 rows are waited for after 5 of them, 10 after 10."""


def mark(name: str, value: object) -> str:
    """A filled cell, for the comparison of rows; a short word such as `eval` counts, too."""
    word = isinstance(value, str) and len(value) <= MAX_WORD_CHARS and value.isalpha()
    return f"{name}={value}" if word else name


class Blanks:
    """Feed it every row of one file, in order."""

    def __init__(self) -> None:
        self._key: str | None = None
        self._filled: frozenset[str] = frozenset()
        self._evaluates = False
        self._rows = 0
        self._missing = 0
        self._now_and_then = False

    def judge(self, row: Reading) -> Reading:
        """The row; its loss is NaN where it was left blank and everything else is as before."""
        key = self._key
        if key is not None and key in row.blanks:
            if self._is_like_the_others(row, key) and self._is_certain(row):
                row.loss, row.loss_key = math.nan, key
                row.losses = (*row.losses, Loss(key, math.nan, ""))
        elif row.loss is not None and row.loss_key is not None:
            self._learn(row, row.loss_key)
        return row

    def _learn(self, row: Reading, key: str) -> None:
        filled, evaluates = frozenset(row.filled) - {key}, row.eval_loss is not None
        same = (key, filled) == (self._key, self._filled)
        if not same:
            self._rows = 0
        self._key, self._filled = key, filled
        self._evaluates = evaluates and (self._evaluates or not self._rows)
        self._now_and_then |= same and self._missing > 0  # it is back
        self._rows, self._missing = self._rows + 1, 0

    def _is_like_the_others(self, row: Reading, key: str) -> bool:
        """But for the loss, and for an evaluation that may be NaN as well."""
        return frozenset(row.filled) - {key} == self._filled and (
            self._evaluates or row.eval_loss is None
        )

    def _is_certain(self, row: Reading) -> bool:
        self._missing += 1
        if self._now_and_then or self._rows < SURE_ROWS:
            return False
        if self._evaluates and row.eval_loss is None:
            return True  # both are gone from rows that always had both
        return self._missing >= min(MAX_WAIT_ROWS, math.ceil(CAREFUL_ROWS / self._rows))
