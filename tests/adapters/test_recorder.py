"""The recorder alone: what it hands to the worker, and that it writes the exit down whatever."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from overnight.adapters.files import read_json
from overnight.adapters.worker import recorder_argv
from tree_lab import launch, python


def record(tmp_path: Path, code: str, **options: object) -> list[dict[str, object]]:
    """Run a worker to its end under the recorder alone; the facts that it printed."""
    order = launch(tmp_path, python(code))
    order.directory.mkdir(exist_ok=True)
    done = subprocess.run(
        recorder_argv(order),
        stdout=subprocess.PIPE,
        timeout=30,
        **options,  # type: ignore[call-overload]
    )
    assert done.returncode == 0
    return [json.loads(line) for line in done.stdout.splitlines()]


def log(tmp_path: Path) -> str:
    """What the worker has written."""
    return (tmp_path / "0001" / "worker.log").read_text()


def test_the_facts_are_printed_and_written(tmp_path: Path) -> None:
    """Whoever listens hears the same as who reads later."""
    started, exited = record(tmp_path, "raise SystemExit(3)")
    assert read_json(tmp_path / "0001" / "started.json") == started
    assert read_json(tmp_path / "0001" / "exit.json") == exited
    assert (exited["code"], exited["signal"], exited["error"]) == (3, None, "")


def test_stdin_is_dev_null_and_output_is_the_appended_log(tmp_path: Path) -> None:
    """A script that asks a question must not wait for ever; both streams keep their order."""
    code = (
        "import os, sys, fcntl\n"
        "print(os.readlink('/proc/self/fd/0'), sys.stdin.read() == '')\n"
        "sys.stdout.flush()\n"
        "print('error', file=sys.stderr)\n"
        "flags = fcntl.fcntl(1, fcntl.F_GETFL)\n"
        "print(bool(flags & os.O_APPEND), os.fstat(1) == os.fstat(2))"
    )
    record(tmp_path, code)
    assert log(tmp_path) == "/dev/null True\nerror\nTrue True\n"
    assert (tmp_path / "0001" / "worker.log").stat().st_mode & 0o777 == 0o600


def test_the_worker_starts_with_default_signals(tmp_path: Path) -> None:
    """Also where the supervisor came from nohup or a background shell, or blocked a signal."""
    code = (
        "import signal\n"
        "print(*[signal.getsignal(n) is not signal.SIG_IGN for n in (1, 2, 3, 13, 15, 17)])\n"
        "import pathlib\n"
        "status = pathlib.Path('/proc/self/status').read_text().splitlines()\n"
        "print(*[line for line in status if line.startswith(('SigBlk', 'SigIgn'))])"
    )

    def ignore() -> None:
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGCHLD):
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGUSR1])

    facts = record(tmp_path, code, preexec_fn=ignore)
    assert facts[-1]["code"] == 0
    blocked = log(tmp_path).splitlines()[1].split()
    assert int(blocked[1], 16) == 0
    ignored = int(blocked[3], 16)  # Python itself ignores SIGPIPE and SIGXFSZ
    assert not any(ignored >> (number - 1) & 1 for number in (1, 2, 3, 15, 17))


def test_output_is_there_before_the_worker_ends(tmp_path: Path) -> None:
    """With PYTHONUNBUFFERED, as the supervisor sets it, a line is in the file at once."""
    code = "print('step 1'); print(len(open('0001/worker.log').read()), flush=True)"
    env = os.environ | {"PYTHONUNBUFFERED": "1"}
    record(tmp_path, code, cwd=tmp_path, env=env)
    assert log(tmp_path) == "step 1\n7\n"


def test_it_is_small_and_deaf_to_the_terminal(tmp_path: Path) -> None:
    """At most 12 MiB; Ctrl-C and a hang-up are the supervisor's business."""
    with running(tmp_path, "import signal; signal.pause()") as process:
        assert psutil.Process(process.pid).memory_full_info().uss < 12 << 20
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGTERM)  # handed on to the worker
        assert process.wait(20) == 0
    assert read_json(tmp_path / "0001" / "exit.json")["signal"] == signal.SIGTERM


def running(tmp_path: Path, code: str) -> subprocess.Popen[bytes]:
    """A recorder whose worker has started."""
    order = launch(tmp_path, python(code))
    order.directory.mkdir()
    process = subprocess.Popen(recorder_argv(order), stdout=subprocess.PIPE, cwd=tmp_path)
    assert process.stdout is not None
    assert b"started" in process.stdout.readline()
    return process


def test_a_listener_that_is_gone_changes_nothing(tmp_path: Path) -> None:
    """The pipe to the supervisor is broken when the worker ends."""
    with running(tmp_path, "import signal; signal.sigwait([15])") as process:
        assert process.stdout is not None
        process.stdout.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    assert read_json(tmp_path / "0001" / "exit.json")["signal"] in {None, signal.SIGTERM}


def test_orphans_are_waited_for(tmp_path: Path) -> None:
    """It ends with the last process of the tree, not with the worker."""
    code = "import os, sys\nif os.fork() == 0:\n    os.setsid(); sys.stdout.flush(); input2()\n"
    code = code.replace("input2()", "import signal; signal.sigwait([10])")
    with running(tmp_path, code) as process:
        assert process.stdout is not None
        assert b"exited" in process.stdout.readline()
        (orphan,) = psutil.Process(process.pid).children()
        orphan.kill()
        assert process.wait(20) == 0


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system without a free byte."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", disk])
    if mounted.returncode != 0:
        pytest.skip("may not mount a file system here")
    try:
        with pytest.raises(OSError, match="No space"):
            (disk / "ballast").write_bytes(b"x" * (1 << 20))
        yield disk
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


def test_a_full_disk_loses_the_file_but_not_the_exit(full_disk: Path) -> None:
    """The status is still told, and the recorder still reaps its tree to the end."""
    facts = record(full_disk, "raise SystemExit(4)")
    assert [fact["fact"] for fact in facts] == ["started", "exited"]
    assert facts[1]["code"] == 4


def test_it_needs_nothing_but_the_standard_library(tmp_path: Path) -> None:
    """A broken PYTHONPATH or usercustomize of the training environment cannot break it."""
    (tmp_path / "json.py").write_text("raise SystemExit('hijacked')")
    env = os.environ | {"PYTHONPATH": str(tmp_path), "PYTHONSTARTUP": "/nonexistent"}
    order = launch(tmp_path, [sys.executable, "-I", "-c", "pass"])
    order.directory.mkdir()
    done = subprocess.run(
        recorder_argv(order), stdout=subprocess.PIPE, cwd=tmp_path, env=env, timeout=30
    )
    assert json.loads(done.stdout.splitlines()[-1])["code"] == 0
