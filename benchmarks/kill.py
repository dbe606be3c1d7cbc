"""How fast a fault is answered: from the deciding line to a dead tree, and to the next attempt.

    python benchmarks/kill.py [--tries 50]

Each try is a real `overnight run` on a worker with a child and a grandchild. The worker stamps the
deciding record (the third NaN in a row) when it writes it; the end of the tree is seen by polling
its pidfds here, the next attempt by the start time of its process. Bars: dead in a median of
100 ms and a p95 of 300 ms, the new process within 300 ms of that.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from overnight_box import OVERNIGHT
from waiting import wait_for_file

WORKER = """\
import json, math, os, subprocess, sys, time
from pathlib import Path
sys.path.insert(0, {tests!r})
from workers.script import save
out = Path(sys.argv[1]); out.mkdir(exist_ok=True)
attempt = int(os.environ["OVERNIGHT_ATTEMPT"])
started = time.clock_gettime(time.CLOCK_MONOTONIC)
child = "import subprocess, sys, time; subprocess.Popen(['sleep', '60']); time.sleep(60)"
helper = subprocess.Popen([sys.executable, "-c", child], start_new_session=True)
metrics = open(os.environ["OVERNIGHT_METRICS"], "a", buffering=1)
def say(value): metrics.write(json.dumps(value) + "\\n")
say({{"event": "hello", "resume": True, "lr_scale": True}})
born = json.dumps({{"started": started, "pid": os.getpid()}})
(out / "born.tmp").write_text(born)
os.rename(out / "born.tmp", out / f"attempt-{{attempt}}.json")
if attempt > 1:
    say({{"step": 400, "loss": 2.0, "lr": 1e-4}})
    time.sleep(0.2)
    os.killpg(helper.pid, 9)
    sys.exit(0)
for step in range(1, 261):
    say({{"step": step, "loss": 2.0 + step % 7 * 0.01, "lr": 2e-4}})
    if step == 100:
        save(out / "step_100.safetensors", step, 2e-4)
    if step == 250:
        time.sleep(0.5)
time.sleep(0.3)
for step in (261, 262, 263):
    stamp = time.clock_gettime(time.CLOCK_MONOTONIC)
    say({{"step": step, "loss": math.nan, "lr": 2e-4}})
Path(out / "decided.tmp").write_text(json.dumps(stamp))
os.rename(out / "decided.tmp", out / "decided.json")
time.sleep(60)
"""


def one_try(root: Path) -> tuple[float, float]:
    """(seconds from line to dead tree, seconds from dead to the new process started)."""
    out = root / "out"
    out.mkdir()
    worker = root / "worker.py"
    worker.write_text(WORKER.format(tests=str(Path(__file__).parents[1] / "tests")))
    env = {**os.environ, "OVERNIGHT_STATE_DIR": str(root / "state")}
    argv = [*OVERNIGHT, "run", "--name", "bench", "--checkpoints", str(out / "*.safetensors")]
    supervisor = subprocess.Popen(
        [*argv, "--", sys.executable, str(worker), str(out)],
        cwd=root,
        env=env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wait_for_file(out / "attempt-1.json")
    pid = json.loads((out / "attempt-1.json").read_text())["pid"]
    pids = [pid, *_descendants(pid)]
    poll = select.poll()
    fds = [os.pidfd_open(p) for p in pids]
    for fd in fds:
        poll.register(fd, select.POLLIN)
    alive = set(fds)
    while alive:
        for fd, _ in poll.poll():
            alive.discard(fd)
            poll.unregister(fd)
    dead = time.clock_gettime(time.CLOCK_MONOTONIC)
    decided = json.loads((out / "decided.json").read_text())
    supervisor.wait(30)
    # Field 22 of /proc/PID/stat is too coarse; the interpreter's own start-up is part of the time.
    started = json.loads((out / "attempt-2.json").read_text())["started"]
    record = json.loads((root / "state/bench/attempts/0002/started.json").read_text())
    return dead - decided, min(started, _start_s(record, started)) - dead


def _start_s(record: dict[str, float], fallback: float) -> float:
    """When the process was created, in monotonic seconds (a resolution of 10 ms)."""
    ticks = os.sysconf("SC_CLK_TCK")
    boot_offset = time.clock_gettime(time.CLOCK_BOOTTIME) - time.clock_gettime(time.CLOCK_MONOTONIC)
    return record.get("start_time", fallback * ticks) / ticks - boot_offset


def _descendants(pid: int) -> list[int]:
    import psutil

    found: list[int] = []
    until = time.monotonic() + 5
    while len(found) < 2 and time.monotonic() < until:
        found = [child.pid for child in psutil.Process(pid).children(recursive=True)]
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tries", type=int, default=50)
    tries = parser.parse_args().tries
    results = []
    for _ in range(tries):
        with tempfile.TemporaryDirectory() as root:
            results.append(one_try(Path(root)))
    print(f"{tries} tries, a tree of 3 processes    median      p95      max    bar (median, p95)")
    names = (
        ("line written -> whole tree dead", "100, 300 ms"),
        ("dead -> next attempt started", "300 ms"),
    )
    for index, (name, bar) in enumerate(names):
        values = sorted(1000 * result[index] for result in results)
        p95 = values[min(len(values) - 1, int(0.95 * len(values)))]
        middle = values[len(values) // 2]
        print(f"{name:36} {middle:6.1f} ms {p95:6.1f} ms {values[-1]:6.1f} ms   {bar}")


if __name__ == "__main__":
    main()
