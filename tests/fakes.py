"""The only fakes: a scripted outside world for the real supervisor, on a clock that we move.

Nothing here waits: when the supervisor has nothing to do, the clock jumps to the next thing that
is due, so an hour of silence takes milliseconds. Every effect is written to `happened`, in order.
"""

from __future__ import annotations

import itertools
import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fake_checkpoints import Checkpoints
from overnight.config import parse_config
from overnight.core.events import (
    AlertSent,
    CheckpointSeen,
    Drained,
    ExitRecord,
    GpuSample,
    Identity,
    LogChunk,
    TreeGone,
    WorkerExited,
    WorkerStarted,
)
from overnight.core.health import Ledger
from overnight.core.incidents import Book
from overnight.core.orders import Autopsy, AutopsyDone, Batch, Launch, OutboxRow
from overnight.core.policy import Policy
from overnight.errors import StoreError
from overnight.supervisor.journal import Journal
from overnight.supervisor.loop import Supervisor
from overnight.supervisor.opening import Start
from overnight.supervisor.ports import Effects
from overnight.supervisor.run import Run, Settings

Step = Callable[["World"], None]


@dataclass
class Outbox:
    """What the phone got: (title, severity) in order; `down` receivers refuse."""

    sent: list[tuple[str, str]] = field(default_factory=list)
    down: bool = False


class World:
    """The outside, scripted: `script` steps run one after the other when nothing else is due."""

    def __init__(
        self, script: Sequence[Step], *, config: Mapping[str, Any] | None = None, **settings: Any
    ) -> None:
        self.now = 1000.0
        self.happened: list[str] = []
        self.phone = Outbox()
        self.launches: list[Launch] = []
        self.incidents: dict[int, Any] = {}
        self.disk_full = False
        self.controls: list[dict[str, Any]] = []
        self.control_broken = False
        self.obeys_terminate = True
        self.dies_of_kill = True
        self.verifier_hangs = False
        self.tidy_problem = ""
        self.kernel: list[str] = []
        self.checkpoints: Any = None
        self.autopsy_answers = True
        self.oom_kills: int | None = 0
        self.cpu_s: float | None = 0.0
        self.on_disk: list[CheckpointSeen] = []
        self.gpu_pids: tuple[int, ...] = ()
        self._attempt = 0
        self._alive = False
        self._turns = 0
        self._script = deque(script)
        self._queue: deque[Any] = deque()
        self._alert_ids = itertools.count(1)
        self._checkpoint_ids = itertools.count(1)
        parsed = parse_config(
            config or {"resume": {"args": "--resume {checkpoint} --lr {lr}"}}, source="test"
        )
        self.run = Run(
            Settings(
                name="night",
                command=("train", "--lr", "0.001"),
                workdir=Path("/work"),
                directory=Path("/state"),
                env={},
                panel=parsed.panel,
                stall=parsed.detect.stall,
                gpu=parsed.gpu,
                resume=parsed.resume,
                metrics=parsed.metrics,
                probe=parsed.probe,
                grace_s=parsed.run.grace_s,
                max_loss_s=parsed.checkpoints.max_loss_s,
                base_lr=0.001,
                **settings,
            ),
            Ledger(parsed.checkpoints),
            Book(),
            Policy(parsed.policies),
            started_utc=self.wall(),
        )

    # --- clock and queue -------------------------------------------------------------------------

    def clock(self) -> float:
        """Monotonic seconds."""
        return self.now

    def wall(self) -> float:
        """Wall-clock seconds."""
        return 1_700_000_000.0 + self.now

    def put(self, observation: Any) -> None:
        """Something is seen."""
        self._queue.append(observation)

    @property
    def alive(self) -> bool:
        """Whether a worker runs."""
        return self._alive

    def next(self, step: Step) -> None:
        """What the script does before everything else that it has left."""
        self._script.appendleft(step)

    def get(self, timeout_s: float) -> Any:
        """The supervisor's inbox: what is queued, else the next step of the script, else time."""
        self._turns += 1
        assert self._turns < 100_000, "the run never ends:\n" + "\n".join(self.happened[-30:])
        if self._queue:
            return self._queue.popleft()
        if self._script:
            self._script.popleft()(self)
            return self._queue.popleft() if self._queue else None
        self.now += max(timeout_s, 0.001)
        return None

    def supervise(self, start: Start | None = None) -> int:
        """Run the real supervisor through the script to the end of the run."""
        effects = Effects(
            clock=self.clock,
            wall=self.wall,
            worker=self,
            tails=Tails(self),
            checkpoints=self.checkpoints or Checkpoints(self),
            store=self,
            dispatcher=Dispatcher(self),
            gpu=NoGpu(),
            say=lambda text: self.happened.append(f"say {text}"),
            write_control=self._write_control,
            autopsy=self._examined,
            patch_config=lambda patch: self.happened.append(f"patch {patch.copy} {patch.values}"),
            install_probe=lambda directory: directory / "probe",
            kernel_lines=lambda _since: self.kernel,
            oom_kills=lambda: self.oom_kills,
            search=re.Pattern.search,
            jitter=lambda: 0.0,
            receivers=("phone",),
        )
        journal = Journal(self.run, effects)
        return Supervisor(self.run, effects, journal, self).supervise(start or Start())

    def said(self, text: str) -> bool:
        """Whether the supervisor said something with this text."""
        return any(text in line for line in self.happened if line.startswith("say "))

    def _examined(self, order: Autopsy) -> None:
        self.happened.append(f"examined {order.pids}")
        if self.autopsy_answers:
            self.put(AutopsyDone(self.now, order.attempt, str(order.into)))

    def _write_control(self, _path: Path, value: dict[str, Any]) -> None:
        if self.control_broken:
            raise OSError(28, "No space left on device")
        self.controls.append(value)
        self.happened.append(f"control {value['lr_scale']}")

    # --- the worker ------------------------------------------------------------------------------

    def start(self, launch: Launch) -> None:
        """A new attempt."""
        self._attempt, self._alive = launch.attempt, True
        self.launches.append(launch)
        self.happened.append(f"start {launch.attempt}")
        self.put(WorkerStarted(self.now, launch.attempt, 100 + launch.attempt, 50, 1, "boot"))

    def signal(self, number: int) -> bool:
        """SIGTERM ends an obedient worker."""
        self.happened.append(f"signal {number}")
        if number == 15 and self.obeys_terminate:
            self.dies(code=0)
        return True

    def signal_rest(self, number: int) -> None:
        """Nothing is left."""
        self.happened.append(f"signal rest {number}")

    def kill(self) -> None:
        """SIGKILL ends everybody who is not stuck in the kernel."""
        self.happened.append("kill")
        if self.dies_of_kill:
            self.dies(signal=9)

    def dies(self, *, code: int | None = None, signal: int | None = None) -> None:
        """The worker and its tree are gone; one that is dead does not die again."""
        if not self._alive:
            return
        self._alive = False
        record = ExitRecord(code, signal, self.wall())
        self.put(WorkerExited(self.now, self._attempt, record))
        self.put(TreeGone(self.now, self._attempt))

    def cpu_seconds(self) -> float | None:
        """CPU time of the tree."""
        return self.cpu_s

    def pids(self) -> list[int]:
        """The tree."""
        return [100 + self._attempt]

    # --- the store -------------------------------------------------------------------------------

    def commit(self, batch: Batch) -> list[OutboxRow]:
        """Remembers incidents; refuses while the disk is full."""
        if self.disk_full:
            raise StoreError("disk full")
        for incident in batch.incidents:
            self.incidents[incident.id] = incident
            names = [name for name, _ in incident.progress]
            self.happened.append(f"commit {incident.fault} {incident.action} {','.join(names)}")
        return [self._row(alert) for alert in batch.alerts]

    def _row(self, alert: Any) -> OutboxRow:
        values = {name: getattr(alert, name) for name in alert.__slots__}
        return OutboxRow(id=next(self._alert_ids), failures=0, error="", **values)

    def sent(self, alert_id: int, *, time_utc: float) -> None:
        """Delivered."""
        self.happened.append(f"delivered {alert_id}")

    def not_sent(
        self, alert_id: int, *, error: str, due_utc: float | None, time_utc: float
    ) -> None:
        """Not delivered."""
        self.happened.append(f"undelivered {alert_id}")

    def due_now(self, *, time_utc: float) -> None:
        """The end."""

    def prune(self, *, before_utc: float) -> None:
        """Retention."""


