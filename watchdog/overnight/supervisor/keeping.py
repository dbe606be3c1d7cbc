"""Looking after checkpoints: every one seen is verified, the good ones are kept safe."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from overnight.core.detect.overdue import Safety
from overnight.core.events import (
    CheckpointChecked,
    CheckpointGone,
    CheckpointSecured,
    CheckpointSeen,
    Health,
    Identity,
    Verdict,
)
from overnight.core.story import Entry
from overnight.supervisor.attempt import Attempt
from overnight.supervisor.journal import Journal
from overnight.supervisor.ports import Effects
from overnight.supervisor.run import Run

OVERDUE_EVERY_S = 30.0
"""How much work would be lost is asked rarely: it changes slowly."""

RETRY_S = 300.0
"""A vault copy that could not be made (no room) is tried again this much later."""

log = logging.getLogger("overnight")


class Keeper:
    """Feeds the ledger, and has checkpoints verified and copied into the vault."""

    def __init__(self, run: Run, effects: Effects, journal: Journal) -> None:
        self._run = run
        self._effects = effects
        self._journal = journal
        self._to_verify: deque[Identity] = deque()
        self._verifying: set[Identity] = set()
        self._told_cost = False
        self._kept_revision = -1
        self._retry_at = 0.0
        self._overdue_at = 0.0
        self._refused: dict[Identity, float] = {}
        self.securing: set[Identity] = set()

    @property
    def busy(self) -> bool:
        """Whether a verifier or a vault copy is under way or waits."""
        return bool(self._to_verify or self._verifying or self.securing)

    # --- what is reported ------------------------------------------------------------------------

    def seen(self, seen: CheckpointSeen) -> None:
        """A checkpoint is complete: place it in the history and have it verified."""
        run = self._run
        if seen.step is None and run.attempt is not None:
            seen = replace(seen, step=run.attempt.probe.saved.get(seen.identity.path))
        last = run.record_at(seen.at)
        abandoned = run.is_abandoned(seen, last)
        run.ledger.seen(seen, last=last, stride=run.stride, abandoned=abandoned)
        self.verify(seen.identity)
        if run.attempt is not None and not abandoned:
            run.attempt.stall.active(seen.at)

    def gone(self, gone: CheckpointGone) -> None:
        """Its bytes are no longer at the path."""
        if gone.identity in self._to_verify:
            self._to_verify.remove(gone.identity)
        self._run.ledger.gone(gone.identity)
        self._journal.forget(self._run.ledger.forget_lost())

    def checked(self, checked: CheckpointChecked) -> None:
        """A verifier has answered; the next may start."""
        self._run.ledger.checked(checked)
        self._verifying.discard(checked.identity)
        self._next()
        entry = self._run.ledger.find(checked.identity.path)
        lost = entry is None or entry.gone  # moved or rewritten meanwhile: nobody waits for it
        if checked.health is not Health.VERIFIED and not lost:
            name = Path(checked.identity.path).name
            self._effects.say(f"checkpoint {name} is {checked.health}: {checked.reason}")
        self.keep_safe()

    def secured(self, secured: CheckpointSecured) -> None:
        """The vault has a copy, or says why not."""
        self.securing.discard(secured.identity)
        self._run.ledger.secured(secured)
        if secured.vault_path is None:
            log.warning("%s: %s", secured.identity.path, secured.reason)
            self._refused[secured.identity] = self._effects.clock() + RETRY_S
        elif "copy" in secured.method and not self._told_cost:
            self._told_cost = True
            size = secured.identity.size_bytes / 2**20
            self._effects.say(f"checkpoints are kept safe as copies here, {size:,.1f} MiB each")

    def take_stock(self) -> None:
        """Hold the ledger against the disk: paths and vault copies that are not what they were."""
        ledger, checkpoints = self._run.ledger, self._effects.checkpoints
        for entry in ledger.entries():
            if not entry.gone and not checkpoints.unchanged(entry.identity):
                ledger.gone(entry.identity)
            path = entry.vault_path
            if path is not None and not checkpoints.vault_holds(entry.identity, path):
                log.warning("%s was changed behind our back and is worth nothing now", path)
                ledger.released(entry.identity)
            aside = entry.quarantine_path
            if aside is not None and not checkpoints.vault_holds(entry.identity, aside):
                ledger.set_aside(entry.identity, None)  # a person has taken it away

    def overdue(self, attempt: Attempt, at: float) -> Verdict | None:
        """Whether too much work would be lost now."""
        if at - self._overdue_at < OVERDUE_EVERY_S:
            return None
        self._overdue_at = at
        newest = self._run.ledger.newest(Health.HEALTHY)
        age_s = self._effects.wall() - newest.saved_utc if newest else None
        safety = Safety(
            training_since=attempt.first_at,
            healthy_at=None if age_s is None else at - age_s,
            healthy_step=newest.run_step if newest else None,
        )
        return attempt.overdue.check(at, safety)

    # --- what is asked for -----------------------------------------------------------------------

    def verify(self, identity: Identity) -> None:
        """Verify in the background, one at a time: the disk belongs to the training."""
        self._to_verify.append(identity)
        self._next()

    def verify_first(self, entries: Iterable[Entry]) -> None:
        """Verify these before everything else, two at once: nothing trains now."""
        first = [e.identity for e in entries if e.identity not in self._verifying]
        rest = [identity for identity in self._to_verify if identity not in first]
        self._to_verify = deque([*first, *rest])
        self._next(at_once=2)

    def _next(self, *, at_once: int = 1) -> None:
        while self._to_verify and len(self._verifying) < at_once:
            identity = self._to_verify.popleft()
            self._verifying.add(identity)
            self._effects.checkpoints.verify(identity)

    def keep_safe(self) -> None:
        """Copy into the vault what belongs there, release what no longer does."""
        ledger, at = self._run.ledger, self._effects.clock()
        if ledger.revision == self._kept_revision and at < self._retry_at:
            return
        self._kept_revision, self._retry_at = ledger.revision, at + RETRY_S
        for entry in ledger.to_secure():
            if at < self._refused.get(entry.identity, at):
                continue
            if entry.identity not in self.securing:
                self.securing.add(entry.identity)
                in_place = entry.in_place or ledger.needs_copy(entry)
                self._effects.checkpoints.secure(
                    entry.identity, in_place=in_place, has_step=entry.step is not None
                )
        for entry in self._run.ledger.to_release():
            assert entry.vault_path is not None
            self._effects.checkpoints.release(entry.vault_path)
            self._run.ledger.released(entry.identity)
