"""How one line is taken apart: which of its numbers means what, as a plan that can be repeated."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from overnight.core.formats.names import COUNTER_RANK, NAMED_RANK, SIDE_RANK, meaning
from overnight.core.formats.reading import Kind, Loss, Reading

LONG_CHARS, BEFORE_CHARS, BEHIND_CHARS = 2000, 120, 40
"""Longer than any name before a number, and than what decides behind it."""

MAX_STEP = 10**15
"""Larger counters are no steps (and float would round them)."""

_NONFINITE = re.compile(r"\b(?:nan|inf(?:inity)?)\b", re.IGNORECASE)
_NUMBERED = re.compile(r"^(?:\S*\d\S*[ \t])+(?=[^\W\d])")
_DIGIT = re.compile(r"\d")
_UNITS = {"k": 1e3, "K": 1e3, "M": 1e6}
_NUMBER = (
    r"[-+]?(?:\d+(?:,\d+)*(?:\.\d*)?(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?"
    r"|[nN]a[nN]|NAN|[iI]nf(?:inity)?|INF)"
)
# A name, as in "Grad Norm" or "train/loss"; a separator; a number, but no "3rd", "nanms" or "5%".
_PAIR = re.compile(
    r"((?<![\w.=])[^\W\d][\w/.\-]{0,39}"
    r"(?:[ \t](?!nan\b(?! iter)|inf\b|NaN\b)[A-Za-z_(][\w/.\-)]{0,19}){0,3})"
    r"(?:[\"']?[ \t]*+[:=][ \t]*+(?:[\"'\[(][ \t]*+)?|[ \t]++(?:\[[ \t]*+)?|\[)"
    r"(?:(?:(?:np|jnp|torch)\.)?(?:tensor|[Aa]rray|DeviceArray|b?float\d*)\()?"
    rf"((?>{_NUMBER}))"
    r"(?:([kKM])(?=[\s,|)\]]|$)|(?![\w.]*(?:[A-Za-z_%]|\((?!ind|[-+\d]))))"
    r"(?:[ \t]*/[ \t]*(\d+(?:,\d+)*)(?!\w))?"
)
# What stands between brackets, bars and blanks as n/total; not a date, a path or a clock time.
_COUNTER = re.compile(
    r"(?:^|(?<=[\s\[|(:]))(\d+(?:,\d+)*)[ \t]*/[ \t]*(\d+(?:,\d+)*)(?=[\s\]|(,:]|$)"
)
_DATE = re.compile(r"\d\d/\d\d[ \t]+\d\d:\d\d")
# [0/25][50/1583]  Loss_D: 0.6: the epoch, then the batch.
_TWO_COUNTERS = re.compile(r"\[\s*(\d+)/\d+\]\s*\[\s*(\d+)/(\d+)\]")
# I0721 02:52:10 1234 logging_writer.py:48] [990] grad_norm=0.52, train_loss=2.1
_BRACKETED_STEP = re.compile(r"(?:^|[\w]\] ?)\[(\d+)\][ :\t]")
# 490 | loss 5.0760 | lr 5.0e-04 | 870.80ms        s:326 trl:3.2519 lr:0.0003
# 0 [D loss: 0.652173, acc.: 50.00%] [G loss: 0.725513]
_LEADING_STEP = re.compile(
    r"(?:^|[\])\-:Z]\s)\s*+(\d++)\s*+\|\s+(?=[A-Za-z])|^s:(\d+)\s"
    r"|^\s*(\d+)(?::\s+(?=[A-Za-z])|\s(?=\[[A-Za-z]))"
)
# An evaluation word with a number of its own names that number, not the line, as in
# `Val: 0.77, Loss: 2.1`; behind a level it is the name of a logger: `INFO:test:step 3: loss 2.1`.
_EVAL_LINE = re.compile(
    r"(?<![\w/.\-=])(?<!INFO:)(?<!DEBUG:)(?<!WARNING:)(?:val|valid|validation|validat(?:e|ing)|eval|evaluat(?:e|ion|ing)|test|testing)"
    r"(?![\w/.=]|-)(?!(?:[ \t]*+:)?[ \t]*+\d+\.\d)",
    re.IGNORECASE,
)
_TRAINS = re.compile(r"train(?:ing)?\b|train_", re.IGNORECASE)
_BAR_LABEL = re.compile(r"^[\s\r]*([^\d%|\[]{0,60}?)(?:\d+)?[ :\-]*\d{1,3}(?:\.\d+)?%")
_TRAIN_WORDS = ("train", "step", "epoch", "iter", "fit", "progress")


@dataclass(frozen=True, slots=True)
class Op:
    """One number of a line: its role and where it stands among the pieces of the line.

    `text` and `total` are only kept where the pieces do not give them; `sign` is what stands
    before the piece.
    """

    role: str
    rank: int
    name: str
    at: int
    total_at: int = -1
    factor: float = 1.0
    sign: float = 1.0
    text: str = ""
    total: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do with a line, and with every other that differs only in its numbers."""

    ops: tuple[Op, ...] = ()
    kind: Kind = ""
    evaluation: bool = False
    running_mean: bool = False

    @property
    def repeatable(self) -> bool:
        """Whether the pieces of a line are all that is needed."""
        return not any(_DIGIT.search(op.text + op.total) for op in self.ops)

    def read(
        self, parts: Sequence[str], *, decimal_comma: bool, start: Reading | None = None
    ) -> Reading | None:
        """The reading of a line that was split into these pieces; `start` is known already."""
        reading, losses = start or Reading(kind=self.kind), []
        for op in self.ops:
            text, role = op.text or parts[op.at], op.role
            try:
                value = float(text) * op.sign
            except ValueError:
                number = to_number(text, decimal_comma=decimal_comma)
                if number is None:
                    continue
                value = number * op.sign
            if role == "loss":
                losses.append(Loss(op.name, value, text))
            elif role == "step":
                total = op.total or (parts[op.total_at] if op.total_at >= 0 else "")
                offer_step(reading, value, text=text, total=total, rank=op.rank)
            elif role == "epoch":
                if reading.epoch is None:
                    reading.epoch = value
                    reading.whole_epoch = "." not in text and math.isfinite(value)
            else:
                _fill(reading, role, value * op.factor)
        if losses:
            reading.losses = (*reading.losses, *losses)
        if reading.losses:
            self._choose(reading)
        return self._finished(reading)

    def _choose(self, reading: Reading) -> None:
        """The best loss by name; Lightning's own `loss` is a running mean, and NaN where unused."""
        losses = reading.losses
        best = losses[0]
        if len(losses) > 1:
            if self.running_mean and not math.isfinite(best.value):
                finite = tuple(one for one in losses if math.isfinite(one.value))
                losses = tuple(one for one in finite if meaning(one.name)[1] > 1) or losses
            best = min(losses, key=_preference)
        reading.loss, reading.loss_key = best.value, best.name
        reading.digits = significant_digits(best.text) if best.text is not None else None

    def _finished(self, reading: Reading) -> Reading | None:
        if reading.kind == "summary" and reading.eval_loss is None:
            reading.eval_loss = reading.loss
        alone = reading.loss is None and reading.eval_loss is not None
        if self.evaluation or alone or reading.kind == "summary":
            value = reading.eval_loss if reading.eval_loss is not None else reading.loss
            return Reading(
                step=reading.step,
                eval_loss=value,
                epoch=reading.epoch,
                whole_epoch=reading.whole_epoch,
            )
        return reading


