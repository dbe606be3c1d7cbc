"""Words for people: numbers, ages, tables; and where runs keep their state."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path


def number(value: float | None) -> str:
    """A number with four significant digits, or a dash where it is unknown."""
    return "-" if value is None else f"{value:.4g}"


def age(seconds: float | None) -> str:
    """Seconds as `42 s`, `17 min`, `4 h 12 min`, `3 d 2 h`."""
    if seconds is None:
        return "?"
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 100:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min"
    return f"{hours // 24} d {hours % 24} h"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Left-aligned columns, as wide as they need to be."""
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in [head, *rows]
    ]
    return "\n".join(lines)


def state_parent() -> Path:
    """Where runs keep their state: OVERNIGHT_STATE_DIR, systemd's directory, or XDG's."""
    given = os.environ.get("OVERNIGHT_STATE_DIR")
    if given:
        return Path(given)
    service = os.environ.get("STATE_DIRECTORY")
    if service:
        return Path(service.split(":")[0])
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "overnight"
