"""The vocabulary: what is seen, concluded and done. Values only, no behaviour.

`at` is monotonic seconds, for decisions; `*_utc` is the wall clock in seconds, for people and disk.
A quantity that is not known is None, never 0."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Any, Literal

Source = Literal["log", "metrics", "file"]  # worker.log, metrics.jsonl, files of the script's own


class Severity(StrEnum):
    """How loudly a verdict speaks."""

    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"


class Family(StrEnum):
    """Faults of one family near each other are one episode."""

    NUMERIC = "numeric"
    PROGRESS = "progress"
    EXIT = "exit"
    DEVICE = "device"
    HOST = "host"


class Fault(StrEnum):
    """What is wrong. The names are the product's public words (docs/glossary.md)."""

    LOSS_NONFINITE = "loss-nonfinite"
    GRAD_NONFINITE = "grad-nonfinite"
    LOSS_SPIKE = "loss-spike"
    GRAD_SPIKE = "grad-spike"
    DIVERGENCE = "divergence"
    COLLAPSE = "collapse"
    STALL = "stall"
    SLOWDOWN = "slowdown"
    CRASH = "crash"
    CUDA_OOM = "cuda-oom"
    HOST_OOM = "host-oom"
    STARTUP_FAILURE = "startup-failure"
    GPU_HOT = "gpu-hot"
    GPU_THROTTLE = "gpu-throttle"
    GPU_XID = "gpu-xid"
    GPU_ECC = "gpu-ecc"
    GPU_LOST = "gpu-lost"
    DISK_FULL = "disk-full"
    LR_NOT_REDUCED = "lr-not-reduced"
    CHECKPOINT_CORRUPT = "checkpoint-corrupt"
    CHECKPOINT_OVERDUE = "checkpoint-overdue"


_SUDDEN = {Fault.LOSS_NONFINITE, Fault.GRAD_NONFINITE, Fault.LOSS_SPIKE, Fault.GRAD_SPIKE}
NUMERIC_FAULTS = frozenset({*_SUDDEN, Fault.DIVERGENCE, Fault.COLLAPSE})
_MEMBERS = {
    Family.NUMERIC: NUMERIC_FAULTS,
    Family.PROGRESS: {Fault.STALL, Fault.SLOWDOWN, Fault.LR_NOT_REDUCED},
    Family.EXIT: {Fault.CRASH, Fault.CUDA_OOM, Fault.HOST_OOM, Fault.STARTUP_FAILURE},
    Family.DEVICE: {fault for fault in Fault if fault.value.startswith("gpu-")},
    Family.HOST: {Fault.DISK_FULL, Fault.CHECKPOINT_CORRUPT, Fault.CHECKPOINT_OVERDUE},
}
_FAMILIES = {fault: family for family, faults in _MEMBERS.items() for fault in faults}


def family_of(fault: Fault) -> Family:
    """The episode family a fault belongs to."""
    return _FAMILIES[fault]


class Action(StrEnum):
    """What a policy may choose."""

    RECORD = "record"
    NOTIFY = "notify"
    CHECKPOINT = "checkpoint"
    RESTART = "restart"
    ROLLBACK = "rollback"
    COOL = "cool"
    HALT = "halt"


class Health(StrEnum):
    """What is known of a checkpoint (docs/protocol.md)."""

    CANDIDATE = "candidate"
    UNVERIFIED = "unverified"
    VERIFIED = "verified"
    HEALTHY = "healthy"
    SUSPECT = "suspect"
    CORRUPT = "corrupt"


class Level(IntEnum):
    """A detector's state after one record; SUSPECT marks positions and makes no verdict."""

    OK = 0
    SUSPECT = 1
    WARNING = 2
    CRITICAL = 3


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """Our own order of records; `step` is only the label that the script prints."""

    attempt: int
    record: int


# --- observations: anything seen at a time `at` --------------------------------------------------


@dataclass(frozen=True, slots=True)
class LogChunk:
    """Whole lines read from a worker file.

    `first_line` is 1-based; `end_offset` is the byte after the last line; `skipped_bytes` counts
    what the tail left out, too far behind, `read_bytes` what one read found, `cut_lines` the lines
    of the file so far of which only the head was kept. Of the script's own files: `begins` at the
    head, `heading`: its first line, if old; `damage`: why reading ends.
    """

    at: float
    attempt: int
    source: Source
    lines: tuple[str, ...]
    first_line: int
    end_offset: int
    skipped_bytes: int = 0
    read_bytes: int = 0
    cut_lines: int = 0
    begins: bool = False
    heading: str = ""
    damage: str = ""


@dataclass(frozen=True, slots=True)
class WorkerStarted:
    """The recorder has started the worker. (boot_id, pid, start_time) identifies it for ever."""

    at: float
    attempt: int
    pid: int
    recorder_pid: int
    start_time: int
    boot_id: str