@dataclass
class Tails:
    """Reading to the end takes no time."""

    world: World
    attempt: int = 0

    def open(self, attempt: int, directory: Path) -> None:
        """Follow."""
        self.attempt = attempt

    def finish(self) -> None:
        """Everything has been read."""
        self.world.put(Drained(self.world.now, self.attempt))


@dataclass
class Dispatcher:
    """Delivers at once, or refuses while the phone is down."""

    world: World

    def send(
        self, alert_id: int, receiver_key: str, *, title: str, body: str, severity: str
    ) -> bool:
        """One message."""
        if not self.world.phone.down:
            self.world.phone.sent.append((title, severity))
        self.world.put(
            AlertSent(self.world.now, alert_id, ok=not self.world.phone.down, error="off")
        )
        return True


class NoGpu:
    """A machine without a driver."""

    def start(self) -> None:
        """Nothing."""

    def check(self, at: float) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


# --- steps of a script ---------------------------------------------------------------------------


def steps(first: int, last: int, *, loss: float = 2.0, lr: float | None = None) -> Step:
    """Records of these steps, one a second."""

    def step(world: World) -> None:
        rate = 0.001 * world.run.lr_scale if lr is None else lr
        text = f"Step {first} | Loss: {loss + first % 7 * 0.01:.4f} | LR: {rate:.3e}"
        world.now += 1.0
        world.put(chunk(world, text))
        if first < last:
            world.next(steps(first + 1, last, loss=loss, lr=lr))

    return step


def chunk(world: World, *lines: str) -> LogChunk:
    """Lines of the worker's log."""
    attempt = world.launches[-1].attempt
    return LogChunk(world.now, attempt, "log", lines, first_line=1, end_offset=0)


def line(text: str) -> Step:
    """One line of the worker's log."""
    return lambda world: world.put(chunk(world, text))


def checkpoint(step: int, *, path: str | None = None) -> Step:
    """A checkpoint is complete."""

    def seen(world: World) -> None:
        identity = Identity(path or f"/out/step_{step}.pt", step, int(world.now), 4096)
        world.put(CheckpointSeen(world.now, identity, "pt", step, world.wall()))

    return seen


def wait(seconds: float) -> Step:
    """Time passes, second by second."""

    def step(world: World) -> None:
        if seconds > 1:
            world.next(wait(seconds - 1))
        world.now += min(seconds, 1.0)

    return step


def dies(*, code: int | None = None, signal: int | None = None) -> Step:
    """The worker dies by itself."""
    return lambda world: world.dies(code=code, signal=signal)


def heat(celsius: float) -> Step:
    """One GPU sample."""
    return lambda world: world.put(
        GpuSample(world.now, 0, "GPU-0", "RTX 5090", temperature_c=celsius, pids=world.gpu_pids)
    )


def do(change: Callable[[World], None]) -> Step:
    """Anything else."""
    return change
