"""Recognises pages that a power cut kept from reaching the disk, in formats without checksums.

A file can come back with its full length and zeros where the last pages should be. Zeros at the
end may also be meant (the padded rows of a vocabulary, fresh optimizer state), but those begin
where a tensor or one of its rows begins, and lost ones begin at a page of the file.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from overnight.adapters.checkpoints.report import DamagedError, human_bytes

PAGE_BYTES = 4096
"""The smallest unit in which Linux filesystems write file contents back."""

_MIN_ZERO_BYTES = 64
"""The last page may hold little; fewer zeros than this could be numbers."""

_SLACK_BYTES = 4
"""A number that the page boundary cuts may have zeros in the half that survived."""

_CHUNK_BYTES = 16 * PAGE_BYTES


@dataclass(frozen=True, slots=True)
class Window:
    """Where a tensor lies in its file; `row_bytes` is the length of one row, or all of it."""

    name: str
    begin: int
    end: int
    row_bytes: int


def check_tail(path: Path, data_at: int, windows: Iterable[Window]) -> None:
    """Raises DamagedError where the file turns to zeros at a page boundary within a row."""
    size_bytes = path.stat().st_size
    zeros_at = _zeros_from(path, data_at, size_bytes)
    page_at = -(-zeros_at // PAGE_BYTES) * PAGE_BYTES
    if size_bytes - page_at < _MIN_ZERO_BYTES or page_at - zeros_at >= _SLACK_BYTES:
        return
    for window in windows:
        if window.begin < page_at < window.end and (page_at - window.begin) % window.row_bytes:
            raise DamagedError(
                f"only zeros from the middle of {window.name} to the end of the file:"
                f" the last {human_bytes(size_bytes - page_at)} never reached the disk"
            )


def _zeros_from(path: Path, start: int, end: int) -> int:
    """Where the zeros that reach up to `end` begin, not before `start`; reads backwards."""
    with path.open("rb") as file:
        while end > start:
            low = max(start, end - _CHUNK_BYTES)
            kept = os.pread(file.fileno(), end - low, low).rstrip(b"\0")
            if kept:
                return low + len(kept)
            end = low
    return start
