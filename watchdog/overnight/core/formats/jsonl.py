"""Lines that are JSON: the worker protocol, and the metrics logs that scripts write themselves."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping

from overnight.core.formats.names import EVAL_WORDS, Meaning, meaning
from overnight.core.formats.plan import MAX_STEP
from overnight.core.formats.reading import Loss, Reading, WorkerEvent
from overnight.core.formats.text import (
    MAX_LINE_CHARS,
    read_text,
    significant_digits,
    to_number,
)

_PLAIN_ROLES = ("eval_loss", "grad_norm", "lr", "tokens_per_s", "epoch", "loss_scale")


def read_json(line: str, *, means: Meaning = meaning) -> Reading | WorkerEvent | None:
    """A line of the worker protocol, or of any JSON-lines log: one object with numbers in it."""
    if len(line) > MAX_LINE_CHARS:
        return None
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    event = value.get("event")
    if isinstance(event, str):
        return WorkerEvent(event, value)
    reading = _reading(value, means)
    if reading is not None and value.get("skipped") is True:
        reading.skipped = True
    return reading


def _reading(values: Mapping[str, object], means: Meaning) -> Reading | None:
    """The first value under each role; an object that names its split as evaluation is one."""
    reading, seen, losses = Reading(), False, []
    for name, value, text in _numbers(values):
        role, rank = means(name)
        if role == "loss":
            losses.append((rank, Loss(name, value, text)))
            seen = True
        elif role in ("step", "total_steps"):
            if math.isfinite(value) and abs(value) <= MAX_STEP:
                seen = True
                if role == "total_steps":
                    reading.total_steps = int(value)
                elif reading.step is None or rank > reading.rank:
                    reading.step, reading.rank = int(value), rank
        elif role in _PLAIN_ROLES and getattr(reading, role) is None:
            setattr(reading, role, value)
            seen = True
    if losses:
        best = min(losses, key=lambda pair: pair[0])[1]
        reading.losses = tuple(loss for _rank, loss in losses)
        reading.loss, reading.loss_key = best.value, best.name
        reading.digits = None if best.text is None else significant_digits(best.text)
    split = values.get("split", values.get("mode", values.get("phase")))
    if isinstance(split, str) and split.lower() in EVAL_WORDS and reading.loss is not None:
        return Reading(step=reading.step, eval_loss=reading.loss, epoch=reading.epoch)
    return reading if seen else None


def _numbers(
    values: Mapping[str, object], depth: int = 0
) -> Iterable[tuple[str, float, str | None]]:
    """Every number under its name; one inside another object has both names, as `train/loss`."""
    for name, item in values.items():
        if isinstance(item, bool):
            continue
        if isinstance(item, int | float):
            try:
                yield name, float(item), None
            except OverflowError:
                yield name, math.inf, None
        elif isinstance(item, str) and len(item) < 40:
            number = to_number(item)
            if number is not None:
                yield name, number, item
        elif isinstance(item, dict) and depth < 2:
            yield from _numbers({f"{name}/{key}": inner for key, inner in item.items()}, depth + 1)


def read_line(
    line: str, *, decimal_comma: bool = False, means: Meaning = meaning
) -> Reading | WorkerEvent | None:
    """A line of which nothing is known: JSON where it looks like an object, text otherwise."""
    if line.startswith('{"'):
        found = read_json(line, means=means)
        if found is not None:
            return found
    return read_text(line, decimal_comma=decimal_comma)
