"""Why a worker died: exit status, last lines and the kernel's words -> a cause, a fault and a hint.

The root wins over what it drags behind it. A cause that can stand in the middle of any output (out
of memory, a full disk, a bad number) is looked for in every line; one that is only the type of an
exception counts where a traceback ends, on the rank that raised it first. Lines of errors after
which the training went on, and lines of code inside a traceback, say nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from overnight.core.causes import (
    BY_NAME,
    CAUSES,
    COMPLETED,
    DRAGGED,
    FAULTS,
    FOLLOWS,
    HANDLED,
    PREFIXES,
    PROGRESS,
    RESET_XIDS,
    Cause,
    Retry,
)
from overnight.core.events import ExitRecord, Fault

TAIL_LINES = 200
"""How much of the worker's last output is kept for finding a cause."""

LAST_WORDS = 40
"""A traceback this near the end of a log is how the run ended."""

FINAL_LINES = 5
"""Without a traceback, so many last lines may name a cause that is no more than a few words."""

RECOVERED_LINES = 5
"""So many lines of training behind an error: it was not the end."""

LINE_CHARS = 2000
"""What is read of one line; whoever prints more has not died of its middle."""

LAST_SIGNAL = 64
"""The highest signal number of Linux."""

_SIGNALS = {1: "HUP", 2: "INT", 3: "QUIT", 4: "ILL", 6: "ABRT", 7: "BUS", 8: "FPE", 9: "KILL"}
_SIGNALS |= {11: "SEGV", 13: "PIPE", 15: "TERM", 24: "XCPU", 25: "XFSZ"}

_BY_SIGNAL = {
    7: ("bus-error", BY_NAME["bus-error"].hint),
    8: ("division-by-zero", BY_NAME["division-by-zero"].hint),
    9: ("host-oom", "most often the kernel's OOM killer: see dmesg and free -h"),
    11: ("segfault", BY_NAME["segfault"].hint),
    **dict.fromkeys((4, 6), ("unknown", "the program ended itself: see the last lines")),
}

_XID = re.compile(r"\bXid \(PCI[^)]*\): (\d+)")
_APPLICATION_XIDS = frozenset({13, 31, 43, 45})
"""The code's own doing, or a mere consequence: what the worker says of it tells more."""


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
    retry: Retry = Retry.BACK_OFF

    @property
    def signature(self) -> str:
        """Equal for deaths that look the same; numbers and addresses are ignored."""
        text = "|".join((self.cause, *self.evidence[-1:]))
        return re.sub(r"0x[0-9a-f]+|\d+", "#", text)


@dataclass(frozen=True, slots=True)
class FromKernel:
    """What else is known of a death: lines of the kernel's log, and how many processes of ours its
    OOM killer has ended meanwhile (None: nobody can tell)."""

    kernel: Sequence[str] = ()
    oom_kills: int | None = None


@dataclass(frozen=True, slots=True)
class _Found:
    cause: Cause
    line: str


def diagnose(
    record: ExitRecord,
    tail: Sequence[str],
    *,
    any_record: bool,
    from_kernel: FromKernel | None = None,
) -> Death:
    """The cause of an end nobody asked for. Its cause is "completed" where the training was over.

    `tail` is the worker's last output, oldest first; `any_record` says whether training had begun.
    """
    if record.error:
        return _death("missing-file", f"the command cannot be executed: {record.error}", (), True)
    known = from_kernel or FromKernel()
    lines = _Lines(tail)
    if lines.completed:
        return _completed(lines)
    signal = _signal_of(record)
    found = _by_kernel(known, signal, lines) or lines.root()
    if found is not None:
        return _named(found, lines, any_record=any_record)
    return _by_status(record, signal, lines, known, any_record=any_record)


def cause_of_end(status: int | None, tail: Sequence[str], *, any_record: bool) -> Death | None:
    """How an old log ended; "completed" for well. `status` is N, -N or 128 + N.

    Scripts exit with 0 after having stopped themselves on NaN, so the last words count even then.
    None where there is neither a status nor a word about the end.
    """
    if status:
        record = ExitRecord(status if status > 0 else None, -status if status < 0 else None, 0.0)
        return diagnose(record, tail, any_record=any_record)
    lines = _Lines(tail)
    if lines.completed:
        return _completed(lines)
    found = lines.root()
    final = found is not None and (found.cause.certain or lines.ends_in_traceback)
    if found is not None and final:
        return _named(found, lines, any_record=any_record)
    return _completed(lines) if status == 0 else None


def tells(line: str, cause: str) -> bool:
    """Whether this line of output is one that names this cause."""
    known = BY_NAME.get(cause)
    return known is not None and known.pattern.search(_bare(line)) is not None


