"""Before each start: the folder of checkpoints holds nothing newer than what is resumed from."""

from __future__ import annotations

from dataclasses import replace

from overnight.core.checkpoints import to_set_aside
from overnight.core.events import Identity, Target
from overnight.core.orders import Tidied, Tidying
from overnight.core.resume import Route
from overnight.supervisor.journal import Journal
from overnight.supervisor.ports import Effects
from overnight.supervisor.run import Run

TIDY_S = 900.0
"""Copying a large checkpoint back on a slow disk takes less; longer, and something is stuck."""


class Tidier:
    """Gives the order, and keeps the ledger in step with what was moved."""

    def __init__(self, run: Run, effects: Effects, journal: Journal) -> None:
        self._run = run
        self._effects = effects
        self._journal = journal
        self._order: Tidying | None = None
        self._until = 0.0
        self._placed: Identity | None = None
        self.problem = ""
        """Why the last order could not be carried out."""

    def begin(self, target: Target | None) -> None:
        """Have the folder put in order for a start from this target; `busy` until it is."""
        run, ledger = self._run, self._run.ledger
        chosen = ledger.find(target.path) if target is not None else None
        rows = [(entry, ledger.health(entry)[0]) for entry in ledger.entries()]
        latest = run.means.route is Route.LATEST
        aside = to_set_aside(rows, chosen, latest=latest, by_pattern=ledger.by_pattern)
        self.problem, self._placed = "", None
        self._order = Tidying(
            aside=tuple(entry.identity for entry in aside),
            target=chosen.identity if chosen else None,
            source=chosen.path if chosen else None,
            latest=latest,
            since_utc=run.started_utc,
        )
        self._until = self._effects.clock() + TIDY_S
        self._effects.checkpoints.tidy(self._order)

    def busy(self, at: float) -> bool:
        """Whether the answer is still awaited."""
        if self._order is not None and at >= self._until:
            self._order = None
            self.problem = f"putting the checkpoints in order took more than {TIDY_S / 60:.0f} min"
        return self._order is not None

    def done(self, answer: Tidied) -> None:
        """The files lie as they should, or why they do not."""
        order, ledger = self._order, self._run.ledger
        for identity, path in answer.moved:
            ledger.set_aside(identity, path)
        if answer.moved:
            many = f"{len(answer.moved)} checkpoint{'s' if len(answer.moved) != 1 else ''}"
            self._effects.say(f"{many} newer than the right one moved into quarantine")
        if order is None:
            return
        if answer.placed is not None and order.target is not None:
            ledger.returned(order.target, answer.placed)
            self._journal.forget([order.target])
            self._placed = answer.placed
        self._order, self.problem = None, answer.problem

    def placed(self, target: Target | None) -> Target | None:
        """The target as it lies now: its bytes may have been put back at their own path."""
        if target is None or self._placed is None:
            return target
        return replace(target, path=self._placed.path, identity=self._placed)
