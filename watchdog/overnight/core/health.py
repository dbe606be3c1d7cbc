"""The checkpoint ledger: candidate -> verified -> healthy | suspect | corrupt.

The ledger keeps facts (seen, checked, confirmed, poisoned); what a checkpoint is worth follows
from them when asked. A rollback target is older than the onset or there is none: never "the
newest anyway". Checkpoints that a rollback left behind are of an abandoned future and are never
targets again, so those that remain form one line of history.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from overnight.core.checkpoints import CheckpointsConfig, target_of, to_protect
from overnight.core.events import (
    CheckpointChecked,
    CheckpointSecured,
    CheckpointSeen,
    Health,
    Identity,
    Position,
    StepMetric,
    Target,
)
from overnight.core.placing import BEFORE_ALL, is_past, order_step_of, pace_of
from overnight.core.story import Entry


class Ledger:
    """Every checkpoint of the run, in the order in which they became complete."""

    def __init__(self, config: CheckpointsConfig, entries: Iterable[Entry] = ()) -> None:
        self._config = config
        self._entries: dict[Identity, Entry] = {entry.identity: entry for entry in entries}
        self._waiting = set(self._entries)  # those that records may still confirm or taint
        self._last_step: int | None = None
        self._pace = pace_of(self._entries.values())
        self._suspect_since: Position | None = None
        self._poison: tuple[Position, str] | None = None  # onset and reason, in this attempt
        self._pinned: Identity | None = None
        self.revision = 0
        """Grows whenever a fact changes: what follows from the facts need not be asked before."""

    # --- facts ---------------------------------------------------------------------------------

    def _put(self, entry: Entry) -> Entry:
        self._entries[entry.identity] = entry
        if entry.confirmed or entry.tainted or entry.unseen or entry.abandoned:
            self._waiting.discard(entry.identity)
        else:
            self._waiting.add(entry.identity)
        self.revision += 1
        return entry

    def seen(
        self,
        found: CheckpointSeen,
        *,
        last: StepMetric | None,
        stride: int,
        abandoned: bool = False,
    ) -> Entry:
        """A complete checkpoint; what was at the same path before is gone.

        `last` is the last record that had arrived when it became complete. `abandoned` marks one
        that does not lie on the run's line of history (saved after what a rollback went back to,
        or by another run).
        """
        known = self._entries.get(found.identity)
        if known is not None and known.step is None and found.step is not None:
            # inotify saw it first; the worker's own announcement names the step.
            order = order_step_of(found.step, last=last, stride=stride)
            known = replace(known, step=found.step, order_step=order)
        if known is not None:
            return self._put(replace(known, gone=False))  # perhaps renamed away and back
        for identity, entry in list(self._entries.items()):
            if identity.path == found.identity.path and not entry.gone:
                self._put(replace(entry, gone=True))
        position = last.position if last else BEFORE_ALL
        entry = Entry(
            identity=found.identity,
            format=found.format,
            saved_utc=found.saved_utc,
            position=position,
            step=found.step,
            order_step=order_step_of(found.step, last=last, stride=stride),
            in_place=found.in_place,
            abandoned=abandoned,
        )
        if self._poison is not None and position >= self._poison[0] and not abandoned:
            entry = replace(entry, poisoned=self._poison[1])
        self._pace = pace_of([*self._entries.values(), entry])
        return self._put(entry)

    def began(self, first_step: int, *, started_utc: float) -> None:
        """The run's first record. What lay there before its start is its past only if older."""
        for entry in list(self._entries.values()):
            before = entry.position == BEFORE_ALL and entry.saved_utc < started_utc
            if before and not is_past(entry.step, first_step):
                self._put(replace(entry, abandoned=True))

    def checked(self, answer: CheckpointChecked) -> None:
        """The verifier's answer; a step it read fills one the name did not give."""
        entry = self._entries.get(answer.identity)
        if entry is None:
            return
        known = (entry.step, answer.step, entry.order_step)  # name, state file, log
        step = next((step for step in known if step is not None), None)
        order = entry.order_step if entry.order_step is not None else step
        told = replace(entry, checked=answer.health, reason=answer.reason, partial=answer.partial)
        self._put(replace(told, step=step, order_step=order))

    def secured(self, answer: CheckpointSecured) -> None:
        """A vault copy exists now, or none could be made."""
        entry = self._entries.get(answer.identity)
        if entry is not None:
            self._put(replace(entry, vault_path=answer.vault_path, linked="link" in answer.method))

    def gone(self, identity: Identity) -> None:
        """The bytes at the path are no longer these."""
        entry = self._entries.get(identity)
        if entry is not None and not entry.gone:
            self._put(replace(entry, gone=True))

    def record(self, record: StepMetric, *, suspect: bool, suspect_since: Position | None) -> None:
        """Evidence for or against the checkpoints before this record."""
        if suspect_since is None and self._suspect_since is not None:
            self._give_back(self._suspect_since)
        if suspect_since != self._suspect_since:
            self._suspect_since = suspect_since
            self.revision += 1
        for identity in list(self._waiting):
            entry = self._entries[identity]
            if record.position <= entry.position:
                continue
            if suspect:
                self._put(replace(entry, tainted=True))
                continue
            steps = entry.clean_steps + self._steps_since(entry, record)
            clean = entry.clean_records + 1
            far_enough = steps >= self._config.confirm_steps
            confirmed = far_enough and clean >= self._config.confirm_records
            counted = replace(entry, clean_records=clean, clean_steps=steps, confirmed=confirmed)
            if confirmed:
                self._put(counted)
            else:
                self._entries[identity] = counted  # nothing that anybody asks has changed
        self._last_step = record.step

    def _steps_since(self, entry: Entry, record: StepMetric) -> int:
        """Steps that this record adds; a counter that went back (a new epoch) counts as one."""
        before = self._last_step if entry.clean_records else entry.order_step
        steps = 1 if before is None or record.step <= before else record.step - before
        return steps if steps > 1 else self._pace

    def _give_back(self, since: Position) -> None:
        """An episode has closed by itself: what was saved in it may become healthy after all."""
        for entry in list(self._entries.values()):
            if entry.tainted and entry.position >= since and not entry.poisoned:
                self._put(replace(entry, tainted=False, clean_records=0, clean_steps=0))

    def records_lost(self) -> None:
        """Some records were not read: nothing that waits for confirmation can have it now."""
        for entry in list(self._entries.values()):
            if not entry.confirmed:
                self._put(replace(entry, unseen=True))

    def numeric_fault(self, *, onset: Position, onset_step: int | None, name: str) -> list[Entry]:
        """Make suspect what was saved at or after the onset, or in the episode that led to it.

        Returns what it hit.
        """
        reason = f"saved at or after the onset of {name}"
        reason += f" at step {onset_step}" if onset_step is not None else ""
        if self._poison is None or onset < self._poison[0]:
            self._poison = (onset, reason)
        hit = []
        for entry in list(self._entries.values()):
            before = self._is_before(entry, onset, onset_step) and not self._in_episode(entry)
            if not entry.abandoned and not before:
                hit.append(self._put(replace(entry, poisoned=reason)))
        return hit

    def resumed_from(self, target: Identity | None) -> None:
        """A new attempt continues from `target`: what came later is an abandoned future."""
        chosen = self._entries.get(target) if target else None
        for identity, entry in list(self._entries.items()):
            later = chosen is None or entry.position > chosen.position
            if identity != target and later and not entry.abandoned:
                self._put(replace(entry, abandoned=True))
        if chosen is not None:
            self._put(replace(chosen, abandoned=False))
        self._last_step = chosen.order_step if chosen else None
        self._poison = None
        self._suspect_since = None

    def went_back_in_place(self) -> None:
        """The worker's state is sound again: what it saves from now on is not suspect."""
        self._poison = None
        self._suspect_since = None

    def set_aside(self, identity: Identity, path: str | None) -> None:
        """It lies in quarantine now, at `path` (None: no longer); what nobody had seen complete
        was cut off."""
        entry = self._entries.get(identity) or Entry(
            identity=identity,
            format="unfinished",
            saved_utc=identity.mtime_ns / 1e9,
            position=BEFORE_ALL,
            checked=Health.CORRUPT,
            reason="the save did not finish",
            abandoned=True,
        )
        self._put(replace(entry, gone=True, quarantine_path=path))

    def returned(self, identity: Identity, now: Identity) -> None:
        """Its bytes are at its path again, copied there: the same checkpoint, another inode."""
        entry = self._entries.pop(identity)
        self._waiting.discard(identity)
        self._put(replace(entry, identity=now, gone=False))

    def forget_lost(self) -> list[Identity]:
        """Drop entries whose bytes exist nowhere any more. Returns what was dropped."""
        lost = [identity for identity, entry in self._entries.items() if not entry.available]
        for identity in lost:
            del self._entries[identity]
            self._waiting.discard(identity)
        return lost

    # --- questions -----------------------------------------------------------------------------

    @property
    def confirm_steps(self) -> int:
        """Clean steps that make a state healthy."""
        return self._config.confirm_steps

    @property
    def by_pattern(self) -> bool:
        """Whether the user has said what a checkpoint is."""
        return bool(self._config.glob)

    def entries(self) -> list[Entry]:
        """All entries, oldest first."""
        return sorted(self._entries.values(), key=_age)

    def listing(self) -> list[tuple[Entry, Health, str]]:
        """Entries whose bytes exist, with their health and why, by step."""
        rows = [(entry, *self.health(entry)) for entry in self.entries() if entry.available]
        return sorted(rows, key=lambda row: (row[0].run_step is None, row[0].run_step or 0))

    def described(self) -> list[Entry]:
        """All entries with their health filled in, for the store and its readers."""
        described = []
        for entry in self._entries.values():
            health, why = self.health(entry)
            described.append(replace(entry, health=health, health_reason=why))
        return described

    def find(self, path: str) -> Entry | None:
        """The newest entry whose original or vault path is `path`."""
        matches = [e for e in self.entries() if path in (e.identity.path, e.vault_path)]
        return matches[-1] if matches else None

    def health(self, entry: Entry) -> tuple[Health, str]:
        """What a checkpoint is worth now, and why."""
        doubtful = self._in_episode(entry) and not entry.abandoned
        if entry.checked is Health.CORRUPT:
            health, why = Health.CORRUPT, entry.reason
        elif entry.poisoned:
            health, why = Health.SUSPECT, entry.poisoned
        elif doubtful:
            health, why = Health.SUSPECT, "saved while the loss or gradient norm looked wrong"
        elif entry.checked is None:
            health, why = Health.CANDIDATE, "complete, not verified yet"
        elif entry.checked is Health.UNVERIFIED:
            health, why = Health.UNVERIFIED, entry.reason
        elif entry.confirmed:
            steps = self._config.confirm_steps
            health, why = Health.HEALTHY, f"finite, and {steps} clean steps followed"
            why += "; weights only" if entry.partial else ""
        else:
            waiting = "the steps after it did not stay clean" if entry.tainted else "still young"
            waiting = "records after it were not read" if entry.unseen else waiting
            alone = ", weights only" if entry.partial else ""
            health, why = Health.VERIFIED, f"finite{alone}; {waiting}"
        if entry.abandoned:
            before = entry.position == BEFORE_ALL
            why += " (of before this run)" if before else " (left behind by a rollback)"
        return health, why

    def known(self, identity: Identity) -> Entry:
        """The entry of a checkpoint that has been seen. Raises KeyError for another."""
        return self._entries[identity]

    def has_own(self) -> bool:
        """Whether this run has saved anything that a start from scratch would overwrite."""
        return any(
            (entry.vault_path or not entry.gone)
            and not (entry.abandoned and entry.position == BEFORE_ALL)
            for entry in self._entries.values()
        )

    def newest(self, *wanted: Health) -> Entry | None:
        """The newest entry on the run's own line of history with one of these healths."""
        for entry in reversed(self.entries()):
            if not entry.abandoned and self.health(entry)[0] in wanted:
                return entry
        return None

    def targets(
        self, *, onset: Position | None = None, onset_step: int | None = None
    ) -> list[Target]:
        """What a recovery may resume from, newest first: verified or healthy, before the onset."""
        found = []
        for entry in reversed(self.entries()):
            if entry.abandoned or not entry.available:
                continue
            if onset is not None and not self._is_before(entry, onset, onset_step):
                continue
            health, why = self.health(entry)
            if health in (Health.HEALTHY, Health.VERIFIED):
                found.append(target_of(entry, health, why))
        return found

    def unchecked(
        self, *, onset: Position | None = None, onset_step: int | None = None
    ) -> list[Entry]:
        """Candidates that a recovery should verify first, newest first."""
        return [
            entry
            for entry in reversed(self.entries())
            if entry.checked is None
            and not entry.abandoned
            and not entry.gone
            and (onset is None or self._is_before(entry, onset, onset_step))
        ]

    def pin(self, identity: Identity) -> None:
        """Protect this one too: it is what a halted run will be resumed from."""
        self._pinned = identity
        self.revision += 1

    def to_secure(self) -> list[Entry]:
        """Entries that belong into the vault and are not there."""
        return [
            e
            for e in self._protected()
            if not e.gone and (e.vault_path is None or self.needs_copy(e))
        ]

    def needs_copy(self, entry: Entry) -> bool:
        """A hard link does not do for what a halted run will resume from: nobody watches then."""
        return entry.identity == self._pinned and (entry.linked or entry.vault_path is None)

    def to_release(self) -> list[Entry]:
        """Entries whose vault copy is no longer needed."""
        keep = {entry.identity for entry in self._protected()}
        return [e for e in self.entries() if e.vault_path is not None and e.identity not in keep]

    def released(self, identity: Identity) -> None:
        """The vault copy has been deleted."""
        entry = self._entries.get(identity)
        if entry is not None:
            self._put(replace(entry, vault_path=None))

    def _protected(self) -> list[Entry]:
        rows = [(entry, self.health(entry)[0]) for entry in reversed(self.entries())]
        return to_protect(rows, keep=self._config.keep, pinned=self._pinned)

    def _in_episode(self, entry: Entry) -> bool:
        """Whether it was saved at or after the first suspect record of the open episode."""
        return self._suspect_since is not None and entry.position >= self._suspect_since

    def _is_before(self, entry: Entry, onset: Position, onset_step: int | None) -> bool:
        """By position; the steps decide only right before the onset, within one log stride.

        Farther away they say nothing: a counter may have begun again with an epoch or an attempt.
        """
        if entry.position >= onset:
            return False
        near = entry.position.attempt == onset.attempt
        near = near and onset.record - entry.position.record <= 1
        if not near or entry.order_step is None or onset_step is None:
            return True
        return entry.order_step < onset_step


def _age(entry: Entry) -> tuple[Position, float]:
    return (entry.position, entry.saved_utc)