def describe(record: ExitRecord) -> str:
    """How a process ended, in words."""
    if record.error:
        return f"could not be started: {record.error}"
    if record.signal is not None:
        return f"killed by SIG{_SIGNALS.get(record.signal, record.signal)}"
    return f"exited with status {record.code}"


# --- words ---------------------------------------------------------------------------------------


class _Lines:
    """The last output of a worker, read for what it says about its end."""

    def __init__(self, tail: Sequence[str]) -> None:
        said = [_bare(line) for line in tail[-TAIL_LINES:]]
        self.all = [line for line in said if line.strip()]
        frames = _frames(self.all)
        self._speaks = [not frame for frame in frames]
        left, progress = [0] * len(self.all), 0
        for index in range(len(self.all) - 1, -1, -1):
            left[index] = progress
            progress += PROGRESS.search(self.all[index]) is not None
        self._recovered = [count >= RECOVERED_LINES for count in left]
        self._exceptions = _exceptions(self.all, frames)
        self._end = self._completed_at()

    @property
    def completed(self) -> bool:
        """Whether the training had reached its end, whatever the process did after that."""
        return self._end is not None

    @property
    def ends_in_traceback(self) -> bool:
        """Whether an exception is among the last lines, not one of a destructor or a thread."""
        return any(index >= len(self.all) - LAST_WORDS for index in self._exceptions)

    def root(self) -> _Found | None:
        """The cause that the words name."""
        first = self._of_kinds(dragged=False) or self._raised(self._own)
        return first or self._of_kinds(dragged=True) or self._raised(self._any[-1:])

    def _counts(self, index: int) -> bool:
        line = self.all[index]
        alive = self._speaks[index] and not self._recovered[index]
        return alive and HANDLED.search(line) is None

    def _of_kinds(self, *, dragged: bool) -> _Found | None:
        """A cause that may stand in any line; those that others drag behind them come last."""
        for cause in CAUSES:
            if not cause.certain or (cause.name in DRAGGED) is not dragged:
                continue
            for index, line in enumerate(self.all):
                if self._counts(index) and cause.pattern.search(line):
                    return _Found(cause, line)
        return self._final_words() if dragged else None

    @property
    def _any(self) -> list[str]:
        """The exceptions that ended something, oldest first."""
        return [self.all[i] for i in self._exceptions if self._counts(i)]

    @property
    def _own(self) -> list[str]:
        """Those that were not raised because of another rank's or process's death."""
        if self._any and tells(self._any[0], "killed"):
            return []  # what else was raised came of that
        roots = [line for line in self._any if FOLLOWS.search(line) is None]
        return [line for line in roots if not any(tells(line, name) for name in DRAGGED)]

    def _raised(self, lines: Sequence[str]) -> _Found | None:
        """The type of the first exception, or of the one right behind it in its chain."""
        for cause in CAUSES if lines else ():
            for line in lines[:2]:
                if not cause.certain and cause.pattern.search(line):
                    return _Found(cause, line)
        return _Found(BY_NAME["traceback"], lines[0]) if lines else None

    def _final_words(self) -> _Found | None:
        """Where no exception was raised: a shell, a C program, or an argument parser speaks."""
        first = max(0, len(self.all) - FINAL_LINES)
        for cause in CAUSES:
            for index in range(first, len(self.all)):
                weak = not cause.certain and self._counts(index)
                if weak and cause.pattern.search(self.all[index]):
                    return _Found(cause, self.all[index])
        return None

    def _completed_at(self) -> int | None:
        """Where the script says that it is done, if nothing went wrong before or behind that."""
        ends = [i for i, line in enumerate(self.all) if COMPLETED.search(line)]
        if not ends or self._recovered[ends[-1]]:
            return None
        end = ends[-1]
        trained = [i for i in range(end) if PROGRESS.search(self.all[i])]
        failed = range(trained[-1] + 1 if trained else 0, end)
        if any(i in self._exceptions or self._is_certain(i) for i in failed):
            return None
        behind = range(end + 1, len(self.all))
        serious = any(self._is_certain(i) and not self._is_dragged(i) for i in behind)
        raised = any(i in self._exceptions and not self._is_dragged(i) for i in behind)
        return None if serious or raised else end

    def _is_certain(self, index: int) -> bool:
        line = self.all[index]
        hit = any(cause.certain and cause.pattern.search(line) for cause in CAUSES)
        return hit and self._counts(index)

    def _is_dragged(self, index: int) -> bool:
        line = self.all[index]
        return any(BY_NAME[name].pattern.search(line) for name in DRAGGED)


