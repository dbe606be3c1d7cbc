"""What the supervisor says: lines for the person at the terminal, and supervisor.log for later."""

from __future__ import annotations

import contextlib
import io
import logging
import logging.handlers
import os
import select
import sys
import time
from pathlib import Path

LOG_BYTES = 4 << 20
LOG_FILES = 3

PATIENCE_S = 0.2
"""A terminal stopped with Ctrl-S, or a pager that is not read, loses the line after this long:
writing would block the watch, and supervisor.log has the line anyway."""

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
        for old in list(self._log.handlers):
            self._log.removeHandler(old)
            old.close()
        with contextlib.suppress(OSError):
            handler = logging.handlers.RotatingFileHandler(
                log_path, maxBytes=LOG_BYTES, backupCount=LOG_FILES, delay=True
            )
            handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
            self._log.addHandler(handler)
        logging.raiseExceptions = False  # a full disk must not print tracebacks for ever
        self._attached = sys.stderr is not None  # it is None where fd 2 was closed
        self._colour = self._attached and sys.stderr.isatty() and "NO_COLOR" not in os.environ

    def say(self, text: str) -> None:
        """One line for people, with the time of day."""
        self._log.info("%s", text)
        if not self._attached:
            return
        clock = time.strftime("%H:%M:%S")
        colour = next((code for word, code in _COLOURS if text.startswith(word)), _CYAN)
        mark = f"{colour}overnight{_OFF}" if self._colour else "overnight"
        try:
            if _takes_more():
                print(f"{mark} {clock} | {text}", file=sys.stderr, flush=True)
        except (OSError, ValueError):  # the terminal is gone: go on without it
            self._attached = False
        except RuntimeError:  # a signal handler speaks within a print: the log has it
            pass

    def detach(self) -> None:
        """Nobody reads the terminal any more."""
        self._attached = False


def _takes_more() -> bool:
    """Whether stderr would take a line now."""
    try:
        descriptor = sys.stderr.fileno()
    except io.UnsupportedOperation:
        return True  # replaced by something in memory
    return bool(select.select([], [descriptor], [], PATIENCE_S)[1])
