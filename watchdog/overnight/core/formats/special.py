"""Lines whose numbers have no name, and messages that mean more than their numbers.

One row a kind, the real line above it. Each has a cheap guard, because every line passes here.
"""

from __future__ import annotations

import math
import re

from overnight.core.formats.names import NAMED_RANK
from overnight.core.formats.reading import Loss, Reading

_N = r"[-+]?(?:\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|nan|NaN|inf)"

# 1014: -nan, -nan avg, 0.001000 rate, 1.900000 seconds, 6084 images
_DARKNET = re.compile(rf"(?:^|\s)(\d+): ({_N}), ({_N}) avg(?: loss)?, ({_N}) rate")
# 27.81% [2700/9707 1:31:48<3:58:14 nan]
_FASTAI = re.compile(rf"(?:^|\s)[\d.]+% \[(\d+)/(\d+) [\d:]+<[\d:]+ ({_N})\]")
# [gpu-node] (trainer:636) INFO: 1epoch:train:1-632batch: iter_time=3.1e-04, loss=160.0
_ESPNET = re.compile(r"(\d+)epoch:(train|valid):(\d+)-(\d+)batch")
# Train loss 1200 2.345 Grad Norm 1.21 0.45s/it
_LOSS_AT_STEP = re.compile(rf"\bloss[ ]++(\d++)[ ]++({_N})(?=\s|$)", re.IGNORECASE)
# Progress on:train 1.47kit/10.0kit rate:2.1s/it remaining:4:58:33 postfix:loss=2.99
_LOGGED_BAR = re.compile(r"(?<![\d.])(\d+(?:\.\d+)?)(k|M)?it/(\d+(?:\.\d+)?)(k|M)?it\b")
# What a logger or a launcher puts before everything, as `[rank0]: ` or `2024-05-01 INFO - `.
_PREFIX = r"(?:[\w\[(][\w:.,/ =\-\[\]()]{0,80}?[\])\-:Z](?=\s+[|+\-│┃]))?"
# | value_loss         | 26.523152     |
_ROW = re.compile(
    rf"^{_PREFIX}\s*+[|│┃]\s*+([\w/.%()\-][\w/ .%()\-]{{0,59}}?)\s*+[|│┃]\s*+({_N})\s*+[|│┃]?\s*$"
)
_RULE = re.compile(rf"^{_PREFIX}\s*+[-+=|─━┃│┌┐└┘├┤]{{8,}}\s*$")
# step 2000: train loss 4.2309, val loss 4.2540
_BOTH = re.compile(rf"\bstep (\d+): train loss {_N}, val loss ({_N})")
# OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, reducing to 32768
# WARNING: The grad norm is nan. Skipping updating the model.
# WARNING: NaN or Inf found in input tensor.
_RECORD_OF_NAN = re.compile(r"\bstep:? ?\d+,? loss is ")  # epoch: 1 step: 31, loss is nan
_SKIP = re.compile(
    r"overflow[^a-z]|overflow detected|skipping (?:updat|step|optimizer)|skipped step"
    r"|(?:grad\w*(?: norm)?|loss) (?:is|are) (?:nan|inf|not finite|non-finite)"
    r"|nan or inf found|non-?finite (?:grad|norm|loss)|(?:nan|inf)/(?:nan|inf) in grad"
    r"|detected (?:nan|inf) in (?:grad|loss)|found (?:nan|inf)"
)
_DIGIT, _METRIC = re.compile(r"\d"), re.compile(r"loss|acc|norm|lr\b", re.IGNORECASE)
_SCALE = re.compile(r"(?:scale\D{0,20}|reducing to )(\d+(?:\.\d+)?(?:e[-+]?\d+)?)")
_OTHER_RANK = re.compile(r"rank\D{0,2}(?!0\b)\d")
_SKIP_WORDS = ("verflow", "skip", "nan", "finite", "inf")
_UNITS = {"k": 1e3, "M": 1e6}
_PROSE = ("error:", "traceback", "avoid", "raise ", "if ", "warning_once", "#", "check for")


# Training loss (for 1 batch) at step 200: 2.31        Average loss at step 2000 : 4.2
# avg loss over last 10 batches: 2.31                 Cost after iteration 100: 0.61
_PHRASE = re.compile(
    r"\b((?:[A-Za-z_]{1,20} ){0,2}(?:loss|cost)) ?"
    r"((?:\(|\[|(?:at|after|on|over|per|of|in|for)\b)(?:[^:=|,\n]|,(?=\d)){1,60}?) ?[:=] ?"
    rf"({_N})(?![\w.])",
    re.IGNORECASE,
)
_STEP_OF_PHRASE = re.compile(
    r"\b(step|iter(?:ation)?|update|epoch|(?:mini-?)?batch) ?#?(\d[\d,]*)", re.IGNORECASE
)


