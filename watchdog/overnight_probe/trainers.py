"""Trainers that can resume, in scripts that do not: they get the checkpoint that was chosen.

Hugging Face's `Trainer.train()` and Lightning's `Trainer.fit()` go on from a checkpoint if they are
given one. A script that never does so begins anew at every start; here it is given for it, with a
callback that tells what only a trainer knows.
"""

from __future__ import annotations

import contextlib
import functools
import os
import zipfile
from collections.abc import Callable
from types import ModuleType
from typing import Any

from overnight_probe import callbacks
from overnight_probe.channel import Report, is_main_process

_trainings: list[None] = []
"""One for each training that this process has begun."""


class ChosenCheckpointError(RuntimeError):
    """The checkpoint that Overnight chose is none of this trainer's.

    The one error that reaches the script on purpose: it would begin anew, over its checkpoints.
    """


def hugging_face(module: ModuleType) -> None:
    """transformers.trainer: `train(resume_from_checkpoint=...)`, of all Trainers."""
    original = module.Trainer.train

    @functools.wraps(original)
    def train(self: Any, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        chosen = _chosen("checkpoint-*", _of_hugging_face)
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
        chosen = _chosen("*.ckpt", _of_lightning)
        with contextlib.suppress(Exception):
            ours = callbacks.LightningCallback
            if not any(isinstance(one, ours) for one in self.callbacks):
                self.callbacks.append(ours(metrics=False))
        if chosen is not None:
            args, kwargs["ckpt_path"] = args[:4], chosen  # model, loaders, data module; the path
        return original(self, *args, **kwargs)

    module.Trainer.fit = fit  # type: ignore[attr-defined]


def _chosen(loads: str, fits: Callable[[str], str]) -> str | None:
    """The checkpoint to resume from, None on a fresh start; `fits` says what is wrong with one.

    `loads` is a pattern for the names of those that this trainer can resume from.

    Only the first training of a process can be resumed: a second one's checkpoint would be given
    to the first, and the second begin anew. So from then on there is no resume route.
    """
    first = not _trainings
    _trainings.append(None)
    metrics = os.environ.get("OVERNIGHT_METRICS")
    if metrics and is_main_process(os.environ):
        said = {"event": "hello", "resume": first, "lr_scale": True, "skip": False}
        Report(metrics).write({**said, "loads": loads})
    path = os.environ.get("OVERNIGHT_RESUME")
    if not path or not first:
        return None
    wrong = fits(path)
    if wrong:
        raise ChosenCheckpointError(f"{path} {wrong}")
    return path


def _of_hugging_face(path: str) -> str:
    """What is wrong with a checkpoint of the Trainer; "" if nothing is."""
    here = os.path.exists(os.path.join(path, "trainer_state.json"))
    return "" if here else "was not written by this trainer"


def _of_lightning(path: str) -> str:
    """What is wrong with a checkpoint of Lightning; "" if nothing is. Nothing of it is loaded."""
    if not path.endswith(".ckpt"):
        return "was not written by this trainer"
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if name.endswith("/data.pkl")]
            whole = any(b"optimizer_states" in archive.read(name) for name in names)
    except (OSError, zipfile.BadZipFile):
        return ""  # of another format, or not here: Lightning knows better
    return "" if whole else "holds no optimizer (save_weights_only): it cannot be resumed from"
