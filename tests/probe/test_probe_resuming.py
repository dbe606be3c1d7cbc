"""Four lines that make a script resumable from its own checkpoints."""

from __future__ import annotations

import json

import pytest
import torch
from probe_lab import network, train, weights
from torch import nn

from overnight_probe import ResumeError, resume


@pytest.fixture
def saved(tmp_path, monkeypatch):
    """Save something, and have it chosen as the checkpoint to resume from."""

    def save(value, name="ckpt_40.pt"):
        torch.save(value, tmp_path / name)
        monkeypatch.setenv("OVERNIGHT_RESUME", str(tmp_path / name))

    return save


def trained():
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    train(model, optimizer, range(1, 4))
    return model, optimizer


@pytest.mark.parametrize(
    "shape",
    [
        lambda m, o: {"model": m, "optimizer": o, "step": 30},
        lambda m, o: {"net": m, "optim": o, "iter_num": torch.tensor(30), "config": {"lr": 1}},
        lambda m, o: {"args": {}, "train": {"model_state_dict": m, "opt": o}, "global_step": 30},
        lambda m, o: {
            "state_dict": {f"module._orig_mod.{k}": v for k, v in m.items()},
            "o": o,
            "step": 30,
        },
        lambda m, o: {"ema": {k: v * 0 for k, v in m.items()}, "m": m, "o": o, "step": 30},
    ],
)
def test_each_part_finds_its_state(saved, shape):
    """Whatever the names; the training goes on exactly as it would have."""
    model, optimizer = trained()
    saved(shape(model.state_dict(), optimizer.state_dict()))
    other = network(seed=9)
    again = torch.optim.AdamW(other.parameters(), lr=0.5)
    assert resume(other, again) == 30
    train(model, optimizer, [4])
    train(other, again, [4])
    assert all(torch.equal(a, b) for a, b in zip(weights(model), weights(other), strict=True))


def test_a_wrapped_model_takes_bare_names_and_back(saved):
    """DataParallel around one of them only."""
    model, _optimizer = trained()
    saved(nn.DataParallel(model).state_dict())
    other = network(seed=9)
    assert resume(other) == 40  # the last number of the name
    saved(model.state_dict(), name="plain.pt")
    wrapped = nn.DataParallel(network(seed=9))
    assert resume(wrapped) == 0
    for found in (other, wrapped.module):
        assert all(torch.equal(a, b) for a, b in zip(weights(model), weights(found), strict=True))


def test_without_a_checkpoint_nothing_is_loaded(monkeypatch, tmp_path):
    """A fresh start; and the supervisor hears that there is a route."""
    monkeypatch.delenv("OVERNIGHT_RESUME", raising=False)
    monkeypatch.setenv("OVERNIGHT_METRICS", str(tmp_path / "m.jsonl"))
    model = network()
    before = weights(model)
    assert resume(model) == 0
    assert all(torch.equal(a, b) for a, b in zip(before, weights(model), strict=True))
    assert json.loads((tmp_path / "m.jsonl").read_text()) == {
        "event": "hello",
        "resume": True,
        "lr_scale": True,
        "skip": False,
    }


@pytest.mark.parametrize("kind", ["no optimizer", "another model", "no dictionary"])
def test_a_checkpoint_that_does_not_fit_changes_nothing(saved, kind):
    """It is an error with what there is, never a silent start from random weights."""
    model, optimizer = trained()
    saved(
        {
            "no optimizer": {"model": model.state_dict(), "step": 3},
            "another model": {"model": nn.Linear(3, 3).state_dict(), "opt": optimizer.state_dict()},
            "no dictionary": [1, 2],
        }[kind]
    )
    other = network(seed=9)
    again = torch.optim.AdamW(other.parameters(), lr=0.5)
    before = weights(other)
    with pytest.raises(ResumeError, match="holds no"):
        resume(other, again)
    assert all(torch.equal(a, b) for a, b in zip(before, weights(other), strict=True))


def test_objects_in_a_checkpoint_are_not_unpickled_unasked(saved):
    """`weights_only=False` is the script's own decision."""
    model, _optimizer = trained()
    saved({"model": model.state_dict(), "when": pytest.approx(1.0)})
    with pytest.raises(Exception, match="weights_only"):
        resume(network())
