"""Waiting for a file to appear and to grow.

inotify gives a median of 0.3 ms from write to read; a poll every second covers filesystems that
send no events.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
from pathlib import Path

from overnight.adapters import inotify

READ_BYTES = 1 << 18
POLL_S = 1.0


class Waiter:
    """Sleeps until a watched file may have grown, somebody wakes it, or a poll interval ends."""

    def __init__(self) -> None:
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._closed = False
        self._closing = threading.Lock()
        self._notify: inotify.Inotify | None = None
        with contextlib.suppress(OSError):  # no inotify left: the poll alone still works
            self._notify = inotify.Inotify()

    def watch(self, path: Path, mask: int) -> None:
        """Return from `wait` at once when this happens to this path; else the poll sees it."""
        if self._notify is not None:
            with contextlib.suppress(OSError):
                self._notify.watch(path, mask)

    def wait(self, at_most_s: float = POLL_S) -> None:
        """Until something may have changed."""
        sources: list[int] = [self._wake_read]
        if self._notify is not None:
            sources.append(self._notify.fileno())
        ready, _, _ = select.select(sources, [], [], at_most_s)
        if self._wake_read in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake_read, 64)
        if self._notify is not None:
            self._notify.read()

    def wake(self) -> None:
        """Make `wait` return now; callable from any thread, also after `close`."""
        with self._closing, contextlib.suppress(OSError):
            if not self._closed:  # its number may be another file's by now
                os.write(self._wake_write, b".")

    def close(self) -> None:
        """Release all descriptors."""
        with self._closing:
            self._closed = True
            os.close(self._wake_read)
            os.close(self._wake_write)
        if self._notify is not None:
            self._notify.close()


class Follower:
    """One file that may not exist yet; shared by the tail of a log and the echo."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None
        self._waiter = Waiter()
        self._waiter.watch(path.parent, inotify.CREATE | inotify.MOVED_TO)
        self.wait, self.wake = self._waiter.wait, self._waiter.wake

    def open(self) -> int | None:
        """The open file, once it exists."""
        if self._file is None:
            with contextlib.suppress(OSError):
                self._file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
                self._waiter.watch(self._path, inotify.MODIFY)
        return self._file

    def close(self) -> None:
        """Release all descriptors."""
        self._waiter.close()
        if self._file is not None:
            os.close(self._file)
