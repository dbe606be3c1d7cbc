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
    # torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a ...
    _rule(
        "cuda-oom",
        r"CUDA out of memory|CUDA error: out of memory|(?:torch\.(?:cuda\.)?)OutOfMemoryError",
        "out of GPU memory: a smaller batch, or PYTORCH_ALLOC_CONF=expandable_segments:True",
    ),
    # FloatingPointError: Loss is infinite or NaN at iteration=412!
    _rule(
        "numeric",
        r"FloatingPointError|[Ll]oss is (?:infinite or )?(?:nan|NaN|inf)\b|returned nan values",
        "the script stopped itself on a non-finite number",
    ),
    # MemoryError / std::bad_alloc
    _rule("host-memory", r"^MemoryError|std::bad_alloc", "the machine's memory was exhausted"),
    # OSError: [Errno 28] No space left on device
    _rule("disk-full", r"No space left on device", "the disk is full: free space, then resume"),
    # RuntimeError: CUDA error: device-side assert triggered
    _rule(
        "cuda-error",
        r"CUDA error: |device-side assert|CUDNN_STATUS|illegal memory access",
        "the GPU reported an error; twice at the same step means the code or the data",
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
        r"^\S+(?: \S+)?: error: |^usage: ",
        "the script refused its command line",
        startup=True,
    ),
    _rule("runtime-error", r"^RuntimeError: ", "see the traceback in worker.log"),
    # Traceback (most recent call last):
    _rule("traceback", r"Traceback \(most recent call last\)", "see the traceback in worker.log"),
)

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
    for rule in _RULES:
        hits = [line for line in lines if rule.pattern.search(line)]
        if hits:
            startup = rule.startup and not any_record
            return _death(rule.cause, rule.hint, (*hits[:1], *lines[-1:]), startup)
    return _death_by_status(record, lines, any_record=any_record)


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
