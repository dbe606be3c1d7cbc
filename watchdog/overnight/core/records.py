"""From lines to accepted records: one source feeds the detectors, positions order everything.

The metrics file (JSON lines) is the source from its hello or its first metric on, a file that the
config names from the start; worker.log is then read only for notes and causes. If the file falls
silent while the log goes on, the log is the source again.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import replace
from statistics import median

from overnight.core.events import LogChunk, Position, Source, StepMetric
from overnight.core.formats import Reading, WorkerEvent, read_protocol
from overnight.core.formats.blanks import Blanks
from overnight.core.formats.given import Given, MetricsConfig, Search
from overnight.core.formats.reading import Placed
from overnight.core.formats.shape import Shape
from overnight.core.formats.steps import Steps

SILENT_FACTOR = 10
"""A metrics file silent for this many of its median gaps, while the log goes on, is given up."""

FIRST_METRIC_S = 60.0
"""A hello without any metric for this long, while the log shows steps, was an empty promise."""

FILE_SILENT_S = 600.0
"""A file of the script's own may be written in blocks (TensorBoard: every 120 s), but not so
rarely; `trainer_state.json` may: it is as old as the last checkpoint, and never given up."""

ADVICE_S, ADVICE_LINES = 300.0, 20
"""A run that has printed so many lines for so long, and no loss, is one that is not understood."""

MAX_TOLD = 100_000
"""Rows without a step of which we know that they were read; a longer file is one with steps."""

REREAD_S = 10.0
"""What is known already comes again at once; later, the script has begun to count anew."""

_PREFERENCE: dict[Source, int] = {"log": 0, "metrics": 1, "file": 2}
_NAMES: dict[Source, str] = {
    "log": "worker.log",
    "metrics": "the metrics file",
    "file": "the file of [metrics]",
}


class RecordStream:
    """The accepted records of one attempt."""

    def __init__(
        self,
        attempt: int,
        *,
        records_before: int = 0,
        metrics: MetricsConfig | None = None,
        started_at: float = 0.0,
        resumed_step: int | None = None,
        earlier: tuple[Steps, Steps] | None = None,
        log_has_heading: bool = False,
        search: Search = re.Pattern.search,
    ) -> None:
        """`records_before` numbers the steps of a script that prints none; a file that the config
        names (`metrics`) has nothing new up to `resumed_step`, at which counters go on as they
        did in the `earlier` attempt; `log_has_heading`: what is read as a log is a CSV file;
        `search` tries the user's pattern.
        """
        self._attempt = attempt
        self._count = 0
        self._unnumbered = 0
        self._told: list[str] = []
        self._retold = 0
        self._records_before = records_before
        self._metrics = metrics or MetricsConfig()
        self._given = Given(self._metrics, search)
        named = self._metrics.source != "stdout"
        self._source: Source = "file" if named else "log"
        self._floor = resumed_step if named else None
        self._floor_at = started_at
        self._last: StepMetric | None = None
        self._gaps: deque[float] = deque(maxlen=50)
        self._metrics_at: float | None = started_at if named else None
        self._earlier, self._resumed_step = earlier, resumed_step
        log_steps, file_steps = self._resumed_steps()
        self._log = Shape(self._given, of_file=log_has_heading, steps=log_steps)
        self._file = Shape(self._given, of_file=True, steps=file_steps)
        self._advised = self._told_slow = False
        self._started_at = started_at
        self._lines: Counter[Source] = Counter()
        self._blanks = Blanks()
        self.eval_records = 0
        self.skip_messages = 0
        self.progress_at: float | None = None
        self.total_steps: int | None = None
        self.notes: list[str] = []

    @property
    def source(self) -> str:
        """Which file feeds the detectors now."""
        return _NAMES[self._source]

    @property
    def shape(self) -> Shape:
        """What was learned of the text that feeds the detectors now."""
        return self._file if self._source == "file" else self._log

    def read(self, chunk: LogChunk, *, time_utc: float) -> Iterator[StepMetric | WorkerEvent]:
        """The records and protocol events of a chunk, in order."""
        if chunk.begins or chunk.heading:
            self._begin_file(chunk)
        shape = self._file if chunk.source == "file" else self._log
        self._lines[chunk.source] += len(chunk.lines)
        for offset, line in enumerate(chunk.lines):
            number = chunk.first_line + offset
            if chunk.source == "metrics":
                parsed = read_protocol(line, means=self._given.means)
                if isinstance(parsed, WorkerEvent):
                    yield self._event(parsed, chunk.at)
                elif parsed is not None:
                    placed = Placed(self._blanks.judge(parsed), number)
                    yield from self._found(placed, chunk, time_utc)
            else:
                for found in shape.feed(line, number):
                    yield from self._found(found, chunk, time_utc)

    def finish(self, *, at: float, time_utc: float) -> Iterator[StepMetric]:
        """The record that was waiting for more of its block when the output ended."""
        sources: tuple[tuple[Shape, Source], ...] = ((self._log, "log"), (self._file, "file"))
        for shape, source in sources:
            chunk = LogChunk(at, self._attempt, source, (), first_line=0, end_offset=0)
            for found in shape.end():
                yield from self._found(found, chunk, time_utc)

    def _resumed_steps(self) -> tuple[Steps | None, Steps | None]:
        """Where the counters of log and file stood when this attempt resumed, each time anew."""
        step = self._resumed_step
        if self._earlier is None or step is None:
            return None, None
        log, file = self._earlier
        return log.as_of(step), file.as_of(step)

    @property
    def steps(self) -> tuple[Steps, Steps]:
        """What was learned of the counters in log and file, for the next attempt."""
        return self._log.steps, self._file.steps

    def advise(self, at: float) -> str:
        """What a person should know of a run of which nothing is understood; once, else ""."""
        if self._given.is_too_slow and not self._told_slow:
            self._told_slow = True
            return "the pattern takes too long: it is not used any more, lines are read without it"
        if self._count >= ADVICE_LINES and self._given.missing_step and not self._advised:
            self._advised = True
            return f"no record has step_key = {self._given.missing_step!r}: the records are counted"
        if self._advised or self._count or at - self._started_at < ADVICE_S:
            return ""
        lines = self._lines[self._source]
        if self._source == "file" and not lines:
            self._advised = True
            return f"nothing new in [metrics] path = {self._metrics.path!r}: is it the right one?"
        if lines < ADVICE_LINES:
            return ""
        self._advised = True
        return (
            f"{lines:,} lines of {self.source} say no training loss{self._given.hint}: faults in"
            " its numbers cannot be seen (try overnight replay with a [metrics] table)"
        )

    def _begin_file(self, chunk: LogChunk) -> None:
        """A file is read from its head: what it has told before, or another one has, is known."""
        self._file = Shape(self._given, of_file=True, steps=self._resumed_steps()[1])
        if chunk.heading:
            self._file.heading(chunk.heading)
            return
        self._floor_at, self._retold = chunk.at, 0
        if self._last is not None and self._source == "file":
            self._floor = self._last.step

    def _found(self, found: Placed, chunk: LogChunk, time_utc: float) -> Iterator[StepMetric]:
        reading = found.reading
        if reading.total_steps is not None:
            self.total_steps = reading.total_steps
        if reading.kind == "skip":
            yield from self._skipped(found, chunk, time_utc)
        elif reading.is_training_record:
            if self._takes(reading, chunk):
                record = self._record(reading, chunk, found.line, time_utc)
                if record is not None:
                    yield record
        elif reading.eval_loss is not None:
            self.eval_records += 1
        else:
            self.progress_at = chunk.at

    def _skipped(self, found: Placed, chunk: LogChunk, time_utc: float) -> Iterator[StepMetric]:
        """An update that was left out, as a record of its own: it has no loss."""
        if self._source == chunk.source:
            self.skip_messages += 1
            last = self._last
            here = replace(found.reading, step=last.step if last else 0)
            skipped = self._record(here, chunk, found.line, time_utc)
            self._last = last or self._last
            if skipped is not None:
                yield skipped

    def _event(self, event: WorkerEvent, at: float) -> WorkerEvent:
        if event.name == "hello":
            if self._source == "log":
                self._source, self._metrics_at = "metrics", at
            total = event.fields.get("total_steps")
            if isinstance(total, int) and total > 0:
                self.total_steps = total
        return event

    def _takes(self, reading: Reading, chunk: LogChunk) -> bool:
        """Whether this chunk's file is the source; changes over where the rules say so."""
        if chunk.source != self._source:
            better = _PREFERENCE[chunk.source] > _PREFERENCE[self._source]
            if not better and not self._fell_silent(reading, chunk):
                return False
            self._gaps.clear()
            self._metrics_at = None
            self._source = chunk.source
            if self._last is not None:
                self._floor, self._floor_at = self._last.step, chunk.at
        if chunk.source != "log":
            if self._metrics_at is not None and chunk.at > self._metrics_at:
                self._gaps.append(chunk.at - self._metrics_at)
            self._metrics_at = chunk.at
        return self._is_news(reading, chunk.at)

    def _is_news(self, reading: Reading, at: float) -> bool:
        """Whether neither another source nor an earlier reading of the file has given this step."""
        if reading.step is None and self._source == "file":
            return self._is_untold(reading)
        if self._floor is None or reading.step is None:
            return True
        rereading = at - self._floor_at < REREAD_S or self._metrics.source == "trainer_state"
        if reading.step <= self._floor and rereading:
            return False
        self._floor = None
        return True

    def _is_untold(self, reading: Reading) -> bool:
        """Whether a row without a step is none of those at the head of a file that comes again."""
        told, row = self._told, repr((reading.loss, reading.grad_norm))
        if self._retold < len(told):
            self._retold += 1
            if told[self._retold - 1] == row:
                return False
            del told[self._retold - 1 :]  # another text from here on
        if len(told) < MAX_TOLD:
            told.append(row)
            self._retold = len(told)
        return True

    def _fell_silent(self, reading: Reading, chunk: LogChunk) -> bool:
        """Another source shows newer steps while the present one has long said nothing."""
        last = self._last
        newer = reading.step is not None and (last is None or reading.step > last.step)
        if not newer or self._metrics_at is None or self._metrics.source == "trainer_state":
            return False
        least = FILE_SILENT_S if self._source == "file" else 1.0
        silent = chunk.at - self._metrics_at
        usual = SILENT_FACTOR * median(self._gaps) if self._gaps else FIRST_METRIC_S
        if silent <= max(usual, least):
            return False
        what = f"no metrics in {self.source} for {silent:.0f} s"
        self.notes.append(f"{what}: reading {_NAMES[chunk.source]} instead")
        return True

    def _record(
        self, reading: Reading, chunk: LogChunk, line: int, time_utc: float
    ) -> StepMetric | None:
        step = reading.step
        if step is None:
            self._unnumbered += 1
            step = self._records_before + self._unnumbered
        last = self._last
        exact = reading.step is not None and reading.exact and reading.kind != "skip"
        same = last is not None and last.step == step and exact
        if same and last is not None and _equal(last, reading):
            return None  # the same line again: another rank, a redrawn bar
        self._count += 1
        self._last = StepMetric(
            at=chunk.at,
            position=Position(self._attempt, self._count),
            step=step,
            loss=reading.loss,
            grad_norm=reading.grad_norm,
            lr=reading.lr,
            tokens_per_s=reading.tokens_per_s,
            epoch=reading.epoch,
            loss_scale=reading.loss_scale,
            skipped=reading.skipped,
            digits=reading.digits,
            line=line,
            time_utc=time_utc,
        )
        return self._last


def _equal(last: StepMetric, reading: Reading) -> bool:
    """Whether both show the same numbers; compared as text, because NaN differs from itself."""
    return repr((last.loss, last.grad_norm)) == repr((reading.loss, reading.grad_norm))
