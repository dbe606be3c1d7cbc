"""The worker's parent: starts it, reaps it, writes down how it ended. Standard library only.

    python -I -S recorder.py ATTEMPT_DIR WORKDIR -- COMMAND...

It outlives the supervisor on purpose: a worker whose watchdog was killed trains on, and its exit
is recorded all the same. It leads a session of its own and is child subreaper, so every process
of the tree stays below it, however often it forks; it ends when the last of them has ended.
While the supervisor listens, each fact is also printed as a JSON line.
"""

import contextlib
import ctypes
import json
import os
import signal
import sys
import time

PR_SET_CHILD_SUBREAPER = 36
DEFAULTS = ("SIGINT", "SIGQUIT", "SIGHUP", "SIGTERM", "SIGCHLD", "SIGPIPE", "SIGXFSZ")
"""A background shell, nohup or Python ignores some of these, and exec would hand that on."""


def write_json(path: str, value: object) -> None:
    """Temp name, fsync, rename: a reader sees the whole record or none."""
    temp = f"{path}.tmp"
    with open(temp, "w") as out:  # noqa: PTH123 - pathlib costs this process a megabyte
        json.dump(value, out)
        out.flush()
        os.fsync(out.fileno())
    os.replace(temp, path)  # noqa: PTH105


def record(path: str, fact: object) -> None:
    """Write a fact down and print it for the supervisor; one that is gone reads the file later.

    Neither may fail: on a full disk the exit must still be told, and the tree still be reaped.
    """
    with contextlib.suppress(OSError):
        write_json(path, fact)
    with contextlib.suppress(OSError):
        os.write(1, (json.dumps(fact) + "\n").encode())


def start_time(pid: int) -> int:
    """Field 22 of /proc/PID/stat: with the boot id it makes a pid unique for ever."""
    with open(f"/proc/{pid}/stat") as stat:  # noqa: PTH123
        return int(stat.read().rpartition(")")[2].split()[19])


def boot_id() -> str:
    """This boot of the machine."""
    with open("/proc/sys/kernel/random/boot_id") as file:  # noqa: PTH123
        return file.read().strip()


def launch(directory: str, command: list[str]) -> int:
    """Start the worker with its output in the log file; a file has no reader that could die."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    null = (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)
    log = (os.POSIX_SPAWN_OPEN, 1, f"{directory}/worker.log", flags, 0o600)
    return os.posix_spawnp(
        command[0],
        command,
        os.environ,
        file_actions=[null, log, (os.POSIX_SPAWN_DUP2, 1, 2)],
        setpgroup=0,  # a worker that signals its own group must not hit us
        setsigmask=[],
        setsigdef=[getattr(signal, name) for name in DEFAULTS],
    )


def main() -> None:
    """Run one attempt from start to the last process of its tree."""
    directory, workdir, command = sys.argv[1], sys.argv[2], sys.argv[4:]
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, the kernel would eat the exit status
    for ignored in (signal.SIGINT, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    try:
        os.chdir(workdir)
        worker = launch(directory, command)
    except OSError as error:
        fact: dict[str, object] = {"fact": "exited", "code": None, "signal": None}
        fact["ended_utc"] = time.time()
        fact["error"] = f"{error.filename or command[0]}: {error.strerror}"
        record(f"{directory}/exit.json", fact)
        return
    signal.signal(signal.SIGTERM, lambda *_: os.kill(worker, signal.SIGTERM))
    fact = {"fact": "started", "pid": worker, "recorder_pid": os.getpid(), "boot_id": boot_id()}
    fact["start_time"] = start_time(worker)
    record(f"{directory}/started.json", fact)
    while True:
        try:
            pid, status = os.wait()
        except ChildProcessError:
            return  # the tree is gone
        if pid == worker:
            code = os.waitstatus_to_exitcode(status)
            fact = {"fact": "exited", "code": code if code >= 0 else None}
            fact |= {"signal": -code if code < 0 else None, "ended_utc": time.time(), "error": ""}
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the pid may be another's soon
            record(f"{directory}/exit.json", fact)


if __name__ == "__main__":
    main()
