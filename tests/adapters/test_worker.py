"""Real worker trees: how they start, how they end, and that nothing of them is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from overnight.adapters.tail.lines import Tail
from overnight.adapters.worker import WorkerTree, is_alive
from overnight.core.events import LogChunk, TreeGone, TreeStuck, WorkerExited, WorkerStarted
from overnight.errors import WorkerError
from reports import Reports
from tree_lab import Lab, launch, python, wait_ended

FAMILY = """
import os, signal, subprocess, sys, time
children = [subprocess.Popen(['sleep', '600']),
            subprocess.Popen(['sleep', '600'], start_new_session=True)]
read, write = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.write(write, str(os.getpid()).encode())
        signal.pause()
    os._exit(0)
os.wait()
print(*[child.pid for child in children], os.read(read, 20).decode(), flush=True)
signal.pause()
"""
"""A child, one in a session of its own, and an orphan that forked twice."""


def next_line(lab: Lab) -> str:
    """The first line that the worker prints."""
    chunks = Reports()
    path = lab.launch.directory / "worker.log"
    tail = Tail(path, attempt=1, source="log", report=chunks.put, drained=lambda: None)
    line: str = chunks.next(LogChunk).lines[0]
    tail.finish()
    return line


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("pass", (0, None)),
        ("raise SystemExit(7)", (7, None)),
        ("1/0", (1, None)),
        ("import os; os.kill(os.getpid(), 11)", (None, 11)),
        ("import os; os.abort()", (None, 6)),
        ("import os; os.kill(os.getpid(), 9)", (None, 9)),
    ],
    ids=["done", "code", "traceback", "segv", "abort", "killed"],
)
def test_the_end_is_reported_as_the_kernel_saw_it(
    tmp_path: Path, code: str, status: tuple[int | None, int | None]
) -> None:
    """Started, exited, gone: in this order, and nothing else."""
    with Lab(tmp_path, python(code)) as lab:
        found = lab.reports.until(TreeGone)
    assert [type(each) for each in found] == [WorkerStarted, WorkerExited, TreeGone]
    assert (found[1].record.code, found[1].record.signal) == status
    assert (lab.written_exit["code"], lab.written_exit["signal"]) == status


def test_a_start_identifies_the_process_for_ever(tmp_path: Path) -> None:
    """Same pid with another start time, or after another boot, is another process."""
    with Lab(tmp_path, python("import signal; signal.pause()")) as lab:
        started = lab.wait_started()
        assert psutil.Process(started.pid).ppid() == started.recorder_pid
        assert is_alive(started.pid, started.start_time, started.boot_id)
        assert not is_alive(started.pid, started.start_time + 1, started.boot_id)
        assert not is_alive(started.pid, started.start_time, "another boot")
        lab.tree.kill()
        lab.wait_gone()
        assert not is_alive(started.pid, started.start_time, started.boot_id)


@pytest.mark.parametrize("command", ["/nonexistent/python", "no-such-program"])
def test_a_missing_executable_is_an_exit_with_an_error(tmp_path: Path, command: str) -> None:
    """Neither code nor signal: nothing ever ran."""
    with Lab(tmp_path, [command]) as lab:
        record = lab.exit_record()
        lab.wait_gone()
    assert (record.code, record.signal) == (None, None)
    assert record.error == f"{command}: No such file or directory"


def test_a_missing_working_directory_names_itself(tmp_path: Path) -> None:
    """Not the program, which is there."""
    with Lab(tmp_path, python("pass"), workdir=tmp_path / "gone") as lab:
        assert lab.exit_record().error == f"{tmp_path / 'gone'}: No such file or directory"


def test_a_state_directory_that_cannot_be_made_is_an_error_of_ours(tmp_path: Path) -> None:
    """Before anything is started."""
    (tmp_path / "file").touch()
    with pytest.raises(WorkerError, match="cannot start the recorder"):
        WorkerTree(print).start(launch(tmp_path, python("pass"), directory=tmp_path / "file" / "x"))


def test_kill_leaves_no_process_of_the_tree(tmp_path: Path) -> None:
    """However they forked: child, own session, double-forked orphan."""
    with Lab(tmp_path, python(FAMILY)) as lab:
        worker = lab.wait_started().pid
        family = [worker, *map(int, next_line(lab).split())]
        assert len(family) == 4
        assert set(family) <= set(lab.tree.pids())
        lab.tree.kill()
        lab.tree.kill()
        lab.wait_gone()
        assert [pid for pid in family if psutil.pid_exists(pid)] == []
        assert lab.tree.pids() == []
        assert not lab.reports.rest()


def test_the_tree_is_gone_only_with_its_last_process(tmp_path: Path) -> None:
    """The worker exits first: its exit is reported at once, the rest keeps the GPU."""
    code = FAMILY.replace('signal.pause()\n"', "").rsplit("signal.pause()", 1)[0]
    with Lab(tmp_path, python(code)) as lab:
        assert lab.exit_record().code == 0
        assert lab.reports.silent_for(0.3)
        assert len(lab.tree.pids()) == 3
        lab.tree.kill()
        lab.wait_gone()


def test_a_worker_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    """SIGTERM goes to it and changes nothing; SIGKILL ends it."""
    code = (
        "import os, signal\n"
        "signal.signal(signal.SIGTERM, lambda *_: os.write(1, b'no\\n'))\n"
        "print('ready', flush=True)\n"
        "while True: signal.pause()"
    )
    with Lab(tmp_path, python(code)) as lab:
        lab.wait_started()
        assert next_line(lab) == "ready"
        assert lab.tree.signal(signal.SIGTERM)
        assert lab.reports.silent_for(0.3)
        assert lab.log == "ready\nno\n"
        lab.tree.kill()
        assert lab.exit_record().signal == signal.SIGKILL
        lab.wait_gone()
        assert not lab.tree.signal(signal.SIGTERM)


def test_a_signal_goes_to_the_main_process_alone(tmp_path: Path) -> None:
    """DataLoader children that got SIGTERM would turn a save into a crash."""
    code = (
        "import os, signal, subprocess, sys\n"
        "child = subprocess.Popen(['sleep', '600'])\n"
        "def save(*_):\n"
        "    os.write(1, f'saved {child.poll()}\\n'.encode()); child.kill(); os._exit(0)\n"
        "signal.signal(signal.SIGTERM, save)\n"
        "print('ready', flush=True)\n"
        "signal.pause()"
    )
    with Lab(tmp_path, python(code)) as lab:
        lab.wait_started()
        next_line(lab)
        lab.tree.signal(signal.SIGTERM)
        assert lab.exit_record().code == 0
        lab.wait_gone()
        assert lab.log == "ready\nsaved None\n"


def test_a_worker_that_kills_its_own_group_does_not_hit_the_recorder(tmp_path: Path) -> None:
    """Cleaning up with killpg(0) is common; the exit is recorded all the same."""
    with Lab(tmp_path, python("import os; os.killpg(0, 9)")) as lab:
        assert lab.exit_record().signal == signal.SIGKILL
        lab.wait_gone()
    assert lab.written_exit["signal"] == signal.SIGKILL


def test_a_killed_recorder_costs_the_status_but_not_the_worker(tmp_path: Path) -> None:
    """The worker trains on; its end is seen through the pidfd, and how it ended is unknown."""
    with Lab(tmp_path, python("import signal; signal.pause()")) as lab:
        started = lab.wait_started()
        os.kill(started.recorder_pid, signal.SIGKILL)
        assert lab.reports.silent_for(0.3)
        assert is_alive(started.pid, started.start_time, started.boot_id)
        assert lab.tree.signal(signal.SIGTERM)
        record = lab.exit_record()
        assert (record.code, record.signal) == (None, None)
        lab.wait_gone()


SUPERVISOR = """
import sys; sys.path[:0] = sys.argv[2:]
from pathlib import Path; from tree_lab import Lab, python
lab = Lab(Path(sys.argv[1]), python(sys.stdin.readline().strip()))
lab.tree.start(lab.launch)
found = lab.wait_started(); print(found.pid, found.recorder_pid, flush=True)
sys.stdin.read()
"""


def test_a_killed_supervisor_costs_the_worker_nothing(tmp_path: Path) -> None:
    """SIGKILL of the process that started it: it goes on, and its exit is written down."""
    argv = [sys.executable, "-c", SUPERVISOR, str(tmp_path), *sys.path]
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe) as supervisor:
        assert supervisor.stdin is not None
        assert supervisor.stdout is not None
        supervisor.stdin.write(
            b"import signal; signal.pthread_sigmask(0, [15]); print('up', flush=True);"
            b" signal.sigwait([15]); print('still here'); raise SystemExit(5)\n"
        )
        supervisor.stdin.flush()
        worker, recorder = map(int, supervisor.stdout.readline().split())
        lab = Lab(tmp_path, [])
        assert next_line(lab) == "up"
        supervisor.kill()
    assert psutil.pid_exists(worker)
    os.kill(worker, signal.SIGTERM)
    wait_ended(recorder)
    assert lab.written_exit["code"] == 5
    assert lab.log == "up\nstill here\n"


def test_cpu_time_of_the_tree_grows_while_it_works(tmp_path: Path) -> None:
    """It is a witness of life; without a tree it cannot be told."""
    code = "print('go', flush=True)\nwhile True: pass"
    with Lab(tmp_path, python(code)) as lab:
        lab.wait_started()
        next_line(lab)
        first = lab.tree.cpu_seconds()
        assert first is not None
        assert lab.reports.silent_for(0.3)
        assert (lab.tree.cpu_seconds() or 0.0) > first
        lab.tree.kill()
        lab.wait_gone()
        assert lab.tree.cpu_seconds() is None


def test_one_tree_object_runs_attempt_after_attempt(tmp_path: Path) -> None:
    """No descriptor is left behind by any of them."""
    lab = Lab(tmp_path, python("pass"))
    counts = []
    for number in range(1, 6):
        lab.tree.start(launch(tmp_path, python("pass"), attempt=number))
        assert lab.reports.next(TreeGone).attempt == number
        counts.append(psutil.Process().num_fds())
    assert counts[-1] <= counts[0]


def test_nothing_is_asked_of_a_tree_that_was_never_started() -> None:
    """All questions have an answer before the first start."""
    reports = Reports()
    tree = WorkerTree(reports.put)
    tree.kill()
    assert not tree.signal(signal.SIGTERM)
    assert tree.pids() == []
    assert tree.cpu_seconds() is None
    assert not any(isinstance(each, TreeStuck) for each in reports.rest())
