"""Putting the folder of checkpoints in order before a start: nothing newer than the right one.

A script that resumes by itself takes its newest checkpoint, by number, by time, or by what a
`latest` link or file names. So what came after the rollback's target is renamed into a hidden
folder, never deleted, with a note of where it was; links and files that named it name the target;
and a fixed name that the script will look for (`last.ckpt`) gets the target's bytes.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

from overnight.adapters.checkpoints.complete import identity_of
from overnight.adapters.checkpoints.naming import step_of
from overnight.adapters.checkpoints.pointers import repoint
from overnight.adapters.checkpoints.vault import duplicate
from overnight.adapters.files import private_directory, sync_directory, write_atomically
from overnight.core.events import Identity
from overnight.core.orders import Tidied, Tidying

QUARANTINE = ".overnight-quarantine"
_FIXED = re.compile(
    r"^(?!.*best).*(?:last|latest|newest|current|resume|ckpt|checkpoint|model|state|snapshot|weights)",
    re.IGNORECASE,
)
"""A name under which a script looks for what it resumes from."""

ORIGIN = ".origin"
"""The file beside a quarantined checkpoint that says where it came from."""


class Sight(Protocol):
    """What discovery must be told and can tell while files are moved under its eyes."""

    def held(self) -> contextlib.AbstractContextManager[object]:
        """Nothing is reported meanwhile."""

    def let_go(self, path: Path) -> None:
        """This path is moved by us: no loss to report."""

    def take(self, identity: Identity) -> None:
        """This path is written by us: nothing new to report."""

    def unfinished(self, since_utc: float) -> list[Path]:
        """What lies where checkpoints are wanted, since then, and was never complete."""


class Quarantine:
    """Tidies in a thread: the target may have to be copied back."""

    def __init__(
        self,
        *,
        name: str,
        sight: Sight,
        beside: Callable[[Path], Path],
        report: Callable[[Tidied], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`beside` gives the folder for a checkpoint's quarantine, out of discovery's sight."""
        self._name = name
        self._sight = sight
        self._beside = beside
        self._report = report
        self._clock = clock

    def tidy(self, order: Tidying) -> None:
        """Do as the order says; Tidied follows, whatever happens."""
        threading.Thread(target=self._body, args=(order,), name="quarantine", daemon=True).start()

    def _body(self, order: Tidying) -> None:
        moved: list[tuple[Identity, str]] = []
        placed, problem = None, ""
        try:
            with self._sight.held():
                self._move(order, moved)
                if order.latest and order.target is not None:
                    placed = self._put_back(order)
                    self._fill_fixed_names(order.target, [identity for identity, _ in moved])
                self._repoint(order, [identity for identity, _ in moved])
        except OSError as error:
            problem = f"{error.filename or 'the checkpoints'}: {error.strerror or error}"
        self._report(Tidied(self._clock(), tuple(moved), placed, problem))

    # --- aside ---------------------------------------------------------------------------------

    def _move(self, order: Tidying, moved: list[tuple[Identity, str]]) -> None:
        paths = [Path(identity.path) for identity in order.aside]
        if order.latest:
            paths += self._sight.unfinished(order.since_utc)
        if order.target is not None:
            paths += _half_written(Path(order.target.path), order.target)
        for path in dict.fromkeys(paths):
            identity = identity_of(path)
            if identity is None or identity == order.target:
                continue
            self._sight.let_go(path)
            moved.append((identity, str(self._aside(path, identity))))

    def _aside(self, path: Path, identity: Identity) -> Path:
        """The new place; beside the checkpoint itself where another filesystem is in the way."""
        slot = f"{identity.mtime_ns}-{identity.inode}"
        for folder in (self._beside(path), path.parent):
            try:
                return _renamed(path, private_directory(folder / QUARANTINE / self._name) / slot)
            except OSError as error:
                if error.errno not in (errno.EXDEV, errno.EACCES, errno.EROFS):
                    raise
        raise OSError(errno.EXDEV, "cannot be moved aside", str(path))

    # --- the right one -------------------------------------------------------------------------

    def _put_back(self, order: Tidying) -> Identity | None:
        """The target at its own path again, if it is only in the vault."""
        assert order.target is not None
        path = Path(order.target.path)
        if order.source in (None, order.target.path):
            return None
        assert order.source is not None
        return self._copy(Path(order.source), path)

    def _fill_fixed_names(self, target: Identity, moved: Iterable[Identity]) -> None:
        """`last.ckpt` and its like are looked for by name; a best one is not resumed from."""
        for identity in moved:
            path = Path(identity.path)
            fixed = step_of(path) is None and _FIXED.search(path.name) is not None
            if fixed and path.suffix == Path(target.path).suffix and not path.exists():
                self._copy(Path(target.path), path)

    def _copy(self, source: Path, path: Path) -> Identity:
        temp = path.with_name(f".{path.name}.tmp")
        path.parent.mkdir(parents=True, exist_ok=True)
        if not duplicate(source, temp, linkable=False):
            raise OSError(errno.ENOSPC, "not enough room to put the checkpoint back", str(path))
        found = identity_of(temp)
        if found is None:
            raise OSError(errno.EIO, "the copy is not there", str(temp))
        identity = Identity(str(path), found.inode, found.mtime_ns, found.size_bytes)
        self._sight.take(identity)
        temp.rename(path)
        sync_directory(path.parent)
        return identity

    def _repoint(self, order: Tidying, moved: Iterable[Identity]) -> None:
        paths = [Path(identity.path) for identity in moved]
        target = Path(order.target.path) if order.target is not None else None
        near = [path.parent for path in (*paths, *([target] if target else []))]
        folders = dict.fromkeys([*near, *(folder.parent for folder in near)])
        for folder in folders:
            repoint(folder, moved=paths, target=target)


def _renamed(path: Path, slot: Path) -> Path:
    slot.mkdir(mode=0o700, exist_ok=True)
    write_atomically(slot / ORIGIN, os.fsencode(path))
    path.rename(slot / path.name)
    sync_directory(slot)
    sync_directory(path.parent)
    return slot / path.name


def _half_written(target: Path, identity: Identity) -> list[Path]:
    """Newer siblings of the target that are named like it: a save that was cut off is no match
    for discovery, but the highest number for a script."""
    pattern = re.compile(re.sub(r"\d+", r"\\d+", re.escape(target.name)))
    if "\\d+" not in pattern.pattern:
        return []
    with contextlib.suppress(OSError):
        return [
            path
            for path in target.parent.iterdir()
            if path != target
            and pattern.fullmatch(path.name)
            and not path.is_symlink()
            and path.stat().st_mtime_ns >= identity.mtime_ns
        ]
    return []


def restore(quarantined: Path) -> Path:
    """Put one checkpoint back to where it was. Returns its path.

    Raises OSError: EEXIST where something else has taken its place.
    """
    slot = quarantined.parent
    if slot.parent.parent.name != QUARANTINE:
        raise OSError(errno.EINVAL, "lies in no quarantine of Overnight", str(quarantined))
    origin = Path(os.fsdecode((slot / ORIGIN).read_bytes()))
    if origin.exists() or origin.is_symlink():
        raise OSError(errno.EEXIST, "something else is there now", str(origin))
    origin.parent.mkdir(parents=True, exist_ok=True)
    quarantined.rename(origin)
    (slot / ORIGIN).unlink()
    slot.rmdir()
    return origin
