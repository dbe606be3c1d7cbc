"""All detectors of the record stream behind one face: levels in, verdicts out.

The panel chooses the sparse-log preset from the log's own stride, marks suspect positions for the
checkpoint ledger, turns lasting suspicion into a warning, and speaks once per class of evidence.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from pydantic import BaseModel, ConfigDict, Field

from overnight.core.detect.finding import Detector, Finding
from overnight.core.detect.nonfinite import NonfiniteConfig, NonfiniteDetector
from overnight.core.detect.spike import SPARSE, GradSpikeDetector, LossSpikeDetector, SpikeConfig
from overnight.core.events import Fault, Level, Position, Severity, StepMetric, Verdict

SPARSE_STRIDE = 10
"""A line every 10 steps or rarer is a sparse log: fewer records must suffice."""

WARN_SUSPECTS, WARN_WINDOW = 10, 20
"""Suspicion in 10 of 20 records is worth telling; single suspect records are not."""

CALM_RECORDS = 100
"""An episode of suspicion ends after this many records without any."""

GRAD_PATIENCE = 5
"""A lone gradient spike is a warning only if the loss stays out of its band this long."""


class PanelConfig(BaseModel):
    """The record detectors' own configs, under `[detect]`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    nonfinite: NonfiniteConfig = Field(default_factory=NonfiniteConfig)
    spike: SpikeConfig = Field(default_factory=SpikeConfig)


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

    def __init__(self, config: PanelConfig, history: Iterable[StepMetric] = ()) -> None:
        """`history` rebuilds the baselines after a restart; its verdicts are discarded."""
        self._config = config
        self._sparse = False
        self._steps: deque[int] = deque(maxlen=8)
        self._kept: list[StepMetric] = []
        self._settled = False
        self._detectors: list[Detector] = []
        self._suspects: deque[bool] = deque(maxlen=WARN_WINDOW)
        self._suspect_since: Position | None = None
        self._calm = 0
        self._since_grad: int | None = None
        self._spoken: set[tuple[str, Severity]] = set()
        self._build()
        for record in history:
            self.observe(record)
        self._forget_episode()

    def _build(self) -> None:
        spike = self._config.spike
        if self._sparse:
            spike = _sparse(spike)
        self._detectors = [
            NonfiniteDetector(self._config.nonfinite, sparse=self._sparse, grace=spike.min_records)
        ]
        if spike.enabled and not spike.adversarial:
            self._detectors += [
                LossSpikeDetector(spike),
                GradSpikeDetector(spike, sparse=self._sparse),
            ]

    def _forget_episode(self) -> None:
        self._suspects.clear()
        self._suspect_since = None
        self._calm = 0
        self._since_grad = None
        self._spoken.clear()

    def observe(self, record: StepMetric) -> Judgement:
        """Judge one record."""
        self._learn_stride(record)
        findings = [found for detector in self._detectors if (found := detector.observe(record))]
        self._watch_lone_gradient(findings)
        worst = max(findings, key=lambda finding: finding.level, default=None)
        level = worst.level if worst else Level.OK
        self._track(record, worst)
        return Judgement(level, self._verdict(record, worst), self._suspect_since)

    def _learn_stride(self, record: StepMetric) -> None:
        """Settle on dense or sparse from the first strides, then judge what came before again."""
        if self._settled:
            return
        self._steps.append(record.step)
        self._kept.append(record)
        self._settled = len(self._kept) == self._steps.maxlen
        strides = [b - a for a, b in zip(self._steps, list(self._steps)[1:], strict=False) if b > a]
        sparse = bool(strides) and median(strides) >= SPARSE_STRIDE
        if sparse != self._sparse:
            self._sparse = sparse
            self._build()
            for earlier in self._kept[:-1]:
                for detector in self._detectors:
                    detector.observe(earlier)
        if self._settled:
            self._kept.clear()

    def _watch_lone_gradient(self, findings: list[Finding]) -> None:
        """Count the records since a gradient spike during which the loss stayed out of its band."""
        faults = {finding.fault for finding in findings}
        if Fault.GRAD_SPIKE in faults:
            self._since_grad = 0
        elif Fault.LOSS_SPIKE not in faults:
            self._since_grad = None
        elif self._since_grad is not None:
            self._since_grad += 1

    def _track(self, record: StepMetric, worst: Finding | None) -> None:
        """Keep the episode of suspicion up to date."""
        suspect = worst is not None
        self._suspects.append(suspect)
        if suspect:
            self._calm = 0
            if self._suspect_since is None and worst is not None:
                self._suspect_since = min(worst.onset.position, record.position)
        elif self._suspect_since is not None:
            self._calm += 1
            if self._calm >= CALM_RECORDS:
                self._forget_episode()

    @property
    def _alarmed(self) -> bool:
        """Whether this episode has already had a critical verdict."""
        return any(severity is Severity.CRITICAL for _kind, severity in self._spoken)

    def _verdict(self, record: StepMetric, worst: Finding | None) -> Verdict | None:
        if worst is None:
            return None
        level = worst.level
        lasting = sum(self._suspects) >= WARN_SUSPECTS or self._since_grad == GRAD_PATIENCE
        if level is Level.SUSPECT and lasting:
            level = Level.WARNING
        if level < Level.WARNING:
            return None
        if worst.fault is Fault.LOSS_NONFINITE and self._alarmed:
            level = Level.CRITICAL  # a number that is lost while the alarm is up needs no proof
        severity = Severity.CRITICAL if level is Level.CRITICAL else Severity.WARNING
        kind = f"{worst.fault}/{worst.kind}"
        if not self._spoken.isdisjoint({(kind, severity), (kind, Severity.CRITICAL)}):
            return None
        self._spoken.add((kind, severity))
        return Verdict(
            at=record.at,
            fault=worst.fault,
            severity=severity,
            reason=worst.reason,
            onset=worst.onset.position,
            detected=record.position,
            onset_step=worst.onset.step,
            detected_step=record.step,
            evidence=worst.evidence,
            line=record.line,
        )


def _sparse(config: SpikeConfig) -> SpikeConfig:
    """The preset for sparse logs, except for what the user set by hand and what then fits."""
    preset = {key: value for key, value in SPARSE.items() if key not in config.model_fields_set}
    if preset.get("min_records", config.min_records) > preset.get("window", config.window):
        preset = {key: preset[key] for key in preset.keys() - {"window", "min_records"}}
    if preset.get("need", config.need) > preset.get("persist", config.persist):
        preset = {key: preset[key] for key in preset.keys() - {"need", "persist"}}
    return config.model_copy(update=preset)
