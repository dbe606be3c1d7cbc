"""Wall-clock chores through APScheduler: retention, nothing that detects or decides.

Its due times come from the wall clock, so a clock stepped back silences it for that long: good
enough for pruning, never for a deadline.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from apscheduler.schedulers.background import BackgroundScheduler

from overnight.core.events import Housekeeping


class Chores:
    """Reports that a chore is due; the loop does it."""

    def __init__(
        self,
        report: Callable[[Housekeeping], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._scheduler = BackgroundScheduler(timezone="UTC")
        self._scheduler.add_job(
            lambda: report(Housekeeping(clock(), "retention")),
            "interval",
            hours=6,
            id="retention",
            misfire_grace_time=None,
            coalesce=True,
        )

    def start(self) -> None:
        """Begin, in a thread of the scheduler's own."""
        self._scheduler.start()

    def close(self) -> None:
        """Stop without waiting for a chore."""
        if self._scheduler.running:
            self._scheduler.shutdown(wait=False)
