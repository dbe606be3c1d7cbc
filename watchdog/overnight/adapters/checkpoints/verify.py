"""Says whether a checkpoint can be resumed from: `python -m overnight.adapters.checkpoints.verify`.

Structure, checksums and the finiteness of every floating-point number are checked without torch,
without numpy and without unpickling. Run as a child: it makes itself the least important process
of the machine, bounds its memory, prints one line of JSON and exits 0 whenever it could answer.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import resource
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from overnight.adapters.checkpoints.directory import INDEX_SUFFIX, check_directory, check_index
from overnight.adapters.checkpoints.report import (
    DamagedError,
    NotUnderstoodError,
    Report,
    Tally,
    counted,
    human_bytes,
    printable,
)
from overnight.adapters.checkpoints.sniff import check_file
from overnight.core.events import Health

EXTRA_MEMORY_BYTES = 160 << 20
"""Address space the child may add to what the bare interpreter has mapped. Reading in blocks
needs about 10 MiB of it; a structure that needs more than all of it is called unverified."""

_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}
_IOPRIO_WHO_PROCESS = 1
_IOPRIO_IDLE = 3 << 13


def verify(path: Path) -> Report:
    """Check a file or a directory. Never raises: what cannot be told is UNVERIFIED, with why."""
    tally = Tally()
    health, reason = _judge(path, tally)
    return Report(
        path=str(path),
        health=health,
        reason=printable(reason),
        step=tally.step,
        format=tally.format,
        tensors=tally.tensors,
        bytes_scanned=tally.bytes_scanned,
        partial=health is Health.VERIFIED and tally.partial,
    )


def _judge(path: Path, tally: Tally) -> tuple[Health, str]:
    try:
        _check(path, tally)
    except DamagedError as error:
        return Health.CORRUPT, str(error)
    except Exception as error:  # noqa: BLE001 - a file can hold anything; the answer is "unknown"
        return Health.UNVERIFIED, _excuse(error, path)
    return Health.VERIFIED, _praise(tally)


def _excuse(error: Exception, path: Path) -> str:
    """Why nothing can be said, as one sentence."""
    match error:
        case NotUnderstoodError():
            return str(error)
        case FileNotFoundError():
            return f"{Path(error.filename or path).name} is not there (any more)"
        case OSError():
            return f"{path.name} cannot be read: {error.strerror or error}"
        case MemoryError():
            return f"{path.name} takes more memory to check than the verifier may use"
    return f"{path.name} cannot be checked ({type(error).__name__}: {str(error)[:200]})"


def _check(path: Path, tally: Tally) -> None:
    if path.is_dir():
        check_directory(path, tally)
    elif path.name.endswith(INDEX_SUFFIX):
        check_index(path, tally)
    else:
        check_file(path, path.name, tally)


def _praise(tally: Tally) -> str:
    scanned = human_bytes(tally.bytes_scanned)
    amount = f"{counted(tally.tensors, 'tensor')}, {scanned} of floating-point data"
    partial = ["weights only: no optimizer state"] if tally.partial else []
    return "; ".join([f"{amount}, all finite", *partial, *tally.notes])


def _step_back() -> None:
    """Least CPU and disk priority and a memory bound: the training goes first, always."""
    with contextlib.suppress(OSError):
        os.nice(19)
    number = _IOPRIO_SET.get(platform.machine())
    if number is not None:
        with contextlib.suppress(OSError, AttributeError):
            syscall: Callable[..., int] = ctypes.CDLL(None, use_errno=True).syscall
            syscall(number, _IOPRIO_WHO_PROCESS, 0, _IOPRIO_IDLE)
    with contextlib.suppress(OSError, ValueError):
        mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (mapped + EXTRA_MEMORY_BYTES, hard))


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry of the child: one path, one line of JSON."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m overnight.adapters.checkpoints.verify PATH\n")
        return 2
    _step_back()
    sys.stdout.write(verify(Path(arguments[0])).as_json() + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
