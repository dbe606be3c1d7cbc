"""What several groups, optimizers or the script itself share with the probe."""

from __future__ import annotations

import os

import pytest
import torch
from probe_lab import batch, network, train, weights
from torch import nn
from torch.nn import functional

from overnight_probe.probe import HANDOVER_UPDATES


def test_a_rate_that_several_groups_share_is_scaled_once(probed):
    """One tensor for all of them, as a capturable optimizer has it."""
    probe, model, rate = probed(lr_scale=0.5), network(), torch.tensor(0.1)
    groups = [{"params": [p]} for p in model.parameters()]
    optimizer = torch.optim.Adam(groups, lr=rate, fused=True)
    seen = []
    optimizer.register_step_pre_hook(lambda opt, *_: seen.append(float(opt.param_groups[0]["lr"])))
    train(model, optimizer, [1])
    assert seen == [pytest.approx(0.05)]
    assert float(optimizer.param_groups[0]["lr"]) == pytest.approx(0.1)
    assert probe.records()[0]["lr"] == pytest.approx(0.05)


def test_a_norm_belongs_to_the_parameters_that_were_clipped(probed):
    """Twin critics: both are clipped, then both step; only the poisoned one is left out."""
    probed()
    twins = [network(1), network(2)]
    optimizers = [torch.optim.SGD(twin.parameters(), lr=0.1) for twin in twins]
    for step, bad in ((1, None), (2, 0), (3, 1)):
        before = [weights(twin) for twin in twins]
        for index, twin in enumerate(twins):
            x, y = batch(step, bad=index == bad)
            optimizers[index].zero_grad()
            functional.mse_loss(twin(x), y).backward()
        for twin in twins:
            nn.utils.clip_grad_norm_(twin.parameters(), 1.0)
        for index, twin in enumerate(twins):
            optimizers[index].step()
            moved = not torch.equal(before[index][0], weights(twin)[0])
            assert moved == (index != bad)
            assert torch.isfinite(weights(twin)[0]).all()


def test_a_probe_that_is_off_gives_its_memory_back(probed):
    """Its snapshots must not starve the training that it no longer watches."""
    probe, model = probed(), network()
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), [1, 2])
    assert probe.probe._back.ring.steps == [1, 2]
    probe.probe.switch_off("a test")
    assert probe.probe._back.ring.steps == []


def rates(optimizer):
    """The rates that each call of `step` really used."""
    used = []
    optimizer.register_step_pre_hook(lambda opt, *_: used.append(opt.param_groups[0]["lr"]))
    return used


class Nested(torch.optim.SGD):
    """A `step` that calls that of its base class, as many do."""

    def step(self, closure=None):
        return super().step(closure)


def test_a_nested_step_is_one_update(probed):
    """One record, the rate lowered once, the loss known."""
    reference = network()
    train(reference, torch.optim.SGD(reference.parameters(), lr=0.05), [1, 2])
    probe, model = probed(lr_scale=0.5), network()
    seen = train(model, Nested(model.parameters(), lr=0.1), [1, 2])
    assert all(torch.equal(a, b) for a, b in zip(weights(model), weights(reference), strict=True))
    assert [r["loss"] for r in probe.records()] == [pytest.approx(loss) for loss, _norm in seen]
    assert [r["step"] for r in probe.records()] == [1, 2]


def test_a_nested_step_leaves_out_what_is_not_finite(probed):
    probe, model = probed(), network()
    optimizer = Nested(model.parameters(), lr=0.1)
    train(model, optimizer, [1, 2, 3], bad=[2])
    assert [bool(r.get("skipped")) for r in probe.records()] == [False, True, False]
    assert torch.isfinite(model[0].weight).all()


class Wrapper(torch.optim.Optimizer):
    """As SAM does it: another optimizer with the same groups."""

    def __init__(self, base):
        super().__init__(base.param_groups, {})
        self.base, self.param_groups = base, base.param_groups

    def step(self, closure=None):
        return self.base.step(closure)


def test_wrapped_optimizers_share_their_groups(probed):
    """The rate is lowered once, and they are no two that fight."""
    reference = network()
    train(reference, torch.optim.SGD(reference.parameters(), lr=0.05), [1, 2])
    probe, model = probed(lr_scale=0.5), network()
    optimizer = Wrapper(torch.optim.SGD(model.parameters(), lr=0.1))
    train(model, optimizer, [1, 2])
    assert all(torch.equal(a, b) for a, b in zip(weights(model), weights(reference), strict=True))
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert probe.events("optimizers") == []


def test_a_step_that_raises_gives_the_rate_back(probed):
    """At the next update at the latest; the update that is tried again counts once."""
    probe, model = probed(lr_scale=0.5), network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    used = rates(optimizer)
    optimizer.register_step_pre_hook(lambda *_: 1 / 0 if len(used) == 1 else None)
    with pytest.raises(ZeroDivisionError):
        train(model, optimizer, [1])
    train(model, optimizer, [1, 2])
    assert used == [0.05, 0.05, 0.05]
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert [r["step"] for r in probe.records()] == [1, 2]


def test_a_rate_that_the_step_changes_stays_changed(probed):
    """Adaptive methods write their rate in `step`: what they see is theirs, times the scale."""

    class Decays(torch.optim.SGD):
        def step(self, closure=None):
            super().step(closure)
            self.param_groups[0]["lr"] *= 0.9

    probed(lr_scale=0.5)
    model = network()
    optimizer = Decays(model.parameters(), lr=0.1)
    train(model, optimizer, [1, 2])
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.081)


@pytest.mark.parametrize("gone", [True, False])
def test_another_model_takes_over(probed, gone):
    """k-fold, or the head first and then all: the first optimizer is gone, or steps no more."""
    probe, model = probed(), network()
    first = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, first, [1, 2])
    if gone:
        del first
    other = network(1)
    second = torch.optim.Adam(other.parameters(), lr=0.01)
    steps = 5 if gone else HANDOVER_UPDATES + 5
    train(other, second, range(1, steps + 1))
    assert [event["optimizer"] for event in probe.events("hello")] == ["SGD", "Adam"]
    assert probe.events("optimizers") == []  # no two that fight
    assert [r["step"] for r in probe.records()] == list(range(1, len(probe.records()) + 1))
    assert len(probe.records()) >= 2 + 4
    assert min(probe.probe._back.ring.steps) > 2  # none of the model before


def test_what_the_process_starts_has_no_probe(probed, monkeypatch):
    """Once it trains: an evaluation in a process of its own would report as the run."""
    monkeypatch.setenv("OVERNIGHT_PROBE", "{}")
    probed()
    model = network()
    assert "OVERNIGHT_PROBE" in os.environ
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), [1])
    assert "OVERNIGHT_PROBE" not in os.environ
