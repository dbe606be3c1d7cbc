"""What the supervisor needs of the outside, as small as it can be; app.py knows the classes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from overnight.core.events import CheckpointSeen, Identity
from overnight.core.orders import Batch, Launch, OutboxRow


class Worker(Protocol):
    """The worker's process tree; results come back as WorkerStarted, WorkerExited, TreeGone."""

    def start(self, launch: Launch) -> None: ...  # noqa: D102
    def signal(self, number: int) -> bool: ...  # noqa: D102
    def signal_rest(self, number: int) -> None: ...  # noqa: D102
    def kill(self) -> None: ...  # noqa: D102
    def cpu_seconds(self) -> float | None: ...  # noqa: D102
    def pids(self) -> list[int]: ...  # noqa: D102


class Tails(Protocol):
    """The readers of one attempt's files; LogChunks come back, and Drained after `finish`."""

    def open(self, attempt: int, directory: Path) -> None: ...  # noqa: D102
    def finish(self) -> None: ...  # noqa: D102


class Checkpoints(Protocol):
    """Discovery, verification and vault; CheckpointSeen, -Gone, -Checked, -Secured come back."""

    def start(self, known: Sequence[Identity]) -> None: ...  # noqa: D102
    def existing(self) -> list[CheckpointSeen]: ...  # noqa: D102
    def announce(self, path: str, step: int | None) -> None: ...  # noqa: D102
    def verify(self, identity: Identity) -> None: ...  # noqa: D102
    def secure(self, identity: Identity, *, in_place: bool, has_step: bool) -> None: ...  # noqa: D102
    def release(self, vault_path: str) -> None: ...  # noqa: D102
    def unchanged(self, identity: Identity) -> bool: ...  # noqa: D102
    def vault_holds(self, identity: Identity, vault_path: str) -> bool: ...  # noqa: D102
    def close(self) -> None: ...  # noqa: D102


class Store(Protocol):
    """Durable memory. Every method may raise StoreError; the supervisor then acts from memory."""

    def commit(self, batch: Batch) -> list[OutboxRow]: ...  # noqa: D102
    def sent(self, alert_id: int, *, time_utc: float) -> None: ...  # noqa: D102
    def not_sent(  # noqa: D102
        self, alert_id: int, *, error: str, due_utc: float | None, time_utc: float
    ) -> None: ...
    def due_now(self, *, time_utc: float) -> None: ...  # noqa: D102
    def prune(self, *, before_utc: float) -> None: ...  # noqa: D102


class Dispatcher(Protocol):
    """Delivery of one alert to one receiver; AlertSent comes back. False while one is under way."""

    def send(  # noqa: D102
        self, alert_id: int, receiver_key: str, *, title: str, body: str, severity: str
    ) -> bool: ...


class Gpu(Protocol):
    """GPU telemetry; GpuSample and GpuUnavailable come back."""

    def start(self) -> None: ...  # noqa: D102
    def check(self, at: float) -> None: ...  # noqa: D102
    def close(self) -> None: ...  # noqa: D102


@dataclass(frozen=True)
class Effects:
    """Everything outside, handed to the supervisor once.

    `say` speaks to the person at the terminal and to supervisor.log; `write_control` replaces the
    worker's control file; `jitter` gives a number from 0 to 1 for back-off.
    """

    clock: Callable[[], float]
    wall: Callable[[], float]
    worker: Worker
    tails: Tails
    checkpoints: Checkpoints
    store: Store
    dispatcher: Dispatcher
    gpu: Gpu
    say: Callable[[str], None]
    write_control: Callable[[Path, dict[str, Any]], None]
    jitter: Callable[[], float]
    receivers: tuple[str, ...] = ()
