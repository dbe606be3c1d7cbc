"""Recipes: which command is which framework's, and what is made of it."""

from __future__ import annotations

import shlex

import pytest
from pydantic import ValidationError

from overnight.core.arguments import Values, resumed_command, with_file
from overnight.core.recipes import RECIPES, recognised
from overnight.core.resume import ResumeConfig, Route, base_lr, means_of, with_recipe

HF = "torchrun --nproc_per_node 2 run_clm.py --model_name_or_path gpt2 --do_train --output_dir out"
NANO = "python train.py config/train_gpt2.py --learning_rate=6e-4"
FIT = "python main.py fit --config config.yaml --trainer.max_epochs 3"
YOLO = "/opt/conda/bin/yolo detect train data=coco8.yaml model=yolo11n.pt epochs=100"


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (HF, "hf-trainer"),
        ("python sft.py --per_device_train_batch_size=4 --output_dir=out", "hf-trainer"),
        (FIT, "lightning-cli"),
        (NANO, "nanogpt"),
        ("python train.py --init_from=gpt2 --eval_interval=5", "nanogpt"),
        (YOLO, "ultralytics"),
        ("yolo train model=yolo11n.pt", "ultralytics"),
        ("python -m overnight_trainer --preset tiny", "trainer"),
        ("/usr/bin/python3 /opt/overnight/trainer/overnight_trainer --steps 5", "trainer"),
        ("python train.py --lr 3e-4", None),
        ("python train_network.py --output_dir out --learning_rate 1e-4", None),
        ("python main.py --config fit.yaml", None),
        ("yolo predict model=yolo11n.pt source=training", None),
        ("python my_overnight_trainer_test.py", None),
    ],
)
def test_a_command_is_recognised(command, name):
    found = recognised(shlex.split(command))
    assert (found.name if found else None) == name


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (HF, HF + " --resume_from_checkpoint out/checkpoint-300"),
        (FIT, FIT + " --ckpt_path out/checkpoint-300"),
        (
            NANO,
            "python train.py config/train_gpt2.py --learning_rate=0.0003 --init_from=resume",
        ),
        (
            YOLO,
            YOLO.replace("model=yolo11n.pt", "model=out/checkpoint-300") + " resume=True",
        ),
    ],
)
def test_what_the_second_attempt_is(command, expected):
    words = shlex.split(command)
    config, _ = with_recipe(ResumeConfig(), words)
    rate = base_lr(words, config)
    values = Values(
        "out/checkpoint-300", attempt=2, lr_scale=0.5, lr=None if rate is None else rate / 2
    )
    assert shlex.join(resumed_command(words, config.args, values)) == expected


def test_routes():
    def route(command: str) -> Route:
        config, _ = with_recipe(ResumeConfig(), shlex.split(command))
        return means_of(config, None).route

    assert route(HF) is Route.ARGUMENTS
    assert route(NANO) is Route.LATEST
    assert route("python train.py") is Route.NONE


def test_a_rate_that_nobody_gives_is_left_out():
    config, recipe = with_recipe(ResumeConfig(), ["python", "train.py", "config/train_x.py"])
    assert recipe.name == "nanogpt"
    assert config.args == ("--init_from=resume",)
    assert base_lr(["python", "train.py"], config) is None
    assert not means_of(config, None).lowers_lr
    config, _ = with_recipe(ResumeConfig(base_lr=6e-4), ["python", "train.py", "config/train_x.py"])
    assert "--learning_rate={lr}" in config.args
    assert means_of(config, None).lowers_lr


def test_what_the_user_says_wins():
    mine = ResumeConfig(args=("--resume", "{checkpoint}"))
    assert with_recipe(mine, shlex.split(HF)) == (mine, None)
    named = ResumeConfig(recipe="hf-trainer", args=("--resume", "{checkpoint}"))
    config, recipe = with_recipe(named, ["python", "own.py"])
    assert (config.args, recipe.name) == (("--resume", "{checkpoint}"), "hf-trainer")
    config, _ = with_recipe(ResumeConfig(recipe="nanogpt"), ["python", "own.py"])
    assert config.mode == "latest"


def test_an_unknown_recipe_is_named_with_the_known_ones():
    with pytest.raises(ValidationError, match="no recipe called yolo; known are trainer, hf-tr"):
        ResumeConfig(recipe="yolo")
    assert len({recipe.name for recipe in RECIPES}) == len(RECIPES)


@pytest.mark.parametrize("given", [{"config": "a.toml"}, {"config_values": {"lr": "{lr}"}}])
def test_a_patch_is_a_file_and_what_to_set(given):
    with pytest.raises(ValidationError, match="belong together"):
        ResumeConfig(**given)


def test_a_copy_takes_the_place_of_a_file_in_either_spelling():
    words = ["train", "a.yaml", "--config", "a.yaml", "--cfg=a.yaml", "ba.yaml", "x=a.yaml.bak"]
    assert with_file(words, "a.yaml", "/c/a.yaml") == [
        *("train", "/c/a.yaml", "--config", "/c/a.yaml", "--cfg=/c/a.yaml", "ba.yaml"),
        "x=a.yaml.bak",
    ]


def test_a_whole_command_is_a_route():
    config = ResumeConfig(command="bash resume.sh {checkpoint} {lr_scale}")
    means = means_of(config, None)
    assert (means.route, means.lowers_lr) == (Route.ARGUMENTS, True)
