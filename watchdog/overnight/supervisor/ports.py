"""What the supervisor needs of the outside, as small as it can be; app.py knows the classes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from overnight.core.events import CheckpointSeen, Fault, Identity
from overnight.core.formats.given import Search
from overnight.core.orders import Autopsy, Batch, Launch, OutboxRow, Patch, Tidying


class Worker(Protocol):
    """The worker's process tree; results come back as WorkerStarted, WorkerExited, TreeGone."""

    def start(self, launch: Launch) -> None:
        """Launch a worker; the tree before it must be gone."""

    def signal(self, number: int) -> bool:
        """Send a signal to the worker itself; False if it is gone."""

    def signal_rest(self, number: int) -> None:
        """Send a signal to what the worker has left behind."""

    def kill(self) -> None:
        """End the whole tree, whatever it takes."""

    def cpu_seconds(self) -> float | None:
        """CPU time that the tree has used; None where nobody can tell."""

    def pids(self) -> list[int]:
        """The processes of the tree."""


class Tails(Protocol):
    """The readers of one attempt's files; LogChunks come back, and Drained after `finish`."""

    def open(self, attempt: int, directory: Path) -> None:
        """Read the files of an attempt that is about to start, from their head."""

    def finish(self) -> None:
        """The worker is gone: read to the end, then say Drained."""


class Checkpoints(Protocol):
    """Discovery, verification, vault and quarantine.

    CheckpointSeen, CheckpointGone, CheckpointChecked, CheckpointSecured and Tidied come back.
    """

    def start(self, known: Sequence[Identity]) -> None:
        """Watch for saves; `known` are those of an earlier supervisor."""

    def existing(self) -> list[CheckpointSeen]:
        """The checkpoints that are there already."""

    def announce(self, path: str, step: int | None) -> None:
        """The worker says that it has saved here."""

    def verify(self, identity: Identity) -> None:
        """Verify in the background."""

    def secure(self, identity: Identity, *, in_place: bool, has_step: bool) -> None:
        """Put a copy into the vault, in the background."""

    def release(self, vault_path: str) -> None:
        """Remove a copy from the vault."""

    def tidy(self, order: Tidying) -> None:
        """Put the folder in order before a start, in the background."""

    def unchanged(self, identity: Identity) -> bool:
        """Whether the files are still those that were verified."""

    def vault_holds(self, identity: Identity, vault_path: str) -> bool:
        """Whether the vault has this very checkpoint, whole."""

    def close(self) -> None:
        """End the watching and its children."""


class Store(Protocol):
    """Durable memory. Every method may raise StoreError; the supervisor then acts from memory."""

    def commit(self, batch: Batch) -> list[OutboxRow]:
        """Write a batch in one transaction; the alerts to be sent come back."""

    def sent(self, alert_id: int, *, time_utc: float) -> None:
        """An alert has arrived."""

    def not_sent(
        self, alert_id: int, *, error: str, due_utc: float | None, time_utc: float
    ) -> None:
        """An alert has not arrived; try again at `due_utc`, None for never."""

    def due_now(self, *, time_utc: float) -> None:
        """Alerts that wait for their next try are due."""

    def prune(self, *, before_utc: float) -> None:
        """Forget what is older."""


class Dispatcher(Protocol):
    """Delivery of one alert to one receiver; AlertSent comes back. False while one is under way."""

    def send(
        self, alert_id: int, receiver_key: str, *, title: str, body: str, severity: str
    ) -> bool:
        """Begin to deliver."""


class Gpu(Protocol):
    """GPU telemetry; GpuSample and GpuUnavailable come back."""

    def start(self) -> None:
        """Open the driver, in a child."""

    def check(self, at: float) -> None:
        """Time has passed: replace a child that hangs or is gone."""

    def close(self) -> None:
        """End the child."""


@dataclass(frozen=True)
class Effects:
    """Everything outside, handed to the supervisor once.

    `say` speaks to the person at the terminal and to supervisor.log; `write_control` replaces the
    worker's control file; `autopsy` has a hanging worker examined (AutopsyDone); `patch_config`
    writes a patched copy of the script's own config file (ConfigError, OSError); `install_probe`
    lays the probe beside the run's state;
    `kernel_lines` tells what the kernel has said since a moment, `oom_kills` how many of our
    processes it has ended for memory; `search` tries a regular expression of the user's, in
    bounded time; `jitter` gives a number from 0 to 1 for back-off; `told` names the receivers of
    those faults that not everybody is told of.
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
    autopsy: Callable[[Autopsy], None]
    patch_config: Callable[[Patch], None]
    install_probe: Callable[[Path], Path]
    kernel_lines: Callable[[float], Sequence[str]]
    oom_kills: Callable[[], int | None]
    search: Search
    jitter: Callable[[], float]
    receivers: tuple[str, ...] = ()
    told: Mapping[Fault, tuple[str, ...]] = field(default_factory=dict)
