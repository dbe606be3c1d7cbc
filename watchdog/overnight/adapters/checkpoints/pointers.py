"""Links and little files that name the newest checkpoint: `latest`, `last_checkpoint`, …

Megatron writes a number into `latest_checkpointed_iteration.txt`, DeepSpeed a folder's name into
`latest`, detectron2 a file's name and MMEngine a whole path into `last_checkpoint`.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence
from pathlib import Path

from overnight.adapters.checkpoints.naming import step_of
from overnight.adapters.files import write_atomically

_POINTER = re.compile(r"latest|last|newest|current", re.IGNORECASE)
_MAX_BYTES = 4096
"""A file that only names something is smaller than this."""


def repoint(folder: Path, *, moved: Sequence[Path], target: Path | None) -> list[Path]:
    """Make what names one of `moved` name `target`; with no target it is removed.

    Only links, and small text files that are called like one. Returns what was changed.
    Raises OSError.
    """
    changed = []
    for path in sorted(pointers_in(folder)):
        change = _relink if path.is_symlink() else _rewrite
        if change(path, moved, target):
            changed.append(path)
    return changed


def pointers_in(folder: Path) -> list[Path]:
    """Links, and small files that are called like one that names the newest."""
    found = []
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            small = entry.is_file(follow_symlinks=False) and entry.stat().st_size <= _MAX_BYTES
            if entry.is_symlink() or (small and _POINTER.search(entry.name)):
                found.append(folder / entry.name)
    return found


def _relink(link: Path, moved: Sequence[Path], target: Path | None) -> bool:
    named = Path(os.readlink(link))  # noqa: PTH115 - the text itself, resolved or not
    leads_to = Path(os.path.normpath(link.parent / named))
    if leads_to not in moved:
        return False
    if target is None:
        link.unlink()
        return True
    new = target if named.is_absolute() else Path(os.path.relpath(target, link.parent))
    temp = link.with_name(f".{link.name}.tmp")
    temp.unlink(missing_ok=True)
    temp.symlink_to(new)
    temp.rename(link)
    return True


def _rewrite(file: Path, moved: Sequence[Path], target: Path | None) -> bool:
    try:
        text = file.read_text()
    except UnicodeDecodeError:
        return False
    named = text.strip()
    path = next((path for path in moved if _means(named, path)), None)
    if path is None:
        return False
    if target is None:
        file.unlink()
        return True
    mode = file.stat().st_mode & 0o777
    write_atomically(
        file, text.replace(named, _named_like(named, path, target)).encode(), mode=mode
    )
    return True


def _means(named: str, path: Path) -> bool:
    """Whether a text is the name, the end of the path, the whole path or the step of `path`."""
    if named.isdecimal():
        return int(named) == step_of(path)
    return bool(named) and f"/{path}".endswith(f"/{named.rstrip('/')}")


def _named_like(named: str, path: Path, target: Path) -> str:
    """The target in the form in which `named` meant `path`."""
    step = step_of(target)
    if named.isdecimal() and step is not None:
        return str(step)
    if target.parent == path.parent:
        return named.removesuffix(path.name) + target.name
    return str(target)
