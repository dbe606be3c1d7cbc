"""An old log as if it were live: its lines in, records, verdicts and intended actions out."""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from overnight.core.detect.panel import Panel, PanelConfig
from overnight.core.detect.stall import StallConfig, StallDetector, Witness
from overnight.core.events import Action, Fault, LogChunk, Position, Severity, StepMetric, Verdict
from overnight.core.exits import TAIL_LINES, Death, cause_of_end
from overnight.core.formats.given import MetricsConfig, Search
from overnight.core.policy import Policy
from overnight.core.records import RecordStream
from overnight.core.timestamps import stamp_s

LATE_RECORDS = 3
"""Other processes of a dying run may print so many records after the words that name its cause."""


BANNER_LINES = 5
"""A script that starts again says more than this before its first record."""

ANEW = 0.8
"""A loss at this part of the first one, at the first step: a run that starts again."""

UNTIMED_S = 1e-3
"""Records of a log without any times come one after the other, and nothing lasts long."""


class Gap(BaseModel):
    """A pause in the output of a run: so many seconds after this line."""

    model_config = ConfigDict(frozen=True)

    after_line: int
    seconds: float


class Pacing(BaseModel):
    """When the lines of a log without time stamps came."""

    model_config = ConfigDict(frozen=True)

    normal_gap_s: float = Field(1.0, ge=0, description="seconds between two signs of progress")
    legit_gaps: tuple[Gap, ...] = ()
    silent_gaps: tuple[Gap, ...] = ()


@dataclass(frozen=True, slots=True)
class Finding:
    """A verdict with the line at which it was reached, and what would have been done."""

    verdict: Verdict
    line: int
    action: Action
    at: float


