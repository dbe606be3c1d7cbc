"""Why a worker died: real last lines and exit statuses, and the cause that is named."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from overnight.core.causes import CAUSES, Retry
from overnight.core.events import ExitRecord, Fault
from overnight.core.exits import TAIL_LINES, Death, cause_of_end, describe, diagnose

DEATHS = Path(__file__).parents[1] / "data" / "deaths.txt"
TRACEBACK = "Traceback (most recent call last):"


def died(*lines: str, code: int | None = 1, signal: int | None = None, began: bool = True) -> Death:
    """The diagnosis of a death with these last lines."""
    return diagnose(ExitRecord(code, signal, ended_utc=0.0), lines, any_record=began)


@pytest.mark.parametrize(
    ("line", "cause", "fault"),
    [
        pytest.param(
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a",
            "cuda-oom",
            Fault.CUDA_OOM,
            id="cuda-oom",
        ),
        pytest.param(
            "torch.cuda.OutOfMemoryError: CUDA out of memory.", "cuda-oom", Fault.CUDA_OOM, id="old"
        ),
        pytest.param(
            "FloatingPointError: Loss is infinite or NaN at iteration=412!",
            "numeric",
            Fault.LOSS_NONFINITE,
            id="detectron2",
        ),
        pytest.param("Loss is nan, stopping training", "numeric", Fault.LOSS_NONFINITE, id="timm"),
        pytest.param(
            "RuntimeError: Function 'LogBackward0' returned nan values in its 0th output.",
            "numeric",
            Fault.LOSS_NONFINITE,
            id="anomaly-mode",
        ),
        pytest.param(
            "but found invalid values:", "numeric", Fault.LOSS_NONFINITE, id="distribution"
        ),
        pytest.param("Loss became NaN", "numeric", Fault.LOSS_NONFINITE, id="became"),
        pytest.param("Loss became stable", "traceback", Fault.CRASH, id="became-stable"),
        pytest.param(
            "Monitored metric train_loss = nan is not finite. Signaling Trainer to stop.",
            "numeric",
            Fault.LOSS_NONFINITE,
            id="early-stopping",
        ),
        pytest.param(
            "RuntimeError: cuda runtime error (2) : out of memory at THCStorage.cu:58",
            "cuda-oom",
            Fault.CUDA_OOM,
            id="oldest",
        ),
        pytest.param(
            "RuntimeError: MPS backend out of memory (allocated: 9 GB)",
            "cuda-oom",
            Fault.CUDA_OOM,
            id="mps",
        ),
        pytest.param(
            "RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [::1]:1",
            "nccl",
            Fault.CRASH,
            id="gloo",
        ),
        pytest.param(
            "ConnectionResetError: [Errno 104] Connection reset by peer",
            "traceback",
            Fault.CRASH,
            id="http-client",
        ),
        pytest.param("MemoryError", "host-memory", Fault.HOST_OOM, id="memory"),
        pytest.param(
            "OSError: [Errno 28] No space left on device", "disk-full", Fault.DISK_FULL, id="disk"
        ),
        pytest.param(
            "RuntimeError: CUDA error: device-side assert triggered",
            "cuda-error",
            Fault.CRASH,
            id="assert",
        ),
        pytest.param("RuntimeError: shapes do not match", "runtime-error", Fault.CRASH, id="any"),
        pytest.param("KeyError: 'x'", "traceback", Fault.CRASH, id="traceback"),
    ],
)
def test_causes_from_the_last_lines(line: str, cause: str, fault: Fault) -> None:
    """The root cause wins over the traceback around it."""
    found = died(TRACEBACK, '  File "train.py", line 3, in <module>', line)
    assert (found.cause, found.fault) == (cause, fault)
    assert found.hint
    assert found.evidence[-1].startswith(line[:40])
    assert not found.startup


@pytest.mark.parametrize(
    ("line", "code", "cause"),
    [
        ("ModuleNotFoundError: No module named 'flash_attn'", 1, "missing-module"),
        ("ImportError: cannot import name 'x'", 1, "missing-module"),
        ("/usr/bin/python: No module named train", 1, "missing-module"),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'd.bin'", 1, "missing-file"),
        ("python: can't open file '/x/t.py': [Errno 2] No such file", 2, "missing-file"),
        ("PermissionError: [Errno 13] Permission denied: '/data'", 1, "permission"),
        ("train.py: error: unrecognized arguments: --resume", 2, "usage"),
        ("whatever", 2, "usage"),
    ],
)
def test_startup_failures_are_never_worth_a_second_try(line: str, code: int, cause: str) -> None:
    """Before the first record they are final; after it they are crashes."""
    before, after = died(line, code=code, began=False), died(line, code=code)
    assert (before.cause, before.fault, before.startup) == (cause, Fault.STARTUP_FAILURE, True)
    assert (after.fault, after.startup) == (Fault.CRASH, False)


@pytest.mark.parametrize(
    ("code", "signal", "cause", "words"),
    [
        pytest.param(None, 9, "host-oom", "SIGKILL", id="sigkill"),
        pytest.param(137, None, "host-oom", "SIGKILL", id="sigkill-through-a-shell"),
        pytest.param(None, 15, "killed", "SIGTERM", id="sigterm"),
        pytest.param(None, 11, "segfault", "SIGSEGV", id="segfault"),
        pytest.param(139, None, "segfault", "SIGSEGV", id="segfault-through-a-shell"),
        pytest.param(None, 7, "bus-error", "SIGBUS", id="bus"),
        pytest.param(None, 40, "killed", "SIG40", id="a-signal-without-a-name"),
        pytest.param(255, None, "unknown", "exit status 255", id="sys-exit-minus-one"),
        pytest.param(3, None, "unknown", "exit status 3", id="silent-exit"),
    ],
)
def test_causes_from_the_status(
    code: int | None, signal: int | None, cause: str, words: str
) -> None:
    """Without a telling line the status speaks."""
    found = died("step 3 loss 2.0", code=code, signal=signal)
    assert (found.cause, found.fault) == (cause, CAUSES[cause].fault)
    assert words in found.hint
    assert found.evidence == ("step 3 loss 2.0",)


def test_a_command_that_cannot_be_executed() -> None:
    """The system's own words are the reason."""
    record = ExitRecord(127, None, 0.0, error="No such file or directory: pyton")
    found = diagnose(record, [], any_record=False)
    assert found.startup
    assert "pyton" in found.hint
    assert describe(record) == "could not be started: No such file or directory: pyton"


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (ExitRecord(1, None, 0.0), "exited with status 1"),
        (ExitRecord(None, 9, 0.0), "killed by SIGKILL"),
        (ExitRecord(None, 33, 0.0), "killed by SIG33"),
    ],
)
def test_an_end_in_words(record: ExitRecord, words: str) -> None:
    """For the one line on the console."""
    assert describe(record) == words


