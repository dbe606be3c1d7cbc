"""What a printed name means: one table of roles, looked up by the last words of the name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

EVAL_WORDS = frozenset(
    (
        "val",
        "valid",
        "validation",
        "validate",
        "validating",
        "eval",
        "evaluation",
        "evaluating",
        "evaluate",
        "test",
        "testing",
        "dev",
        "heldout",
        "tel",
    )
)
_NAMES = {
    **dict.fromkeys(("step", "steps", "iter", "iters", "iteration", "iterations"), "step"),
    **dict.fromkeys(("it", "update", "updates", "nupdates", "batch", "batches"), "step"),
    **dict.fromkeys(("up", "步"), "step"),
    **dict.fromkeys(("step num", "global batch"), "step"),
    **dict.fromkeys(("timesteps", "batch count", "batch idx", "minibatch"), "step"),
    **dict.fromkeys(("epoch", "ep", "epochs"), "epoch"),
    **dict.fromkeys(("lr", "learning rate", "learningrate", "lr0", "lrate", "l r"), "lr"),
    **dict.fromkeys(("grad norm", "grad norms", "gradnorm", "gnorm", "norm"), "grad_norm"),
    **dict.fromkeys(("gradient norm", "total norm", "grad l2 norm", "grads norm"), "grad_norm"),
    **dict.fromkeys(("tok s", "tokens s", "tok sec", "tokens sec", "tps"), "tokens_per_s"),
    **dict.fromkeys(("tokens per second", "tokens per s", "tokens per sec"), "tokens_per_s"),
    **dict.fromkeys(("loss scale", "grad scale", "loss scaler", "lossscale"), "loss_scale"),
    **dict.fromkeys(("total steps", "max steps", "total iters"), "total_steps"),
    **dict.fromkeys(("skipped iterations", "skipped steps"), "skipped"),
    "nan iterations": "nan_count",
    # The loss under another name.
    **dict.fromkeys(("xent", "cost", "cross entropy", "crossentropy", "nll", "trl"), "loss"),
    **dict.fromkeys(("ce", "objective", "loss step", "loss total", "loss avg", "elbo"), "loss"),
    **dict.fromkeys(("mse", "rmse", "mae", "bpc", "bpb", "train error", "training error"), "loss"),
    **dict.fromkeys(("g gan", "g l1", "d real", "d fake", "损失", "損失"), "loss"),
    # Durations, counts and names of something else, which end in a word of interest.
    **dict.fromkeys(
        ("time batch", "time epoch", "time sample", "time token", "time iteration"), ""
    ),
    **dict.fromkeys(("per step", "per iter", "per it", "per iteration", "per update"), ""),
    **dict.fromkeys(("s step", "ms step", "sec step", "s it", "ms it", "sec it", "s iter"), ""),
    **dict.fromkeys(
        ("per batch", "s batch", "ms batch", "per epoch", "sec epoch", "sec batch"), ""
    ),
    **dict.fromkeys(("checkpoint step", "warmup steps", "warmup iters", "accumulation steps"), ""),
    **dict.fromkeys(("save steps", "eval steps", "logging steps", "num steps", "num epochs"), ""),
    **dict.fromkeys(("num iterations", "skip iterations", "max epochs", "total epochs"), ""),
    **dict.fromkeys(("warmup epochs", "per device batch", "num batches", "n batches"), ""),
    **dict.fromkeys(("param norm", "params norm", "parameter norm", "weight norm"), ""),
    **dict.fromkeys(("weights norm", "update norm", "layer norm", "batch norm"), ""),
    **dict.fromkeys(("error rate", "dropout rate", "drop rate", "frame rate", "hit rate"), ""),
    **dict.fromkeys(("success rate", "sample rate", "sampling rate", "clip rate"), ""),
}
"""The last words of a name -> its role, "" for none. Longer endings win."""

SPLIT_NAMES = ("split", "mode", "phase", "stage", "subset")
"""Columns and keys that say whether a row trains or evaluates."""

_NO_LOSS = frozenset(
    (
        "py",
        "cu",
        "cpp",
        "cc",
        "h",
        "pt",
        "csv",
        "log",
        "txt",
        "npy",
        "png",
        "json",
        "scale",
        "scaler",
        "weight",
        "weights",
        "coef",
        "coeff",
        "beta",
        "alpha",
        "gamma",
        "type",
        "lambda",
        "ratio",
        "fn",
        "mask",
        "factor",
        "func",
        "function",
        "std",
        "norm",
        "var",
        "lr",
        "step",
        "iter",
        "time",
        "grad",
        "gap",
        "delta",
        "change",
        "diff",
        "threshold",
        "limit",
    )
)
"""Last words that make a name beginning with `loss` mean a setting or a statistic of it."""

_PARTS = frozenset(("pix", "percep", "style", "gan", "g", "d", "total", "rec", "ce", "tv"))
"""What stands behind an `l` that is short for loss."""

_BEST = frozenset(("reduced train loss", "train loss step"))
_TOTALS = frozenset(
    (
        "total loss",
        "loss total",
        "lm loss",
        "train loss",
        "training loss",
        "avr loss",
        "trl",
        "tr loss",
        "loss train total",
        "mean loss",
        "loss train",
        "batch loss",
        "loss step",
    )
)
_SIDE = frozenset(
    (
        "aux",
        "auxiliary",
        "kl",
        "kld",
        "vq",
        "smooth",
        "smoothed",
        "avg",
        "average",
        "ema",
        "mean",
        "policy",
        "entropy",
        "reg",
        "regularization",
        "commit",
        "commitment",
        "d",
        "disc",
        "real",
        "fake",
        "discriminator",
        "balance",
        "router",
        "z",
        "mtp",
        "penalty",
        "gp",
        "accum",
        "best",
        "min",
        "last",
        "prev",
        "previous",
        "running",
    )
)

_MEASURES = frozenset(("mse", "rmse", "mae", "bpc", "bpb", "error"))
"""Measures that are the loss only where nothing else is."""

_STEP_RANKS = {
    **dict.fromkeys(("global step", "num updates", "global steps", "total timesteps"), 5),
    **dict.fromkeys(("n updates", "optimizer step", "opt step"), 5),
    **dict.fromkeys(("batch", "batches", "nupdates", "batch count", "batch idx", "minibatch"), 1),
    **dict.fromkeys(("timesteps", "serial timesteps"), 1),
}
NAMED_RANK, COUNTER_RANK = 4, 2
"""How surely a number is the step: by a usual name, or only by its shape `n/total`."""

PART_RANK, MEASURE_RANK, SIDE_RANK = 4, 7, 9
"""From here on a loss is a part of a total, a measure, and one that may rise by design."""

_WORD = re.compile(r"[^\W_]+")
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")
_MEANINGS: dict[str, tuple[str, int]] = {}

Meaning = Callable[[str], tuple[str, int]]
"""A name -> its role and rank, as `meaning`."""


def meaning(name: str) -> tuple[str, int]:
    """A name's role and rank: for a loss the smaller, for a step the larger is the better one."""
    found = _MEANINGS.get(name)
    if found is None:
        if len(_MEANINGS) > 4096:  # a log that invents names must not grow us
            _MEANINGS.clear()
        found = _MEANINGS[name] = _meaning(name)
    return found


