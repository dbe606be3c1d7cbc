"""Checkpoint patterns: which paths a glob means, where it is rooted, which names are temporary."""

from __future__ import annotations

import fnmatch
import functools
import glob
import re
from collections.abc import Sequence
from pathlib import Path

_ESCAPED = re.compile(r"\[([*?[])\]")
_TEMPORARY = re.compile(
    r"^\.|^tmp|~$|\.(?:tmp|temp|part|partial|incomplete|lock)$|[._-]tmp(?:[._-]|\d|$)"
)


def anchored(pattern: str, workdir: Path) -> str:
    """The pattern from the root on; a `[` in the directory's own name is no wildcard."""
    return str(Path(glob.escape(str(workdir))) / pattern)


def is_temporary(name: str) -> bool:
    """Whether a writer that cares would call its unfinished file so."""
    return _TEMPORARY.search(name) is not None


def _literal(part: str) -> str | None:
    """The name that a part of a pattern stands for, None where it has wildcards."""
    return None if glob.has_magic(_ESCAPED.sub("", part)) else _ESCAPED.sub(r"\1", part)


def fixed_prefix(pattern: str) -> Path:
    """The last directory of a pattern before its first wildcard."""
    fixed = []
    for part in Path(pattern).parts[:-1]:
        name = _literal(part)
        if name is None:
            break
        fixed.append(name)
    return Path(*fixed)


def directories(pattern: str) -> list[str]:
    """Patterns of the directories below the fixed prefix in which a match can appear."""
    parts = Path(pattern).parts
    first = len(fixed_prefix(pattern).parts) + 1
    return [str(Path(*parts[:end])) + "/" for end in range(first, len(parts))]


@functools.cache
def glob_regex(pattern: str) -> re.Pattern[str]:
    """A glob with `*`, `?`, `[...]` and `**` as a regular expression over whole paths."""
    out, index = "", 0
    while index < len(pattern):
        if pattern.startswith("**/", index):
            out, index = out + "(?:[^/]+/)*", index + 3
        elif pattern[index:] == "**":
            out, index = out + ".*", index + 2
        elif pattern[index] == "[" and (end := pattern.find("]", index + 2)) > 0:
            # fnmatch knows every odd class, `[!a]`, `[]]` and `[z-a]`; only its frame is cut off
            out += "(?!/)" + fnmatch.translate(pattern[index : end + 1])[len("(?s:") : -len(r")\Z")]
            index = end + 1
        else:
            char = pattern[index]
            out += {"*": "[^/]*", "?": "[^/]"}.get(char, re.escape(char))
            index += 1
    return re.compile(out, re.DOTALL)


_OUTPUT_FLAG = re.compile(r"^--?[\w-]*(?:out|dir|save|ckpt|checkpoint)[\w-]*$", re.IGNORECASE)


def output_roots(command: Sequence[str], workdir: Path) -> list[Path]:
    """Where a command may save: its working directory, and the folders that its arguments name.

    A folder need not exist yet. `/` and folders below the working directory add nothing.
    """
    roots = [workdir]
    for before, word in zip(("", *command), command, strict=False):
        name, equals, value = word.partition("=")
        text = value if equals else word
        named = _OUTPUT_FLAG.match(name if equals else before) is not None
        if not text or text.startswith("-") or not (named or "/" in text):
            continue
        path = (workdir / text).absolute()
        is_folder = path.is_dir() or (named and not path.exists())
        if is_folder and path != Path("/") and not any(path.is_relative_to(r) for r in roots):
            roots.append(path)
    return roots
