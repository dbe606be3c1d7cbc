"""One supervisor a run, for exactly as long as its process lives."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from overnight.adapters.lock import RunLock, is_held

HOLDER = (
    "import sys; from pathlib import Path; from overnight.adapters.lock import RunLock\n"
    "lock = RunLock(Path(sys.argv[1]))\n"
    "print(lock.acquire(), flush=True)\n"
    "sys.stdin.read()\n"
)


def holder(directory: Path) -> subprocess.Popen[bytes]:
    """A process that has the lock."""
    argv = [sys.executable, "-c", HOLDER, str(directory)]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"None\n"
    return process


def test_a_second_supervisor_is_told_who_holds_the_lock(tmp_path: Path) -> None:
    """The pid is for the message; the kernel's lock is the truth."""
    with holder(tmp_path) as process:
        assert is_held(tmp_path)
        assert RunLock(tmp_path).acquire() == process.pid
        process.kill()


def test_a_killed_holder_holds_nothing(tmp_path: Path) -> None:
    """No stale lock file can ever keep a run from starting."""
    with holder(tmp_path) as process:
        process.kill()
    assert not is_held(tmp_path)
    lock = RunLock(tmp_path)
    assert lock.acquire() is None
    assert (tmp_path / "lock").read_text() == str(os.getpid())
    lock.release()


def test_release_gives_it_up_and_may_be_called_twice(tmp_path: Path) -> None:
    """An end that is reached twice is no error."""
    lock = RunLock(tmp_path)
    assert lock.acquire() is None
    assert is_held(tmp_path)
    lock.release()
    lock.release()
    assert not is_held(tmp_path)


def test_children_do_not_inherit_it(tmp_path: Path) -> None:
    """A worker that outlives the supervisor must not keep the lock."""
    lock = RunLock(tmp_path)
    assert lock.acquire() is None
    argv = [sys.executable, "-c", "print(flush=True); input()"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        lock.release()
        assert not is_held(tmp_path)
        child.kill()


def test_a_run_without_a_lock_file_is_not_held(tmp_path: Path) -> None:
    """Also where nothing of the run exists."""
    assert not is_held(tmp_path / "nothing")


def test_an_unknown_holder_is_pid_0(tmp_path: Path) -> None:
    """The number in the file is only words."""
    with holder(tmp_path) as process:
        (tmp_path / "lock").write_text("???")
        assert RunLock(tmp_path).acquire() == 0
        process.kill()
