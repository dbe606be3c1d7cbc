"""Putting the probe where the worker's Python finds it: beside the state, never in its packages."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Sequence
from pathlib import Path

from overnight.adapters.files import private_directory

PACKAGE = "overnight_probe"

SCRIPT_BYTES = 1 << 16
"""Imports stand at the head of a script."""


def install_probe(directory: Path) -> Path:
    """Copy the probe into `directory`/probe, fresh. Returns the folder for PYTHONPATH.

    Raises OSError. The worker may be another user's Python: nothing of Overnight is needed there.
    """
    source = Path(__file__).resolve().parents[2] / PACKAGE
    folder = private_directory(directory / "probe")
    target = folder / PACKAGE
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(source / "sitecustomize.py", folder / "sitecustomize.py")
    return folder


def imports_torch(command: Sequence[str], workdir: Path) -> bool:
    """Whether a script of the command imports torch, as far as its own text says."""
    for word in command:
        if not word.endswith(".py"):
            continue
        with contextlib.suppress(OSError), (workdir / word).open("rb") as script:
            if b"torch" in script.read(SCRIPT_BYTES):
                return True
    return False
