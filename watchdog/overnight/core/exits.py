"""Why a worker died: exit status and last lines -> a cause, a fault and a hint.

Rules are data: one row a cause, the real line it was written for above it. The first row whose
pattern is found wins, so root causes stand above what they drag behind them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from overnight.core.events import ExitRecord, Fault

TAIL_LINES = 200
"""How much of the worker's last output is kept for finding a cause."""

LAST_SIGNAL = 64
"""The highest signal number of Linux."""

_SIGNALS = {1: "HUP", 2: "INT", 3: "QUIT", 4: "ILL", 6: "ABRT", 7: "BUS", 8: "FPE", 9: "KILL"}
_SIGNALS |= {11: "SEGV", 13: "PIPE", 15: "TERM", 24: "XCPU", 25: "XFSZ"}


@dataclass(frozen=True, slots=True)
class Death:
    """A cause of death by its glossary name; `startup` causes are never worth a second try.

    `evidence` holds the lines that say so, `signature` tells equal deaths from different ones.
    """

    cause: str
    fault: Fault
    hint: str
    evidence: tuple[str, ...]
    startup: bool

    @property
    def signature(self) -> str:
        """Equal for deaths that look the same; numbers and addresses are ignored."""
        text = "|".join((self.cause, *self.evidence[-1:]))
        return re.sub(r"0x[0-9a-f]+|\d+", "#", text)


@dataclass(frozen=True, slots=True)
class _Rule:
    cause: str
    pattern: re.Pattern[str]
    hint: str
    startup: bool = False


def _rule(cause: str, pattern: str, hint: str, *, startup: bool = False) -> _Rule:
    return _Rule(cause, re.compile(pattern), hint, startup)


