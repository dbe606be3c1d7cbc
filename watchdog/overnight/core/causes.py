"""The causes of death by name: what each means to a person, and what a retry is worth."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from overnight.core.events import Fault


class Retry(StrEnum):
    """What trying again is worth. The names are public (docs/glossary.md)."""

    NEVER = "never"
    ONCE = "once"
    BACK_OFF = "back-off"
    AFTER_COOL_DOWN = "after-cool-down"
    NEEDS_REBOOT = "needs-reboot"


@dataclass(frozen=True, slots=True)
class Cause:
    """What a name means: a hint for a sleepy person, the worth of a retry, the fault it becomes.

    `startup` causes are, before the first record, never worth a second try.
    """

    hint: str
    retry: Retry
    fault: Fault = Fault.CRASH
    startup: bool = False


CAUSES = {
    "cuda-oom": Cause(
        "out of GPU memory: a smaller batch, or PYTORCH_ALLOC_CONF=expandable_segments:True",
        Retry.ONCE,
        Fault.CUDA_OOM,
    ),
    "host-oom": Cause(
        "killed, most likely by the kernel for lack of memory: see dmesg and free -h; fewer"
        " loader workers help",
        Retry.BACK_OFF,
        Fault.HOST_OOM,
    ),
    "host-memory": Cause(
        "the script asked for more memory than the machine could give: load less at once",
        Retry.ONCE,
        Fault.HOST_OOM,
    ),
    "nccl": Cause(
        "ranks lost each other: one of them was slow or dead, its own output tells why",
        Retry.BACK_OFF,
    ),
    "cuda-error": Cause(
        "the GPU reported an error; twice at the same step means the code or the data", Retry.ONCE
    ),
    "driver-mismatch": Cause(
        "driver and libraries are of different versions, often after an update: reboot",
        Retry.NEEDS_REBOOT,
        Fault.GPU_LOST,
    ),
    "gpu-xid": Cause(
        "the driver reported an Xid error: see dmesg for its number", Retry.ONCE, Fault.GPU_XID
    ),
    "gpu-ecc": Cause(
        "the GPU's memory is damaged: see nvidia-smi -q -d ECC, then reset or replace the card",
        Retry.ONCE,
        Fault.GPU_ECC,
    ),
    "gpu-lost": Cause(
        "the driver does not see the GPU: nvidia-smi tells more, often only a reboot helps",
        Retry.NEEDS_REBOOT,
        Fault.GPU_LOST,
    ),
    "segfault": Cause(
        "a native library crashed: see dmesg; try the run again on another version", Retry.ONCE
    ),
    "bus-error": Cause(
        "often a full /dev/shm: give the DataLoader fewer workers or more shm", Retry.ONCE
    ),
    "killed": Cause("a scheduler, another program or a person ended it", Retry.BACK_OFF),
    "disk-full": Cause("the disk is full: free space, then resume", Retry.NEVER, Fault.DISK_FULL),
    "missing-file": Cause(
        "a file is missing: see the path in the last lines", Retry.NEVER, startup=True
    ),
    "permission": Cause(
        "the worker may not use a file or device: see the path", Retry.NEVER, startup=True
    ),
    "missing-module": Cause(
        "a Python module is missing: install it into the training environment",
        Retry.NEVER,
        startup=True,
    ),
    "device-mismatch": Cause(
        "tensors on different devices: the code must move them, a restart will not help",
        Retry.NEVER,
    ),
    "division-by-zero": Cause(
        "the script divided by zero: an empty loader or a zero length is the usual reason",
        Retry.ONCE,
    ),
    "assertion": Cause("the script's own check failed: see the line that asserts", Retry.ONCE),
    "numeric": Cause(
        "the script stopped itself on a non-finite number", Retry.ONCE, Fault.LOSS_NONFINITE
    ),
    "usage": Cause("the script refused its command line", Retry.NEVER, startup=True),
    "runtime-error": Cause("see the traceback in worker.log", Retry.ONCE),
    "traceback": Cause("see the traceback in worker.log", Retry.ONCE),
    "completed": Cause("the training was done", Retry.NEVER),
    "unknown": Cause("nothing says why: see worker.log", Retry.BACK_OFF),
}
