"""The training loop, from top to bottom: where we run, one update, saving, the loop.

Step N is the N-th optimizer update: its loss is measured before the update, and the checkpoint
`step_N` is taken after it. A run resumed from `step_N` goes on with step N + 1.

The loop does not protect itself: a NaN is printed and trained on, as in most people's scripts.
Seeing it, and going back to a good checkpoint, is the watchdog's work.
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from . import TrainerError, checkpoint
from .data import Sampler, build_corpus, open_corpus, standard_library
from .faults import Faults
from .model import GPT, PRESETS, make_optimizer, scheduled_lr
from .report import Control, Reporter, Window, listen

# -- where we run -----------------------------------------------------------------------------


class World:
    """This process among those of torchrun; without torchrun it is alone."""

    def __init__(self, device: str) -> None:
        self.rank = int(os.environ.get("RANK", "0"))
        self.size = int(os.environ.get("WORLD_SIZE", "1"))
        if device == "cuda" and not torch.cuda.is_available():
            raise TrainerError("PyTorch sees no CUDA device: use --device cpu, or ask nvidia-smi")
        self.cuda = device != "cpu" and torch.cuda.is_available()
        local = int(os.environ.get("LOCAL_RANK", "0"))
        self.device = torch.device(f"cuda:{local}" if self.cuda else "cpu")
        if self.cuda:
            torch.cuda.set_device(self.device)
        if self.size > 1:
            dist.init_process_group("nccl" if self.cuda else "gloo")

    def total(self, *values: float) -> list[float]:
        """Each value summed over the ranks, so that all of them decide alike."""
        if self.size == 1:
            return list(values)
        summed = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(summed)
        return [float(value) for value in summed.tolist()]


# -- one update -------------------------------------------------------------------------------


class Trainer:
    """Model, optimizer and place in the data: what a checkpoint holds."""

    def __init__(self, args: argparse.Namespace, world: World) -> None:
        if args.preset not in PRESETS:
            raise TrainerError(f"no preset {args.preset!r}: choose one of {', '.join(PRESETS)}")
        self.args = args
        self.world = world
        self.preset = PRESETS[args.preset]
        self.batch = args.batch or self.preset.batch
        self.peak_lr = args.lr or self.preset.lr
        self.per_step = self.batch * args.accum * world.size  # sequences an update
        self.step = 0  # updates done
        self.skipped: list[Window] = []

        files = args.data or standard_library()
        if world.rank == 0:
            build_corpus(files, args.out)
        world.total(0)  # the other ranks wait here, and find it ready
        text, held_out = open_corpus(build_corpus(files, args.out), self.preset.seq_len)
        self.sampler = Sampler(text, seq_len=self.preset.seq_len, seed=args.seed)
        self.held_out = Sampler(held_out, seq_len=self.preset.seq_len)

        torch.manual_seed(args.seed)
        self.autocast = torch.autocast(world.device.type, torch.bfloat16, enabled=world.cuda)
        self.model = GPT(self.preset).to(world.device)
        self.optimizer = make_optimizer(self.model)
        self.network: Any = torch.compile(self.model) if args.compile else self.model
        if world.size > 1:
            self.network = DistributedDataParallel(self.network)

    def skip(self, window: Window) -> None:
        """Leave out the data of steps first..last.

        If the next step lies in the window, the sampler jumps past the sequences that this step
        and the others up to `last` would have used; step numbers go on without a gap. Checkpoints
        remember the window: what was jumped over before a save is not jumped over after it.
        """
        if window[0] <= self.step + 1 <= window[1] and window not in self.skipped:
            self.sampler.position += (window[1] - self.step) * self.per_step
            self.skipped.append(window)

    def update(self, lr_scale: float, faults: Faults) -> dict[str, float]:
        """One optimizer step: this rank's loss, the gradient norm before clipping, the rate."""
        args, world = self.args, self.world
        self.step += 1
        faults.before(self.step, self.model, self.optimizer)
        lr = scheduled_lr(self.step, peak=self.peak_lr, warmup=args.warmup, steps=args.steps)
        lr *= lr_scale  # last of all, so that nothing loaded from a checkpoint undoes it
        for group in self.optimizer.param_groups:
            group["lr"] = lr

        loss_sum = torch.zeros((), device=world.device)
        for micro in range(args.accum):
            rows = self.sampler.rows((micro * world.size + world.rank) * self.batch, self.batch)
            last = micro == args.accum - 1
            with nullcontext() if last or world.size == 1 else self.network.no_sync():
                with self.autocast:
                    loss = self.network(rows.to(world.device))
                loss = loss * faults.loss_factor / args.accum
                loss.backward()
            loss_sum += loss.detach()
        self.sampler.position += self.per_step

        for weight in self.model.parameters():
            if weight.grad is not None and faults.grad_factor != 1.0:
                weight.grad *= faults.grad_factor
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), args.clip or math.inf)
        self.optimizer.step()
        self.optimizer.zero_grad()
        loss_value, norm_value = torch.stack((loss_sum, norm)).tolist()  # waits for the device
        return {"loss": loss_value, "grad_norm": norm_value, "lr": lr}

    @torch.no_grad()
    def evaluate(self) -> float:
        """Held-out loss, over the same eight batches each time."""
        batches = self.held_out.rows(0, 8 * self.batch).chunk(8)
        with self.autocast:
            losses = [float(self.model(rows.to(self.world.device))) for rows in batches]
        return sum(losses) / len(losses)

    def save(self, *, lr_scale: float, damage: bool) -> Path:
        """Write the checkpoint of the updates done so far, and rotate the older ones."""
        args, folder = self.args, self.args.out.absolute() / "checkpoints"
        schedule = {"lr": self.peak_lr, "warmup": args.warmup, "steps": args.steps}
        state = {
            "preset": args.preset,
            "step": self.step,
            "position": self.sampler.position,
            "skipped": self.skipped,
            "rng": torch.get_rng_state(),
            "cuda_rng": torch.cuda.get_rng_state() if self.world.cuda else None,
            "schedule": schedule,  # the last two are for people and never loaded:
            "lr_scale": lr_scale,  # the command line and the watchdog decide
        }
        model, optimizer = self.model.state_dict(), self.optimizer.state_dict()
        parts = {"model.pt": model, "optimizer.pt": optimizer, "state.pt": state}
        path = checkpoint.save(folder, self.step, parts, damage=damage)
        checkpoint.rotate(folder, keep=args.keep, step=self.step)
        return path

    def load(self, path: Path) -> None:
        """Go back to where the checkpoint was taken."""
        model, optimizer, state = checkpoint.load(path)
        if state["preset"] != self.args.preset:
            raise TrainerError(f"{path} holds another model: add --preset {state['preset']}")
        self.model.load_state_dict(model)
        self.optimizer.load_state_dict(optimizer)
        self.step, self.sampler.position = state["step"], state["position"]
        self.skipped = [(first, last) for first, last in state["skipped"]]
        torch.set_rng_state(state["rng"])
        if self.world.cuda and state["cuda_rng"] is not None:
            torch.cuda.set_rng_state(state["cuda_rng"])


