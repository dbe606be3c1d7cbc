"""What the supervisor says: lines for the person at the terminal, and supervisor.log for later."""

from __future__ import annotations

import contextlib
import logging
import logging.handlers
import os
import sys
import time
from pathlib import Path

LOG_BYTES = 4 << 20
LOG_FILES = 3

_RED, _YELLOW, _GREEN, _CYAN, _OFF = "\033[1;31m", "\033[33m", "\033[32m", "\033[36m", "\033[0m"
_COLOURS = (
    ("critical", _RED),
    ("HALTED", _RED),
    ("warning", _YELLOW),
    ("healed", _GREEN),
    ("completed", _GREEN),
)


class Console:
    """Prints to stderr while somebody reads it; never fails, never blocks the run's end."""

    def __init__(self, log_path: Path) -> None:
        """Open the log. A log that cannot be opened costs the log, not the watch."""
        self._log = logging.getLogger("overnight")
        self._log.setLevel(logging.INFO)
        self._log.propagate = False
        with contextlib.suppress(OSError):
            handler = logging.handlers.RotatingFileHandler(
                log_path, maxBytes=LOG_BYTES, backupCount=LOG_FILES, delay=True
            )
            handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
            self._log.addHandler(handler)
        logging.raiseExceptions = False  # a full disk must not print tracebacks for ever
        self._colour = sys.stderr.isatty() and "NO_COLOR" not in os.environ
        self._attached = True

    def say(self, text: str) -> None:
        """One line for people, with the time of day."""
        self._log.info("%s", text)
        if not self._attached:
            return
        clock = time.strftime("%H:%M:%S")
        colour = next((code for word, code in _COLOURS if text.startswith(word)), _CYAN)
        mark = f"{colour}overnight{_OFF}" if self._colour else "overnight"
        try:
            print(f"{mark} {clock} | {text}", file=sys.stderr, flush=True)
        except OSError:  # the terminal is gone: go on without it
            self._attached = False

    def detach(self) -> None:
        """Nobody reads the terminal any more."""
        self._attached = False
