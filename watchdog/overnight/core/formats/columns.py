"""Numbers in columns below a line of names: `Epoch  GPU_mem  box_loss`, CSV files, fastai."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Sequence

from overnight.core.formats.blanks import EXPECTED_TO_FAIL, Blanks, mark
from overnight.core.formats.given import Given
from overnight.core.formats.names import EVAL_WORDS, NAMED_RANK, SPLIT_NAMES
from overnight.core.formats.plan import offer_step, significant_digits, to_number
from overnight.core.formats.reading import Loss, Reading

MAX_COLUMNS, MAX_CSV_COLUMNS = 60, 1000
_GAP = re.compile(r"\s{2,}|\t")
_HEADING = re.compile(r"[A-Za-z_][\w/.\-#()% ]*")
_ASSIGNED = re.compile(
    r"[{\[\s]*[\"']?[\w ./@\-]*[\"']?\s*[:=]\s*[\"']?(?:[-+]?\.?\d|nan\b|inf\b)", re.IGNORECASE
)
# YOLOv5 and v7 call the parts of the loss by their bare names.
_YOLO = {"box": "box_loss", "obj": "obj_loss", "cls": "cls_loss", "total": "total_loss"}
_SPACY = {"E": ("epoch", 0), "#": ("step", NAMED_RANK)}  # E    #       LOSS TOK2VEC  LOSS NER
_COUNT = re.compile(r"(\d+)/(\d+)")
_PLAIN_ROLES = ("eval_loss", "lr", "grad_norm", "tokens_per_s", "loss_scale")
_BEFORE_NAMES = "\ufeff#% "
"""What may stand before the first name: a byte-order mark, the sign of a comment."""


class Columns:
    """Remembers the last heading that names a loss, and reads the rows below it."""

    def __init__(self, given: Given) -> None:
        self._given = given
        self._names: list[str] = []
        self._roles: list[tuple[str, int]] = []
        self._separator = ""
        self._indented = False
        self._blanks = Blanks()

    def is_heading(self, line: str, *, first: bool = False) -> bool:
        """Whether this line names columns, one of them a training loss; it is then remembered.

        The `first` line of a file may be less like one: a single column, blanks between two.
        """
        if not (first or self._names_loss(line.lower())):
            return False
        bare = line.strip().lstrip(_BEFORE_NAMES)
        dense = " " not in bare or (bare[:1] == bare[-1:] == '"')
        if not (first or dense) and ("=" in line or ":" in line):
            return False  # prose, or names with their numbers
        separator = _separator_of(bare, dense=dense, first=first)
        names = _split(bare, separator)
        if not separator:
            names = [
                name if self._given.means(name)[0] else _YOLO.get(name, name) for name in names
            ]
        least = 1 if first else 2 if separator or "\t" in line else 3
        if len(names) < least or not _are_names(names, separator, first=first):
            return False
        roles = [_SPACY.get(name) or self._given.means(name) for name in names]
        if not any(role == "loss" for role, _rank in roles):
            return False
        self._names, self._separator, self._roles = names, separator, roles
        self._indented = line[:1].isspace() and not separator
        self._blanks = Blanks()
        return True

    def _names_loss(self, low: str) -> bool:
        yolo = "epoch" in low and "mem" in low and " box " in low
        return "loss" in low or yolo or self._given.names_loss(low)

    def read(self, line: str) -> Reading | None:
        """The numbers of a row, by their columns; None where this is no row."""
        if not self._names:
            return None
        cells = _split(line, self._separator)
        if self._indented and not line[:1].isspace() and len(cells) == len(self._names) + 1:
            cells = cells[1:]  # a printed data frame: the index has no heading
        whole = len(cells) == len(self._names) if self._separator else _number(cells[0]) is not None
        if len(cells) < len(self._names) or not whole:
            return None  # a time may stand before the numbers of a CSV row, words before no others
        reading = self._row(cells)
        alone = reading.loss is None and reading.eval_loss is not None and not reading.filled
        if self._blanks.judge(reading).loss is None and not alone:
            return None
        _bar_behind(reading, line)
        return reading

    def _is_evaluation(self, cells: Sequence[str]) -> bool:
        """Whether a column such as `phase` says so."""
        pairs = zip(self._names, cells, strict=False)
        return any(
            cell.lower() in EVAL_WORDS for name, cell in pairs if name.lower() in SPLIT_NAMES
        )

    def _row(self, cells: Sequence[str]) -> Reading:
        reading, losses, filled, blanks, best = Reading(kind="whole"), [], [], [], 99
        for name, cell, (role, rank) in zip(self._names, cells, self._roles, strict=False):
            if cell and role not in EXPECTED_TO_FAIL:
                filled.append(mark(name, cell))
            if not role:
                continue
            value = _number(cell, decimal_comma=self._separator == ";")
            if value is None:
                if role == "loss" and not cell:
                    blanks.append(name)
            elif role == "loss":
                losses.append(Loss(name, value, cell))
                if rank < best:
                    reading.loss, reading.loss_key, best = value, name, rank
                    reading.digits = significant_digits(cell)
            else:
                _put(reading, role, value, cell, rank=rank)
        if reading.loss is not None and self._is_evaluation(cells):
            return Reading(step=reading.step, eval_loss=reading.loss, epoch=reading.epoch)
        reading.losses, reading.filled, reading.blanks = tuple(losses), tuple(filled), tuple(blanks)
        return reading


def _put(reading: Reading, role: str, value: float, cell: str, *, rank: int) -> None:
    if role == "epoch":
        reading.epoch = value
        reading.whole_epoch = value == int(value) if math.isfinite(value) else False
    elif role == "step":
        offer_step(reading, value, text=cell, total="", rank=rank)
    elif role in _PLAIN_ROLES:
        setattr(reading, role, value)


def _are_names(names: Sequence[str], separator: str, *, first: bool) -> bool:
    """Whether these may name columns: none is a number (but in the first line of a file)."""
    if len(names) > (MAX_CSV_COLUMNS if separator else MAX_COLUMNS):
        return False
    if any(_ASSIGNED.match(name) for name in names):
        return False
    if not first and any(_number(name) is not None for name in names):
        return False
    return bool(separator) or all(_HEADING.fullmatch(name) or name in ("", "#") for name in names)


def _separator_of(heading: str, *, dense: bool, first: bool) -> str:
    """What separates the names: "" for blanks that align them, " " for any blanks."""
    sign = max(",;|\t" if first else ",;", key=heading.count)
    if heading.count(sign) >= (1 if dense or first else 2):
        return sign
    return " " if first and not _GAP.search(heading) else ""


def _split(line: str, separator: str) -> list[str]:
    """The cells of a row, without the blanks around them."""
    if separator == " ":
        return line.split()
    line = line.strip(" \r\n" if separator == "\t" else None)
    if not separator:
        return _GAP.split(line)
    if '"' in line:
        return [cell.strip() for cell in _unquoted(line, separator)]
    return [cell.strip() for cell in line.split(separator)]


def _unquoted(line: str, separator: str) -> Sequence[str]:
    try:
        return next(csv.reader([line], delimiter=separator, skipinitialspace=True))
    except (csv.Error, StopIteration):
        return line.split(separator)


def _number(cell: str, *, decimal_comma: bool = False) -> float | None:
    """The number in a cell; of a counter `3/20` the first."""
    counted = _COUNT.fullmatch(cell) if "/" in cell else None
    return to_number(counted[1] if counted else cell, decimal_comma=decimal_comma)


def _bar_behind(reading: Reading, line: str) -> None:
    """Ultralytics draws its bar behind the columns: `640:  20%|## | 20/100 [00:12<...`."""
    at = line.rfind("%|")
    found = None if at < 0 else re.search(r"\|\s*(\d+)/(\d+)", line[at + 2 :])
    if found is not None and reading.step is None:
        reading.kind = "bar"
        offer_step(reading, float(found[1]), text=found[1], total=found[2], rank=2)
