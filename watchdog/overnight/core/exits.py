"""Why a worker died: exit status, last lines and kernel lines -> a cause, a fault and a hint.

`last_words.py` finds what a log says of its end, `cause_words.py` knows the words; here the status
and the kernel are weighed against them. What speaks nearest to the root wins, and among equals
what came first.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from overnight.core.cause_words import Tier
from overnight.core.causes import CAUSES, Retry
from overnight.core.events import ExitRecord, Fault
from overnight.core.last_words import LastWords, Sign, kernel_signs, last_words

TAIL_LINES = 200
"""How much of the worker's last output is kept for finding a cause."""

LAST_SIGNAL = 64
"""The highest signal number of Linux."""

LAST_WORDS = 40
"""A traceback this near the end of a log is how the run ended."""

PARTING = 8
"""A line of error without a traceback ends a script that exits with 0 only this near the end."""

_SIGNALS = {1: "HUP", 2: "INT", 3: "QUIT", 4: "ILL", 6: "ABRT", 7: "BUS", 8: "FPE", 9: "KILL"}
_SIGNALS |= {11: "SEGV", 13: "PIPE", 15: "TERM", 24: "XCPU", 25: "XFSZ"}

_BY_SIGNAL = {4: "unknown", 6: "unknown", 7: "bus-error", 8: "division-by-zero", 9: "host-oom"}
_BY_SIGNAL |= {11: "segfault", 25: "disk-full"}
"""Every other signal is one that somebody sends. A SIGKILL that nothing explains is most often
the kernel's, for lack of memory; SIGABRT and SIGILL are a program's own doing."""

_BY_CODE = {124: "killed", 126: "permission", 127: "missing-file"}
"""What timeout(1) and a shell report: time is up, cannot be executed, not found."""

_TEARDOWN = frozenset({"nccl", "segfault", "killed", "host-oom", "unknown"})
"""Causes that take nothing from a training that is done: they came while it was cleared away."""

_DRAGGED = {"nccl": 1, "killed": 2, "runtime-error": 3, "traceback": 4}
"""In a launcher's table of dead ranks a signal that the system sent comes before one that the
launcher sent to the others; its own exception says the least."""

_APPLICATION_XIDS = frozenset({13, 31, 43, 45})
"""Xids that the script's own kernels cause (NVIDIA: restart the application, or ignore)."""

_RESET_XIDS = frozenset(
    {46, 48, 54, 61, 62, 64, 74, 79, 95, 110, 119, 120, 136, 140, *range(143, 151), 155, 156, 158}
)
"""Xids for which NVIDIA's catalog of October 2025 asks for a reset, a reboot, or hands."""

_XID = re.compile(r"Xid \([^)]{1,40}\): ?(\d{1,3})\b|[Xx][Ii][Dd] (?:error )?:? ?(\d{1,3})\b")


@dataclass(frozen=True, slots=True)
class Death:
    """A cause of death by its glossary name; `startup` causes are never worth a second try.

    `evidence` holds the lines that say so, the telling one first; `back` counts the non-empty
    lines behind it. `signature` tells equal deaths from different ones. `died` is False for an
    end that is none: the training was done, or nothing says that it ended.
    """

    cause: str
    fault: Fault
    hint: str
    evidence: tuple[str, ...]
    startup: bool
    retry: Retry = Retry.BACK_OFF
    back: int = 0
    died: bool = True

    @property
    def signature(self) -> str:
        """Equal for deaths that look the same; numbers and addresses are ignored."""
        text = "|".join((self.cause, *self.evidence[-1:]))
        return re.sub(r"0x[0-9a-f]+|\d+", "#", text)


