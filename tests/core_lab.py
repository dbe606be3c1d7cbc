"""Small builders for the tests of the pure core: records, real curves, checkpoints, verdicts."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from overnight.core.detect.panel import Panel, PanelConfig
from overnight.core.events import (
    CheckpointChecked,
    CheckpointSeen,
    Fault,
    Health,
    Identity,
    Position,
    Severity,
    StepMetric,
    Verdict,
)

NAN = float("nan")
INF = float("inf")
CURVES = Path(__file__).parent / "data" / "curves"


def record(step: int, loss: float | None = 2.0, grad: float | None = None, **more) -> StepMetric:
    """The record of a step of the first attempt, one a second."""
    values = {"at": float(step), "position": Position(1, step), "lr": None, **more}
    return StepMetric(step=step, loss=loss, grad_norm=grad, **values)


@cache
def curve(name: str) -> tuple[StepMetric, ...]:
    """A real curve from data/curves, numbered as one attempt."""
    with (CURVES / f"{name}.csv").open() as file:
        rows = list(csv.DictReader(file))
    return tuple(
        StepMetric(
            at=float(index),
            position=Position(1, index),
            step=int(row["step"]),
            loss=_number(row["loss"]),
            grad_norm=_number(row["grad_norm"]),
            lr=_number(row["lr"]),
        )
        for index, row in enumerate(rows, start=1)
    )


def _number(text: str) -> float | None:
    return float(text) if text else None


def flat(count: int, *, first: int = 1, stride: int = 1) -> list[StepMetric]:
    """A quiet curve: loss near 2.0 and gradient norm near 1.0, with a small regular ripple."""
    return [
        record(
            (first + i) * stride,
            2.0 + 0.01 * ((i * 7) % 5 - 2),
            1.0 + 0.02 * ((i * 3) % 7 - 3),
            position=Position(1, first + i),
        )
        for i in range(count)
    ]


def inject(
    records: Sequence[StepMetric],
    first: int,
    count: int,
    *,
    loss: float | None = None,
    times: float = 1.0,
    grad: float | None = None,
    grad_times: float = 1.0,
) -> list[StepMetric]:
    """The records with `count` of them, from index `first` on, replaced or multiplied."""
    changed = list(records)
    for index in range(first, min(first + count, len(changed))):
        old = changed[index]
        new_loss = old.loss * times if loss is None and old.loss is not None else loss
        new_grad = old.grad_norm * grad_times if grad is None and old.grad_norm else grad
        changed[index] = replace(old, loss=new_loss, grad_norm=new_grad)
    return changed


def verdicts(records: Iterable[StepMetric], config: PanelConfig | None = None) -> list[Verdict]:
    """All verdicts of a fresh panel on these records."""
    panel = Panel(config or PanelConfig())
    return [found for each in records if (found := panel.observe(each).verdict) is not None]


def criticals(records: Iterable[StepMetric], config: PanelConfig | None = None) -> list[Verdict]:
    """The critical ones among them."""
    return [v for v in verdicts(records, config) if v.severity is Severity.CRITICAL]


def verdict(
    fault: Fault,
    *,
    step: int | None = 400,
    onset: int | None = None,
    severity: Severity = Severity.CRITICAL,
    attempt: int = 1,
    cause: str | None = None,
) -> Verdict:
    """A verdict seen at a step, with its onset there unless another is given."""
    began = step if onset is None else onset
    return Verdict(
        at=0.0,
        fault=fault,
        severity=severity,
        reason=f"{fault} happened",
        onset=None if began is None else Position(attempt, began),
        detected=None if step is None else Position(attempt, step),
        onset_step=began,
        detected_step=step,
        cause=cause,
    )


def identity(path: str = "ckpt/step_250.pt", *, version: int = 1) -> Identity:
    """The identity of a checkpoint; another version is other bytes at the same path."""
    return Identity(path, inode=version, mtime_ns=version * 1000, size_bytes=1 << 20)


def seen(which: Identity, *, step: int | None = None, saved_utc: float = 0.0) -> CheckpointSeen:
    """That checkpoint became complete."""
    return CheckpointSeen(0.0, which, "torch", step, saved_utc)


def checked(which: Identity, health: Health = Health.VERIFIED, **more) -> CheckpointChecked:
    """The verifier's answer about it."""
    return CheckpointChecked(0.0, which, health, f"it is {health}", **more)
