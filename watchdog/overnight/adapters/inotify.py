"""inotify through libc: Python's standard library has no binding, and we need four calls of it.

Shared by the tail and the checkpoint discovery, beside child.py and files.py. Network filesystems
send no events: every user of this file also polls slowly.
"""

from __future__ import annotations

import ctypes
import os
import struct
from dataclasses import dataclass
from pathlib import Path

MODIFY = 0x0002
CLOSE_WRITE = 0x0008
MOVED_TO = 0x0080
MOVED_FROM = 0x0040
CREATE = 0x0100
DELETE = 0x0200
IGNORED = 0x8000
IS_DIR = 0x4000_0000

_HEADER = struct.Struct("iIII")
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class FileEvent:
    """One inotify event: the watched path, the entry's name in it ("" for itself), and the mask."""

    watched: Path
    name: str
    mask: int


class Inotify:
    """A set of watches behind one file descriptor that can be polled.

    Raises OSError where the kernel refuses (too many instances or watches).
    """

    def __init__(self) -> None:
        self._fd = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1")
        self._paths: dict[int, Path] = {}

    def fileno(self) -> int:
        """The descriptor, for select and poll."""
        return int(self._fd)

    def watch(self, path: Path, mask: int) -> None:
        """Add or renew a watch. Raises OSError."""
        watch = _libc.inotify_add_watch(self._fd, os.fsencode(path), mask)
        if watch < 0:
            raise OSError(ctypes.get_errno(), "inotify_add_watch", str(path))
        self._paths[watch] = path

    def read(self) -> list[FileEvent]:
        """What has happened since the last read; never blocks."""
        events = []
        try:
            data = os.read(self._fd, 1 << 16)
        except BlockingIOError:
            return []
        offset = 0
        while offset < len(data):
            watch, mask, _cookie, length = _HEADER.unpack_from(data, offset)
            offset += _HEADER.size
            name = data[offset : offset + length].rstrip(b"\0")
            offset += length
            if mask & IGNORED:
                self._paths.pop(watch, None)
            elif watch in self._paths:
                events.append(FileEvent(self._paths[watch], os.fsdecode(name), mask))
        return events

    def close(self) -> None:
        """Release the descriptor and all watches."""
        os.close(self._fd)
