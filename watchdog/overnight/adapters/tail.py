"""Following files that a worker appends to: whole lines, at once, in bounded memory.

inotify gives a median of 0.3 ms from write to read; a poll every second covers filesystems that
send no events. The file is the buffer: a slow reader loses nothing, and only one that is
hopelessly behind skips ahead and says how much.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from overnight.adapters import inotify
from overnight.core.events import Drained, LogChunk
from overnight.core.lines import LineSplitter

READ_BYTES = 1 << 18
LAG_BYTES = 64 << 20
"""A reader this far behind skips to the end: old lines help nobody who must decide now."""

POLL_S = 1.0


class _Follower:
    """Waits for a file to appear and to grow; shared by the tail and the echo."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._closed = False
        self._closing = threading.Lock()
        self._notify: inotify.Inotify | None = None
        with contextlib.suppress(OSError):  # no inotify left: the poll alone still works
            self._notify = inotify.Inotify()
            self._notify.watch(path.parent, inotify.CREATE | inotify.MOVED_TO)

    def open(self) -> int | None:
        """The open file, once it exists."""
        if self._file is None:
            with contextlib.suppress(OSError):
                self._file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
                if self._notify is not None:
                    self._notify.watch(self._path, inotify.MODIFY)
        return self._file

    def wait(self) -> None:
        """Until the file may have grown, `wake` was called, or a poll interval has passed."""
        sources: list[int] = [self._wake_read]
        if self._notify is not None:
            sources.append(self._notify.fileno())
        ready, _, _ = select.select(sources, [], [], POLL_S)
        if self._wake_read in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake_read, 64)
        if self._notify is not None:
            self._notify.read()

    def wake(self) -> None:
        """Make `wait` return now; callable from any thread."""
        with self._closing, contextlib.suppress(OSError):
            if not self._closed:  # its number may be another file's by now
                os.write(self._wake_write, b".")

    def close(self) -> None:
        """Release all descriptors."""
        with self._closing:
            self._closed = True
            for descriptor in (self._file, self._wake_read, self._wake_write):
                if descriptor is not None:
                    os.close(descriptor)
        if self._notify is not None:
            self._notify.close()


class Tail:
    """A thread that turns one growing file into LogChunks."""

    def __init__(
        self,
        path: Path,
        *,
        attempt: int,
        source: Literal["log", "metrics"],
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
        self._follower = _Follower(path)
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
            )
        )
        self._line += len(lines)


class Echo:
    """A thread that copies a growing file to a terminal, exactly as it is.

    It reads the file itself, so a terminal that is stopped or gone holds up nobody else.
    """

    def __init__(self, path: Path, *, descriptor: int) -> None:
        self._follower = _Follower(path)
        self._descriptor = descriptor
        self._finishing = threading.Event()
        self.done = threading.Event()
        threading.Thread(target=self._run, name="echo", daemon=True).start()

    def finish(self) -> None:
        """Copy what is left, then end; `done` is set."""
        self._finishing.set()
        self._follower.wake()

    def _run(self) -> None:
        offset = 0
        with contextlib.suppress(OSError):  # EIO, EPIPE: the terminal is gone, the watch goes on
            while True:
                finishing = self._finishing.is_set()
                descriptor = self._follower.open()
                data = os.pread(descriptor, READ_BYTES, offset) if descriptor is not None else b""
                offset += len(data)
                if not data and finishing:
                    break
                if not data:
                    self._follower.wait()
                while data:
                    data = data[self._write(data) :]
        self._follower.close()
        self.done.set()

    def _write(self, data: bytes) -> int:
        try:
            return os.write(self._descriptor, data)
        except BlockingIOError:  # another program has made the shared terminal non-blocking
            select.select([], [self._descriptor], [], POLL_S)
            return 0


class AttemptTails:
    """Both tails of an attempt, and the echo on the terminal; one Drained when both are done."""

    def __init__(
        self, report: Callable[[LogChunk | Drained], None], *, echo_to: int | None
    ) -> None:
        """`echo_to` is the descriptor of a terminal that sees the worker's output, or None."""
        self._report = report
        self._echo_to = echo_to
        self._tails: list[Tail] = []
        self._echoing: Echo | None = None

    def open(self, attempt: int, directory: Path) -> None:
        """Follow the files of a new attempt."""
        left = threading.Semaphore(1)  # the first tail to be drained takes it

        def drained() -> None:
            if not left.acquire(blocking=False):
                self._report(Drained(time.monotonic(), attempt))

        def follow(name: str, source: Literal["log", "metrics"]) -> Tail:
            return Tail(
                directory / name,
                attempt=attempt,
                source=source,
                report=self._report,
                drained=drained,
            )

        self._tails = [follow("metrics.jsonl", "metrics"), follow("worker.log", "log")]
        if self._echo_to is not None:
            self._echoing = Echo(directory / "worker.log", descriptor=self._echo_to)

    def finish(self) -> None:
        """Read what is left, then report Drained."""
        for tail in self._tails:
            tail.finish()
        if self._echoing is not None:
            self._echoing.finish()
            self._echoing.done.wait(0.1)  # so that our next line stands below the worker's last
