"""All the files of one attempt: worker.log, the JSONL metrics, a file of the script's own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from overnight.adapters.files import private_directory
from overnight.adapters.tail.echo import Echo
from overnight.adapters.tail.lines import Tail
from overnight.adapters.tail.script_files import Place, ScriptFiles
from overnight.core.events import Drained, LogChunk, Source


class AttemptTails:
    """The tails of an attempt, and the echo on the terminal; one Drained when all are done."""

    def __init__(
        self,
        report: Callable[[LogChunk | Drained], None],
        *,
        echo_to: int | None,
        script: Place | None = None,
    ) -> None:
        """`echo_to` is the descriptor of a terminal that sees the worker's output, or None;
        `script` is where the script keeps metrics of its own, if the config says so."""
        self._report = report
        self._echo_to = echo_to
        self._script = script
        self._tails: list[Tail | ScriptFiles] = []
        self._echoing: Echo | None = None

    def open(self, attempt: int, directory: Path) -> None:
        """Follow the files of an attempt that is about to start. Raises OSError."""
        private_directory(directory)
        left = threading.Semaphore(1 if self._script is None else 2)  # all but the last take one

        def drained() -> None:
            if not left.acquire(blocking=False):
                self._report(Drained(time.monotonic(), attempt))

        def follow(name: str, source: Source) -> Tail:
            return Tail(
                directory / name,
                attempt=attempt,
                source=source,
                report=self._report,
                drained=drained,
            )

        self._tails = [follow("metrics.jsonl", "metrics"), follow("worker.log", "log")]
        if self._script is not None:
            files = ScriptFiles(self._script, attempt=attempt, report=self._report, drained=drained)
            self._tails.append(files)
        if self._echo_to is not None:
            self._echoing = Echo(directory / "worker.log", descriptor=self._echo_to)

    def finish(self) -> None:
        """Read what is left, then report Drained."""
        for tail in self._tails:
            tail.finish()
        if self._echoing is not None:
            self._echoing.finish()
            self._echoing.done.wait(0.1)  # so that our next line stands below the worker's last
