"""Causes of death as data: one row a cause, the real lines that it was written for above it.

The order is the order of roots: what stands above drags what stands below behind it (an OOM on one
rank makes NCCL errors on the others), so the first row whose pattern is found wins.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from overnight.core.events import Fault


class Retry(StrEnum):
    """Whether the same command may be started again, as far as the cause of its death tells."""

    NEVER = "never"
    ONCE = "once"
    BACK_OFF = "back-off"
    COOL_DOWN = "after cool-down"
    REBOOT = "needs reboot"


@dataclass(frozen=True, slots=True)
class Cause:
    """One cause: how it is recognised, what a sleepy person should know, whether to try again.

    `startup`: before the first record it is final. `certain`: it speaks for a death even where
    nobody knows how the process ended.
    """

    name: str
    pattern: re.Pattern[str]
    hint: str
    retry: Retry = Retry.BACK_OFF
    startup: bool = False
    certain: bool = False


def _cause(
    name: str,
    pattern: str,
    hint: str,
    retry: Retry = Retry.BACK_OFF,
    *,
    startup: bool = False,
    certain: bool = False,
) -> Cause:
    return Cause(name, re.compile(pattern), hint, retry, startup, certain)


CAUSES = (
    # RuntimeError: unable to write to file </torch_1234_5>: No space left on device (28)
    # RuntimeError: DataLoader worker (pid 12) is killed by signal: Bus error. It is possible that
    _cause(
        "bus-error",
        r"killed by signal: Bus error|Signal 7 \(SIGBUS\)|\b[Bb]us error\b|exitcode\s*: -7\b"
        r"|insufficient shared memory|shared memory\(shm\)|</torch_\d|/dev/shm.*No space left"
        r"|unable to open shared memory object|Fatal Python error: Bus",
        "often a full /dev/shm: give the DataLoader fewer workers or more shm",
        certain=True,
    ),
    # OSError: [Errno 28] No space left on device
    # RuntimeError: [enforce fail at inline_container.cc:595] . unexpected pos 832 vs 726
    _cause(
        "disk-full",
        r"No space left on device|[Dd]isk quota exceeded|[Dd]isk (?:is )?full\b|\bENOSPC\b"
        r"|PytorchStreamWriter failed writing|inline_container\.cc.*unexpected pos"
        r"|file write failed",
        "the disk is full: free space, then resume",
        Retry.NEVER,
        certain=True,
    ),
    # torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a ...
    # RESOURCE_EXHAUSTED: Out of memory while trying to allocate 17179869184 bytes.
    _cause(
        "cuda-oom",
        r"(?:CUDA|HIP|XPU|MPS backend) out of memory|cuda runtime error \(2\)"
        r"|(?:CUDA [Ee]rror|CUDA ERROR\]?.*|CUDA driver error|CUDA failure 2): out of memory"
        r"|(?:torch\.(?:cuda\.)?)OutOfMemoryError|cudaErrorMemoryAllocation"
        r"|CUDA_ERROR_OUT_OF_MEMORY"
        r"|cudaMalloc failed: out of memory|RESOURCE_EXHAUSTED: |OOM when allocating tensor"
        r"|ResourceExhaustedError|CUBLAS_STATUS_ALLOC_FAILED|ran out of (?:GPU )?memory .*(?:GPU"
        r"|gpu)"
        r"|[Nn]ot enough GPU memory",
        "out of GPU memory: a smaller batch, or PYTORCH_ALLOC_CONF=expandable_segments:True",
        certain=True,
    ),
    # FloatingPointError: Loss is infinite or NaN at iteration=412!
    # Exception: Current loss scale already at minimum - cannot decrease scale anymore.
    # RuntimeError:  [!] NaN loss with decoder_loss.
    _cause(
        "numeric",
        r"FloatingPointError|[Ll]oss is (?:infinite or |now )?(?:nan|NaN|NAN|inf|Inf)\b"
        r"|returned nan values|[Mm]inimum loss scale|loss scale (?:already at|reached) minimum"
        r"|(?i:loss[ _]?scale) .{0,40}(?:below|at) (?:the )?minimum|NaN loss\b|Loss (?:NaN|nan)\b"
        r"|gradients at all steps are invalid|Invalid loss, terminating|`training_step` is nan"
        r"|probability tensor contains either|[Ii]nput (?:X )?contains (?:NaN|infinity)"
        r"|found invalid values:|NanLossDuringTraining|Model diverged with loss"
        r"|[Nn]on-?finite (?:loss|grad)|(?:loss|grad\w*|norm)\b.{0,30}\bis non-?finite"
        r"|[Ll]oss (?:became|has become|went|turned)\b.{0,20}\b(?:[Nn]a[Nn]|NAN|[Ii]nf|[Nn]on-?f)"
        r"|[Ll]oss (?:has )?diverged|[Tt]raining (?:has )?diverged|[Ll]oss is not finite"
        r"|Nan in summary histogram|Tensor had (?:NaN|Inf)|invalid value \(nan\) encountered"
        r"|(?:nan|inf) is not finite|(?i:stopp|terminat|abort|exit)\w* .{0,30}\b(?:NaN|nan|NAN)\b"
        r"|\b(?:NaN|nan|NAN)s?\b.{0,40}\b(?i:stopping|terminating|aborting|exiting)\b"
        r"|Error: .*\b(?:NaN|nan)s?\b.{0,12}(?:loss|detected|encountered|in|found|values?)\b"
        r"|Error: .*\b(?:loss|grad\w*|output|weights?)\b.{0,24}\b(?:nan|NaN|NAN|inf)\b",
        "the script stopped itself on a non-finite number",
        Retry.ONCE,
        certain=True,
    ),
    # RuntimeError: Expected all tensors to be on the same device, but found at least two devices
    _cause(
        "device-mismatch",
        r"Expected all tensors to be on the same device|Input type .* and weight type .* should be"
        r"|Expected object of (?:device type|backend) \w+ but got|is on (?:CPU|cpu), but expected"
        r"|can't convert cuda(?::\d)? (?:device type )?tensor to numpy"
        r"|should be either on (?:cpu|CPU) or on the same device|Expected a '\w+' (?:device type"
        r"|generator)"
        r"|(?:but|found) .*tensors? .*on (?:different|two) devices"
        r"|tensors? must be on the same device"
        r"|Expected a '\w+' device type for generator|module must have its parameters .* on device",
        "tensors on different devices: the code must move them, a restart will not help",
        Retry.ONCE,
        certain=True,
    ),
    # RuntimeError: CUDA error: system has unsupported display driver / cuda driver combination
    # Failed to initialize NVML: Driver/library version mismatch
    _cause(
        "driver-mismatch",
        r"[Dd]river/library version mismatch|unsupported display driver / cuda driver combination"
        r"|CUDA driver version is insufficient|NVIDIA driver on your system is too old"
        r"|forward compatibility was attempted|cudaErrorInsufficientDriver|API mismatch: "
        r"|CUDA_ERROR_SYSTEM_DRIVER_MISMATCH|cudaErrorSystemDriverMismatch"
        r"|compiled with an unsupported toolchain",
        "the driver was changed under the running system: nothing starts on the GPU until a reboot",
        Retry.REBOOT,
        certain=True,
    ),
    # NVRM: Xid (PCI:0000:01:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
    _cause(
        "gpu-lost",
        r"GPU is lost|fallen off the bus|No CUDA GPUs are available|no CUDA-capable device"
        r"|Xid \(PCI[^)]*\): 79\b|cudaErrorDeviceUnavailable|cudaErrorNoDevice|CUDA_ERROR_NO_DEVICE"
        r"|[Uu]nable to determine the device handle|No devices were found"
        r"|torch\.cuda\.is_available\(\)"
        r" (?:is|returned|returns) False"
        r"|CUDA unknown error - this may be due to an incorrectly set up",
        "the driver does not see the GPU: nvidia-smi tells more, often only a reboot helps",
        Retry.REBOOT,
        certain=True,
    ),
    # RuntimeError: CUDA error: uncorrectable ECC error encountered
    _cause(
        "gpu-ecc",
        r"uncorrectable ECC error|Uncorrectable ECC|cudaErrorECCUncorrectable",
        "the GPU's memory is damaged: see nvidia-smi -q -d ECC, then reset or replace the card",
        Retry.ONCE,
        certain=True,
    ),
    # NVRM: Xid (PCI:0000:01:00): 31, pid=4242, name=python, Ch 00000008
    _cause(
        "gpu-xid",
        r"\bXid \(PCI|\b(?i:xid)(?: error)?:? \d{2,3}\b",
        "the driver reported a GPU error (Xid): see dmesg; again at the same place: code or card",
        Retry.ONCE,
        certain=True,
    ),
    # Memory cgroup out of memory: Killed process 4711 (python) total-vm:81234kB
    # traceback : Signal 9 (SIGKILL) received by PID 1322
    _cause(
        "host-oom",
        r"oom[-_]?kill|OOM[ -]?[Kk]ill|[Oo]ut of memory: Kill|Memory cgroup out of memory"
        r"|exitcode\s*: -9\b|Signal 9 \(SIGKILL\)|killed by signal: Killed|^\s*Killed\s*$"
        r"|OUT_OF_MEMORY|[Ee]xceeded (?:job )?memory limit|worker_processes.* SIGKILL"
        r"|line \d+: +\d+ Killed |return(?:ed)? (?:code|non-zero exit status) (?:-9|137)\b"
        r"|died with <Signals\.SIGKILL|[Ww]orker .*(?:was )?killed due to memory"
        r"|low on memory.*killed|Task was killed due to the node running low on memory",
        "the machine's memory was exhausted: see dmesg and free -h; fewer loader workers help",
        certain=True,
    ),
    # MemoryError: Unable to allocate 23.4 GiB for an array with shape (1000000, 6276)
    # RuntimeError: [enforce fail at alloc_cpu.cpp:114] . DefaultCPUAllocator: can't allocate
    _cause(
        "host-memory",
        r"^(?:[\w.]+\.)?_?(?:Array)?MemoryError\b|std::bad_alloc|DefaultCPUAllocator: "
        r"|Cannot allocate memory|Unable to allocate .* for an array|bad allocation"
        r"|cudaErrorHostMemory|not enough memory: you tried to allocate|malloc(?:\(\))? failed"
        r"|ArrowMemoryError|JAX_?.*host memory.*exhausted|Out of memory: Cannot allocate",
        "not enough memory in the machine for one allocation: smaller batches, buffers or caches",
        Retry.ONCE,
        certain=True,
    ),
    # RuntimeError: CUDA error: device-side assert triggered
    _cause(
        "cuda-error",
        r"CUDA error: |CUDA ERROR|device-side assert|CUDNN_STATUS|cuDNN error|illegal memory access"
        r"|CUBLAS_STATUS|CUSOLVER_STATUS|CUFFT_|Loss\.cu:\d+.*Assertion|\.cu:\d+: .*[Aa]ssert"
        r"|cudaError[A-Z]|CUDA_ERROR_|CUDA kernel errors might be|unspecified launch failure"
        r"|cuda runtime error \(\d+\)|HIP error: |no kernel image is available|hipError[A-Z]"
        r"|CUDA failure \d+|Triton Error \[CUDA\]",
        "the GPU reported an error; twice at the same step means the code or the data",
        Retry.ONCE,
        certain=True,
    ),
    # [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=96117, ...
    _cause(
        "nccl",
        r"Watchdog caught collective operation timeout|NCCL (?:error|communicator was aborted)"
        r"|nccl(?:System|Internal|Unhandled\w*|Remote|Invalid\w*)Error|ncclUnhandledCudaError"
        r"|ProcessGroup(?:NCCL|Gloo).*(?:[Tt]imeout|[Tt]imed out|heartbeat|exception)"
        r"|DistBackendError"
        r"|DistNetworkError|DistStoreError|NCCL.*(?:[Tt]imeout|[Tt]imed out|unhandled)"
        r"|^(?!.*NCCL INFO).*(?:NCCL|[Gg]loo|TCPStore|c10d).*Connection (?:closed|reset|refused)"
        r"|(?:TCPStore|c10d|[Rr]endezvous).*(?:[Tt]imed? ?out|[Ss]ocket Timeout|failed to connect)"
        r"|Socket Timeout|[Rr]endezvous\w*(?:Timeout|Connection|Closed)Error"
        r"|Some NCCL operations have"
        r"|collective (?:operation )?(?:timed out|mismatch)|heartbeat monitor .*(?:timed out"
        r"|stuck)",
        "ranks lost each other: one of them was slow or dead, its own output tells why",
        certain=True,
    ),
    # Segmentation fault (core dumped)
    _cause(
        "segfault",
        r"[Ss]egmentation fault|Signal 11 \(SIGSEGV\)|exitcode\s*: -11\b"
        r"|died with <Signals\.SIGSEGV"
        r"|killed by signal: Segm|\bsegfault at\b|double free or corruption|corrupted size vs"
        r"|(?:free|malloc\w*|munmap_chunk|realloc)\(\): (?:invalid|corrupt|unaligned|memory corr)"
        r"|SIGSEGV|stack smashing detected|EXC_BAD_ACCESS|Access violation",
        "a native library crashed: see dmesg; try the run again on another version",
        certain=True,
    ),
    # ZeroDivisionError: float division by zero
    _cause(
        "division-by-zero",
        r"ZeroDivisionError|Floating point exception|integer (?:division|modulo).* by zero"
        r"|Signal 8 \(SIGFPE\)|exitcode\s*: -8\b",
        "a division by zero in the code, often an empty batch, dataset or interval",
        Retry.ONCE,
    ),
    # AssertionError: vocab size mismatch
    _cause(
        "assertion",
        r"^(?:[\w.]+\.)?AssertionError\b|Assertion [`'\"(].*failed|: Assertion .* failed"
        r"|^Assertion failed|\bassert(?:ion)? failed\b|Check failed: ",
        "an assertion of the code does not hold: see the line above it",
        Retry.ONCE,
    ),
    # ModuleNotFoundError: No module named 'flash_attn'
    # python: error while loading shared libraries: libcudart.so.12: cannot open shared object file
    _cause(
        "missing-module",
        r"ModuleNotFoundError\b|^(?:[\w.]+\.)?ImportError\b|No module named |cannot import name "
        r"|error while loading shared libraries|PackageNotFoundError|DistributionNotFound"
        r"|cannot open shared object file|requires the following packages|DLL load failed",
        "a Python module or a library is missing: install it into the training environment",
        Retry.NEVER,
        startup=True,
    ),
    # PermissionError: [Errno 13] Permission denied: '/data/out'
    _cause(
        "permission",
        r"PermissionError\b|[Pp]ermission denied|\[Errno (?:1|13|30)\]|Operation not permitted"
        r"|Read-only file system|Access is denied",
        "the worker may not use a file or device",
        Retry.NEVER,
        startup=True,
    ),
    # FileNotFoundError: [Errno 2] No such file or directory: 'data/train.bin'
    _cause(
        "missing-file",
        r"FileNotFoundError\b|No such file or directory|can't open file|\[Errno 2\]"
        r"|command not found|NotADirectoryError\b"
        r"|(?i:\b(?:file|dir\w*|path|folder|checkpoint|dataset)\b.{0,80}\b(?:not found|not exist"
        r"|n't exist))"
        r"|[Cc]ouldn't find (?:a |any |the )?(?:file|dataset|dir|checkpoint)|EntryNotFoundError"
        r"|does not appear to have a file named|[Nn]o (?:valid )?(?:file|checkpoint|image)s? found"
        r"|[Cc]an(?:not|'t) find (?:file|the file|checkpoint|dir)|[Uu]nable to open file"
        r"|cannot stat",
        "a file is missing: see the path in the last lines",
        Retry.NEVER,
        startup=True,
    ),
    # slurmstepd: error: *** JOB 11679031 ON gpu-node CANCELLED AT 2024-10-11T13:44:45 ***
    # KeyboardInterrupt
    _cause(
        "killed",
        r"slurmstepd: error: .*CANCELLED|killed by signal: Terminated|DUE TO (?:TIME LIMIT"
        r"|PREEMPTION|NODE FAILURE)"
        r"|Signal (?:15|1|2) \((?:SIGTERM|SIGHUP|SIGINT)\)|SignalException: "
        r"|[Rr]eceived (?:signal )?"
        r"(?:SIGTERM|SIGINT|SIGHUP|SIGUSR1|15|2)\b|got signal: (?:15|1|2)\b|^\s*(?:Terminated"
        r"|Hangup)\s*$"
        r"|^KeyboardInterrupt\b|^\^C|KeyboardInterrupt$|[Ii]nterrupted by user|[Pp]reempted\b"
        r"|exitcode\s*: -15\b|caught SIG(?:TERM|INT|HUP)|[Jj]ob (?:was )?(?:cancell?ed|preempted)"
        r"|[Ss]pot instance .*(?:interrupt|terminat)|time limit (?:reached|exceeded)",
        "a scheduler, another program or a person ended it",
        certain=True,
    ),
    # train.py: error: unrecognized arguments: --resume
    _cause(
        "usage",
        r"^\S+(?: \S+)?: error: (?:unrec|argument|the following|invalid|expected|ambig|one of"
        r"|too few)"
        r"|^usage: |^Error: No such (?:option|command)|^Error: Missing (?:option|argument)",
        "the script refused its command line",
        Retry.NEVER,
        startup=True,
    ),
    # RuntimeError: The size of tensor a (32) must match the size of tensor b (16)
    _cause(
        "runtime-error",
        r"^(?:[\w.]+\.)?RuntimeError\b|what\(\): ",
        "see the traceback in worker.log",
        Retry.ONCE,
    ),
    # Traceback (most recent call last):
    _cause(
        "traceback",
        r"Traceback \(most recent call last\)|^(?:[\w.]+\.)?\w*(?:Error|Exception)(?:: |$)",
        "see the traceback in worker.log",
        Retry.ONCE,
    ),
)

BY_NAME = {cause.name: cause for cause in CAUSES}

FAULTS = {
    "numeric": Fault.LOSS_NONFINITE,
    "cuda-oom": Fault.CUDA_OOM,
    "host-oom": Fault.HOST_OOM,
    "host-memory": Fault.HOST_OOM,
    "disk-full": Fault.DISK_FULL,
    "gpu-lost": Fault.GPU_LOST,
    "driver-mismatch": Fault.GPU_LOST,
    "gpu-xid": Fault.GPU_XID,
    "gpu-ecc": Fault.GPU_ECC,
}
"""The fault of a cause; of every other it is a crash."""

RESET_XIDS = frozenset(
    {46, 48, 61, 62, 64, 74, 95, 110, 119, 120, 136, 140, 143, *range(144, 151), 155, 156, 158}
)
"""Xids after which the card works again only once it is reset (NVIDIA's catalogue of Oct 2025)."""

HANDLED = re.compile(
    r"using CPU|fall(?:ing|s)? ?back|retry|will be skipped|[Ii]gnor(?:ing|ed)|[Ss]kipp(?:ed|ing)"
    r"|\bcontinuing\b|[Rr]educ(?:ed|ing) (?:the )?batch|\brecovered\b|(?:User|Future)Warning"
    r"|DeprecationWarning|^Exception ignored|NCCL INFO|initialization options"
    r"|[Ss]tarting (?:from )?scratch"
    r"|if you (?:run|see|get|encounter)|[Ee]mpty(?:ing)? cache|[Tt]raining from scratch"
)
"""Words of a script that goes on: the error of such a line has been dealt with."""

FOLLOWS = re.compile(
    r"ChildFailedError|CalledProcessError|^SystemExit|Process(?:Raised|Exited)Exception"
    r"|BrokenPipeError"
    r"|^EOFError|ConnectionResetError|DataLoader worker .*(?:exited unexp|: Aborted)"
    r"|^queue\.(?:Empty|Full)"
    r"|^(?:[\w.]+\.)?(?:RayTaskError|RayActorError|WorkerCrashedError|TrainingFailedError)"
)
"""Exceptions of those who only saw another one die."""

DRAGGED = frozenset({"nccl", "segfault", "killed"})
"""Causes that another rank's exception drags behind it: that one comes first."""

PROGRESS = re.compile(r"(?i)\b(?:loss|step|iter(?:ation)?s?|epoch)\b[^A-Za-z]{0,4}\d")
"""A line of a training that goes on."""

PREFIXES = re.compile(
    r"(?:\x1b\[[0-9;]*[A-Za-z]|\[(?:rank|default)?\d+\]:?|\[\d+,\d+\]<std(?:err|out)>:"
    r"|\(\w+ pid=\d+[^)]*\)"
    r"|\d{1,3}: (?=\S)|[\w.-]{1,40} +\| |\[?\d{4}-\d\d-\d\d[T ][\d:.,]+(?:Z"
    r"|[+-]\d\d:?\d\d)?\]?[ ,:-]*"
    r"|\[?(?:ERROR|CRITICAL|FATAL|INFO|DEBUG|stderr|stdout)\]?[ :|-]+(?=\S)"
    r"|[WEIF]\d{4} [\d:.]+ +\d+ [\w./]+:?\d*\])"
)
"""What launchers and loggers put before a line."""

COMPLETED = re.compile(
    r"(?i:\btrain(?:ing)?\b.{0,24}\b(?:complet|finish|done|ended successfully|is over)\w*)"
    r"|(?i:\b(?:complet|finish)ed\b.{0,24}\btrain(?:ing)?\b)|'train_runtime'|\btrain_runtime\b"
    r"|`Trainer\.fit` stopped: `max_|(?i:^\W*(?:all )?done[.!]?\s*$)|(?i:\brun (?:completed"
    r"|finished)\b)"
    r"|(?i:\bsaved? (?:the )?final (?:model|checkpoint|weights)\b)|(?i:^\s*\d+ epochs completed in)"
    r"|(?i:reached max(?:imum)?[_ ](?:steps|epochs|iterations))|(?i:optimization finished)"
    r"|(?i:\bsuccessfully (?:completed|finished|trained)\b)|(?i:exiting after \d+ iterations)"
)
"""Last words of a training that has reached its end."""
