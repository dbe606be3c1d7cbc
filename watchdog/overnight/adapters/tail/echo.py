"""The worker's output on the terminal of the person who started it."""

from __future__ import annotations

import contextlib
import os
import select
import threading
from pathlib import Path

from overnight.adapters.tail.follow import POLL_S, READ_BYTES, Follower


class Echo:
    """A thread that copies a growing file to a terminal, exactly as it is.

    It reads the file itself, so a terminal that is stopped or gone holds up nobody else.
    """

    def __init__(self, path: Path, *, descriptor: int) -> None:
        self._follower = Follower(path)
        self._descriptor = descriptor
        self._finishing = threading.Event()
        self.done = threading.Event()
        threading.Thread(target=self._run, name="echo", daemon=True).start()

    def finish(self) -> None:
        """Copy what is left, then end; `done` is set."""
        self._finishing.set()
        self._follower.wake()

    def _run(self) -> None:
        offset = 0
        with contextlib.suppress(OSError):  # EIO, EPIPE: the terminal is gone, the watch goes on
            while True:
                finishing = self._finishing.is_set()
                descriptor = self._follower.open()
                data = os.pread(descriptor, READ_BYTES, offset) if descriptor is not None else b""
                offset += len(data)
                if not data and finishing:
                    break
                if not data:
                    self._follower.wait()
                while data:
                    data = data[self._write(data) :]
        self._follower.close()
        self.done.set()

    def _write(self, data: bytes) -> int:
        try:
            return os.write(self._descriptor, data)
        except BlockingIOError:  # another program has made the shared terminal non-blocking
            select.select([], [self._descriptor], [], POLL_S)
            return 0
