"""What several groups, optimizers or the script itself share with the probe."""

from __future__ import annotations

import pytest
import torch
from probe_lab import batch, network, train, weights
from torch import nn
from torch.nn import functional


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