def diagnose(
    record: ExitRecord,
    tail: Sequence[str],
    *,
    any_record: bool,
    kernel: Sequence[str] = (),
    oom_kills: int | None = None,
) -> Death:
    """The cause of an end nobody asked for; `completed` where only the clearing away failed.

    `tail` is the worker's last output, oldest first; `any_record` says whether training had begun;
    `kernel` holds the kernel's lines of that time, `oom_kills` how many processes of the worker's
    cgroup its OOM killer ended (the growth of `oom_kill` in memory.events; None: nobody can tell).
    """
    if record.error:
        hint = f"the command cannot be executed: {record.error}"
        return Death("missing-file", Fault.STARTUP_FAILURE, hint, (), True, Retry.NEVER)
    lines = [line for line in tail[-TAIL_LINES:] if line and not line.isspace()]
    said = last_words(lines)
    machine = kernel_signs(kernel, oom_kills=oom_kills or 0)
    if not record.code and record.signal is None:
        return _of_zero(said, lines, any_record=any_record)
    sign = _root(said, machine, signal=_signal(record))
    if said.done and (sign is None or sign.own) and _is_teardown(said):
        return _well("completed", lines)
    if sign is None:
        at_peace = oom_kills == 0
        return _by_status(record, lines, any_record=any_record, at_peace=at_peace)
    return _by_sign(sign, lines, any_record=any_record)


def cause_of_end(
    status: int | None,
    tail: Sequence[str],
    *,
    any_record: bool,
    kernel: Sequence[str] = (),
    oom_kills: int | None = None,
) -> Death:
    """How an old log ended. `status` is N, -N or 128 + N; None: nobody knows.

    Without a status a log that says neither is `unknown`: it may have been cut off.
    """
    if status is not None:
        code, signal = (status, None) if status >= 0 else (None, -status)
        record = ExitRecord(code, signal, 0.0)
        return diagnose(record, tail, any_record=any_record, kernel=kernel, oom_kills=oom_kills)
    lines = [line for line in tail[-TAIL_LINES:] if line and not line.isspace()]
    said = last_words(lines)
    machine = kernel_signs(kernel, oom_kills=oom_kills or 0)
    if machine and machine[0].tier is Tier.MACHINE and not said.done:
        return _by_sign(machine[0], lines, any_record=any_record)
    death = _of_zero(said, lines, any_record=any_record)
    return death if death.died or said.done else _well("unknown", lines)


def _root(said: LastWords, machine: Sequence[Sign], *, signal: int | None) -> Sign | None:
    """What lies deepest: the kernel's word on the card first, its word on memory where it fits."""
    words = _deepest(said.signs)
    hard = next((s for s in machine if s.tier is Tier.MACHINE), None)
    if hard is not None and not (words and words.tier is Tier.MACHINE):
        return hard
    explained = words is not None and words.tier <= Tier.GENERIC and words.cause != "killed"
    if machine and not explained:
        return machine[0]
    own = signal is not None and _BY_SIGNAL.get(signal, "killed") != "unknown"
    if words is None or not own or words.tier <= Tier.GENERIC or words.certain:
        return words
    return None  # the signal says more than noise does


def _deepest(signs: Sequence[Sign]) -> Sign | None:
    """The sign nearest to the root; whatever comes behind a request to end came of that."""
    real = [sign for sign in signs if sign.tier <= Tier.GENERIC]
    first = min(real, key=lambda sign: sign.at, default=None)
    machine = any(sign.tier is Tier.MACHINE for sign in real)
    if first is not None and first.cause == "killed" and not machine:
        return first
    return min(
        signs, key=lambda s: (s.tier, _DRAGGED.get(s.cause, 0) * (not real), s.at), default=None
    )


def _is_teardown(said: LastWords) -> bool:
    """Whether all that came after the training's last words is of no account."""
    after = [sign for sign in said.signs if sign.at > said.done_at]
    return all(s.cause in _TEARDOWN or s.tier >= Tier.DRAGGED or s.leaving for s in after)


def _of_zero(said: LastWords, lines: Sequence[str], *, any_record: bool) -> Death:
    """An end without a bad status: a script that stopped itself says so at the very end."""
    signs = [sign for sign in said.signs if _ends(sign, said, lines)]
    root = _deepest(signs)
    if root is None:
        return _well("completed", lines)
    return _by_sign(root, lines, any_record=any_record)