def plan_of(line: str, parts: Sequence[str]) -> Plan:
    """Take a line apart. `parts` are its pieces: text and numbers by turns."""
    places = _places(parts)
    ops = [_pair_op(found, places) for found in _pairs(line, places) if meaning(found[1])[0]]
    kind: Kind = ""
    has_loss = any(op.role == "loss" for op in ops)
    if "%|" in line or "it/s" in line or "s/it" in line:
        kind, label = "bar", _BAR_LABEL.match(line)
        name = label[1].strip().lower() if label else ""
        if name and not has_loss:
            if not any(word in name for word in _TRAIN_WORDS):
                return Plan()  # "Map: 100%|", "Loading checkpoint shards: 50%|"
            if "epoch" in name and not any(op.role in ("epoch", "step") for op in ops):
                return _epoch_bar(line, places)
    if has_loss:
        ops += _leading_step(line, places)
    if "/" in line:
        ops += _counters(line, places)
    if not ops:
        return Plan()
    first = next((op.name for op in ops if op.role == "loss"), None)
    return Plan(
        tuple(ops),
        kind="summary" if any(op.role == "eval_step" for op in ops) else kind,
        evaluation=kind != "bar" and first is not None and _is_evaluation(line, first),
        running_mean="v_num=" in line,
    )


def _pairs(line: str, places: Mapping[tuple[int, int], int]) -> Iterator[re.Match[str]]:
    """The names with numbers; of a long line only what stands near a number is searched."""
    if len(line) <= LONG_CHARS:
        yield from _PAIR.finditer(line)
        return
    near = [*places, *(found.span() for found in _NONFINITE.finditer(line))]
    begin = end = 0
    for start, stop in sorted(near):
        if start - BEFORE_CHARS > end:
            yield from _PAIR.finditer(line, begin, end)
            begin = max(line.rfind(" ", 0, start - BEFORE_CHARS), start - 2 * BEFORE_CHARS)
        end = stop + BEHIND_CHARS
    yield from _PAIR.finditer(line, begin, end)


def _places(parts: Sequence[str]) -> dict[tuple[int, int], int]:
    """Start and end of every number of a line -> its index among the pieces."""
    places, position = {}, 0
    for index, part in enumerate(parts):
        if index % 2:
            places[position, position + len(part)] = index
        position += len(part)
    return places


def _pair_op(found: re.Match[str], places: dict[tuple[int, int], int]) -> Op:
    role, rank = meaning(found[1])
    start, end = found.span(2)
    signed = found[2][0] in "+-"
    at = places.get((start + signed, end), -1)
    total_at = places.get(found.span(4), -1) if found[4] else -1
    return Op(
        role=role,
        rank=rank,
        name=_bare(found[1]),
        at=at,
        total_at=total_at,
        factor=_UNITS.get(found[3], 1.0),
        sign=-1.0 if at >= 0 and found[2][0] == "-" else 1.0,
        text=found[2] if at < 0 else "",
        total=found[4] if found[4] and total_at < 0 else "",
    )


