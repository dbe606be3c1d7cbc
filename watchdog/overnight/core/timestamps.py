"""Time stamps that log lines carry: seconds on one scale, whatever their zone."""

from __future__ import annotations

import re
from datetime import datetime

PREFIX_CHARS = 64
"""A time stamp further inside a line is a name or a value, not the time of the line."""

# 2024-10-01 00:00:00.858209   2026-07-21T02:52:10   [rank0] 2021-04-23 18:00:00,409
_FULL = re.compile(r"(\d{4})[-/](\d\d)[-/](\d\d)[T _,](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,6}))?")
# 08/03 22:08:00   [11/18 18:13:40]
_SHORT = re.compile(r"(?<![\d/])(\d\d)/(\d\d)[ -](\d\d):(\d\d):(\d\d)")


def stamp_s(line: str) -> float | None:
    """The time at the head of a line in seconds, None where there is none that makes sense."""
    head = line[:PREFIX_CHARS]
    if ":" not in head:
        return None
    if match := _FULL.search(head):
        year, month, day, hour, minute, second = (int(match[n]) for n in range(1, 7))
        fraction = float(f"0.{match[7]}") if match[7] else 0.0
    elif match := _SHORT.search(head):
        month, day, hour, minute, second = (int(match[n]) for n in range(1, 6))
        year, fraction = 2000, 0.0  # a leap year: the 29th of February exists
    else:
        return None
    try:
        moment = datetime(year, month, day, hour, minute, second)  # noqa: DTZ001 - differences only
    except ValueError:
        return None
    return (moment - datetime(1970, 1, 1)).total_seconds() + fraction  # noqa: DTZ001
