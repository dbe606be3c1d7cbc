"""The network: sizes, causality, what decays."""

from __future__ import annotations

import math

import pytest
import torch

from overnight_trainer.model import GPT, PRESETS, make_optimizer, scheduled_lr


@pytest.mark.parametrize(
    ("name", "millions"), [("tiny", 0.23), ("small", 25), ("base", 126), ("large", 303)]
)
def test_presets_have_the_size_that_they_claim(name: str, millions: float) -> None:
    """Counted without memory, on the meta device."""
    with torch.device("meta"):
        model = GPT(PRESETS[name])
    assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(millions, rel=0.02)


def test_a_byte_is_predicted_from_earlier_ones_only() -> None:
    """The gradient of an early target's loss does not reach a later input."""
    torch.manual_seed(0)
    model = GPT(PRESETS["tiny"])
    rows = torch.randint(256, (1, 65))
    seen: list[torch.Tensor] = []
    model.norm.register_forward_hook(lambda _module, _inputs, output: seen.append(output))
    changed = rows.clone()
    changed[0, 20] = (changed[0, 20] + 1) % 256
    for batch in (rows, changed):
        model(batch)
    same = (seen[0] == seen[1]).all(dim=-1)[0]
    assert same[:20].all()
    assert not same[20:].any()


def test_norm_gains_do_not_decay() -> None:
    """Two groups: matrices with decay, gains without; together they are all parameters."""
    model = GPT(PRESETS["tiny"])
    matrices, gains = make_optimizer(model).param_groups
    assert (matrices["weight_decay"], gains["weight_decay"]) == (0.1, 0.0)
    assert {p.dim() for p in gains["params"]} == {1}
    assert len(matrices["params"]) + len(gains["params"]) == len(list(model.parameters()))


@pytest.mark.parametrize(
    ("step", "factor"),
    [(1, 0.01), (50, 0.5), (100, 1.0), (550, 0.55), (1000, 0.1), (2000, 0.1)],
    ids=["first", "half of warm-up", "peak", "half of the cosine", "last", "beyond"],
)
def test_schedule(step: int, factor: float) -> None:
    """Linear up to the peak, then a cosine down to a tenth of it."""
    assert math.isclose(scheduled_lr(step, peak=2.0, warmup=100, steps=1000), 2 * factor)
