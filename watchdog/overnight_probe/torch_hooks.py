"""Where torch is listened to: backward, optimizer steps, clipping, gradient scaling.

Each hook only passes on what it sees. Whatever goes wrong behind it ends the probe and never
reaches the script.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

from overnight_probe.channel import Settings, is_main_process
from overnight_probe.probe import Probe
from overnight_probe.saves import Saves


class Hooks:
    """Called with each module of torch that matters, right after it was imported."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._probe: Any = None
        self.saves = Saves(self._tell)

    def optimizer(self, module: ModuleType) -> None:
        """torch.optim.optimizer: the global hooks around every step, and Tensor.backward."""
        import torch

        probe = self._probe = Probe(torch, self._settings, main=is_main_process(os.environ))
        before = module.register_optimizer_step_pre_hook(probe.before_step)
        after = module.register_optimizer_step_post_hook(probe.after_step)
        probe.when_off(before.remove)
        probe.when_off(after.remove)
        original = torch.Tensor.backward

        @functools.wraps(original)
        def backward(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            probe.on_backward(tensor)
            return original(tensor, *args, **kwargs)

        torch.Tensor.backward = backward  # type: ignore[method-assign]

    def _tell(self, event: dict[str, Any]) -> None:
        """An event with the step of the run, once there are steps."""
        if self._probe is not None:
            self._probe.tell(event)

    def clip_grad(self, module: ModuleType) -> None:
        """torch.nn.utils.clip_grad: a script that clips has computed the norm already."""
        hooks = self

        def wrapped(original: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(original)
            def clip_grad_norm_(parameters: Any, *args: Any, **kwargs: Any) -> Any:
                if hooks._probe is not None and not hasattr(parameters, "grad"):
                    parameters = list(parameters)
                norm = original(parameters, *args, **kwargs)
                if hooks._probe is not None:
                    hooks._probe.on_clip(parameters, norm, args, kwargs)
                return norm

            return clip_grad_norm_

        module.clip_grad_norm_ = wrapped(module.clip_grad_norm_)  # type: ignore[attr-defined]

    def grad_scaler(self, module: ModuleType) -> None:
        """torch.amp: what a scaled loss was before, and updates that the scaler leaves out."""
        hooks, scaler = self, module.GradScaler
        if "scale" not in vars(scaler):
            return  # torch.cuda.amp's is a subclass of torch.amp's in newer versions
        scale, step = scaler.scale, scaler.step

        @functools.wraps(scale)
        def scaled(self: Any, outputs: Any) -> Any:
            result = scale(self, outputs)
            if hooks._probe is not None:
                hooks._probe.on_scale(outputs, result)
            return result

        @functools.wraps(step)
        def stepped(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if hooks._probe is None:
                return step(self, optimizer, *args, **kwargs)
            before = hooks._probe.updates_of(optimizer)
            result = step(self, optimizer, *args, **kwargs)
            hooks._probe.on_scaler_step(optimizer, before, self)
            return result

        scaler.scale, scaler.step = scaled, stepped
