"""The first attempt of a supervisor: from scratch, from a checkpoint chosen by hand, or where the
run was left. In the last case the disk is looked at and everything on it verified first, as before
any restart: the ledger of yesterday says nothing about what was rotated away or saved since.
"""

from __future__ import annotations

from dataclasses import dataclass

from overnight.core.checkpoints import target_of
from overnight.core.events import Action, CheckpointSeen, Decision, Health
from overnight.core.story import Entry
from overnight.supervisor.keeping import Keeper
from overnight.supervisor.phases import CHECK_S
from overnight.supervisor.ports import Effects
from overnight.supervisor.run import Run


@dataclass(frozen=True)
class Start:
    """How this supervisor begins. `careful`: the run had halted on a bad number."""

    continues: bool = False
    careful: bool = False
    by_hand: CheckpointSeen | None = None


class Opening:
    """Finds out where to begin; nothing trains meanwhile."""

    def __init__(self, run: Run, effects: Effects, keeper: Keeper, start: Start) -> None:
        self._run = run
        self._effects = effects
        self._keeper = keeper
        self._start = start
        self._deadline = effects.clock()
        if start.by_hand is not None:
            self._adopt(start.by_hand)
        elif start.continues:
            self._look_around()

    def _look_around(self) -> None:
        ledger = self._run.ledger
        self._keeper.take_stock()
        for found in self._effects.checkpoints.existing():
            self._keeper.seen(found)
        self._keeper.verify_first(ledger.unchecked())
        self._deadline += CHECK_S

    def _adopt(self, chosen: CheckpointSeen) -> None:
        """Chosen by hand: verified like any other, and what a crash goes back to from now on."""
        ledger = self._run.ledger
        entry = ledger.seen(chosen, last=self._run.last, stride=self._run.stride)
        if entry.checked is None:
            self._keeper.verify_first([entry])
            self._deadline += CHECK_S

    def ready(self, at: float) -> bool:
        """Whether everything is verified, or has had its time."""
        chosen = self._start.by_hand
        if chosen is not None:
            return (
                at >= self._deadline or self._run.ledger.known(chosen.identity).checked is not None
            )
        return at >= self._deadline or not self._run.ledger.unchecked()

    def decision(self) -> Decision:
        """From which checkpoint the first attempt starts, or why it must not."""
        run, start = self._run, self._start
        if start.by_hand is not None:
            return self._by_hand(run.ledger.known(start.by_hand.identity))
        if not start.continues:
            return Decision(Action.RESTART, "a fresh start", from_scratch=True)
        means = run.means
        return run.policy.first(
            [target for target in run.ledger.targets() if means.can_load(target.identity.path)],
            means=means,
            checkpoints_exist=run.ledger.has_own(),
            careful=start.careful,
        )

    def _by_hand(self, entry: Entry) -> Decision:
        """A person's choice is taken unless it is known to be damaged."""
        name = entry.identity.path
        if entry.checked is Health.CORRUPT:
            return Decision(Action.HALT, f"{name} is corrupt: {entry.reason}", needs_you=True)
        health, why = self._run.ledger.health(entry)
        target = target_of(entry, health, why)
        return Decision(Action.RESTART, "chosen by hand", target=target)
