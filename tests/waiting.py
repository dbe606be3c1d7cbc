"""Waiting for files without sleeping: inotify, with a deadline."""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from pathlib import Path

from overnight.adapters.inotify import CREATE, MODIFY, MOVED_TO, Inotify


def wait_until(holds: Callable[[], bool], directory: Path, *, timeout_s: float = 20.0) -> None:
    """Block until `holds()`; looked at again whenever something changes in `directory`."""
    until = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < until, f"it never held, see {directory}"
        notify = Inotify()
        place = directory
        while not place.is_dir():
            place = place.parent
        notify.watch(place, CREATE | MODIFY | MOVED_TO)
        if not holds():
            select.select([notify], [], [], 0.5)
        notify.close()


def wait_for_file(path: Path, *, timeout_s: float = 20.0) -> None:
    """Block until the path exists."""
    wait_until(path.exists, path.parent, timeout_s=timeout_s)
