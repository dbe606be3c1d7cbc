"""What the trainer says, and what it hears: the whole protocol with the watchdog is in this file.

Says: lines for people on stdout; one JSON object a line to the file named by OVERNIGHT_METRICS.
Hears: OVERNIGHT_RESUME, OVERNIGHT_LR_SCALE and OVERNIGHT_SKIP at the start; the JSON file named
by OVERNIGHT_CONTROL before each step; SIGUSR1 (save) and SIGTERM (save and leave).
Every part is optional: without the variables this is an ordinary training script.
"""

from __future__ import annotations

import json
import math
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from . import TrainerError

Window = tuple[int, int]  # first and last step, both included
NO_WINDOW: Window = (0, 0)


class Reporter:
    """Metrics out. Silent on all ranks but the first."""

    def __init__(self, *, speaks: bool, log_every: int) -> None:
        path = os.environ.get("OVERNIGHT_METRICS")
        flags = os.O_APPEND | os.O_CREAT | os.O_WRONLY
        self.metrics = os.open(path, flags, 0o644) if path and speaks else None
        self.speaks = speaks
        self.log_every = log_every

    def say(self, text: str) -> None:
        """A line for people. Not flushed, as in most scripts: PYTHONUNBUFFERED does that."""
        if self.speaks:
            print(text)

    def write(self, **record: Any) -> None:
        """One record, in one write. A full disk costs the record, not the training run."""
        if self.metrics is not None:
            try:
                os.write(self.metrics, (json.dumps(record) + "\n").encode())
            except OSError as error:
                print(f"overnight_trainer: metrics not written: {error.strerror}", file=sys.stderr)

    def hello(self, *, step: int, total_steps: int) -> None:
        """The first record: what this worker can do.

        Under torchrun our parent is the launcher, which SIGUSR1 would kill: not offered there.
        """
        usr1 = None if "TORCHELASTIC_RUN_ID" in os.environ else "SIGUSR1"
        can = {"checkpoint_signal": usr1, "resume": True, "lr_scale": True}
        self.write(event="hello", **can, total_steps=total_steps, pid=os.getpid(), step=step)

    def step(self, step: int, **metrics: float) -> None:
        """The record of an update, and every so often its line."""
        self.write(step=step, **metrics)
        if step % self.log_every == 0:
            self.say(
                f"Step {step} | Loss: {metrics['loss']:.3f} | "
                f"Grad Norm: {metrics['grad_norm']:.2f} | LR: {metrics['lr']:.1e} | "
                f"Tok/s: {metrics['tokens_per_s']:,.0f}"
            )

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Around work that makes no steps, so that it is not taken for a stall."""
        self.write(event="phase", name=name)
        yield
        self.write(event="phase", name="train")


def parse_lr_scale(value: Any) -> float:
    """A factor above 0, finite."""
    scale = float(value)
    if not (math.isfinite(scale) and scale > 0):
        raise ValueError(f"{value!r} is not a positive number")
    return scale


def parse_skip(value: Any) -> Window:
    """`"100:109"` -> (100, 109); empty or null is no window."""
    if not value:
        return NO_WINDOW
    first, last = (int(part) for part in str(value).split(":"))
    if not 0 < first <= last:
        raise ValueError(f"{value!r} is not first:last")
    return first, last


class Control:
    """The orders in force: those of the environment, then each change of the control file."""

    def __init__(self) -> None:
        self.resume = os.environ.get("OVERNIGHT_RESUME")
        self.path = os.environ.get("OVERNIGHT_CONTROL", "")
        self.seen: tuple[int, ...] = ()
        try:
            self.lr_scale = parse_lr_scale(os.environ.get("OVERNIGHT_LR_SCALE") or 1.0)
            self.skip = parse_skip(os.environ.get("OVERNIGHT_SKIP"))
        except ValueError as error:
            hint = "OVERNIGHT_LR_SCALE takes a number as 0.5, OVERNIGHT_SKIP steps as 100:109"
            raise TrainerError(f"{error}: {hint}") from error

    def read(self) -> None:
        """One stat a step. No file, or a half-written one, leaves the orders as they are."""
        try:
            stat = os.stat(self.path)
            identity = (stat.st_mtime_ns, stat.st_ino, stat.st_size)
            if identity != self.seen:
                with open(self.path, encoding="utf-8") as file:
                    orders = json.load(file)
                lr_scale = parse_lr_scale(orders.get("lr_scale", self.lr_scale))
                skip = parse_skip(orders["skip"]) if "skip" in orders else self.skip
                self.lr_scale, self.skip, self.seen = lr_scale, skip, identity
        except (OSError, ValueError, TypeError, AttributeError):
            pass  # looked at again before the next step


def listen() -> set[int]:
    """The signals that have arrived; the loop reads and clears them between two steps."""
    heard: set[int] = set()
    for number in (signal.SIGUSR1, signal.SIGTERM):
        signal.signal(number, lambda arrived, _: heard.add(arrived))
    return heard