@dataclass(slots=True)
class Report:
    """What a log says; `last_*` are the last printed values, `hours_saved` where times are known.

    `timed`: whether the log's own time stamps or a pacing gave the times.
    """

    format: str | None = None
    loss_key: str | None = None
    records: int = 0
    eval_records: int = 0
    first_step: int | None = None
    last_step: int | None = None
    last_loss: float | None = None
    last_grad_norm: float | None = None
    last_lr: float | None = None
    findings: list[Finding] = field(default_factory=list)
    death: Death | None = None
    exit_cause: str = "unknown"
    timed: bool = False
    hours_saved: float | None = None
    lines: int = 0
    notes: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Clock:
    """Seconds since the first line, from time stamps where there are any, else from the pacing."""

    pacing: Pacing | None
    at: float = 0.0
    shift: float | None = None
    gaps: Mapping[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        given = (self.pacing.legit_gaps + self.pacing.silent_gaps) if self.pacing else ()
        self.gaps = {gap.after_line: gap.seconds for gap in given}

    @property
    def step_s(self) -> float:
        """What a sign of progress takes where the log does not say."""
        if self.shift is not None:
            return 0.0
        return self.pacing.normal_gap_s if self.pacing else UNTIMED_S

    def read(self, line: str) -> None:
        """Move to the time at the head of a line; it never goes back."""
        stamp = stamp_s(line)
        if stamp is None:
            return
        if self.shift is None:
            self.shift = self.at - stamp
        if stamp + self.shift > self.at:
            self.at = stamp + self.shift
        elif self.at - stamp - self.shift > 60.0:
            self.shift = self.at - stamp  # a clock set back, a log begun anew, a gap of the pacing


class Replay:
    """One log through parser, detectors and policy."""

    def __init__(
        self,
        *,
        panel: PanelConfig,
        stall: StallConfig,
        policy: Policy,
        pacing: Pacing | None = None,
        metrics: MetricsConfig | None = None,
        has_heading: bool = False,
        search: Search = re.Pattern.search,
    ) -> None:
        """`has_heading`: the log is a CSV file, whose first line names its columns; `search`
        tries a pattern of the user's."""
        self._config = panel
        self._panel = Panel(panel)
        self._first_loss: float | None = None
        self._stall = StallDetector(stall, started_at=0.0)
        self._policy = policy
        self._clock = _Clock(pacing)
        names = metrics.names_only() if metrics else None
        self._stream = RecordStream(1, metrics=names, log_has_heading=has_heading, search=search)
        self._report = Report()
        self._tail: deque[tuple[int, int, str]] = deque(maxlen=TAIL_LINES)
        self._signs = 0
        self._adversarial = False
        self._held: list[tuple[Verdict, int]] = []

    def feed(self, lines: Iterable[str]) -> None:
        """The next lines of the log."""
        clock, report, stream = self._clock, self._report, self._stream
        for line in lines:
            before = clock.at
            clock.read(line)
            if clock.at > before:
                self._check_stall(report.lines, certain=False)
            report.lines += 1
            number = report.lines
            at = clock.at + clock.step_s
            self._signs = 0
            chunk = LogChunk(at, 1, "log", (line,), first_line=number, end_offset=0)
            stream.progress_at = None
            messages = stream.skip_messages
            for found in stream.read(chunk, time_utc=at):
                if isinstance(found, StepMetric):
                    self._take(found, message=stream.skip_messages > messages)
            if stream.progress_at is not None:
                step = report.last_step or 0
                self._progress(StepMetric(at, Position(1, 0), step=step), went_on=True)
            if self._signs:
                clock.at = at
            if line and not line.isspace():
                self._tail.append((number, report.records, line))
            if number in clock.gaps:
                clock.at += clock.gaps[number]
                self._check_stall(number, certain=True)

    def finish(self, exit_code: int | None = None) -> Report:
        """The end of the log; `exit_code` as a shell or Python reports it, None if unknown."""
        report = self._report
        for found in self._stream.finish(at=self._clock.at, time_utc=self._clock.at):
            self._take(found)
        for verdict, line in self._held:
            self._add(verdict, line)
        self._die(exit_code)
        shape = self._stream.shape
        report.format, report.loss_key = shape.style, shape.loss_key
        report.eval_records = self._stream.eval_records
        report.last_grad_norm, report.last_lr = shape.last_grad_norm, shape.last_lr
        advice = self._stream.advise(0.0)
        report.notes += [advice] if advice else []
        report.timed = self._clock.shift is not None or self._clock.pacing is not None
        if report.timed:
            report.hours_saved = self._hours_saved()
        return report

    # --- records -------------------------------------------------------------------------------

    def _take(self, found: StepMetric, *, message: bool = False) -> None:
        """Judge a record; a message that an update was left out is judged, but is no record."""
        if self._begins_anew(found):
            self._panel, self._adversarial = Panel(self._config), False
        if self._stream.shape.adversarial and not self._adversarial:
            self._adversarial = True
            self._panel.ignore_level()
        judgement = self._panel.observe(found)
        if not (message and found.loss is None):
            last = self._report.last_step
            self._count(found)
            self._progress(found, went_on=last is not None and found.step > last)
        if judgement.verdict is not None:
            self._add(judgement.verdict, found.line or self._report.lines)

    def _begins_anew(self, record: StepMetric) -> bool:
        """Whether the script was started again from nothing: first step and first loss are back."""
        loss, first, report = record.loss, self._first_loss, self._report
        if loss is None or first is None or report.first_step is None or report.last_step is None:
            self._first_loss = loss if first is None else first
            return False
        return record.step <= report.first_step < report.last_step and loss >= ANEW * first > 0

    def _count(self, record: StepMetric) -> None:
        report = self._report
        report.records += 1
        report.first_step = record.step if report.first_step is None else report.first_step
        report.last_step = record.step
        if record.loss is not None:
            report.last_loss = record.loss

    def _progress(self, record: StepMetric, *, went_on: bool) -> None:
        self._signs += 1
        if self._held:
            self._release(went_on=went_on)
        self._stall.observe(record)

    def _check_stall(self, line: int, *, certain: bool) -> None:
        """Silence up to now. Time stamps alone do not tell a hang from a run started again: what
        comes next does."""
        verdict = self._stall.check(self._clock.at, Witness())
        if verdict is None:
            return
        if certain:
            self._add(verdict, line)
        else:
            self._held.append((verdict, line))

    def _release(self, *, went_on: bool) -> None:
        held, self._held = self._held, []
        for verdict, line in held:
            if went_on and self._report.lines - line <= BANNER_LINES:
                self._add(verdict, line)

    def _add(self, verdict: Verdict, line: int) -> None:
        action = self._policy.intent(verdict)
        self._report.findings.append(Finding(verdict, line, action, self._clock.at))

    # --- the end -------------------------------------------------------------------------------

    def _die(self, exit_code: int | None) -> None:
        report = self._report
        # What the script went on after is no cause of its end.
        tail = [(n, t) for n, seen, t in self._tail if seen >= report.records - LATE_RECORDS]
        began = report.records > 0
        death = cause_of_end(exit_code, [text for _number, text in tail], any_record=began)
        report.exit_cause = death.cause
        if death.cause in ("completed", "unknown") and self._ended_nonfinite():
            report.exit_cause = "numeric"
        if not death.died:
            return
        report.death = death
        line = tail[-1 - death.back][0] if tail else report.lines
        last = report.last_step
        verdict = Verdict(
            at=self._clock.at,
            fault=death.fault,
            severity=Severity.CRITICAL,
            reason=f"the run died: {death.cause}; {death.hint}",
            onset_step=last,
            detected_step=last,
            line=line,
            cause=death.cause,
        )
        self._add(verdict, line)

    def _ended_nonfinite(self) -> bool:
        """Whether the loss went bad and stayed so: a script that ran to its end on it failed."""
        last = self._report.last_loss
        bad = any(
            finding.verdict.fault is Fault.LOSS_NONFINITE
            and finding.verdict.severity is Severity.CRITICAL
            for finding in self._report.findings
        )
        return bad and last is not None and not math.isfinite(last)

    def _hours_saved(self) -> float | None:
        first = next(
            (f for f in self._report.findings if f.verdict.severity is Severity.CRITICAL), None
        )
        return None if first is None else max(0.0, self._clock.at - first.at) / 3600.0


def public(log: str, report: Report) -> dict[str, Any]:
    """The report as `replay --json` prints it: null for unknown, strings for NaN and infinity."""
    return {
        "log": log,
        "format": report.format,
        "loss_key": report.loss_key,
        "records": report.records,
        "eval_records": report.eval_records,
        "first_step": report.first_step,
        "last_step": report.last_step,
        "last_loss": _plain(report.last_loss),
        "last_grad_norm": _plain(report.last_grad_norm),
        "last_lr": _plain(report.last_lr),
        "verdicts": [_verdict(finding) for finding in report.findings],
        "exit_cause": report.exit_cause,
    }


def _verdict(finding: Finding) -> dict[str, Any]:
    verdict = finding.verdict
    return {
        "fault": verdict.fault.value,
        "severity": verdict.severity.value,
        "line": finding.line,
        "onset_step": verdict.onset_step,
        "detected_step": verdict.detected_step,
        "reason": verdict.reason,
        "action": finding.action.value,
    }


def _plain(value: float | None) -> float | str | None:
    if value is None or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
