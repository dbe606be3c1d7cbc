"""THE queue: threads and children only put, the loop alone takes."""

from __future__ import annotations

import queue
import threading
from typing import Any

from overnight.core.events import LogChunk

MAX_CHUNKS = 16
"""Log chunks (256 KiB at most) that may wait; a tail then waits too, the file is its buffer."""


class Inbox:
    """Bounded for log chunks, open for everything else: an exit never waits behind a flood."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._room = threading.BoundedSemaphore(MAX_CHUNKS)

    def put(self, observation: Any) -> None:
        """Report an observation; a LogChunk may block until there is room."""
        if isinstance(observation, LogChunk):
            self._room.acquire()
        self._queue.put(observation)

    def get(self, timeout_s: float) -> Any:
        """The next observation, or None when nothing happened in time."""
        try:
            observation = self._queue.get(timeout=max(0.0, timeout_s))
        except queue.Empty:
            return None
        if isinstance(observation, LogChunk):
            self._room.release()
        return observation
