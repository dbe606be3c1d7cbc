"""What is handed to trainers that can resume; the real ones are in test_frameworks.py."""

from __future__ import annotations

import json
import types

import pytest
import torch

from overnight_probe import trainers


class Trainer:
    """Both interfaces, as the frameworks have them."""

    def train(self, resume_from_checkpoint=None, trial=None, **more):
        return (resume_from_checkpoint, trial, more)

    def fit(self, model, train_dataloaders=None, val_dataloaders=None, *more, ckpt_path=None):
        return (model, train_dataloaders, more, ckpt_path)


@pytest.fixture
def module(monkeypatch, tmp_path):
    """A framework's module that has just been imported; Overnight's variables are set."""
    monkeypatch.setenv("OVERNIGHT_METRICS", str(tmp_path / "metrics.jsonl"))
    monkeypatch.delenv("OVERNIGHT_RESUME", raising=False)
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setattr(trainers, "_trainings", [])
    made = types.ModuleType("framework")
    made.Trainer = type("Trainer", (Trainer,), dict(vars(Trainer)))
    trainers.hugging_face(made)
    trainers.lightning(made)
    return made


def hellos(tmp_path):
    path = tmp_path / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_a_fresh_start_is_the_scripts_own(module, tmp_path):
    """Nothing is handed over; and it is known from now on that this script can resume."""
    assert module.Trainer().train(True, trial=1, x=2) == (True, 1, {"x": 2})
    assert module.Trainer().fit("model", "data", ckpt_path="own.ckpt")[3] == "own.ckpt"
    hello = {"event": "hello", "lr_scale": True, "skip": False}
    assert hellos(tmp_path) == [
        {**hello, "resume": True, "loads": "checkpoint-*"},
        {**hello, "resume": False, "loads": "*.ckpt"},  # a second training has no route
    ]


def test_only_the_main_process_says_hello(module, tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    module.Trainer().train()
    assert hellos(tmp_path) == []


def test_the_chosen_checkpoint_wins_once(module, tmp_path, monkeypatch):
    """A second training of the same process begins at its own beginning."""
    chosen = tmp_path / "checkpoint-100"
    chosen.mkdir()
    (chosen / "trainer_state.json").write_text("{}")
    monkeypatch.setenv("OVERNIGHT_RESUME", str(chosen))
    assert module.Trainer().train("other")[0] == str(chosen)
    assert module.Trainer().train("other")[0] == "other"


@pytest.mark.parametrize("whole", [True, False])
def test_lightning_gets_a_file(module, monkeypatch, tmp_path, whole):
    """One that holds weights only cannot be resumed from, and says so."""
    path = tmp_path / "step=100.ckpt"
    state = {"state_dict": {}, "global_step": 100} | ({"optimizer_states": []} if whole else {})
    torch.save(state, path)
    monkeypatch.setenv("OVERNIGHT_RESUME", str(path))
    if not whole:
        with pytest.raises(trainers.ChosenCheckpointError, match="holds no optimizer"):
            module.Trainer().fit("model", "data", ckpt_path=None)
        return
    assert module.Trainer().fit("model", "data", ckpt_path=None)[3] == str(path)
    assert module.Trainer().fit("model", "data", ckpt_path=None)[3] is None


@pytest.mark.parametrize(
    ("method", "path"), [("train", "weights.pt"), ("fit", "checkpoint-100"), ("train", "gone")]
)
def test_a_foreign_checkpoint_is_an_error(module, monkeypatch, method, path):
    """Training would begin from scratch, and write over what is there."""
    monkeypatch.setenv("OVERNIGHT_RESUME", path)
    with pytest.raises(trainers.ChosenCheckpointError, match="was not written by this trainer"):
        getattr(module.Trainer(), method)(None)
