"""What one line of output says, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["", "bar", "whole", "row", "rule", "skip", "summary"]
"""How the numbers stood: in text, in a progress bar, without any names, in a row of a table.
`rule` is a table's border or an end, `skip` a message that an update was left out, `summary`
an evaluation of both losses."""


@dataclass(slots=True)
class Loss:
    """One printed number that may be the training loss; `text` is None where it came as JSON."""

    name: str
    value: float
    text: str | None = None


@dataclass(slots=True)
class Reading:
    """The numbers of one line under their roles; None where the line does not give them.

    `losses` holds every candidate for the training loss, `loss` the best of them by name.
    `counted_to` is the number behind the step, as in `37/100`; an inexact step is a rounded one
    (`1.02k`), a whole epoch is printed without decimals. In rows of JSON and CSV `blanks` are the
    losses that have a name and no number, `filled` is what has any value (blanks.py).
    Not frozen only because one is built for every line: frozen doubles the cost.
    """

    step: int | None = None
    loss: float | None = None
    eval_loss: float | None = None
    grad_norm: float | None = None
    lr: float | None = None
    tokens_per_s: float | None = None
    epoch: float | None = None
    loss_scale: float | None = None
    total_steps: int | None = None
    skipped: bool = False
    loss_key: str | None = None
    digits: int | None = None
    counted_to: int | None = None
    whole_epoch: bool = False
    rank: int = 0
    exact: bool = True
    kind: Kind = ""
    losses: tuple[Loss, ...] = ()
    blanks: tuple[str, ...] = ()
    filled: tuple[str, ...] = ()

    @property
    def is_training_record(self) -> bool:
        """Whether the line reports a training step (an evaluation alone is none)."""
        return self.loss is not None or (
            self.step is not None and (self.grad_norm is not None or self.loss_scale is not None)
        )


@dataclass(slots=True)
class Placed:
    """A reading with its place: the step of the run (None: unknown) and the 1-based line."""

    reading: Reading
    line: int


@dataclass(frozen=True, slots=True)
class WorkerEvent:
    """A line of the worker protocol that is no metric: hello, checkpoint, phase."""

    name: str
    fields: Mapping[str, Any] = field(default_factory=dict)
