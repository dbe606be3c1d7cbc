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

    The updates of the one that `leads` are the steps of the run: the first that stepped, until it
    is gone or steps no more. `depth` counts calls of `step` inside one another.
    """

    leads: bool = False
    updates: int = 0
    depth: int = 0
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


def scale_rates(optimizer: Any, scale: float, seen: Seen, scaled: set[int]) -> None:
    """Lower the rates for one update: the schedule neither sees nor undoes it.

    `scaled` holds what is lowered at the moment: groups may share a rate, and optimizers that wrap
    others (SAM) share their groups.
    """
    if scale == 1.0:
        return
    for group in optimizer.param_groups:
        rate = group.get("lr")
        tensor = hasattr(rate, "mul_")  # capturable: the graph holds this very tensor
        key = id(rate) if tensor else id(group)
        if key in scaled or not (tensor or isinstance(rate, (int, float))):
            continue
        scaled.add(key)
        seen.undo.append(functools.partial(scaled.discard, key))
        if tensor:
            seen.undo.append(functools.partial(rate.copy_, rate.clone()))
            rate.mul_(scale)
        else:
            group["lr"] = rate * scale
            seen.undo.append(functools.partial(_raise_rate, group, scale, rate))


def _raise_rate(group: dict[str, Any], scale: float, before: float) -> None:
    """The rate as it was; one that the step itself has changed stays changed."""
    now = group["lr"]
    group["lr"] = before if now == before * scale else now / scale


def rates_of(optimizer: Any, scale: float) -> list[float | None]:
    """The learning rate of each group as it takes effect; None where there is none."""
    rates = (group.get("lr") for group in optimizer.param_groups)
    return [None if rate is None else float(rate) * scale for rate in rates]


def shares_parameters(optimizer: Any, other: Any) -> bool:
    """Whether one of the two only wraps the other."""
    mine, theirs = (
        {id(p) for group in each.param_groups for p in group["params"]}
        for each in (optimizer, other)
    )
    return not mine.isdisjoint(theirs)


def is_sharded(optimizer: Any) -> bool:
    """Whether this process holds only a part of each parameter (FSDP): others may see otherwise."""
    first = next((p for group in optimizer.param_groups for p in group["params"]), None)
    return hasattr(first, "_local_tensor") or type(first).__name__ == "FlatParameter"
