"""What the probe costs inside a worker: time of a step with and without it, paired in one process.

    python benchmarks/probe.py [CUDA-DEVICE]

Bars: guard and metrics at most 1 % of a step of 50 ms or more; snapshots at most 2 % at one a
minute. Blocks of steps with and without the probe alternate, so that a machine that is busy with
something else slows both.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "watchdog"))

from overnight_probe.channel import Settings
from overnight_probe.torch_hooks import Hooks

BLOCK, BLOCKS = 5, 60


def network(width: int, depth: int) -> nn.Module:
    """A plain network; its size sets how many gradients there are to look at."""
    layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.GELU())]
    return nn.Sequential(*layers, nn.Linear(width, 1))


def step_s(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> float:
    """Seconds of one step: of the CPU for one thread on it, of the wall for a device."""
    clock = time.perf_counter if x.is_cuda else time.process_time
    started = clock()
    optimizer.zero_grad()
    model(x).pow(2).mean().backward()
    optimizer.step()
    if x.is_cuda:
        torch.cuda.synchronize()
    return clock() - started


def main() -> None:
    """Print the ratios."""
    device = sys.argv[1] if len(sys.argv) > 1 else "cpu"
    torch.manual_seed(0)
    torch.set_num_threads(1)
    width, depth, batch = (512, 4, 1024) if device == "cpu" else (4096, 8, 8192)
    model = network(width, depth).to(device)
    x = torch.randn(batch, width, device=device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    with tempfile.TemporaryDirectory() as folder:
        hooks = Hooks(
            Settings(metrics=f"{folder}/m", control=f"{folder}/c", snapshots=False, clip="auto")
        )
        hooks.optimizer(sys.modules["torch.optim.optimizer"])
        probe = hooks._probe
        times: dict[bool, list[float]] = {True: [], False: []}
        for block in range(BLOCKS):
            probe.off = block % 2 == 0
            steps = [step_s(model, optimizer, x) for _ in range(BLOCK)]
            if block >= 2:
                times[not probe.off].append(statistics.median(steps))
        probe.off = False
        with_it, without = statistics.median(times[True]), statistics.median(times[False])
        pairs = [a / b for a, b in zip(times[True], times[False], strict=True)]
        ring = probe._ring
        taken = []
        for number in range(6):
            started = time.perf_counter()
            ring.take(number, [optimizer])
            if x.is_cuda:
                torch.cuda.synchronize()
            taken.append(time.perf_counter() - started)
        probe.switch_off("the end")
    parameters = sum(p.numel() for p in model.parameters())
    print(f"{device}: {parameters / 1e6:.1f} million parameters, batch {batch}")
    print(f"a step: {1e3 * without:.1f} ms without, {1e3 * with_it:.1f} ms with the probe")
    low, middle, high = (100 * (q - 1) for q in statistics.quantiles(pairs, n=4))
    print(
        f"guard and metrics: {middle:+.2f} % (at most 1 %),"
        f" half of the pairs between {low:+.2f} and {high:+.2f} %"
    )
    again = statistics.median(taken[3:])
    print(
        f"snapshots: {ring.bytes_each / 2**20:.0f} MiB each, {3 * ring.bytes_each / 2**20:.0f} MiB"
        f" for three; {1e3 * again:.0f} ms, {100 * again / 60:.2f} % at one a minute (at most 2 %)"
    )


if __name__ == "__main__":
    main()
