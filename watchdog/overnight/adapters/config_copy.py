"""A patched copy of the script's own config file: JSON, YAML or TOML, comments and all.

Only the values that are asked for change. In YAML and TOML they are replaced in the text itself,
and the result is read again: what else would have changed is an error, never a guess.
"""

from __future__ import annotations

import copy
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from overnight.adapters.files import private_directory, write_atomically
from overnight.core.orders import Patch
from overnight.errors import ConfigError

_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_YAML = (".yaml", ".yml")


def write_patched(patch: Patch) -> None:
    """Write the copy. Raises ConfigError where a key cannot be set, OSError."""
    text = patch.original.read_text()
    for key, value in patch.values.items():
        text = _patched(text, patch.original, key.split("."), value)
    private_directory(patch.copy.parent)
    write_atomically(patch.copy, text.encode())


def number_at(path: Path, key: str) -> float | None:
    """The number that the file gives for a key with dots, None where it gives none.

    Raises ConfigError for a file that is not understood, OSError.
    """
    value = _read(path.read_text(), path)
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        return float(value)  # YAML 1.1 takes 3e-4 for a word
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _read(text: str, path: Path) -> Any:
    try:
        if path.suffix == ".json":
            return json.loads(text)
        if path.suffix == ".toml":
            return tomllib.loads(text)
        if path.suffix in _YAML:
            return _yaml_value(_yaml_tree(text))
    except ValueError as error:
        raise ConfigError(str(path), [f"cannot be read: {error}"]) from error
    raise ConfigError(str(path), ["only .json, .yaml, .yml and .toml can be patched"])


def _patched(text: str, path: Path, key: Sequence[str], value: str) -> str:
    """The text with one key set. Raises ConfigError."""
    wanted = copy.deepcopy(_read(text, path))
    inner = wanted
    for part in key[:-1]:
        inner = inner.setdefault(part, {}) if isinstance(inner, dict) else None
    if not isinstance(inner, dict):
        raise ConfigError(str(path), [f"{'.'.join(key)}: there is no such table"])
    inner[key[-1]] = _typed(value)
    if path.suffix == ".json":
        return json.dumps(wanted, indent=2) + "\n"
    edit = _toml_set if path.suffix == ".toml" else _yaml_set
    result = edit(text, key, value)
    try:
        done = _comparable(_read(result, path)) == _comparable(wanted)
    except ConfigError:
        done = False
    if not done:
        raise ConfigError(str(path), [f"{'.'.join(key)}: cannot be set in this file"])
    return result


def _typed(value: str) -> Any:
    """A filled template as a value: a number if it reads like one."""
    if _NUMBER.fullmatch(value):
        return float(value) if re.search(r"[.eE]", value) else int(value)
    return value


def _comparable(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _comparable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_comparable(item) for item in value]
    if isinstance(value, bool) or value is None:
        return value
    text = str(value)
    return float(text) if _NUMBER.fullmatch(text) else text


# --- TOML ---------------------------------------------------------------------------------------


def _toml_set(text: str, key: Sequence[str], value: str) -> str:
    """The line of the key replaced, else a new one at the end of its table."""
    table, lines = list(key[:-1]), text.splitlines()
    here: list[str] = []
    last_of_table = -1 if table else 0
    for number, line in enumerate(lines):
        heading = re.fullmatch(r"\s*\[([^\[\]]+)\]\s*(?:#.*)?", line)
        if heading:
            here = [part.strip().strip("\"'") for part in heading[1].split(".")]
        if here == table and line.strip():
            last_of_table = number + 1
        given = re.match(r"(\s*([\w.\"'-]+)\s*=\s*)", line)
        if heading or given is None:
            continue
        if [*here, *given[2].replace('"', "").replace("'", "").split(".")] == list(key):
            comment = re.search(r"\s+#.*$", line)
            lines[number] = given[1] + _toml_text(value) + (comment[0] if comment else "")
            return "\n".join(lines) + "\n"
    new = f"{key[-1]} = {_toml_text(value)}"
    if last_of_table < 0:
        return "\n".join([*lines, "", f"[{'.'.join(table)}]", new]) + "\n"
    return "\n".join([*lines[:last_of_table], new, *lines[last_of_table:]]) + "\n"


def _toml_text(value: str) -> str:
    typed = _typed(value)
    return json.dumps(typed) if isinstance(typed, str) else repr(typed)


# --- YAML ---------------------------------------------------------------------------------------


def _yaml_tree(text: str) -> Any:
    """The tree of nodes with their places; nothing is constructed, unknown tags are no problem."""
    import yaml

    try:
        return yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error


def _yaml_value(node: Any) -> Any:
    """A node as plain values; scalars as the words that stand there."""
    if node is None:
        return {}
    if node.id == "mapping":
        return {key.value: _yaml_value(value) for key, value in node.value}
    if node.id == "sequence":
        return [_yaml_value(item) for item in node.value]
    return node.value


def _yaml_set(text: str, key: Sequence[str], value: str) -> str:
    """The scalar at the key replaced where it stands, else new lines behind its mapping."""
    node, depth = _yaml_tree(text), 0
    while node is not None and node.id == "mapping" and depth < len(key):
        found: Mapping[str, Any] = {name.value: item for name, item in node.value}
        if key[depth] not in found:
            break
        node, depth = found[key[depth]], depth + 1
    written = _yaml_text(value)
    if depth == len(key):
        start, end = node.start_mark.index, node.end_mark.index
        space = "" if text[start - 1 : start] in (" ", "\n") else " "
        return text[:start] + space + written + text[end:]
    indent, end = (node.value[0][0].start_mark.column, node.end_mark.index) if node else (0, 0)
    rest = key[depth:]
    new = "".join(
        " " * (indent + 2 * level) + f"{name}:" + ("\n" if level < len(rest) - 1 else "")
        for level, name in enumerate(rest)
    )
    head, tail = text[:end].rstrip("\n ") + "\n", text[end:].lstrip("\n")
    return f"{head.lstrip()}{new} {written}\n{tail}"


def _yaml_text(value: str) -> str:
    typed = _typed(value)
    if isinstance(typed, float):
        plain = repr(typed)
        return plain if "." in plain else plain.replace("e", ".0e")  # 1e-05 is a word in YAML 1.1
    return json.dumps(typed) if isinstance(typed, str) else str(typed)
