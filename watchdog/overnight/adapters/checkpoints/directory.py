"""Checkpoints that are directories: with a manifest, Hugging Face's, sharded, or just files."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from overnight.adapters.checkpoints.dcp import METADATA, check_shards
from overnight.adapters.checkpoints.dcp import SUFFIX as DISTCP_SUFFIX
from overnight.adapters.checkpoints.manifest import (
    MANIFEST,
    check_listed,
    parse_manifest,
    read_json_file,
)
from overnight.adapters.checkpoints.report import (
    DamagedError,
    NotUnderstoodError,
    Tally,
    quoted,
)
from overnight.adapters.checkpoints.sniff import check_file, watched

WEIGHT_SUFFIXES = frozenset({".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".npz"})
"""Files with these endings hold tensors; all others are the script's own business."""

INDEX_SUFFIX = ".index.json"
_STATE_FILES = ("state.json", "trainer_state.json")
_HF_NAME = re.compile(r"checkpoint-\d+")


def check_directory(directory: Path, tally: Tally) -> None:
    """Verify a checkpoint directory. Raises DamagedError, NotUnderstoodError, OSError."""
    tally.format = "directory"
    manifest = directory / MANIFEST
    value = read_json_file(manifest) if manifest.is_file() else None
    files = parse_manifest(value)
    if files is not None:
        tally.format = "manifest"
        tally.offer_step(value)
        check_listed(directory, files)
        listed = [directory / file.name for file in files]
        _check_files(directory, [path for path in listed if path.suffix in WEIGHT_SUFFIXES], tally)
        return
    for name in _STATE_FILES:
        if (directory / name).is_file():
            tally.offer_step(read_json_file(directory / name))
            tally.is_trainers = name == "trainer_state.json"
    _check_finished(directory)
    for index in sorted(directory.rglob(f"*{INDEX_SUFFIX}")):
        shards_of(index)
    _check_files(directory, _weight_files(directory), tally)


def check_index(index: Path, tally: Tally) -> None:
    """Verify the shards that an index names. Raises DamagedError, NotUnderstoodError, OSError."""
    tally.format = "safetensors"
    _check_files(index.parent, shards_of(index), tally)


def shards_of(index: Path) -> list[Path]:
    """The files of a sharded model, all present. Raises DamagedError, OSError."""
    value: Any = read_json_file(index)
    try:
        names = sorted({str(name) for name in value["weight_map"].values()})
    except (TypeError, LookupError, AttributeError) as error:
        raise DamagedError(f"{index.name} has no weight_map") from error
    for name in names:
        if Path(name).name != name or not (index.parent / name).is_file():
            raise DamagedError(f"{quoted(name)} is missing ({index.name} names it)")
    return [index.parent / name for name in names]


def _check_finished(directory: Path) -> None:
    """Hugging Face's Trainer writes trainer_state.json last; without it the save was cut off.

    Its checkpoint directories are told by their name and by training_args.bin, which comes first.
    """
    if not _HF_NAME.fullmatch(directory.name) or not (directory / "training_args.bin").is_file():
        return
    if not (directory / "trainer_state.json").is_file():
        raise DamagedError("trainer_state.json is missing: the save did not finish")


def _weight_files(directory: Path) -> list[Path]:
    """The tensor files below a directory, hidden ones left out. Raises DamagedError.

    The shards of a distributed checkpoint are represented by the `.metadata` beside them.
    """
    everything = sorted(directory.rglob("*"))
    if not everything:
        raise DamagedError(f"{directory.name} is an empty directory")
    files = [
        path
        for path in everything
        if path.suffix in (*WEIGHT_SUFFIXES, DISTCP_SUFFIX)
        and not path.is_dir()
        and not any(part.startswith(".") for part in path.relative_to(directory).parts)
    ]
    if not files:
        raise NotUnderstoodError(f"{directory.name} holds no file that can be checked")
    sharded = {path.parent / METADATA for path in files if path.suffix == DISTCP_SUFFIX}
    if not all(metadata.is_file() for metadata in sharded):
        raise DamagedError(f"{METADATA} is missing: the save did not finish")
    return [path for path in files if path.suffix in WEIGHT_SUFFIXES] + sorted(sharded)


def _label(directory: Path, path: Path) -> str:
    """What a file or a directory below the checkpoint is called in a message."""
    return directory.name if path == directory else str(path.relative_to(directory))


def _check_files(directory: Path, files: Iterable[Path], tally: Tally) -> None:
    """Each file in turn. What is damaged speaks before what is not understood."""
    not_understood: NotUnderstoodError | None = None
    kept_format = tally.format
    for path in files:
        label = _label(directory, path)
        tally.offer_names([path.name])
        if path.is_symlink() and not path.exists():
            raise DamagedError(f"{label} is a link to a file that is gone")
        try:
            if path.name == METADATA:
                tally.opaque = True
                watched(check_shards, path, _label(directory, path.parent), tally)
            else:
                check_file(path, label, tally)
        except NotUnderstoodError as error:
            not_understood = not_understood or error
        finally:
            tally.format = kept_format
    if not_understood:
        raise not_understood
