"""A record as a table of two columns, a row a number, as Stable-Baselines3 and rsl_rl print it."""

from __future__ import annotations

import math

from overnight.core.formats.names import Meaning
from overnight.core.formats.plan import significant_digits
from overnight.core.formats.reading import Loss, Reading

MAX_ROWS = 200


class Table:
    """Collects the rows of one table; `line` is that of its last row."""

    def __init__(self, means: Meaning) -> None:
        self._means = means
        self._rows: dict[str, Loss] = {}
        self.line = 0

    def __bool__(self) -> bool:
        return bool(self._rows)

    def add(self, row: Loss, line: int) -> None:
        """One more row; a table has no more than MAX_ROWS."""
        if len(self._rows) < MAX_ROWS:
            self._rows[row.name] = row
        self.line = line

    def take(self) -> Reading | None:
        """The table as one reading, and an empty one from here on; None if it has no loss."""
        rows, self._rows = list(self._rows.values()), {}
        found, losses = Reading(kind="row"), []
        for row in rows:
            role, rank = self._means(row.name)
            if role == "loss":
                losses.append(row)
            elif role == "step" and math.isfinite(row.value) and rank > found.rank:
                found.step, found.rank = int(row.value), rank
            elif role in ("lr", "grad_norm") and getattr(found, role) is None:
                setattr(found, role, row.value)
        if len(rows) < 2 or not losses:
            return None
        found.losses = tuple(losses)
        choose(found, self._means)
        return found


def choose(found: Reading, means: Meaning) -> None:
    """Let the loss of a reading be the best of its losses by name."""
    take(found, min(found.losses, key=lambda loss: means(loss.name)[1]))


def take(found: Reading, loss: Loss) -> None:
    """Let this be the loss of a reading."""
    found.loss, found.loss_key = loss.value, loss.name
    found.digits = significant_digits(loss.text) if loss.text is not None else None
