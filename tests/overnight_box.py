"""Drives the real command line in a directory of its own, for integration tests and benchmarks."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from waiting import wait_until

SCRIPT = Path(__file__).parent / "workers" / "script.py"
RESUME = "--resume {checkpoint} --lr {lr}"
OVERNIGHT = [sys.executable, "-P", "-m", "overnight"]


@dataclass(frozen=True)
class Finished:
    """What a command left behind."""

    status: int
    out: str
    err: str


class Live:
    """A supervisor that runs in the background; its words can be waited for."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.said: list[str] = []
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def wait_for(self, text: str, *, timeout_s: float = 30.0) -> str:
        """The next line that contains `text`; fails with all that was said."""
        while True:
            try:
                line = self._lines.get(timeout=timeout_s)
            except queue.Empty:
                line = None
            if line is None:
                raise AssertionError(f"{text!r} was never said:\n" + "\n".join(self.said))
            self.said.append(line)
            if text in line:
                return line

    def finish(self, *, timeout_s: float = 60.0) -> Finished:
        """Wait for the end."""
        status = self.process.wait(timeout_s)
        while (line := self._lines.get(timeout=5)) is not None:
            self.said.append(line)
        return Finished(status, "", "\n".join(self.said))


class Box:
    """One working directory with its own state; supervisors left over are killed at the end."""

    def __init__(self, root: Path) -> None:
        self.workdir = root / "work"
        self.out = self.workdir / "out"
        self.state = root / "state"
        self.workdir.mkdir()
        drop = ("PYTHONUNBUFFERED", "PYTHONPATH", "OVERNIGHT_NOTIFY")
        self.env = {k: v for k, v in os.environ.items() if k not in drop}
        self.env["OVERNIGHT_STATE_DIR"] = str(self.state)
        self._live: list[Live] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for live in self._live:
            if live.process.poll() is None:
                live.process.kill()
                live.process.wait()
        for start in self.starts():
            if _is_ours(start["pid"]):
                os.kill(start["pid"], 9)

    # --- commands --------------------------------------------------------------------------------

    def command(self, *arguments: str, python: str = sys.executable) -> list[str]:
        """The user's command: our script with these arguments."""
        return [python, str(SCRIPT), "--out", str(self.out), "--lr", "3e-4", *arguments]

    def run_argv(self, command: list[str], *flags: str, resume: str | None = RESUME) -> list[str]:
        """`overnight run` on a command, with checkpoints and, by default, a resume route."""
        argv = [
            *OVERNIGHT,
            "run",
            "--name",
            "night",
            "--checkpoints",
            str(self.out / "*.safetensors"),
        ]
        argv += ["--resume-args", resume] if resume else []
        return [*argv, *flags, "--", *command]

    def run(
        self, command: list[str], *flags: str, resume: str | None = RESUME, timeout_s: float = 60.0
    ) -> Finished:
        """Supervise a command to its end."""
        return self.call(self.run_argv(command, *flags, resume=resume), timeout_s=timeout_s)

    def start(self, command: list[str], *flags: str, resume: str | None = RESUME) -> Live:
        """Supervise a command in the background."""
        return self.popen(self.run_argv(command, *flags, resume=resume))

    def popen(self, argv: list[str]) -> Live:
        """Any command of ours in the background."""
        process = subprocess.Popen(
            argv,
            cwd=self.workdir,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        live = Live(process)
        self._live.append(live)
        return live

    def call(self, argv: list[str], *, timeout_s: float = 60.0) -> Finished:
        """Run any command here."""
        done = subprocess.run(
            argv,
            cwd=self.workdir,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        return Finished(done.returncode, done.stdout, done.stderr)

    def overnight(self, *arguments: str) -> Finished:
        """Another command of ours."""
        return self.call([*OVERNIGHT, *arguments])

    # --- what is known afterwards ----------------------------------------------------------------

    def json(self, *arguments: str) -> Any:
        """The JSON that a command prints."""
        done = self.overnight(*arguments, "--json")
        assert done.out, done.err
        return json.loads(done.out)

    def incidents(self) -> list[dict[str, Any]]:
        """All incidents of the run."""
        found = self.json("incidents", "night")
        assert isinstance(found, list)
        return found

    def status(self) -> dict[str, Any]:
        """The run's status."""
        found = self.json("status", "night")["runs"][0]
        assert isinstance(found, dict)
        return found

    def checkpoints(self) -> dict[int, dict[str, Any]]:
        """The run's checkpoints by step."""
        return {row["step"]: row for row in self.json("checkpoints", "night")}

    def starts(self) -> list[dict[str, Any]]:
        """Every start of the worker, with its arguments and pid."""
        path = self.out / "starts"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def first_start(self) -> dict[str, Any]:
        """The first start of the worker, as soon as it has happened."""
        wait_until(lambda: bool(self.starts()), self.out)
        return self.starts()[0]

    def log(self, attempt: int) -> str:
        """What the worker printed in an attempt."""
        return (self.state / "night" / "attempts" / f"{attempt:04d}" / "worker.log").read_text()

    def metrics(self, attempt: int) -> list[dict[str, Any]]:
        """The worker's own metrics of an attempt."""
        path = self.state / "night" / "attempts" / f"{attempt:04d}" / "metrics.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()]


def _is_ours(pid: int) -> bool:
    try:
        return str(SCRIPT).encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
