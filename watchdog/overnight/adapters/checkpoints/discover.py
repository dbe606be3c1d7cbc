"""Finding checkpoints: by pattern, by the worker's announcement, at the moment they are complete.

inotify reports renames and closes as they happen; a slow poll finds what it missed and what
filesystems without events hide. Half-written and temporary files are never reported: a file is
complete when its writer closed or renamed it, or when size and mtime were stable over two polls;
a directory when its marker (manifest, trainer state, index) is there and it is stable.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
import select
import stat
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from overnight.adapters import inotify
from overnight.core.events import CheckpointGone, CheckpointSeen, Identity

POLL_S = 2.0
SUFFIXES = (".pt", ".pth", ".ckpt", ".safetensors")
MARKERS = ("manifest.json", "trainer_state.json", ".metadata")
"""Files that a training framework writes last into a checkpoint directory."""

SKIPPED = frozenset({"venv", "env", "site-packages", "node_modules", "__pycache__", "wandb"})
MAX_DEPTH, MAX_ENTRIES = 5, 20_000
"""Without a pattern the working directory is searched, but never a whole dataset."""

_STEP = re.compile(r"(\d{1,12})(?!.*\d)")
_TEMPORARY = re.compile(r"^\.|\.(?:tmp|temp|part|partial|incomplete|lock)$|^tmp|~$")

_EVENTS = inotify.CLOSE_WRITE | inotify.MOVED_TO | inotify.CREATE | inotify.DELETE
Report = Callable[[CheckpointSeen | CheckpointGone], None]


def step_of(path: Path) -> int | None:
    """The last number in the name: `checkpoint-500`, `step_00000150`, `ckpt_12000.pt`."""
    stem = path.name
    for suffix in SUFFIXES:
        stem = stem.removesuffix(suffix)
    match = _STEP.search(stem)
    return int(match[1]) if match else None


def identity_of(path: Path) -> Identity | None:
    """Which bytes the path means now; a directory counts with the files directly in it."""
    try:
        found = path.stat()
        if not stat.S_ISDIR(found.st_mode):
            return Identity(str(path), found.st_ino, found.st_mtime_ns, found.st_size)
        newest, size = 0, 0
        with os.scandir(path) as entries:
            for entry in entries:
                inner = entry.stat()
                newest, size = max(newest, inner.st_mtime_ns), size + inner.st_size
        return Identity(str(path), found.st_ino, newest, size)
    except OSError:
        return None


def fixed_prefix(pattern: str) -> Path:
    """The last directory of a pattern before its first wildcard."""
    parts = Path(pattern).parts
    fixed = list(parts[:-1])
    for index, part in enumerate(parts):
        if glob.has_magic(part):
            fixed = list(parts[:index])
            break
    return Path(*fixed) if fixed else Path()


class CheckpointWatcher:
    """A thread that reports each checkpoint once, and when its bytes are no longer there."""

    def __init__(
        self,
        *,
        patterns: Sequence[str],
        workdir: Path,
        since_utc: float,
        report: Report,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Without patterns, only files of `workdir` that are newer than `since_utc` count: what
        was there before is a pretrained model or another run's."""
        self._patterns = [str(workdir / pattern) for pattern in patterns]
        self._workdir = workdir
        self._since_ns = 0 if patterns else int(since_utc * 1e9)
        self._report = report
        self._clock = clock
        self._known: dict[str, Identity] = {}
        self._pending: dict[str, Identity] = {}
        self._watched: set[Path] = set()
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._notify: inotify.Inotify | None = None
        with contextlib.suppress(OSError):
            self._notify = inotify.Inotify()

    def start(self, known: Sequence[Identity] = ()) -> None:
        """Begin to watch; `known` checkpoints are not reported again."""
        self._known.update({identity.path: identity for identity in known})
        threading.Thread(target=self._run, name="checkpoints", daemon=True).start()

    def close(self) -> None:
        """Stop watching at the next wake-up."""
        self._closing.set()

    def announce(self, path: Path, *, step: int | None) -> None:
        """The worker says that this one is complete now."""
        identity = identity_of(path)
        if identity is not None:
            with self._lock:
                self._found(path, identity, saved_utc=time.time(), step=step)

    # --- the thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closing.is_set():
            began = time.monotonic()
            with contextlib.suppress(OSError), self._lock:
                self._poll()
            cost = time.monotonic() - began
            self._wait(max(POLL_S, 50 * cost))  # a slow search is repeated rarely

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
                self._complete(path)
        elif event.mask & (inotify.CLOSE_WRITE | inotify.MOVED_TO):
            self._complete(path)
        elif event.mask & inotify.DELETE and str(path) in self._known:
            self._lost(self._known.pop(str(path)))

    def _complete(self, path: Path) -> None:
        """Something was closed or renamed into place: is it a checkpoint, or the last of one?"""
        now = time.time()
        for candidate in (path, path.parent):
            if self._wanted(candidate) and self._is_whole(candidate):
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
            if self._pending.get(str(path)) == identity and self._is_whole(path):
                self._found(path, identity, saved_utc=identity.mtime_ns / 1e9, step=None)
            else:
                self._pending[str(path)] = identity
        for text, identity in list(self._known.items()):
            current = identity_of(Path(text))
            if current is None:
                self._lost(self._known.pop(text))
            elif current.inode != identity.inode or current.size_bytes != identity.size_bytes:
                self._lost(identity)

    # --- what counts -----------------------------------------------------------------------------

    def _candidates(self) -> Iterator[Path]:
        """Every path that may be a checkpoint now; directories on the way are watched."""
        if not self._patterns:
            yield from self._search(self._workdir)
            return
        for pattern in self._patterns:
            self._watch(_existing(fixed_prefix(pattern)))
            for text in glob.iglob(pattern, recursive=True):  # noqa: PTH207 - absolute patterns
                path = Path(text)
                self._watch(path if path.is_dir() else path.parent)
                if not path.is_symlink() and not _TEMPORARY.search(path.name):
                    yield path

    def _search(self, top: Path) -> Iterator[Path]:
        budget = MAX_ENTRIES
        stack = [(top, 0)]
        while stack and budget > 0:
            directory, depth = stack.pop()
            self._watch(directory)
            try:
                entries = list(os.scandir(directory))
            except OSError:
                continue
            budget -= len(entries)
            for entry in entries:
                path = Path(entry.path)
                if entry.is_symlink() or _TEMPORARY.search(entry.name) or entry.name in SKIPPED:
                    continue
                if entry.is_dir():
                    if self._wanted(path):
                        self._watch(path)
                        yield path
                    elif depth < MAX_DEPTH:
                        stack.append((path, depth + 1))
                elif self._wanted(path):
                    yield path

    def _wanted(self, path: Path) -> bool:
        """Whether the path is one that the patterns (or the default rules) mean."""
        near = path.parts[-1:] if self._patterns else path.parts[-2:]
        if path.is_symlink() or any(_TEMPORARY.search(part) for part in near):
            return False
        if self._patterns:
            return any(_matches(path, pattern) for pattern in self._patterns)
        if path.is_dir():
            return _has_marker(path)
        inside = _has_marker(path.parent)
        if path.suffix not in SUFFIXES or inside or not path.is_relative_to(self._workdir):
            return False
        return path.stat().st_mtime_ns >= self._since_ns

    def _is_whole(self, path: Path) -> bool:
        if path.is_dir():
            return _has_marker(path) or bool(self._patterns and self._pending.get(str(path)))
        return path.exists()

    def _found(self, path: Path, identity: Identity, *, saved_utc: float, step: int | None) -> None:
        before = self._known.get(str(path))
        if before == identity:
            return
        if identity.mtime_ns < self._since_ns:
            return
        if before is not None:
            self._lost(before)
        self._known[str(path)] = identity
        self._pending.pop(str(path), None)
        self._report(
            CheckpointSeen(
                at=self._clock(),
                identity=identity,
                format="directory" if path.is_dir() else path.suffix.lstrip(".") or "file",
                step=step if step is not None else step_of(path),
                saved_utc=saved_utc,
                in_place=before is not None and before.inode == identity.inode,
            )
        )

    def _lost(self, identity: Identity) -> None:
        self._report(CheckpointGone(self._clock(), identity))

    def _watch(self, path: Path) -> None:
        if self._notify is None or path in self._watched:
            return
        with contextlib.suppress(OSError):  # not there yet, or no watch left: the poll sees it
            self._notify.watch(path, _EVENTS)
            self._watched.add(path)


