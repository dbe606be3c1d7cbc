"""slowdown: the run is much slower than it was, for long. A warning only.

A curriculum of longer sequences looks the same as a card that throttles, so nothing is ever
killed for it. Speed is taken in blocks of five records, and their median is judged: one slow
evaluation or save does not make a run slow, and lines that arrive in one piece do no harm.
"""

from __future__ import annotations

from collections import deque
from statistics import median

from pydantic import BaseModel, ConfigDict, Field

from overnight.core.detect.finding import is_finite, spell
from overnight.core.detect.window import SortedWindow
from overnight.core.events import Fault, Severity, StepMetric, Verdict

BLOCK_RECORDS = 5

BEST_BLOCKS = 40
"""200 records: a speed that was kept so long is what the run can do."""

RECENT_BLOCKS = 6
"""30 records: their median is the speed now."""

REARM = 0.85
"""Above this part of the best speed the slowdown is over, and the next one is told again."""


class SlowdownConfig(BaseModel):
    """When a drop of throughput is worth telling."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    enabled: bool = Field(default=True, description="watch the throughput at all")
    ratio: float = Field(
        0.7, gt=0, lt=REARM, description="part of the best speed below which the run is slow"
    )
    records: int = Field(30, ge=1, description="records for which it must stay below")
    seconds: float = Field(300, ge=0, description="seconds for which it must stay below, too")


class SlowdownDetector:
    """Tokens per second where every record has them, else steps per second."""

    def __init__(self, config: SlowdownConfig) -> None:
        self._config = config
        self._block: list[StepMetric] = []
        self._unit = ""
        self._long = SortedWindow(BEST_BLOCKS)
        self._recent: deque[float] = deque(maxlen=RECENT_BLOCKS)
        self._best = 0.0
        self._slow_since: StepMetric | None = None
        self._told = False

    def observe(self, record: StepMetric) -> Verdict | None:
        """A warning once for each slowdown. Of an earlier attempt only the best speed is kept."""
        if not self._config.enabled:
            return None
        if self._block and self._block[-1].position.attempt != record.position.attempt:
            self._block, self._slow_since = [], None
            self._recent.clear()
        if len(self._block) > 4 * BLOCK_RECORDS:  # times that stand still tell no speed
            self._block.clear()
        self._block.append(record)
        first = self._block[0]
        if len(self._block) <= BLOCK_RECORDS or record.at <= first.at:
            return None  # a block ends with the first record of the next
        block, self._block = self._block, [record]
        self._learn(block)
        return self._judge(block)

    def _learn(self, block: list[StepMetric]) -> None:
        """Add a block's speed to the windows; another unit begins anew."""
        unit, speed = _speed(block)
        if unit != self._unit:
            self._unit, self._best, self._long = unit, 0.0, SortedWindow(BEST_BLOCKS)
            self._recent.clear()
            self._slow_since = None
        self._long.push(speed)
        self._recent.append(speed)
        if len(self._long) == BEST_BLOCKS:
            self._best = max(self._best, self._long.median())

    def _judge(self, block: list[StepMetric]) -> Verdict | None:
        config, now = self._config, block[-1]
        if self._best <= 0 or len(self._recent) < RECENT_BLOCKS:
            return None
        speed = median(self._recent)
        if speed >= config.ratio * self._best:
            self._slow_since = None
            self._told = self._told and speed < REARM * self._best
            return None
        since = self._slow_since = self._slow_since or block[0]
        records = now.position.record - since.position.record
        lasted_s = now.at - since.at
        if self._told or records < config.records or lasted_s < config.seconds:
            return None
        self._told = True
        return Verdict(
            at=now.at,
            fault=Fault.SLOWDOWN,
            severity=Severity.WARNING,
            reason=(
                f"{spell(speed)} {self._unit}, {100 * speed / self._best:.0f} % of the best"
                f" {spell(self._best)}, for {lasted_s:.0f} s since step {since.step}"
            ),
            onset=since.position,
            detected=now.position,
            onset_step=since.step,
            detected_step=now.step,
            evidence={"speed": speed, "best": self._best, "unit": self._unit},
            line=now.line,
        )


def _speed(block: list[StepMetric]) -> tuple[str, float]:
    """Unit and speed of a block, whose last record is the first of the next block."""
    tokens = [record.tokens_per_s for record in block[1:]]
    known = [value for value in tokens if value is not None and is_finite(value)]
    if len(known) == len(tokens):
        return "tokens/s", median(known)
    first, last = block[0], block[-1]
    steps = last.step - first.step
    count = steps if steps > 0 else last.position.record - first.position.record
    return "steps/s", count / (last.at - first.at)
