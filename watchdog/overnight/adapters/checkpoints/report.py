"""What the verifier says about a checkpoint, and the two ways in which a reader gives up."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field

from overnight.core.events import Health

STEP_KEYS = ("step", "global_step", "iter_num", "iteration")
"""Where training scripts keep the optimizer step: ours, HF and Lightning, nanoGPT, Megatron."""

_INSIDE = (
    "state",
    "train_state",
    "training_state",
    "trainer_state",
    "progress",
    "meta",
    "metadata",
)
"""Where they keep it one level deeper; not in a config, which may hold a `step` of its own."""

_OPTIMIZER = re.compile(
    r"(?:^|[._/ ])(?:\w*optim\w*|opt|opt_states?|exp_avg\w*|momentum\w*|adam\w*)(?:[._/ ]|$)",
    re.IGNORECASE,
)


class DamagedError(Exception):
    """The checkpoint must not be resumed from; the message is a sentence for people."""


class NotUnderstoodError(Exception):
    """Nothing can be said about the checkpoint; the message is a sentence for people."""


@dataclass(frozen=True, slots=True)
class Report:
    """The answer for one path.

    `health` is VERIFIED, CORRUPT or UNVERIFIED (not understood); `step` is None where the
    checkpoint does not say; `tensors` counts tensors of any type, `bytes_scanned` the bytes of
    floating-point data that were tested for NaN and infinity; `partial`: only weights are in it, so
    that a resume from it is one in part.
    """

    path: str
    health: Health
    reason: str
    step: int | None = None
    format: str = "unknown"
    tensors: int = 0
    bytes_scanned: int = 0
    partial: bool = False

    def as_json(self) -> str:
        """One line of JSON with the fields of this class."""
        return json.dumps(asdict(self))


@dataclass(slots=True)
class Tally:
    """What the readers have learnt so far; it survives the exception that ends a check.

    `opaque`: its contents have no names that we read; `is_trainers`: of the Hugging Face Trainer,
    which counts its steps beside the optimizer's file, not in it.
    """

    format: str = "unknown"
    step: int | None = None
    tensors: int = 0
    bytes_scanned: int = 0
    optimizer: bool = False
    opaque: bool = False
    is_trainers: bool = False
    notes: list[str] = field(default_factory=list)

    def offer_step(self, candidates: object) -> None:
        """Take the step from a dict of the checkpoint, unless a better source gave one before."""
        if self.step is not None or not isinstance(candidates, dict):
            return
        inner = [dict.get(candidates, key) for key in _INSIDE]
        for found in (candidates, *(value for value in inner if isinstance(value, dict))):
            steps = [_whole(dict.get(found, key)) for key in STEP_KEYS]
            self.step = next((step for step in steps if step is not None), None)
            if self.step is not None:
                return

    def offer_names(self, names: Iterable[object]) -> None:
        """Names of tensors, keys or files: is there any state of an optimizer among them?"""
        if not self.optimizer:
            self.optimizer = any(isinstance(n, str) and _OPTIMIZER.search(n) for n in names)

    @property
    def partial(self) -> bool:
        """Whether only weights were found: nothing to continue an optimizer or a count with."""
        return not self.optimizer and not self.opaque and (self.step is None or self.is_trainers)

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
