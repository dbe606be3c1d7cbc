"""All detectors of the record stream behind one face: levels in, verdicts out.

The panel chooses the sparse-log preset from the log's own stride, marks suspect positions for the
checkpoint ledger, turns lasting suspicion into a warning, and speaks once per class of evidence.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from statistics import median

from pydantic import BaseModel, ConfigDict, Field

from overnight.core.detect.collapse import SPARSE_COLLAPSE, CollapseConfig, CollapseDetector
from overnight.core.detect.drift import SPARSE_DRIFT, DriftConfig, DriftDetector
from overnight.core.detect.finding import Detector, Finding, is_finite
from overnight.core.detect.level import LossLevel
from overnight.core.detect.nonfinite import NonfiniteConfig, NonfiniteDetector
from overnight.core.detect.presets import sparse_spike, with_preset
from overnight.core.detect.shift import Shift, ShiftMemory
from overnight.core.detect.slowdown import SlowdownConfig, SlowdownDetector
from overnight.core.detect.spike import GradSpikeDetector, LossSpikeDetector, SpikeConfig
from overnight.core.events import Fault, Level, Position, Severity, StepMetric, Verdict

SPARSE_STRIDE = 10
"""A line every 10 steps or rarer is a sparse log: fewer records must suffice."""

WARN_SUSPECTS, WARN_WINDOW = 10, 20
"""Suspicion in 10 of 20 records is worth telling; single suspect records are not."""

CALM_RECORDS = 100
"""An episode of suspicion ends after this many records without any."""

GRAD_PATIENCE = 5
"""A lone gradient spike is a warning only if the loss stays out of its band this long."""


DATA = "the same rise at the same place as in an earlier attempt: a change of data, accepted"


class PanelConfig(BaseModel):
    """The record detectors' own configs, under `[detect]`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    nonfinite: NonfiniteConfig = Field(default_factory=NonfiniteConfig)
    spike: SpikeConfig = Field(default_factory=SpikeConfig)
    drift: DriftConfig = Field(default_factory=DriftConfig)
    collapse: CollapseConfig = Field(default_factory=CollapseConfig)
    slowdown: SlowdownConfig = Field(default_factory=SlowdownConfig)


@dataclass(frozen=True, slots=True)
class Judgement:
    """What one record meant: its level, a verdict if one is due, and where suspicion began.

    `suspect_since` is the first suspect record of the episode that is still open, else None.
    """

    level: Level
    verdict: Verdict | None
    suspect_since: Position | None


