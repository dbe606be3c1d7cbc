"""Files of torch.save since 1.6: a zip of `data.pkl` and one entry of raw numbers per storage.

NAME/data.pkl     the structure; points at storages by key
NAME/byteorder    little | big (absent before 2.1: little)
NAME/data/KEY     the numbers, uncompressed, a CRC32 each (unless switched off)
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from overnight.adapters.checkpoints.archive import Archive
from overnight.adapters.checkpoints.inert import Found, find_tensors, load
from overnight.adapters.checkpoints.report import (
    DamagedError,
    NotUnderstoodError,
    Tally,
    human_bytes,
    quoted,
)
from overnight.adapters.checkpoints.scan import item_bytes
from overnight.adapters.checkpoints.tensors import Storage, check_finite

MAX_PICKLE_BYTES = 64 << 20
"""The structure of a 10,000-tensor model takes 2 MB; whoever stores data in it is not read."""


def pickle_name(archive: Archive) -> str | None:
    """The entry with the structure: `NAME/data.pkl`; None in a zip that is not torch's."""
    names = (name for name in archive.entries if name.count("/") <= 1)
    return next((name for name in names if name.rpartition("/")[2] == "data.pkl"), None)


def check(archive: Archive, tally: Tally, name: str = "") -> None:
    """Verify an archive; `name` is put before its keys. Raises DamagedError, NotUnderstoodError."""
    if not archive.checksummed:
        tally.note("written without checksums")
    structure = pickle_name(archive)
    if structure is None:
        raise NotUnderstoodError("a zip file, but not one of torch.save")
    size = archive.entries[structure].file_size
    if size > MAX_PICKLE_BYTES:
        raise NotUnderstoodError(
            f"its data.pkl has {human_bytes(size)}, too many to be a structure"
        )
    archive.check(structure)
    with archive.open(structure) as stream:
        root = load(stream, "data.pkl")
    tally.offer_step({name: root} if name else root)
    found = list(find_tensors(root, name))
    tally.tensors += sum(one.tensor is not None for one in found)
    tally.offer_names(root if isinstance(root, dict) else ())
    tally.offer_names(one.name for one in found)
    prefix = structure.removesuffix("data.pkl")
    _check_entries(archive, prefix, gather(found, _byte_order(archive, prefix)), tally)


def _check_entries(
    archive: Archive, prefix: str, storages: Mapping[str, Storage], tally: Tally
) -> None:
    """Every entry in the order of the file; those that tensors point at are scanned as well."""
    entries = {f"{prefix}data/{key}": storage for key, storage in storages.items()}
    for name, storage in entries.items():
        if name not in archive.entries:
            raise DamagedError(f"the numbers of {storage.called} are missing")
    for name, info in archive.entries.items():
        storage_of = entries.get(name)
        if storage_of is None:
            archive.check(name)
            continue
        expected = storage_of.numel * (item_bytes(storage_of.dtype) or 0)
        if expected and info.file_size != expected:
            raise DamagedError(
                f"{storage_of.called} has {info.file_size:,} bytes instead of {expected:,}"
            )
        check_finite(storage_of, partial(archive.blocks, name, storage_of.called), tally)


def _byte_order(archive: Archive, prefix: str) -> str:
    name = f"{prefix}byteorder"
    if name not in archive.entries:
        return "little"
    return b"".join(archive.blocks(name)).decode(errors="replace").strip()


def gather(found: list[Found], byte_order: str) -> dict[str, Storage]:
    """The storages that tensors point at, by key.

    A tensor of a type younger than torch's storage classes (fp8) points at untyped bytes and
    names its type itself, so the storage takes type and element count from it.
    """
    storages: dict[str, Storage] = {}
    for one in found:
        ref = one.storage
        storage = storages.setdefault(
            ref.key,
            Storage(f"storage {quoted(one.name)}", ref.dtype, ref.numel, [], byte_order),
        )
        if one.tensor is None:
            continue
        if one.dtype != storage.dtype and storage.dtype == "uint8" and not storage.tensors:
            storage.dtype, storage.numel = one.dtype, ref.numel // (item_bytes(one.dtype) or 1)
        storage.tensors.append(one.tensor)
    return storages


def check_file(path: Path, tally: Tally) -> None:
    """Verify one file written by torch.save. Raises DamagedError, NotUnderstoodError, OSError."""
    tally.format = "torch"
    with Archive(path) as archive:
        check(archive, tally)
