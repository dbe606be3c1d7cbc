"""How a worker is told to continue, and the proof that it did what it was told.

Argument templates are put into the user's own command; after the start the logged learning rate
is held against the one that was logged at the same step before (closed loop).
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import PurePath

from pydantic import BaseModel, ConfigDict, Field, field_validator

from overnight.core.events import LrProof, StepMetric

PLACEHOLDERS = ("checkpoint", "step", "lr", "lr_scale", "attempt", "skip_first", "skip_last")
_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")

LR_TOLERANCE = 1.1
"""A logged rate up to 10 % above the expected one still counts as reduced (rounding in logs)."""

NEARBY_TOLERANCE = 1.5
"""The same for steps never logged before: the schedule may have moved since the last known one."""

PROOF_RECORDS = 3
"""Records in a row that decide whether the reduction took effect."""


class ResumeConfig(BaseModel):
    """`[resume]`: how a new attempt of the user's script is made to continue."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    args: tuple[str, ...] = Field(
        (), description='e.g. ["--resume", "{checkpoint}", "--lr", "{lr}"]'
    )
    env: dict[str, str] = Field(
        default_factory=dict, description="environment variables with the same placeholders"
    )
    base_lr: float | None = Field(
        None, gt=0, description="learning rate that {lr} is a fraction of, unless in the command"
    )
    min_lr_scale: float = Field(0.0625, gt=0, le=1, description="halt below this scale")
    from_scratch: bool = Field(
        default=False, description="a numeric fault without any checkpoint may start over"
    )

    @field_validator("args", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return tuple(shlex.split(value)) if isinstance(value, str) else value

    @field_validator("args")
    @classmethod
    def _known_in_args(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for text in value:
            _check_placeholders(text)
        return value

    @field_validator("env")
    @classmethod
    def _known_in_env(cls, value: dict[str, str]) -> dict[str, str]:
        for text in value.values():
            _check_placeholders(text)
        return value

    @property
    def templates(self) -> tuple[str, ...]:
        """All texts in which placeholders are filled."""
        return (*self.args, *self.env.values())


def _check_placeholders(text: str) -> None:
    for name in _PLACEHOLDER.findall(text):
        if name not in PLACEHOLDERS:
            known = " ".join(f"{{{known}}}" for known in PLACEHOLDERS)
            raise ValueError(f"unknown placeholder {{{name}}}; known are {known}")


class Route(StrEnum):
    """How the worker can be made to continue from a checkpoint."""

    NONE = "none"
    ARGUMENTS = "arguments"
    COOPERATIVE = "cooperative"


@dataclass(frozen=True, slots=True)
class Means:
    """What can be done to this worker; `lowers_lr` only where a reduced rate can reach it."""

    route: Route
    lowers_lr: bool
    live: bool = False
    skips: bool = False
    in_flight: bool = False
    loads: str = ""

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
        how = "by arguments" if self.route is Route.ARGUMENTS else "the script cooperates"
        lr = "learning rate can be lowered" if self.lowers_lr else "learning rate cannot be lowered"
        return f"can resume ({how}), {lr}"


COOPERATING = {"overnight_trainer": {"resume": True, "lr_scale": True}}
"""Programs known to cooperate before they say hello, by a word of their command."""


def expected_hello(command: Sequence[str]) -> Mapping[str, object] | None:
    """What a known program will announce; None for the user's own script."""
    for word in command:
        known = COOPERATING.get(word.rstrip("/").rsplit("/", 1)[-1])
        if known is not None:
            return known
    return None


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
    route = Route.ARGUMENTS if by_template else without
    leaves_out = bool(hello and hello.get("skip", True))
    skips = (cooperates and leaves_out) or any("{skip_first}" in text for text in config.templates)
    lowers = lr_template or live
    loads = str(hello.get("loads") or "") if hello and route is Route.COOPERATIVE else ""
    return Means(route, lowers_lr=lowers, live=live, skips=skips, in_flight=in_flight, loads=loads)


@dataclass(frozen=True, slots=True)
class Values:
    """What the placeholders stand for in one attempt."""

    checkpoint: str
    attempt: int
    lr_scale: float
    step: int | None = None
    lr: float | None = None
    skip: tuple[int, int] | None = None

    def texts(self) -> dict[str, str]:
        """Placeholder name -> text; what is not known is empty."""
        return {
            "checkpoint": self.checkpoint,
            "step": "" if self.step is None else str(self.step),
            "lr": "" if self.lr is None else f"{self.lr:.10g}",
            "lr_scale": f"{self.lr_scale:.10g}",
            "attempt": str(self.attempt),
            "skip_first": str(self.skip[0]) if self.skip else "",
            "skip_last": str(self.skip[1]) if self.skip else "",
        }


def fill(template: str, values: Values) -> str:
    """The template with its placeholders replaced, and no other braces touched."""
    texts = values.texts()
    return _PLACEHOLDER.sub(lambda match: texts[match[1]], template)


def base_lr(command: Sequence[str], config: ResumeConfig) -> float | None:
    """The learning rate that `{lr}` is a fraction of: configured, else the one in the command.

    None when `{lr}` is not used. Raises ValueError when it is used and nothing gives a rate.
    """
    if not any("{lr}" in text for text in config.templates):
        return None
    if config.base_lr is not None:
        return config.base_lr
    for group in _groups(config.args):
        found = _last_use(command, group)
        if found is None or "{lr}" not in group.value:
            continue
        try:
            return float(found.value)
        except ValueError:
            break
    raise ValueError(
        "{lr} needs a base: the command does not give the flag that it replaces,"
        " so set [resume] base_lr (or write {lr_scale} instead)"
    )


@dataclass(frozen=True, slots=True)
class _Group:
    """One argument of a template or a command: `--lr 3e-4`, `--lr=3e-4`, `lr=3e-4` or a word."""

    name: str
    value: str
    joined: bool
    index: int = -1
    length: int = 1


def _groups(args: Sequence[str]) -> list[_Group]:
    groups, index = [], 0
    while index < len(args):
        text = args[index]
        name, equals, value = text.partition("=")
        if equals and "{" not in name:
            groups.append(_Group(name, value, joined=True, index=index))
        elif text.startswith("-") and index + 1 < len(args) and not args[index + 1].startswith("-"):
            groups.append(_Group(text, args[index + 1], joined=False, index=index, length=2))
            index += 1
        else:
            groups.append(_Group(text, "", joined=False, index=index))
        index += 1
    return groups


def _last_use(command: Sequence[str], wanted: _Group) -> _Group | None:
    """The last place in the command that gives the flag of `wanted`, in either spelling."""
    for index in range(len(command) - 1, -1, -1):
        text = command[index]
        if text.startswith(f"{wanted.name}="):
            value = text[len(wanted.name) + 1 :]
            return _Group(wanted.name, value, joined=True, index=index)
        takes_value = wanted.length == 2 or (wanted.joined and wanted.name.startswith("-"))
        if text != wanted.name or (wanted.joined and not takes_value):
            continue
        if takes_value and index + 1 < len(command) and _is_value(command[index + 1]):
            return _Group(wanted.name, command[index + 1], joined=False, index=index, length=2)
        return _Group(wanted.name, "", joined=False, index=index)
    return None


def _is_value(text: str) -> bool:
    """Whether a word after a flag is its value: `--resume --lr 1` gives --resume none."""
    return not text.startswith("-") or re.fullmatch(r"-\.?\d.*|-", text) is not None


def resumed_command(command: Sequence[str], args: Sequence[str], values: Values) -> list[str]:
    """The command with each templated argument replaced in place, or appended.

    The last occurrence of a flag is replaced, as that is the one that parsers obey.
    """
    result = list(command)
    for group in _groups(args):
        found = _last_use(result, group)
        value = fill(group.value, values)
        if found is not None and group.length == 1 and not group.joined:
            continue  # a flag without a value is there already
        if found is not None and found.joined:
            result[found.index] = f"{found.name}={value}"
        elif found is not None:
            result[found.index : found.index + found.length] = [found.name, value]
        else:
            joined = [f"{group.name}={value}"]
            pair = [group.name, value] if group.length == 2 else [fill(group.name, values)]
            result += joined if group.joined else pair
    return result


def rate_arguments(args: Sequence[str]) -> list[str]:
    """The templates that only set the learning rate: what a start from scratch may use."""
    kept: list[str] = []
    for group in _groups(args):
        words = list(args[group.index : group.index + group.length])
        text = " ".join(words)
        if ("{lr}" in text or "{lr_scale}" in text) and "{checkpoint}" not in text:
            kept += words
    return kept


@dataclass
class LrWatch:
    """Closed loop: is the logged learning rate what the new scale asks for?

    `logged` maps steps of earlier attempts to (lr logged there, scale in force there); `newest`
    is the last of them, for steps that no earlier attempt reached.
    """

    scale: float
    logged: Mapping[int, tuple[float, float]]
    newest: tuple[float, float] | None = None
    proof: LrProof | None = None
    evidence: dict[str, float] = field(default_factory=dict)
    _above: int = 0
    _below: int = 0
    _blind: int = 0

    def observe(self, record: StepMetric) -> LrProof | None:
        """The proof once it is decided (again on later calls), else None."""
        if self.proof is not None:
            return self.proof
        same_step = self.logged.get(record.step)
        earlier = same_step or self.newest
        tolerance = LR_TOLERANCE if same_step else NEARBY_TOLERANCE
        lr = record.lr if record.lr is not None and math.isfinite(record.lr) else None
        if lr is None or earlier is None or not self._can_tell(earlier, tolerance):
            self._blind += 1
            never_shown = not self.logged and self.newest is None
            patience = 1 if never_shown else 10
            if self._blind >= patience * PROOF_RECORDS:
                self.proof = LrProof.UNPROVEN
            return self.proof
        lr_then, scale_then = earlier
        expected = lr_then * self.scale / scale_then
        self.evidence = {"step": record.step, "lr": lr, "expected_lr": expected}
        if lr > tolerance * expected:
            self._above, self._below = self._above + 1, 0
        else:
            self._above, self._below = 0, self._below + 1
        if self._above >= PROOF_RECORDS:
            self.proof = LrProof.NOT_REDUCED
        elif self._below >= PROOF_RECORDS:
            self.proof = LrProof.PROVED
        return self.proof

    def _can_tell(self, earlier: tuple[float, float], tolerance: float) -> bool:
        """Whether a rate that was not reduced would stand out: not from 0, nor by a small cut."""
        lr_then, scale_then = earlier
        return lr_then > 0 and not scale_then > self.scale >= scale_then / tolerance
