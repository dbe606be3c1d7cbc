"""The vault: protected copies that the script's own rotation and overwriting cannot reach.

A reflink where the filesystem can, else a hard link if the name carries a step and was never
rewritten in place (torch.save to a fixed name rewrites the same inode, and every hard link with
it), else a copy if there is room. A copy is named under a directory of its own, so the original
file name stays, and is worth nothing unless the original was still the same after copying.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

from overnight.adapters.checkpoints.complete import identity_of
from overnight.adapters.files import private_directory, sync_directory
from overnight.core.events import CheckpointSecured, Identity

FICLONE = 0x40049409
VAULT = ".overnight-vault"
MARGIN_BYTES = 1 << 30
"""A copy must leave this much free: a full disk would kill the training that we protect."""


class Vault:
    """Copies are made one at a time, in a thread, and reported."""

    def __init__(
        self,
        *,
        name: str,
        report: Callable[[CheckpointSecured], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = name
        self._report = report
        self._clock = clock
        self._lock = threading.Lock()

    def secure(self, identity: Identity, *, beside: Path, linkable: bool) -> None:
        """Make a protected copy in `beside`/.overnight-vault/NAME; CheckpointSecured follows.

        `beside` must not be inside what discovery sees.
        """

        def body() -> None:
            with self._lock:
                try:
                    answer = self._secure(identity, beside=beside, linkable=linkable)
                except OSError as error:
                    answer = self._refused(
                        identity, f"no protected copy: {error.strerror or error}"
                    )
            self._report(answer)

        threading.Thread(target=body, name="vault", daemon=True).start()

    def _refused(self, identity: Identity, reason: str) -> CheckpointSecured:
        return CheckpointSecured(self._clock(), identity, None, "none", reason)

    def _secure(self, identity: Identity, *, beside: Path, linkable: bool) -> CheckpointSecured:
        source = Path(identity.path)
        shelf = private_directory(beside / VAULT / self._name)
        slot = shelf / f"{identity.mtime_ns}-{identity.inode}"  # two files may share one moment
        final, temp = slot / source.name, slot / f".{source.name}.tmp"
        slot.mkdir(mode=0o700, exist_ok=True)
        _remove(temp)
        try:
            method = duplicate(source, temp, linkable=linkable)
            if not method:
                return self._refused(identity, "no protected copy: not enough free disk space")
            if identity_of(source) != identity:
                return self._refused(identity, "it was overwritten while being copied")
            _remove(final)
            temp.rename(final)
        finally:  # half a copy would fill the disk, and nobody would ever delete it
            _remove(temp)
            with contextlib.suppress(OSError):
                slot.rmdir()  # stays when a copy is in it
        sync_directory(slot)
        return CheckpointSecured(self._clock(), identity, str(final), method)

    def holds(self, identity: Identity, vault_path: str) -> bool:
        """Whether the copy still is what was verified: a hard link is rewritten with its file."""
        found = identity_of(Path(vault_path))
        return found is not None and (found.mtime_ns, found.size_bytes) == (
            identity.mtime_ns,
            identity.size_bytes,
        )

    def release(self, vault_path: str) -> None:
        """Delete a copy that is no longer needed; only ever inside a vault of ours."""
        slot = Path(vault_path).parent
        if slot.parts[-3:-1] == (VAULT, self._name) and ".." not in slot.parts:
            threading.Thread(target=_remove, args=(slot,), name="vault", daemon=True).start()


def duplicate(source: Path, target: Path, *, linkable: bool) -> str:
    """Reflink, link or copy a file or a directory's files; "" when there is no room."""
    if source.is_dir():
        target.mkdir(mode=0o700)
        methods = {
            duplicate(inner, target / inner.name, linkable=linkable)
            for inner in sorted(source.iterdir())
        }
        sync_directory(target)
        return "" if "" in methods else "+".join(sorted(methods)) or "empty"
    if _reflink(source, target):
        return "reflink"
    if linkable:
        with contextlib.suppress(OSError):
            os.link(source.resolve(), target)  # the file itself, not a link that may break
            return "hard link"
    if shutil.disk_usage(target.parent).free < source.stat().st_size + MARGIN_BYTES:
        return ""
    shutil.copyfile(source, target)
    shutil.copystat(source, target)
    with target.open("rb") as copied:
        os.fsync(copied.fileno())
    return "copy"


def _reflink(source: Path, target: Path) -> bool:
    with source.open("rb") as from_file, target.open("wb") as to_file:
        try:
            fcntl.ioctl(to_file.fileno(), FICLONE, from_file.fileno())
        except OSError:
            pass
        else:
            shutil.copystat(source, target)
            return True
    target.unlink()
    return False


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
