"""What a line of worker output says: text -> Reading | WorkerEvent | None. Never raises.

One general reader of name-number pairs serves every text format, because a format that we never
saw must mostly work; JSON lines are read as JSON. What a name means is decided in one table of
roles, by the last words of the name. Every pattern is linear in the length of the line.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

MAX_LINE_CHARS = 16_384
"""Longer lines are cut before reading: metrics stand at the start, and 1 MiB lines exist."""

_EVAL_WORDS = frozenset({"val", "valid", "validation", "eval", "test", "dev", "heldout"})
_QUALIFIERS = frozenset({"step", "epoch", "avg", "mean", "batch", "ema"})
_NAMES = {
    **dict.fromkeys(("step", "steps", "iter", "iters", "iteration", "iterations"), "step"),
    **dict.fromkeys(("it", "update", "updates"), "step"),
    **dict.fromkeys(("epoch", "ep"), "epoch"),
    **dict.fromkeys(("lr", "learning rate", "learningrate"), "lr"),
    **dict.fromkeys(("grad norm", "grad norms", "gradnorm", "gnorm", "norm"), "grad_norm"),
    **dict.fromkeys(("gradient norm", "total norm", "grad l2 norm"), "grad_norm"),
    **dict.fromkeys(("tok s", "tokens s", "tok sec", "tokens sec", "tps"), "tokens_per_s"),
    **dict.fromkeys(("tokens per second", "tokens per s", "tokens per sec"), "tokens_per_s"),
    **dict.fromkeys(("loss scale", "grad scale"), "loss_scale"),
    **dict.fromkeys(("total steps", "max steps", "total iters"), "total_steps"),
    # Durations, not counters: "time per step: 0.51", "ms/it: 120".
    **dict.fromkeys(("per step", "per iter", "per it", "per iteration", "per update"), ""),
    **dict.fromkeys(("s step", "ms step", "sec step", "s it", "ms it", "sec it", "s iter"), ""),
    # Norms of something else: "param_norm=350.1" says nothing about the gradient.
    **dict.fromkeys(("param norm", "params norm", "parameter norm", "weight norm"), ""),
    **dict.fromkeys(("weights norm", "update norm", "layer norm", "batch norm"), ""),
}
"""The last words of a name -> the Reading field it fills, "" for none. Longer endings win."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The numbers of one line under their roles; None where the line does not give them."""

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

    @property
    def is_training_record(self) -> bool:
        """Whether the line reports a training step (an evaluation alone is none)."""
        return self.loss is not None or (self.grad_norm is not None and self.step is not None)


@dataclass(frozen=True, slots=True)
class WorkerEvent:
    """A line of the worker protocol that is no metric: hello, checkpoint, phase."""

    name: str
    fields: Mapping[str, Any] = field(default_factory=dict)


_NUMBER = (
    r"[-+]?(?:\d[\d,]*(?:\.\d*)?(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?"
    r"|[nN]a[nN]|NAN|[iI]nf(?:inity)?|INF)"
)
_PAIR = re.compile(
    r"([A-Za-z_][\w/.\-]{0,39}(?:[ \t](?!(?i:nan|inf|infinity)\b)"  # "Grad Norm", "train/loss"
    r"[A-Za-z_(][\w/.\-)]{0,19}){0,3})"
    r"[\"']?(?:[ \t]*[:=][ \t]*|[ \t]+)[\"']?(?:tensor\()?"  # ": ", "=", " ", "': '"
    rf"((?>{_NUMBER}))(?![\w.]*[A-Za-z_(])"  # not "3rd", "nanms"; atomic: linear in digits
    r"|"
    r"([A-Za-z_][\w/.\-]{0,39})[ \t]*[:=][ \t]*"  # the same, with a unit glued to the number
    rf"({_NUMBER})(?=(?:ms|s|it|k|M|G|%|x|GB|MB)\b)"
)
_WORD = re.compile(r"[a-z0-9]+")
_ROLES: dict[str, str] = {}


