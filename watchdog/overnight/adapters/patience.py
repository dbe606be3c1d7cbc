"""A regular expression of the user's, with an end to it.

Matching may take for ever (`.*.*.*` on a line that nearly fits), and Python's `re` holds on to the
interpreter meanwhile: no thread could help. But it lets signals through, and a signal's handler
may raise.
"""

from __future__ import annotations

import re
import signal
import threading
from types import FrameType

LIMIT_S = 0.05
"""Seconds of this process's own CPU time for one search; honest ones take a thousandth of it."""


class Patience:
    """`search` in bounded time. One of a process, used on its main thread; elsewhere unbounded."""

    def __init__(self) -> None:
        self._armed = False
        self._bounded = threading.current_thread() is threading.main_thread()
        if self._bounded:
            signal.signal(signal.SIGVTALRM, self._rung)

    def search(self, pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
        """The first match. Raises TimeoutError after LIMIT_S."""
        if not self._bounded:
            return pattern.search(text)
        self._armed = True
        signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT_S)
        try:
            return pattern.search(text)
        finally:
            self._armed = False
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)

    def _rung(self, _number: int, _frame: FrameType | None) -> None:
        if self._armed:
            raise TimeoutError
