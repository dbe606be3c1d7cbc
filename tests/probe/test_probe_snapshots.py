"""Back in place: the state of a snapshot, whole and bit-identical, and the right one."""

from __future__ import annotations

import copy
import gc
import math
import weakref

import pytest
import torch
from probe_lab import OPTIMIZERS, batch, network, train, weights
from torch import nn

from overnight_probe.snapshots import Ring


def everything(model, optimizer):
    """A deep copy of weights, buffers and optimizer state."""
    return copy.deepcopy((model.state_dict(), optimizer.state_dict()["state"]))


def same(a, b) -> bool:
    """Whether two such copies are equal to the bit."""
    if torch.is_tensor(a):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, tuple | list):
        return all(same(x, y) for x, y in zip(a, b, strict=True))
    return a == b


def rolled_back(probe, number, *, before, healthy=None):
    """Order a rollback; the next update obeys."""
    place = {"number": number, "before_step": before, "healthy_step": healthy or before}
    probe.order(lr_scale=0.5, probe={"rollback": place, "clip": "auto"})


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_the_state_is_that_of_the_snapshot(probed, kind):
    """Weights, running statistics, moments; the gradients at hand are dropped; it goes on."""
    probe = probed(snapshot_steps=3)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    optimizer = OPTIMIZERS[kind](model.parameters())
    train(model, optimizer, range(1, 5))  # snapshots after 1 and 4
    kept = everything(model, optimizer)
    train(model, optimizer, range(5, 8))  # and after 7
    rolled_back(probe, 1, before=6)
    x, _y = batch(8)
    model.eval()  # so that the forward pass itself leaves the running statistics alone
    train(model, optimizer, [8])
    assert same(kept, everything(model, optimizer))
    model.train()
    train(model, optimizer, [9])
    assert not same(kept, everything(model, optimizer))
    (event,) = probe.events("rollback")
    assert (event["ok"], event["step"], event["snapshot_step"]) == (True, 8, 4)
    records = probe.records()
    assert [r["step"] for r in records] == list(range(1, 10))
    assert records[7]["skipped"] is True
    assert records[8]["lr"] == pytest.approx(records[0]["lr"] / 2)
    assert not probe.probe.off
    assert x is not None


def test_the_same_order_is_obeyed_once(probed):
    """The control file stays as it is."""
    probe, model = probed(), network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, optimizer, range(1, 5))
    rolled_back(probe, 1, before=4)
    train(model, optimizer, range(5, 9))
    rolled_back(probe, 2, before=7)
    train(model, optimizer, range(9, 12))
    assert [e["rollback"] for e in probe.events("rollback")] == [1, 2]


def test_a_healthy_snapshot_comes_before_a_newer_one(probed):
    """100 clean updates before the onset, if there is one; else the newest before it."""
    probe, model = probed(keep=3), network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, optimizer, range(1, 6))  # held: 3, 4, 5
    rolled_back(probe, 1, before=5, healthy=3)
    train(model, optimizer, [6])
    assert probe.events("rollback")[-1]["snapshot_step"] == 3
    train(model, optimizer, range(7, 9))  # held: 3, 7, 8 (6 was left out)
    rolled_back(probe, 2, before=8, healthy=2)
    train(model, optimizer, [9])
    assert probe.events("rollback")[-1]["snapshot_step"] == 7


@pytest.mark.parametrize("part", ["weight", "moment", "buffer"])
def test_a_poisoned_snapshot_is_never_restored(part):
    """NaN anywhere: an older one, or none."""
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    ring = Ring(torch, keep=3, max_bytes=0)
    train(model, optimizer, [1])
    ring.take(1, [optimizer])
    train(model, optimizer, [2])
    poisoned = {
        "weight": model[0].weight.data,
        "moment": optimizer.state[model[0].weight]["momentum_buffer"],
        "buffer": model[1].running_var,
    }
    poisoned[part].view(-1)[3] = float("inf")
    ring.take(2, [optimizer])
    assert ring.steps == [1, 2]
    assert ring.sound_steps(before_step=9) == [1]
    assert ring.sound_steps(before_step=1) == []


def test_an_order_that_cannot_be_obeyed_changes_nothing(probed):
    """No snapshot before that step: it is said, with those that there are."""
    probe, model = probed(), network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, optimizer, range(1, 4))
    rolled_back(probe, 1, before=1)
    train(model, optimizer, [4])
    event = probe.events("rollback")[-1]
    assert (event["ok"], event["why"]) == (False, "snapshots of steps: 1, 2, 3")
    assert not any(r.get("skipped") for r in probe.records())


