"""How a worker can be told to continue: by its command, a patched config file, or by itself."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePath
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from overnight.core.arguments import check_placeholders, given_number, without_rate
from overnight.core.recipes import RECIPES, Recipe, recognised


class ResumeConfig(BaseModel):
    """`[resume]`: how a new attempt of the user's script is made to continue."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    recipe: str | None = Field(
        None, description="a known way: " + ", ".join(recipe.name for recipe in RECIPES)
    )
    mode: Literal["checkpoint", "latest"] = Field(
        "checkpoint",
        description="latest: the script resumes from its newest checkpoint by itself; whatever is"
        " newer than the right one is moved out of its sight",
    )
    args: tuple[str, ...] = Field(
        (), description='e.g. ["--resume", "{checkpoint}", "--lr", "{lr}"]'
    )
    env: dict[str, str] = Field(
        default_factory=dict, description="environment variables with the same placeholders"
    )
    command: tuple[str, ...] = Field(
        (), description="a whole command for resuming, instead of the first one with `args`"
    )
    config: str | None = Field(
        None, description="a JSON, YAML or TOML file of the script, of which a patched copy is used"
    )
    config_values: dict[str, str] = Field(
        default_factory=dict,
        description='what is patched into the copy, e.g. {"optim.lr" = "{lr}"}; keys with dots',
    )
    batch_args: tuple[str, ...] = Field(
        (),
        description='e.g. ["--batch-size", "{batch}"]: half of what the command gives,'
        " after a second cuda-oom ({batch} may stand in config_values, too)",
    )
    base_lr: float | None = Field(
        None, gt=0, description="learning rate that {lr} is a fraction of, unless in the command"
    )
    min_lr_scale: float = Field(0.0625, gt=0, le=1, description="halt below this scale")
    from_scratch: bool = Field(
        default=False, description="a numeric fault without any checkpoint may start over"
    )
    band_steps: int = Field(
        200, ge=0, description="steps in which a resumed loss must be at its old level; 0: any"
    )

    @field_validator("args", "command", "batch_args", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return tuple(shlex.split(value)) if isinstance(value, str) else value

    @field_validator("args", "command", "batch_args")
    @classmethod
    def _known_in_words(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for text in value:
            check_placeholders(text)
        return value

    @field_validator("env", "config_values")
    @classmethod
    def _known_in_values(cls, value: dict[str, str]) -> dict[str, str]:
        for text in value.values():
            check_placeholders(text)
        return value

    @field_validator("recipe")
    @classmethod
    def _is_known(cls, value: str | None) -> str | None:
        known = [recipe.name for recipe in RECIPES]
        if value is not None and value not in known:
            raise ValueError(f"no recipe called {value}; known are {', '.join(known)}")
        return value

    @model_validator(mode="after")
    def _batch_has_its_place(self) -> ResumeConfig:
        if self.batch_args and not any("{batch}" in text for text in self.batch_args):
            raise ValueError('batch_args say no {batch}, as in ["--batch-size", "{batch}"]')
        if any("{batch}" in text for text in (*self.args, *self.command, *self.env.values())):
            raise ValueError("{batch} belongs into batch_args or config_values: it changes seldom")
        return self

    @model_validator(mode="after")
    def _patch_is_whole(self) -> ResumeConfig:
        if (self.config is None) != (not self.config_values):
            raise ValueError("config and config_values belong together: the file, and what to set")
        return self

    @property
    def templates(self) -> tuple[str, ...]:
        """All texts in which placeholders are filled."""
        values = (*self.env.values(), *self.config_values.values())
        return (*self.args, *self.command, *values)

    @property
    def halves_batch(self) -> bool:
        """Whether it says where a smaller batch size goes."""
        return any("{batch}" in text for text in (*self.batch_args, *self.config_values.values()))

    @property
    def is_silent(self) -> bool:
        """Whether nothing in it says how to resume."""
        return not (self.templates or self.recipe) and self.mode == "checkpoint"


def with_recipe(config: ResumeConfig, command: Sequence[str]) -> tuple[ResumeConfig, Recipe | None]:
    """The config completed by the recipe that it names, or that the command is recognised by.

    What the user has set stays. A recipe that needs a base learning rate which nobody gives goes
    without the rate.
    """
    found = next((recipe for recipe in RECIPES if recipe.name == config.recipe), None)
    if found is None and config.is_silent:
        found = recognised(command)
    if found is None:
        return config, None
    args = config.args or found.args
    unknown = config.base_lr is None and given_number(command, args, "{lr}") is None
    if not config.args and unknown:
        args = tuple(without_rate(args))
    mode = "latest" if found.latest else config.mode
    return config.model_copy(update={"args": args, "mode": mode}), found


def base_lr(
    command: Sequence[str], config: ResumeConfig, *, in_file: float | None = None
) -> float | None:
    """The learning rate that `{lr}` is a fraction of: configured, else in the command or file.

    `in_file` is what the file to be patched says where `{lr}` will stand. None when `{lr}` is not
    used. Raises ValueError when it is used and nothing gives a rate.
    """
    if not any("{lr}" in text for text in config.templates):
        return None
    for rate in (config.base_lr, given_number(command, config.args, "{lr}"), in_file):
        if rate is not None:
            return rate
    raise ValueError(
        "{lr} needs a base: the command does not give the flag that it replaces,"
        " so set [resume] base_lr (or write {lr_scale} instead)"
    )


def base_batch(
    command: Sequence[str], config: ResumeConfig, *, in_file: float | None = None
) -> int | None:
    """The batch size that `{batch}` is a fraction of, in the command or in the file to be patched.

    None when `{batch}` is not used. Raises ValueError when it is used and nothing gives a size.
    """
    if not config.halves_batch:
        return None
    for size in (given_number(command, config.batch_args, "{batch}"), in_file):
        if size is not None and size >= 1:
            return int(size)
    raise ValueError(
        "{batch} needs a base: neither the command nor the file gives the batch size that it"
        " replaces, so write it there"
    )


class Route(StrEnum):
    """How the worker can be made to continue from a checkpoint."""

    NONE = "none"
    ARGUMENTS = "arguments"
    COOPERATIVE = "cooperative"
    LATEST = "latest"


_HOW = {
    Route.ARGUMENTS: "by arguments",
    Route.COOPERATIVE: "the script cooperates",
    Route.LATEST: "the script takes its newest checkpoint",
}


@dataclass(frozen=True, slots=True)
class Means:
    """What can be done to this worker; `lowers_lr` only where a reduced rate can reach it."""

    route: Route
    lowers_lr: bool
    live: bool = False
    skips: bool = False
    in_flight: bool = False
    loads: str = ""
    halves_batch: bool = False

    def can_load(self, path: str) -> bool:
        """Whether it is one of the files that the worker says it resumes from (a glob)."""
        return not PurePath(self.loads).parts or PurePath(path).match(self.loads)

    @property
    def sentence(self) -> str:
        """One line for the person who starts a run."""
        if self.route is Route.NONE and self.in_flight:
            return "goes back in place while the worker lives; no route for a restart"
        if self.route is Route.NONE:
            return (
                "no resume route known: on a fault the checkpoint is secured and the run halts"
                " (add --resume-args, or read OVERNIGHT_RESUME in the script)"
            )
        how = _HOW[self.route]
        lr = "learning rate can be lowered" if self.lowers_lr else "learning rate cannot be lowered"
        return f"can resume ({how}), {lr}"


def expected_hello(command: Sequence[str]) -> Mapping[str, object] | None:
    """What a known program will announce; None for the user's own script."""
    recipe = recognised(command)
    return recipe.hello if recipe is not None else None


def means_of(
    config: ResumeConfig,
    hello: Mapping[str, object] | None,
    *,
    probe: bool = False,
    in_flight: bool = False,
) -> Means:
    """What configuration and the worker's own hello together allow.

    `probe`: one inside the worker scales its learning rate; `in_flight`: it holds snapshots.
    """
    cooperates = bool(hello and hello.get("resume"))
    live = probe or bool(hello and hello.get("lr_scale"))
    by_template = any("{checkpoint}" in text for text in config.templates)
    lr_template = any("{lr}" in text or "{lr_scale}" in text for text in config.templates)
    without = Route.COOPERATIVE if cooperates else Route.NONE
    given = Route.ARGUMENTS if by_template else without
    route = Route.LATEST if config.mode == "latest" else given
    leaves_out = bool(hello and hello.get("skip", True))
    skips = (cooperates and leaves_out) or any("{skip_first}" in text for text in config.templates)
    lowers = lr_template or live
    loads = str(hello.get("loads") or "") if hello and route is Route.COOPERATIVE else ""
    return Means(
        route,
        lowers_lr=lowers,
        live=live,
        skips=skips,
        in_flight=in_flight,
        loads=loads,
        halves_batch=config.halves_batch,
    )
