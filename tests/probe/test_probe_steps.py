"""Around each update: measured right, left out without a trace, scaled, clipped, harmless."""

from __future__ import annotations

import json
import math
import os

import pytest
import torch
from probe_lab import NAN, OPTIMIZERS, batch, network, state_of, train, weights
from torch import nn
from torch.nn import functional


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_every_update_is_reported_as_it_was(probed, kind):
    """Step, loss, gradient norm and rate, against what the script computes itself."""
    probe, model = probed(), network()
    seen = train(model, OPTIMIZERS[kind](model.parameters()), range(1, 6))
    records = probe.records()
    assert [r["step"] for r in records] == [1, 2, 3, 4, 5]
    assert [r["loss"] for r in records] == pytest.approx([loss for loss, _norm in seen])
    assert [r["grad_norm"] for r in records] == pytest.approx([norm for _loss, norm in seen])
    assert {round(r["lr"], 6) for r in records} == {0.1 if kind == "sgd" else 0.01}
    assert all(r["step_s"] > 0 for r in records[1:])


@pytest.mark.parametrize("closure", [False, True])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_poisoned_update_leaves_no_trace(probed, kind, closure):
    """Weights, moments and step counts are bit-identical to before, gradients are given back."""
    probe, model = probed(), network()
    optimizer = OPTIMIZERS[kind](model.parameters())
    train(model, optimizer, range(1, 4), closure=closure)
    before, state = weights(model), state_of(optimizer)
    train(model, optimizer, [4], bad=[4], closure=closure)
    assert all(torch.equal(a, b) for a, b in zip(before, weights(model), strict=True))
    for old, new in zip(state, state_of(optimizer), strict=True):
        assert all(torch.equal(torch.as_tensor(old[k]), torch.as_tensor(new[k])) for k in old)
    assert all(p.grad is not None for p in model.parameters())
    train(model, optimizer, [5], closure=closure)
    flags = [r.get("skipped", False) for r in probe.records()]
    assert flags == [False, False, False, True, False]
    assert math.isnan(probe.records()[3]["loss"])
    assert not probe.probe.off


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_scaled_update_is_that_of_a_run_with_that_rate(probed, kind):
    """To the bit where the rate is; and the script's own rate is untouched afterwards."""
    probe = probed(lr_scale=0.5)
    model, reference = network(), network()
    optimizer = OPTIMIZERS[kind](model.parameters())
    train(model, optimizer, [1])
    probe.probe.switch_off("compare")
    other = OPTIMIZERS[kind](reference.parameters())
    for group in other.param_groups:
        group["lr"] = group["lr"] * 0.5
    train(reference, other, [1])
    for a, b in zip(weights(model), weights(reference), strict=True):
        assert torch.allclose(a, b, rtol=1e-6, atol=1e-8)
    assert float(optimizer.param_groups[0]["lr"]) == pytest.approx(0.1 if kind == "sgd" else 0.01)
    assert probe.records()[0]["lr"] == pytest.approx(0.05 if kind == "sgd" else 0.005)


def test_a_schedule_neither_sees_nor_undoes_the_scale(probed):
    """The scale changes in mid-schedule; each rate is the schedule's times the scale."""
    probe, model = probed(), network()
    optimizer = torch.optim.SGD(
        [{"params": model[0].parameters()}, {"params": model[2].parameters(), "lr": 0.5}], lr=1.0
    )
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    for step in range(1, 7):
        if step == 4:
            probe.order(lr_scale=0.1)
        train(model, optimizer, [step])
        schedule.step()
    rates = [r["lr"] for r in probe.records()]
    assert rates == pytest.approx([1.0, 0.5, 0.25, 0.0125, 0.00625, 0.003125])
    assert [g["lr"] for g in optimizer.param_groups] == pytest.approx([0.5**6, 0.5**7])