def _bare(name: str) -> str:
    """Without words that have a number in them before it: `img_0012.png loss`."""
    return _NUMBERED.sub("", name)


def _step_op(
    found: re.Match[str], group: int, places: dict[tuple[int, int], int], *, rank: int
) -> Op:
    at = places.get(found.span(group), -1)
    return Op("step", rank, "", at, text="" if at >= 0 else found[group])


def _leading_step(line: str, places: dict[tuple[int, int], int]) -> list[Op]:
    """A step without a name, at the head of the line."""
    if leading := _LEADING_STEP.search(line):
        group = leading.lastindex or 1
        rank = 1 if group == 3 else NAMED_RANK  # `0: ` may be the rank that srun -l prints
        return [_step_op(leading, group, places, rank=rank)]
    if bracketed := _BRACKETED_STEP.search(line):
        return [_step_op(bracketed, 1, places, rank=1)]
    return []


def _counters(line: str, places: dict[tuple[int, int], int]) -> list[Op]:
    """The first n/total that does not count epochs."""
    if two := _TWO_COUNTERS.search(line):
        spans = [places.get(two.span(group), -1) for group in (1, 2, 3)]
        if min(spans) >= 0:
            epoch = Op("epoch", 0, "", spans[0])
            return [epoch, Op("step", COUNTER_RANK, "", spans[1], spans[2])]
    for found in _COUNTER.finditer(line):
        before = line[max(0, found.start() - 8) : found.start()].lower()
        if "poch" in before and "%" not in before:
            continue  # "Epoch 1/5", "Epoch: [1/90]"
        if _DATE.match(line, found.start()):
            continue
        at, total_at = places.get(found.span(1), -1), places.get(found.span(2), -1)
        lost = at < 0 or total_at < 0
        text, total = (found[1], found[2]) if lost else ("", "")
        return [Op("step", COUNTER_RANK, "", at, total_at, text=text, total=total)]
    return []


def _epoch_bar(line: str, places: dict[tuple[int, int], int]) -> Plan:
    """`epoch:  50%|#####     | 4/8 [05:00<05:00]` counts epochs, not steps."""
    found = _COUNTER.search(line)
    if found is None:
        return Plan()
    at = places.get(found.span(1), -1)
    return Plan((Op("epoch", 0, "", at, text="" if at >= 0 else found[1]),))


def _is_evaluation(line: str, first_loss: str) -> bool:
    """Whether the text before the first loss says so: `Epoch(val)`, `validate step: 40`."""
    if _TRAINS.match(first_loss):
        return False
    end = line.find(first_loss)
    return _EVAL_LINE.search(line, 0, end if end > 0 else len(line)) is not None


def offer_step(reading: Reading, value: float, *, text: str, total: str, rank: int) -> None:
    """Keep the better of two candidates for the step; `n/total` tells what it counts to."""
    if not math.isfinite(value) or abs(value) > MAX_STEP:
        return
    if "." in text and (rank <= NAMED_RANK or value != int(value)):
        return  # icefall's batch_count=2048.0 warms up a module; NeMo's global_step=99.0 is one
    step = int(value)
    exact = "e" not in text and "E" not in text
    if not exact:
        rank = 0
    behind = int(total.replace(",", "")) if total and len(total) < 20 else None
    if reading.step == step and behind is not None and reading.counted_to is None:
        reading.counted_to = behind
    if reading.step is None or rank > reading.rank:
        kept = reading.counted_to if reading.step == step else None
        reading.step, reading.rank, reading.exact = step, rank, exact
        reading.counted_to = behind if behind is not None else kept


def _fill(reading: Reading, role: str, value: float) -> None:
    if role == "skipped":
        reading.skipped = reading.skipped or value > 0
    elif role == "nan_count":
        if value > 0 and not reading.losses:
            reading.losses = (Loss("loss", math.nan, None),)
    elif role == "total_steps":
        if math.isfinite(value) and reading.total_steps is None:
            reading.total_steps = int(value)
    elif role != "eval_step" and getattr(reading, role) is None:
        setattr(reading, role, value)


def _preference(loss: Loss) -> tuple[int, bool]:
    rank = meaning(loss.name)[1]
    return rank, rank == SIDE_RANK and loss.name.lower().startswith("d")


def significant_digits(text: str) -> int:
    """How many digits a printed number shows, leading zeros and the exponent left out."""
    mantissa = text.lower().partition("e")[0].replace(".", "").replace(",", "").lstrip("+-0")
    return len(mantissa) if mantissa.isdigit() else 0


def to_number(text: str, *, decimal_comma: bool = False) -> float | None:
    """A printed number; commas separate thousands unless the log writes decimals with them."""
    if "," in text:
        text = text.replace(",", "." if decimal_comma and text.count(",") == 1 else "")
    try:
        return float(text)
    except ValueError:
        return None
