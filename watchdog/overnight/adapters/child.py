"""Short-lived and long-lived helper processes that report from their own thread.

A helper that hangs, floods or dies can never stop the supervisor: everything here runs in a
daemon thread, output is bounded, and a deadline ends in SIGKILL.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

MAX_OUTPUT_BYTES = 1 << 20
"""A helper that prints more than this is cut off; ours print a few hundred bytes."""

LAST_WORDS_S = 1.0
"""How long an ended helper's pipes are still read: longer only if a stray process holds them."""


@dataclass(frozen=True, slots=True)
class ChildResult:
    """How a helper ended; `timed_out` ones were killed."""

    returncode: int
    stdout: bytes
    stderr: bytes
    timed_out: bool

    def json(self) -> dict[str, Any] | None:
        """The JSON object on the last line of stdout, or None."""
        lines = self.stdout.strip().splitlines()
        try:
            value = json.loads(lines[-1]) if lines else None
        except ValueError:
            return None
        return value if isinstance(value, dict) else None

    def complaint(self) -> str:
        """One line that says what went wrong, for a log or a reason."""
        if self.timed_out:
            return "no answer before the deadline"
        lines = self.stderr.decode(errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else f"exit status {self.returncode}"


def module_argv(module: str, *arguments: str) -> list[str]:
    """The command that runs one of our modules in a fresh interpreter of our own environment.

    `-P`: a `queue.py` or `requests.py` in the training folder must not become ours.
    """
    return [sys.executable, "-P", "-m", module, *arguments]


def _kill(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL the helper and whatever it started (it leads its own session)."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


class _Collected:
    """What a pipe brings, up to a bound; the rest is read and forgotten, so nobody blocks."""

    def __init__(self, stream: IO[bytes] | None) -> None:
        assert stream is not None
        self._stream = stream
        self._kept = bytearray()
        self._thread = threading.Thread(target=self._read, name="child-output", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with self._stream:
            while block := os.read(self._stream.fileno(), 1 << 16):
                self._kept += block[: MAX_OUTPUT_BYTES - len(self._kept)]

    def ended(self, until: float) -> bool:
        """Whether every writer has closed the pipe by that time."""
        self._thread.join(max(0.0, until - time.monotonic()))
        return not self._thread.is_alive()

    @property
    def value(self) -> bytes:
        """The bytes so far."""
        return bytes(self._kept)


def _feed(process: subprocess.Popen[bytes], data: bytes) -> None:
    """Write the helper's stdin and close it; one that does not read is the deadline's business."""
    assert process.stdin is not None
    with contextlib.suppress(OSError), process.stdin as stdin:
        stdin.write(data)


def run_child(
    argv: Sequence[str],
    *,
    deadline_s: float,
    done: Callable[[ChildResult], None],
    stdin: bytes = b"",
    env: Mapping[str, str] | None = None,
) -> None:
    """Start a helper and return at once; `done` is called from a thread, exactly once.

    `stdin` is the place for secrets: argv and environment are public on a shared machine.
    """

    def body() -> None:
        try:
            process = subprocess.Popen(
                list(argv),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=None if env is None else dict(env),
                start_new_session=True,
            )
        except OSError as error:
            done(ChildResult(127, b"", str(error).encode(), timed_out=False))
            return
        out, err = _Collected(process.stdout), _Collected(process.stderr)
        threading.Thread(target=_feed, args=(process, stdin), daemon=True).start()
        until = time.monotonic() + deadline_s
        timed_out = False
        try:
            process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            timed_out = True
        # a process that the helper left behind holds the pipes: the deadline is for it, too
        timed_out |= not (out.ended(until) and err.ended(until))
        if timed_out:
            _kill(process)
        process.wait()
        last = time.monotonic() + LAST_WORDS_S
        out.ended(last), err.ended(last)
        done(ChildResult(process.returncode, out.value, err.value, timed_out))

    threading.Thread(target=body, name=f"child:{argv[-1][:40]}", daemon=True).start()


class LineChild:
    """A long-lived helper that prints one line an observation."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        on_line: Callable[[bytes], None],
        on_exit: Callable[[int, str], None],
        env: Mapping[str, str] | None = None,
    ) -> None:
        """Start it; `on_exit(returncode, last stderr line)` is called once. Raises OSError."""
        self._process = subprocess.Popen(
            list(argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=None if env is None else dict(env),
            start_new_session=True,
        )
        self._on_line = on_line
        self._on_exit = on_exit
        self._last_error = ""
        self._errors = threading.Thread(target=self._read_errors, name="child-stderr", daemon=True)
        self._errors.start()
        threading.Thread(target=self._read, name="child-stdout", daemon=True).start()

    @property
    def pid(self) -> int:
        """The helper's process id."""
        return self._process.pid

    def _read(self) -> None:
        stdout = self._process.stdout
        assert stdout is not None
        with stdout:
            while line := stdout.readline(MAX_OUTPUT_BYTES):
                self._on_line(line)
        returncode = self._process.wait()
        self._errors.join(LAST_WORDS_S)  # its last line is why it died
        self.close()
        self._on_exit(returncode, self._last_error)

    def _read_errors(self) -> None:
        stderr = self._process.stderr
        assert stderr is not None
        with stderr:
            while line := stderr.readline(4096):
                self._last_error = line.decode(errors="replace").strip() or self._last_error

    def close(self) -> None:
        """Ask the helper to end (its stdin closes), without waiting."""
        stdin = self._process.stdin
        assert stdin is not None
        with contextlib.suppress(OSError):
            stdin.close()

    def terminate(self) -> None:
        """SIGTERM, for a helper that has something to shut down; `kill` when it does not answer."""
        self._process.terminate()

    def kill(self) -> None:
        """End a helper that does not answer."""
        _kill(self._process)
