"""The manifest of the reference trainer: the files of a checkpoint with size and sha256.

{"format": "overnight-trainer/1", "step": 400,
 "files": {"model.pt": {"bytes": 1234, "sha256": "…"}, …}}
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from overnight.adapters.checkpoints.report import DamagedError, NotUnderstoodError

MANIFEST = "manifest.json"
_FORMAT, _VERSION = "overnight-trainer", "1"


@dataclass(frozen=True, slots=True)
class Listed:
    """What the manifest says of one file."""

    name: str
    size_bytes: int
    sha256: str


def read_json_file(path: Path) -> Any:
    """The JSON value of a file that must be whole. Raises DamagedError, OSError."""
    try:
        return json.loads(path.read_bytes())
    except ValueError as error:
        raise DamagedError(f"{path.name} is cut off or damaged ({error})") from error


def parse_manifest(value: Any) -> list[Listed] | None:
    """The files of a manifest; None for a JSON of somebody else.

    Raises DamagedError for one that names no files or a file elsewhere, NotUnderstoodError for a
    version to come.
    """
    name, _, version = str(value.get("format", "") if isinstance(value, dict) else "").partition(
        "/"
    )
    if name != _FORMAT:
        return None
    if version != _VERSION:
        raise NotUnderstoodError(f"{MANIFEST} is of version {version[:20]}, we read {_VERSION}")
    try:
        files = [Listed(n, f["bytes"], f["sha256"]) for n, f in value["files"].items()]
    except (TypeError, LookupError, AttributeError) as error:
        raise DamagedError(f"{MANIFEST} does not list its files") from error
    if not files:
        raise DamagedError(f"{MANIFEST} lists no files")
    for file in files:
        if Path(file.name).is_absolute() or ".." in Path(file.name).parts:
            raise DamagedError(f"{MANIFEST} names a file outside the checkpoint")
    return files


def check_listed(directory: Path, files: list[Listed]) -> None:
    """Every file must be there with its size and sha256. Raises DamagedError, OSError."""
    for file in files:  # the cheap test for all of them first
        path = directory / file.name
        if not path.is_file():
            raise DamagedError(f"{file.name} is missing ({MANIFEST} lists it)")
        if (size := path.stat().st_size) != file.size_bytes:
            raise DamagedError(f"{file.name} has {size:,} bytes instead of {file.size_bytes:,}")
    for file in files:
        with (directory / file.name).open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        if digest != file.sha256:
            raise DamagedError(
                f"{file.name} does not match its sha256 in {MANIFEST}:"
                " bytes changed after it was written"
            )
