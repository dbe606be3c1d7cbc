"""The errors Overnight raises on purpose; each has a message, a hint and an exit status.

    OvernightError             anything below; the command line prints message and hint
    ├── UsageError        (2)  the command, the config or the machine does not allow a start
    │   └── ConfigError   (2)  every problem of a config file at once
    ├── NoSuchRunError    (3)  a run that this machine does not know
    ├── StoreError             the store refused or was too slow; the supervisor acts from memory
    ├── WorkerError            the worker could not be launched, signalled or reaped
    └── ControlError           no supervisor answers on the control socket

A programmer's mistake is an `assert` or a plain exception, never one of these.
"""

from __future__ import annotations


class OvernightError(Exception):
    """A failure with a sentence for people and, where there is one, the next thing to do."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class UsageError(OvernightError):
    """The command line, the config or the machine does not allow the start."""

    exit_code = 2


class ConfigError(UsageError):
    """A config file with problems; `problems` holds one sentence for each."""

    def __init__(self, path: str, problems: list[str]) -> None:
        lines = "".join(f"\n  {problem}" for problem in problems)
        super().__init__(
            f"{path}: {len(problems)} problem{'s' if len(problems) != 1 else ''}{lines}",
            hint="every key is described in docs/config.md",
        )
        self.problems = problems


class NoSuchRunError(OvernightError):
    """No run of that name has left a trace in the state directory."""

    exit_code = 3


class StoreError(OvernightError):
    """The store could not commit in time, or cannot be opened."""


class WorkerError(OvernightError):
    """The worker could not be launched, signalled or reaped."""


class ControlError(OvernightError):
    """No supervisor answers on the control socket."""
