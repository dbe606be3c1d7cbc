"""Trainers that can resume, in scripts that do not: they get the checkpoint that was chosen.

Hugging Face's `Trainer.train()` and Lightning's `Trainer.fit()` go on from a checkpoint if they are
given one. A script that never does so begins anew at every start; here it is given for it, with a
callback that tells what only a trainer knows.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

from overnight_probe import callbacks
from overnight_probe.channel import Report, is_main_process

_given: set[str] = set()
"""Checkpoints that a training of this process has got already: a second one begins at its own."""


class ChosenCheckpointError(RuntimeError):
    """The checkpoint that Overnight chose is none of this trainer's.

    The one error that reaches the script on purpose: it would begin anew, over its checkpoints.
    """


def hugging_face(module: ModuleType) -> None:
    """transformers.trainer: `train(resume_from_checkpoint=...)`, of all Trainers."""
    original = module.Trainer.train

    @functools.wraps(original)
    def train(self: Any, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        chosen = _chosen(lambda path: os.path.exists(os.path.join(path, "trainer_state.json")))
        with contextlib.suppress(Exception):  # without it only its length is not known
            ours = callbacks.HuggingFaceCallback
            if not any(isinstance(one, ours) for one in self.callback_handler.callbacks):
                self.add_callback(ours(metrics=False))
        return original(self, chosen or resume_from_checkpoint, *args, **kwargs)

    module.Trainer.train = train  # type: ignore[attr-defined]


def lightning(module: ModuleType) -> None:
    """lightning.pytorch.trainer.trainer, or that of pytorch_lightning: `fit(ckpt_path=...)`."""
    original = module.Trainer.fit

    @functools.wraps(original)
    def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        chosen = _chosen(lambda path: path.endswith(".ckpt"))
        with contextlib.suppress(Exception):
            ours = callbacks.LightningCallback
            if not any(isinstance(one, ours) for one in self.callbacks):
                self.callbacks.append(ours(metrics=False))
        if chosen is not None:
            args, kwargs["ckpt_path"] = args[:4], chosen  # model, loaders, data module; the path
        return original(self, *args, **kwargs)

    module.Trainer.fit = fit  # type: ignore[attr-defined]


def _chosen(fits: Callable[[str], bool]) -> str | None:
    """Say that this script can resume now; the checkpoint to resume from, None on a fresh start."""
    metrics = os.environ.get("OVERNIGHT_METRICS")
    if metrics and is_main_process(os.environ):
        said = {"event": "hello", "resume": True, "lr_scale": True, "skip": False}
        Report(metrics).write(said)
    path = os.environ.get("OVERNIGHT_RESUME")
    if not path or path in _given:
        return None
    if not fits(path):
        raise ChosenCheckpointError(f"{path} was not written by this trainer")
    _given.add(path)
    return path
