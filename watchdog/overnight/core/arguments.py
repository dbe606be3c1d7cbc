"""The user's command with what a resume needs put into it: flags replaced in place, or appended."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

PLACEHOLDERS = (
    *("checkpoint", "step", "lr", "lr_scale", "attempt"),
    *("skip_first", "skip_last", "batch", "config"),
)
_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")


def check_placeholders(text: str) -> None:
    """Raises ValueError for a placeholder that nobody fills."""
    for name in _PLACEHOLDER.findall(text):
        if name not in PLACEHOLDERS:
            known = " ".join(f"{{{known}}}" for known in PLACEHOLDERS)
            raise ValueError(f"unknown placeholder {{{name}}}; known are {known}")


@dataclass(frozen=True, slots=True)
class Values:
    """What the placeholders stand for in one attempt."""

    checkpoint: str
    attempt: int
    lr_scale: float
    step: int | None = None
    lr: float | None = None
    skip: tuple[int, int] | None = None
    batch: int | None = None
    config: str = ""

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
            "batch": "" if self.batch is None else str(self.batch),
            "config": self.config,
        }


def fill(template: str, values: Values) -> str:
    """The template with its placeholders replaced, and no other braces touched."""
    texts = values.texts()
    return _PLACEHOLDER.sub(lambda match: texts[match[1]], template)


def given_number(command: Sequence[str], args: Sequence[str], placeholder: str) -> float | None:
    """The number that the command gives for the flag whose template is `placeholder`, if any."""
    for group in _groups(args):
        found = _last_use(command, group)
        if found is None or placeholder not in group.value:
            continue
        try:
            return float(found.value)
        except ValueError:
            return None
    return None


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
    return _kept(args, rates=True)


def without_rate(args: Sequence[str]) -> list[str]:
    """The templates that do not need to know the base learning rate."""
    return _kept(args, rates=False)


def _kept(args: Sequence[str], *, rates: bool) -> list[str]:
    kept: list[str] = []
    for group in _groups(args):
        words = list(args[group.index : group.index + group.length])
        text = " ".join(words)
        of_rate = ("{lr}" in text or "{lr_scale}" in text) and "{checkpoint}" not in text
        kept += words if of_rate is rates else []
    return kept


def with_file(command: Sequence[str], original: str, copy: str) -> list[str]:
    """The command with each mention of a file (`F`, `--config=F`) replaced by that of its copy."""
    ends = f"={original}"
    return [
        copy
        if word == original
        else word.removesuffix(original) + copy
        if word.endswith(ends)
        else word
        for word in command
    ]
