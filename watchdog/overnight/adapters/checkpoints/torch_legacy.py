"""Files of torch.save before 1.6, or with `_use_new_zipfile_serialization=False`.

Five pickles in a row (magic number, protocol, machine, structure, list of keys), then for each key
an 8-byte element count and the raw numbers. There is no checksum: a flipped bit goes unseen
unless it makes a number non-finite, a missing end does not.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from overnight.adapters.checkpoints.inert import find_tensors, load
from overnight.adapters.checkpoints.lost_pages import Window, check_tail
from overnight.adapters.checkpoints.report import DamagedError, NotUnderstoodError, Tally
from overnight.adapters.checkpoints.scan import blocks, item_bytes
from overnight.adapters.checkpoints.tensors import Storage, check_finite
from overnight.adapters.checkpoints.torch_zip import gather

MAGIC = bytes.fromhex("8a0a6cfc9c46f9206aa850192e")
"""The pickled magic number without its protocol header, which may be any."""

_COUNT = struct.Struct("<q")


def is_legacy(head: bytes) -> bool:
    """Whether a file begins like one of these; a torn beginning counts."""
    return MAGIC in head[:32] or (len(head) > 2 and MAGIC.startswith(head[2:]))


def check_file(path: Path, tally: Tally) -> None:
    """Verify one legacy file. Raises DamagedError, NotUnderstoodError, OSError."""
    tally.format = "torch"
    tally.note("written without checksums")
    with path.open("rb") as file:
        _magic, _protocol, machine, root, keys = (load(file, "its structure") for _ in range(5))
        data_at = file.tell()
    tally.offer_step(root)
    found = list(find_tensors(root))
    tally.tensors += sum(one.tensor is not None for one in found)
    tally.offer_names(root if isinstance(root, dict) else ())
    tally.offer_names(one.name for one in found)
    little = not isinstance(machine, dict) or machine.get("little_endian", True)
    storages = gather(found, "little" if little else "big")
    _check_storages(path, data_at, _known(keys, storages), tally)


def _known(keys: Any, storages: dict[str, Storage]) -> list[Storage]:
    """The storages in the order of the file; every key must be one that a tensor points at."""
    if not isinstance(keys, list) or {str(key) for key in keys} != set(storages):
        raise DamagedError("its list of storages does not fit its tensors")
    return [storages[str(key)] for key in keys]


def _check_storages(path: Path, at: int, storages: list[Storage], tally: Tally) -> None:
    size_bytes = path.stat().st_size
    data_at, windows = at, []
    for storage in storages:
        each = item_bytes(storage.dtype)
        if each is None:
            raise NotUnderstoodError(f"{storage.called} is of the unknown type {storage.dtype}")
        length = storage.numel * each
        if at + _COUNT.size + length > size_bytes:
            raise DamagedError(
                f"cut off inside {storage.called}:"
                f" {at + _COUNT.size + length - size_bytes:,} bytes or more are missing"
            )
        _check_count(path, at, storage, length)
        at += _COUNT.size
        check_finite(storage, partial(_blocks, path, at, length), tally)
        windows.append(Window(storage.called, at, at + length, length))
        at += length
    check_tail(path, data_at, windows)


def _check_count(path: Path, at: int, storage: Storage, length: int) -> None:
    """The count before the numbers must agree; untyped storages count bytes."""
    with path.open("rb") as file:
        file.seek(at)
        (count,) = _COUNT.unpack(file.read(_COUNT.size))
    if count not in (storage.numel, length):
        raise DamagedError(f"{storage.called} says {count:,} elements instead of {storage.numel:,}")


def _blocks(path: Path, at: int, length: int) -> Iterator[bytes]:
    with path.open("rb") as file:
        file.seek(at)
        yield from blocks(file, length)
