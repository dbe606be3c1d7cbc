"""collapse: the loss is dead, though no line says NaN.

Ways in which real runs died: 0.0 for ever beside a gradient norm of NaN (Hugging Face prints 0.0
for a NaN loss: logging_nan_inf_filter), 12.18 -> 1.8e-06 -> 0.0 with a gradient norm that
vanished too (OLMo issue 692), a loss frozen to all digits, a loss field that is no longer printed
(Megatron-LM issue 33), a loss scaler that skips every update while the loss looks good.
"""

from __future__ import annotations

from collections import deque
from math import isfinite
from statistics import median

from pydantic import BaseModel, ConfigDict, Field

from overnight.core.detect.finding import Finding, is_finite, spell
from overnight.core.events import Fault, Level, StepMetric

FULL_DIGITS = 5
"""Identical losses mean something only where this many digits are printed: the rule alarmed in 20
of 20 healthy runs that print an epoch's running mean with two or three decimals."""

VANISHED = 1e-4
"""A loss and a gradient norm below this part of what they were have nothing left to learn from."""

FELL_FROM = 0.01
"""A loss above this part of the usual one that is 0.0 in the next record has not been learned away:
an overfit comes down to 0.0 through the values in between."""

LEARNED_LOSS = 0.1
"""Losses below this may print as 0.0 in good health (GRPO starts at 0.0)."""

REFERENCE_RECORDS = 20
"""Records that say what loss and gradient norm were, and whether a loss is printed every time."""

SCALE_FELL = 1 / 64
"""A loss scale at its minimum counts if it once was this much higher: bf16 runs print 1.0."""

SMALLEST_SCALE = 1.0
"""The usual lower end of a loss scale; a scaler that is there cannot go on halving."""

FLOOR_RECORDS = 3
"""Overflows running at the lowest scale; single ones come down there in good health, too."""