@dataclass(frozen=True, slots=True)
class ExitRecord:
    """How a worker ended: code or signal, or `error` where the command could not be executed."""

    code: int | None
    signal: int | None
    ended_utc: float
    error: str = ""


@dataclass(frozen=True, slots=True)
class WorkerExited:
    """The worker's main process is gone; others of its tree may still live."""

    at: float
    attempt: int
    record: ExitRecord


@dataclass(frozen=True, slots=True)
class TreeGone:
    """No process of the attempt is left."""

    at: float
    attempt: int


@dataclass(frozen=True, slots=True)
class TreeStuck:
    """Processes that do not die of SIGKILL (D state: stuck in the driver or a filesystem)."""

    at: float
    attempt: int
    pids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Drained:
    """Everything that the attempt's processes ever wrote has been read and reported."""

    at: float
    attempt: int


@dataclass(frozen=True, slots=True)
class GpuSample:
    """One poll of one GPU. None where the card does not say."""

    at: float
    index: int
    uuid: str
    name: str
    temperature_c: float | None = None
    power_w: float | None = None
    utilization_pct: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    pids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class GpuUnavailable:
    """NVML cannot be asked, and why (no driver, version mismatch, GPU lost, child hung)."""

    at: float
    reason: str
    permanent: bool


@dataclass(frozen=True, slots=True)
class Identity:
    """Which bytes a checkpoint path meant when we looked: a path alone can be overwritten."""

    path: str
    inode: int
    mtime_ns: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class CheckpointSeen:
    """A checkpoint became complete at `at` (rename, close, marker), not when a poll noticed it."""

    at: float
    identity: Identity
    format: str
    step: int | None
    saved_utc: float
    in_place: bool = False


@dataclass(frozen=True, slots=True)
class CheckpointGone:
    """A checkpoint's bytes are no longer at its path (rotated away or overwritten)."""

    at: float
    identity: Identity


@dataclass(frozen=True, slots=True)
class CheckpointChecked:
    """The verifier's answer: VERIFIED, CORRUPT or UNVERIFIED; `partial`: weights alone."""

    at: float
    identity: Identity
    health: Health
    reason: str
    step: int | None = None
    partial: bool = False


@dataclass(frozen=True, slots=True)
class CheckpointSecured:
    """A protected copy exists in the vault (`vault_path`), or why it does not."""

    at: float
    identity: Identity
    vault_path: str | None
    method: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class AlertSent:
    """What one receiver answered for one alert; `permanent`: no other try can succeed."""

    at: float
    alert_id: int
    ok: bool
    error: str = ""
    permanent: bool = False


@dataclass(frozen=True, slots=True)
class StopRequested:
    """A signal to the supervisor asked for the end of the run."""

    at: float
    signal: int


@dataclass(frozen=True, slots=True)
class Request:
    """A command from the control socket; `reply` may be called once, from any thread."""

    at: float
    op: str
    args: Mapping[str, Any]
    reply: Callable[[dict[str, Any]], None]


@dataclass(frozen=True, slots=True)
class Housekeeping:
    """A wall-clock job is due (retention); never used for detection."""

    at: float
    job: str


# --- what the worker's lines mean ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StepMetric:
    """One accepted training record, with our position and the script's own step label.

    Losses are in the script's unit; `digits` counts the significant digits of the printed loss
    (None when it came as JSON); `line` is 1-based in the file it came from.
    """

    at: float
    position: Position
    step: int
    loss: float | None = None
    grad_norm: float | None = None
    lr: float | None = None
    tokens_per_s: float | None = None
    epoch: float | None = None
    loss_scale: float | None = None
    skipped: bool = False
    digits: int | None = None
    line: int | None = None
    time_utc: float | None = None


# --- conclusions ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Verdict:
    """A detector's judgement: the fault, where it began, where we knew, and the numbers behind it.

    `reason` is a sentence for a sleepy person; `onset` is None when no record is concerned.
    """

    at: float
    fault: Fault
    severity: Severity
    reason: str
    onset: Position | None = None
    detected: Position | None = None
    onset_step: int | None = None
    detected_step: int | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict)
    line: int | None = None
    cause: str | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """What a recovery resumes from; `path` is given to the worker; `partial`: weights alone."""

    path: str
    step: int | None
    health: Health
    position: Position | None
    identity: Identity
    why: str
    partial: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """What will be done about a verdict, and why."""

    action: Action
    reason: str
    target: Target | None = None
    lr_scale: float = 1.0
    delay_s: float = 0.0
    graceful: bool = False
    needs_you: bool = False
    from_scratch: bool = False
    skip: tuple[int, int] | None = None
    in_flight: bool = False
    relief: int = 0
    climb_steps: int | None = None
    advice: tuple[str, ...] = ()
