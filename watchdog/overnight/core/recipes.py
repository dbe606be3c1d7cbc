"""Known ways to resume, as data: one row a framework. A new one is a few lines."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Recipe:
    """How the scripts of one framework resume.

    `pattern` recognises their command, words joined by spaces. `latest`: they take their newest
    checkpoint by themselves. `hello`: what they announce before they have said it. `advice`: what a
    person should know who relies on it.
    """

    name: str
    pattern: re.Pattern[str]
    args: tuple[str, ...] = ()
    latest: bool = False
    hello: Mapping[str, object] | None = None
    advice: str = ""


_RATE_IN_STATE = (
    "its checkpoints bring their own learning rate: --probe lowers it in the running script"
)

RECIPES = (
    # python -m overnight_trainer --preset tiny
    Recipe(
        "trainer",
        re.compile(r"(?:^|[ /])overnight_trainer/?(?: |$)"),
        hello={"resume": True, "lr_scale": True},
    ),
    # python run_clm.py --model_name_or_path gpt2 --do_train --output_dir out
    Recipe(
        "hf-trainer",
        re.compile(
            r"--output_dir\b.*--(?:do_train|per_device_train_batch_size)\b"
            r"|--(?:do_train|per_device_train_batch_size)\b.*--output_dir\b"
        ),
        args=("--resume_from_checkpoint", "{checkpoint}"),
        advice=_RATE_IN_STATE,
    ),
    # python main.py fit --config config.yaml   (LightningCLI)
    Recipe(
        "lightning-cli",
        re.compile(r"\.py fit\b.*--(?:config|trainer|model|data)\b"),
        args=("--ckpt_path", "{checkpoint}"),
        advice=_RATE_IN_STATE,
    ),
    # python train.py config/train_shakespeare_char.py --out_dir=out
    Recipe(
        "nanogpt",
        re.compile(r"\btrain\.py\b.*(?:\bconfig/\w+\.py\b|--(?:init_from|eval_iters)=)"),
        args=("--init_from=resume", "--learning_rate={lr}"),
        latest=True,
        advice="give --learning_rate in the command, or [resume] base_lr: then it can be lowered",
    ),
    # yolo detect train data=coco8.yaml model=yolo11n.pt
    Recipe(
        "ultralytics",
        re.compile(r"(?:^|/)yolo (?:\S+ )*train\b"),
        args=("resume=True", "model={checkpoint}"),
        advice=_RATE_IN_STATE,
    ),
)


def recognised(command: Sequence[str]) -> Recipe | None:
    """The recipe for a command, if it looks like one of them."""
    text = " ".join(command)
    return next((recipe for recipe in RECIPES if recipe.pattern.search(text)), None)
