"""Faults for drills, `--inject KIND@STEP`: real causes, not faked output.

Each fires once in the life of OUT, at STEP or the first step after it: a marker file is on the
disk before it fires, so the attempt that the watchdog starts next is not hit again.
"""

from __future__ import annotations

import math
import threading
from pathlib import Path

import torch
from torch import nn, optim

from . import TrainerError
from .checkpoint import fsync

KINDS = ["nan", "inf", "spike", "grad-spike", "stall", "crash", "cuda-oom", "slow"]
KINDS += ["corrupt-checkpoint"]  # the next one written: a byte of it is flipped after hashing
GRAD_SPIKE_STEPS = 15
OOM = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.64 GiB of "
    "which 1.12 GiB is free. Including non-PyTorch memory, this process has 22.51 GiB memory in "
    "use. Of the allocated memory 21.37 GiB is allocated by PyTorch, and 704.21 MiB is reserved by "
    "PyTorch but unallocated. (injected)"
)


class Faults:
    """The faults of this run: armed until they fire, then at work in the loop."""

    def __init__(self, specs: list[str], out: Path) -> None:
        self.loss_factor = self.grad_factor = 1.0
        self.grad_spike_end = 0
        self.drag = 0.0  # rest after each step, in durations of that step
        self.armed: list[tuple[str, int, Path]] = []
        for spec in specs:
            kind, _, at = spec.partition("@")
            if kind not in KINDS or not at.isdigit():
                raise TrainerError(f"--inject {spec}: give KIND@STEP, KIND of {', '.join(KINDS)}")
            marker = out / f".injected-{kind}@{int(at)}"
            if not marker.exists():
                self.armed.append((kind, int(at), marker))

    def fires(self, kind: str, step: int) -> bool:
        """Whether one of this kind is due; it is then spent, also for later attempts."""
        due = [fault for fault in self.armed if fault[0] == kind and fault[1] <= step]
        for fault in due:
            self.armed.remove(fault)
            fault[2].touch()
            fsync(fault[2].parent)
        return bool(due)

    def before(self, step: int, model: nn.Module, optimizer: optim.Optimizer) -> None:
        """What goes wrong at this step."""
        if self.fires("stall", step):
            threading.Event().wait()  # for ever, without CPU time
        if self.fires("crash", step):
            raise RuntimeError(f"injected crash at step {step}")
        if self.fires("cuda-oom", step):
            raise torch.cuda.OutOfMemoryError(OOM)
        if self.fires("spike", step):
            damage(model, optimizer, seed=step)
        if self.fires("grad-spike", step):
            self.grad_spike_end = step + GRAD_SPIKE_STEPS
        if self.fires("slow", step):
            self.drag = 9.0
        self.grad_factor = 1000.0 if step < self.grad_spike_end else 1.0
        nan, inf = self.fires("nan", step), self.fires("inf", step)
        self.loss_factor = math.nan if nan else math.inf if inf else 1.0


@torch.no_grad()
def damage(model: nn.Module, optimizer: optim.Optimizer, *, seed: int) -> None:
    """What one step with a monstrous gradient leaves behind: the loss jumps, and stays there.

    Each layer is drowned in noise (the same on every rank), and AdamW's second moments grow until
    its updates are too small to repair that: for some 200 steps, at a beta2 of 0.95.
    """
    generator = torch.Generator().manual_seed(seed)
    for weight in (p for p in model.parameters() if p.dim() >= 2):
        noise = torch.randn(weight.shape, generator=generator).to(weight.device)
        weight.add_(3.0 / weight.shape[1] ** 0.5 * noise)
    for moments in optimizer.state.values():
        moments["exp_avg_sq"].add_(100.0)
