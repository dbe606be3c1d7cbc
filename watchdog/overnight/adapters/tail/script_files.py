"""Metrics files of the script's own (`[metrics] path`): found by a glob, followed as they grow.

What was there before the attempt is not read again: of a file that is appended to only what is
new, of one that is written anew all of it. Formats that are whole in each file (TensorBoard,
trainer_state.json) are read from the head.
"""

from __future__ import annotations

import contextlib
import glob
import os
import stat
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from overnight.adapters import inotify
from overnight.adapters.tail.follow import POLL_S, READ_BYTES, Waiter
from overnight.core.events import LogChunk
from overnight.core.lines import Decoder

MAX_FILES = 8
"""So many files are followed at once, the newest; a glob may match a hundred old ones."""

LOOK_COST = 100
"""A glob that takes long is looked for rarely: at most 1 % of the time goes into looking."""

HEADING_BYTES = 1 << 14

KNOWN_BYTES = 256
"""So much at the head of a file, and before the place that was read to, tells whether it is the
same text as before: a file that is written anew may be longer than the old one at once."""


@dataclass(frozen=True)
class Place:
    """Where the files are: an absolute path or glob, a decoder for each, and how they change.

    `appended`: what was there before the attempt is old. `whole`: a file that has changed is read
    from its head, then what is appended. `rewritten`: from its head at each change.
    """

    pattern: str
    decoder: Callable[[], Decoder]
    change: Literal["appended", "whole", "rewritten"]


@dataclass(frozen=True)
class _Seen:
    """A file as it was: another inode is another file."""

    inode: int
    size: int
    mtime_ns: int


@dataclass
class _File:
    """One file that is being read."""

    path: str
    descriptor: int
    decoder: Decoder
    inode: int
    offset: int = 0
    line: int = 1
    begins: bool = True
    heading: str = ""
    mtime_ns: int = 0
    known: bytes = b""
    told_damage: bool = False


