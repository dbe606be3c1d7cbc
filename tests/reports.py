"""What an adapter reports from its threads, taken in order and with patience."""

from __future__ import annotations

import queue
import time
from typing import Any

PATIENCE_S = 20.0


class Reports:
    """A `report` callback and the reader of what it was given."""

    def __init__(self) -> None:
        self._queue: queue.Queue[Any] = queue.Queue()
        self.put = self._queue.put

    def next(self, kind: type | None = None, *, timeout_s: float = PATIENCE_S) -> Any:
        """The next report, or the next of that kind (others are dropped)."""
        until = time.monotonic() + timeout_s
        while True:
            found = self._queue.get(timeout=max(0.01, until - time.monotonic()))
            if kind is None or isinstance(found, kind):
                return found

    def until(self, kind: type) -> list[Any]:
        """All reports up to and with the first of that kind."""
        found = [self.next()]
        while not isinstance(found[-1], kind):
            found.append(self.next())
        return found

    def rest(self) -> list[Any]:
        """What is there now, without waiting."""
        found = []
        while not self._queue.empty():
            found.append(self._queue.get())
        return found

    def silent_for(self, seconds: float) -> bool:
        """Whether nothing is reported for that long."""
        try:
            self.next(timeout_s=seconds)
        except queue.Empty:
            return True
        return False