def words_of(name: str) -> list[str]:
    """The words of a name, in small letters: `trainLoss`, `train/loss` and `Train loss` agree."""
    return _WORD.findall(_CAMEL.sub(" ", name).lower())


def _meaning(name: str) -> tuple[str, int]:
    words = words_of(name)
    role = _role(words)
    if role == "loss":
        return ("loss" if EVAL_WORDS.isdisjoint(words) else "eval_loss"), _loss_rank(words)
    if role == "step":
        if not EVAL_WORDS.isdisjoint(words):
            return "eval_step", 0
        ends = (" ".join(words[-2:]), words[-1])
        return role, next((_STEP_RANKS[end] for end in ends if end in _STEP_RANKS), NAMED_RANK)
    return role, 0


def _role(words: list[str]) -> str:
    for length in (3, 2, 1):
        role = _NAMES.get(" ".join(words[-length:]))
        if role is not None and len(words) >= length:
            return role
    if not words:
        return ""
    if words[0] == "l" and len(words) > 1 and words[1] in _PARTS:
        return "loss"  # BasicSR: l_pix, l_g_total
    if words[-1].endswith(("loss", "losses")):
        return "loss"
    if "loss" in words[:-1] and words[-1] not in _NO_LOSS:
        return "loss"  # loss_cls, loss/train/total
    return ""


_GENERATORS = frozenset(("g", "gen", "generator", "actor", "policy"))
_OPPONENTS = frozenset(("d", "disc", "discriminator", "critic", "value", "adv"))


def are_adversarial(names: Iterable[str]) -> bool:
    """Whether losses of these names fight each other (GAN, RL): their level then says nothing."""
    words = {word for name in names for word in words_of(name)}
    return not (words.isdisjoint(_GENERATORS) or words.isdisjoint(_OPPONENTS))


def _loss_rank(words: list[str]) -> int:
    """0 the most likely to be the training loss, 9 a side loss that may rise by design."""
    if words[-1] in _MEASURES:
        return MEASURE_RANK
    text = " ".join(words)
    ends = {" ".join(words[-2:]), " ".join(words[-3:])}
    if ends & _BEST:
        return 0
    if text == "loss":
        return 1
    if ends & _TOTALS and _SIDE.isdisjoint(words[:-2]):
        return 2
    if not _SIDE.isdisjoint(words):
        return SIDE_RANK
    return PART_RANK if words[-1] == "loss" or len(words) == 1 else 6