def _role(name: str) -> str:
    """What a name means: a Reading field, or "" for a number of no interest."""
    found = _ROLES.get(name)
    if found is None:
        if len(_ROLES) > 4096:  # a log that invents names must not grow us
            _ROLES.clear()
        found = _ROLES[name] = _classify(_WORD.findall(name.lower().replace("_", " ")))
    return found


def _classify(words: list[str]) -> str:
    if len(words) > 1 and words[-1] in _QUALIFIERS and words[-2].endswith("loss"):
        words = words[:-1]  # Lightning's train_loss_step
    for length in (3, 2, 1):
        role = _NAMES.get(" ".join(words[-length:]))
        if role is not None:
            return role
    if words and words[-1].endswith("loss"):
        return "loss" if _EVAL_WORDS.isdisjoint(words) else "eval_loss"
    return ""


def _number(text: str) -> float | None:
    """A printed number; thousands separators are allowed, anything else is None."""
    try:
        return float(text.replace(",", "") if "," in text else text)
    except ValueError:
        return None


def significant_digits(text: str) -> int:
    """How many digits a printed number shows, leading zeros and the exponent left out."""
    mantissa = re.split("[eE]", text, maxsplit=1)[0]
    return len(re.sub(r"\D", "", mantissa).lstrip("0"))


def _reading(pairs: Iterable[tuple[str, str | float]]) -> Reading | None:
    """The first value under each role; the plain name `loss` wins over longer ones."""
    values: dict[str, Any] = {}
    loss_text: str | float | None = None
    for name, raw in pairs:
        role = _role(name)
        if not role:
            continue
        value = _number(raw) if isinstance(raw, str) else raw
        if value is None:
            continue
        if role in ("step", "total_steps"):
            if not math.isfinite(value):
                continue
            value = int(value)
        better_name = role == "loss" and name.lower() == "loss" != values.get("loss_key", "")
        if role not in values or better_name:
            values[role] = value
            if role == "loss":
                values["loss_key"], loss_text = name, raw
    if not values:
        return None
    if isinstance(loss_text, str):
        values["digits"] = significant_digits(loss_text)
    return Reading(**values)


def read_text(line: str) -> Reading | None:
    """A line of free text, such as `Step 45100 | Loss: 2.338 | Grad Norm: 1.1 | LR: 2.9e-04`."""
    line = line[:MAX_LINE_CHARS]
    if "oss" not in line and "orm" not in line and "OSS" not in line:
        return None  # most lines of most logs leave here
    pairs = [
        (match[1], match[2]) if match[1] else (match[3], match[4]) for match in _PAIR.finditer(line)
    ]
    reading = _reading(pairs)
    if reading is None or reading.eval_loss is None:
        return reading
    # nanoGPT: "step 250: train loss 2.1, val loss 2.2" is an evaluation of both, not a step.
    return Reading(step=reading.step, eval_loss=reading.eval_loss, epoch=reading.epoch)


def read_json(line: str) -> Reading | WorkerEvent | None:
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
    reading = _reading(_numbers(value))
    if reading is not None and value.get("skipped") is True:
        return Reading(**{**_fields(reading), "skipped": True})
    return reading


def _numbers(value: Mapping[str, Any]) -> Iterable[tuple[str, str | float]]:
    for name, item in value.items():
        if isinstance(item, bool):
            continue
        if isinstance(item, int | float):
            try:
                yield name, float(item)
            except OverflowError:
                yield name, math.inf
        elif isinstance(item, str) and len(item) < 40:
            yield name, item


def _fields(reading: Reading) -> dict[str, Any]:
    return {name: getattr(reading, name) for name in Reading.__slots__}


def read_line(line: str) -> Reading | WorkerEvent | None:
    """A line of which nothing is known: JSON where it looks like an object, text otherwise."""
    if line.startswith('{"'):
        found = read_json(line)
        if found is not None:
            return found
    return read_text(line)