def test_a_rate_that_the_command_carries_already_is_not_lowered_twice(probed):
    """A restart with `--lr` halved, and a later order to quarter the original."""
    probe, model = probed(lr_scale=0.5, applied_scale=0.5), network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    train(model, optimizer, [1])
    probe.order(lr_scale=0.25)
    train(model, optimizer, [2])
    assert [r["lr"] for r in probe.records()] == [0.5, 0.25]


def test_accumulated_losses_are_added_up(probed):
    """The gradient is that of their sum."""
    probe, model = probed(), network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    total = 0.0
    for step in (1, 2, 3, 4):
        x, y = batch(step)
        loss = functional.mse_loss(model(x), y) / 4
        loss.backward()
        total += loss.item()
    optimizer.step()
    assert probe.records()[0]["loss"] == pytest.approx(total)


@pytest.mark.parametrize("kind", ["adamw", "adamw fused"])
def test_a_gradient_scaler_is_understood(probed, kind):
    """Loss and norm are unscaled; an update that the scaler leaves out is counted and marked."""
    probe, model = probed(), network()
    optimizer = OPTIMIZERS[kind](model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    truth = []
    for step in range(1, 6):
        x, y = batch(step, bad=step == 3)
        optimizer.zero_grad()
        loss = functional.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        norms = [p.grad.norm() / scaler.get_scale() for p in model.parameters()]
        truth.append((loss.item(), torch.stack(norms).norm().item()))
        scaler.step(optimizer)
        scaler.update()
    records = probe.records()
    assert [r["step"] for r in records] == [1, 2, 3, 4, 5]
    assert [r.get("skipped", False) for r in records] == [False, False, True, False, False]
    good = [0, 1, 3, 4]
    assert [records[i]["loss"] for i in good] == pytest.approx([truth[i][0] for i in good])
    assert [records[i]["grad_norm"] for i in good] == pytest.approx([truth[i][1] for i in good])
    assert all(torch.isfinite(p).all() for p in model.parameters())


def test_autocast_to_bfloat16(probed):
    """A loss in half precision, and gradients in full."""
    probe, model = probed(), network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    x, y = batch(1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = functional.mse_loss(model(x).float(), y)
    loss.backward()
    optimizer.step()
    assert probe.records()[0]["loss"] == pytest.approx(loss.item())


def test_half_precision_parameters(probed):
    """The norm of bfloat16 gradients is computed in fp32."""
    probe, model = probed(), network().to(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = batch(1)
    functional.mse_loss(model(x.bfloat16()), y.bfloat16()).backward()
    truth = torch.stack([p.grad.float().norm() for p in model.parameters()]).norm().item()
    optimizer.step()
    assert probe.records()[0]["grad_norm"] == pytest.approx(truth, rel=1e-4)


def test_sparse_gradients(probed):
    """An embedding with sparse gradients is measured and guarded like any other."""
    probe = probed()
    table = nn.Embedding(10, 3, sparse=True)
    optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
    for factor in (1.0, NAN, 1.0):
        optimizer.zero_grad()
        before = table.weight.detach().clone()
        (table(torch.tensor([1, 2, 2])).pow(2).sum() * factor).backward()
        optimizer.step()
    assert [r.get("skipped", False) for r in probe.records()] == [False, True, False]
    assert torch.isfinite(table.weight).all()
    assert not torch.equal(before, table.weight)
    assert not probe.probe.off


def test_the_norm_that_a_script_computes_is_the_one_before_clipping(probed):
    """`clip_grad_norm_` is left as it is, and its norm is not computed again."""
    probe, model = probed(), network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = batch(1)
    functional.mse_loss(model(x), y).backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    optimizer.step()
    assert probe.records()[0]["grad_norm"] == pytest.approx(norm.item())
    assert norm.item() > 0.1
    after = torch.stack([p.grad.norm() for p in model.parameters()]).norm().item()
    assert after == pytest.approx(0.01, rel=1e-3)


def test_a_fixed_clip_is_that_of_torch(probed):
    """The update is that of a script that calls `clip_grad_norm_` itself."""
    probe = probed(clip="0.05")
    model, reference = network(), network()
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), [1])
    probe.probe.switch_off("compare")
    other = torch.optim.SGD(reference.parameters(), lr=0.1)
    x, y = batch(1)
    functional.mse_loss(reference(x), y).backward()
    nn.utils.clip_grad_norm_(reference.parameters(), 0.05)
    other.step()
    for a, b in zip(weights(model), weights(reference), strict=True):
        assert torch.allclose(a, b, atol=1e-7)


def test_auto_clip_holds_an_outlier_down(probed):
    """After the warm-up, a gradient 1000 times too large moves the weights like a usual one."""
    probe = probed(clip="auto")
    weight = nn.Parameter(torch.zeros(4))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    moves = []
    for step in range(1, 61):
        optimizer.zero_grad()
        (weight * (1000.0 if step == 50 else 1.0 + step % 3 / 10)).sum().backward()
        before = weight.detach().clone()
        optimizer.step()
        moves.append((weight - before).norm().item())
    usual = max(moves[40:49])
    assert usual <= moves[49] <= 1.6 * usual
    assert probe.records()[49]["grad_norm"] == pytest.approx(2000.0)


def test_two_optimizers_are_told_apart(probed):
    """A GAN: the first one's loss is reported, both are guarded and scaled, and it is said."""
    probe = probed(lr_scale=0.5)
    first, second = network(1), network(2)
    a = torch.optim.SGD(first.parameters(), lr=0.1)
    b = torch.optim.SGD(second.parameters(), lr=0.2)
    for step in (1, 2, 3):
        seen = train(first, a, [step])
        before = weights(second)
        train(second, b, [step], bad=[2])
        same = all(torch.equal(x, y) for x, y in zip(before, weights(second), strict=True))
        assert same == (step == 2)
    records = probe.records()
    assert [r["step"] for r in records] == [1, 2, 3]
    assert records[-1]["loss"] == pytest.approx(seen[0][0])
    assert [event["optimizers"] for event in probe.events("optimizers")] == [2]
    assert b.param_groups[0]["lr"] == 0.2


def test_running_statistics_of_a_bad_batch_are_mended(probed):
    """BatchNorm writes them in the forward pass: the last finite ones come back."""
    probe = probed()
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    train(model, optimizer, [1, 2])
    kept = model[1].running_mean.clone()
    train(model, optimizer, [3], bad=[3])
    assert torch.equal(model[1].running_mean, kept)
    train(model, optimizer, [4])
    assert torch.isfinite(model[1].running_var).all()
    assert not probe.probe.off


def test_lbfgs_is_left_alone(probed):
    """Its closure runs many times an update."""
    probe, model = probed(), network()
    train(model, torch.optim.LBFGS(model.parameters(), lr=0.1), [1], closure=True)
    assert not probe.records()
    assert not probe.probe.off


@pytest.mark.parametrize("skip", [True, False])
def test_without_the_guard_nothing_is_left_out(probed, skip):
    """`skip_nonfinite = false`: as the script wrote it."""
    probed(skip_nonfinite=skip)
    model = network()
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), [1, 2], bad=[2])
    assert torch.isfinite(model[0].weight).all() == skip


