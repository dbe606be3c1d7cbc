"""The first attempt of a supervisor: from scratch, from a checkpoint chosen by hand, or where the
run was left. In the last case the disk is looked at and everything on it verified first, as before
any restart: the ledger of yesterday says nothing about what was rotated away or saved since.
"""

from __future__ import annotations

from dataclasses import dataclass

from overnight.core.events import Action, Decision, Target
from overnight.supervisor.keeping import Keeper
from overnight.supervisor.phases import CHECK_S
from overnight.supervisor.ports import Effects
from overnight.supervisor.run import Run


@dataclass(frozen=True)
class Start:
    """How this supervisor begins. `careful`: the run had halted on a bad number."""

    continues: bool = False
    careful: bool = False
    by_hand: Target | None = None


class Opening:
    """Finds out where to begin; nothing trains meanwhile."""

    def __init__(self, run: Run, effects: Effects, keeper: Keeper, start: Start) -> None:
        self._run = run
        self._effects = effects
        self._keeper = keeper
        self._start = start
        self._deadline = effects.clock()
        if start.continues and start.by_hand is None:
            self._look_around()

    def _look_around(self) -> None:
        ledger = self._run.ledger
        for entry in ledger.entries():
            if not entry.gone and not self._effects.checkpoints.unchanged(entry.identity):
                ledger.gone(entry.identity)
        for found in self._effects.checkpoints.existing():
            self._keeper.seen(found)
        self._keeper.verify_first(ledger.unchecked())
        self._deadline += CHECK_S

    def ready(self, at: float) -> bool:
        """Whether everything is verified, or has had its time."""
        return at >= self._deadline or not self._run.ledger.unchecked()

    def decision(self) -> Decision:
        """From which checkpoint the first attempt starts, or why it must not."""
        run, start = self._run, self._start
        if start.by_hand is not None:
            return Decision(Action.RESTART, "chosen by hand", target=start.by_hand)
        if not start.continues:
            return Decision(Action.RESTART, "a fresh start", from_scratch=True)
        return run.policy.first(
            run.ledger.targets(),
            means=run.means,
            checkpoints_exist=run.ledger.has_own(),
            careful=start.careful,
        )