class ScriptFiles:
    """A thread that turns the files at a place into LogChunks."""

    def __init__(
        self,
        place: Place,
        *,
        attempt: int,
        report: Callable[[LogChunk], None],
        drained: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Make it before the worker starts: it remembers what is there already."""
        self._place = place
        self._attempt = attempt
        self._report = report
        self._drained = drained
        self._clock = clock
        self._before = self._look()
        newest = sorted(self._before, key=lambda path: self._before[path].mtime_ns)[-MAX_FILES:]
        self._texts = {path: _fingerprint(path, self._before[path].size) for path in newest}
        self._files: dict[str, _File] = {}
        self._next_look = 0.0
        self._finishing = threading.Event()
        self._waiter = Waiter()
        parent = Path(place.pattern).parent
        self._waiter.watch(parent, inotify.CREATE | inotify.MOVED_TO)  # or not: it may be a glob
        for path in newest:
            self._waiter.watch(Path(path), inotify.MODIFY)
        threading.Thread(target=self._run, name="tail:script", daemon=True).start()

    def finish(self) -> None:
        """No more will be written: read to the end, report it, then call `drained`."""
        self._finishing.set()
        self._waiter.wake()

    def _run(self) -> None:
        try:
            while True:
                finishing = self._finishing.is_set()
                soon_s = self._find(certainly=finishing)
                for file in list(self._files.values()):
                    while self._read_some(file):
                        pass
                if finishing:
                    break
                self._waiter.wait(soon_s)
            for file in self._files.values():
                rest = file.decoder.flush()
                if rest:
                    self._post(file, rest)
        finally:
            self._close()
            self._drained()

    # --- which files ---------------------------------------------------------------------------

    def _look(self) -> dict[str, _Seen]:
        """What matches now."""
        found = {}
        for path in glob.iglob(self._place.pattern, recursive=True):  # noqa: PTH207 - absolute
            with contextlib.suppress(OSError):
                status = Path(path).stat()
                if not stat.S_ISREG(status.st_mode):
                    continue  # opening a pipe waits for ever, and a device has no end
                found[path] = _Seen(status.st_ino, status.st_size, status.st_mtime_ns)
        return found

    def _find(self, *, certainly: bool) -> float:
        """Open what is new or has changed since the attempt began; close what is gone.

        Returns the seconds after which to look again if nothing happens.
        """
        now = time.monotonic()
        if now < self._next_look and not certainly:
            return min(POLL_S, self._next_look - now)
        found = self._look()
        self._next_look = now + LOOK_COST * (time.monotonic() - now)
        changed = [path for path, seen in found.items() if seen != self._before.get(path)]
        changed.sort(key=lambda path: found[path].mtime_ns)
        for path in changed[-MAX_FILES:]:
            known = self._files.get(path)
            if known is None or known.inode != found[path].inode:
                if known is not None:
                    self._drop(path)
                self._open(path)
        for path in [path for path in self._files if path not in changed[-MAX_FILES:]]:
            self._drop(path)
        return POLL_S

    def _open(self, path: str) -> None:
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            status = os.fstat(descriptor)
            file = _File(path, descriptor, self._place.decoder(), status.st_ino)
            before = self._before.get(path)
            if before is not None and self._only_grew(path, before, status):
                self._begin_behind(file, before.size)
            self._files[path] = file
            self._waiter.watch(Path(path), inotify.MODIFY)

    def _only_grew(self, path: str, before: _Seen, status: os.stat_result) -> bool:
        """Whether what was there before the attempt is there still, with something behind it."""
        if self._place.change != "appended" or before.inode != status.st_ino:
            return False
        known = self._texts.get(path)
        grew = 0 < before.size <= status.st_size
        return grew and (known is None or known == _fingerprint(path, before.size))

    def _begin_behind(self, file: _File, size: int) -> None:
        """Only what comes behind the old part is news; its first line may name the columns."""
        head = os.pread(file.descriptor, min(size, HEADING_BYTES), 0)
        file.heading = head.partition(b"\n")[0].rstrip(b"\r").decode(errors="replace")
        file.begins, file.offset = False, size
        file.known = _known(file.descriptor, size)
        file.decoder.restart(mid_line=os.pread(file.descriptor, 1, size - 1) != b"\n")

    def _drop(self, path: str) -> None:
        file = self._files.pop(path)
        while self._read_some(file):
            pass
        os.close(file.descriptor)

    # --- their lines ---------------------------------------------------------------------------

    def _read_some(self, file: _File) -> bool:
        """Read and report one block; False when that was the end of the file for now."""
        try:
            status = os.fstat(file.descriptor)
            if self._is_another_text(file, status):
                file.offset, file.line, file.begins, file.heading = 0, 1, True, ""
                file.decoder.restart(mid_line=False)
            data = os.pread(file.descriptor, READ_BYTES, file.offset)
        except OSError:
            return False  # e.g. a stale network file: the poll tries again
        file.offset, file.mtime_ns = file.offset + len(data), status.st_mtime_ns
        file.known = _known(file.descriptor, file.offset)
        if data:
            self._post(file, file.decoder.feed(data))
        return len(data) == READ_BYTES

    def _is_another_text(self, file: _File, status: os.stat_result) -> bool:
        """Whether what was read before is no longer what stands there."""
        if file.offset == 0 or status.st_mtime_ns == file.mtime_ns:
            return status.st_size < file.offset
        if self._place.change == "rewritten" or status.st_size < file.offset:
            return True
        return _known(file.descriptor, file.offset) != file.known

    def _post(self, file: _File, lines: list[str]) -> None:
        damage = "" if file.told_damage else file.decoder.damage
        file.told_damage = bool(file.decoder.damage)
        self._report(
            LogChunk(
                at=self._clock(),
                attempt=self._attempt,
                source="file",
                lines=tuple(lines),
                first_line=file.line,
                end_offset=file.offset - file.decoder.pending_bytes,
                cut_lines=file.decoder.cut_lines,
                begins=file.begins and bool(lines),
                heading=file.heading if lines else "",
                damage=damage and f"{file.path} is {damage}",
            )
        )
        file.line += len(lines)
        if lines:
            file.begins, file.heading = False, ""

    def _close(self) -> None:
        for file in self._files.values():
            os.close(file.descriptor)
        self._waiter.close()


def _known(descriptor: int, offset: int) -> bytes:
    """What stands at the head of a file and before an offset. Raises OSError."""
    head = os.pread(descriptor, min(KNOWN_BYTES, offset), 0)
    start = max(0, offset - KNOWN_BYTES)
    return head + os.pread(descriptor, offset - start, start)


def _fingerprint(path: str, size: int) -> bytes | None:
    """The same of a file by its path; None where it cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return _known(descriptor, size)
    except OSError:
        return None
    finally:
        os.close(descriptor)