def _existing(path: Path) -> Path:
    """The path itself, or its nearest parent that exists: the rest may be created any time."""
    while not path.is_dir() and path != path.parent:
        path = path.parent
    return path


def _has_marker(path: Path) -> bool:
    return any((path / marker).is_file() for marker in MARKERS)


def _matches(path: Path, pattern: str) -> bool:
    """fnmatch by parts, with `**` for any depth."""
    regex = glob_regex(pattern)
    return regex.fullmatch(str(path)) is not None


_REGEXES: dict[str, re.Pattern[str]] = {}


def glob_regex(pattern: str) -> re.Pattern[str]:
    """A glob with `*`, `?`, `[...]` and `**` as a regular expression over whole paths."""
    found = _REGEXES.get(pattern)
    if found is None:
        out, index = "", 0
        while index < len(pattern):
            char = pattern[index]
            if pattern.startswith("**/", index):
                out, index = out + "(?:[^/]+/)*", index + 3
                continue
            if char == "[" and "]" in pattern[index:]:
                end = pattern.index("]", index)
                out, index = out + pattern[index : end + 1].replace("[!", "[^"), end + 1
                continue
            out += {"*": "[^/]*", "?": "[^/]"}.get(char, re.escape(char))
            index += 1
        found = _REGEXES[pattern] = re.compile(out)
    return found
