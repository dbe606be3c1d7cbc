"""One general reader of name-number pairs: a format that we never saw must mostly work.

Every pattern is linear in the length of the line. What stands alone without a name, and messages
that mean more than their numbers, are in special.py.
"""

from __future__ import annotations

import math
import re

from overnight.core.formats import special
from overnight.core.formats.names import COUNTER_RANK, meaning
from overnight.core.formats.reading import Loss, Reading

MAX_LINE_CHARS = 16_384
"""Longer lines are cut before reading: metrics stand at the start, and 1 MiB lines exist."""

_UNITS = {"k": 1e3, "K": 1e3, "M": 1e6}

MAX_STEP = 10**15
"""Larger counters are no steps (and float would round them)."""

NUMBER = (
    r"[-+]?(?:\d+(?:,\d+)*(?:\.\d*)?(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?"
    r"|[nN]a[nN]|NAN|[iI]nf(?:inity)?|INF)"
)
# A name, as in "Grad Norm" or "train/loss"; a separator; a number, but no "3rd", "nanms" or "5%".
_PAIR = re.compile(
    r"([^\W\d][\w/.\-]{0,39}(?:[ \t](?!nan\b|inf\b|NaN\b)[A-Za-z_(][\w/.\-)]{0,19}){0,3})"
    r"(?:[\"']?[ \t]*+[:=][ \t]*+(?:[\"'\[(][ \t]*+)?|[ \t]++(?:\[[ \t]*+)?|\[)(?:tensor\()?"
    rf"((?>{NUMBER}))"
    r"(?:([kKM])(?=[\s,|)\]]|$)|(?![\w.]*(?:[A-Za-z_%]|\((?!ind|[-+\d]))))"
    r"(?:[ \t]*/[ \t]*(\d+(?:,\d+)*)(?!\w))?"
)
# What stands between brackets, bars and blanks as n/total; not a date, a path or a clock time.
_COUNTER = re.compile(
    r"(?:^|(?<=[\s\[|(:]))(\d+(?:,\d+)*)[ \t]*/[ \t]*(\d+(?:,\d+)*)(?=[\s\]|(,:]|$)"
    r"(?![ \t]+\d{1,2}:\d\d)"
)
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[ -/]*[0-~])")
_DECIMAL_COMMA = re.compile(
    r"(?<![\d.,])(?:0|\d+)(?:,(?=\d{1,2}(?![\d,.])|\d{4,}(?![\d,.]))|(?<=\b0),)\d+"
)
_EVAL_LINE = re.compile(
    r"(?<![\w/.\-=])(?:val|valid|validation|validat(?:e|ing)|eval|evaluat(?:e|ion|ing)|test|testing)"
    r"(?![\w/.=]|-)",
    re.IGNORECASE,
)
_BAR_LABEL = re.compile(r"^[\s\r]*([^\d%|\[]{0,60}?)(?:\d+)?[ :\-]*\d{1,3}(?:\.\d+)?%")
_TRAIN_WORDS = ("train", "step", "epoch", "iter", "fit", "progress")
_WORTH_READING = ("oss", "norm", "step", "iter", "poch", "%|", "lr", "batch", "rate")
_OTHER_NAMES = ("entropy", "trl", "xent", "cost", "nll", "objective", "elbo")
_SELDOM = (*_OTHER_NAMES, "nan", "inf", "overflow", "|", "---", "it/", "avg", "% [", "finite")


def significant_digits(text: str) -> int:
    """How many digits a printed number shows, leading zeros and the exponent left out."""
    mantissa = re.split("[eE]", text, maxsplit=1)[0]
    return len(re.sub(r"\D", "", mantissa).lstrip("0"))


def to_number(text: str, *, decimal_comma: bool = False) -> float | None:
    """A printed number; commas separate thousands unless the log writes decimals with them."""
    if "," in text:
        text = text.replace(",", "." if decimal_comma and text.count(",") == 1 else "")
    try:
        return float(text)
    except ValueError:
        return None


def has_decimal_comma(line: str) -> bool:
    """Whether a number of this line can only be read with a decimal comma, as `0,4945`."""
    return "," in line and "." not in line and _DECIMAL_COMMA.search(line) is not None


def clean(line: str) -> str:
    """A line as a terminal shows it: no colours, and only what a redraw left standing."""
    if "\x08" in line:
        parts = [part for part in re.split("\x08+", line) if part.strip()]
        line = parts[-1] if parts else ""
    if "\x1b" in line:
        line = _ANSI.sub("", line)
    return line


def read_text(line: str, *, decimal_comma: bool = False) -> Reading | None:
    """A line of free text, such as `Step 45100 | Loss: 2.338 | Grad Norm: 1.1 | LR: 2.9e-04`."""
    line = line[:MAX_LINE_CHARS]
    if "\x1b" in line or "\x08" in line:
        line = clean(line)
    low = line.lower()
    usual = any(map(low.__contains__, _WORTH_READING))
    if not usual and not any(map(low.__contains__, _SELDOM)):
        return None  # most lines of most logs leave here
    found = special.read(line, low)
    if found is not None and found.kind != "":
        return found
    if not usual and found is None and not any(map(low.__contains__, _OTHER_NAMES)):
        return None
    return _settle(_pairs(line, found or Reading(), decimal_comma=decimal_comma), line)


