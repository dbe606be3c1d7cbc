"""Following files that a worker appends to: whole lines, at once, in bounded memory.

The file is the buffer: a slow reader loses nothing, and only one that is hopelessly behind skips
ahead and says how much.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from overnight.adapters.tail.follow import READ_BYTES, Follower
from overnight.core.events import LogChunk, Source
from overnight.core.lines import LineSplitter

LAG_BYTES = 64 << 20
"""A reader this far behind skips to the end: old lines help nobody who must decide now."""


class Tail:
    """A thread that turns one growing file into LogChunks."""

    def __init__(
        self,
        path: Path,
        *,
        attempt: int,
        source: Source,
        report: Callable[[LogChunk], None],
        drained: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`report` may block (back-pressure); `drained` is called once, after `finish`."""
        self._attempt = attempt
        self._source = source
        self._report = report
        self._drained = drained
        self._clock = clock
        self._follower = Follower(path)
        self._splitter = LineSplitter()
        self._finishing = threading.Event()
        self._offset = 0
        self._line = 1
        threading.Thread(target=self._run, name=f"tail:{path.name}", daemon=True).start()

    def finish(self) -> None:
        """No more will be written: read to the end, report it, then call `drained`."""
        self._finishing.set()
        self._follower.wake()

    def _run(self) -> None:
        while True:
            finishing = self._finishing.is_set()  # before reading: what comes later is read next
            while self._read_some():
                pass
            if finishing:
                break
            self._follower.wait()
        self._post(self._splitter.flush())
        self._follower.close()
        self._drained()

    def _read_some(self) -> bool:
        """Read and report one block; False when that was the end of the file for now."""
        descriptor = self._follower.open()
        if descriptor is None:
            return False
        try:
            skipped = self._skip_if_behind(descriptor)
            data = os.pread(descriptor, READ_BYTES, self._offset)
        except OSError:
            return False  # e.g. a stale network file: the poll tries again
        self._offset += len(data)
        lines = self._splitter.feed(data) if data else []
        self._post(lines, skipped=skipped, read_bytes=len(data))
        return len(data) == READ_BYTES

    def _skip_if_behind(self, descriptor: int) -> int:
        size = os.fstat(descriptor).st_size
        if size < self._offset:  # truncated by its writer: begin again
            self._offset, self._line = 0, 1
            self._splitter.restart(mid_line=False)
        behind = size - self._offset
        if self._source == "metrics" or behind <= LAG_BYTES:
            return 0
        skipped = behind - READ_BYTES
        self._offset += skipped
        self._splitter.restart(mid_line=True)
        return skipped

    def _post(self, lines: list[str], *, skipped: int = 0, read_bytes: int = 0) -> None:
        if not lines and not skipped:
            return
        self._report(
            LogChunk(
                at=self._clock(),
                attempt=self._attempt,
                source=self._source,
                lines=tuple(lines),
                first_line=self._line,
                end_offset=self._offset - self._splitter.pending_bytes,
                skipped_bytes=skipped,
                read_bytes=read_bytes,
                cut_lines=self._splitter.cut_lines,
            )
        )
        self._line += len(lines)
