"""Reads lines as one run, for the tests of its shape."""

from __future__ import annotations

from collections.abc import Iterable

from overnight.core.formats import Reading
from overnight.core.formats.reading import Placed
from overnight.core.formats.shape import Shape


def readings(lines: Iterable[str]) -> list[Reading]:
    """All that the shape says about these lines, in order."""
    shape = Shape()
    found = [item for number, line in enumerate(lines, 1) for item in shape.feed(line, number)]
    found += shape.end()
    return [item.reading for item in found if isinstance(item, Placed)]


def records(lines: Iterable[str]) -> list[tuple[int | None, float | None]]:
    """Step and loss of the training records."""
    return [(r.step, r.loss) for r in readings(lines) if r.is_training_record and r.kind != "skip"]


def steps(lines: Iterable[str]) -> list[int | None]:
    """The steps of the training records."""
    return [step for step, _loss in records(lines)]


def losses(lines: Iterable[str]) -> list[float | None]:
    """The losses of the training records."""
    return [loss for _step, loss in records(lines)]
