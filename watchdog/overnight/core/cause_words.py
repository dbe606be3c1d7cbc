"""The words by which a cause of death is known: one rule a row, its real line above it.

The first rule that fits a line names it. Which line of a log wins is the business of `exits.py`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum


class Tier(IntEnum):
    """How near the root of a death such words usually are; the lower one wins."""

    MACHINE = 0
    """The driver or the kernel says it: whatever the script printed came of it."""
    SPECIFIC = 1
    GENERIC = 2
    """An exception that says nothing of its kind."""
    DRAGGED = 3
    """What the other ranks, the loader's workers and the launcher say when one has died."""
    FAINT = 4
    """Warnings, threads, destructors: believed when nothing else was said."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Words of a cause. `loud`: true even of a line that calls itself information or a warning;
    `raised`: only of the message of an exception."""

    cause: str
    tier: Tier
    pattern: re.Pattern[str]
    loud: bool
    raised: bool


def _rule(
    cause: str, tier: Tier, pattern: str, *, loud: bool = False, raised: bool = False
) -> Rule:
    return Rule(cause, tier, re.compile(pattern), loud, raised)


_M, _S, _G, _D, _F = Tier.MACHINE, Tier.SPECIFIC, Tier.GENERIC, Tier.DRAGGED, Tier.FAINT

