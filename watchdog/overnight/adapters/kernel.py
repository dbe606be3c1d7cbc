"""What the kernel says of a death: its log, and the count of OOM kills in our own cgroup.

/dev/kmsg needs CAP_SYSLOG on most systems, the count needs nothing. Nothing here raises or waits.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

KMSG = Path("/dev/kmsg")
CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUP = Path("/proc/self/cgroup")

RECORD_BYTES = 8192
"""A record of the kernel's log is shorter; a smaller buffer would make read() fail."""

MAX_LINES = 50
EARLIER_S = 5.0
"""The kernel's clock and ours may differ by less than this."""

_TELLS = re.compile(
    r"Out of memory|oom-kill|oom_reaper|NVRM|\bXid\b|segfault|general protection|SIGBUS"
    r"|I/O error|EXT4-fs error|hung_task|blocked for more than|Machine Check|AER:",
    re.IGNORECASE,
)


def kernel_lines(since: float, *, kmsg: Path = KMSG) -> list[str]:
    """The lines that speak of deaths and devices, from this moment on (monotonic seconds).

    Empty where the log may not be read.
    """
    with contextlib.suppress(OSError):
        descriptor = os.open(kmsg, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            return telling_lines(descriptor, since)
        finally:
            os.close(descriptor)
    return []


def telling_lines(descriptor: int, since: float) -> list[str]:
    """What is left to read of a log that gives one record a read(), and then would block."""
    found: list[str] = []
    while record := _next(descriptor):
        at, message = record
        if at >= since - EARLIER_S and _TELLS.search(message):
            found.append(message)
    return found[-MAX_LINES:]


def _next(descriptor: int) -> tuple[float, str] | None:
    """The next record as (seconds since boot, message); None at the end."""
    while True:
        try:
            data = os.read(descriptor, RECORD_BYTES)
        except BrokenPipeError:  # the ring buffer has overtaken us: go on with what it holds
            continue
        except BlockingIOError:
            return None
        if not data:
            return None
        head, _, body = data.decode(errors="replace").partition(";")
        fields = head.split(",")
        if len(fields) >= 3 and fields[2].isdigit():
            return int(fields[2]) / 1e6, body.splitlines()[0] if body else ""


def oom_kills(*, own: Path = OWN_CGROUP, root: Path = CGROUPS) -> int | None:
    """Processes of our cgroup that the kernel's OOM killer has ended so far; None where unknown."""
    with contextlib.suppress(OSError):
        for line in own.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers not in ("", "memory"):
                continue
            file = "memory.oom_control" if controllers else "memory.events"
            count = _count(root / controllers / path.lstrip("/") / file)
            if count is not None:
                return count
    return None


def _count(events: Path) -> int | None:
    with contextlib.suppress(OSError):
        found = re.search(r"^oom_kill (\d+)$", events.read_text(), re.MULTILINE)
        return int(found[1]) if found else None
    return None
