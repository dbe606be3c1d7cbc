"""Finding checkpoints: by pattern, by the worker's announcement, at the moment they are complete.

inotify reports renames and closes as they happen; a slow poll finds what it missed and what
filesystems without events hide. Half-written and temporary files are never reported: a file is
complete when its writer closed or renamed it, a directory when it was renamed or its marker
(manifest, trainer state, index) is there; else when size and mtime were the same at two polls and
nobody has it open for writing (a directory only after half a minute of that).
"""

from __future__ import annotations

import contextlib
import glob
import os
import select
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from overnight.adapters import inotify
from overnight.adapters.checkpoints.complete import (
    has_marker,
    identity_of,
    is_part_name,
    is_settled,
    is_shard,
    is_whole,
)
from overnight.adapters.checkpoints.naming import SUFFIXES, step_of
from overnight.adapters.checkpoints.patterns import (
    anchored,
    directories,
    fixed_prefix,
    glob_regex,
    is_temporary,
)
from overnight.core.events import CheckpointGone, CheckpointSeen, Identity

POLL_S = 2.0
SKIPPED = frozenset({"venv", "env", "site-packages", "node_modules", "__pycache__", "wandb"})
MAX_DEPTH, MAX_ENTRIES = 5, 20_000
"""Without a pattern the working directory is searched, but never a whole dataset."""

_LEFT = inotify.MOVED_FROM | inotify.DELETE
_EVENTS = inotify.CLOSE_WRITE | inotify.MOVED_TO | inotify.CREATE | _LEFT
Report = Callable[[CheckpointSeen | CheckpointGone], None]


