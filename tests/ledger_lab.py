"""A run as the checkpoint ledger sees it: records, saves, answers of the verifier."""

from __future__ import annotations

from core_lab import checked, identity, record, seen
from overnight.core.checkpoints import CheckpointsConfig
from overnight.core.events import Health, Identity, Position, StepMetric
from overnight.core.health import Ledger


class Run:
    """A run that logs every `stride` steps and saves; the ledger is told as the loop tells it."""

    def __init__(self, *, stride: int = 1, attempt: int = 1, **config) -> None:
        self.ledger = Ledger(CheckpointsConfig(**config))
        self.stride, self.attempt = stride, attempt
        self.last: StepMetric | None = None
        self.count = 0

    def train(self, to: int, *, suspect: bool = False, since: Position | None = None) -> None:
        """Records up to and including step `to`."""
        first = (self.last.step if self.last else 0) + self.stride
        for step in range(first, to + 1, self.stride):
            self.count += 1
            self.last = record(step, position=Position(self.attempt, self.count))
            if self.count == 1:
                self.ledger.began(step, started_utc=0.5)
            began = since or (self.last.position if suspect else None)
            self.ledger.record(self.last, suspect=suspect, suspect_since=began)

    def save(self, path: str = "", *, health: Health | None = Health.VERIFIED, **more) -> Identity:
        """A checkpoint of now, verified unless told otherwise."""
        step = self.last.step if self.last else None
        which = identity(path or f"step_{step}.pt", version=more.pop("version", 1))
        found = seen(
            which, step=more.pop("step", step), saved_utc=more.pop("saved_utc", float(self.count))
        )
        self.ledger.seen(found, last=self.last, stride=self.stride)
        if health is not None:
            self.ledger.checked(checked(which, health))
        return which

    def train_and_save(self, to: int, *, every: int) -> None:
        """Train, saving at every multiple of `every`."""
        for step in range((self.last.step if self.last else 0) + every, to + 1, every):
            self.train(step)
            self.save()

    def health(self, which: Identity) -> Health:
        """What that checkpoint is worth now."""
        entry = next(e for e in self.ledger.entries() if e.identity == which)
        return self.ledger.health(entry)[0]

    def targets(self, onset: int | None = None) -> list[tuple[int | None, Health]]:
        """Step and health of the possible targets."""
        position = None if onset is None else Position(self.attempt, onset // self.stride)
        found = self.ledger.targets(onset=position, onset_step=onset)
        return [(target.step, target.health) for target in found]