def test_nonsense_in_the_control_file_changes_nothing(probed, tmp_path):
    """Half a file, other types, a rate that raises: as before."""
    probe, model = probed(lr_scale=0.5), network()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    texts = ["{", "[]", '{"lr_scale": 2}', '{"lr_scale": "NaN"}', '{"lr_scale": NaN}', "\x00"]
    for step, text in enumerate(texts, 1):
        (tmp_path / "control.json").write_text(text)
        train(model, optimizer, [step])
    assert {r["lr"] for r in probe.records()} == {0.5}
    assert not probe.probe.off


def test_an_order_for_several_processes_waits_for_its_step(probed):
    """All ranks obey at the same update."""
    probe, model = probed(), network()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    probe.order(lr_scale=0.5, probe={"from_step": 3})
    train(model, optimizer, range(1, 5))
    assert [r["lr"] for r in probe.records()] == [1.0, 1.0, 0.5, 0.5]


def test_only_rank_zero_reports(probed, monkeypatch):
    """The others act alike and say nothing."""
    monkeypatch.setenv("RANK", "1")
    probe, model = probed(), network()
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), [1, 2, 3], bad=[2])
    assert probe.lines() == []
    assert torch.isfinite(model[0].weight).all()


INSIDE = ["on_backward", "_prepare", "_norm_of", "_clip_to_bound", "_push", "_is_bad", "keep"]


