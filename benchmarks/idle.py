"""What watching costs: memory and CPU at 20 lines a second, next to torchrun on the same script.

    python benchmarks/idle.py [--seconds 60]

Both supervisors run at the same time on the same plain worker (20 lines/s); memory is the largest
RSS seen of the supervising processes, CPU their user and system time over the span. torchrun is
left out where torch is not installed. Bars: 60 MiB and 1 % of one core.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from overnight_box import OVERNIGHT

WORKER = """\
import random, time
for step in range(1, 1_000_000):
    loss = 2 + random.random() / 10
    print(f"Step {step} | Loss: {loss:.4f} | Grad Norm: 1.1 | LR: 3e-4", flush=True)
    time.sleep(0.05)
"""


def watched(process: psutil.Process, worker: Path) -> list[psutil.Process]:
    """The supervising processes of a tree: everything but `python worker.py`."""
    tree = [process, *process.children(recursive=True)]
    return [p for p in tree if p.cmdline()[1:] not in ([str(worker)], ["-u", str(worker)])]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60)
    span_s = parser.parse_args().seconds
    with tempfile.TemporaryDirectory() as root:
        worker = Path(root, "worker.py")
        worker.write_text(WORKER)
        env = {**os.environ, "OVERNIGHT_STATE_DIR": f"{root}/state"}
        quiet = {
            "cwd": root,
            "env": env,
            "stdout": subprocess.DEVNULL,
            "stderr": subprocess.DEVNULL,
        }
        commands = {
            "overnight": [*OVERNIGHT, "run", "--name", "idle", "--", sys.executable, str(worker)]
        }
        if importlib.util.find_spec("torch"):
            torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=1"]
            commands["torchrun"] = [*torchrun, "--master-port=29611", str(worker)]
        processes = {name: subprocess.Popen(argv, **quiet) for name, argv in commands.items()}
        time.sleep(8)  # imports and the first seconds are not idling
        try:
            measure(processes, worker, span_s)
        finally:
            for process in processes.values():
                process.terminate()
            for process in processes.values():
                process.wait(60)


def measure(processes: dict[str, subprocess.Popen[bytes]], worker: Path, span_s: float) -> None:
    """Sample both trees once a second over the span."""
    trees = {name: watched(psutil.Process(p.pid), worker) for name, p in processes.items()}
    before = {name: _cpu_s(tree) for name, tree in trees.items()}
    peak = dict.fromkeys(trees, 0)
    began = time.monotonic()
    while (elapsed := time.monotonic() - began) < span_s:
        for name, tree in trees.items():
            peak[name] = max(peak[name], sum(p.memory_info().rss for p in tree))
        time.sleep(1)
    print(f"{elapsed:.0f} s, 20 lines/s       RSS of all   largest process   CPU of one core")
    for name, tree in trees.items():
        largest = max(p.memory_info().rss for p in tree)
        share = 100 * (_cpu_s(tree) - before[name]) / elapsed
        print(
            f"{name:20} {peak[name] / 2**20:9.1f} MiB {largest / 2**20:13.1f} MiB {share:13.2f} %"
            f"   ({len(tree)} processes)"
        )


def _cpu_s(tree: list[psutil.Process]) -> float:
    return sum(sum(p.cpu_times()[:2]) for p in tree)


if __name__ == "__main__":
    main()
