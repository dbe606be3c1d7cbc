"""NaN or infinity in the loss or the gradient norm. Live from the first record."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field

from overnight.core.detect.finding import Finding, is_finite, spell
from overnight.core.events import Fault, Level, StepMetric

GRAD_SUSPECT_RECORDS = 4
"""A GradScaler skips single overflows by design; four in a row are no longer that."""


class NonfiniteConfig(BaseModel):
    """How many records in a row make a non-finite number certain (docs/science.md)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    loss_records: int = Field(3, ge=1, description="non-finite losses in a row that are critical")
    sparse_loss_records: int = Field(
        1, ge=1, description="the same where the log has a line every 10 steps or rarer"
    )
    grad_records: int = Field(
        20, ge=1, description="non-finite gradient norms in a row that are critical"
    )
    skipped_records: int = Field(
        20,
        ge=1,
        description="non-finite losses in a row that are critical while updates are skipped",
    )


@dataclass(slots=True)
class _Streak:
    """Bad records in a row and the first of them."""

    count: int = 0
    onset: StepMetric | None = None

    def add(self, record: StepMetric, *, bad: bool) -> None:
        """Count a bad record in, or end the streak."""
        if not bad:
            self.count, self.onset = 0, None
            return
        self.count += 1
        self.onset = self.onset or record


class NonfiniteDetector:
    """Counts non-finite records in a row. A NaN loss poisons all weights in one update, so
    waiting for two more records costs nothing and removes single glitches of the report."""

    def __init__(self, config: NonfiniteConfig, *, sparse: bool, grace: int) -> None:
        """`grace` records at the start allow twice the gradient overflows (a scaler settling)."""
        self._config = config
        self._loss_needed = config.sparse_loss_records if sparse else config.loss_records
        self._grace = grace
        self._seen = 0
        self._losses = _Streak()
        self._grads = _Streak()

    def observe(self, record: StepMetric) -> Finding | None:
        """Critical at the n-th bad loss in a row, a warning at the first."""
        self._seen += 1
        grad_bad = record.grad_norm is not None and not is_finite(record.grad_norm)
        loss_bad = not is_finite(record.loss) and (record.loss is not None or grad_bad)
        # A record that does not give a number neither continues nor ends its streak.
        if record.grad_norm is not None:
            self._grads.add(record, bad=grad_bad)
        if record.loss is not None or loss_bad:
            self._losses.add(record, bad=loss_bad)
        if loss_bad:
            return self._judge_loss(record)
        return self._judge_grad(record) if grad_bad else None

    def _judge_loss(self, record: StepMetric) -> Finding:
        count, onset = self._losses.count, self._losses.onset or record
        needed = self._config.skipped_records if record.skipped else self._loss_needed
        shown = spell(record.loss) if record.loss is not None else "gone, gradient norm not finite"
        reason = f"loss is {shown} at step {record.step}"
        if count > 1:
            reason += f", {count} records in a row since step {onset.step}"
        if count >= needed:
            level = Level.CRITICAL
        else:
            level = Level.SUSPECT if record.skipped else Level.WARNING
            reason += f"; {needed} in a row would be certain"
        evidence = {"loss": record.loss, "grad_norm": record.grad_norm, "in_a_row": count}
        kind = "nan" if record.loss is None or record.loss != record.loss else "inf"
        return Finding(level, Fault.LOSS_NONFINITE, reason, onset, kind, evidence)

    def _judge_grad(self, last: StepMetric) -> Finding | None:
        count, onset = self._grads.count, self._grads.onset or last
        needed = self._config.grad_records * (2 if self._seen <= self._grace else 1)
        if count < min(GRAD_SUSPECT_RECORDS, needed):
            return None
        level = Level.CRITICAL if count >= needed else Level.SUSPECT
        reason = (
            f"gradient norm is {spell(last.grad_norm)} for {count} records in a row"
            f" since step {onset.step}"
        )
        evidence = {"grad_norm": last.grad_norm, "in_a_row": count}
        return Finding(level, Fault.GRAD_NONFINITE, reason, onset, "grad", evidence)
