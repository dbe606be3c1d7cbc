"""The shape of one run's output, learned as it comes: which number is its loss, which its step.

A line alone does not tell. The loss may be one of several, its step may stand in a heading, in
the bar above, or nowhere; a record may be spread over a block of lines or a table.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from overnight.core.formats.blanks import Blanks
from overnight.core.formats.columns import Columns
from overnight.core.formats.given import Given, MetricsConfig
from overnight.core.formats.joiner import Joiner
from overnight.core.formats.jsonl import read_line
from overnight.core.formats.names import PART_RANK, SIDE_RANK, are_adversarial
from overnight.core.formats.reading import Placed, Reading
from overnight.core.formats.steps import Familiar, Repeats, Steps
from overnight.core.formats.tables import Table, choose, take
from overnight.core.formats.text import clean, has_decimal_comma

SETTLED_RECORDS = 5
"""A run that has given so many records in another form does not go on in columns."""

SURE_RECORDS = 2
"""After this many records with a step in their line, a loss without one is something else."""

PATIENCE = 20
"""So many lines against what was learned, and it is learned anew."""

OVERFLOW_STREAK = 8
"""Overflows before this many records in a row are no longer a scaler that searches its scale."""


@dataclass(slots=True)
class _Key:
    """The loss that this run is judged by."""

    name: str = ""
    shown: str = ""
    rank: int = 99
    missed: int = 0


_RANK = re.compile(r"\b(?:rank|default|gpu|local_rank)[ :=_]?(\d+)\b", re.IGNORECASE)
# A policy is judged by its reward; its loss wanders as it likes. DPO's `rewards/chosen` is another
# matter: its loss falls as any other.
_REWARD = re.compile(
    r"\b(?:mean[ _/])?reward[\"']?(?:\s*[:=]|\s+-?\d)|\breward_std\b|\bep_rew_mean\b"
    r"|\bepisode[_ ]re(?:turn|ward)",
    re.IGNORECASE,
)
_STYLES = {"bar": "progress bar", "row": "table"}


class Shape:
    """Feed it every line of a log, in order; it answers with records, evaluations, progress."""

    def __init__(
        self, given: Given | None = None, *, of_file: bool = False, steps: Steps | None = None
    ) -> None:
        """`given` holds the names that need not be learned; the first line `of_file`, a metrics
        file, is likely to name its columns; `steps`: where the counters stood at a resume."""
        self._given = given or Given(MetricsConfig())
        self._means = self._given.means
        self._key = _Key()
        self._joiner = Joiner()
        self._line, self._number = "", 0
        self._rank: str | None = None
        self._last: tuple[float | None, ...] = ()
        self.steps = steps or Steps()
        self._repeats = Repeats()
        self._familiar = Familiar()
        self._pending: Placed | None = None
        self._table = Table(self._means)
        self._columns = Columns(self._given)
        self._blanks = Blanks()
        self._first = self._of_columns = of_file
        self._parts: set[str] = set()
        self.adversarial = False
        self._context: Reading = Reading()
        self._bars: dict[int, int] = {}
        self._epoch: int | None = None
        self._epoch_as_step: int | None = None
        self._indexed = False
        self._in_line = 0
        self._against = 0
        self._complete = 0
        self._incomplete = 0
        self._comma = False
        self._records = 0
        self._overflows = 0
        self._streak = 0
        self._scale: float | None = None
        self.style: str | None = None
        self.last_grad_norm: float | None = None
        self.last_lr: float | None = None

    @property
    def loss_key(self) -> str | None:
        """The name of the number that is taken as the training loss."""
        return self._key.shown or None

    def feed(self, line: str, number: int) -> list[Placed]:
        """What this line, with what was waiting for it, says."""
        self._number = number
        lines = self._joiner.feed(line)
        if len(lines) == 1:
            return self._feed(lines[0], number)
        return [found for each in lines for found in self._feed(each, number)]

    def _feed(self, line: str, number: int) -> list[Placed]:
        if "\x1b" in line or "\x08" in line:
            line = clean(line)
        self._line = line
        if self._given.has_pattern:
            return self._matched(line, number)
        if self._first and line.strip():
            self._first = line.startswith("#")  # of several comments the last may name columns
            if self._columns.is_heading(line, first=True):
                return []
        found = self._columns.read(line)
        self._of_columns |= found is not None
        found = found or self._in_line_of_its_own(line)
        plain = found is None or found.step is None
        if plain and self._may_begin_a_table and self._columns.is_heading(line):
            found = None
        if found is None:
            if self._table and line.lstrip().startswith(("|", "│", "┃")):
                return []  # a row without a number: `| train/        |       |`
            return self._flush() if self._pending or self._table else []
        if not self._comma and self._records < 50 and found.losses and has_decimal_comma(line):
            self._comma = True
            return self._feed(line, number)
        return self._read(found, number)

    @property
    def _may_begin_a_table(self) -> bool:
        """Whether columns would be the run's own: not those of a summary, or of a printed frame."""
        return self._of_columns or self._records < SETTLED_RECORDS

    def end(self) -> list[Placed]:
        """The record that was waiting for more, at the end of the output."""
        left = [found for each in self._joiner.end() for found in self._feed(each, self._number)]
        return left + self._flush()

    def heading(self, line: str) -> None:
        """The first line of a file of which the rest is old: it may name the columns."""
        self._columns.is_heading(line, first=True)
        self._first = False

    # --- what was given ------------------------------------------------------------------------

    def _matched(self, line: str, number: int) -> list[Placed]:
        """With a pattern only the lines that it fits report a step; a skipped update is heard."""
        found = self._given.match(line)
        if found is None:
            other = read_line(line)
            return self._skip(other, number) if other and other.kind == "skip" else []
        if found.epoch is not None and found.whole_epoch:
            self._epoch = int(found.epoch)
        if found.loss is None:
            return [Placed(found, number)] if found.eval_loss is not None else []
        self._key = _Key(found.loss_key or "", found.loss_key or "")
        return self._record(found, number)

    def _in_line_of_its_own(self, line: str) -> Reading | None:
        """A line without a heading above it; the given names win over those that we know."""
        found = read_line(line, decimal_comma=self._comma, means=self._means)
        if line.startswith('{"'):
            return found and self._blanks.judge(found)
        if not self._given.has_keys:
            return found
        if found is not None and found.kind not in ("", "bar"):
            return found
        return self._given.corrected(line, found)

    # --- one line ------------------------------------------------------------------------------

    def _read(self, found: Reading, number: int) -> list[Placed]:
        kind = found.kind
        if kind == "row":
            self._table.add(found.losses[0], number)
            return []
        if self._table:
            return self._flush_table() + self._read(found, number)
        if kind in ("rule", "skip"):
            return self._flush() + (self._skip(found, number) if kind == "skip" else [])
        if found.loss is None and found.eval_loss is not None:
            return [*self._flush(), Placed(found, number)]
        if found.epoch is not None and found.whole_epoch and abs(found.epoch) < 1e9:
            self._epoch = int(found.epoch)
        if found.loss is not None:
            return self._loss(found, number)
        return self._without_loss(found, number)

    def _note(self, found: Reading) -> None:
        if found.grad_norm is not None:
            self.last_grad_norm = found.grad_norm
        if found.lr is not None:
            self.last_lr = found.lr

    def _loss(self, found: Reading, number: int) -> list[Placed]:
        pending = self._pending
        if pending is not None:
            names = {loss.name for loss in pending.reading.losses}
            if found.step is None and not names & {loss.name for loss in found.losses}:
                pending.reading.losses += found.losses
                _merge(pending.reading, found)
                return []
            return self._flush() + self._loss(found, number)
        if found.rank == 1 and self._context.step is not None:
            found.step = None  # a heading knows better than a bare number before the line
        if self._is_out_of_place(found):
            return []
        block = found.step is None and not self._bars and found.kind != "bar"
        if block and (self._context.step is not None or self._context.epoch is not None):
            _merge(found, self._context)
            found.step, found.rank = self._context.step, self._context.rank
            found.counted_to, found.exact = self._context.counted_to, self._context.exact
            self._context = Reading()
            self._pending = Placed(found, number)
            return []
        return self._record(found, number) if self._is_the_loss(found) else []

    def _without_loss(self, found: Reading, number: int) -> list[Placed]:
        """Context for the records that follow, progress, or a record whose loss is gone."""
        pending = self._pending
        if pending is not None:
            if found.step is None and found.epoch is None:
                _merge(pending.reading, found)
                return []
            return self._flush() + self._without_loss(found, number)
        if found.kind == "bar":
            return self._progress(found, number)
        if found.is_training_record:
            self._incomplete += 1
            if self._complete or self._incomplete > PATIENCE:
                return self._record(found, number)
        self._note(found)
        if found.step is not None or found.whole_epoch:
            self._context = found
        else:
            _merge(self._context, found)
        return []

    def _progress(self, found: Reading, number: int) -> list[Placed]:
        if found.step is None or found.counted_to is None:
            return []
        step = self.steps.absolute(
            -found.counted_to, found.step, counted_to=found.counted_to, epoch=self._epoch
        )
        if len(self._bars) < 16:
            self._bars[found.counted_to] = step
        return [Placed(Reading(step=step, kind="bar"), number)]

    def _skip(self, found: Reading, number: int) -> list[Placed]:
        scale = found.loss_scale
        if scale is not None and scale == self._scale and scale > 1:
            return []  # another rank says the same
        self._scale = scale
        self._overflows += 1
        return [Placed(found, number)]

    # --- blocks and tables ---------------------------------------------------------------------

    def _flush(self) -> list[Placed]:
        pending, self._pending = self._pending, None
        if pending is None:
            return self._flush_table() if self._table else []
        choose(pending.reading, self._means)
        if not self._is_the_loss(pending.reading):
            return []
        return self._record(pending.reading, pending.line)

    def _flush_table(self) -> list[Placed]:
        line = self._table.line
        found = self._table.take()
        return self._record(found, line) if found and self._is_the_loss(found) else []

    # --- what was learned ----------------------------------------------------------------------

    def _is_the_loss(self, found: Reading) -> bool:
        """Put the run's loss into `found.loss`; False where the line gives only others."""
        key = self._key
        name = (found.loss_key or "").lower()
        if name == key.name:
            key.missed = 0
            return True
        rank = self._means(found.loss_key or "")[1]
        if rank >= key.rank:
            for loss in found.losses:
                if loss.name.lower() == key.name:
                    take(found, loss)
                    key.missed = 0
                    return True
            key.missed += 1
            if key.missed <= PATIENCE:
                return False
        self._key = _Key(name, found.loss_key or "", rank)
        return True

    def _is_out_of_place(self, found: Reading) -> bool:
        """A loss without a step in a run whose records have one: a summary, a sampled text."""
        if found.step is not None:
            if found.kind == "" and self._familiar.doubts(self._line, found.step):
                return True
            self._in_line, self._against = self._in_line + 1, 0
            return False
        if self._in_line < SURE_RECORDS or self._bars:
            return False
        self._against += 1
        if self._against > PATIENCE:
            self._in_line = 0
        return True

    def _record(self, found: Reading, number: int) -> list[Placed]:
        _merge(found, self._context)
        found.step = self._step_of(found)
        self._context, self._bars = Reading(), {}
        if self._key.rank >= PART_RANK:
            self._judge_parts(found)
        finite = found.loss is not None and math.isfinite(found.loss)
        known = found.loss is None or finite
        repeatable = found.step if found.exact else None
        if repeatable is not None and self._repeats.is_repeat(
            repeatable, finite=known, has_loss=found.loss is not None
        ):
            return []
        if found.step is None and known and self._is_echo(found):
            return []
        if found.loss is not None and (found.grad_norm is not None or found.loss_scale is not None):
            self._complete += 1
        self._records += 1
        self._note(found)
        if self._records <= PATIENCE:
            self.adversarial |= are_adversarial(loss.name for loss in found.losses)
            self.adversarial |= _REWARD.search(self._line) is not None
        if self.style is None:
            self.style = _STYLES.get(found.kind, "text") if found.digits is not None else "json"
        self._count_overflows(found)
        return [Placed(found, number)]

    def _judge_parts(self, found: Reading) -> None:
        """Where no total is printed, a part that has been finite and no longer is stands for it."""
        for loss in found.losses:
            if math.isfinite(loss.value):
                if len(self._parts) < 64:  # a log that invents names must not grow us
                    self._parts.add(loss.name)
            elif loss.name in self._parts and self._means(loss.name)[1] < SIDE_RANK:
                found.loss = loss.value

    def _is_echo(self, found: Reading) -> bool:
        """A record without a step that another rank or a second logger has already given."""
        rank = _RANK.search(self._line, 0, 60)
        if rank is not None:
            self._rank = self._rank or rank[1]
            if rank[1] != self._rank:
                return True
        now = (found.loss, found.grad_norm, found.lr, found.epoch)
        before, self._last = self._last, now
        return now == before and bool(found.loss) and found.grad_norm is not None

    def _step_of(self, found: Reading) -> int | None:
        self._indexed |= found.epoch is not None and not found.whole_epoch
        if found.step is not None and not self._repeats.are_endless:
            return self.steps.absolute(
                found.rank, found.step, counted_to=found.counted_to, epoch=self._epoch
            )
        if self._bars:
            return self._bars[max(self._bars)]
        if found.epoch is None or not found.whole_epoch or self._indexed:
            return None
        epoch = int(found.epoch)
        if epoch == self._epoch_as_step:
            self._indexed = True  # several records an epoch: it is no step
            return None
        self._epoch_as_step = epoch
        found.exact = False
        return epoch

    def _count_overflows(self, found: Reading) -> None:
        """An unbroken series of overflows is a dead run, with a perfectly good-looking loss."""
        skipped, self._overflows = self._overflows > 0, 0
        self._streak = self._streak + 1 if skipped else 0
        if skipped and found.grad_norm is None:
            found.skipped = True
            if self._streak >= OVERFLOW_STREAK:
                found.grad_norm = math.inf


def _merge(into: Reading, more: Reading) -> None:
    """Fill what `into` does not know."""
    for name in ("grad_norm", "lr", "tokens_per_s", "loss_scale", "total_steps"):
        if getattr(into, name) is None:
            setattr(into, name, getattr(more, name))
    if into.epoch is None:
        into.epoch, into.whole_epoch = more.epoch, more.whole_epoch
