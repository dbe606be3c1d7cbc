"""What the supervisor asks of the outside: launches, transactions, alerts. Values only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from overnight.core.events import Identity, Position, StepMetric
from overnight.core.story import Entry, Incident


@dataclass(frozen=True, slots=True)
class Patch:
    """A config file of the script's, of which `copy` gets these values (keys with dots)."""

    original: Path
    copy: Path
    values: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Launch:
    """Everything one attempt is started with."""

    attempt: int
    directory: Path
    command: Sequence[str]
    workdir: Path
    env: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Tidying:
    """How the checkpoints must lie before a worker starts: nothing newer than `target`.

    `aside` goes into quarantine, and so does what a save that was cut off has left since
    `since_utc`. `source` is where the target's bytes are now. `latest`: the script takes its newest
    checkpoint by itself, so the target must be that one, under every name that it may look for.
    """

    aside: tuple[Identity, ...]
    target: Identity | None
    source: str | None
    latest: bool
    since_utc: float


@dataclass(frozen=True, slots=True)
class Tidied:
    """The answer to a Tidying: what was moved where, and what did not work.

    `placed` is the target's identity where its bytes had to be put back at its path.
    """

    at: float
    moved: tuple[tuple[Identity, str], ...]
    placed: Identity | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Autopsy:
    """What is to be written down of a hanging worker, and `into` which file.

    `gpus` and `kernel` are lines that are known already.
    """

    attempt: int
    pids: tuple[int, ...]
    reason: str
    command: tuple[str, ...]
    workdir: Path
    log: Path
    into: Path
    gpus: tuple[str, ...] = ()
    kernel: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AutopsyDone:
    """Where the report lies, or why there is none."""

    at: float
    attempt: int
    path: str | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class NewAlert:
    """An alert for one receiver, not yet in the outbox."""

    incident: int
    moment: str
    receiver: str
    severity: str
    title: str
    body: str
    created_utc: float
    due_utc: float


@dataclass(frozen=True, slots=True)
class OutboxRow:
    """An alert in the outbox that is neither delivered nor given up."""

    id: int
    incident: int
    moment: str
    receiver: str
    severity: str
    title: str
    body: str
    created_utc: float
    due_utc: float
    failures: int
    error: str


@dataclass(frozen=True, slots=True)
class Batch:
    """One transaction. `replaces` names unsent alerts that a better one takes the
    place of; records after `rewind` are deleted before new ones are written."""

    run: Mapping[str, Any] | None = None
    incidents: Sequence[Incident] = ()
    alerts: Sequence[NewAlert] = ()
    replaces: Sequence[int] = ()
    records: Sequence[StepMetric] = ()
    checkpoints: Sequence[Entry] = ()
    forgotten: Sequence[Identity] = ()
    rewind: Position | None = None


@dataclass(frozen=True, slots=True)
class Memory:
    """All that a run has left in its store."""

    run: dict[str, Any]
    incidents: list[Incident]
    entries: list[Entry]
    records: list[StepMetric]
    outbox: list[OutboxRow]
