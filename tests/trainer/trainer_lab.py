"""Runs of the reference trainer for its tests: in this process, or as a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TRAINER = Path(__file__).resolve().parents[2] / "trainer"
TINY = ("--batch", "2", "--threads", "1", "--device", "cpu", "--log-every", "1", "--warmup", "10")


class Lab:
    """One OUT folder, a small text, and ways to run the trainer on them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.out = folder / "out"
        self.metrics = folder / "metrics.jsonl"
        self.text = folder / "text.txt"
        self.text.write_text(Path(json.__file__).with_name("decoder.py").read_text() * 4)

    def argv(self, *flags: object) -> list[str]:
        return [*TINY, "--out", str(self.out), "--data", str(self.text), *map(str, flags)]

    def run(self, *flags: object, **variables: object) -> list[dict[str, Any]]:
        """Train in this process, as `main` does; the records of this run."""
        status, records = self.status(*flags, **variables)
        assert status == 0
        return records

    def status(self, *flags: object, **variables: object) -> tuple[int, list[dict[str, Any]]]:
        from overnight_trainer.__main__ import main

        before = len(self.records())
        with pytest.MonkeyPatch.context() as patch:
            for name, value in {"metrics": self.metrics, **variables}.items():
                patch.setenv(f"OVERNIGHT_{name.upper()}", str(value))
            status = main(self.argv(*flags))
        return status, self.records()[before:]

    def start(self, *flags: object, **variables: object) -> subprocess.Popen[str]:
        """Train in a process of its own, printing a line a step."""
        env = {**os.environ, "PYTHONPATH": str(TRAINER), "PYTHONUNBUFFERED": "1"}
        for name, value in {"metrics": self.metrics, **variables}.items():
            env[f"OVERNIGHT_{name.upper()}"] = str(value)
        return subprocess.Popen(
            [sys.executable, "-m", "overnight_trainer", *self.argv(*flags)],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def records(self) -> list[dict[str, Any]]:
        lines = self.metrics.read_text().splitlines() if self.metrics.exists() else []
        return [json.loads(line) for line in lines]

    def checkpoint(self, step: int) -> Path:
        return self.out / "checkpoints" / f"step_{step:08d}"

    def checkpoints(self) -> list[int]:
        return sorted(int(path.name[5:]) for path in (self.out / "checkpoints").glob("step_*"))


def series(records: list[dict[str, Any]], key: str) -> dict[int, Any]:
    """Step -> value, of the records that have it."""
    return {record["step"]: record[key] for record in records if key in record}


def read_until(process: subprocess.Popen[str], text: str) -> str:
    """The first line that the process prints with `text` in it."""
    assert process.stdout is not None
    for line in process.stdout:
        if text in line:
            return line
    raise AssertionError(f"{text!r} was never printed")
