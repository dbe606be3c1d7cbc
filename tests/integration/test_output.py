"""Workers that print strangely: unflushed, endless, without newlines, not even text."""

from __future__ import annotations

import contextlib
import subprocess
import sys

import psutil
import pytest

from waiting import wait_until

PLAIN = """\
import time
for step in range(1, 41):
    print(f"Step {step} | Loss: {2.0:.3f} | LR: 3e-4")
    time.sleep(0.05 if step > 5 else 0)
"""

LONG_LINES = "import sys\nfor _ in range(40):\n    sys.stdout.write('x' * (1 << 20) + '\\n')\n"
NO_NEWLINE = "import sys\nfor _ in range(40):\n    sys.stdout.write('loss: ' * (1 << 18))\n"
BINARY = "import os\nfor _ in range(40):\n    os.write(1, bytes(range(256)) * 4096)\n"
TEXT = "for n in range(100_000):\n    print('a line of no interest, number', n, 'of many')\n"
END = "\nprint()\nprint('Step 1 | Loss: 2.5', flush=True)\nraise MemoryError\n"


def test_output_is_seen_at_once_although_the_script_never_flushes(box):
    """PYTHONUNBUFFERED is set for the worker: the first line arrives with the first step."""
    script = box.workdir / "plain.py"
    script.write_text(PLAIN)
    live = box.start([sys.executable, str(script)], resume=None)
    live.wait_for("attempt 1 started")
    log = box.state / "night" / "attempts" / "0001" / "worker.log"
    wait_until(lambda: log.exists() and "Step 5 " in log.read_text(), log.parent)
    assert "Step 40 " not in log.read_text()
    assert live.finish().status == 0
    assert box.status()["step"] == 40


@pytest.mark.parametrize(
    "body",
    [LONG_LINES, NO_NEWLINE, BINARY, TEXT],
    ids=["1 MiB lines", "no newline", "bytes", "text"],
)
def test_floods_neither_stall_nor_grow_the_supervisor(box, body):
    """40 MiB of nonsense, then a crash that is still understood; memory stays flat."""
    script = box.workdir / "flood.py"
    script.write_text(body + END)
    live = box.start([sys.executable, str(script)], resume=None)
    live.wait_for("critical: host-oom", timeout_s=40)
    rss = psutil.Process(live.process.pid).memory_info().rss
    assert rss < 80 << 20
    live.process.terminate()
    said = live.finish().err
    assert box.incidents()[0]["cause"] == "host-memory"
    assert ("long lines are cut" in said) == (body in (LONG_LINES, NO_NEWLINE))


def test_full_disk_for_the_state_does_not_stop_the_watch(box, tmp_path):
    """The store cannot be written: the fault is healed all the same."""
    box.state.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", str(box.state)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("cannot mount a small filesystem here")
    try:
        gate = box.workdir / "gate"
        live = box.start(box.command("--fault", "nan@230", "--wait-for", str(gate)))
        live.wait_for("attempt 1 started")
        with contextlib.suppress(OSError), (box.state / "filler").open("wb", 0) as filler:
            while True:
                filler.write(b"x" * 4096)
        gate.touch()
        live.wait_for("attempt 2 started")
        assert live.finish().status == 0
    finally:
        subprocess.run(["umount", "-l", str(box.state)], check=True)
