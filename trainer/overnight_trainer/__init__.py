"""Overnight's reference training worker: a small GPT on bytes that cooperates with the watchdog.

In reading order: model.py (the network), data.py (bytes, and in which order), checkpoint.py (what
survives a crash), report.py (what is said and heard), faults.py (drills), train.py (the loop).
Run it with `python -m overnight_trainer --help`. It never imports the watchdog.
"""

__version__ = "0.1.0"


class TrainerError(Exception):
    """A mistake that the user can mend: printed as one line, without a traceback."""

    exit_code = 2


class CheckpointError(TrainerError):
    """The checkpoint asked for is missing, incomplete or damaged."""

    exit_code = 3
