"""Helper processes: they answer once, are bounded, and cannot outlive their deadline."""

from __future__ import annotations

import gc
import os
import select
import signal
import sys
import time
import warnings
from pathlib import Path

import psutil
import pytest

from overnight.adapters.child import (
    MAX_OUTPUT_BYTES,
    ChildResult,
    LineChild,
    module_argv,
    run_child,
)
from reports import Reports

ORPHAN = """
import os, sys
if os.fork() == 0:
    os.setsid()
    print(os.getpid(), flush=True)
    import signal; signal.pause()
"""


def python(code: str) -> list[str]:
    """A helper that runs this code."""
    return [sys.executable, "-c", code]


def run(code: str, *, deadline_s: float = 20.0, stdin: bytes = b"") -> ChildResult:
    """The result of a helper; the test fails when `done` is not called exactly once."""
    results = Reports()
    run_child(python(code), deadline_s=deadline_s, done=results.put, stdin=stdin)
    result = results.next()
    assert not results.rest()
    assert isinstance(result, ChildResult)
    return result


def test_a_helper_gets_its_secret_on_stdin_and_answers_in_json() -> None:
    """The last line of stdout is the answer; what stands above it is ignored."""
    result = run("import json; print('noise'); print(json.dumps({'got': input()}))", stdin=b"key\n")
    assert (result.returncode, result.timed_out) == (0, False)
    assert result.json() == {"got": "key"}


@pytest.mark.parametrize("stdout", [b"", b"\n", b"no json", b"[1]", b"{", b"\xff{}"])
def test_output_that_is_no_json_object_is_no_answer(stdout: bytes) -> None:
    """Never an exception: a helper can print anything."""
    assert ChildResult(0, stdout, b"", timed_out=False).json() is None


def test_a_complaint_is_the_last_line_of_stderr_or_the_exit_status() -> None:
    """One line that can stand in a reason."""
    assert run("import sys; sys.exit('first\\nlast words')").complaint() == "last words"
    assert run("raise SystemExit(3)").complaint() == "exit status 3"


def test_a_missing_executable_is_a_result() -> None:
    """The caller has one path for every failure."""
    results = Reports()
    run_child(["/nonexistent/helper"], deadline_s=5, done=results.put)
    result = results.next()
    assert result.returncode == 127
    assert "/nonexistent/helper" in result.complaint()


def has_ended(pid: int) -> bool:
    """Whether a process ends within 5 s; it need not be reaped by anybody."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    ready, _, _ = select.select([pidfd], [], [], 5)
    os.close(pidfd)
    return bool(ready)


def test_a_deadline_kills_the_helper_and_what_it_started() -> None:
    """Nothing of its group is left, and what it had printed is kept."""
    code = "import subprocess, signal; print(subprocess.Popen(['sleep', '60']).pid, flush=True)"
    result = run(f"{code}; signal.pause()", deadline_s=1.5)
    assert result.timed_out
    assert result.returncode == -signal.SIGKILL
    assert result.complaint() == "no answer before the deadline"
    assert has_ended(int(result.stdout))


def test_a_stray_process_that_holds_the_pipes_does_not_hold_up_the_answer() -> None:
    """It left the group, so it survives; the report comes all the same."""
    began = time.monotonic()
    result = run(ORPHAN, deadline_s=1.0)
    os.kill(int(result.stdout), signal.SIGKILL)
    assert result.timed_out
    assert time.monotonic() - began < 8


def test_a_flood_is_cut_off_and_read_to_its_end() -> None:
    """The helper is not blocked by us, and our memory does not grow with what it prints."""
    result = run("import sys; [sys.stdout.write('x' * (1 << 20)) for _ in range(64)]")
    assert (result.returncode, result.timed_out) == (0, False)
    assert len(result.stdout) == MAX_OUTPUT_BYTES


def test_a_helper_that_does_not_read_its_stdin_is_no_trouble() -> None:
    """More than a pipe holds, and nobody there to take it."""
    assert run("print('{}')", stdin=b"x" * (1 << 20)).json() == {}


def test_our_modules_do_not_import_from_the_training_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue.py beside the script stays the script's."""
    (tmp_path / "queue.py").write_text("raise SystemExit('hijacked')")
    monkeypatch.chdir(tmp_path)
    results = Reports()
    argv = module_argv("overnight.adapters.checkpoints.verify")
    run_child(argv, deadline_s=20, done=results.put)
    assert "usage" in results.next().complaint()


class Lines:
    """A LineChild with its lines and its end."""

    def __init__(self, code: str) -> None:
        self.lines, self.ends = Reports(), Reports()
        self.child = LineChild(
            python(code), on_line=self.lines.put, on_exit=lambda *end: self.ends.put(end)
        )


def test_a_long_lived_helper_reports_each_line_and_ends_when_its_stdin_closes() -> None:
    """`close` is a request; the end is reported with the status."""
    helper = Lines("import sys; print('one', flush=True); sys.stdin.read(); print('two')")
    assert helper.lines.next() == b"one\n"
    assert psutil.Process(helper.child.pid).is_running()
    helper.child.close()
    assert helper.ends.next() == (0, "")
    assert helper.lines.next() == b"two\n"


def test_the_last_error_line_is_never_lost() -> None:
    """It is why the helper died, and it is written in its last moment."""
    helpers = [Lines("import sys; print('hm', file=sys.stderr); sys.exit('why')") for _ in range(8)]
    assert [helper.ends.next() for helper in helpers] == [(1, "why")] * 8


@pytest.mark.parametrize(("end", "number"), [("terminate", 15), ("kill", 9)])
def test_a_helper_can_be_ended(end: str, number: int) -> None:
    """SIGTERM where it has something to shut down, SIGKILL where it does not answer."""
    helper = Lines("import signal; print('up', flush=True); signal.pause()")
    helper.lines.next()
    getattr(helper.child, end)()
    assert helper.ends.next() == (-number, "")
    getattr(helper.child, end)()  # one that is gone is no error


def test_an_ended_helper_leaves_no_open_descriptor() -> None:
    """A supervisor restarts its helpers all night."""
    before = psutil.Process().num_fds()
    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        helper = Lines("print('x')")
        helper.ends.next()
        assert psutil.Process().num_fds() <= before
        del helper
        gc.collect()


def test_a_line_child_that_cannot_start_raises() -> None:
    """The owner decides what that means."""
    with pytest.raises(OSError, match="nonexistent"):
        LineChild(["/nonexistent/helper"], on_line=print, on_exit=print)
