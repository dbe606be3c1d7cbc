"""What happens around each update: measured, and where it must be, skipped, clipped or undone."""

from __future__ import annotations

import atexit
import contextlib
import functools
import math
import os
import sys
import traceback
import weakref
from collections.abc import Callable
from typing import Any

from overnight_probe.channel import Control, Report, Settings, holds, now
from overnight_probe.going_back import GoingBack
from overnight_probe.guard import Clip
from overnight_probe.ranks import Ranks
from overnight_probe.readback import Readback
from overnight_probe.update import (
    Seen,
    hide_gradients,
    is_sharded,
    rates_of,
    scale_rates,
    shares_parameters,
    undo,
)

VERSION = 1

HANDOVER_UPDATES = 300
"""So many updates of others without one of the leading optimizer: it has done its part."""


def harmless(method: Callable[..., Any]) -> Callable[..., Any]:
    """Whatever goes wrong in a hook switches the probe off; the script never sees it."""

    @functools.wraps(method)
    def guarded(self: Probe, *args: Any, **kwargs: Any) -> Any:
        if self.off:
            return None
        try:
            return method(self, *args, **kwargs)
        except Exception as error:  # noqa: BLE001 - the promise of this file
            self.switch_off(f"{type(error).__name__}: {error}", traceback.format_exc(limit=-3))
            return None

    return guarded


