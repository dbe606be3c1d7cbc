"""Worker trees for tests: a launch in a temporary folder, and everything it started ended after."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

from overnight.adapters.files import read_json
from overnight.adapters.worker import WorkerTree
from overnight.core.events import ExitRecord, TreeGone, WorkerExited, WorkerStarted
from overnight.core.orders import Launch
from reports import Reports


def python(code: str) -> list[str]:
    """A worker that runs this code."""
    return [sys.executable, "-c", code]


def launch(tmp_path: Path, command: list[str], **options: Any) -> Launch:
    """An attempt below `tmp_path`, with the test's own environment."""
    values: dict[str, Any] = {
        "attempt": 1,
        "directory": tmp_path / "0001",
        "command": command,
        "workdir": tmp_path,
        "env": dict(os.environ),
    }
    return Launch(**(values | options))


class Lab:
    """One worker tree and its reports; leaving the context kills what is left of it."""

    def __init__(self, tmp_path: Path, command: list[str], **options: Any) -> None:
        self.reports = Reports()
        self.tree = WorkerTree(self.reports.put, clock=lambda: 7.0)
        self.launch = launch(tmp_path, command, **options)
        self.started: WorkerStarted | None = None

    def __enter__(self) -> Self:
        self.tree.start(self.launch)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, t: TracebackType | None
    ) -> None:
        self.tree.kill()

    def wait_started(self) -> WorkerStarted:
        """The report of the start."""
        self.started = self.reports.next(WorkerStarted)
        return self.started

    def exit_record(self) -> ExitRecord:
        """How the worker ended, as reported."""
        found = self.reports.next(WorkerExited)
        assert isinstance(found, WorkerExited)
        return found.record

    def wait_gone(self) -> None:
        """Until no process of the tree is left."""
        assert self.reports.next(TreeGone) == TreeGone(7.0, 1)

    @property
    def log(self) -> str:
        """What the worker has written."""
        return (self.launch.directory / "worker.log").read_text()

    @property
    def written_exit(self) -> Any:
        """exit.json."""
        return read_json(self.launch.directory / "exit.json")


def wait_ended(pid: int, timeout_s: float = 20.0) -> None:
    """Until that process, ours or not, has ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(pid).wait(timeout_s)
