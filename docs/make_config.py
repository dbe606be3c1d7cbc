"""Writes docs/config.md from the config models: `python docs/make_config.py`.

Types, defaults and meanings are those of the code, so the page cannot drift; a test holds the
file against what this prints.
"""

from __future__ import annotations

import contextlib
import inspect
import re
import types
import typing
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from overnight.config import Config
from overnight.core.detect.collapse import SPARSE_COLLAPSE
from overnight.core.detect.drift import SPARSE_DRIFT
from overnight.core.detect.panel import SPARSE_STRIDE
from overnight.core.detect.spike import SPARSE
from overnight.core.situation import FaultPolicy

PAGE = Path(__file__).with_name("config.md")

HEAD = """\
# Configuration

<!-- Written by docs/make_config.py from the config models. Change the models, then run it. -->

Everything has a default: without a file and without flags `overnight run -- python train.py`
works. A file is read from `overnight.toml` in the directory where `overnight run` is started, or
from `--config FILE`. Flags win over the file; `--notify` adds to it. All mistakes of a file are
told at once, each with its key and a hint, and nothing is started (exit 2). An unknown key is a
mistake. `deploy/overnight.example.toml` is a file to start from.

Units are in the names: `_s` seconds, `_c` degrees Celsius, `_steps` optimizer steps, `_records`
lines of the log (or of the metrics file) that report a step.

The environment is no layer of the configuration. Three variables are read:

| variable | meaning |
|---|---|
| `OVERNIGHT_STATE_DIR` | where runs keep their state, one directory each; default `$XDG_STATE_HOME/overnight`, that is `~/.local/state/overnight` |
| `OVERNIGHT_NOTIFY` | more receivers, separated by spaces |
| `TORCH_PYTHON` | `overnight demo` only: the Python interpreter that has PyTorch |
"""  # noqa: E501 - a table row is one line


def sparse_note(preset: dict[str, int]) -> str:
    """What a detector does otherwise in a sparse log."""
    return (
        f"Where the log has a line every {SPARSE_STRIDE} steps or rarer, the defaults are smaller: "
        + ", ".join(f"`{key}` {value}" for key, value in preset.items())
        + ". A value that you set is kept."
    )


NOTES = {
    "detect.spike": sparse_note(SPARSE),
    "detect.drift": sparse_note(SPARSE_DRIFT)
    + " `adversarial` of `[detect.spike]` switches this off, too.",
    "detect.collapse": sparse_note(SPARSE_COLLAPSE),
    "metrics": (
        "Needed only where the output does not say enough, or nothing; "
        "[formats.md](formats.md) says what is understood without it. `overnight replay --config "
        "F LOG` shows what these keys make of a file that is already there."
    ),
    "resume": (
        "Say one of: `args`, `env`, `config` with `config_values`, `command`, `recipe`, or "
        '`mode = "latest"` (perhaps with `args` for the rate). Placeholders are in the '
        "[protocol](protocol.md#flags). A command that a recipe recognises needs nothing. The copy "
        "of `config` lies beside the attempt's log and takes the place of the original in the "
        "command; files that it includes by relative paths are not found from there. After a "
        "`cuda-oom` the allocator gets `expandable_segments:True` first, beside what "
        "`PYTORCH_CUDA_ALLOC_CONF` says already; `{batch}` comes after a second one."
    ),
    "policy.FAULT": (
        "FAULT is a name of the [glossary](glossary.md#faults), for example `[policy.loss-spike]`. "
        "What happens without an override is in the [runbook](runbook.md)."
    ),
    "notify": (
        "A receiver is a URL of [Apprise](https://github.com/caronc/apprise/wiki), `@FILE` (one "
        "URL a line, mode 0600) or `env:NAME`. URLs are passwords: better in a file of their own "
        "than in this one. Overnight never prints or logs one, and gives none to the worker."
    ),
}


OR_ONE_STRING = {
    *("run.command", "checkpoints.glob"),
    *("resume.args", "resume.command", "resume.batch_args"),
}
"""Lists that may be written as one string; commands and arguments are split as a shell would."""