class Probe:
    """One process's probe. `main` says whether this process reports (rank 0)."""

    def __init__(self, torch: Any, settings: Settings, *, main: bool) -> None:
        self._torch = torch
        self._settings = settings
        self._main = main
        self._report = Report(settings.metrics)
        self._control = Control(settings.control, settings.lr_scale)
        self._clip = Clip(settings.clip)
        self._readback = Readback(torch)
        self._back = GoingBack(torch, settings, self._say)
        self._seen: weakref.WeakKeyDictionary[Any, Seen] = weakref.WeakKeyDictionary()
        self._losses: list[Any] = []
        self._unscaled: tuple[Any, Any] | None = None
        self._norm: tuple[set[int], Any] | None = None
        self._rolled = 0
        self._skipped = 0
        self._leader: Any = None
        self._without_leader = 0
        self._rivals = self._told_of_rivals = False
        self._scaled: set[int] = set()
        self._steps = 0
        self._last_at: float | None = None
        self._endings: list[Callable[[], None]] = []
        self.off = False
        atexit.register(self.close)
        os.register_at_fork(after_in_child=self.mute)

    # --- on and off ------------------------------------------------------------------------------

    def when_off(self, ending: Callable[[], None]) -> None:
        """Have this called when the probe ends."""
        self._endings.append(ending)

    def switch_off(self, why: str, details: str = "") -> None:
        """Undo what is half done, and watch no longer. Never raises."""
        self.off = True
        if self._back.ranks is not None:
            self._back.ranks.say(off=why)  # ranks that act differently would drift apart
        self._back.ring.clear()  # the memory is the script's again
        for seen in list(self._seen.values()):
            undo(seen)
        for ending in self._endings:
            with contextlib.suppress(Exception):  # the others still have to end
                ending()
        if self._main:
            self._report.write({"event": "probe", "off": why, "details": details or None})

    @harmless
    def close(self) -> None:
        """The process ends: what is still on its way is written."""
        self._readback.finish()

    def mute(self) -> None:
        """This is a forked copy of the process, a loader of data perhaps: it has nothing to say."""
        self.off = True

    @harmless
    def tell(self, event: dict[str, Any]) -> None:
        """Write an event of another part, with the step that was made last."""
        if self._main:
            self._report.write({**event, "step": self._settings.first_step + self._steps})

    def _say(self, **values: Any) -> None:
        if self._main:
            self._report.write({"event": "probe", **values})

    # --- what torch tells ------------------------------------------------------------------------

    @harmless
    def on_scale(self, outputs: Any, scaled: Any) -> None:
        """A GradScaler has scaled a loss: its backward is called on the product."""
        if self._torch.is_tensor(outputs):
            self._unscaled = (weakref.ref(scaled), outputs.detach())

    @harmless
    def on_backward(self, loss: Any) -> None:
        """A loss is about to be differentiated; those of one update are added up."""
        if loss.numel() != 1:
            return
        unscaled = self._unscaled
        same = unscaled is not None and unscaled[0]() is loss
        self._losses.append(unscaled[1] if same and unscaled else loss.detach())
        self._unscaled = None
        if len(self._losses) > 1:  # accumulated gradients are those of the sum
            self._losses = [self._losses[0] + self._losses[1].to(self._losses[0].device)]

    @harmless
    def on_clip(self, parameters: Any, norm: Any, args: Any, kwargs: Any) -> None:
        """The script has clipped: its norm is the one before clipping, and need not be computed."""
        kind = kwargs.get("norm_type", args[1] if len(args) > 1 else 2.0)
        if float(kind) == 2.0 and isinstance(parameters, list) and self._torch.is_tensor(norm):
            whose = {id(p) for p in parameters if p.grad is not None}
            self._norm = (whose, norm.detach())

    def updates_of(self, optimizer: Any) -> int:
        """How many updates this optimizer has made, left-out ones included."""
        try:
            seen = self._seen.get(optimizer)
        except TypeError:  # a wrapper that cannot be hashed or weakly referenced
            return 0
        return seen.updates if seen else 0

    @harmless
    def on_scaler_step(self, optimizer: Any, before: int, scaler: Any) -> None:
        """A GradScaler that found an overflow has not called `step`: the update is left out."""
        if self.updates_of(optimizer) != before:
            return
        seen = self._of(optimizer)
        seen.updates += 1
        if seen.leads:
            values = {**self._next_step(), "skipped": True}
            values["loss_scale"] = float(scaler.get_scale())
            loss, norm = self._take_loss(), self._torch.tensor(float("inf"))
            self._push(values, loss, norm)
        self._losses, self._norm = [], None

    # --- around an update ------------------------------------------------------------------------

    @harmless
    def before_step(self, optimizer: Any, args: Any, kwargs: Any) -> Any:
        """Before optimizer.step(); with a closure, after it has computed the gradients."""
        if "deepspeed" in sys.modules:
            self.switch_off("DeepSpeed steers its own updates: only the log is read")
            return None
        if type(optimizer).__name__ == "LBFGS":
            return None  # evaluates its closure many times: there is no one update to look at
        in_args = len(args) > 1 and callable(args[1])
        closure = args[1] if in_args else kwargs.get("closure")
        if not callable(closure):
            self._prepare(optimizer)
            return None

        def watched() -> Any:
            result = closure()
            self._prepare_behind_closure(optimizer)
            return result

        if in_args:
            return (args[0], watched, *args[2:]), kwargs
        return args, {**kwargs, "closure": watched}

    @harmless
    def _prepare_behind_closure(self, optimizer: Any) -> None:
        self._prepare(optimizer)

    def _prepare(self, optimizer: Any) -> None:
        seen = self._of(optimizer)
        if seen.depth and not self._losses:
            seen.depth += 1  # this `step` was called by another one, which is prepared
            return
        self._take_back(seen)
        seen.depth = 1
        step = self._settings.first_step + self._steps + 1
        orders = self._control.read(step)
        if orders.clip and orders.clip != self._settings.clip:
            self._clip.change(orders.clip)
        if seen.leads and orders.rollback and orders.rollback.number > self._rolled:
            self._rolled = orders.rollback.number
            if self._back.go_back(orders.rollback, step):
                for each in self._seen.values():
                    each.drop_next = True  # the gradients at hand belong to what is undone
        grads = [p.grad for g in optimizer.param_groups for p in g["params"] if p.grad is not None]
        norm = self._norm_of(optimizer, grads)
        scale = orders.lr_scale / self._settings.applied_scale
        rates, loss = rates_of(optimizer, scale), self._take_loss()
        skip: Any = self._is_bad(optimizer, norm, seen)
        if seen.drop_next:
            seen.drop_next, skip = False, True
        if skip is True:
            hide_gradients(optimizer, seen)
        else:
            self._clip_to_bound(grads, norm)
        scale_rates(optimizer, scale, seen, self._scaled)
        if seen.leads:
            values = {**self._next_step(), "lr": next(iter(rates), None)}
            if len(set(rates)) > 1:
                values["lr_groups"] = rates
            seen.record = {"values": values, "loss": loss, "norm": norm, "skip": skip}
        else:
            self._without_leader += 1
            # Several optimizers may share one loss (Muon and AdamW): then they pull together.
            of_its_own = loss is not None and not shares_parameters(optimizer, self._leader())
            self._rivals |= of_its_own

    @harmless
    def after_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        """After optimizer.step(): everything is as the script left it, but for the update."""
        seen = self._of(optimizer)
        seen.depth = max(0, seen.depth - 1)
        if seen.depth:
            return
        undo(seen)
        seen.updates += 1
        self._losses, self._norm = [], None
        record, seen.record = seen.record, None
        if record is None:
            return
        skip = record["skip"]
        values = record["values"]
        if skip is True:
            values["skipped"] = True
            self._back.ring.mend_buffers()
        flag = skip if self._torch.is_tensor(skip) else None
        self._push(values, record["loss"], record["norm"], flag)
        if not self._control.goes_back:
            self._back.keep(self._settings.first_step + self._steps, list(self._seen))

    def _take_back(self, seen: Seen) -> None:
        """An update that was begun and has not ended: its step has raised, and is tried again."""
        undo(seen)
        if seen.record is not None:
            seen.record = None
            self._steps -= 1

    # --- numbers ---------------------------------------------------------------------------------

    def _of(self, optimizer: Any) -> Seen:
        seen = self._seen.get(optimizer)
        if seen is None:
            seen = self._seen[optimizer] = Seen()
        leader = None if self._leader is None else self._leader()
        if leader is optimizer:
            if self._rivals and not self._told_of_rivals:  # they take turns: a GAN
                self._told_of_rivals = True
                self._say(optimizers=len(self._seen))
            self._without_leader = 0
        elif leader is None or self._without_leader >= HANDOVER_UPDATES:
            if leader is not None:
                self._seen[leader].leads = False
            seen.leads, self._without_leader, self._rivals = True, 0, False
            self._leader = weakref.ref(optimizer)
            self._back.begin_anew()
            self._greet(optimizer)
        return seen

    def _greet(self, optimizer: Any) -> None:
        """The first update of a leading optimizer: by now it is known which rank this is.

        Processes that this one starts from now on do not train it: they stay without a probe.
        """
        os.environ.pop("OVERNIGHT_PROBE", None)
        about, ranks = self._settings, int(os.environ.get("WORLD_SIZE") or 1)
        distributed = getattr(self._torch, "distributed", None)
        if distributed and distributed.is_available() and distributed.is_initialized():
            rank, ranks = distributed.get_rank(), distributed.get_world_size()
            self._main = rank == 0
            if ranks > 1 and self._back.ranks is None:
                self._back.ranks = Ranks(about.metrics, rank=rank, size=ranks)
        if self._main and not holds(about.metrics):
            self._main = False
            self.switch_off("another process of this run is watched")
            return
        self._say(
            hello=VERSION,
            optimizer=type(optimizer).__name__,
            ranks=ranks,
            in_flight=about.snapshots,
            guard={"skip_nonfinite": about.skip_nonfinite, "clip": about.clip},
        )

    def _next_step(self) -> dict[str, Any]:
        """The labels of the update that is being made, or was left out by a GradScaler."""
        self._steps += 1
        at = now()
        took, self._last_at = None if self._last_at is None else at - self._last_at, at
        return {"step": self._settings.first_step + self._steps, "step_s": took}

    def _take_loss(self) -> Any:
        losses, self._losses = self._losses, []
        return losses[0].reshape(()) if losses else None

    def _norm_of(self, optimizer: Any, grads: list[Any]) -> Any:
        """The 2-norm of the gradients as a tensor, unscaled; None without gradients."""
        if not grads:
            return None
        known = self._norm
        if known is not None and known[0] == {
            id(p) for g in optimizer.param_groups for p in g["params"] if p.grad is not None
        }:
            return known[1]
        torch = self._torch
        dense = [grad._values() if grad.is_sparse else grad for grad in grads]
        low = any(grad.dtype not in (torch.float32, torch.float64) for grad in dense)
        if low or len({grad.device for grad in dense}) > 1:
            norms = [torch.linalg.vector_norm(grad, dtype=torch.float32) for grad in dense]
        else:
            norms = torch._foreach_norm(dense)
        norm = torch.linalg.vector_norm(torch.stack([n.to(norms[0].device) for n in norms]))
        scale = getattr(optimizer, "grad_scale", None)  # a fused optimizer unscales by itself
        return norm / scale if torch.is_tensor(scale) else norm

    def _is_bad(self, optimizer: Any, norm: Any, seen: Seen) -> Any:
        """Whether this update would poison the weights: a bool, or a tensor that the device obeys.

        The norm decides alone: under DDP it is the same on all ranks, a loss is not. A fused
        optimizer on a device takes the flag there; others need it here, which waits for backward.
        """
        if norm is None or not self._settings.skip_nonfinite or is_sharded(optimizer):
            return False
        if norm.is_cuda and all(group.get("fused") for group in optimizer.param_groups):
            flag = getattr(optimizer, "found_inf", None)
            if flag is None:
                flag = (~self._torch.isfinite(norm)).float().reshape(())
                optimizer.found_inf = flag
                if not hasattr(optimizer, "grad_scale"):
                    optimizer.grad_scale = None
                    seen.undo.append(lambda: delattr(optimizer, "grad_scale"))
                seen.undo.append(lambda: delattr(optimizer, "found_inf"))
            return flag
        return not math.isfinite(float(norm))

    def _clip_to_bound(self, grads: list[Any], norm: Any) -> None:
        bound = self._clip.bound()
        if bound is None or norm is None or (not norm.is_cuda and float(norm) <= bound):
            return  # on a device the answer is not here yet: there it multiplies by one
        factor = (bound / (norm + 1e-6)).clamp(max=1.0)
        with self._torch.no_grad():
            for grad in grads:
                grad.mul_(factor.to(grad.device, grad.dtype))

    def _push(self, values: dict[str, Any], loss: Any, norm: Any, flag: Any = None) -> None:
        """Write a record as soon as its numbers are here."""

        def write(loss: float | None, norm: float | None, flag: float | None) -> None:
            if norm is not None and not values.get("skipped"):
                self._clip.observe(norm)
            if loss is not None:
                self._back.calm.observe(loss)
            skipped = bool(values.get("skipped")) or bool(flag)
            if skipped and "loss_scale" not in values:
                self._skipped += 1
            if self._main:
                extra = {"skipped": True, "skipped_total": self._skipped} if skipped else {}
                self._report.write({**values, "loss": loss, "grad_norm": norm, **extra})

        self._readback.push((loss, norm, flag), write)
