"""From printed counters to one step that only grows: epochs, restarts, ranks, resumes."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field, replace

_NUMBER = re.compile(r"\d+(?:\.\d+)?|\b(?:nan|inf)\b", re.IGNORECASE)

REPEATS = 8
"""A step seen this few records ago is another rank or a redraw, not a new record."""


FAR_STEPS = 100_000
"""No script prints so rarely."""

DOUBTS = 3
"""So many odd lines in a row are the script's own."""

SAME = 3
"""After so many records alike the words around their numbers are known."""

MAX_TURNS = 10_000
"""Epochs whose beginnings are remembered."""

STUCK = 300
"""Nobody starts so many ranks on one box, nor redraws one step so often."""


@dataclass(slots=True)
class _Counter:
    """One counter as last printed, and what earlier epochs add to it."""

    last: int | None = None
    largest: int = 0
    stride: int = 1
    epoch: int | None = None
    offset: int = 0
    turns: list[_Turn] = field(default_factory=list)
    resumed: bool = False


@dataclass(frozen=True, slots=True)
class _Turn:
    """Where a counter began anew: from this step of the run on, this is added to it."""

    step: int
    epoch: int | None
    offset: int


class Steps:
    """Turns a counter that restarts every epoch into steps of the whole run."""

    def __init__(self) -> None:
        self._counters: dict[int, _Counter] = {}

    def absolute(self, rank: int, count: int, *, counted_to: int | None, epoch: int | None) -> int:
        """The step of the run at which this counter of the given kind stands."""
        counter = self._counters.get(rank)
        if counter is None:
            if len(self._counters) > 64:  # a log that invents counters must not grow us
                self._counters.clear()
            counter = self._counters[rank] = _Counter()
        if counter.last is not None:
            counter.offset += _epochs_passed(counter, count, counted_to, epoch) * (
                counted_to or counter.largest + (counter.stride if count < counter.stride else 0)
            )
            counter.offset, counter.resumed = max(0, counter.offset), False
            if count > counter.last:
                counter.stride = count - counter.last
        counter.last, counter.epoch = count, epoch
        counter.largest = max(counter.largest, count)
        step = counter.offset + count
        turns = counter.turns
        if not turns or (turns[-1].offset, turns[-1].epoch) != (counter.offset, epoch):
            del turns[:-MAX_TURNS]
            turns.append(_Turn(step, epoch, counter.offset))
        return step

    def as_of(self, step: int) -> Steps:
        """What was known at an earlier step of the run: for a script that resumes there.

        Only of counters that did begin anew: others say themselves where they are.
        """
        earlier = Steps()
        for rank, counter in self._counters.items():
            turns = [turn for turn in counter.turns if turn.step <= step]
            if not turns or len(counter.turns) == 1:
                continue
            last = turns[-1]
            earlier._counters[rank] = replace(
                counter,
                last=step - last.offset,
                epoch=last.epoch,
                offset=last.offset,
                turns=counter.turns[:],
                resumed=True,
            )
        return earlier


def _epochs_passed(counter: _Counter, count: int, counted_to: int | None, epoch: int | None) -> int:
    """How many epochs lie between two prints of a counter that is relative to its epoch."""
    assert counter.last is not None
    later = epoch - counter.epoch if epoch is not None and counter.epoch is not None else 0
    known = epoch is not None and counter.epoch is not None
    if known and later != 0:
        # A counter that went on through the new epoch counts the whole run.
        relative = counter.offset > 0 or (later > 0 and count <= counter.last)
        return later if relative else 0
    if counted_to is None or count >= counter.last or 10 * count > counted_to:
        return 0
    # The epoch is not printed, or printed too late: what counts is how far it had come.
    # After a resume it may be the same epoch, begun again.
    far = 0.98 if known or counter.resumed else 0.5
    return 1 if counter.last >= far * counted_to else 0


class Familiar:
    """Tells a record from a sampled text that reads like one: `the log said step 9: loss 999`.

    Only a step that cannot come next is doubted, and only where the words around the numbers were
    the same in the last records and are others now; a script that goes on so is believed soon.
    """

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=REPEATS)
        self._step: int | None = None
        self._doubts = 0

    def doubts(self, line: str, step: int | None) -> bool:
        """Whether this line with this step is no record of the run."""
        last = self._step
        odd = step is not None and last is not None and not last <= step <= last + FAR_STEPS
        if odd and self._doubts < DOUBTS and self._is_foreign(line):
            self._doubts += 1
            return True
        self._lines.append(line)
        self._step, self._doubts = step, 0
        return False

    def _is_foreign(self, line: str) -> bool:
        usual = {_around(earlier) for earlier in self._lines}
        return len(self._lines) >= SAME and len(usual) == 1 and _around(line) not in usual


def _around(line: str) -> tuple[str, str]:
    """The words before the first number of a line and behind its last."""
    numbers = [found.span() for found in _NUMBER.finditer(line)]
    if not numbers:
        return "", ""
    return line[: numbers[0][0]].strip(), line[numbers[-1][1] :].strip()


class Repeats:
    """Which steps have just been recorded."""

    def __init__(self) -> None:
        self._recent: deque[tuple[int, bool, bool]] = deque(maxlen=REPEATS)
        self._stuck = 0

    @property
    def are_endless(self) -> bool:
        """Whether the number does not move at all: it is no step, a process id perhaps."""
        return self._stuck >= STUCK

    def is_repeat(self, step: int, *, finite: bool, has_loss: bool = True) -> bool:
        """Whether this step was just recorded; a rank that first says NaN is news, and so is the
        loss of a step whose other numbers came in a line before it."""
        for seen, was_finite, had_loss in self._recent:
            if seen == step and (finite or not was_finite) and (had_loss or not has_loss):
                self._stuck += 1
                return True
        self._recent.append((step, finite, has_loss))
        self._stuck = 0
        return False