def test_equal_deaths_have_equal_signatures() -> None:
    """Numbers and addresses differ from death to death, the words do not."""
    one = died(TRACEBACK, "RuntimeError: shape 3x4 at 0x7f3a of step 251")
    two = died(TRACEBACK, "RuntimeError: shape 5x6 at 0xdead of step 380")
    other = died(TRACEBACK, "RuntimeError: bad batch")
    assert one.signature == two.signature
    assert one.signature != other.signature


def test_only_the_tail_counts() -> None:
    """A warning of long ago is no cause of death."""
    old = ["CUDA out of memory, retrying with a smaller batch"]
    assert died(*old, *["step 1 loss 2.0"] * TAIL_LINES, code=3).cause == "unknown"


def test_evidence_is_short_and_said_once() -> None:
    """A line of a megabyte does not fill the alert."""
    found = died("RuntimeError: " + "x" * 10_000)
    assert len(found.evidence) == 1
    assert len(found.evidence[0]) == 300


# --- the kernel's word ----------------------------------------------------------------------------

XID = "NVRM: Xid (PCI:0000:01:00): {}, pid=1234, name=python, and so on"
OOM = "Out of memory: Killed process 1234 (python) total-vm:91234567kB"
CUDA = "RuntimeError: CUDA error: unspecified launch failure"


