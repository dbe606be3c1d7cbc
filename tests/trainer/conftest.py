"""The trainer is no part of the installed product: its tests find it by path, and need PyTorch."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "trainer")]

collect_ignore_glob = [] if importlib.util.find_spec("torch") else ["test_*.py"]

from trainer_lab import Lab  # noqa: E402 - found by the line above


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: takes more than a few seconds")


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    """An empty run folder; environment and signal handlers are as before when it is left."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGTERM)}
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("OVERNIGHT_")]:
            patch.delenv(name)
        yield Lab(tmp_path)
    for number, handler in handlers.items():
        signal.signal(number, handler)
