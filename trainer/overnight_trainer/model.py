"""The network: a decoder-only transformer on bytes. RMSNorm, rotary positions, causal SDPA, relu².

    model = GPT(PRESETS["tiny"])
    loss = model(rows)

The rows are (batch, seq_len + 1) bytes, of which each is to predict the next.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - its name in every PyTorch text
from torch import Tensor, nn

VOCAB = 256  # one token a byte: no tokenizer to fetch, any file is training data


@dataclass(frozen=True)
class Preset:
    """A model size, with the batch and the peak learning rate that suit it."""

    layers: int
    width: int
    heads: int
    seq_len: int
    batch: int
    lr: float


PRESETS = {
    "tiny": Preset(layers=4, width=64, heads=2, seq_len=64, batch=8, lr=3e-3),  # 0.2 M, for a CPU
    "small": Preset(layers=8, width=512, heads=8, seq_len=512, batch=32, lr=1e-3),  # 25 M
    "base": Preset(layers=10, width=1024, heads=8, seq_len=1024, batch=16, lr=6e-4),  # 126 M
    "large": Preset(layers=24, width=1024, heads=8, seq_len=1024, batch=8, lr=3e-4),  # 303 M
}


def rotate(x: Tensor, turns: Tensor) -> Tensor:
    """Rotary embedding: turn each pair (x[i], x[i + half]) by an angle that grows with position."""
    (a, b), (cos, sin) = x.chunk(2, dim=-1), turns
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1).type_as(x)


class Block(nn.Module):
    """Attention, then the MLP; each reads the normalised stream and adds to it."""

    def __init__(self, size: Preset) -> None:
        super().__init__()
        self.heads = size.heads
        self.norm1 = nn.RMSNorm(size.width)
        self.qkv = nn.Linear(size.width, 3 * size.width, bias=False)
        self.mix = nn.Linear(size.width, size.width, bias=False)
        self.norm2 = nn.RMSNorm(size.width)
        self.up = nn.Linear(size.width, 4 * size.width, bias=False)
        self.down = nn.Linear(4 * size.width, size.width, bias=False)

    def forward(self, x: Tensor, turns: Tensor) -> Tensor:
        """The stream after this block: (batch, seq, width) in and out."""
        qkv = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1))
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # each (batch, heads, seq, head width)
        y = F.scaled_dot_product_attention(rotate(q, turns), rotate(k, turns), v, is_causal=True)
        x = x + self.mix(y.transpose(1, 2).flatten(2))
        mlp: Tensor = self.down(F.relu(self.up(self.norm2(x))).square())
        return x + mlp


class GPT(nn.Module):
    """Embedding, blocks, head; called on rows of bytes it returns its own loss."""

    turns: Tensor

    def __init__(self, size: Preset) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, size.width)
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.layers))
        self.norm = nn.RMSNorm(size.width)
        self.head = nn.Linear(size.width, VOCAB, bias=False)
        half = size.width // size.heads // 2
        angles = torch.outer(torch.arange(size.seq_len), 10_000.0 ** (-torch.arange(half) / half))
        turns = torch.stack((angles.cos(), angles.sin()))
        self.register_buffer("turns", turns, persistent=False)  # not saved: the size determines it
        for name, weight in self.named_parameters():
            if weight.dim() >= 2:  # GPT-2's rule: what adds to the residual stream starts smaller
                adds = name.endswith(("mix.weight", "down.weight"))
                nn.init.normal_(weight, std=0.02 / math.sqrt(2 * size.layers if adds else 1))

    def forward(self, rows: Tensor) -> Tensor:
        """Mean cross-entropy in nats a byte; an untrained model has ln 256 = 5.5."""
        inputs, targets = rows[:, :-1], rows[:, 1:]
        x = self.embed(inputs)
        for block in self.blocks:
            x = block(x, self.turns)
        logits = self.head(self.norm(x)).float()
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def make_optimizer(model: nn.Module) -> torch.optim.AdamW:
    """AdamW in two groups: matrices decay, norm gains do not. The loop sets `lr` at each step."""
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    gains = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": gains, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.95), fused=True)


def scheduled_lr(step: int, *, peak: float, warmup: int, steps: int) -> float:
    """Linear warm-up, then a cosine down to a tenth of the peak."""
    if step <= warmup:
        return peak * step / warmup
    done = min(1.0, (step - warmup) / max(1, steps - warmup))
    return peak * (0.55 + 0.45 * math.cos(math.pi * done))
