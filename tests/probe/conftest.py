"""The probe in this process: torch's hooks are registered for one test and removed after it."""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

collect_ignore_glob = [] if importlib.util.find_spec("torch") else ["test_*.py"]


class Probed:
    """A probe, and what it has written."""

    def __init__(self, probe: Any, hooks: Any, folder: Path) -> None:
        self.probe, self.hooks, self._folder = probe, hooks, folder

    def order(self, **values: Any) -> None:
        """Replace the control file, as the supervisor does."""
        temp = self._folder / "control.tmp"
        temp.write_text(json.dumps(values))
        temp.rename(self._folder / "control.json")

    def lines(self) -> list[dict[str, Any]]:
        """All that was written, in order."""
        path = self._folder / "metrics.jsonl"
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text.splitlines()]

    def records(self) -> list[dict[str, Any]]:
        """The metrics."""
        return [line for line in self.lines() if "event" not in line]

    def events(self, key: str) -> list[dict[str, Any]]:
        """What the probe says of itself."""
        return [line for line in self.lines() if "event" in line and key in line]


@pytest.fixture
def probed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Probed]]:
    """Make a probe with these settings; it listens to torch until the test ends."""
    import torch

    clip_grad = importlib.import_module("torch.nn.utils.clip_grad")
    grad_scaler = importlib.import_module("torch.amp.grad_scaler")

    from overnight_probe.channel import Settings
    from overnight_probe.torch_hooks import Hooks

    made: list[Any] = []
    monkeypatch.setattr(torch.Tensor, "backward", torch.Tensor.backward)
    monkeypatch.setattr(clip_grad, "clip_grad_norm_", clip_grad.clip_grad_norm_)
    for name in ("scale", "step"):
        monkeypatch.setattr(grad_scaler.GradScaler, name, getattr(grad_scaler.GradScaler, name))

    def make(**settings: Any) -> Probed:
        paths = {name: str(tmp_path / name) for name in ("metrics.jsonl", "control.json")}
        defaults = {"metrics": paths["metrics.jsonl"], "control": paths["control.json"]}
        every = {"snapshot_steps": 1, "snapshot_s": 0.0}
        hooks = Hooks(Settings(**{**defaults, **every, **settings}))
        hooks.optimizer(importlib.import_module("torch.optim.optimizer"))
        hooks.clip_grad(clip_grad)
        hooks.grad_scaler(grad_scaler)
        monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", clip_grad.clip_grad_norm_)
        made.append(hooks._probe)
        return Probed(hooks._probe, hooks, tmp_path)

    yield make
    for probe in made:
        probe.switch_off("the test has ended")
