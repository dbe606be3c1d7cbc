"""What trainers know and an optimizer does not: how long it is, what is saved, when it evaluates.

With the probe both are added to every trainer. By hand, where Overnight is installed beside the
training and runs without the probe, they also report what the trainer logs:

    trainer.add_callback(HuggingFaceCallback())            # transformers
    lightning.Trainer(callbacks=[LightningCallback()])     # or pytorch_lightning

Without Overnight around they do nothing.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from overnight_probe.channel import Report


class Teller:
    """Tells the supervisor, if there is one; never raises into the training."""

    def __init__(self, *, metrics: bool | None = None) -> None:
        """`metrics`: report losses, too; by default where no probe does it."""
        path = os.environ.get("OVERNIGHT_METRICS")
        self._report = Report(path) if path else None
        probed = "overnight_probe.torch_hooks" in sys.modules
        self._metrics = not probed if metrics is None else metrics

    def length(self, total_steps: Any) -> None:
        """How many steps the training has, if that is known."""
        if isinstance(total_steps, int) and total_steps > 0:
            self._tell(total_steps=total_steps)

    def phase(self, name: str) -> None:
        """What follows makes no steps."""
        self._tell(event="phase", name=name)

    def saved(self, path: str, step: int) -> None:
        """A checkpoint is complete."""
        self._tell(event="checkpoint", path=os.path.abspath(path), step=step)

    def logged(self, step: int, values: dict[str, Any]) -> None:
        """Numbers that the trainer has logged, under its own names."""
        numbers = {name: float(value) for name, value in values.items() if _is_number(value)}
        if self._metrics and numbers:
            self._tell(**{**numbers, "step": step})

    def _tell(self, **values: Any) -> None:
        if self._report is not None:
            self._report.write(values)


def _is_number(value: Any) -> bool:
    if hasattr(value, "numel"):
        return bool(value.numel() == 1)
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _hugging_face() -> type:
    from transformers import TrainerCallback

    class HuggingFaceCallback(TrainerCallback):  # type: ignore[misc]
        """For the Trainer of Transformers."""

        def __init__(self, *, metrics: bool | None = None) -> None:
            self.teller = Teller(metrics=metrics)

        def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            if state.is_world_process_zero:
                self.teller.length(state.max_steps)

        def on_log(
            self, args: Any, state: Any, control: Any, logs: Any = None, **more: Any
        ) -> None:
            summary = logs is None or "train_runtime" in logs
            if state.is_world_process_zero and not summary:
                self.teller.logged(state.global_step, logs)

        def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            if state.is_world_process_zero and (control.should_evaluate or control.should_save):
                self.teller.phase("eval" if control.should_evaluate else "save")

        def on_save(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            if state.is_world_process_zero:
                folder = os.path.join(args.output_dir, f"checkpoint-{state.global_step}")
                self.teller.saved(folder, state.global_step)

    return HuggingFaceCallback


def _lightning() -> type:
    base = sys.modules.get("lightning.pytorch") or sys.modules.get("pytorch_lightning")
    if base is None:
        import lightning.pytorch as base

    class LightningCallback(base.Callback):  # type: ignore[misc, name-defined]
        """For the Trainer of Lightning."""

        def __init__(self, *, metrics: bool | None = None) -> None:
            self.teller = Teller(metrics=metrics)

        def on_train_start(self, trainer: Any, module: Any) -> None:
            steps = trainer.estimated_stepping_batches
            if trainer.is_global_zero and steps != float("inf"):
                self.teller.length(int(steps))

        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, *more: Any) -> None:
            if trainer.is_global_zero:
                loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
                self.teller.logged(trainer.global_step, {"loss": loss})

        def on_validation_start(self, trainer: Any, module: Any) -> None:
            if trainer.is_global_zero and not trainer.sanity_checking:
                self.teller.phase("eval")

        def on_save_checkpoint(self, trainer: Any, module: Any, checkpoint: Any) -> None:
            if trainer.is_global_zero:
                self.teller.phase("save")

    return LightningCallback


_KINDS = {"HuggingFaceCallback": _hugging_face, "LightningCallback": _lightning}


def __getattr__(name: str) -> type:
    """The two classes, made when they are asked for: each needs its framework."""
    if name not in _KINDS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    made = globals()[name] = _KINDS[name]()
    return made