class CollapseConfig(BaseModel):
    """How long a dead loss must last, in records."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    enabled: bool = Field(default=True, description="watch for a dead loss at all")
    zero_records: int = Field(
        3,
        ge=1,
        description="losses of 0.0 beside a gradient norm of NaN, or lost with it, critical",
    )
    frozen_records: int = Field(
        50, ge=3, description="losses identical to all digits, or 0.0 without a gradient, critical"
    )
    gone_records: int = Field(
        10,
        ge=2,
        description="records without the loss that all had, or fallen to 0.0 at once, critical",
    )
    skipped_records: int = Field(
        20, ge=2, description="updates skipped without a break, critical; twice as many at first"
    )


SPARSE_COLLAPSE = {"zero_records": 1, "frozen_records": 10, "gone_records": 3}
"""The same for logs with a line every 10 steps or rarer (docs/science.md)."""


class _Run:
    """Records in a row for which something holds, and the first of them."""

    def __init__(self) -> None:
        self.count = 0
        self.onset: StepMetric | None = None

    def add(self, record: StepMetric, *, holds: bool) -> int:
        """Count a record in, or end the run; how long it is now."""
        if not holds:
            self.count, self.onset = 0, None
            return 0
        self.count += 1
        self.onset = self.onset or record
        return self.count


class CollapseDetector:
    """The ways to be dead, each counted in records running."""

    def __init__(self, config: CollapseConfig, *, grace: int) -> None:
        """In the first `grace` records twice as many skipped updates are a scaler settling."""
        self._config = config
        self._grace = grace
        self._seen = 0
        self._last: StepMetric | None = None
        self._losses: deque[float] = deque(maxlen=REFERENCE_RECORDS)
        self._grads: deque[float] = deque(maxlen=REFERENCE_RECORDS)
        self._had_loss: deque[bool] = deque(maxlen=REFERENCE_RECORDS)
        self._highest_loss = 0.0
        self._highest_scale = 0.0
        self._zero, self._vanished, self._still = _Run(), _Run(), _Run()
        self._frozen, self._gone, self._skipped, self._floor = _Run(), _Run(), _Run(), _Run()
        self._fell = _Run()
        dead = [self._zero, self._vanished, self._still, self._fell, self._frozen, self._gone]
        self._runs = [*dead, self._skipped, self._floor]
        self._well = True

    def observe(self, record: StepMetric) -> Finding | None:
        """The worst of what is dead about this record."""
        self._seen += 1
        if self._well and self._is_lively(record):
            self._learn(record)
            self._had_loss.append(True)
            self._last = record
            return None
        self._well = False
        found = self._judge(record)
        self._well = not any(run.count for run in self._runs)
        return found

    def _is_lively(self, record: StepMetric) -> bool:
        """A record that cannot continue any of the runs: nearly all are, and this is cheap."""
        loss, last, grad = record.loss, self._last, record.grad_norm
        if record.skipped or record.loss_scale is not None or loss is None or loss == 0.0:
            return False
        if last is not None and loss == last.loss:
            return False
        if not abs(loss) > VANISHED * self._highest_loss or not isfinite(loss):
            return False
        return grad is None or isfinite(grad)

    def _judge(self, record: StepMetric) -> Finding | None:
        findings = [self._judge_updates(record), self._judge_gone(record)]
        if record.loss is not None:
            findings += [self._judge_zero(record), self._judge_frozen(record)]
            self._learn(record)
            self._last = record
        found = [finding for finding in findings if finding is not None]
        return max(found, key=lambda finding: finding.level, default=None)

    def _learn(self, record: StepMetric) -> None:
        """What loss and gradient norm are in good health; dead records teach nothing."""
        if self._zero.count or self._vanished.count or self._still.count or self._fell.count:
            return
        loss, grad = record.loss, record.grad_norm
        if loss is not None and isfinite(loss):
            self._losses.append(abs(loss))
            self._highest_loss = max(self._highest_loss, abs(loss))
        if grad is not None and isfinite(grad):
            self._grads.append(grad)

    def _judge_zero(self, record: StepMetric) -> Finding | None:
        grad, last, config = record.grad_norm, self._last, self._config
        zero = record.loss == 0.0
        lost = grad is not None and not is_finite(grad)
        same = last is not None and last.loss == 0.0 and grad == last.grad_norm
        count = self._zero.add(record, holds=zero and lost)
        if count:
            shown = f"loss is 0.0 beside a gradient norm of {spell(grad)}"
            return self._finding(
                record, self._zero, config.zero_records, "zero", shown, first=Level.WARNING
            )
        if self._vanished.add(record, holds=self._has_vanished(record)):
            shown = f"loss is {spell(record.loss)} and the gradient norm {spell(grad)}: both are"
            shown += f" gone, they were {spell(median(self._losses))} and"
            shown += f" {spell(median(self._grads))}"
            return self._finding(record, self._vanished, config.zero_records, "vanished", shown)
        if self._fell.add(record, holds=zero and grad is None and self._has_fallen()) >= 2:
            shown = f"loss is 0.0 all at once, it was {spell(median(self._losses))}"
            return self._finding(record, self._fell, config.gone_records, "zero", shown)
        still = zero and grad is not None and (grad == 0.0 or same)
        if self._still.add(record, holds=still) >= max(2, config.frozen_records // 2):
            shown = f"loss is 0.0 and the gradient norm stays at {spell(grad)}"
            return self._finding(record, self._still, config.frozen_records, "zero", shown)
        return None

    def _has_fallen(self) -> bool:
        """A loss that meant something, gone from one record to the next; no gradient norm tells
        more (Transformers before 4.38 prints none beside its 0.0 for NaN)."""
        if self._fell.count:
            return True
        last = self._last
        if last is None or last.loss is None or len(self._losses) < REFERENCE_RECORDS // 2:
            return False
        usual = median(self._losses)
        return usual >= LEARNED_LOSS and abs(last.loss) > FELL_FROM * usual

    def _has_vanished(self, record: StepMetric) -> bool:
        """Both a loss that meant something and its gradient norm have fallen to nothing."""
        loss, grad = record.loss, record.grad_norm
        if loss is None or grad is None or not (is_finite(loss) and is_finite(grad)):
            return False
        if not self._losses or not self._grads:
            return False
        usual, usual_grad = median(self._losses), median(self._grads)
        return (
            usual >= LEARNED_LOSS
            and abs(loss) <= VANISHED * usual
            and usual_grad > 0.0
            and grad <= VANISHED * usual_grad
        )

    def _judge_frozen(self, record: StepMetric) -> Finding | None:
        last, loss = self._last, record.loss
        digits = record.digits if record.digits is not None else _digits(loss)
        printed = digits >= FULL_DIGITS
        same = last is not None and last.loss == loss and loss != 0.0 and is_finite(loss)
        needed = self._config.frozen_records - 1  # repeats of the first
        if self._frozen.add(record, holds=same and printed) < max(2, needed // 2):
            return None
        shown = f"loss is frozen at {loss!r} to all digits"
        return self._finding(record, self._frozen, needed, "frozen", shown)

    def _judge_gone(self, record: StepMetric) -> Finding | None:
        """The field is no longer printed, though the records go on."""
        if record.loss is not None:
            self._had_loss.append(True)
            self._gone.add(record, holds=False)
            return None
        usual = len(self._had_loss) >= REFERENCE_RECORDS // 2 and all(self._had_loss)
        if not usual:
            self._had_loss.append(False)
            return None
        if self._gone.add(record, holds=True) < 2:
            return None
        shown = "the loss is no longer printed, though the records go on"
        return self._finding(record, self._gone, self._config.gone_records, "gone", shown)

    def _judge_updates(self, record: StepMetric) -> Finding | None:
        """Every update skipped, or the loss scale at its lower end and still overflowing."""
        scale = record.loss_scale
        if scale is not None and is_finite(scale):
            self._highest_scale = max(self._highest_scale, scale)
        low = (
            scale is not None
            and scale <= SMALLEST_SCALE
            and scale <= SCALE_FELL * self._highest_scale
        )
        overflows = record.skipped or (
            record.grad_norm is not None and not is_finite(record.grad_norm)
        )
        skipped = self._skipped.add(record, holds=record.skipped)
        if self._floor.add(record, holds=low and overflows):
            shown = f"the loss scale is at {spell(scale)}, from {spell(self._highest_scale)},"
            shown += " and updates still overflow"
            return self._finding(record, self._floor, FLOOR_RECORDS, "scale", shown)
        needed = self._config.skipped_records * (2 if self._seen <= self._grace else 1)
        if skipped < max(2, needed // 2):
            return None
        return self._finding(record, self._skipped, needed, "skipped", "every update is skipped")

    def _finding(
        self,
        record: StepMetric,
        run: _Run,
        needed: int,
        kind: str,
        shown: str,
        first: Level = Level.SUSPECT,
    ) -> Finding:
        """Critical when the run is long enough, `first` before."""
        onset = run.onset or record
        reason = shown
        if run.count > 1:
            reason += f", {run.count} records in a row since step {onset.step}"
        level = Level.CRITICAL if run.count >= needed else first
        if level is not Level.CRITICAL:
            reason += f"; {needed} in a row would be certain"
        evidence = {"loss": record.loss, "grad_norm": record.grad_norm, "in_a_row": run.count}
        if record.loss_scale is not None:
            evidence["loss_scale"] = record.loss_scale
        return Finding(level, Fault.COLLAPSE, reason, onset, kind, evidence)


def _digits(value: float | None) -> int:
    """Significant digits of a number that came as JSON: a rounded one has few there too."""
    mantissa = repr(value).partition("e")[0]
    return len(mantissa.replace(".", "").strip("-0"))
