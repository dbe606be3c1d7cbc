"""What the verifier says about a checkpoint, and the two ways in which a reader gives up."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field

from overnight.core.events import Health

STEP_KEYS = ("step", "global_step", "iter_num", "iteration")
"""Where training scripts keep the optimizer step: ours, HF and Lightning, nanoGPT, Megatron."""


class DamagedError(Exception):
    """The checkpoint must not be resumed from; the message is a sentence for people."""


class NotUnderstoodError(Exception):
    """Nothing can be said about the checkpoint; the message is a sentence for people."""


@dataclass(frozen=True, slots=True)
class Report:
    """The answer for one path.

    `health` is VERIFIED, CORRUPT or UNVERIFIED (not understood); `step` is None where the
    checkpoint does not say; `tensors` counts tensors of any type, `bytes_scanned` the bytes of
    floating-point data that were tested for NaN and infinity.
    """

    path: str
    health: Health
    reason: str
    step: int | None = None
    format: str = "unknown"
    tensors: int = 0
    bytes_scanned: int = 0

    def as_json(self) -> str:
        """One line of JSON with the fields of this class."""
        return json.dumps(asdict(self))


@dataclass(slots=True)
class Tally:
    """What the readers have learnt so far; it survives the exception that ends a check."""

    format: str = "unknown"
    step: int | None = None
    tensors: int = 0
    bytes_scanned: int = 0
    notes: list[str] = field(default_factory=list)

    def offer_step(self, candidates: object) -> None:
        """Take the step from a dict of the checkpoint, unless a better source gave one before."""
        if self.step is None and isinstance(candidates, dict):
            found = [_whole(dict.get(candidates, key)) for key in STEP_KEYS]
            self.step = next((step for step in found if step is not None), None)

    def note(self, text: str) -> None:
        """Remember something that a reader of the report should know, once."""
        if text not in self.notes:
            self.notes.append(text)


def _whole(value: object) -> int | None:
    """A step as an int; True, NaN, 3.5 and numbers that no counter reaches are none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if 0 <= value < 1 << 63 and value == value // 1 else None


def quoted(name: str) -> str:
    """A name out of a file, in quotes and not endless."""
    return f"'{name[:200]}'"


def printable(text: str) -> str:
    """Fit for a terminal and a phone: whatever a file put into it, no control characters."""
    return "".join(char if char.isprintable() else "?" for char in text)


def counted(count: int, noun: str) -> str:
    """`1 tensor`, `2,048 tensors`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def human_bytes(count: int) -> str:
    """A byte count in the decimal units that disks are sold in."""
    size = float(count)
    for unit in ("bytes", "kB", "MB"):
        if size < 1000:
            return f"{count} bytes" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
