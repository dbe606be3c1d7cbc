"""From lines to accepted records: one source feeds the detectors, positions order everything.

The metrics file (JSON lines) is the source from its hello or its first metric on; worker.log is
then read only for notes and causes. If the file falls silent while the log goes on, the log is
the source again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from statistics import median
from typing import Literal

from overnight.core.events import LogChunk, Position, StepMetric
from overnight.core.formats import Reading, WorkerEvent, read_json
from overnight.core.formats.shape import Placed, Shape

SILENT_FACTOR = 10
"""A metrics file silent for this many of its median gaps, while the log goes on, is given up."""

FIRST_METRIC_S = 60.0
"""A hello without any metric for this long, while the log shows steps, was an empty promise."""


class RecordStream:
    """The accepted records of one attempt."""

    def __init__(self, attempt: int, *, records_before: int = 0) -> None:
        """`records_before` numbers the steps of a script that prints none."""
        self._attempt = attempt
        self._count = 0
        self._unnumbered = 0
        self._records_before = records_before
        self._source: Literal["log", "metrics"] = "log"
        self._floor: int | None = None
        self._last: StepMetric | None = None
        self._gaps: deque[float] = deque(maxlen=50)
        self._metrics_at: float | None = None
        self.shape = Shape()
        self.eval_records = 0
        self.skip_messages = 0
        self.progress_at: float | None = None
        self.total_steps: int | None = None
        self.notes: list[str] = []

    @property
    def source(self) -> str:
        """Which file feeds the detectors now."""
        return "worker.log" if self._source == "log" else "the metrics file"

    def read(self, chunk: LogChunk, *, time_utc: float) -> Iterator[StepMetric | WorkerEvent]:
        """The records and protocol events of a chunk, in order."""
        for offset, line in enumerate(chunk.lines):
            number = chunk.first_line + offset
            if chunk.source == "log":
                for found in self.shape.feed(line, number):
                    yield from self._found(found, chunk, time_utc)
            else:
                parsed = read_json(line)
                if parsed is not None:
                    placed = Placed(parsed, number) if isinstance(parsed, Reading) else parsed
                    yield from self._found(placed, chunk, time_utc)

    def finish(self, *, at: float, time_utc: float) -> Iterator[StepMetric | WorkerEvent]:
        """The record that was waiting for more of its block when the output ended."""
        chunk = LogChunk(at, self._attempt, "log", (), first_line=0, end_offset=0)
        for found in self.shape.end():
            yield from self._found(found, chunk, time_utc)

    def _found(
        self, found: Placed | WorkerEvent, chunk: LogChunk, time_utc: float
    ) -> Iterator[StepMetric | WorkerEvent]:
        if isinstance(found, WorkerEvent):
            yield from self._event(found, chunk)
            return
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

    def _event(self, event: WorkerEvent, chunk: LogChunk) -> Iterator[WorkerEvent]:
        if chunk.source != "metrics":
            return  # a log may print anything; the protocol has a file of its own
        if event.name == "hello":
            self._source, self._metrics_at = "metrics", chunk.at
            total = event.fields.get("total_steps")
            if isinstance(total, int) and total > 0:
                self.total_steps = total
        yield event

    def _takes(self, reading: Reading, chunk: LogChunk) -> bool:
        """Whether this chunk's file is the source; changes over where the rules say so."""
        if chunk.source == "metrics":
            if self._metrics_at is not None and chunk.at > self._metrics_at:
                self._gaps.append(chunk.at - self._metrics_at)
            self._metrics_at = chunk.at
            if self._source == "log":
                self._change_to("metrics")
        elif self._source == "metrics":
            if not self._metrics_fell_silent(reading, chunk.at):
                return False
            self._change_to("log")
        if self._floor is not None and reading.step is not None:
            if reading.step <= self._floor:
                return False  # the other source has already given this one
            self._floor = None
        return True

    def _change_to(self, source: Literal["log", "metrics"]) -> None:
        self._source = source
        self._floor = self._last.step if self._last else None

    def _metrics_fell_silent(self, reading: Reading, at: float) -> bool:
        """The log shows newer steps while the metrics file has long said nothing."""
        last = self._last
        newer = reading.step is not None and (last is None or reading.step > last.step)
        if not newer or self._metrics_at is None:
            return False
        silent = at - self._metrics_at
        usual = SILENT_FACTOR * median(self._gaps) if self._gaps else FIRST_METRIC_S
        if silent <= max(usual, 1.0):
            return False
        self.notes.append(f"no metrics for {silent:.0f} s while the log goes on: reading the log")
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