class Panel:
    """Feed it every accepted record of the run, in order."""

    def __init__(
        self,
        config: PanelConfig,
        history: Iterable[StepMetric] = (),
        *,
        shifts: Iterable[Shift] = (),
    ) -> None:
        """`history` rebuilds the baselines after a restart; its verdicts are discarded.

        `shifts` are those of the panel before: a level shift seen there may be recognized.
        """
        self._config = config
        self._sparse = False
        self._stride = 1.0
        self._steps: deque[int] = deque(maxlen=8)
        self._kept: list[StepMetric] = []
        self._settled = False
        self._dead: list[Detector] = []
        self._detectors: list[Detector] = []
        self._suspects: deque[bool] = deque(maxlen=WARN_WINDOW)
        self._suspect_since: Position | None = None
        self._calm = 0
        self._since_grad: int | None = None
        self._grad_faults = False
        self._spoken: set[tuple[str, Severity]] = set()
        self._shifts = ShiftMemory()
        self._slowdown = SlowdownDetector(config.slowdown)
        self._waiting: Verdict | None = None
        self._build()
        for record in history:
            self.observe(record)
        self._forget_episode()
        self._shifts = ShiftMemory(shifts)
        self._waiting = None

    @property
    def shifts(self) -> tuple[Shift, ...]:
        """The critical rises so far, for the panel of the next attempt."""
        return self._shifts.known

    def rebase(self) -> None:
        """An announced change (data, sequence length, loss weights): the level starts anew.

        Dead and non-finite losses are judged on without a break.
        """
        self._build_leveled()
        self._forget_episode()

    def ignore_level(self) -> None:
        """The loss is one of two that fight (GAN, RL): its level says nothing from here on."""
        spike = self._config.spike.model_copy(update={"adversarial": True})
        self._config = self._config.model_copy(update={"spike": spike})
        self.rebase()

    def _build(self) -> None:
        collapse = self._config.collapse
        if self._sparse:
            collapse = with_preset(collapse, SPARSE_COLLAPSE)
        grace = self._spike.min_records
        self._dead = [NonfiniteDetector(self._config.nonfinite, sparse=self._sparse, grace=grace)]
        if collapse.enabled:
            self._dead.append(CollapseDetector(collapse, grace=grace))
        self._build_leveled()

    @property
    def _spike(self) -> SpikeConfig:
        """The spike detectors' config with the preset of this log."""
        return sparse_spike(self._config.spike) if self._sparse else self._config.spike

    def _build_leveled(self) -> None:
        """The detectors that hold the loss against a level: for losses whose level means much."""
        spike, drift = self._spike, self._config.drift
        if self._sparse:
            drift = with_preset(drift, SPARSE_DRIFT)
        self._level = LossLevel(spike.window, spike.min_records)
        self._detectors = list(self._dead)
        if spike.adversarial:
            return
        if spike.enabled:
            self._detectors.append(LossSpikeDetector(spike, self._level))
            self._detectors.append(GradSpikeDetector(spike, sparse=self._sparse))
        if drift.enabled:
            self._detectors.append(DriftDetector(drift, self._level))

    def _forget_episode(self) -> None:
        self._suspects.clear()
        self._suspect_since = None
        self._calm = 0
        self._since_grad = None
        self._grad_faults = False
        self._spoken.clear()

    def observe(self, record: StepMetric) -> Judgement:
        """Judge one record. A slowdown makes nothing suspect, and waits while worse is said."""
        self._learn_stride(record)
        self._waiting = self._slowdown.observe(record) or self._waiting
        findings = self._ask(record)
        if not findings:
            self._since_grad = None
            self._track(record, None)
            verdict, self._waiting = self._waiting, None
            return Judgement(Level.OK, verdict, self._suspect_since)
        findings.sort(key=lambda finding: finding.level, reverse=True)
        self._watch_lone_gradient(findings)
        self._track(record, findings[0])
        verdict = self._verdict(record, findings)
        return Judgement(findings[0].level, verdict, self._suspect_since)

    def _ask(self, record: StepMetric) -> list[Finding]:
        detectors = self._detectors
        return [found for detector in detectors if (found := detector.observe(record))]

    def _learn_stride(self, record: StepMetric) -> None:
        """Settle on dense or sparse from the first strides, then judge what came before again."""
        if self._settled:
            return
        self._steps.append(record.step)
        self._kept.append(record)
        self._settled = len(self._kept) == self._steps.maxlen
        strides = [b - a for a, b in zip(self._steps, list(self._steps)[1:], strict=False) if b > a]
        self._stride = float(median(strides)) if strides else 1.0
        sparse = self._stride >= SPARSE_STRIDE
        if sparse != self._sparse:
            self._sparse = sparse
            self._build()
            for earlier in self._kept[:-1]:
                self._ask(earlier)
        if self._settled:
            self._kept.clear()

    def _watch_lone_gradient(self, findings: list[Finding]) -> None:
        """Count the records since a gradient spike during which the loss stayed out of its band."""
        faults = {finding.fault for finding in findings}
        self._grad_faults |= not faults.isdisjoint({Fault.GRAD_SPIKE, Fault.GRAD_NONFINITE})
        if Fault.GRAD_SPIKE in faults:
            self._since_grad = 0
        elif Fault.LOSS_SPIKE not in faults:
            self._since_grad = None
        elif self._since_grad is not None:
            self._since_grad += 1

    def _track(self, record: StepMetric, worst: Finding | None) -> None:
        """Keep the episode of suspicion up to date."""
        self._suspects.append(worst is not None)
        if worst is not None:
            self._calm = 0
            if self._suspect_since is None:
                self._suspect_since = min(worst.onset.position, record.position)
        elif self._suspect_since is not None:
            self._calm += 1
            if self._calm >= CALM_RECORDS:
                self._forget_episode()

    @property
    def _alarmed(self) -> bool:
        """Whether this episode has already had a critical verdict."""
        return any(severity is Severity.CRITICAL for _kind, severity in self._spoken)

    def _verdict(self, record: StepMetric, findings: list[Finding]) -> Verdict | None:
        """The loudest that has not been said in this episode; each class of evidence speaks."""
        for found in findings:
            level = self._loudness(found, worst=found is findings[0])
            if level < Level.WARNING:
                continue
            severity = Severity.CRITICAL if level is Level.CRITICAL else Severity.WARNING
            kind = f"{found.fault}/{found.kind}"
            if not self._spoken.isdisjoint({(kind, severity), (kind, Severity.CRITICAL)}):
                continue
            if severity is Severity.CRITICAL and self._is_data(record, found):
                verdict = _spell_verdict(record, found, Severity.INFO)
                self.rebase()
                return replace(verdict, reason=f"{verdict.reason}; {DATA}")
            self._spoken.add((kind, severity))
            return _spell_verdict(record, found, severity)
        return None

    def _loudness(self, found: Finding, *, worst: bool) -> Level:
        """The finding's level, raised by what lasts and by what has been proved already."""
        level = found.level
        if found.fault is Fault.LOSS_NONFINITE and level >= Level.WARNING and self._alarmed:
            return Level.CRITICAL  # a number that is lost while the alarm is up needs no proof
        if level is Level.SUSPECT:
            lasting = sum(self._suspects) >= WARN_SUSPECTS and not self._spoken
            lasting = lasting or self._since_grad == GRAD_PATIENCE
            follows = found.fault is Fault.LOSS_SPIKE and self._alarmed
            if (lasting and worst) or follows:
                return Level.WARNING
        return level

    def _is_data(self, record: StepMetric, found: Finding) -> bool:
        """Whether this rise was here before, alike; else it is remembered for the next attempt."""
        before = found.evidence.get("best", found.evidence.get("median"))
        if found.fault not in {Fault.LOSS_SPIKE, Fault.DIVERGENCE} or not before:
            return False
        records = min(len(self._level.recent), record.position.record - found.onset.position.record)
        since = list(self._level.recent)[-max(4, records) :]
        half = len(since) // 2
        falling = sum(since[-half:]) <= sum(since[:half])
        calm = is_finite(record.grad_norm) and not self._grad_faults and falling
        rise = (self._level.newest() - before) / abs(before)
        return self._shifts.recognizes(Shift(found.onset.step, rise, calm), stride=self._stride)


def _spell_verdict(record: StepMetric, found: Finding, severity: Severity) -> Verdict:
    return Verdict(
        at=record.at,
        fault=found.fault,
        severity=severity,
        reason=found.reason,
        onset=found.onset.position,
        detected=record.position,
        onset_step=found.onset.step,
        detected_step=record.step,
        evidence=found.evidence,
        line=record.line,
    )
