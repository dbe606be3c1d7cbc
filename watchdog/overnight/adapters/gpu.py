"""GPU telemetry: NVML in a child process of its own, and the monitor that keeps the child alive.

A sick GPU makes NVML calls hang (45 s each were seen with Xid 119), so the supervisor never calls
it: it reads lines, and a child that falls silent is replaced. The lines are JSON, {"gpus": [...]} a
poll or {"unavailable": reason, "permanent": bool}; what a card does not say is null, never 0.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from overnight.adapters.child import LineChild, module_argv
from overnight.core.events import GpuSample, GpuUnavailable

TERM_GRACE_S = 1.0  # SIGTERM before SIGKILL: a killed client has frozen an A100 (dcgm-exporter#84)
STUCK_S = 10.0  # a child that is still there by then does not die of SIGKILL either
LONGEST_BACKOFF_S = 60.0  # restarts wait 1, 2, 4 … this long; a longer life starts the row anew
ORPHAN_GRACE_S = 5.0  # a hung call may keep the child so long after its supervisor is gone

LASTING = {  # NVML return codes that stay until somebody does something about the machine
    9: "the NVIDIA driver is not loaded",
    12: "no NVIDIA driver: libnvidia-ml.so.1 is not found",
    18: "driver and library versions differ (an upgrade under a running system?); reboot",
}
NO_ANSWER = (15, 16)  # GPU is lost, GPU requires reset: the card as a whole, not one reading


# --- the supervisor's side -----------------------------------------------------------------------


class GpuMonitor:
    """Runs the NVML child and reports what it says: one GpuSample a GPU a poll.

    `report` is called from several threads and must not block. Trouble is told once, and again only
    after a sample or with another reason; nothing here raises. A replacement waits until the old
    child is gone: a dead driver never collects stuck processes.
    """

    def __init__(
        self,
        *,
        interval_s: float,
        visible: str | None,
        report: Callable[[GpuSample | GpuUnavailable], None],
        clock: Callable[[], float] = time.monotonic,
        env: Mapping[str, str] | None = None,
        deadline_s: float = 15.0,
    ) -> None:
        self._argv = module_argv(
            "overnight.adapters.gpu", f"--interval={interval_s}", f"--visible={visible or ''}"
        )
        self._report = report
        self._clock = clock
        self._env = env
        self._deadline_s = deadline_s
        self._stale = f"telemetry stale: no answer from NVML for {deadline_s:g} s"
        self._lock = threading.Lock()
        self._child: LineChild | None = None
        self._started_at = self._heard_at = 0.0
        self._terminated_at: float | None = None
        self._restart_at: float | None = None
        self._failures = 0
        self._trouble = ""  # the reason that was told last; a sample clears it
        self._ended = False  # closed, or unavailable for good

    @property
    def pid(self) -> int | None:
        """The child's process id, None while there is none."""
        return child.pid if (child := self._child) else None

    def start(self) -> None:
        """Start the child."""
        self._spawn(self._clock())

    def close(self) -> None:
        """Ask the child to end, without waiting for it."""
        with self._lock:
            self._ended = True
            if self._child:
                self._child.close()

    def check(self, at: float) -> None:
        """Replace a child that is silent or gone. To be called about once a second."""
        child = self._child
        if child is None:
            if self._restart_at is not None and at >= self._restart_at:
                self._spawn(at)
        elif self._terminated_at is None:
            if at - self._heard_at >= self._deadline_s and not self._ended:
                self._terminated_at = at
                child.terminate()
                self._tell(at, self._stale)
        elif at - self._terminated_at >= STUCK_S:
            self._tell(at, f"{self._stale}; its process does not die of SIGKILL, reboot")
        elif at - self._terminated_at >= TERM_GRACE_S:
            child.kill()  # no signal handler runs in the child while a call hangs

    def _spawn(self, at: float) -> None:
        with self._lock:  # held so long that `_on_exit` of a stillborn child comes after it
            if self._ended:
                return
            self._started_at = self._heard_at = at
            self._terminated_at = self._restart_at = None
            try:
                self._child = LineChild(
                    self._argv, on_line=self._on_line, on_exit=self._on_exit, env=self._env
                )
            except OSError as error:
                self._schedule_restart(at)
                self._tell(at, f"the GPU telemetry process does not start: {error}")

    def _schedule_restart(self, at: float) -> None:
        if at - self._started_at > LONGEST_BACKOFF_S:
            self._failures = 0
        since = self._terminated_at or at  # the seconds that a hung child took to die count too
        self._restart_at = since + min(2.0**self._failures, LONGEST_BACKOFF_S)
        self._failures += 1

    def _on_line(self, line: bytes) -> None:
        at = self._clock()
        found = parse_line(line, at)
        with self._lock:
            if found is None or self._ended:
                return
            self._heard_at = at
            self._ended = isinstance(found, GpuUnavailable) and found.permanent
        if isinstance(found, GpuUnavailable):
            self._tell(at, found.reason, permanent=found.permanent)
            return
        self._trouble = ""
        for sample in found:
            self._report(sample)

    def _on_exit(self, returncode: int, complaint: str) -> None:
        at = self._clock()
        with self._lock:
            self._child = None
            if self._ended:
                return
            self._schedule_restart(at)
            if not self._trouble and self._terminated_at is None:
                self._tell(at, f"the GPU telemetry process has ended: {complaint or returncode}")

    def _tell(self, at: float, reason: str, *, permanent: bool = False) -> None:
        if reason != self._trouble:
            self._trouble = reason
            self._report(GpuUnavailable(at, reason, permanent))


