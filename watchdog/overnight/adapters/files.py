"""Files that others rely on: temp name, fsync, rename, fsync of the directory."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any


def write_atomically(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """Replace `path` with `data` so that a reader or a power cut sees the old or the new whole.

    Raises OSError (disk full, permission); the old file is then untouched.
    """
    descriptor, temp = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as out:
            out.write(data)
            out.flush()
            os.fchmod(out.fileno(), mode)
            os.fsync(out.fileno())
        Path(temp).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(temp).unlink()
        raise
    sync_directory(path.parent)


def write_json(path: Path, value: Any) -> None:
    """`write_atomically` for a JSON value, one line, newline at the end."""
    write_atomically(path, (json.dumps(value) + "\n").encode())


def read_json(path: Path) -> Any:
    """The JSON value in `path`, or None where it is missing or torn."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None


def sync_directory(path: Path) -> None:
    """Make renames and unlinks in `path` durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def filesystem_type(path: Path) -> str:
    """The type of the filesystem that `path` lies on (`ext4`, `nfs4`, …), "" where unknown."""
    best, found = -1, ""
    try:
        mounts = Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines()
        place = path.resolve()
    except OSError:
        return ""
    for line in mounts:
        left, _, right = line.partition(" - ")
        mount = Path(left.split()[4].encode().decode("unicode_escape"))
        if len(mount.parts) > best and place.is_relative_to(mount):
            best, found = len(mount.parts), right.split()[0]
    return found


def private_directory(path: Path) -> Path:
    """Create `path` (and parents) and make it 0700. Raises OSError."""
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.chmod(0o700)
    return path