def sections(model: type[BaseModel], path: str = "") -> Iterator[tuple[str, type[BaseModel]]]:
    """(section name, model) for everything that holds keys, in the order of the code."""
    for name, about in model.model_fields.items():
        kind = about.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            inner = kind.model_fields.values()
            if not all(_is_model(field.annotation) for field in inner):
                yield f"{path}{name}", kind
            if any(_is_model(field.annotation) for field in inner):
                yield from sections(kind, f"{path}{name}.")
        elif FaultPolicy in typing.get_args(kind):
            yield f"{path}{name}.FAULT", FaultPolicy


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def type_text(kind: Any) -> str:
    """A type as a person writes it in TOML."""
    names = {str: "string", bool: "true or false", int: "whole number", float: "number"}
    names[Path] = "path"
    if kind in names:
        return names[kind]
    arguments = typing.get_args(kind)
    origin = typing.get_origin(kind)
    if origin in (types.UnionType, typing.Union):
        return " or ".join(type_text(part) for part in arguments if part is not type(None))
    if origin is typing.Literal:
        return " or ".join(f'"{value}"' for value in arguments)
    if origin is tuple:
        return f"list of {type_text(arguments[0])}s"
    if origin is dict:
        return f"table of {type_text(arguments[1])}s"
    raise TypeError(f"docs/make_config.py does not know how to spell {kind}")


def choices_text(model: type[BaseModel], name: str, kind: type[Enum]) -> str:
    """The words that a key takes; a validator may refuse some of the enum's."""
    taken = []
    for member in kind:
        with contextlib.suppress(ValidationError):
            model.model_validate({name: member.value})
            taken.append(f"`{member.value}`")
    return "one of " + ", ".join(taken)


def limits_text(about: FieldInfo) -> str:
    """The bounds of a number."""
    signs = {"gt": "above", "ge": "at least", "lt": "below", "le": "at most"}
    found = [
        f"{words} {getattr(bound, sign):g}"
        for bound in about.metadata
        for sign, words in signs.items()
        if getattr(bound, sign, None) is not None
    ]
    return ", ".join(found)


def default_text(about: FieldInfo) -> str:
    """A default as TOML."""
    value = about.get_default(call_default_factory=True)
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, int | float):
        return f"`{value:.10g}`"
    if isinstance(value, tuple | list | dict):
        assert not value, "a default that is not empty needs a spelling here"
        return "`{}`" if isinstance(value, dict) else "`[]`"
    return f"`{value}`"


def row(section: str, model: type[BaseModel], name: str, about: FieldInfo) -> str:
    """One key as a row of the table."""
    parts = typing.get_args(about.annotation) or (about.annotation,)
    enums = [part for part in parts if isinstance(part, type) and issubclass(part, Enum)]
    word = choices_text(model, name, enums[0]) if enums else type_text(about.annotation)
    kind = ", ".join(filter(None, [word, limits_text(about)]))
    if f"{section}.{name}" in OR_ONE_STRING:
        kind += ", or one string"
    meaning = " ".join((about.description or "").split()).rstrip(".")
    assert meaning, f"{name} has no description"
    meaning = (meaning[0].upper() + meaning[1:]).replace("|", "\\|")
    return f"| `{name}` | {kind} | {default_text(about)} | {meaning}. |"


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for name, model in sections(Config):
        about = re.sub(r"^`\[.*?\]`:? ?", "", inspect.cleandoc(model.__doc__ or ""))
        intro = re.sub(r" \(science\.md[^)]*\)", "", " ".join(about.split()))
        keys = model.model_fields.items()
        rows = [row(name, model, key, f) for key, f in keys if not _is_model(f.annotation)]
        lines = [f"## `[{name}]`", "", intro[0].upper() + intro[1:], ""]
        lines += ["| key | type | default | meaning |", "|---|---|---|---|", *rows, ""]
        if name in NOTES:
            lines += [NOTES[name], ""]
        parts.append("\n".join(lines))
    return "\n".join(parts).rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
