"""What a hanging worker looks like, written down before it is killed:
`python -m overnight.adapters.autopsy`, the order as JSON on stdin.

A child of its own, because a process that is stuck in a driver can hold up whoever looks at it.
Everything is tried, nothing is required: what cannot be read is said to be so.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from overnight.adapters.child import ChildResult, module_argv, run_child
from overnight.adapters.files import write_atomically
from overnight.core.orders import Autopsy, AutopsyDone

DEADLINE_S = 6.0
"""The kill waits no longer for it."""

STACKS_S, STACKS_OF = 1.5, 3
"""Time for the Python stacks of one process, and of how many."""

LOG_LINES = 200
LOG_BYTES = 256 << 10

_SECRET = re.compile(r"(?i)((?:token|api[-_]?key|secret|passw\w*)[=: ]\s*)\S+")


def examine(
    order: Autopsy, *, report: Callable[[AutopsyDone], None], clock: Callable[[], float]
) -> None:
    """Have it done in a child; AutopsyDone follows within DEADLINE_S and a moment."""

    def done(result: ChildResult) -> None:
        answer = result.json()
        path = str(answer["path"]) if answer and "path" in answer else None
        report(AutopsyDone(clock(), order.attempt, path, "" if path else result.complaint()))

    plain = {
        "pids": list(order.pids),
        "reason": order.reason,
        "command": list(order.command),
        "workdir": str(order.workdir),
        "log": str(order.log),
        "into": str(order.into),
        "gpus": list(order.gpus),
        "kernel": list(order.kernel),
    }
    argv = module_argv("overnight.adapters.autopsy")
    run_child(argv, deadline_s=DEADLINE_S, done=done, stdin=json.dumps(plain).encode())


# --- the child -----------------------------------------------------------------------------------


def bundle(order: dict[str, Any]) -> str:
    """The whole report as text."""
    pids = [int(pid) for pid in order["pids"]]
    workdir = Path(order["workdir"])
    none = ["nothing"]
    sections = {
        "what": [time.strftime("%Y-%m-%d %H:%M:%S %Z"), order["reason"]],
        "command": [_masked(" ".join(order["command"])), f"in {workdir}"],
        "code": list(_code(workdir)),
        "processes": [line for pid in pids for line in _process(pid)] or none,
        "python stacks": list(_stacks(pids)),
        "gpus": order["gpus"] or ["no telemetry"],
        "machine": list(_machine(workdir)),
        "kernel": order["kernel"] or ["no line that speaks of it, or its log may not be read"],
        f"last {LOG_LINES} lines": _tail(Path(order["log"])),
    }
    parts = [f"== {title} ==\n" + "\n".join(lines) for title, lines in sections.items()]
    return "\n\n".join(parts) + "\n"


def _masked(words: str) -> str:
    return _SECRET.sub(r"\1***", words)


def _process(pid: int) -> Iterator[str]:
    """State, wait channel and stack of a process and its threads, as /proc tells them."""
    base = Path("/proc") / str(pid)
    words = _read(base / "cmdline").replace("\0", " ").strip()
    status = dict(
        line.split(":\t", 1) for line in _read(base / "status").splitlines() if ":\t" in line
    )
    if not status:
        yield f"{pid}: gone"
        return
    shown = ", ".join(
        f"{name} {status[name].strip()}"
        for name in ("State", "PPid", "Threads", "VmRSS")
        if name in status
    )
    yield f"{pid}: {_masked(words)[:300]}"
    yield f"    {shown}"
    for thread in sorted((base / "task").glob("*"), key=lambda path: int(path.name))[:16]:
        state = re.search(r"\) (\S)", _read(thread / "stat"))
        waits = _read(thread / "wchan").strip() or "?"
        yield f"    thread {thread.name}: {state[1] if state else '?'} in {waits}"
    stack = _read(base / "stack").strip()
    if stack:
        yield from (f"    {line}" for line in stack.splitlines()[:20])


def _stacks(pids: list[int]) -> Iterator[str]:
    """Where its Python code stands, if py-spy is there and may look."""
    spy = shutil.which("py-spy")
    if spy is None:
        yield "py-spy is not installed (pip install py-spy): no Python stacks"
        return
    pythons = [pid for pid in pids if "python" in _read(Path(f"/proc/{pid}/cmdline"))]
    for pid in pythons[:STACKS_OF]:
        yield _masked(_run([spy, "dump", "--nonblocking", "--pid", str(pid)], timeout_s=STACKS_S))


def _code(workdir: Path) -> Iterator[str]:
    """Which commit of the working directory ran, and whether it was changed."""
    git = shutil.which("git")
    if git is None:
        yield "git is not installed"
        return
    head = _run([git, "-C", str(workdir), "log", "-1", "--format=%H %cI %s"], timeout_s=1.0)
    yield head
    if re.match(r"[0-9a-f]{40} ", head):
        changed = _run([git, "-C", str(workdir), "status", "--short", "-uno"], timeout_s=1.0)
        yield changed or "no change since"


def _machine(workdir: Path) -> Iterator[str]:
    yield f"load {_read(Path('/proc/loadavg')).strip()}"
    wanted = ("MemTotal", "MemAvailable", "SwapFree", "Dirty", "Shmem")
    for line in _read(Path("/proc/meminfo")).splitlines():
        if line.startswith(wanted):
            yield line
    for kind in ("memory", "io"):
        pressure = _read(Path("/proc/pressure") / kind).strip()
        yield from (f"{kind} pressure {line}" for line in pressure.splitlines())
    for place in (workdir, Path("/dev/shm")):  # noqa: S108 - looked at, not used
        with contextlib.suppress(OSError):
            usage = shutil.disk_usage(place)
            yield f"{place}: {usage.free / 2**30:.1f} of {usage.total / 2**30:.1f} GiB free"


def _tail(log: Path) -> list[str]:
    try:
        with log.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - LOG_BYTES))
            text = file.read().decode(errors="replace")
    except OSError as error:
        return [f"cannot be read: {error.strerror}"]
    return re.split(r"\r\n|\n|\r", text.rstrip())[-LOG_LINES:]


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _run(argv: list[str], *, timeout_s: float) -> str:
    try:
        done = subprocess.run(argv, capture_output=True, timeout=timeout_s, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{Path(argv[0]).name}: {type(error).__name__}"
    return (done.stdout or done.stderr).decode(errors="replace").strip()


def main() -> int:
    """Entry of the child: one line of JSON with the path of what it wrote."""
    os.nice(10)
    order = json.load(sys.stdin)
    into = Path(order["into"])
    write_atomically(into, bundle(order).encode())
    print(json.dumps({"path": str(into)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
