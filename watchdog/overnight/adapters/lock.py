"""One supervisor a run: an exclusive lock that the kernel releases when its holder dies."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

LOOKS = 20
"""`is_held` takes the lock for microseconds to look; a supervisor must not be refused for that."""


def _try(descriptor: int) -> bool:
    for _ in range(LOOKS):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.01)
        else:
            return True
    return False


class RunLock:
    """Holds `STATE/NAME/lock`; the descriptor is closed in every child."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "lock"
        self._descriptor: int | None = None

    def acquire(self) -> int | None:
        """None when the lock is ours now, else the pid of its holder (0 where unknown).

        Raises OSError where the state directory cannot be written.
        """
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if not _try(descriptor):
            holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
            os.close(descriptor)
            return int(holder) if holder.isdigit() else 0
        self._descriptor = descriptor
        self.renew()
        return None

    def renew(self) -> None:
        """Name this process as the holder; a fork has inherited the lock."""
        assert self._descriptor is not None
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, str(os.getpid()).encode(), 0)

    def release(self) -> None:
        """Give it up."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def is_held(directory: Path) -> bool:
    """Whether a supervisor of this run lives."""
    try:
        descriptor = os.open(directory / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
