"""What the name of a checkpoint says: its format by the ending, its step by a number."""

from __future__ import annotations

import re
from pathlib import Path

SUFFIXES = (".pt", ".pth", ".ckpt", ".safetensors")

_NAMED_STEP = re.compile(
    r"(?:step|iter|iteration|checkpoint|ckpt|update)s?[-_=]?(\d{1,12})(?![\d.]*\.\d)", re.IGNORECASE
)
_STEP = re.compile(r"(?<![\d.])(\d{1,12})(?![\d.])(?!.*(?<![\d.])\d)")


def step_of(path: Path) -> int | None:
    """The step in a name: `checkpoint-500`, `step_00000150`, `step_100_loss_2.31`, `12000.pt`.

    The number after a word for it, else the last whole number.
    """
    stem = path.name
    for suffix in SUFFIXES:
        stem = stem.removesuffix(suffix)
    match = _NAMED_STEP.search(stem) or _STEP.search(stem)
    return int(match[1]) if match else None