@pytest.mark.parametrize(
    ("kernel", "line", "cause", "fault"),
    [
        pytest.param(XID.format(79), CUDA, "gpu-lost", Fault.GPU_LOST, id="bus"),
        pytest.param(XID.format(119), CUDA, "gpu-xid", Fault.GPU_XID, id="xid"),
        pytest.param(XID.format(45), CUDA, "cuda-error", Fault.CRASH, id="clean-up"),
        pytest.param(OOM, "KeyError: 'x'", "traceback", Fault.CRASH, id="a-neighbor"),
        pytest.param(
            OOM,
            "RuntimeError: DataLoader worker (pid(s) 1234) exited unexpectedly",
            "host-oom",
            Fault.HOST_OOM,
            id="a-loader-worker",
        ),
        pytest.param(
            "oom-kill:constraint=CONSTRAINT_MEMCG,task=python", "x", "host-oom", Fault.HOST_OOM,
            id="cgroup",
        ),
        pytest.param(
            "python[12]: segfault at 8 ip 00007f error 4 in libc.so.6", "x", "segfault",
            Fault.CRASH, id="segfault",
        ),
        pytest.param("usb 1-1: new device", "see you", "unknown", Fault.CRASH, id="other"),
    ],
)  # fmt: skip
def test_what_the_kernel_says(kernel: str, line: str, cause: str, fault: Fault) -> None:
    """Of the card it is always right; of memory where the script's own words do not say better."""
    lines = ("step 3 loss 2.0", TRACEBACK, '  File "a.py"', line) if ": " in line else (line,)
    found = diagnose(ExitRecord(1, None, 0.0), lines, any_record=True, kernel=(kernel,))
    assert (found.cause, found.fault) == (cause, fault)
    if fault in (Fault.GPU_LOST, Fault.GPU_XID):
        assert found.evidence[0] == kernel
    assert cause_of_end(1, lines, any_record=True, kernel=(kernel,)) == found


def test_the_cgroup_counts_kills_that_no_line_tells() -> None:
    """A container cannot read the kernel's log, but its own memory.events."""
    record = ExitRecord(1, None, 0.0)
    assert diagnose(record, ("bye",), any_record=True, oom_kills=1).cause == "host-oom"
    assert diagnose(record, ("bye",), any_record=True).cause == "unknown"


def test_a_lost_card_tells_even_where_nobody_knows_the_status() -> None:
    """A log that was cut off in the night the card fell off the bus."""
    assert cause_of_end(None, (), any_record=True, kernel=(XID.format(79),)).cause == "gpu-lost"


# --- what a retry is worth ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "retry"),
    [
        (13, Retry.ONCE),
        (31, Retry.ONCE),
        (32, Retry.AFTER_COOL_DOWN),
        (94, Retry.AFTER_COOL_DOWN),
        (48, Retry.NEEDS_REBOOT),
        (74, Retry.NEEDS_REBOOT),
        (79, Retry.NEEDS_REBOOT),
        (119, Retry.NEEDS_REBOOT),
    ],
)
def test_the_number_of_an_xid_says_what_helps(number: int, retry: Retry) -> None:
    """NVIDIA's catalog: restart the application, rest, reset."""
    assert died(XID.format(number)).retry is retry


@pytest.mark.parametrize(
    ("line", "retry"),
    [
        ("ModuleNotFoundError: No module named 'x'", Retry.NEVER),
        ("OSError: [Errno 28] No space left on device", Retry.NEVER),
        ("RuntimeError: shapes do not match", Retry.ONCE),
        ("Watchdog caught collective operation timeout: WorkNCCL", Retry.BACK_OFF),
        ("NVML: Driver/library version mismatch", Retry.NEEDS_REBOOT),
    ],
)
def test_each_cause_has_its_retry(line: str, retry: Retry) -> None:
    """The class goes with the cause."""
    assert died(line).retry is retry