@pytest.mark.parametrize("broken", INSIDE)
def test_an_error_inside_ends_the_probe_and_not_the_training(probed, monkeypatch, broken):
    """Planted in each part: the run ends as without the probe, to the bit, and it is said."""
    from overnight_probe import going_back
    from overnight_probe import probe as module

    reference = network()
    train(reference, torch.optim.AdamW(reference.parameters(), lr=0.01), range(1, 6))
    calls = []
    part = going_back.GoingBack if broken == "keep" else module.Probe
    original = getattr(part, broken)

    def fail(self, *args, **kwargs):
        calls.append(broken)
        if len(calls) == 3:
            raise RuntimeError("planted")
        return original(self, *args, **kwargs)

    if broken == "on_backward":  # the wrapper that makes it harmless stays around it
        fail = module.harmless(fail)
    monkeypatch.setattr(part, broken, fail)
    probe, model = probed(), network()
    train(model, torch.optim.AdamW(model.parameters(), lr=0.01), range(1, 6))
    assert probe.probe.off
    assert "planted" in probe.events("off")[0]["off"]
    assert all(torch.equal(a, b) for a, b in zip(weights(model), weights(reference), strict=True))


def test_a_full_disk_costs_lines_and_nothing_else(probed):
    """The metrics file cannot be written."""
    probe, model = probed(metrics="/dev/full"), network()
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), [1, 2], bad=[2])
    assert not probe.probe.off
    assert torch.isfinite(model[0].weight).all()


def test_the_numbers_are_json(probed):
    """One object a line, NaN as Python writes it."""
    probe, model = probed(), network()
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), [1, 2], bad=[1])
    assert all(isinstance(line, dict) for line in probe.lines())
    assert json.dumps(probe.records()[0]["loss"]) == "NaN"


def test_a_new_optimizer_goes_on_where_the_old_one_was(probed):
    """A script that makes another one in mid-run: the steps of the run are counted on."""
    probe, model = probed(), network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, optimizer, [1, 2])
    del optimizer
    train(model, torch.optim.Adam(model.parameters(), lr=0.1), [3, 4])
    assert [r["step"] for r in probe.records()] == [1, 2, 3, 4]
    assert [e["optimizer"] for e in probe.events("hello")] == ["SGD", "Adam"]


def test_a_forked_process_says_nothing(probed):
    """Loaders of data are forked from the script with the hooks in them."""
    probe, model = probed(), network()
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), [1])
    before = len(probe.lines())
    child = os.fork()
    if child == 0:
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), [2])
        probe.probe.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert len(probe.lines()) == before
    assert not probe.probe.off


def test_groups_with_rates_of_their_own_are_all_reported(probed):
    """Head and body; one number is enough where they agree."""
    probe, model = probed(lr_scale=0.5), network()
    groups = [{"params": model[0].parameters()}, {"params": model[2].parameters(), "lr": 0.4}]
    train(model, torch.optim.SGD(groups, lr=0.1), [1])
    assert probe.records()[0]["lr_groups"] == [0.05, 0.2]
    other = probed()
    train(network(), torch.optim.SGD(network().parameters(), lr=0.1), [1])
    assert "lr_groups" not in other.records()[-1]
