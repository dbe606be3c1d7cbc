"""The worker's process tree: launched through the recorder, signalled, killed to the last process.

Signals go to the worker's own pid through a pidfd (DataLoader children must not get them);
SIGKILL goes to the whole tree, again and again until the recorder says it is empty.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import psutil

from overnight.adapters import recorder
from overnight.adapters.files import private_directory, read_json
from overnight.core.events import ExitRecord, TreeGone, TreeStuck, WorkerExited, WorkerStarted
from overnight.core.orders import Launch
from overnight.errors import WorkerError

STUCK_S = 10.0
"""A tree that survives SIGKILL this long sits in the kernel (D state) and is reported."""

Report = Callable[[WorkerStarted | WorkerExited | TreeGone | TreeStuck], None]


def recorder_argv(launch: Launch) -> list[str]:
    """The recorder's command: isolated from the user's Python settings, no site packages."""
    where = [str(launch.directory), str(launch.workdir)]
    return [sys.executable, "-I", "-S", recorder.__file__, *where, "--", *launch.command]


class WorkerTree:
    """The processes of the current attempt. All methods return at once, results are reported."""

    def __init__(self, report: Report, clock: Callable[[], float] = time.monotonic) -> None:
        self._report = report
        self._clock = clock
        self._tree: _Tree | None = None

    def start(self, launch: Launch) -> None:
        """Start the recorder, which starts the worker. Raises WorkerError."""
        self._tree = _Tree(launch, self._report, self._clock)

    def signal(self, number: int) -> bool:
        """Send a signal to the worker's main process; False when it is already gone.

        A worker that is only being started gets it as soon as it exists.
        """
        return self._tree is not None and self._tree.signal(number)

    def signal_rest(self, number: int) -> None:
        """To everything that is left when the main process has gone (a shell around a trainer)."""
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)

    def kill(self) -> None:
        """SIGKILL the whole tree; TreeGone (or TreeStuck) is reported later."""
        if self._tree is not None:
            self._tree.kill()

    def pids(self) -> list[int]:
        """The processes of the tree, without the recorder."""
        return self._tree.pids() if self._tree is not None else []

    def cpu_seconds(self) -> float | None:
        """CPU time used by the living processes of the tree; None when it cannot be told."""
        total = 0.0
        pids = self.pids()
        for pid in pids:
            try:
                times = psutil.Process(pid).cpu_times()
            except psutil.Error:
                continue
            total += times.user + times.system
        return total if pids else None


class _Tree:
    """One attempt: a recorder and everything below it. A later attempt has a tree of its own."""

    def __init__(self, launch: Launch, report: Report, clock: Callable[[], float]) -> None:
        try:
            private_directory(launch.directory)
            self._recorder = subprocess.Popen(
                recorder_argv(launch),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=dict(launch.env),
                start_new_session=True,
            )
        except OSError as error:
            raise WorkerError(f"cannot start the recorder: {error}") from error
        self._launch = launch
        self._report = report
        self._clock = clock
        self._lock = threading.Lock()
        self._pidfd: int | None = None
        self._unsent: int | None = None
        self._killing = False
        self._exited = False
        threading.Thread(target=self._follow, name=f"worker:{launch.attempt}", daemon=True).start()

    # --- what the recorder tells -----------------------------------------------------------------

    def _follow(self) -> None:
        assert self._recorder.stdout is not None
        with self._recorder.stdout as facts:
            for line in facts:
                fact = json.loads(line)
                if fact["fact"] == "started":
                    self._started(fact)
                else:
                    self._ended(fact)
        self._recorder.wait()
        if not self._exited:
            self._recorder_lost()
        self._report(TreeGone(self._clock(), self._launch.attempt))

    def _started(self, fact: Mapping[str, Any]) -> None:
        self._open_pidfd(fact["pid"], fact["start_time"])
        if self._unsent is not None:
            self.signal(self._unsent)
        self._report(
            WorkerStarted(
                at=self._clock(),
                attempt=self._launch.attempt,
                pid=fact["pid"],
                recorder_pid=fact["recorder_pid"],
                start_time=fact["start_time"],
                boot_id=fact["boot_id"],
            )
        )

    def _open_pidfd(self, pid: int, start_time: int) -> None:
        """Hold the process itself, not its number; the start time is checked after opening."""
        with contextlib.suppress(OSError):
            pidfd = os.pidfd_open(pid)
            if recorder.start_time(pid) == start_time:
                with self._lock:
                    self._pidfd = pidfd
            else:
                os.close(pidfd)

    def _ended(self, fact: Mapping[str, Any]) -> None:
        with self._lock:
            self._exited = True
            pidfd, self._pidfd = self._pidfd, None
        if pidfd is not None:
            os.close(pidfd)
        record = ExitRecord(fact["code"], fact["signal"], fact["ended_utc"], fact["error"])
        self._report(WorkerExited(self._clock(), self._launch.attempt, record))

    def _recorder_lost(self) -> None:
        """Somebody killed the recorder. The worker may live on: wait for it, then say unknown."""
        if self._pidfd is not None:
            poll = select.poll()
            poll.register(self._pidfd, select.POLLIN)
            poll.poll()
        fact = read_json(self._launch.directory / "exit.json")
        unknown = {"code": None, "signal": None, "ended_utc": time.time(), "error": ""}
        self._ended(fact or unknown)

    # --- what is asked of it ---------------------------------------------------------------------

    def signal(self, number: int) -> bool:
        """To the main process; kept for one that has not been started yet."""
        with self._lock:
            if self._pidfd is None:
                self._unsent = None if self._exited else number
                return False
            try:
                signal.pidfd_send_signal(self._pidfd, number)
            except OSError:
                return False
            return True

    def kill(self) -> None:
        """SIGKILL to everything, from a thread of its own, until nothing is left."""
        self.signal(signal.SIGKILL)
        if not self._killing:
            self._killing = True
            threading.Thread(target=self._kill_all, name="kill", daemon=True).start()

    def _kill_all(self) -> None:
        begun, told = self._clock(), False
        while self._recorder.poll() is None:
            pids = self.pids()
            for pid in pids:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._recorder.wait(0.02 if not told else 1.0)
            if not told and self._clock() - begun > STUCK_S:
                told = True
                self._report(TreeStuck(self._clock(), self._launch.attempt, tuple(pids)))

    def pids(self) -> list[int]:
        """Everything below the recorder."""
        try:
            children = psutil.Process(self._recorder.pid).children(recursive=True)
        except psutil.Error:
            return []
        return [child.pid for child in children]


def is_alive(pid: int, start_time: int, boot_id: str) -> bool:
    """Whether exactly that process still lives (same boot, same pid, same start time)."""
    try:
        return recorder.boot_id() == boot_id and recorder.start_time(pid) == start_time
    except (OSError, ValueError, IndexError):
        return False
