"""Saves and loads as they happen: which file, at which step, how long it took.

A save makes no steps, and may take long on a slow disk: it is announced as a phase, so that it is
not taken for a stall.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from overnight_probe.channel import now

WORTH_S, WORTH_BYTES = 0.1, 1 << 20
"""Shorter and smaller ones are not told: a data set of small files is read by the thousand."""

PHASE_EVERY_S = 1.0

Tell = Callable[[dict[str, Any]], None]


class Saves:
    """Wraps the functions that write and read files of tensors."""

    def __init__(self, tell: Tell) -> None:
        """`tell` gets events, without the step."""
        self._tell = tell
        self._phase_at = float("-inf")

    def torch(self, module: ModuleType) -> None:
        """torch.serialization: `torch.save(object, file)`, `torch.load(file)`."""
        torch = sys.modules["torch"]
        for name, place, done in (("save", 1, "saved"), ("load", 0, "loaded")):
            ours = self._wrapped(getattr(module, name), place, done)
            setattr(module, name, ours)
            if hasattr(torch, name):  # else it takes it from here, in a moment
                setattr(torch, name, ours)

    def safetensors(self, module: ModuleType) -> None:
        """safetensors.torch: `save_file(tensors, file)`, `load_file(file)`."""
        for name, place, done in (("save_file", 1, "saved"), ("load_file", 0, "loaded")):
            setattr(module, name, self._wrapped(getattr(module, name), place, done))

    def _wrapped(self, original: Callable[..., Any], place: int, done: str) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            named = kwargs.get("f", kwargs.get("filename"))
            path = _path(args[place] if len(args) > place else named)
            if path is None:
                return original(*args, **kwargs)
            began = now()
            if done == "saved":
                self._announce(began)
            result = original(*args, **kwargs)
            self._report(done, path, now() - began)
            return result

        return call

    def _announce(self, at: float) -> None:
        if at - self._phase_at >= PHASE_EVERY_S:
            self._phase_at = at
            self._say({"event": "phase", "name": "save"})

    def _report(self, done: str, path: str, took_s: float) -> None:
        with contextlib.suppress(OSError):  # renamed by another process already
            if took_s >= WORTH_S or os.stat(path).st_size >= WORTH_BYTES:
                self._say({"event": "probe", done: path, "seconds": round(took_s, 3)})

    def _say(self, event: dict[str, Any]) -> None:
        with contextlib.suppress(Exception):  # a save must not fail for it
            self._tell(event)


def _path(file: Any) -> str | None:
    """The absolute path of a file that is named; None for buffers and open files."""
    if isinstance(file, bytes) or not isinstance(file, (str, os.PathLike)):
        return None
    return os.path.abspath(os.fspath(file))
