"""Which bytes a path means, and whether whoever wrote them has finished."""

from __future__ import annotations

import contextlib
import glob
import os
import re
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from overnight.core.events import Identity

QUIET_S = 30.0
"""A directory without a marker is complete when nothing was written for so long: between its
files, a framework gathers states from the GPUs."""

MARKERS = ("manifest.json", "trainer_state.json", ".metadata")
"""Files that a training framework writes last into a checkpoint directory."""

NAMED_BY = ("latest", "latest_checkpointed_iteration.txt")
"""Files beside a checkpoint directory that name it once it is whole: DeepSpeed's, Megatron's."""

MAX_DEPTH = 4
"""How deep the files of one checkpoint directory may lie: DeepSpeed inside Hugging Face's is 2."""

_PART = re.compile(
    r"^(?:(?:model|adapter_model|pytorch_model|optimizer|scheduler|scaler|rng_state(?:_\d+)?)\b"
    r"|mp_rank_\d|(?:bf16_)?zero_pp_rank_\d)"
)
"""Names that frameworks give to one file of a checkpoint directory, long before its marker."""

_SHARD = re.compile(r"-\d+-of-\d+\.\w+$")
"""One file of a sharded model: never a checkpoint by itself."""


def is_part_name(name: str) -> bool:
    """Whether a file is called like one of several that make up a checkpoint."""
    return _PART.search(name) is not None or is_shard(name)


def is_shard(name: str) -> bool:
    """Whether a file is called like one of the shards of a model."""
    return _SHARD.search(name) is not None


def identity_of(path: Path) -> Identity | None:
    """Which bytes the path means now; a directory counts with all the files in it."""
    try:
        found = path.stat()
        if not stat.S_ISDIR(found.st_mode):
            return Identity(str(path), found.st_ino, found.st_mtime_ns, found.st_size)
        newest, size = 0, 0
        for inner in _files(path, MAX_DEPTH):
            newest, size = max(newest, inner.st_mtime_ns), size + inner.st_size
        return Identity(str(path), found.st_ino, newest, size)
    except OSError:
        return None


def _files(folder: Path, depth: int) -> Iterator[os.stat_result]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False) and depth > 1:
                yield from _files(Path(entry.path), depth - 1)
            else:
                yield entry.stat()


def being_written(path: Path) -> bool:
    """Whether a process that we may look at has it, or a file in it, open for writing."""
    wanted = str(path.resolve())
    for descriptor in glob.iglob("/proc/[0-9]*/fd/*"):  # noqa: PTH207 - twice as fast as pathlib
        with contextlib.suppress(OSError, ValueError):
            target = os.readlink(descriptor)  # noqa: PTH115 - same
            if target != wanted and not target.startswith(wanted + "/"):
                continue
            info = Path(descriptor.replace("/fd/", "/fdinfo/")).read_text()
            if int(info.split("flags:")[1].split()[0], 8) & os.O_ACCMODE != os.O_RDONLY:
                return True
    return False


def has_marker(path: Path) -> bool:
    """Whether a directory holds what its framework writes last, or is named as the newest."""
    # os.path: pathlib raises where we may not look, and one such folder would end every search
    if any(os.path.isfile(path / marker) for marker in MARKERS):  # noqa: PTH113
        return True
    return any(_names(path.parent / pointer, path) for pointer in NAMED_BY)


def _names(pointer: Path, path: Path) -> bool:
    with contextlib.suppress(OSError, ValueError):
        if pointer.stat().st_size < 256 and not pointer.is_symlink():
            text = pointer.read_text().strip()
            number = path.name.rpartition("_")[2]
            return text == path.name or (text.isdecimal() and text == number.lstrip("0"))
    return False


def is_settled(path: Path, identity: Identity) -> bool:
    """Whether what was the same at two polls is finished."""
    if path.is_dir() and not has_marker(path):
        quiet_s = time.time() - identity.mtime_ns / 1e9
        if identity.mtime_ns == 0 or quiet_s < QUIET_S:
            return False
    return not being_written(path)


def is_whole(path: Path) -> bool:
    """Whether what was just closed or renamed into place is finished."""
    if path.is_dir():  # the marker may have been created, but not written yet
        return has_marker(path) and not being_written(path)
    return path.exists()
