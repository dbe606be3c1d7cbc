"""The user's checkpoints, kept while a drill trains in their folder, and put back after it.

Before: a protected copy of each (a hard link where the name carries the step, as in the vault), and
what the links and files that name one say. After: whatever was removed, rewritten or moved is as it
was, and what the drill has saved lies in its own folder, out of sight. All of it is written down
first, so that a drill that was killed is undone by the next one, or by the next run.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from overnight.adapters.checkpoints.complete import identity_of
from overnight.adapters.checkpoints.discover import CheckpointWatcher
from overnight.adapters.checkpoints.patterns import anchored, fixed_prefix
from overnight.adapters.checkpoints.pointers import pointers_in
from overnight.adapters.checkpoints.quarantine import QUARANTINE
from overnight.adapters.checkpoints.vault import VAULT, duplicate
from overnight.adapters.files import private_directory, read_json, write_json
from overnight.core.events import Identity

KEEPSAKE = ".overnight-drill"
NOTE = "note.json"


class Keepsake:
    """What lies where a run's checkpoints are, before and after a drill."""

    def __init__(
        self,
        *,
        name: str,
        practice: str,
        patterns: Sequence[str],
        workdir: Path,
        roots: Sequence[Path] = (),
    ) -> None:
        """`practice` is the name under which the drill itself runs."""
        self._practice = practice
        self._patterns, self._workdir, self._roots = patterns, workdir, roots
        top = fixed_prefix(anchored(patterns[0], workdir)).parent if patterns else workdir
        self._place = top / KEEPSAKE / name

    @property
    def drilled(self) -> Path:
        """Where the checkpoints that the drill has saved are moved."""
        return self._place.with_name(f"{self._place.name}-saved")

    def take(self) -> int:
        """Keep what is there now. Returns how many checkpoints.

        Raises OSError where there is no room for a copy; nothing is changed then.
        """
        private_directory(self._place)
        try:
            kept = [self._keep(number, found) for number, found in enumerate(self._existing())]
        except OSError:
            shutil.rmtree(self._place, ignore_errors=True)
            raise
        folders = {Path(one["path"]).parent for one in kept}
        names = [path for folder in sorted(folders) for path in pointers_in(folder)]
        write_json(
            self._place / NOTE,
            {"began_utc": time.time(), "kept": kept, "pointers": [_said(path) for path in names]},
        )
        return len(kept)

    def _keep(self, number: int, identity: Identity) -> dict[str, Any]:
        source = Path(identity.path)
        copy = self._place / str(number) / source.name
        copy.parent.mkdir()
        # Never a link: a drill that begins at step 0 writes the same names again, in place.
        if not duplicate(source, copy, linkable=False):
            raise OSError(errno.ENOSPC, "no room to keep a copy", str(source))
        return {"path": identity.path, "identity": _plain(identity), "copy": str(copy)}

    def put_back(self) -> int | None:
        """Undo what a drill has done. Returns how many of its checkpoints were moved out of sight.

        None where there is nothing to undo. Raises OSError; it can be tried again.
        """
        note = read_json(self._place / NOTE)
        if note is None:
            return None
        kept = {one["path"]: one for one in note["kept"]}
        moved = self._move_new(kept, note["began_utc"]) + self._move_kept_of_drill()
        for path, one in kept.items():
            current = identity_of(Path(path))
            if current is None or _plain(current) != one["identity"]:
                _return(Path(one["copy"]), Path(path))
        for pointer in note["pointers"]:
            _say_again(pointer)
        shutil.rmtree(self._place)
        for folder in (VAULT, QUARANTINE, KEEPSAKE):
            with contextlib.suppress(OSError):
                self._place.parent.with_name(folder).rmdir()  # stays where it holds something
        return moved

    def _move_new(self, kept: dict[str, Any], began_utc: float) -> int:
        """Everything that was saved since, and is none of the kept, goes into `drilled`."""
        watcher = self._watcher()
        with watcher.held():
            recent = watcher.unfinished(began_utc)
        new = [path for path in recent if str(path) not in kept]
        for number, path in enumerate(new):
            slot = private_directory(self.drilled / f"{time.time_ns()}-{number}")
            with contextlib.suppress(FileNotFoundError):
                shutil.move(path, slot / path.name)
        return len(new)

    def _move_kept_of_drill(self) -> int:
        """What the drill's own recoveries have put aside; its vault held only copies."""
        shutil.rmtree(self._place.parent.with_name(VAULT) / self._practice, ignore_errors=True)
        aside = self._place.parent.with_name(QUARANTINE) / self._practice
        slots = list(aside.iterdir()) if aside.is_dir() else []
        for slot in slots:
            slot.rename(private_directory(self.drilled) / slot.name)
        if slots:
            aside.rmdir()
        return len(slots)

    def _existing(self) -> list[Identity]:
        return [seen.identity for seen in self._watcher().existing()]

    def _watcher(self) -> CheckpointWatcher:
        return CheckpointWatcher(
            patterns=self._patterns,
            workdir=self._workdir,
            roots=self._roots,
            since_utc=0.0,
            report=lambda _found: None,
        )


def _plain(identity: Identity) -> list[Any]:
    return [identity.inode, identity.mtime_ns, identity.size_bytes]


def _return(copy: Path, path: Path) -> None:
    """The kept bytes at their own place again."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(copy, path)


def _said(path: Path) -> dict[str, Any]:
    """What a pointer says, in a form that JSON can hold."""
    if path.is_symlink():
        return {"path": str(path), "link": os.readlink(path)}  # noqa: PTH115 - the text itself
    return {"path": str(path), "text": path.read_bytes().hex()}


def _say_again(pointer: dict[str, Any]) -> None:
    path = Path(pointer["path"])
    if path.is_symlink() or path.exists():
        if _said(path) == pointer:
            return
        path.unlink()
    if "link" in pointer:
        path.symlink_to(pointer["link"])
    else:
        path.write_bytes(bytes.fromhex(pointer["text"]))