def _pairs(line: str, reading: Reading, *, decimal_comma: bool) -> Reading:
    """The first value under each role, and every candidate for the loss."""
    losses: list[Loss] = list(reading.losses)
    for name, text, unit, total in _PAIR.findall(line):
        role, rank = meaning(name)
        if not role:
            continue
        value = to_number(text, decimal_comma=decimal_comma)
        if value is None:
            continue
        if role == "loss":
            if not unit:
                losses.append(Loss(name, value, text))
        elif role == "step":
            _offer_step(reading, value, text=text, total=total, rank=rank)
        else:
            if role == "epoch" and reading.epoch is None:
                reading.whole_epoch = "." not in text and math.isfinite(value)
            _fill(reading, role, value * _UNITS.get(unit, 1.0))
    if losses:
        reading.losses = tuple(losses)
    return reading


def _offer_step(reading: Reading, value: float, *, text: str, total: str, rank: int) -> None:
    """Keep the better of two candidates for the step; `n/total` tells what it counts to."""
    if not math.isfinite(value) or abs(value) > MAX_STEP or "." in text.rstrip("."):
        return
    exact = "e" not in text and "E" not in text
    if not exact:
        rank = 0
    behind = int(total.replace(",", "")) if total else None
    if reading.step == int(value) and behind is not None and reading.counted_to is None:
        reading.counted_to = behind
    if reading.step is None or rank > reading.rank:
        kept = reading.counted_to if reading.step == int(value) else None
        reading.step, reading.rank, reading.exact = int(value), rank, exact
        reading.counted_to = behind if behind is not None else kept


def _fill(reading: Reading, role: str, value: float) -> None:
    if role == "eval_step":
        reading.kind = "summary"  # "validate step: 40  loss: 5.53"
    elif role == "skipped":
        reading.skipped = reading.skipped or value > 0
    elif role == "nan_count":
        if value > 0 and not reading.losses:
            reading.losses = (Loss("loss", math.nan, None),)
    elif role == "total_steps":
        if math.isfinite(value) and reading.total_steps is None:
            reading.total_steps = int(value)
    elif getattr(reading, role) is None:
        setattr(reading, role, value)


def _settle(reading: Reading, line: str) -> Reading | None:
    """Decide what kind of line it was, and which loss is the likeliest one."""
    if "%|" in line or "it/s" in line or "s/it" in line:
        label = _BAR_LABEL.match(line)
        name = label[1].strip().lower() if label else ""
        if name and not reading.losses and not any(word in name for word in _TRAIN_WORDS):
            return None  # "Map: 100%|", "Loading checkpoint shards: 50%|"
        reading.kind = "bar"
        if "epoch" in name and reading.step is None and not reading.losses:
            return _epoch_bar(line)
    if (reading.step is None or reading.rank < COUNTER_RANK) and "/" in line:
        _find_counter(reading, line)
    if reading.losses:
        _choose(reading, line)
    elif not _says_anything(reading):
        return None
    if reading.kind == "summary" and reading.eval_loss is None:
        reading.eval_loss = reading.loss
    if reading.kind == "summary" or (reading.kind != "bar" and _is_evaluation(line, reading)):
        return _evaluation(reading)
    return reading


def _epoch_bar(line: str) -> Reading | None:
    """`epoch:  50%|#####     | 4/8 [05:00<05:00]` counts epochs, not steps."""
    counter = _COUNTER.search(line)
    if counter is None:
        return None
    return Reading(epoch=float(counter[1].replace(",", "")), whole_epoch=True)


def _find_counter(reading: Reading, line: str) -> None:
    for found in _COUNTER.finditer(line):
        before = line[max(0, found.start() - 8) : found.start()].lower()
        if "poch" in before and "%" not in before:
            continue  # "Epoch 1/5", "Epoch: [1/90]"
        if int(found[2].replace(",", "")) > MAX_STEP:
            continue
        _offer_step(reading, float(found[1].replace(",", "")), text="", total=found[2], rank=2)
        return


def _choose(reading: Reading, line: str) -> None:
    """The best loss by name; Lightning's own `loss` is a running mean, and NaN where unused."""
    losses = reading.losses
    best = losses[0]
    if len(losses) > 1:
        if "v_num=" in line and any(math.isfinite(one.value) for one in losses):
            finite = [one for one in losses if math.isfinite(one.value)]
            losses = tuple(one for one in finite if meaning(one.name)[1] > 1) or losses
            losses = losses if not math.isfinite(best.value) else reading.losses
        best = min(losses, key=_preference)
    reading.loss, reading.loss_key = best.value, best.name
    reading.digits = significant_digits(best.text) if best.text is not None else None


def _preference(loss: Loss) -> tuple[int, bool]:
    rank = meaning(loss.name)[1]
    return rank, rank == 9 and loss.name.lower().startswith("d")


def _says_anything(reading: Reading) -> bool:
    return not (
        reading.step is None
        and reading.epoch is None
        and reading.eval_loss is None
        and reading.grad_norm is None
        and reading.lr is None
        and reading.total_steps is None
    )


def _is_evaluation(line: str, reading: Reading) -> bool:
    """Whether the text before the numbers says so: `Epoch(val)`, `validate step: 40`."""
    if reading.loss is None:
        return reading.eval_loss is not None
    end = line.find(reading.loss_key or "")
    found = _EVAL_LINE.search(line, 0, end if end > 0 else len(line))
    return found is not None


def _evaluation(reading: Reading) -> Reading:
    value = reading.eval_loss if reading.eval_loss is not None else reading.loss
    return Reading(
        step=reading.step, eval_loss=value, epoch=reading.epoch, whole_epoch=reading.whole_epoch
    )
