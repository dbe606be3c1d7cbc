"""Lines that are JSON: the worker protocol, and the metrics logs that scripts write themselves."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping

from overnight.core.formats.blanks import EXPECTED_TO_FAIL, mark
from overnight.core.formats.names import EVAL_WORDS, SPLIT_NAMES, Meaning, meaning
from overnight.core.formats.plan import MAX_STEP
from overnight.core.formats.reading import Loss, Reading, WorkerEvent
from overnight.core.formats.text import (
    MAX_LINE_CHARS,
    read_text,
    significant_digits,
    to_number,
)

PROTOCOL_EVENTS = frozenset(("hello", "checkpoint", "phase", "rebase", "probe"))
"""Lines of the worker protocol that are no metrics (docs/protocol.md)."""

_PLAIN_ROLES = ("eval_loss", "grad_norm", "lr", "tokens_per_s", "epoch", "loss_scale")


def read_protocol(line: str, *, means: Meaning = meaning) -> Reading | WorkerEvent | None:
    """A line of the worker protocol: an event, or an object with numbers in it."""
    values = _object(line)
    if values is None:
        return None
    event = values.get("event")
    if isinstance(event, str) and event in PROTOCOL_EVENTS:
        return WorkerEvent(event, values)
    return _reading(values, means)


def read_json(line: str, *, means: Meaning = meaning) -> Reading | None:
    """A line of any JSON-lines log; `event` is a key like any other, as structlog has it."""
    values = _object(line)
    return None if values is None else _reading(values, means)


def _object(line: str) -> dict[str, object] | None:
    if len(line) > MAX_LINE_CHARS:
        return None
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return values if isinstance(values, dict) else None


def _reading(values: Mapping[str, object], means: Meaning) -> Reading | None:
    """The first value under each role; an object that names its split as evaluation is one."""
    tag = values.get("tag", values.get("metric"))
    if isinstance(tag, str) and "value" in values:  # {"tag": "train/loss", "value": 2.3, "step": 1}
        values = {**values, tag: values["value"]}
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
    reading.blanks, reading.filled = _blanks_and_filled(values, means)
    reading.skipped = values.get("skipped") is True
    splits = [values.get(name) for name in SPLIT_NAMES]
    evaluates = any(isinstance(split, str) and split.lower() in EVAL_WORDS for split in splits)
    if evaluates and reading.loss is not None:
        return Reading(step=reading.step, eval_loss=reading.loss, epoch=reading.epoch)
    return reading if seen or reading.blanks else None


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


def _blanks_and_filled(
    values: Mapping[str, object], means: Meaning, outer: str = ""
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The losses that are `null`, and the names of everything that has a value."""
    blanks: list[str] = []
    filled: list[str] = []
    for key, item in values.items():
        name = f"{outer}{key}"
        if isinstance(item, dict) and not outer:
            more = _blanks_and_filled(item, means, f"{name}/")
            blanks += more[0]
            filled += more[1]
            continue
        role = means(name)[0]
        if item is None:
            blanks += [name] if role == "loss" else []
        elif role not in EXPECTED_TO_FAIL:
            filled.append(mark(name, item))
    return tuple(blanks), tuple(filled)


def read_line(
    line: str, *, decimal_comma: bool = False, means: Meaning = meaning
) -> Reading | None:
    """A line of which nothing is known: JSON where it looks like an object, text otherwise."""
    if line.startswith('{"'):
        found = read_json(line, means=means)
        if found is not None:
            return found
    return read_text(line, decimal_comma=decimal_comma)