def _ends(sign: Sign, said: LastWords, lines: Sequence[str]) -> bool:
    """Whether this is how the script ended, though its status does not say so."""
    back = len(lines) - 1 - sign.at
    if sign.leaving or sign.harmless or sign.tier is Tier.FAINT or said.progress_after(sign.at):
        return False
    if said.done and sign.at < said.done_at:
        return sign.cause == "numeric" and sign.stops
    if said.done and sign.cause in _TEARDOWN:
        return False
    return back < (LAST_WORDS if sign.raised else PARTING)


def _by_sign(sign: Sign, lines: Sequence[str], *, any_record: bool) -> Death:
    row = CAUSES[sign.cause]
    startup = row.startup and not any_record
    hint, retry = row.hint, row.retry
    if sign.cause == "gpu-xid":
        hint, retry = _of_xid(sign.text, hint)
    evidence = (sign.text, *sign.more, *(lines[-1:] if sign.own else ()))
    back = len(lines) - 1 - sign.at if sign.own else 0
    return _death(sign.cause, hint, evidence, startup=startup, retry=retry, back=back)


def _of_xid(text: str, hint: str) -> tuple[str, Retry]:
    """What an Xid number asks for."""
    match = _XID.search(text)
    number = int(match[1] or match[2]) if match else None
    if number is None:
        return hint, Retry.AFTER_COOL_DOWN
    if number in _RESET_XIDS:
        return f"Xid {number}: the card needs a reset, which mostly means a reboot", (
            Retry.NEEDS_REBOOT
        )
    if number in _APPLICATION_XIDS:
        return f"Xid {number}: the script's own fault, or a shaky card if it moves about", (
            Retry.ONCE
        )
    return f"Xid {number}: a trouble of the card; let it rest before the next try", (
        Retry.AFTER_COOL_DOWN
    )


def _signal(record: ExitRecord) -> int | None:
    """The signal, also where a shell in between reports 128 + N; 255 is sys.exit(-1)."""
    if record.signal is None and record.code is not None:
        return record.code - 128 if 128 < record.code <= 128 + LAST_SIGNAL else None
    return record.signal


def _by_status(
    record: ExitRecord, lines: Sequence[str], *, any_record: bool, at_peace: bool
) -> Death:
    """What the status alone says; `at_peace`: the kernel is known to have killed nobody."""
    signal, code = _signal(record), record.code
    if signal is not None:
        cause = _BY_SIGNAL.get(signal, "killed")
        if at_peace and cause == "host-oom":
            cause = "killed"
        hint = f"ended by SIG{_SIGNALS.get(signal, signal)}: {CAUSES[cause].hint}"
        return _death(cause, hint, tuple(lines[-3:]), startup=False)
    usage = code == 2 and not any_record
    cause = "usage" if usage else _BY_CODE.get(code or 0, "unknown")
    hint = f"exit status {code} without a traceback: {CAUSES[cause].hint}"
    startup = CAUSES[cause].startup and not any_record
    return _death(cause, hint, tuple(lines[-3:]), startup=startup)


def _well(cause: str, lines: Sequence[str]) -> Death:
    """An end that is no death."""
    row = CAUSES[cause]
    return Death(cause, row.fault, row.hint, tuple(lines[-1:]), False, Retry.NEVER, died=False)


def _death(
    cause: str,
    hint: str,
    evidence: tuple[str, ...],
    *,
    startup: bool,
    retry: Retry | None = None,
    back: int = 0,
) -> Death:
    row = CAUSES[cause]
    fault = Fault.STARTUP_FAILURE if startup else row.fault
    unique = tuple(dict.fromkeys(line.strip()[:300] for line in evidence))
    return Death(cause, fault, hint, unique, startup, retry or row.retry, back)


def describe(record: ExitRecord) -> str:
    """How a process ended, in words."""
    if record.error:
        return f"could not be started: {record.error}"
    if record.signal is not None:
        return f"killed by SIG{_SIGNALS.get(record.signal, record.signal)}"
    return f"exited with status {record.code}"
