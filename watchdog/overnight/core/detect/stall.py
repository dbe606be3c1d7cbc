"""No progress though alive: the gap since the last record against what was normal.

Fixed limits were false in 5 to 36 of 40 simulated jobs with slow evaluations and saves;
max(900 s, 20 x median gap, 3 x longest gap) in none (docs/science.md).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from statistics import median

from pydantic import BaseModel, ConfigDict, Field

from overnight.core.events import Fault, Severity, StepMetric, Verdict


class StallConfig(BaseModel):
    """When silence is a stall."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    enabled: bool = Field(default=True, description="watch for silence at all")
    floor_s: float = Field(900, gt=0, description="never call a stall before this many seconds")
    first_s: float = Field(
        3600, gt=0, description="limit from the start to the first record, and for a long phase"
    )
    median_factor: float = Field(20, gt=1, description="multiples of the median gap")
    longest_factor: float = Field(3, ge=1, description="multiples of the longest healthy gap")
    witness_s: float = Field(
        10, gt=0, description="seconds without CPU time that make a second witness"
    )


@dataclass(frozen=True, slots=True)
class Witness:
    """Signs beside silence; None where nobody can tell.

    `cpu_idle_s`: seconds for which the worker's tree has used (almost) no CPU time.
    """

    cpu_idle_s: float | None = None


class StallDetector:
    """Starts empty in each attempt: gaps of an earlier process say nothing about this one."""

    def __init__(self, config: StallConfig, *, started_at: float) -> None:
        self._config = config
        self._since = started_at
        self._active_at = started_at
        self._last: StepMetric | None = None
        self._gaps: deque[float] = deque(maxlen=1000)
        self._longest = 0.0
        self._phase = ""
        self._spoken: set[Severity] = set()

    @property
    def limit_s(self) -> float:
        """Silence in seconds that is a stall now."""
        if self._last is None:
            return self._config.first_s
        usual = median(self._gaps) if self._gaps else 0.0
        return max(
            self._config.first_s if self._phase else 0.0,
            self._config.floor_s,
            self._config.median_factor * usual,
            self._config.longest_factor * self._longest,
        )

    def observe(self, record: StepMetric) -> None:
        """A record is progress, whatever it says."""
        if self._last is not None and record.at > self._since:
            gap = record.at - self._since
            self._gaps.append(gap)
            self._longest = max(self._longest, gap)
        self._since, self._last = record.at, record
        self._phase = ""
        self._spoken.clear()

    def phase(self, name: str, *, at: float) -> None:
        """The worker announced a long phase (eval, save, compile), or that it trains again.

        Its clock starts here, and it may take as long as a start may (`first_s`).
        """
        self._phase, self._since = "" if name == "train" else name, max(at, self._since)

    def active(self, at: float) -> None:
        """Output that is no record, or a checkpoint: a sign of life, though not of progress."""
        self._active_at = max(at, self._active_at)

    def silence_s(self, at: float) -> float:
        """Seconds since the last sign of progress."""
        return at - self._since

    def wants_witness(self, at: float) -> bool:
        """Whether the silence is long enough to be worth measuring CPU time."""
        return self._config.enabled and self.silence_s(at) > self.limit_s - self._config.witness_s

    def check(self, at: float, witness: Witness) -> Verdict | None:
        """Critical past the limit with a second witness, or at twice the limit without."""
        if not self._config.enabled:
            return None
        silence, limit = self.silence_s(at), self.limit_s
        if silence <= limit:
            return None
        idle = witness.cpu_idle_s
        proved = idle is not None and idle >= self._config.witness_s
        dead_s = min(silence, at - self._active_at)  # what prints or saves is not killed
        hung = dead_s > limit and (proved or dead_s >= 2 * limit)
        severity = Severity.CRITICAL if hung else Severity.WARNING
        if severity in self._spoken or Severity.CRITICAL in self._spoken:
            return None
        self._spoken.add(severity)
        return self._verdict(at, severity, silence=silence, limit=limit, idle=idle)

    def _verdict(
        self, at: float, severity: Severity, *, silence: float, limit: float, idle: float | None
    ) -> Verdict:
        last = self._last
        since = f"step {last.step}" if last else "the start"
        reason = f"no record for {silence:.0f} s since {since} (limit {limit:.0f} s)"
        if idle is not None and idle >= self._config.witness_s:
            reason += f", and the worker has used no CPU time for {idle:.0f} s"
        if self._phase:
            reason += f", in its {self._phase} phase"
        return Verdict(
            at=at,
            fault=Fault.STALL,
            severity=severity,
            reason=reason,
            detected=last.position if last else None,
            detected_step=last.step if last else None,
            evidence={"silence_s": silence, "limit_s": limit, "cpu_idle_s": idle},
        )
