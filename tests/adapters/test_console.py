"""What the supervisor says: to the terminal while somebody reads, to the log always."""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from overnight.adapters.console import Console

TALK = """
import sys
from pathlib import Path
from overnight.adapters.console import Console
console = Console(Path(sys.argv[1]))
for number in range(int(sys.argv[2])):
    console.say(f"warning {number}")
print("end", flush=True)
"""


def talk(path: Path, count: int, stderr: int) -> list[str]:
    """A process that speaks to that stderr; its log afterwards."""
    env = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
    argv = [sys.executable, "-c", TALK, str(path), str(count)]
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=stderr, env=env, timeout=60)
    assert done.stdout == b"end\n"
    return path.read_text().splitlines()


def test_a_line_goes_to_the_terminal_and_to_the_log(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """With the time of day, on stderr; without colour where it is no terminal."""
    console = Console(tmp_path / "supervisor.log")
    console.say("attempt 1 started")
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("overnight ")
    assert err.endswith(" | attempt 1 started\n")
    assert "attempt 1 started" in (tmp_path / "supervisor.log").read_text()


def test_after_detaching_only_the_log_gets_lines(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The laptop was closed; the watch goes on."""
    console = Console(tmp_path / "supervisor.log")
    console.detach()
    console.say("healed")
    assert capfd.readouterr().err == ""
    assert "healed" in (tmp_path / "supervisor.log").read_text()


def test_a_second_console_does_not_write_into_the_first_ones_log(tmp_path: Path) -> None:
    """One process, two runs one after the other."""
    Console(tmp_path / "a.log").say("one")
    Console(tmp_path / "b.log").say("two")
    assert "two" not in (tmp_path / "a.log").read_text()


def test_a_log_that_cannot_be_opened_costs_only_the_log(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """No traceback, and the terminal still hears it."""
    Console(tmp_path / "no" / "such" / "supervisor.log").say("still here")
    err = capfd.readouterr().err
    assert err.endswith("| still here\n")
    assert "Traceback" not in err


def test_a_terminal_gets_colour(tmp_path: Path) -> None:
    """Warnings are yellow."""
    ours, theirs = pty.openpty()
    talk(tmp_path / "log", 1, theirs)
    os.close(theirs)
    assert b"\x1b[33movernight\x1b[0m" in os.read(ours, 4096)
    os.close(ours)


def test_a_terminal_that_is_gone_costs_nothing(tmp_path: Path) -> None:
    """A closed pipe or a hung-up terminal: the process ends as it would."""
    read, write = os.pipe()
    os.close(read)
    assert len(talk(tmp_path / "log", 5, write)) == 5
    os.close(write)


def test_a_pager_that_is_not_read_does_not_stop_the_watch(tmp_path: Path) -> None:
    """Its pipe is full: the lines are in the log, and the supervisor goes on."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(write, b"x" * 4096)
    os.set_blocking(write, True)
    assert len(talk(tmp_path / "log", 3, write)) == 3
    os.close(read)
    os.close(write)


def test_a_closed_stderr_is_no_trouble(tmp_path: Path) -> None:
    """`overnight run 2>&-`."""
    argv = ["sh", "-c", 'exec "$@" 2>&-', "sh", sys.executable, "-c", TALK]
    done = subprocess.run(
        [*argv, str(tmp_path / "log"), "2"], stdout=subprocess.PIPE, check=True, timeout=60
    )
    assert done.stdout == b"end\n"
    assert len((tmp_path / "log").read_text().splitlines()) == 2
