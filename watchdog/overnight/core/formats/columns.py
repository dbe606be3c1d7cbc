"""Numbers in columns below a line of names: `Epoch  GPU_mem  box_loss`, CSV files, fastai."""

from __future__ import annotations

import math
import re

from overnight.core.formats.given import Given
from overnight.core.formats.names import NAMED_RANK
from overnight.core.formats.plan import offer_step, significant_digits, to_number
from overnight.core.formats.reading import Loss, Reading

MAX_COLUMNS = 60
_GAP = re.compile(r"\s{2,}|\t")
_HEADING = re.compile(r"[A-Za-z_][\w/.\-#()% ]*")
# YOLOv5 and v7 call the parts of the loss by their bare names.
_YOLO = {"box": "box_loss", "obj": "obj_loss", "cls": "cls_loss", "total": "total_loss"}
_SPACY = {"E": ("epoch", 0), "#": ("step", NAMED_RANK)}  # E    #       LOSS TOK2VEC  LOSS NER
_COUNT = re.compile(r"(\d+)/(\d+)")


class Columns:
    """Remembers the last heading that names a loss, and reads the rows below it."""

    def __init__(self, given: Given) -> None:
        self._given = given
        self._means = given.means
        self._names: list[str] = []
        self._separator = ""

    def is_heading(self, line: str) -> bool:
        """Whether this line names columns, one of them a training loss; it is then remembered."""
        low = line.lower()
        named = "loss" in low or ("epoch" in low and "mem" in low and " box " in low)
        named = named or self._given.names_loss(low)
        if not named or "=" in low or ":" in low or len(line) > 1000:
            return False
        dense = "\t" in line or ("," in line and " " not in line)
        separator = "," if line.count(",") > 1 or (dense and "," in line) else ""
        names = [_YOLO.get(name.strip(), name.strip()) for name in _split(line, separator)]
        if not (2 if dense else 3) <= len(names) <= MAX_COLUMNS:
            return False
        if any(name and not _HEADING.fullmatch(name) and name != "#" for name in names):
            return False
        if not any(self._means(name)[0] == "loss" for name in names):
            return False
        self._names, self._separator = names, separator
        return True

    def read(self, line: str) -> Reading | None:
        """The numbers of a row, by their columns; None where this is no row."""
        if not self._names:
            return None
        cells = [cell.strip() for cell in _split(line, self._separator)]
        whole = len(cells) == len(self._names) if self._separator else _is_number(cells[0])
        if len(cells) < len(self._names) or not whole:
            return None  # a time may stand before the numbers of a CSV row, words before no others
        reading, losses = Reading(kind="whole"), []
        for name, cell in zip(self._names, cells, strict=False):
            role, rank = _SPACY.get(name) or self._means(name)
            counted = _COUNT.fullmatch(cell)
            value = to_number(counted[1] if counted else cell)
            if value is None or not role:
                continue
            if role == "loss":
                losses.append(Loss(name, value, cell))
            elif role == "epoch":
                reading.epoch = value
                reading.whole_epoch = value == int(value) if math.isfinite(value) else False
            elif role == "step":
                offer_step(reading, value, text=cell, total="", rank=rank)
            elif role in ("eval_loss", "lr", "grad_norm", "tokens_per_s", "loss_scale"):
                setattr(reading, role, value)
        if not losses:
            return None
        best = min(losses, key=lambda loss: self._means(loss.name)[1])
        reading.losses, reading.loss, reading.loss_key = tuple(losses), best.value, best.name
        reading.digits = significant_digits(best.text or "")
        _bar_behind(reading, line)
        return reading


def _split(line: str, separator: str) -> list[str]:
    line = line.strip()
    return line.split(separator) if separator else _GAP.split(line)


def _is_number(cell: str) -> bool:
    return to_number(cell) is not None or _COUNT.fullmatch(cell) is not None


def _bar_behind(reading: Reading, line: str) -> None:
    """Ultralytics draws its bar behind the columns: `640:  20%|## | 20/100 [00:12<...`."""
    at = line.rfind("%|")
    found = None if at < 0 else re.search(r"\|\s*(\d+)/(\d+)", line[at + 2 :])
    if found is not None and reading.step is None:
        reading.kind = "bar"
        offer_step(reading, float(found[1]), text=found[1], total=found[2], rank=2)