class CheckpointWatcher:
    """A thread that reports each checkpoint once, and when its bytes are no longer there."""

    def __init__(
        self,
        *,
        patterns: Sequence[str],
        workdir: Path,
        roots: Sequence[Path] = (),
        since_utc: float,
        report: Report,
        clock: Callable[[], float] = time.monotonic,
        poll_s: float = POLL_S,
    ) -> None:
        """Without patterns, only files of `workdir` that are newer than `since_utc` count: what
        was there before is a pretrained model or another run's."""
        self._patterns = [anchored(pattern, workdir) for pattern in patterns]
        self._workdir = workdir
        self._roots = list(dict.fromkeys([workdir, *roots]))
        self._since_ns = 0 if patterns else int(since_utc * 1e9)
        self._report = report
        self._clock = clock
        self._poll_s = poll_s
        self._known: dict[str, Identity] = {}
        self._pending: dict[str, Identity] = {}
        self._announced: dict[str, int] = {}
        self._inodes: dict[str, int] = {}
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._notify: inotify.Inotify | None = None
        with contextlib.suppress(OSError):
            self._notify = inotify.Inotify()

    def start(self, known: Sequence[Identity] = ()) -> None:
        """Begin to watch; `known` checkpoints are not reported again."""
        self._known.update({identity.path: identity for identity in known})
        self._inodes.update({identity.path: identity.inode for identity in known})
        threading.Thread(target=self._run, name="checkpoints", daemon=True).start()

    def close(self) -> None:
        """Stop watching at the next wake-up."""
        self._closing.set()

    def announce(self, path: Path, *, step: int | None) -> None:
        """The worker says that this one is complete now."""
        saved_utc = time.time()

        def body() -> None:  # a poll of a slow disk may hold the lock for long
            identity = identity_of(path)
            if identity is not None:
                with self._lock:
                    self._found(path, identity, saved_utc=saved_utc, step=step)

        threading.Thread(target=body, name="announce", daemon=True).start()

    def held(self) -> threading.Lock:
        """While it is held nothing is reported: files are moved by ourselves."""
        return self._lock

    def let_go(self, path: Path) -> None:
        """This path is moved by us: no loss to report. Only while held."""
        self._known.pop(str(path), None)
        self._pending.pop(str(path), None)
        self._inodes.pop(str(path), None)

    def take(self, identity: Identity) -> None:
        """This path is written by us: nothing new to report. Only while held."""
        self._known[identity.path] = identity
        self._inodes[identity.path] = identity.inode

    def unfinished(self, since_utc: float) -> list[Path]:
        """What lies where a checkpoint may be, since then, and was never complete. While held."""
        since_ns = max(self._since_ns, int(since_utc * 1e9))
        new = [path for path in self._candidates() if str(path) not in self._known]
        found = [(path, identity_of(path)) for path in new]
        return [path for path, which in found if which and which.mtime_ns >= since_ns]

    def existing(self) -> list[CheckpointSeen]:
        """What is complete on disk now and was not known: it was saved while nobody watched."""
        found = []
        with contextlib.suppress(OSError), self._lock:
            for path in list(self._candidates()):
                identity = identity_of(path)
                if identity is None or identity == self._known.get(str(path)):
                    continue
                if identity.mtime_ns >= self._since_ns and is_settled(path, identity):
                    saved_utc = identity.mtime_ns / 1e9
                    found.append(self._noted(path, identity, saved_utc=saved_utc, step=None))
        return sorted(found, key=lambda seen: seen.at)

    # --- the thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closing.is_set():
            began = time.monotonic()
            with contextlib.suppress(OSError), self._lock:
                self._poll()
            cost = time.monotonic() - began
            self._wait(max(self._poll_s, 50 * cost))  # a slow search is repeated rarely
        if self._notify is not None:
            self._notify.close()

    def _wait(self, seconds: float) -> None:
        """Handle events until the next poll is due."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and not self._closing.is_set():
            if self._notify is None:
                self._closing.wait(left)
                return
            select.select([self._notify], [], [], min(left, 1.0))
            for event in self._notify.read():
                with contextlib.suppress(OSError), self._lock:
                    self._event(event)

    def _event(self, event: inotify.FileEvent) -> None:
        path = event.watched / event.name
        if event.mask & inotify.IS_DIR and event.mask & (inotify.CREATE | inotify.MOVED_TO):
            list(self._candidates())  # watches the directories that patterns reach now
            if event.mask & inotify.MOVED_TO:
                self._complete(path, renamed=any(path.iterdir()))
        elif event.mask & (inotify.CLOSE_WRITE | inotify.MOVED_TO):
            self._complete(path)
        elif event.mask & _LEFT and identity_of(path) != self._known.get(str(path)):
            self._left(str(path))

    def _complete(self, path: Path, *, renamed: bool = False) -> None:
        """Something was closed or renamed into place: is it a checkpoint, or the last of one?"""
        now = time.time()
        for candidate in (path, path.parent):
            if self._wanted(candidate) and (renamed or is_whole(candidate)):
                identity = identity_of(candidate)
                if identity is not None:
                    self._found(candidate, identity, saved_utc=now, step=None)
                return

    def _poll(self) -> None:
        for path in list(self._candidates()):
            identity = identity_of(path)
            if identity is None or identity == self._known.get(str(path)):
                self._pending.pop(str(path), None)
                continue
            if self._pending.get(str(path)) == identity and is_settled(path, identity):
                self._found(path, identity, saved_utc=identity.mtime_ns / 1e9, step=None)
            else:
                self._pending[str(path)] = identity
        for text, identity in list(self._known.items()):
            current = identity_of(Path(text))
            if current is None:
                self._left(text)
            elif current.inode != identity.inode or current.size_bytes != identity.size_bytes:
                self._lost(text)

    # --- what counts -----------------------------------------------------------------------------

    def _candidates(self) -> Iterator[Path]:
        """Every path that may be a checkpoint now; directories on the way are watched."""
        if not self._patterns:
            been: set[tuple[int, int]] = set()
            for root in self._roots:
                yield from self._search(root, been)
            return
        for pattern in self._patterns:
            top = fixed_prefix(pattern)
            self._watch(_existing(top))
            for inner in directories(pattern):
                for text in glob.iglob(inner, recursive=True):  # noqa: PTH207 - same
                    if not _is_linked(Path(text), top):
                        self._watch(Path(text))
            for text in glob.iglob(pattern, recursive=True):  # noqa: PTH207 - absolute patterns
                path = Path(text)
                if _is_linked(path, top) or is_temporary(path.name) or is_shard(path.name):
                    continue
                if path.is_dir():
                    self._watch(path)
                yield path

    def _search(self, top: Path, been: set[tuple[int, int]]) -> Iterator[Path]:
        """What the default rules mean below `top`; linked folders are followed, but only once."""
        budget = MAX_ENTRIES
        stack = [(top, 0)]
        while stack and budget > 0:
            directory, depth = stack.pop()
            try:
                here = directory.stat()
                entries = list(os.scandir(directory))
            except OSError:
                continue
            if (here.st_dev, here.st_ino) in been:
                continue
            been.add((here.st_dev, here.st_ino))
            self._watch(directory)
            budget -= len(entries)
            for entry in entries:
                path = Path(entry.path)
                if is_temporary(entry.name) or entry.name in SKIPPED:
                    continue
                if self._wanted(path):
                    if entry.is_dir():
                        self._watch(path)
                    yield path
                elif entry.is_dir() and depth < MAX_DEPTH and not has_marker(path):
                    stack.append((path, depth + 1))

    def _wanted(self, path: Path) -> bool:
        """Whether the path is one that the patterns (or the default rules) mean."""
        given = bool(self._patterns) or path.parent in self._roots  # a folder somebody has named
        near = path.parts[-1:] if given else path.parts[-2:]
        if path.is_symlink() or is_shard(path.name) or any(is_temporary(part) for part in near):
            return False
        if self._patterns:
            return any(
                glob_regex(pattern).fullmatch(str(path))
                and not _is_linked(path, fixed_prefix(pattern))
                for pattern in self._patterns
            )
        if not any(path.is_relative_to(root) for root in self._roots):
            return False
        if path.is_dir():
            return path not in self._roots and has_marker(path)
        return path.suffix in SUFFIXES and not self._is_part(path) and self._is_recent(path)

    def _is_part(self, path: Path) -> bool:
        """Whether it is one file of a checkpoint directory, which may still lack its marker."""
        if path.parent in self._roots:
            return False
        numbered = step_of(path.parent) is not None
        return has_marker(path.parent) or (numbered and is_part_name(path.name))

    def _is_recent(self, path: Path) -> bool:
        try:
            return path.stat().st_mtime_ns >= self._since_ns
        except OSError:
            return False

    def _found(self, path: Path, identity: Identity, *, saved_utc: float, step: int | None) -> None:
        known = self._known.get(str(path)) == identity
        told = known and step in (None, self._announced.get(str(path)))
        if identity.mtime_ns < self._since_ns or told:
            return  # only an announcement adds something: the step
        if step is not None:
            self._announced[str(path)] = step
        if not known:
            self._lost(str(path))
        self._report(self._noted(path, identity, saved_utc=saved_utc, step=step))

    def _noted(
        self, path: Path, identity: Identity, *, saved_utc: float, step: int | None
    ) -> CheckpointSeen:
        """Known from now on; `at` is the moment it was saved, on the monotonic clock."""
        in_place = self._inodes.get(str(path)) == identity.inode
        self._known[str(path)], self._inodes[str(path)] = identity, identity.inode
        self._pending.pop(str(path), None)
        return CheckpointSeen(
            at=self._clock() - max(0.0, time.time() - saved_utc),
            identity=identity,
            format="directory" if path.is_dir() else path.suffix.lstrip(".") or "file",
            step=step if step is not None else step_of(path),
            saved_utc=saved_utc,
            in_place=in_place,
        )

    def _lost(self, path: str) -> None:
        """The bytes that were reported for this path are no longer there."""
        identity = self._known.pop(path, None)
        if identity is not None:
            self._report(CheckpointGone(self._clock(), identity))

    def _left(self, path: str) -> None:
        """Nothing is at this path any more; what comes there next was not rewritten in place."""
        self._lost(path)
        self._inodes.pop(path, None)

    def _watch(self, path: Path) -> None:
        """Renewed at each poll: the directory may have been removed and made again."""
        if self._notify is None:
            return
        with contextlib.suppress(OSError):  # not there yet, or no watch left: the poll sees it
            self._notify.watch(path, _EVENTS)


def _existing(path: Path) -> Path:
    """The path itself, or its nearest parent that exists: the rest may be created any time."""
    while not path.is_dir() and path != path.parent:
        path = path.parent
    return path


def _is_linked(path: Path, top: Path) -> bool:
    """Whether a symbolic link below `top` leads there: the same bytes have a name of their own."""
    while path not in (top, path.parent):
        if path.is_symlink():
            return True
        path = path.parent
    return False
