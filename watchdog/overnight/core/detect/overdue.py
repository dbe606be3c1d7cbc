"""checkpoint-overdue: dying now would cost more work than one is willing to lose.

Only a checkpoint that is healthy counts: a newer one that nobody has proved may be no good. The
facts come from the ledger; this only judges them.
"""

from __future__ import annotations

from dataclasses import dataclass

from overnight.core.events import Fault, Severity, Verdict

SLACK = 1.25
"""A save that takes a little longer than usual is not worth waking anybody."""


@dataclass(frozen=True, slots=True)
class Safety:
    """How much work is safe, in seconds on the clock of `at`; None where there is none.

    `healthy_at`: when the newest healthy checkpoint was saved. `training_since`: the first record
    since which work can be lost.
    """

    training_since: float | None
    healthy_at: float | None = None
    healthy_step: int | None = None


class OverdueDetector:
    """One warning each time that the work at risk outgrows the limit."""

    def __init__(self, max_loss_s: float) -> None:
        """`max_loss_s`: work in seconds that one is willing to do again."""
        self._max_loss_s = max_loss_s
        self._told = False

    def check(self, at: float, safety: Safety) -> Verdict | None:
        """A warning when the newest healthy checkpoint is too old, or when none came in time."""
        since = safety.healthy_at if safety.healthy_at is not None else safety.training_since
        if since is None or safety.training_since is None:
            return None
        at_risk_s = at - max(since, safety.training_since)
        if at_risk_s <= SLACK * self._max_loss_s:
            self._told = False
            return None
        if self._told:
            return None
        self._told = True
        if safety.healthy_at is None:
            newest = "no checkpoint is healthy yet"
        elif safety.healthy_step is None:
            newest = "the newest healthy checkpoint is that old"
        else:
            newest = f"the newest healthy checkpoint is that of step {safety.healthy_step}"
        return Verdict(
            at=at,
            fault=Fault.CHECKPOINT_OVERDUE,
            severity=Severity.WARNING,
            reason=(
                f"{at_risk_s / 60:.0f} min of work would be lost now: {newest}"
                f" (at most {self._max_loss_s / 60:.0f} min wanted;"
                " overnight checkpoints says how often to save)"
            ),
            evidence={"at_risk_s": at_risk_s, "max_loss_s": self._max_loss_s},
        )
