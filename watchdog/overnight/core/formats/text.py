"""One general reader of name-number pairs: a format that we never saw must mostly work.

Logs repeat themselves: what surrounds the numbers of a line is looked up, and only a line whose
surroundings are new is taken apart (plan.py). Every pattern is linear in the length of the line.
"""

from __future__ import annotations

import re

from overnight.core.formats import special
from overnight.core.formats.plan import Plan, plan_of, significant_digits, to_number
from overnight.core.formats.reading import Reading

__all__ = ["MAX_LINE_CHARS", "has_decimal_comma", "read_text", "significant_digits", "to_number"]

MAX_LINE_CHARS = 1 << 16
"""Longer lines are cut before reading: metrics stand at the start, and 1 MiB lines exist."""

MAX_PLANS, MAX_PLAN_CHARS = 2048, 1000
"""Surroundings that are remembered, and the longest line whose surroundings are."""

# Every number of a line, however glued; what lies between them, a sign or `nan` included, makes
# the surroundings.
_TOKEN = re.compile(r"(\d++(?:[.,]\d++)*+(?:[eE][-+]?\d++)?+)")
_DECIMAL_COMMA = re.compile(
    r"(?<![\d.,])(?:0,\d+|\d+,(?:\d{1,2}|\d{4,}))(?![\d,.])"  # thousands come in threes
)
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[ -/]*[0-~])")

_USUAL = ("oss", "norm", "step", "iter", "poch", "%|", "lr", "batch", "rate")
_OTHER_NAMES = (
    "mse",
    "mae",
    "bpc",
    "bpb",
    "rror",
    "entropy",
    "trl",
    "xent",
    "cost",
    "nll",
    "objective",
    "elbo",
    "损失",
    "損失",
)
_SELDOM = (*_OTHER_NAMES, "nan", "inf ", "overflow", "|", "---", "it/", "avg", "% [", "finite")
_PLANS: dict[tuple[str, ...], Plan | None] = {}


def has_decimal_comma(line: str) -> bool:
    """Whether a number of this line can only be read with a decimal comma, as `0,4945`."""
    return "," in line and "." not in line and _DECIMAL_COMMA.search(line) is not None


def clean(line: str) -> str:
    """A line as a terminal shows it: no colors, and only what a redraw left standing."""
    if "\x1b" in line:
        line = _ANSI.sub("", line)
    if "\x08" in line:
        parts = [part for part in re.split("\x08+", line) if part.strip()]
        line = parts[-1] if parts else ""
    return line


def read_text(line: str, *, decimal_comma: bool = False) -> Reading | None:
    """A line of free text, such as `Step 45100 | Loss: 2.338 | Grad Norm: 1.1 | LR: 2.9e-04`."""
    line = line[:MAX_LINE_CHARS]
    if "\x1b" in line or "\x08" in line:
        line = clean(line)
    low = line.lower()
    for word in _USUAL:
        if word in low:
            break
    else:
        if not any(map(low.__contains__, _SELDOM)):
            return None  # most lines of most logs leave here
    parts = _TOKEN.split(line)
    around = tuple(parts[::2])
    plan = _PLANS.get(around)
    if plan is None:
        plain = special.spelled_out(line, low)
        if plain is not None:
            return read_text(plain, decimal_comma=decimal_comma)
        found = special.read(line, low)
        if found is not None and found.kind:
            return found
        plan = plan_of(line, parts)
        if found is not None:
            return plan.read(parts, decimal_comma=decimal_comma, start=found)
        if plan.repeatable and len(line) <= MAX_PLAN_CHARS:
            if len(_PLANS) >= MAX_PLANS:  # a log that invents lines must not grow us
                _PLANS.clear()
            _PLANS[around] = plan
    return plan.read(parts, decimal_comma=decimal_comma) if plan.ops else None
