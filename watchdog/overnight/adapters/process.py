"""The supervisor's own process: its signals, and letting go of the terminal."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

from overnight.core.events import StopRequested


def handle_signals(
    report: Callable[[StopRequested], None],
    *,
    let_go: Callable[[], None],
    say: Callable[[str], None],
) -> None:
    """SIGINT and SIGTERM end the run, SIGHUP lets go of the terminal, SIGTSTP is refused."""

    def stop(number: int, _frame: object) -> None:
        report(StopRequested(time.monotonic(), number))

    def hang_up(_number: int, _frame: object) -> None:
        let_go()

    def refuse(_number: int, _frame: object) -> None:
        say("a stopped watchdog watches nothing: Ctrl-Z is ignored (Ctrl-C ends the run)")

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGHUP, hang_up)
    signal.signal(signal.SIGTSTP, refuse)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)


def detach(name: str) -> None:
    """Go on in a session of our own; the shell gets its prompt back. Before any thread exists."""
    if os.fork() > 0:
        print(f"watching in the background: overnight status {name}", flush=True)
        os._exit(0)
    os.setsid()
    quiet = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(quiet, descriptor)
