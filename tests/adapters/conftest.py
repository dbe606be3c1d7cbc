"""What several adapter tests share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from discovery_lab import Watch


@pytest.fixture
def watching(tmp_path: Path) -> Iterator[Callable[..., Watch]]:
    """Starts checkpoint watchers in `tmp_path`, and closes them."""
    started: list[Watch] = []

    def start(*patterns: str, workdir: Path = tmp_path, **options: Any) -> Watch:
        started.append(Watch(workdir, patterns, **options))
        return started[-1]

    yield start
    for each in started:
        each.watcher.close()


@pytest.fixture
def ckpts(tmp_path: Path) -> Path:
    """A folder with one checkpoint, by which a test knows that the watcher has begun."""
    folder = tmp_path / "ckpts"
    folder.mkdir()
    (folder / "step_1.pt").write_bytes(b"first")
    return folder
