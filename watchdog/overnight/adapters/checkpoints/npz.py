"""NumPy's .npz: a zip of .npy arrays, each with a header that is a Python literal."""

from __future__ import annotations

import ast
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

from overnight.adapters.checkpoints.archive import Archive
from overnight.adapters.checkpoints.report import DamagedError, NotUnderstoodError, Tally, quoted
from overnight.adapters.checkpoints.tensors import Storage, check_finite, plain

_MAGIC = b"\x93NUMPY"
_MAX_HEADER_BYTES = 1 << 16
_FLOATS = {
    "f8": "float64",
    "f4": "float32",
    "f2": "float16",
    "c16": "complex128",
    "c8": "complex64",
}


def is_npz(archive: Archive) -> bool:
    """Whether every entry is an array."""
    return bool(archive.entries) and all(name.endswith(".npy") for name in archive.entries)


def check_file(path: Path, tally: Tally) -> None:
    """Verify one .npz. Raises DamagedError, NotUnderstoodError, OSError."""
    tally.format = "npz"
    with Archive(path) as archive:
        tally.offer_names(name.removesuffix(".npy") for name in archive.entries)
        for name in archive.entries:
            _check_array(archive, name, tally)


def _check_array(archive: Archive, name: str, tally: Tally) -> None:
    label = name.removesuffix(".npy")
    header, data_at = _read_header(archive, name)
    try:
        descr, shape = header["descr"], tuple(header["shape"])
        numel = prod(shape)
    except (TypeError, LookupError) as error:
        raise DamagedError(f"the header of {quoted(label)} is damaged") from error
    if not isinstance(descr, str) or descr[1:2] == "O":
        raise NotUnderstoodError(f"{quoted(label)} holds Python objects, which are never loaded")
    tally.tensors += 1
    dtype = _FLOATS.get(descr[1:])
    if dtype is None:  # integers, text, raw bytes: nothing to judge, but a checksum to compare
        archive.check(name)
        if descr[1:2] in ("f", "c"):
            raise NotUnderstoodError(f"{quoted(label)} is of the unknown type {quoted(descr)}")
        return
    storage = Storage(label, dtype, numel, byte_order="big" if descr[0] == ">" else "little")
    storage.tensors.append(plain(label, shape))
    check_finite(storage, partial(archive.blocks, name, skip_bytes=data_at), tally)


def _read_header(archive: Archive, name: str) -> tuple[Any, int]:
    """The header of an array and where its numbers begin. Raises DamagedError."""
    with archive.open(name) as stream:
        start = stream.read(8)
        length_bytes = 2 if start[6:7] == b"\x01" else 4
        length = int.from_bytes(stream.read(length_bytes), "little")
        if start[:6] != _MAGIC or length > _MAX_HEADER_BYTES:
            raise DamagedError(f"{quoted(name)} is no array")
        try:
            header = ast.literal_eval(stream.read(length).decode("latin1").strip())
        except (ValueError, SyntaxError) as error:
            raise DamagedError(f"the header of {quoted(name)} is damaged") from error
    return header, 8 + length_bytes + length
