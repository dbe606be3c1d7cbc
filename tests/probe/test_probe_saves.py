"""Saves and loads of the script are seen, and not changed."""

from __future__ import annotations

import importlib
import io
import types

import pytest
import torch
from probe_lab import network, train

from overnight_probe import saves


@pytest.fixture
def told(monkeypatch):
    """What is told of torch's own functions; small files count, too."""
    events: list[dict[str, object]] = []
    serialization = importlib.import_module("torch.serialization")
    for module in (torch, serialization):
        for name in ("save", "load"):
            monkeypatch.setattr(module, name, getattr(module, name))
    monkeypatch.setattr(saves, "WORTH_BYTES", 0)
    saves.Saves(events.append).torch(serialization)
    return events


def test_a_save_is_a_phase_and_then_done(told, tmp_path):
    """And what is saved is what is loaded."""
    path = tmp_path / "step_7.pt"
    torch.save({"x": torch.ones(3)}, path)
    assert torch.equal(torch.load(f=str(path), weights_only=True)["x"], torch.ones(3))
    phase, saved, loaded = told
    assert phase == {"event": "phase", "name": "save"}
    assert saved["saved"] == loaded["loaded"] == str(path)
    assert saved["seconds"] >= 0


def test_buffers_have_no_path(told):
    buffer = io.BytesIO()
    torch.save(torch.ones(3), buffer)
    buffer.seek(0)
    assert torch.equal(torch.load(buffer, weights_only=True), torch.ones(3))
    assert told == []


def test_small_files_by_the_thousand_are_not_told(told, tmp_path, monkeypatch):
    """A data set of tensors; one announcement a second at most."""
    monkeypatch.setattr(saves, "WORTH_BYTES", 1 << 20)
    monkeypatch.setattr(saves, "WORTH_S", 1e9)
    monkeypatch.setattr(saves, "PHASE_EVERY_S", 1e9)
    for number in range(20):
        torch.save(torch.ones(3), tmp_path / f"{number}.pt")
        torch.load(tmp_path / f"{number}.pt", weights_only=True)
    assert told == [{"event": "phase", "name": "save"}]


def test_an_error_of_the_save_is_the_scripts_own(told, tmp_path):
    """It is raised as without us."""
    with pytest.raises(RuntimeError):
        torch.save(torch.ones(3), tmp_path / "nowhere" / "x.pt")


def test_an_error_in_telling_is_not_the_scripts(tmp_path):
    def fail(_event):
        raise RuntimeError("planted")

    module = types.ModuleType("safetensors.torch")
    module.save_file = lambda tensors, filename: tensors
    module.load_file = lambda filename: filename
    saves.Saves(fail).safetensors(module)
    path = tmp_path / "x.safetensors"
    path.write_bytes(b"x")
    assert module.save_file({"a": 1}, filename=path) == {"a": 1}
    assert module.load_file(path) == path


def test_the_step_comes_with_it(probed):
    """That of the update that was made last."""
    probe, model = probed(first_step=100), network()
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), [1, 2])
    probe.hooks.saves._tell({"event": "probe", "saved": "/x.pt", "seconds": 0.1})
    [event] = probe.events("saved")
    assert (event["saved"], event["step"]) == ("/x.pt", 102)