def _bare(line: str) -> str:
    """A line without what launchers and loggers put before it; its indentation stays."""
    if len(line) > LINE_CHARS:
        line = f"{line[: LINE_CHARS // 2]} {line[-LINE_CHARS // 2 :]}"
    for _ in range(4):
        found = PREFIXES.match(line)
        if found is None or not found[0]:
            break
        line = line[found.end() :].removeprefix(" ")
    return line


def _frames(lines: Sequence[str]) -> list[bool]:
    """Which lines are frames and code of a traceback: they quote the script, they do not speak.

    Also in a box, as rich draws it, and without indentation, as people paste it.
    """
    found, inside, code = [], False, False
    for line in lines:
        frame = line.startswith('File "')
        quotes = line[:1].isspace() or line[:1] in _BOX or frame or code
        inside = "Traceback (most recent call last)" in line or (inside and quotes)
        found.append(inside)
        code = frame and inside
    return found


_BOX = "│╭╰┃┏┗❱"


def _exceptions(lines: Sequence[str], frames: Sequence[bool]) -> list[int]:
    """Where tracebacks end: the lines with the exception. Those of destructors and threads are
    nobody's death."""
    found, ours = [], False
    for index, line in enumerate(lines):
        if "Traceback (most recent call last)" in line:
            above = lines[index - 1] if index else ""
            ours = not above.startswith(("Exception ignored", "Exception in"))
        elif index and frames[index - 1] and not frames[index] and ours:
            found.append(index)
    return found


# --- status and kernel ---------------------------------------------------------------------------


def _signal_of(record: ExitRecord) -> int | None:
    """The signal that ended it; a shell in between reports 128 + N, 255 is sys.exit(-1)."""
    if record.signal is None and record.code is not None and 128 < record.code <= 128 + LAST_SIGNAL:
        return record.code - 128
    return record.signal


def _by_kernel(known: FromKernel, signal: int | None, lines: _Lines) -> _Found | None:
    """What only the kernel knows: who was killed for memory, which card reported what."""
    for name in ("gpu-lost", "gpu-xid", "host-oom"):
        for line in known.kernel:
            xid = _XID.search(line)
            if xid and int(xid[1]) in _APPLICATION_XIDS and lines.root() is not None:
                continue
            if BY_NAME[name].pattern.search(line):
                return _Found(BY_NAME[name], line)
    if known.oom_kills and signal == 9:
        return _Found(BY_NAME["host-oom"], "")
    return None


def _by_status(
    record: ExitRecord,
    signal: int | None,
    lines: _Lines,
    known: FromKernel,
    *,
    any_record: bool,
) -> Death:
    evidence = tuple(lines.all[-3:])
    if signal is not None:
        name = _SIGNALS.get(signal, str(signal))
        cause, hint = _BY_SIGNAL.get(signal, ("killed", "another program or person ended it"))
        if signal == 9 and known.oom_kills == 0:  # the kernel says that it was not short of memory
            cause, hint = "killed", "another program or person sent it, not the kernel for memory"
        return _death(cause, f"ended by SIG{name}: {hint}", evidence, startup=False)
    if record.code in (126, 127) and not any_record:
        cause = "permission" if record.code == 126 else "missing-file"
        return _death(cause, BY_NAME[cause].hint, evidence, startup=True)
    usage = record.code == 2 and not any_record
    cause, hint = ("usage", BY_NAME["usage"].hint) if usage else ("unknown", "")
    hint = hint or f"exit status {record.code} without a traceback: see worker.log"
    return _death(cause, hint, evidence, startup=usage)


def _named(found: _Found, lines: _Lines, *, any_record: bool) -> Death:
    cause, startup = found.cause, found.cause.startup and not any_record
    evidence = (*([found.line] if found.line else []), *lines.all[-1:])
    xid = _XID.search(found.line)
    retry = Retry.REBOOT if xid and int(xid[1]) in RESET_XIDS else cause.retry
    return _death(cause.name, cause.hint, evidence, startup, retry=retry)


def _completed(lines: _Lines) -> Death:
    return _death("completed", "the training has reached its end", tuple(lines.all[-1:]), False)


def _death(
    cause: str,
    hint: str,
    evidence: tuple[str, ...],
    startup: bool,
    *,
    retry: Retry | None = None,
) -> Death:
    fault = Fault.STARTUP_FAILURE if startup else FAULTS.get(cause, Fault.CRASH)
    unique = tuple(dict.fromkeys(line.strip()[:300] for line in evidence))
    known = BY_NAME.get(cause)
    usual = known.retry if known else Retry.BACK_OFF
    return Death(cause, fault, hint, unique, startup, retry or usual)
