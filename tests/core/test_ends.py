"""Whole ends of logs against their causes: tests/data/ends.txt, as a person would label them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from overnight.core.causes import CAUSES
from overnight.core.detect.panel import PanelConfig
from overnight.core.detect.stall import StallConfig
from overnight.core.exits import cause_of_end
from overnight.core.policy import Policy, PolicyConfig
from overnight.core.replay import Replay

DATA = Path(__file__).parents[1] / "data" / "ends.txt"

TRACEBACK = (
    "Traceback (most recent call last):",
    '  File "/w/train.py", line 41, in main',
    "    step(model, batch)",
)

LISTED = set(CAUSES) - {"usage", "gpu-ecc"}
"""The causes that the product promises to tell apart."""


@dataclass(frozen=True)
class End:
    """One log: its lines, its exit status (None: not known), and what it died of."""

    cause: str
    status: int | None
    early: bool
    lines: tuple[str, ...]


def expanded(rows: Sequence[str]) -> Iterator[str]:
    """The lines of a case, its @ words written out."""
    step = 0
    for row in rows:
        word, _, count = row.partition(" ")
        if word == "@tb":
            yield from TRACEBACK
        elif word in ("@run", "@nan"):
            for step in range(step, step + int(count)):  # noqa: B020 - goes on where it was
                loss = f"{3 - step / 1000:.4f}" if word == "@run" else "nan"
                yield f"step {step} | loss {loss} | lr 1e-4"
            step += 1
        else:
            yield row


def ends() -> list[End]:
    """Every case of the file."""
    found = []
    for case in re.split(r"(?m)^### ", DATA.read_text())[1:]:
        head, *rows = case.rstrip("\n").split("\n")
        cause, status, *early = head.split()
        known = None if status == "?" else int(status)
        found.append(End(cause, known, bool(early), tuple(expanded(rows))))
    return found


ENDS = ends()


def replayed(end: End) -> str:
    """The cause that `overnight replay` prints."""
    replay = Replay(
        panel=PanelConfig(), stall=StallConfig(), policy=Policy(PolicyConfig()), pacing=None
    )
    replay.feed(end.lines)
    return replay.finish(end.status).exit_cause


def macro_f1(pairs: Sequence[tuple[str, str]]) -> float:
    """The mean of the F1 of every name among (expected, found)."""
    names = {expected for expected, _found in pairs}

    def f1(name: str) -> float:
        hit = sum(expected == found == name for expected, found in pairs)
        named = sum((expected == name) + (found == name) for expected, found in pairs)
        return 2 * hit / named

    return sum(map(f1, names)) / len(names)


def test_every_cause_has_its_cases() -> None:
    """Three at least of each, and many logs of runs that are well."""
    counts = {name: sum(end.cause == name for end in ENDS) for name in LISTED}
    assert min(counts.values()) >= 3, counts
    assert counts["completed"] >= 40


@pytest.mark.parametrize("end", ENDS, ids=lambda end: f"{end.cause}:{end.lines[-1:]}"[:60])
def test_a_log_is_named(end: End) -> None:
    """Replayed, and by its last lines alone where the loss itself did not tell."""
    assert replayed(end) == end.cause
    if not end.lines[-1:] or "loss nan" not in end.lines[-1]:
        assert cause_of_end(end.status, end.lines, any_record=not end.early).cause == end.cause


def test_the_names_are_right_nearly_always() -> None:
    """The promise is 0.97 over the names; on these, which were at hand, it is more."""
    assert macro_f1([(end.cause, replayed(end)) for end in ENDS]) >= 0.99
