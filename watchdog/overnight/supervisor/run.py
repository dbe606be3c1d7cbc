"""All that the supervisor knows of its run, owned by the loop alone."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from overnight.core.climb import Climb
from overnight.core.detect.gpu_hot import GpuHotConfig
from overnight.core.detect.panel import PanelConfig
from overnight.core.detect.stall import StallConfig
from overnight.core.events import (
    NUMERIC_FAULTS,
    CheckpointSeen,
    Decision,
    GpuSample,
    Health,
    Position,
    StepMetric,
    Target,
    Verdict,
)
from overnight.core.exits import Death
from overnight.core.formats.given import MetricsConfig
from overnight.core.health import Ledger
from overnight.core.incidents import Book
from overnight.core.lifecycle import Lifecycle
from overnight.core.placing import is_past
from overnight.core.policy import Policy
from overnight.core.probe import ProbeConfig, ProbeState
from overnight.core.proof import LrWatch
from overnight.core.resume import Means, ResumeConfig, expected_hello, means_of
from overnight.core.situation import PastRecovery, Situation
from overnight.core.status import Now, snapshot
from overnight.supervisor.attempt import Attempt

KEPT_RECORDS = 5000
"""Records from which detectors are rebuilt; the store keeps as many."""


@dataclass(frozen=True)
class Settings:
    """What was decided before the start. `env` is the worker's, already free of our secrets;
    `drill_s` is the time that a drill has, 0 for a run in earnest."""

    name: str
    command: tuple[str, ...]
    workdir: Path
    directory: Path
    env: Mapping[str, str]
    panel: PanelConfig
    stall: StallConfig
    gpu: GpuHotConfig
    resume: ResumeConfig
    metrics: MetricsConfig
    probe: ProbeConfig
    grace_s: float
    max_loss_s: float
    base_lr: float | None = None
    base_batch: int | None = None
    observe: bool = False
    drill_s: float = 0.0


@dataclass(frozen=True)
class Stop:
    """Somebody ended the run: by signal (exit 128 + N) or by `overnight stop` (exit 0)."""

    exit_status: int
    why: str


@dataclass
class Run:
    """The mutable state of one supervised run."""

    settings: Settings
    ledger: Ledger
    book: Book
    policy: Policy
    started_utc: float
    life: Lifecycle = field(default_factory=Lifecycle)
    attempt: Attempt | None = None
    attempts: int = 0
    lr_scale: float = 1.0
    scales: dict[int, float] = field(default_factory=dict)
    changes: list[tuple[Position, float]] = field(default_factory=list)
    clip: str | None = None
    relief: int = 0
    climb: Climb | None = None
    records: deque[StepMetric] = field(default_factory=lambda: deque(maxlen=KEPT_RECORDS))
    record_count: int = 0
    first_step: int | None = None
    rebased: Position | None = None
    past: list[PastRecovery] = field(default_factory=list)
    signatures: list[str] = field(default_factory=list)
    hello: Mapping[str, Any] | None = None
    total_steps: int | None = None
    gpus: dict[str, GpuSample] = field(default_factory=dict)
    stop: Stop | None = None
    exit_status: int = 1
    ending: str = ""

    @property
    def means(self) -> Means:
        """What can be done to this worker, as far as it is known by now."""
        hello = self.hello or expected_hello(self.settings.command)
        attempt = self.attempt
        probe = attempt.probe if attempt is not None else ProbeState()
        lives = attempt is not None and attempt.exited is None
        rivals = attempt is not None and attempt.levels_ignored  # what is undone breaks the other
        return means_of(
            self.settings.resume,
            hello,
            probe=probe.alive,
            in_flight=probe.snapshots and lives and not rivals,
        )

    @property
    def last(self) -> StepMetric | None:
        """The newest accepted record."""
        return self.records[-1] if self.records else None

    @property
    def stride(self) -> int:
        """Steps between the last two records."""
        if len(self.records) < 2:
            return 1
        return max(1, abs(self.records[-1].step - self.records[-2].step))

    def record_at(self, at: float) -> StepMetric | None:
        """The last record that had arrived at this moment (monotonic: a clock may be set)."""
        return next((record for record in reversed(self.records) if record.at <= at), None)

    def is_abandoned(self, seen: CheckpointSeen, last: StepMetric | None) -> bool:
        """Whether a checkpoint is of a future that a rollback has left, or of another run.

        One that was saved before this attempt began is on our line of history only if it is older
        than what the attempt resumed from. `last` is the record before it.
        """
        attempt = self.attempt
        if attempt is not None and seen.at >= attempt.started_at:
            return False
        late = attempt is not None and attempt.number > 1
        if last is None:
            known = self.first_step
            return late or (known is not None and not is_past(seen.step, known))
        if not late or attempt is None:
            return False
        resumed = attempt.resumed
        return resumed is None or resumed.position is None or last.position >= resumed.position

    def lineage(self, target: Target | None) -> list[StepMetric]:
        """The records on the way to a checkpoint: what a resumed worker has behind it."""
        if target is None or target.position is None:
            return []
        return [r for r in self.records if r.position <= target.position]

    def forget_future(self, target: Target | None) -> None:
        """Drop what a rollback undoes, so that the records stay one line of history."""
        kept = self.lineage(target)
        self.records.clear()
        self.records.extend(kept)

    def lr_watch(self, new_scale: float) -> LrWatch | None:
        """The proof that a new scale will need, from what has been logged so far."""
        logged = {
            r.step: (r.lr, self._scale_at(r.position)) for r in self.records if r.lr is not None
        }
        newest = next(reversed(logged.values()), None)
        return LrWatch(new_scale, logged, newest)

    def _scale_at(self, position: Position) -> float:
        """The learning-rate scale that was in force at a record."""
        here = [s for p, s in self.changes if p.attempt == position.attempt and p <= position]
        return here[-1] if here else self.scales.get(position.attempt, 1.0)

    def back_in_place(self, onset: Position, *, new_scale: float) -> None:
        """Go on with the history before a fault, in the same attempt and with another scale."""
        kept = [record for record in self.records if record.position < onset]
        newest = self.records[-1].position if self.records else onset
        self.records.clear()
        self.records.extend(kept)
        self.changes.append((newest, new_scale))
        self.lr_scale, self.climb = new_scale, None
        self.ledger.went_back_in_place()

    def situation(
        self, verdict: Verdict, *, now_utc: float, incident: int, death: Death | None
    ) -> Situation:
        """What the policy may know."""
        numeric = verdict.fault in NUMERIC_FAULTS
        targets = self.ledger.targets(
            onset=verdict.onset if numeric else None,
            onset_step=verdict.onset_step if numeric else None,
        )
        means = self.means
        targets = [target for target in targets if means.can_load(target.identity.path)]
        attempt = self.attempt
        signatures = (*self.signatures, death.signature) if death else tuple(self.signatures)
        return Situation(
            now_utc=now_utc,
            means=means,
            targets=tuple(targets),
            checkpoints_exist=self.ledger.has_own(),
            any_record=bool(attempt and attempt.records),
            lr_scale=self.settled_scale,
            incident=incident,
            past=tuple(self.past),
            records_since_resume=attempt.records if attempt and attempt.resumed else None,
            signatures=signatures,
            relief=self.relief,
        )

    def rebase(self) -> None:
        """The loss begins a new level here, and that is meant: a change of data, another model."""
        self.rebased = self.last.position if self.last else None
        if self.attempt is not None:
            self.attempt.panel.rebase()

    @property
    def level_records(self) -> list[StepMetric]:
        """The records that tell the level of the loss: those since it last began anew."""
        records, since = list(self.records), self.rebased
        if since is None or not records or records[-1].position < since:
            return records  # back to before the change
        return [record for record in records if record.position > since]

    def take_measures(self, decision: Decision) -> None:
        """What a recovery changes for good: memory relief, and whether the rate may climb back."""
        self.relief = decision.relief
        if decision.lr_scale < self.lr_scale:
            steps = decision.climb_steps
            self.climb = Climb(back_to=self.lr_scale, after_steps=steps) if steps else None
        elif self.climb is not None and decision.lr_scale >= self.climb.back_to:
            self.climb = None

    @property
    def settled_scale(self) -> float:
        """The learning-rate scale of the next attempt: a climb that is due needs no more proof."""
        if self.climb is not None and self.last is not None and self.climb.is_due(self.last.step):
            return self.climb.back_to
        return self.lr_scale

    def climbed(self) -> None:
        """The running worker has its old rate again."""
        assert self.climb is not None
        assert self.last is not None
        self.lr_scale, self.climb = self.climb.back_to, None
        self.changes.append((self.last.position, self.lr_scale))

    def reached(self, step: int) -> None:
        """How far the newest recovery has led."""
        if self.past:
            self.past[-1] = replace(self.past[-1], reached_step=step)

    def row(self, snapshot: Mapping[str, Any]) -> dict[str, Any]:
        """What is persisted about the run itself."""
        attempt = self.attempt
        return {
            "name": self.settings.name,
            "command": list(self.settings.command),
            "workdir": str(self.settings.workdir),
            "state": self.life.state.value,
            "attempt": self.attempts,
            "lr_scale": self.lr_scale,
            "scales": self.scales,
            "relief": self.relief,
            "climb": self.climb.as_row() if self.climb else None,
            "started_utc": self.started_utc,
            "record_count": self.record_count,
            "first_step": self.first_step,
            "max_loss_s": self.settings.max_loss_s,
            "worker": attempt.identity if attempt and attempt.exited is None else None,
            "hello": dict(self.hello) if self.hello else None,
            "total_steps": self.total_steps,
            "past": [_plain(past) for past in self.past],
            "ending": self.ending,
            "snapshot": snapshot,
        }


def snapshot_of(run: Run, *, now_utc: float, alerts_waiting: int) -> dict[str, Any]:
    """The public numbers of a run (core/status.py) from its live state."""
    attempt = run.attempt
    process = attempt.process if attempt and attempt.exited is None else None
    best = run.ledger.newest(Health.HEALTHY, Health.VERIFIED)
    healthy = run.ledger.newest(Health.HEALTHY)
    now = Now(
        name=run.settings.name,
        state=run.life.state.value,
        attempt=run.attempts,
        pid=process.pid if process else None,
        started_utc=run.started_utc,
        now_utc=now_utc,
        total_steps=run.total_steps,
        lr_scale=run.lr_scale,
        resume_route=run.means.route.value,
        alerts_waiting=alerts_waiting,
        healthy_step=healthy.step if healthy else None,
    )
    return snapshot(
        now,
        records=list(run.records)[-60:],
        best=(best, run.ledger.health(best)[0]) if best else None,
        gpus=sorted(run.gpus.values(), key=lambda sample: sample.index),
        open_incidents=run.book.open_incidents(),
    )


def _plain(past: PastRecovery) -> dict[str, Any]:
    return {name: getattr(past, name) for name in PastRecovery.__dataclass_fields__}