# -- the loop ---------------------------------------------------------------------------------


def train(args: argparse.Namespace) -> None:
    """Train to the end, or until SIGTERM."""
    heard = listen()
    torch.set_float32_matmul_precision("high")
    if args.threads:
        torch.set_num_threads(args.threads)
    args.out.mkdir(parents=True, exist_ok=True)
    world = World(args.device)
    control = Control()
    reporter = Reporter(speaks=world.rank == 0, log_every=args.log_every)
    faults = Faults(args.inject, args.out)
    trainer = Trainer(args, world)
    resume = control.resume or args.resume
    if resume:
        trainer.load(Path(resume))
    millions = sum(p.numel() for p in trainer.model.parameters()) / 1e6
    reporter.say(f"{args.preset}: {millions:.1f} M parameters, {world.device}, {args.steps} steps")
    reporter.say(f"resumed from {resume} at step {trainer.step}" if resume else "a fresh start")
    reporter.hello(step=trainer.step, total_steps=args.steps)

    stop, compiles = False, args.compile
    while trainer.step < args.steps and not stop:
        started = time.perf_counter()
        control.read()
        orders = (control.lr_scale, *control.skip) if world.rank == 0 else (0.0, 0, 0)
        lr_scale, first, last = world.total(*orders)  # the first rank's, on every rank
        trainer.skip((int(first), int(last)))
        with reporter.phase("compile") if compiles else nullcontext():
            metrics = trainer.update(lr_scale, faults)
        compiles = False
        time.sleep(faults.drag * (time.perf_counter() - started))
        # The mean of all losses; and a signal to any rank is one to all.
        metrics["loss"], terms, usr1s = world.total(
            metrics["loss"] / world.size, signal.SIGTERM in heard, signal.SIGUSR1 in heard
        )
        step, stop, save_now = trainer.step, terms > 0, usr1s > 0
        if save_now:
            heard.discard(signal.SIGUSR1)  # now, so that one which comes while saving is kept
        tokens = trainer.per_step * trainer.preset.seq_len
        metrics["tokens_per_s"] = round(tokens / (time.perf_counter() - started), 1)
        metrics["epoch"] = round(trainer.sampler.position / trainer.sampler.windows, 4)
        reporter.step(step, **metrics)

        if world.rank == 0 and args.eval_every and step % args.eval_every == 0:
            with reporter.phase("eval"):
                eval_loss = trainer.evaluate()
            reporter.write(step=step, eval_loss=eval_loss)
            reporter.say(f"Step {step} | Val Loss: {eval_loss:.3f}")
        due = step % args.save_every == 0 or step == args.steps
        if world.rank == 0 and (due or save_now or stop):
            with reporter.phase("save"):
                damage = faults.fires("corrupt-checkpoint", step)
                path = trainer.save(lr_scale=lr_scale, damage=damage)
            reporter.write(event="checkpoint", path=str(path), step=step)
    reporter.say(f"{'stopped by SIGTERM' if stop else 'done'} at step {trainer.step}")
    if world.size > 1:
        world.total(0)  # nobody leaves while the first rank still saves
        dist.destroy_process_group()
        sys.stdout.flush()
        os._exit(0)  # gloo's threads outlive the group, and can abort the interpreter as it ends
