"""Checkpoints: whole or absent, never half.

    OUT/checkpoints/step_00000150/
        model.pt        the weights
        optimizer.pt    AdamW's state
        state.pt        step, data position, random state, schedule
        manifest.json   written last: size and SHA-256 of the others

The folder is filled under a temporary name, each file reaches the disk, then it is renamed.
So a name without `.tmp-` is a complete checkpoint, and the manifest proves that it still is.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from . import CheckpointError

FORMAT = "overnight-trainer/1"
FILES = ("model.pt", "optimizer.pt", "state.pt")


def fsync(path: Path) -> None:
    """Wait until a file, or the names in a directory, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def sha256(path: Path) -> str:
    """The file's hash, read in pieces."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def save(folder: Path, step: int, parts: Mapping[str, Any], *, damage: bool = False) -> Path:
    """Write one checkpoint; `parts` are the contents of FILES, by name.

    `damage`, for drills, is what a bad disk does: the size stays, the content does not.
    """
    final = folder / f"step_{step:08d}"  # padded, so that names sort as steps do
    temporary, old = folder / f".tmp-{final.name}", folder / f".old-{final.name}"
    for leftover in (temporary, old):  # of an attempt killed at this very step
        shutil.rmtree(leftover, ignore_errors=True)
    temporary.mkdir(parents=True)

    files = {}
    for name in FILES:
        torch.save(parts[name], temporary / name)
        fsync(temporary / name)
        size = (temporary / name).stat().st_size
        files[name] = {"bytes": size, "sha256": sha256(temporary / name)}
    if damage:
        data = bytearray((temporary / "model.pt").read_bytes())
        data[len(data) // 2] ^= 0xFF
        (temporary / "model.pt").write_bytes(data)
    manifest = temporary / "manifest.json"
    manifest.write_text(json.dumps({"format": FORMAT, "step": step, "files": files}, indent=1))
    fsync(manifest)
    fsync(temporary)

    if final.exists():  # from before a rollback: moved away, for its files are never written to
        os.rename(final, old)
    os.rename(temporary, final)
    fsync(folder)
    shutil.rmtree(old, ignore_errors=True)
    return final


def rotate(folder: Path, *, keep: int, step: int) -> None:
    """Delete all but the newest `keep` up to `step`; 0 keeps all.

    After a rollback, newer ones from before it still lie here. They are neither counted nor
    deleted: counting them would delete the good ones that this attempt is writing.
    """
    for leftover in [*folder.glob(".tmp-step_*"), *folder.glob(".old-step_*")]:
        shutil.rmtree(leftover, ignore_errors=True)
    complete = folder.glob("step_" + 8 * "[0-9]")  # and nothing that somebody renamed aside
    mine = sorted(path for path in complete if path.name <= f"step_{step:08d}")
    for path in mine[:-keep] if keep else []:
        shutil.rmtree(path, ignore_errors=True)


def verify(path: Path) -> None:
    """Prove that the files are those that were written, or say in one line which is not."""
    try:
        manifest = json.loads((path / "manifest.json").read_text())
        if manifest["format"] != FORMAT:
            raise CheckpointError(f"{path} has format {manifest['format']!r}, not {FORMAT!r}")
        for name in FILES:
            size, expected = (path / name).stat().st_size, manifest["files"][name]["bytes"]
            if size != expected:
                raise CheckpointError(f"{path} is damaged: {name} has {size} bytes of {expected}")
            if sha256(path / name) != manifest["files"][name]["sha256"]:
                raise CheckpointError(f"{path} is damaged: {name} does not match its SHA-256")
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} is missing or incomplete: no {error.filename}") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path} has no readable manifest.json: {error!r}") from error


def load(path: Path) -> list[dict[str, Any]]:
    """Model, optimizer and state; verified first, and read without running any code."""
    verify(path)
    return [torch.load(path / name, map_location="cpu", weights_only=True) for name in FILES]
