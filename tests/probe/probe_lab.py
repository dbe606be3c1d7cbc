"""A small network, its loop, and the optimizers that people use."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn import functional

NAN = float("nan")
OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "adam foreach": lambda p: torch.optim.Adam(p, lr=0.01, foreach=True),
    "adamw fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "adam tensor lr": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.01), fused=True),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=0.01),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
}


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def batch(step: int, *, bad: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(16, 4, generator=torch.Generator().manual_seed(step))
    return x * (NAN if bad else 1.0), x.sum(1, keepdim=True)


def train(model, optimizer, steps, *, bad=(), closure=False):
    """A plain loop; returns (loss, gradient norm) as the script itself sees them."""
    seen = []
    for step in steps:
        x, y = batch(step, bad=step in bad)

        def compute(x=x, y=y):
            optimizer.zero_grad()
            loss = functional.mse_loss(model(x), y)
            loss.backward()
            norms = [p.grad.norm() for p in model.parameters()]
            seen.append((loss.item(), torch.stack(norms).norm().item()))
            return loss

        if closure:
            optimizer.step(compute)
        else:
            compute()
            optimizer.step()
    return seen


def weights(model: nn.Module) -> list[torch.Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def state_of(optimizer) -> list:
    return copy.deepcopy(list(optimizer.state.values()))