def test_two_optimizers_go_back_together(probed):
    """A GAN: both drop the gradients that they hold."""
    probe, first, second = probed(), network(1), network(2)
    a = torch.optim.Adam(first.parameters(), lr=0.1)
    b = torch.optim.Adam(second.parameters(), lr=0.1)
    for step in (1, 2, 3):
        train(first, a, [step])
        train(second, b, [step])
    kept = weights(second)
    rolled_back(probe, 1, before=3)
    train(first, a, [4])
    assert not same(kept, weights(second))  # back at the snapshot of step 2
    back = weights(second)
    train(second, b, [4])
    assert same(back, weights(second))
    train(second, b, [5])
    assert not same(back, weights(second))


def test_memory_that_is_not_there_is_not_taken(probed):
    """No snapshots, and it is said, once; the rest of the probe works on."""
    probe, model = probed(snapshot_bytes=100), network()
    train(model, torch.optim.Adam(model.parameters(), lr=0.1), range(1, 5))
    (event,) = probe.events("snapshots")
    assert event["snapshots"] is False
    assert "do not fit" in event["why"]
    assert len(probe.records()) == 4


def test_a_snapshot_holds_no_model_alive(probed):
    """A script that builds another model gets the memory of the first back."""
    probed()
    model = network()
    train(model, torch.optim.Adam(model.parameters(), lr=0.1), [1, 2])
    ref = weakref.ref(model[0].weight)
    del model
    gc.collect()
    assert ref() is None


def test_the_ring_uses_its_memory_again():
    """The fourth snapshot is written into the tensors of the first."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ring = Ring(torch, keep=2, max_bytes=0)
    for step in (1, 2, 3):
        assert ring.take(step, [optimizer])
    assert ring.steps == [2, 3]
    first = ring._taken[0].kept[0].copy.data_ptr()
    ring.take(4, [optimizer])
    assert ring._taken[-1].kept[0].copy.data_ptr() == first


def test_snapshots_are_spaced(probed):
    """At least so many steps apart, and so many seconds."""
    probe, model = probed(snapshot_steps=4, keep=9), network()
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), range(1, 12))
    assert probe.probe._back.ring.steps == [1, 5, 9]
    rare, other = probed(snapshot_s=3600), network()
    train(other, torch.optim.SGD(other.parameters(), lr=0.1), range(1, 9))
    assert rare.probe._back.ring.steps == [1]


class Gathers(torch.optim.SGD):
    """Keeps lists in its state and a counter in its groups, as Shampoo and schedule-free do."""

    def step(self, closure=None):
        super().step(closure)
        for group in self.param_groups:
            group["k"] = group.get("k", 0) + 1
            for p in group["params"]:
                state = self.state[p]
                state.setdefault("sums", [torch.zeros_like(p)])[0].add_(p.detach())


def test_lists_and_counters_go_back_too(probed):
    """And a state that was loaded anew in between: its tensors are others."""
    probe, model = probed(), network()
    optimizer = Gathers(model.parameters(), lr=0.1, momentum=0.9)
    train(model, optimizer, [1, 2])
    weight = model[0].weight
    kept = (optimizer.state[weight]["sums"][0].clone(), optimizer.param_groups[0]["k"])
    momentum = optimizer.state[weight]["momentum_buffer"].clone()
    train(model, optimizer, [3])
    rolled_back(probe, 1, before=3)
    train(model, optimizer, [4])  # the update that the order comes with is left out
    assert torch.equal(optimizer.state[weight]["sums"][0], kept[0] + weight)
    assert torch.equal(optimizer.state[weight]["momentum_buffer"], momentum)
    assert optimizer.param_groups[0]["k"] == kept[1] + 1


def test_a_state_that_was_loaded_in_between_goes_back(probed):
    """`load_state_dict` makes new tensors; and the snapshot is not handed out itself."""
    probe, model = probed(), network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    train(model, optimizer, [1, 2])
    weight = model[0].weight
    kept = optimizer.state[weight]["exp_avg"].clone()
    train(model, optimizer, [3])
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    rolled_back(probe, 1, before=3)
    train(model, optimizer, [4])
    assert torch.equal(optimizer.state[weight]["exp_avg"], kept)
    train(model, optimizer, [5])
    rolled_back(probe, 2, before=3)
    train(model, optimizer, [6])
    assert torch.equal(optimizer.state[weight]["exp_avg"], kept)


def test_a_mask_of_infinities_is_sound():
    """An attention mask among the buffers; an infinity that was not there before is not."""
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    model.register_buffer("mask", torch.full((4, 4), -math.inf).triu(1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ring = Ring(torch, keep=3, max_bytes=0)
    for step in (1, 2):
        train(model, optimizer, [step])
        ring.take(step, [optimizer])
    model[1].running_var[0] = math.inf
    ring.take(3, [optimizer])
    assert ring.sound_steps(before_step=9) == [1, 2]
