"""Drives the fake libnvidia-ml.so.1 of tests/fake_nvml, and a GPU monitor that watches it."""

from __future__ import annotations

import contextlib
import os
import queue
import select
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from overnight.adapters.gpu import GpuMonitor
from overnight.core.events import GpuSample, GpuUnavailable

SOURCE = Path(__file__).parent / "fake_nvml"
LIBRARY = "libnvidia-ml.so.1"
PATIENCE_S = 20.0

Report = GpuSample | GpuUnavailable


def _build(into: Path, *, old_driver: bool) -> None:
    """Compile the library into `into`, unless it is there. Skips the test where gcc is missing."""
    if (into / LIBRARY).exists():
        return
    if shutil.which("gcc") is None:
        pytest.skip("gcc is missing: it builds the fake libnvidia-ml.so.1")
    into.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        ["gcc", "-std=gnu11", "-O1", "-fPIC", "-fvisibility=hidden"]
        + (["-DOLD_DRIVER"] if old_driver else [])
        + ["-o", str(into / LIBRARY), *map(str, sorted(SOURCE.glob("*.c")))]
        + ["-shared", f"-Wl,-soname,{LIBRARY}", "-lpthread"],
        check=True,
        timeout=60,
    )


class NvmlStub:
    """One fake driver with its GPUs; clients see a change at their next call.

    Takes pytest's `tmp_path`. The library is compiled beside it, in the base directory of the
    session, so once a session. Keys of the state file are explained in fake_nvml/fake_nvml.h.
    """

    def __init__(self, tmp_path: Path, card: str = "rtx4090", *, old_driver: bool = False) -> None:
        self._libraries = tmp_path.parent / f"fake_nvml_{'old' if old_driver else 'new'}"
        _build(self._libraries, old_driver=old_driver)
        self.state = tmp_path / "nvml.state"
        self.events = tmp_path / "nvml.events"
        self.actions = tmp_path / "nvml.actions"
        lines = (SOURCE / f"{card}.state").read_text().splitlines()
        self._keys = dict(line.split("=", 1) for line in lines if not line.startswith("#"))
        self._write()

    def set(self, keys: dict[str, object] | None = None, /, **more: object) -> None:
        """Set keys, all at once: `set(count=0)`, `set({"gpu0.lost": 15})`. None removes a key."""
        for key, value in {**(keys or {}), **more}.items():
            if value is None:
                self._keys.pop(key, None)
            else:
                self._keys[key] = str(value)
        self._write()

    def set_temperature(self, gpu: int, celsius: float) -> None:
        """Heat or cool one GPU. NVML knows whole degrees only."""
        self.set({f"gpu{gpu}.temp": round(celsius)})

    def add_gpu(self, **keys: object) -> int:
        """Plug in a copy of GPU 0 with another UUID and return its index; `keys` differ."""
        index = int(self._keys["count"])
        prefix = f"gpu{index}."
        copy: dict[str, object] = {
            key.replace("gpu0.", prefix, 1): value
            for key, value in self._keys.items()
            if key.startswith("gpu0.")
        }
        copy[f"{prefix}uuid"] = f"GPU-{index:08x}-0000-0000-0000-000000004090"
        copy[f"{prefix}busid"] = f"00000000:{index + 1:02X}:00.0"
        self.set({**copy, **{f"{prefix}{key}": value for key, value in keys.items()}})
        self.set(count=index + 1)
        return index

    def send_event(self, gpu: int, kind: int, data: int) -> None:
        """Deliver a driver event, e.g. kind 8 (critical Xid) with the Xid number as data."""
        with self.events.open("a") as out:
            out.write(f"{gpu} {kind} {data}\n")

    def env(self) -> dict[str, str]:
        """A whole environment for a subprocess that shall see this driver."""
        inherited = os.environ.get("LD_LIBRARY_PATH")
        return {
            **os.environ,
            "LD_LIBRARY_PATH": ":".join(filter(None, [str(self._libraries), inherited])),
            "FAKE_NVML_STATE": str(self.state),
            "FAKE_NVML_EVENTS": str(self.events),
            "FAKE_NVML_ACTIONS": str(self.actions),
        }

    def _write(self) -> None:
        """Replace the state file, so that no client ever reads half of it."""
        temp = self.state.with_suffix(".new")
        temp.write_text("".join(f"{key}={value}\n" for key, value in self._keys.items()))
        temp.replace(self.state)


class Watch:
    """A monitor, the loop that calls its `check`, and everything it has reported."""

    def __init__(
        self,
        env: dict[str, str],
        *,
        visible: str | None = None,
        clock: Callable[[], float] = time.monotonic,
        deadline_s: float = 15.0,
    ) -> None:
        self._queue: queue.Queue[Report] = queue.Queue()
        self._clock = clock
        self.reports: list[Report] = []
        self.pids: set[int | None] = {None}
        self.monitor = GpuMonitor(
            interval_s=0.05,
            visible=visible,
            report=self._queue.put,
            clock=clock,
            env=env,
            deadline_s=deadline_s,
        )
        self.monitor.start()

    def replaced(self, *before: int | None) -> int:
        """Wait for another child than these and return its process id."""
        self.until(lambda: bool(self.pids - {None, *before}))
        return next(pid for pid in self.pids - {None, *before} if pid is not None)

    def until(self, wanted: Callable[[], bool]) -> None:
        """Turn the loop until something is so; fails when it does not come to be."""
        end = time.monotonic() + PATIENCE_S
        while not wanted():
            assert time.monotonic() < end, f"in vain; last reports: {self.reports[-3:]}"
            self.monitor.check(self._clock())
            self.pids.add(self.monitor.pid)  # of a child that may be gone at the next turn
            with contextlib.suppress(queue.Empty):
                self.reports.append(self._queue.get(timeout=0.05))

    def sample(self, wanted: Callable[[GpuSample], bool] = lambda _: True) -> GpuSample:
        """The next sample of that kind."""
        return self._next(lambda report: isinstance(report, GpuSample) and wanted(report))

    def trouble(self) -> GpuUnavailable:
        """The next report that GPUs cannot be asked."""
        return self._next(lambda report: isinstance(report, GpuUnavailable))

    def _next(self, wanted: Callable[[Report], bool]) -> Report:
        start = len(self.reports)
        self.until(lambda: any(map(wanted, self.reports[start:])))
        return next(filter(wanted, self.reports[start:]))

    @property
    def troubles(self) -> list[str]:
        """All reasons so far."""
        return [report.reason for report in self.reports if isinstance(report, GpuUnavailable)]


def ended(pidfd: int) -> bool:
    """Whether a process ends while we wait."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    with contextlib.closing(os.fdopen(pidfd)):
        return bool(poll.poll(PATIENCE_S * 1000))
