"""One update of one optimizer: what is changed for its time, and given back after it."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Seen:
    """One optimizer as it has been seen: how many updates, and what is being done to this one.

    The one that `leads` is the first that stepped: its updates are the steps of the run.
    """

    leads: bool
    updates: int = 0
    undo: list[Callable[[], None]] = field(default_factory=list)
    record: dict[str, Any] | None = None
    drop_next: bool = False


def undo(seen: Seen) -> None:
    """Give the script back what was changed for the time of one update. Never raises."""
    while seen.undo:
        undo = seen.undo.pop()
        with contextlib.suppress(Exception):  # the rest must still be given back
            undo()


def hide_gradients(optimizer: Any, seen: Seen) -> None:
    """Without gradients `step` changes nothing: not weights, not moments, not its own counters."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            grad = parameter.grad
            if grad is not None:
                seen.undo.append(functools.partial(setattr, parameter, "grad", grad))
                parameter.grad = None


def scale_rates(optimizer: Any, scale: float, seen: Seen) -> None:
    """Lower the rates for one update: the schedule neither sees nor undoes it."""
    if scale == 1.0:
        return
    tensors = set()
    for group in optimizer.param_groups:
        rate = group.get("lr")
        if hasattr(rate, "mul_"):  # capturable: the graph holds this very tensor
            if id(rate) in tensors:
                continue  # several groups share it
            tensors.add(id(rate))
            kept = rate.clone()
            seen.undo.append(functools.partial(rate.copy_, kept))
            rate.mul_(scale)
        elif isinstance(rate, (int, float)):
            seen.undo.append(functools.partial(group.__setitem__, "lr", rate))
            group["lr"] = rate * scale


def rate_of(optimizer: Any, scale: float) -> float | None:
    """The learning rate of the first group as it takes effect; None where there is none."""
    rate = optimizer.param_groups[0].get("lr") if optimizer.param_groups else None
    return None if rate is None else float(rate) * scale


def is_sharded(optimizer: Any) -> bool:
    """Whether this process holds only a part of each parameter (FSDP): others may see otherwise."""
    first = next((p for group in optimizer.param_groups for p in group["params"]), None)
    return hasattr(first, "_local_tensor") or type(first).__name__ == "FlatParameter"