_RULES = (
    # OSError: [Errno 28] No space left on device
    _rule("disk-full", r"No space left on device", "the disk is full: free space, then resume"),
    # torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a ...
    # RESOURCE_EXHAUSTED: Out of memory while trying to allocate 17179869184 bytes.
    _rule(
        "cuda-oom",
        r"(?:CUDA|HIP|MPS backend) out of memory|cuda runtime error \(2\)"
        r"|(?:CUDA [Ee]rror|CUDA ERROR\].*): out of memory"
        r"|(?:torch\.(?:cuda\.)?)OutOfMemoryError|cudaErrorMemoryAllocation"
        r"|RESOURCE_EXHAUSTED: |OOM when allocating tensor|CUBLAS_STATUS_ALLOC_FAILED",
        "out of GPU memory: a smaller batch, or PYTORCH_ALLOC_CONF=expandable_segments:True",
    ),
    # FloatingPointError: Loss is infinite or NaN at iteration=412!
    # Exception: Current loss scale already at minimum - cannot decrease scale anymore.
    # RuntimeError:  [!] NaN loss with decoder_loss.
    _rule(
        "numeric",
        r"FloatingPointError|[Ll]oss is (?:infinite or )?(?:nan|NaN|inf)\b|returned nan values"
        r"|Minimum loss scale reached|loss scale already at minimum|NaN loss|Loss (?:NaN|nan)\b"
        r"|gradients at all steps are invalid|Invalid loss, terminating|`training_step` is nan"
        r"|probability tensor contains either|Input contains NaN|found invalid values:"
        r"|NanLossDuringTraining|Model diverged with loss|[Nn]on-finite loss"
        r"|[Ll]oss (?:became|has become|went|turned)\b.{0,20}\b(?:[Nn]a[Nn]|NAN|[Ii]nf|[Nn]on-?f)"
        r"|[Ll]oss (?:has )?diverged|[Ll]oss is not finite|Nan in summary histogram"
        r"|(?:nan|inf) is not finite"
        r"|Error: .*\b(?:NaN|nan)s? (?:loss|detected|encountered|in|found)\b",
        "the script stopped itself on a non-finite number",
    ),
    # RuntimeError: Expected all tensors to be on the same device, but found at least two devices
    _rule(
        "device-mismatch",
        r"Expected all tensors to be on the same device|Input type .* and weight type .* should be",
        "tensors on different devices: the code must move them, a restart will not help",
    ),
    # traceback : Signal 9 (SIGKILL) received by PID 1322
    # RuntimeError: DataLoader worker (pid 4711) is killed by signal: Killed.
    _rule(
        "host-oom",
        r"exitcode: -9\b|Signal 9 \(SIGKILL\)|killed by signal: Killed|^\s*Killed\s*$"
        r"|oom[-_]kill|Out of memory: Killed process|^MemoryError|std::bad_alloc"
        r"|DefaultCPUAllocator: |Cannot allocate memory|Unable to allocate .* for an array"
        r"|worker_processes.* SIGKILL|line \d+: +\d+ Killed ",
        "the machine's memory was exhausted: see dmesg and free -h; fewer loader workers help",
    ),
    # RuntimeError: DataLoader worker (pid 12) is killed by signal: Bus error. It is possible that
    _rule(
        "bus-error",
        r"killed by signal: Bus error|Signal 7 \(SIGBUS\)|insufficient shared memory",
        "often a full /dev/shm: give the DataLoader fewer workers or more shm",
    ),
    # RuntimeError: CUDA error: uncorrectable ECC error encountered
    _rule(
        "gpu-ecc",
        r"uncorrectable ECC error|Uncorrectable ECC",
        "the GPU's memory is damaged: see nvidia-smi -q -d ECC, then reset or replace the card",
    ),
    # RuntimeError: No CUDA GPUs are available / GPU is lost / fallen off the bus
    _rule(
        "gpu-lost",
        r"GPU is lost|fallen off the bus|No CUDA GPUs are available|no CUDA-capable device"
        r"|CUDA driver version is insufficient|Driver/library version mismatch",
        "the driver does not see the GPU: nvidia-smi tells more, often only a reboot helps",
    ),
    # RuntimeError: CUDA error: device-side assert triggered
    _rule(
        "cuda-error",
        r"CUDA error: |CUDA ERROR|device-side assert|CUDNN_STATUS|illegal memory access"
        r"|CUBLAS_STATUS|Loss\.cu:\d+.*Assertion|cudaError[A-Z]|CUDA_ERROR_",
        "the GPU reported an error; twice at the same step means the code or the data",
    ),
    # [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=96117, ...
    _rule(
        "nccl",
        r"Watchdog caught collective operation timeout|NCCL (?:error|communicator was aborted)"
        r"|ncclSystemError|ncclInternalError|ncclUnhandledCudaError|ncclRemoteError"
        r"|ProcessGroupNCCL.*(?:[Tt]imeout|heartbeat|exception)|DistBackendError"
        r"|^(?!.*NCCL INFO).*(?:NCCL|[Gg]loo|TCPStore|c10d).*Connection (?:closed|reset) by",
        "ranks lost each other: one of them was slow or dead, its own output tells why",
    ),
    # Segmentation fault (core dumped)
    _rule(
        "segfault",
        r"Segmentation fault|Signal 11 \(SIGSEGV\)|exitcode: -11\b|Fatal Python error: Segm",
        "a native library crashed: see dmesg; try the run again on another version",
    ),
    # slurmstepd: error: *** JOB 11679031 ON gpu-node CANCELLED AT 2024-10-11T13:44:45 ***
    _rule(
        "killed",
        r"slurmstepd: error: .*CANCELLED|DUE TO (?:TIME LIMIT|PREEMPTION|NODE FAILURE)"
        r"|Signal 15 \(SIGTERM\)|SignalException: |Received SIGTERM|^\s*Terminated\s*$",
        "a scheduler, another program or a person ended it",
    ),
    # ModuleNotFoundError: No module named 'flash_attn'
    _rule(
        "missing-module",
        r"ModuleNotFoundError: |ImportError: |No module named ",
        "a Python module is missing: install it into the training environment",
        startup=True,
    ),
    # FileNotFoundError: [Errno 2] No such file or directory: 'data/train.bin'
    _rule(
        "missing-file",
        r"FileNotFoundError: |can't open file .*No such file",
        "a file is missing: see the path in the last lines",
        startup=True,
    ),
    # PermissionError: [Errno 13] Permission denied: '/data/out'
    _rule(
        "permission", r"PermissionError: ", "the worker may not use a file or device", startup=True
    ),
    # train.py: error: unrecognized arguments: --resume
    _rule(
        "usage",
        r"^\S+(?: \S+)?: error: (?!\*)|^usage: ",
        "the script refused its command line",
        startup=True,
    ),
    # KeyboardInterrupt
    _rule("interrupted", r"^KeyboardInterrupt", "somebody pressed Ctrl-C"),
    _rule("runtime-error", r"^RuntimeError: ", "see the traceback in worker.log"),
    # Traceback (most recent call last):
    _rule("traceback", r"Traceback \(most recent call last\)", "see the traceback in worker.log"),
)

_HANDLED = re.compile(
    r"using CPU|fall(?:ing|s)? ?back|retry|will be skipped|[Ii]gnoring|[Ss]kipp(?:ed|ing)"
    r"|\bcontinuing\b|[Rr]educ(?:ed|ing) (?:the )?batch"
)
"""Words of a script that goes on: the error of such a line has been dealt with."""