def spelled_out(line: str, low: str) -> str | None:
    """The same line without a phrase that has a number of its own: `step 200 Training loss: 2.31`.

    None where there is no such phrase.
    """
    if "loss" not in low and "cost" not in low:
        return None
    found = _PHRASE.search(line)
    if found is None or not _DIGIT.search(found[2]) or _METRIC.search(found[2]):
        return None
    step = _STEP_OF_PHRASE.search(found[2])
    place = f"{step[1]} {step[2]} " if step else ""
    return f"{line[: found.start()]}{place}{found[1]}: {line[found.start(3) :]}"


def read(line: str, low: str) -> Reading | None:
    """The reading of a special line; kind "" means: the named pairs of the line count as well."""
    if "slurmstepd" in low or "train_runtime" in low:
        return Reading(kind="rule")  # cut in the middle; the mean of the whole run
    found = _unnamed(line, low)
    if found is None and ("|" in line or "---" in line or "│" in line or "━━" in line):
        found = _of_table(line)
    if found is None and any(map(low.__contains__, _SKIP_WORDS)):
        found = _skip(low)
    return found or _heading(line, low) or _with_step(line, low)


def _unnamed(line: str, low: str) -> Reading | None:
    """Lines in which not even the loss has a name."""
    if " avg" in low and " rate" in low and (match := _DARKNET.search(line)):
        loss = Loss("loss", _float(match[2]), match[2])
        return _named(int(match[1]), loss, lr=_float(match[4]))
    if "<" in line and (match := _FASTAI.search(line)):
        reading = _named(int(match[1]), Loss("train_loss", _float(match[3]), match[3]))
        reading.counted_to = int(match[2])
        return reading
    match = _LOSS_AT_STEP.search(line) if "loss" in low else None
    if match:
        loss = Loss("loss", _float(match[2]), match[2])
        return Reading(step=int(match[1]), rank=NAMED_RANK, losses=(loss,))
    return None


def _of_table(line: str) -> Reading | None:
    if match := _ROW.match(line):
        return Reading(kind="row", losses=(Loss(match[1], _float(match[2]), match[2]),))
    return Reading(kind="rule") if _RULE.match(line) else None


def _heading(line: str, low: str) -> Reading | None:
    """Lines that say of themselves whether they train or evaluate."""
    if "val loss" in low and (match := _BOTH.search(line)):
        return Reading(step=int(match[1]), eval_loss=_float(match[2]), kind="summary")
    if "epoch:" in low and "batch:" in low and (match := _ESPNET.search(line)):
        if match[2] == "valid":
            return Reading(kind="rule")
        epoch = float(match[1])
        return Reading(step=int(match[4]), epoch=epoch, whole_epoch=True, rank=NAMED_RANK)
    return None


def _with_step(line: str, low: str) -> Reading | None:
    """Lines whose step has no name that the general reader could find."""
    if "it/" in low and (match := _LOGGED_BAR.search(line)):
        exact = match[2] is None
        step = round(float(match[1]) * _UNITS.get(match[2] or "", 1.0))
        return Reading(step=step, rank=NAMED_RANK, exact=exact)
    return None


def _named(step: int, loss: Loss, *, lr: float | None = None) -> Reading:
    return Reading(
        step=step,
        rank=NAMED_RANK,
        lr=lr,
        loss=loss.value,
        loss_key=loss.name,
        losses=(loss,),
        kind="whole",
    )


def _skip(low: str) -> Reading | None:
    """A message that an update was left out because its gradient was not finite."""
    if (
        _SKIP.search(low) is None
        or _RECORD_OF_NAN.search(low)
        or any(word in low for word in _PROSE)
    ):
        return None
    if _OTHER_RANK.search(low):
        return Reading(kind="rule")
    scales = _SCALE.findall(low)
    scale = float(scales[-1]) if scales else None
    grad = math.nan if "nan" in low else math.inf
    return Reading(kind="skip", skipped=True, grad_norm=grad, loss_scale=scale)


def _float(text: str) -> float:
    return float(text.replace("-nan", "nan"))
