"""Tells one checkpoint file's format by its first bytes and hands it to the right reader."""

from __future__ import annotations

import errno
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

from overnight.adapters.checkpoints import npz, safetensors, torch_legacy, torch_zip
from overnight.adapters.checkpoints.archive import Archive
from overnight.adapters.checkpoints.report import DamagedError, NotUnderstoodError, Tally, quoted

_HEAD_BYTES = 4096
_ZIP_MAGIC = b"PK\x03\x04"
_OTHERS = {
    b"\x89HDF": "an HDF5 file",
    b"GGUF": "a GGUF file",
    b"\x93NUM": "a single NumPy array",
    b"\x1f\x8b": "gzip-compressed",
    b"\x28\xb5\x2f\xfd": "zstd-compressed",
    b"\x80": "a plain pickle, not a file of torch.save",
}

_UNREADABLE = frozenset({errno.EIO, errno.EUCLEAN, errno.EBADMSG})
"""The disk or the filesystem itself found the damage."""


def check_file(path: Path, label: str, tally: Tally) -> None:
    """Verify one file of any known format; `label` names it in the message.

    Raises DamagedError, NotUnderstoodError, OSError.
    """
    watched(_check, path, label, tally)


def watched(check: Callable[[Path, Tally], None], path: Path, label: str, tally: Tally) -> None:
    """Run `check(path, tally)`, put `label` before its message, and mistrust it if `path` changed.

    A checkpoint that the worker rewrites while we read looks damaged and is not.
    """
    before = _identity(path)
    if not path.is_file():
        raise NotUnderstoodError(f"{label}: is no file")  # reading a pipe could wait for ever
    try:
        check(path, tally)
    except (DamagedError, NotUnderstoodError) as error:
        if _identity(path) == before:
            raise type(error)(f"{label}: {error}") from error
    except OSError as error:
        if error.errno not in _UNREADABLE:
            raise
        raise DamagedError(f"{label}: the disk cannot read it ({error.strerror})") from error
    if _identity(path) != before:
        raise NotUnderstoodError(f"{label}: was written to while it was being checked")


def _identity(path: Path) -> tuple[int, int, int]:
    status = path.stat()
    return status.st_ino, status.st_mtime_ns, status.st_size


def _check(path: Path, tally: Tally) -> None:
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
    if not head:
        raise DamagedError("is empty (0 bytes)")
    if not head.strip(b"\0"):
        raise DamagedError("begins with nothing but zeros: it was never written to the disk")
    if path.suffix == ".safetensors":
        safetensors.check_file(path, tally)
    elif torch_legacy.is_legacy(head):
        torch_legacy.check_file(path, tally)
    elif head.startswith(_ZIP_MAGIC) or _ZIP_MAGIC.startswith(head) or zipfile.is_zipfile(path):
        _check_zip(path, tally)
    elif head[8:10] == b'{"' and int.from_bytes(head[:8], "little") <= path.stat().st_size:
        safetensors.check_file(path, tally)
    else:
        raise NotUnderstoodError(f"is {_describe(head)}, which cannot be checked")


def _check_zip(path: Path, tally: Tally) -> None:
    """Which of the formats in a zip it is, its directory says."""
    with Archive(path) as archive:
        array_file = torch_zip.pickle_name(archive) is None and npz.is_npz(archive)
    (npz if array_file else torch_zip).check_file(path, tally)


def _describe(head: bytes) -> str:
    """What a file that is no checkpoint of ours looks like."""
    for magic, what in _OTHERS.items():
        if head.startswith(magic):
            return what
    text = head.decode(errors="replace")
    if text.replace("\n", "").replace("\r", "").replace("\t", "")[:-1].isprintable():
        return f"plain text beginning with {quoted(text.splitlines()[0][:40])}"
    return "of an unknown format"
