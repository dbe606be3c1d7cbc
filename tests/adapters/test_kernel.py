"""The kernel's log and its count of OOM kills, as the kernel writes them."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

from overnight.adapters.kernel import kernel_lines, oom_kills, telling_lines

OOM = "Out of memory: Killed process 4711 (python) total-vm:81234kB, anon-rss:71234kB"


def test_records_one_by_one():
    """Old ones and those about other things are left out; continuation lines do not matter."""
    writer, reader = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with writer, reader:
        reader.setblocking(False)
        records = [
            f"6,1,1000000,-;{OOM} (old)",
            "6,2,500000000,-;usb 1-1: new device",
            f"3,3,501000000,-;{OOM}\n SUBSYSTEM=memory\n",
            "4,4,502000000,c;NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.",
            "garbage",
        ]
        for record in records:
            writer.send(record.encode())
        lines = telling_lines(reader.fileno(), since=500.0)
    assert lines == [OOM, "NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus."]


def test_a_log_that_may_not_be_read(tmp_path: Path):
    assert kernel_lines(0.0, kmsg=tmp_path / "kmsg") == []


def test_the_real_one_does_not_wait():
    code = "from overnight.adapters.kernel import kernel_lines; kernel_lines(0.0)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=20)


def test_the_count_of_our_own_cgroup(tmp_path: Path):
    own = tmp_path / "own"
    own.write_text("12:cpuset:/old\n0::/user.slice/session-1.scope\n")
    folder = tmp_path / "root" / "user.slice" / "session-1.scope"
    folder.mkdir(parents=True)
    events = folder / "memory.events"
    events.write_text("low 0\nhigh 0\nmax 7\noom 2\noom_kill 3\noom_group_kill 0\n")
    assert oom_kills(own=own, root=tmp_path / "root") == 3
    events.write_text("low 0\n")
    assert oom_kills(own=own, root=tmp_path / "root") is None


def test_the_count_of_an_older_kernel(tmp_path: Path):
    own = tmp_path / "own"
    own.write_text("9:name=systemd:/\n4:memory:/docker/1\n0::/\n")
    folder = tmp_path / "memory" / "docker" / "1"
    folder.mkdir(parents=True)
    (folder / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 5\n")
    assert oom_kills(own=own, root=tmp_path) == 5


def test_an_unknown_count(tmp_path: Path):
    own = tmp_path / "own"
    own.write_text("3:memory:/v1/only\n")
    assert oom_kills(own=own, root=tmp_path) is None
    assert oom_kills(own=tmp_path / "none", root=tmp_path) is None
