"""What a user may say about checkpoints; which are protected, and which a rollback puts aside."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import PurePath

from pydantic import BaseModel, ConfigDict, Field, field_validator

from overnight.core.events import Health, Identity, Target
from overnight.core.placing import BEFORE_ALL
from overnight.core.story import Entry

_WORDS = re.compile(
    r"last|latest|newest|current|resume|ckpt|checkpoint|model|state|snapshot|weights|epoch|step",
    re.IGNORECASE,
)


class CheckpointsConfig(BaseModel):
    """`[checkpoints]`: where they are, when they are trusted, how many are kept safe."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    glob: tuple[str, ...] = Field((), description="patterns of checkpoint files or directories")
    keep: int = Field(2, ge=1, description="newest healthy checkpoints protected in the vault")
    confirm_steps: int = Field(
        100, ge=0, description="clean steps after a checkpoint that make it healthy"
    )
    confirm_records: int = Field(2, ge=1, description="at least this many records among them")
    max_loss_s: float = Field(
        1800, gt=0, description="seconds of work one is willing to lose; past it there is a warning"
    )

    @field_validator("glob", mode="before")
    @classmethod
    def _one_or_many(cls, value: object) -> object:
        return (value,) if isinstance(value, str) else value


def to_set_aside(
    rows: Iterable[tuple[Entry, Health]], target: Entry | None, *, latest: bool, by_pattern: bool
) -> list[Entry]:
    """What a script must not find when `target` is resumed.

    All of the run that came later, and what was saved at the same moment and is no good; with no
    target everything of the run. `latest`: the script takes its newest by itself, so whatever may
    be a checkpoint counts (without a pattern, by its name: a script also saves losses and samples);
    else only what is numbered like the target, for the script's rotation goes by the number. What
    was there before the run is never touched.
    """
    return [
        entry
        for entry, health in rows
        if not entry.gone
        and entry is not target
        and not (entry.abandoned and entry.position == BEFORE_ALL)
        and (target is None or _misleads(entry, health, target))
        and (by_pattern or is_called_checkpoint(entry.identity.path) if latest else True)
        and (latest or _numbered_alike(entry, target))
    ]


def is_called_checkpoint(path: str) -> bool:
    """Whether a name is one of a checkpoint: it has a number, or a word for it."""
    name = PurePath(path).name
    return _WORDS.search(name) is not None or re.search(r"\d", name) is not None


def _numbered_alike(entry: Entry, target: Entry | None) -> bool:
    shape, number = (
        _shape(entry.identity.path),
        re.search(r"\d", PurePath(entry.identity.path).name),
    )
    return number is not None and (target is None or shape == _shape(target.identity.path))


def _shape(path: str) -> tuple[PurePath, str]:
    """A path without the numbers in its name, and without its ending."""
    return PurePath(path).parent, re.sub(r"\d+", "#", PurePath(path).stem)


def _misleads(entry: Entry, health: Health, target: Entry) -> bool:
    if entry.abandoned or entry.position > target.position:
        return True
    twin = entry.position == target.position and entry.saved_utc >= target.saved_utc
    return twin and health not in (Health.HEALTHY, Health.VERIFIED)


def to_protect(
    rows: Iterable[tuple[Entry, Health]], *, keep: int, pinned: Identity | None
) -> list[Entry]:
    """What belongs into the vault: the newest `keep` healthy ones, and what is newer and verified.

    Most of that is on its way to become healthy. Where steps after it did not stay clean it will
    not, but a fault that began behind it may leave nothing better: the newest `keep` of those stay,
    until a newer one is healthy. `rows` are newest first; `pinned` is protected in any case.
    """
    healthy: list[Entry] = []
    young: list[Entry] = []
    doubtful: list[Entry] = []
    for entry, health in rows:
        if entry.identity == pinned:
            young.append(entry)
        elif entry.abandoned:
            continue
        elif health is Health.HEALTHY and len(healthy) < keep:
            healthy.append(entry)
        elif health is Health.VERIFIED and not healthy:
            (doubtful if entry.tainted or entry.unseen else young).append(entry)
    return young + doubtful[:keep] + healthy


def target_of(entry: Entry, health: Health, why: str) -> Target:
    """A checkpoint as something to resume from."""
    return Target(
        path=entry.path,
        step=entry.run_step,
        health=health,
        position=entry.position,
        identity=entry.identity,
        why=why,
        partial=entry.partial,
    )