def parse_line(line: bytes, at: float) -> tuple[GpuSample, ...] | GpuUnavailable | None:
    """What one line of the child says; None for anything that is not one of its lines."""
    try:
        match json.loads(line):
            case {"gpus": list(gpus)}:
                ours = [{**gpu, "at": at, "pids": tuple(gpu["pids"] or ())} for gpu in gpus]
                return tuple(GpuSample(**gpu) for gpu in ours)
            case {"unavailable": str(reason), "permanent": bool(permanent)}:
                return GpuUnavailable(at, reason, permanent)
    except (ValueError, TypeError, KeyError, RecursionError):
        pass
    return None


# --- the child -----------------------------------------------------------------------------------


def is_visible(index: int, uuid: str | None, visible: str) -> bool:
    """Whether CUDA_VISIBLE_DEVICES (indices or beginnings of UUIDs) leaves this GPU to the worker.

    CUDA stops at the first -1. Indices are taken in NVML's order, which is CUDA's only with equal
    cards or CUDA_DEVICE_ORDER=PCI_BUS_ID. A MIG partition names no card: then all are watched. A
    card whose UUID is not known may be the one that is meant.
    """
    entries = [entry.strip() for entry in visible.split(",")]
    shown = entries[: entries.index("-1")] if "-1" in entries else entries
    return not visible.strip() or any(
        entry == str(index)
        or entry.startswith("MIG-")
        or (entry.startswith("GPU-") and (uuid is None or uuid.startswith(entry)))
        for entry in shown
    )


def _say(**value: Any) -> None:
    """One write and no buffer, which could only complain when the supervisor is gone."""
    os.write(1, json.dumps(value).encode() + b"\n")


_say_once = functools.cache(_say)


def _open_cards(nvml: Any, visible: str) -> list[tuple[Any, dict[str, Any]]]:
    """Handle and identity of each visible card: after a loss, an index may mean another card."""
    cards, failed, count = [], False, nvml.nvmlDeviceGetCount()
    for index in range(count):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            uuid, name = nvml.nvmlDeviceGetUUID(handle), nvml.nvmlDeviceGetName(handle)
        except nvml.NVMLError as error:
            if is_visible(index, None, visible):
                failed = True
                _say_once(unavailable=f"GPU {index} does not answer: {error}", permanent=False)
            continue
        if is_visible(index, uuid, visible):
            cards.append((handle, {"index": index, "uuid": uuid, "name": name}))
    if not cards and not failed:
        reason = f"no GPU to watch: the driver has {count}, CUDA_VISIBLE_DEVICES is '{visible}'"
        _say(unavailable=reason, permanent=count > 0)
    return cards


def _read(nvml: Any, handle: Any, identity: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """One card's numbers, and a sentence if the card as a whole does not answer (else "")."""
    trouble = ""

    def ask(*calls: Callable[[], Any]) -> Any:
        """The first answer; None where the card, the driver or the binding knows none of them."""
        nonlocal trouble
        for call in calls:
            try:
                return call()
            except (AttributeError, nvml.NVMLError) as error:
                if getattr(error, "value", 0) in NO_ANSWER:
                    trouble = f"GPU {identity['index']} does not answer: {error}"
        return None

    memory = ask(
        lambda: nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2),
        lambda: nvml.nvmlDeviceGetMemoryInfo(handle),  # counts the driver's own share as used
    )
    return {
        **identity,
        "temperature_c": ask(
            lambda: nvml.nvmlDeviceGetTemperatureV(handle, nvml.NVML_TEMPERATURE_GPU),
            lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),  # deprecated
        ),
        "power_w": ask(lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000),
        "utilization_pct": ask(lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu),
        "memory_used_bytes": memory and memory.used,
        "memory_total_bytes": memory and memory.total,
        "pids": ask(lambda: [p.pid for p in nvml.nvmlDeviceGetComputeRunningProcesses(handle)]),
    }, trouble  # last: asking is what fills it


def _watch(nvml: Any, visible: str, interval_s: float) -> None:
    """Poll until no card answers; an open client would then stand in the way of a GPU reset."""
    cards = _open_cards(nvml, visible)
    lost: list[str] = []
    while len(lost) < len(cards):
        began = time.monotonic()
        readings = [_read(nvml, *card) for card in cards]
        _say(gpus=[reading for reading, _ in readings])
        lost = [trouble for _, trouble in readings if trouble]
        for trouble in lost:
            _say_once(unavailable=trouble, permanent=False)
        time.sleep(max(0.0, interval_s - (time.monotonic() - began)))


def _end_with_parent() -> None:
    """stdin is a pipe that the supervisor never writes to: its end means that it is gone."""
    while os.read(0, 1024):
        pass
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
    time.sleep(ORPHAN_GRACE_S)
    os._exit(1)


def main() -> None:
    """The child: poll until told to end, or until NVML or every card fails."""
    parser = argparse.ArgumentParser(description="Print GPU telemetry, one JSON line a poll.")
    parser.add_argument("--interval", type=float, default=2.0, help="seconds between polls")
    parser.add_argument("--visible", default="", help="as CUDA_VISIBLE_DEVICES; empty: all GPUs")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # NVML is shut down on the way out
    threading.Thread(target=_end_with_parent, daemon=True).start()
    import pynvml

    try:
        pynvml.nvmlInit()
        _watch(pynvml, arguments.visible, arguments.interval)
    except pynvml.NVMLError as error:
        lasting = LASTING.get(error.value)
        _say(unavailable=lasting or f"NVML fails: {error}", permanent=lasting is not None)
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


if __name__ == "__main__":
    main()