_CERTAIN = frozenset(
    (
        "disk-full",
        "cuda-oom",
        "numeric",
        "device-mismatch",
        "host-oom",
        "bus-error",
        "gpu-ecc",
        "gpu-lost",
        "cuda-error",
        "nccl",
        "segfault",
        "killed",
    )
)
"""Causes that speak for a death even where nobody knows how the process ended."""

LAST_WORDS = 40
"""A traceback this near the end of a log is how the run ended."""

_FAULTS = {
    "numeric": Fault.LOSS_NONFINITE,
    "cuda-oom": Fault.CUDA_OOM,
    "host-oom": Fault.HOST_OOM,
    "disk-full": Fault.DISK_FULL,
}

_BY_SIGNAL = {
    9: ("killed", "somebody or the kernel's OOM killer sent SIGKILL: see dmesg and free -h"),
    11: ("segfault", "a native library crashed: see dmesg; try the run again on another version"),
    7: ("bus-error", "often a full /dev/shm: give the DataLoader fewer workers or more shm"),
}


def diagnose(record: ExitRecord, tail: Sequence[str], *, any_record: bool) -> Death:
    """The cause of a death nobody asked for (`record` is not a clean exit).

    `tail` is the worker's last output, oldest first; `any_record` says whether training had begun.
    """
    if record.error:
        return _death("missing-file", f"the command cannot be executed: {record.error}", (), True)
    lines = [line for line in tail[-TAIL_LINES:] if line.strip()]
    found = _death_by_words(lines, any_record=any_record)
    return found or _death_by_status(record, lines, any_record=any_record)


def cause_of_end(status: int | None, tail: Sequence[str], *, any_record: bool) -> Death | None:
    """How an old log ended, None for well. `status` is N, -N or 128 + N; None: nobody knows.

    Scripts exit with 0 after having stopped themselves on NaN, so the last words count even then.
    """
    if status:
        record = ExitRecord(status if status > 0 else None, -status if status < 0 else None, 0.0)
        return diagnose(record, tail, any_record=any_record)
    lines = [line for line in tail[-TAIL_LINES:] if line.strip()]
    found = _death_by_words(lines, any_record=any_record)
    if found is None:
        return None
    if status == 0:
        return found if found.cause == "numeric" else None
    if found.cause in _CERTAIN:
        return found
    return found if _ends_in_traceback(lines[-LAST_WORDS:]) else None


def _ends_in_traceback(lines: Sequence[str]) -> bool:
    """Whether a traceback is among these lines that was not one of a destructor or a thread."""
    before = ("", *lines)
    return any(
        "Traceback (most" in line and not above.startswith(("Exception ignored", "Exception in"))
        for above, line in zip(before, lines, strict=False)
    )


def tells(line: str, cause: str) -> bool:
    """Whether this line of output is one that names this cause."""
    return any(rule.cause == cause and rule.pattern.search(line) for rule in _RULES)


def _death_by_words(lines: Sequence[str], *, any_record: bool) -> Death | None:
    lines_left = [line for line in lines if _HANDLED.search(line) is None]
    for rule in _RULES:
        hits = [line for line in lines_left if rule.pattern.search(line)]
        if hits:
            startup = rule.startup and not any_record
            return _death(rule.cause, rule.hint, (*hits[:1], *lines[-1:]), startup)
    return None


def _death_by_status(record: ExitRecord, lines: Sequence[str], *, any_record: bool) -> Death:
    signal = record.signal
    if signal is None and record.code is not None and 128 < record.code <= 128 + LAST_SIGNAL:
        signal = record.code - 128  # a shell in between reports 128 + N; 255 is sys.exit(-1)
    if signal is not None:
        name = _SIGNALS.get(signal, str(signal))
        cause, hint = _BY_SIGNAL.get(signal, ("killed", "another program or person ended it"))
        return _death(cause, f"ended by SIG{name}: {hint}", tuple(lines[-3:]), startup=False)
    usage = record.code == 2 and not any_record
    cause, hint = ("usage", "the script refused its command line") if usage else ("unknown", "")
    hint = hint or f"exit status {record.code} without a traceback: see worker.log"
    return _death(cause, hint, tuple(lines[-3:]), startup=usage)


def _death(cause: str, hint: str, evidence: tuple[str, ...], startup: bool) -> Death:
    fault = Fault.STARTUP_FAILURE if startup else _FAULTS.get(cause, Fault.CRASH)
    unique = tuple(dict.fromkeys(line.strip()[:300] for line in evidence))
    return Death(cause, fault, hint, unique, startup)


def describe(record: ExitRecord) -> str:
    """How a process ended, in words."""
    if record.error:
        return f"could not be started: {record.error}"
    if record.signal is not None:
        return f"killed by SIG{_SIGNALS.get(record.signal, record.signal)}"
    return f"exited with status {record.code}"
