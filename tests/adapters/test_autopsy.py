"""The autopsy of a hanging worker: real processes, a real repository, and whatever is missing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from overnight.adapters.autopsy import bundle, examine
from overnight.core.orders import Autopsy, AutopsyDone
from reports import Reports

HANGS = "import threading; print('last words', flush=True); threading.Event().wait()"


@pytest.fixture
def hanging() -> Iterator[subprocess.Popen[bytes]]:
    """A process that waits for ever, once it has said so."""
    process = subprocess.Popen(
        [sys.executable, "-c", HANGS, "--hub_token", "abc123secret"], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    process.kill()
    process.wait()


def order(tmp_path: Path, *pids: int, **more) -> Autopsy:
    """What the supervisor asks."""
    log = tmp_path / "worker.log"
    log.write_text("".join(f"step {n} loss 2.0\n" for n in range(1, 501)))
    values = {
        "attempt": 2,
        "pids": pids,
        "reason": "no progress for 16 min",
        "command": ("python", "train.py", "--api-key", "abc123secret"),
        "workdir": tmp_path,
        "log": log,
        "into": tmp_path / "autopsy.txt",
        "gpus": ("0 RTX 5090: 61 °C, 80 W",),
        "kernel": ("INFO: task python:41 blocked for more than 120 seconds.",),
    }
    return Autopsy(**{**values, **more})


def text_of(found: Autopsy) -> str:
    """The report, written by the real child."""
    reports = Reports()
    examine(found, report=reports.put, clock=lambda: 7.0)
    answer = reports.next()
    assert answer == AutopsyDone(7.0, found.attempt, str(found.into))
    assert found.into.stat().st_mode & 0o777 == 0o600
    return found.into.read_text()


def test_what_is_written_down(tmp_path: Path, hanging: subprocess.Popen[bytes]) -> None:
    """State and wait channel, the last 200 lines, the machine, the card, the kernel; no secret."""
    text = text_of(order(tmp_path, hanging.pid))
    assert "no progress for 16 min" in text
    assert f"{hanging.pid}: {sys.executable}" in text
    assert "State S (sleeping)" in text
    assert f"thread {hanging.pid}: S in " in text
    assert "step 301 loss" in text
    assert "step 300 loss" not in text
    assert "MemAvailable" in text
    assert "61 °C, 80 W" in text
    assert "blocked for more than 120 seconds" in text
    assert "abc123secret" not in text
    assert "--api-key ***" in text


def test_the_commit_that_ran(tmp_path: Path) -> None:
    """And whether it was changed since."""
    git = shutil.which("git")
    if git is None:
        pytest.skip("git is missing")
    (tmp_path / "train.py").write_text("1\n")
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "train.py"], [*who, "commit", "-qm", "the commit"]):
        subprocess.run([git, "-C", str(tmp_path), *words], check=True)
    assert "the commit\nno change since" in text_of(order(tmp_path))
    (tmp_path / "train.py").write_text("2\n")
    assert "\nM train.py" in text_of(order(tmp_path))


def test_what_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is gone, no tools, no log, nothing known: a report all the same."""
    monkeypatch.setenv("PATH", str(tmp_path))
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    text = text_of(order(tmp_path, gone.pid, log=tmp_path / "none", gpus=(), kernel=()))
    assert f"{gone.pid}: gone" in text
    assert "py-spy is not installed (pip install py-spy)" in text
    assert "git is not installed" in text
    assert "no telemetry" in text
    assert "cannot be read: No such file" in text


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    reports = Reports()
    found = order(tmp_path, into=tmp_path / "no" / "such" / "autopsy.txt")
    examine(found, report=reports.put, clock=lambda: 7.0)
    answer = reports.next()
    assert answer.path is None
    assert "No such file" in answer.why


@pytest.mark.skipif(shutil.which("py-spy") is None, reason="py-spy is not installed")
def test_where_its_python_code_stands(tmp_path: Path, hanging: subprocess.Popen[bytes]) -> None:
    plain = {
        name: getattr(order(tmp_path, hanging.pid), name) for name in Autopsy.__dataclass_fields__
    }
    assert "wait (threading.py" in bundle(plain)
    assert os.path.exists(f"/proc/{hanging.pid}")  # noqa: PTH110 - it was not harmed
