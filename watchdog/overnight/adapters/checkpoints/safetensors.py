"""Files of Hugging Face's safetensors: a JSON header that says where each tensor's bytes lie.

    8 bytes    length n of the header, little-endian
    n bytes    {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, …}
    the rest   the numbers, without gaps or overlaps

There is no checksum; what can be known is whether header, offsets and file size agree, whether
the numbers are finite, and whether the last pages ever reached the disk.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path

from overnight.adapters.checkpoints.lost_pages import Window, check_tail
from overnight.adapters.checkpoints.report import (
    DamagedError,
    NotUnderstoodError,
    Tally,
    human_bytes,
    quoted,
)
from overnight.adapters.checkpoints.scan import FLOATS, blocks
from overnight.adapters.checkpoints.tensors import Storage, check_finite, plain

MAX_HEADER_BYTES = 100_000_000
"""The format's own limit."""

_DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "C64": "complex64",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E8M0": "float8_e8m0fnu",
}
_FINITE_BITS = {
    **dict.fromkeys(("I64", "U64"), 64),
    **dict.fromkeys(("I32", "U32"), 32),
    **dict.fromkeys(("I16", "U16"), 16),
    **dict.fromkeys(("I8", "U8", "BOOL"), 8),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of the header; offsets count from the end of the header, in bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def check_file(path: Path, tally: Tally) -> None:
    """Verify one file. Raises DamagedError, NotUnderstoodError, OSError."""
    tally.format = "safetensors"
    size_bytes = path.stat().st_size
    with path.open("rb") as file:
        header_bytes = int.from_bytes(file.read(8), "little")
        if not 2 <= header_bytes <= MAX_HEADER_BYTES:
            raise DamagedError(f"its header claims {human_bytes(header_bytes)}")
        if 8 + header_bytes > size_bytes:
            raise DamagedError("cut off inside its header")
        raw = file.read(header_bytes)
    entries = parse_header(raw)
    tally.offer_step(_metadata(raw))
    data_at = 8 + header_bytes
    check_layout(entries, size_bytes - data_at)
    check_tail(path, data_at, [_window(entry, data_at) for entry in entries])
    tally.tensors += len(entries)
    tally.offer_names(entry.name for entry in entries)
    for entry in entries:
        if entry.dtype in _DTYPES:
            storage = Storage("data", _DTYPES[entry.dtype], prod(entry.shape))
            storage.tensors.append(plain(entry.name, entry.shape))
            check_finite(storage, partial(_blocks, path, data_at, entry), tally)


def parse_header(raw: bytes) -> list[Entry]:
    """The tensors of a header in the order of their bytes. Raises DamagedError."""
    try:
        header = json.loads(raw)
        entries = [
            Entry(name, value["dtype"], tuple(value["shape"]), *value["data_offsets"])
            for name, value in header.items()
            if name != "__metadata__"
        ]
        numbers = [n for e in entries for n in (*e.shape, e.begin, e.end)]
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise DamagedError(f"its header is damaged ({error})") from error
    sizes_sane = all(type(n) is int and n >= 0 for n in numbers)
    if not sizes_sane or not all(isinstance(entry.dtype, str) for entry in entries):
        raise DamagedError("its header is damaged (a size is no whole number, or a type no word)")
    return sorted(entries, key=lambda entry: (entry.begin, entry.end))


def _metadata(raw: bytes) -> dict[str, int]:
    """The numbers of the header's free text."""
    found = json.loads(raw).get("__metadata__")
    texts = found.items() if isinstance(found, dict) else ()
    return {k: int(v) for k, v in texts if isinstance(v, str) and v.isdecimal() and len(v) < 19}


def check_layout(entries: list[Entry], data_bytes: int) -> None:
    """Tensors must fill the data exactly, each as large as its shape says. Raises DamagedError."""
    at = 0
    for entry in entries:
        if entry.begin != at:
            what = "overlaps the one before" if entry.begin < at else "follows a gap"
            raise DamagedError(f"tensor {quoted(entry.name)} {what}")
        expected = _bytes_of(entry)
        if entry.end - entry.begin != expected:
            raise DamagedError(
                f"tensor {quoted(entry.name)} has {entry.end - entry.begin:,} bytes,"
                f" its shape needs {expected:,}"
            )
        at = entry.end
    if at > data_bytes:
        raise DamagedError(f"cut off: {at - data_bytes:,} bytes are missing at its end")
    if at < data_bytes:
        raise DamagedError(f"{data_bytes - at:,} bytes at its end belong to no tensor")


def _bytes_of(entry: Entry) -> int:
    if entry.dtype in _DTYPES:
        bits = 8 * FLOATS[_DTYPES[entry.dtype]].item_bytes
    elif entry.dtype in _FINITE_BITS:
        bits = _FINITE_BITS[entry.dtype]
    else:
        raise NotUnderstoodError(
            f"tensor {quoted(entry.name)} is of the unknown type {quoted(entry.dtype)}"
        )
    return -(-prod(entry.shape) * bits // 8)


def _window(entry: Entry, data_at: int) -> Window:
    rows = entry.shape[0] if len(entry.shape) > 1 else 1
    row_bytes = (entry.end - entry.begin) // max(rows, 1)
    return Window(
        f"tensor {quoted(entry.name)}", data_at + entry.begin, data_at + entry.end, row_bytes
    )


def _blocks(path: Path, data_at: int, entry: Entry) -> Iterator[bytes]:
    with path.open("rb") as file:
        file.seek(data_at + entry.begin)
        yield from blocks(file, entry.end - entry.begin)