RULES = (
    # Xid 45 is the clean-up of a killed process, 43 what an earlier fault left behind.
    _rule("gpu-xid", _F, r"\bXid \([^)]{1,40}\): ?(?:43|45)\b", loud=True),
    # NVRM: Xid (PCI:0000:01:00): 79, pid=1234, GPU has fallen off the bus.
    _rule(
        "gpu-lost",
        _M,
        r"\bXid \([^)]{1,40}\): ?79\b|\b[Xx][Ii][Dd] (?:error )?:? ?79\b|GPU is lost|GPU_IS_LOST"
        r"|GpuIsLost|fallen off the bus"
        r"|Unable to determine the device handle for GPU",
        loud=True,
    ),
    # NVRM: Xid (PCI:0000:41:00): 119, pid=1311, Timeout waiting for RPC from GSP!
    _rule(
        "gpu-xid", _M, r"\bXid \([^)]{1,40}\): ?\d|\b[Xx][Ii][Dd](?: error)? ?:? ?\d+", loud=True
    ),
    # RuntimeError: CUDA error: uncorrectable ECC error encountered
    _rule(
        "gpu-ecc",
        _M,
        r"[Uu]ncorrectable ECC error\b|ECC_?[Uu](?:NCORRECTABLE|ncorrectable)",
        loud=True,
    ),
    # NVRM: API mismatch: the client has the version 550.54.15, but this kernel module has ...
    _rule(
        "driver-mismatch",
        _S,
        r"[Dd]river/library version mismatch|driver version is insufficient|NVRM: API mismatch"
        r"|NVIDIA driver on your system is too old|forward compatibility was attempted"
        r"|does not match DSO version|unsupported toolchain|LibRmVersionMismatch"
        r"|LIB_RM_VERSION_MISMATCH|cudaErrorInsufficientDriver|UnsupportedPtxVersion"
        r"|CUDA_ERROR_SYSTEM_DRIVER_MISMATCH|unsupported display driver / cuda driver comb",
    ),
    # RuntimeError: No CUDA GPUs are available
    _rule(
        "gpu-lost",
        _S,
        r"No CUDA GPUs are available|no CUDA-capable device|Found no NVIDIA driver"
        r"|NVIDIA-SMI has failed|CUDA_ERROR_NO_DEVICE|cudaErrorNoDevice|No devices were found",
    ),
    # RuntimeError: unable to write to file </torch_71_29>: No space left on device (28)
    _rule(
        "bus-error",
        _S,
        r"(?:/dev/shm\b|</torch_|shared memory object).{0,120}No space left"
        r"|No space left.{0,60}/dev/shm|out of shared memory\b(?!, Req)|killed by signal: Bus"
        r"|insufficient shared memory|unable to (?:allocate|open) shared memory|^Bus error\b"
        r"|creating shared memory segment|Fatal Python error: Bus error|: Bus error\b"
        r"|Signal: Bus error|terminated with signal SIGBUS|SIGBUS: 7>|caught signal 7\b"
        r"|\bline \d+: +\d+ Bus error|shm.{0,40}: Bus error|posix_fallocate failed : No space",
    ),
    _rule("bus-error", _D, r"exitcode *: -7\b|(?:code|status)(?: =|:)? ?-7\b|Signal 7 \(SIGBUS\)"),
    # OSError: [Errno 28] No space left on device / [Errno 122] Disk quota exceeded
    _rule(
        "disk-full",
        _S,
        r"[Nn]o space left on|[Dd]isk quota exceeded|Errno (?:28|122)\b|[Dd]isk (?:is )?full\b"
        r"|database or disk is full|PytorchStreamWriter failed writing|File size limit exceeded"
        r"|ENOSPC|not enough (?:free )?(?:disk )?space|unexpected pos \d+ vs \d+",
    ),
    # Task was killed due to the node running low on memory.
    _rule(
        "host-oom",
        _S,
        r"Out of memory: Killed process|[Mm]emory cgroup out of memory|\boom[-_]kill\b"
        r"|OOMKilled(?![\"']?: *false)|OOM[ -][Kk]illed|OOM killer|node running low on memory"
        r"|due to memory pressure|task \d+: Out Of Memory|\bOUT_OF_ME"
        r"|exceeded (?:job )?memory limit"
        r"|cgroup out-of-memory handler|earlyoom|systemd-oomd|ray\.exceptions\.OutOfMemoryError",
        loud=True,
    ),
    # RuntimeError: DataLoader worker (pid 4711) is killed by signal: Killed.
    _rule(
        "host-oom",
        _S,
        r"killed by signal: Killed|^\s*Killed\s*$|worker_processes.* SIGKILL|\bline \d+: +\d+ Kil"
        r"led\b|terminated with signal SIGKILL|SIGKILL: 9>|SIGKILL\(-9\)|task \d+: Killed"
        r"|Killed +(?:python|torchrun|accelerate|deepspeed|\./)|worker was killed by .{0,20}memory"
        r"|[Ww]orker .{0,60}sent SIGKILL! Perhaps out of memory",
    ),
    # traceback : Signal 9 (SIGKILL) received by PID 1322
    _rule(
        "host-oom",
        _D,
        r"exitcode *: -9\b|(?:code|status)(?: =|:)? ?-9\b|Signal 9 \(SIGKILL\)"
        r"|(?:status|[Ee]xit [Cc]ode|exit code|exitcode):? *137\b|signal: killed"
        r"|exit(?:ed)? on signal 9\b",
    ),
    # FloatingPointError: Loss is infinite or NaN at iteration=412!
    # Exception: Current loss scale already at minimum - cannot decrease scale anymore.
    # RuntimeError:  [!] NaN loss with decoder_loss.
    _rule(
        "numeric",
        _S,
        r"FloatingPointError|\b(?:NaN|Nan)\w{0,30}(?:Error|Exception)"
        r"|[Ll]oss\w{0,30} is (?:infinite or )?(?:nan|NaN|inf)\b|returned nan values"
        r"|Minimum loss scale reached|loss scale already at minimum|Loss (?:NaN|nan)\b"
        r"|gradients at all steps are invalid|Invalid loss, terminating|`training_step` is nan"
        r"|probability tensor contains either|Input contains NaN|found invalid values:"
        r"|NanLossDuringTraining|Model diverged with loss|[Nn]on-?finite (?:train\w* )?loss"
        r"|[Ll]oss (?:became|has become|went|turned)\b.{0,20}\b(?:[Nn]a[Nn]|NAN|[Ii]nf|[Nn]on-?f)"
        r"|[Ll]oss (?:has )?(?:diverged|exploded)|[Ll]oss (?:is|was) not finite"
        r"|Nan in summary histogram"
        r"|(?:nan|inf) is not finite|Tensor had (?:NaN|Inf)|(?:NaN|Inf) and (?:NaN|Inf) values"
        r"|NaN loss(?! count| steps|es|:)|[Dd]etected (?:nan|NaN|inf)|invalid value \(nan\)"
        r"|(?:[Ll]oss|[Gg]radients?|grad_?norm|logits|activations|weights|[Oo]utputs?)\b.{0,20}"
        r"(?:contains?|has|have|are|is) (?:all )?(?:NaN|nan|inf|Inf|INF|NAN)s?\b"
        r"|(?:NaN|nan|Inf|inf)s? (?:loss |values? )?(?:was |were )?(?:detected|encountered|found)"
        r"|[Ll]oss scale (?:\w+ ){0,6}(?:minimum|exhausted|too small)",
        loud=True,
    ),
    # ValueError: train/loss = nan at step 418
    _rule(
        "numeric",
        _S,
        r"(?:NaN|[Nn]an|NAN|[Ii]nf)s?\b.{0,40}(?:[Ll]oss|[Gg]rad)|[Cc]ontains? (?:NaN|nan)"
        r"|\b[Ii]nfs? (?:or|and) NaNs?\b|\bNaNs? (?:or|and) [Ii]nfs?\b"
        r"|(?:[Ll]oss|[Gg]rad\w*)\b.{0,40}\b(?:NaN|nan|NAN|[Ii]nf|infinite|[Nn]on-?finite)\b",
        raised=True,
    ),
    # RuntimeError: Expected all tensors to be on the same device, but found at least two devices
    _rule(
        "device-mismatch",
        _S,
        r"(?:tensors|arguments|inputs?).{0,40} on the same device|Input type .* and weight type .*"
        r" should be|should be on the same device|indices should be either on cpu or"
        r"|Expected object of (?:device|backend)\b|must have its parameters and buffers on dev"
        r"|Expected a '?\w+'? device type for generator|found at least two devices"
        r"|can't convert \S+ device type tensor to numpy"
        r"|on conflicting devices"
        r"|[Ii]ncompatible devices for|expected device \w+:?\d? but got"
        r"|Tensor for .{0,30} is on CPU, .{0,20}expected|Cannot copy out of meta"
        r"|Tensor on device \S+ is not on the expected device",
    ),
    # torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a ...
    # RESOURCE_EXHAUSTED: Out of memory while trying to allocate 17179869184 bytes.
    _rule("host-memory", _S, r"OOM when allocating .*(?:device:CPU|by allocator (?:mklcpu|cpu))"),
    _rule(
        "cuda-oom",
        _S,
        r"(?:CUDA|HIP|XPU|MPS backend) out of memory|cuda runtime error \(2\)"
        r"|(?:CUDA|HIP|Cuda) (?:[Ee]rror|failure).{0,40}[Oo]ut of memory|Out of memory error on GPU"
        r"|CUDA ERROR\].*out of memory|CUDA ?Out ?[Oo]f ?Memory|torch\.(?:cuda\.)?OutOfMemoryError"
        r"|^OutOfMemoryError\b|cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY"
        r"|RESOURCE_EXHAUSTED: .{0,40}(?:[Oo]ut of memory|OOM|alloc)|OOM when allocating tensor"
        r"|(?:CUBLAS|CUDNN|CUSOLVER)_STATUS_ALLOC_FAILED|cudaMalloc\w* .{0,20}out of memory"
        r"|[Oo]ut of (?:GPU|device|video|VRAM) memory|GPU (?:is )?out of memory|OutOfDeviceMemory"
        r"|[Oo]ut of memory (?:on|allocating).{0,20}(?:GPU|device)|GPU OOM|^out of memory$"
        r"|[Nn]ot enough (?:GPU|CUDA) memory|CUDA OOM|cupy\S{0,20}OutOfMemoryError"
        r"|[Ff]ailed to allocate (?:CUDA|GPU|VRAM)\w{0,3} (?:buffer|memory)",
    ),
    # numpy.core._exceptions._ArrayMemoryError: Unable to allocate 30.5 GiB for an array
    _rule(
        "host-memory",
        _S,
        r"^(?:\w+\.)*_?(?:Array|Arrow)?MemoryError\b|bad_alloc|DefaultCPUAllocator"
        r"|Cannot allocate memory|Unable to allocate .* for an array|Errno 12\b"
        r"|(?<!socket, )\bmalloc.{0,20} failed"
        r"|failed to allocate .{0,40}(?:host|CPU|pinned)|bad allocation|MemoryError\b"
        r"|\bC error: out of memory",
    ),
    # NCCL watchdog thread terminated with exception: CUDA error: device-side assert triggered
    _rule("cuda-error", _S, r"terminated with exception: CUDA error"),
    # DistBackendError: NCCL error in: ..., remote process exited or there was a network error
    _rule("nccl", _D, r"(?:NCCL|nccl).{0,200}remote process (?:exited|has terminated)"),
    # RuntimeError: NCCL error in: ProcessGroupNCCL.cpp:1970, unhandled system error
    _rule(
        "nccl",
        _G,
        r"Watchdog caught collective operation timeout|NCCL (?:error|communicator was aborted)"
        r"|NCCL watchdog thread terminated|ncclSystemError|ncclInternalError|ncclUnhandledCudaErr"
        r"|ncclRemoteError|ncclInvalid\w+|ProcessGroupNCCL.{0,200}(?:[Tt]imeout|timed out"
        r"|heartbeat|"
        r"exception)|DistBackendError|RendezvousTimeoutError|RendezvousConnectionError"
        r"|DistStoreError|(?:client|client socket has).{0,20} timed out"
        r"|Timed out (?:initializing pro|waiting)"
        r"|NCCL (?:operation|collective).{0,40}(?:timed out|timeout|failed)|NCCL timeout"
        r"|setting up NCCL communicator|Detected mismatch between collectives"
        r"|[Gg]loo.{0,160}(?:[Tt]imed out|[Tt]imeout)|[Tt]imeout.{0,80}join the (?:process )?group"
        r"|(?:NCCL|nccl).{0,120}unhandled system error|\bnccl[A-Z]\w+ failed"
        r"|monitoredBarrier|wait timeout after \d+ms|Ranks? .{0,40}failed to (?:pass"
        r"|reach) .*arrier",
    ),
    _rule(
        "nccl",
        _D,
        r"^(?!.*NCCL INFO).*(?:NCCL|[Gg]loo|TCPStore|c10d|[Ss]ocket|Broken pipe.{0,20}rank).*"
        r"Connection (?:closed|reset|refused)(?: by)?|Broken pipe.*(?:TCPStore|c10d|NCCL)"
        r"|(?:TCPStore|c10d).*(?:Broken pipe|recvValue failed|failed to recv)",
    ),
    # RuntimeError: CUDA error: device-side assert triggered
    _rule("cuda-error", _F, r"driver shutting down|CUDA error: initialization error.*shutdown"),
    _rule(
        "cuda-error",
        _S,
        r"CUDA (?:kernel )?[Ee]rror\b|CUDA ERROR|HIP error|device-side assert|CUDNN_STATUS"
        r"|cuDNN error|illegal memory access|CUBLAS_STATUS|CUSPARSE_STATUS|CUFFT_|CUSOLVER_STATUS"
        r"|\.cuh?:\d+.*Assertion|cudaError[A-Z]|CUDA_ERROR_|unspecified launch failure"
        r"|misaligned address|CUDA driver error|no kernel image is available|CUDA unknown error"
        r"|cuda runtime error|launch timed out|CUDA failure|CUDA initialization|cudaLaunchKernel"
        r"|error from cudaGet"
        r"|cuDNN launch failure|Could not create cudnn|cuda(?:Memcpy|Malloc|Stream)\w*.{0,30}failed"
        r"|Unable to find a valid cuDNN|unable to find an engine to execute",
    ),
    # Segmentation fault (core dumped)
    _rule(
        "segfault",
        _S,
        r"Segmentation fault(?! handler)|Fatal Python error: Segm|[Ss]egfault at "
        r"|SIGSEGV(?: signal|"
        r" received|: 11>|\b.{0,20}received)|terminated with signal SIGSEGV|caught signal 11\b"
        r"|\bsegfault at\b|SIGSEGV\(-11\)|double free or corruption|malloc\w*\(\): "
        r"|free\(\): invalid|corrupted size vs|segfault occurred|munmap_chunk\(\)"
        r"|stack smashing detected|corrupted double-linked list|corrupted unsorted chunks"
        r"|invalid next size",
    ),
    _rule(
        "segfault", _D, r"exitcode *: -11\b|(?:code|status)(?: =|:)? ?-11\b|Signal 11 \(SIGSEGV\)"
    ),
    _rule("segfault", _D, r"(?:status|[Ee]xit [Cc]ode|exitcode):? *139\b|exited on signal 11\b"),
    # slurmstepd: error: *** JOB 11679031 ON gpu-node CANCELLED AT 2024-10-11T13:44:45 ***
    _rule(
        "killed",
        _G,
        r"slurmstepd: error: \*+ JOB .*CANCELLED|DUE TO (?:TIME LIMIT|PREEMPTION|NODE FAILURE)"
        r"|SignalException|SIGTERMException|\b(?:[Rr]eceived|[Cc]aught|[Gg]ot|got signal:?)"
        r" (?:a )?(?:[Ss]ignals?[. :]*)?(?:SIG(?:TERM|INT|HUP|QUIT|USR[12])|15\b|2 \(|termination)"
        r"|^\s*Terminated\b|^KeyboardInterrupt\b|killed by signal: (?:Terminated|Interrupt|Hangup)"
        r"|terminated with signal SIG(?:TERM|INT|HUP)|SIG(?:TERM: 15|INT: 2|HUP: 1)>|^\^C"
        r"|[Tt]erminated by (?:signal )?SIG(?:TERM|INT|HUP|QUIT)\b"
        r"|\bline \d+: +\d+ Terminated\b|[Ii]nterrupted by (?:the )?user|task \d+: Terminated"
        r"|[Pp]reempt(?:ed|ion notice)|[Jj]ob (?:was )?(?:killed|cancell?ed)|^Hangup\b"
        r"|[Kk]eyboard ?"
        r"[Ii]nterrupt|TERM_(?:RUNLIMIT|OWNER)|[Ww]alltime .{0,30}exceeded|stopped by (?:the )?user"
        r"|Evicted|TerminationNotice|DeadlineExceeded|[Ss]pot (?:instance )?(?:interruption"
        r"|termin)",
        loud=True,
    ),
    _rule(
        "killed",
        _D,
        r"STEP \S+ .*CANCELLED|Signal (?:15|2|1) \(SIG|exitcode *: -(?:15|2|1)\b"
        r"|(?:code|status)(?: =|:)? ?-15\b",
    ),
    # ModuleNotFoundError: No module named 'flash_attn'
    _rule(
        "missing-module",
        _S,
        r"ModuleNotFoundError\b|^(?:\w+\.)*ImportError\b|[Nn]o module named |PackageNotFoundError"
        r"|DistributionNotFound|LazyModule.*not installed",
    ),
    # FileNotFoundError: [Errno 2] No such file or directory: 'data/train.bin'
    _rule("permission", _S, r"[Pp]ermission denied|PermissionError\b|[Rr]ead-only file ?system"),
    _rule("permission", _S, r"Errno (?:13|30)\b|Operation not permitted|EACCES|AccessDenied\b"),
    _rule(
        "missing-file",
        _S,
        r"FileNotFoundError\b|[Nn]o such file or directory|: command not found|Errno 2\]"
        r"|does not appear to have a file named|no file named .{1,200} found"
        r"|MissingConfigException|[Cc]ouldn't open file"
        r"|Can't find a valid checkpoint|(?:[Cc]annot|[Cc]ould not|[Ff]ailed to) (?:open|find|read)"
        r" (?:the )?(?:file|checkpoint|dataset|weights|model file|config(?:uration)? file)\b"
        r"|[Ff]ile (?:\S+ )?(?:not found|does(?: not|n't) exist)|ENOENT|executable file not found"
        r"|(?:[Cc]heckpoint|[Dd]ataset|[Pp]ath|[Dd]irectory|[Cc]onfig|[Ww]eights)\b.{0,120}"
        r"(?:does not exist|doesn't exist|not found\b)",
    ),
    _rule(
        "division-by-zero", _S, r"ZeroDivisionError\b|^Floating point exception|division by zero"
    ),
    _rule("division-by-zero", _D, r"exitcode *: -8\b|SIGFPE|signal: floating point exception"),
    # train.c:412: main: Assertion `B <= max_B' failed.
    _rule(
        "assertion",
        _S,
        r"AssertionError\b|: Assertion [`'\"].*failed|GGML_ASSERT|[Aa]ssertion failed|Check failed:"
        r"|^assert(?:ion)? ",
    ),
    # train.py: error: unrecognized arguments: --resume
    _rule(
        "usage",
        _S,
        r"^\S+\.py(?: \S+)?: error: (?!\*)|^\S+(?: \S+)?: error: (?:unrecognized|argument"
        r"|the follow"
        r"ing|ambiguous|invalid choice|one of the)|^Error: (?:No such (?:option|command)|Missing "
        r"(?:option|argument)|Invalid value for)|No such option: ",
    ),
    # RuntimeError: DataLoader worker (pid(s) 4711) exited unexpectedly
    _rule("runtime-error", _D, r"DataLoader worker \(pid.* exited unexpectedly|Pin memory thread "),
    # torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
    _rule(
        "traceback",
        _D,
        r"ChildFailedError|CalledProcessError|ProcessExitedException|ProcessRaisedException"
        r"|RayTaskError|BrokenPipeError|ConnectionResetError|^(?:\w+\.)*(?:EOFError|SystemExit)\b"
        r"|BrokenProcessPool|WorkerCrashedError|RayActorError|ActorDiedError|TuneError\b|BdbQuit"
        r"|TrainingFailedError|ConnectionAbortedError",
    ),
)