@pytest.mark.parametrize("cause", CAUSES)
def test_each_cause_has_a_hint(cause: str) -> None:
    """A name alone helps nobody at night."""
    assert len(CAUSES[cause].hint) > 15


# --- ends that are none ---------------------------------------------------------------------------


def test_a_training_that_is_done_did_not_die() -> None:
    """Whatever went wrong while it was cleared away."""
    end = died("Training completed.", "terminate called without an active exception", code=134)
    assert (end.cause, end.died) == ("completed", False)


def test_a_good_status_with_bad_last_words_is_a_death() -> None:
    """A script that catches its own exception, prints it and returns."""
    end = died("step 3 loss 2.0", TRACEBACK, '  File "a.py"', "KeyError: 'x'", code=0)
    assert (end.cause, end.died) == ("traceback", True)


def test_the_telling_line_is_found_again() -> None:
    """`back` counts from the end, over lines that say something."""
    end = died(TRACEBACK, "KeyError: 'x'", "", "wandb: synced", "bye")
    assert (end.cause, end.back, end.evidence[0]) == ("traceback", 2, "KeyError: 'x'")


@pytest.mark.parametrize("piece", ["loss ", "[", "a.", "[rank0]: ", "Error: ", "NaN ", "1/", " - "])
def test_hostile_lines_cost_little(piece: str) -> None:
    """Time grows with the text, never with its square."""
    began = time.process_time()
    died(*[piece * 20_000] * TAIL_LINES)
    assert time.process_time() - began < 3.0


BEFORE = tuple(f"step {n} | loss {2.5 - n / 1000:.3f} | lr 3e-4" for n in range(90, 100))


def more_ends() -> list[tuple[str, tuple[str, ...], int | None, bool]]:
    """(cause, lines, status, whether training had begun) of each block of a second collection,
    labelled by somebody else than the rules' author."""
    found = []
    for block in DEATHS.read_text().split("\n=== ")[1:]:
        head, *lines = block.splitlines()
        cause, *options = head.split()
        given = dict(option.split("=") for option in options if "=" in option)
        status = int(given["code"]) if "code" in given else None
        status = -int(given["signal"]) if "signal" in given else status
        fresh = "fresh" in options
        found.append((cause, tuple(lines) if fresh else (*BEFORE, *lines), status, not fresh))
    return found


@pytest.mark.parametrize(
    ("cause", "lines", "status", "began"),
    [pytest.param(*end, id=f"{number}-{end[0]}") for number, end in enumerate(more_ends())],
)
def test_ends_of_real_formats(
    cause: str, lines: tuple[str, ...], status: int | None, began: bool
) -> None:
    """Chains of exceptions, ranks, launchers, shells, other languages; errors that were none."""
    found = cause_of_end(status, lines, any_record=began)
    assert found.cause == cause
    assert found.hint


@pytest.mark.parametrize(
    ("oom_kills", "cause"), [(None, "host-oom"), (0, "killed"), (1, "host-oom")]
)
def test_a_sigkill_is_most_often_the_kernel(oom_kills: int | None, cause: str) -> None:
    """Unless the kernel is known to have been at peace."""
    record = ExitRecord(None, 9, ended_utc=0.0)
    found = diagnose(record, ["step 3 loss 2.0"], any_record=True, oom_kills=oom_kills)
    assert found.cause == cause


def test_a_long_hostile_line_costs_little() -> None:
    """Nobody's log may hold up the watch: of a long line no more is read than of a short one."""

    def cost_s(size: int) -> float:
        tail = ["not found: file " + "a b c (1) ERROR 2024-01-01 " * size] * 20
        began = time.perf_counter()
        died(*tail)
        return time.perf_counter() - began

    cost_s(10)
    assert min(cost_s(2000) for _ in range(3)) < 10 * min(cost_s(50) for _ in range(3)) + 0.05
