"""The GPU monitor against the real binding, a real child process and a fake driver library."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nvml_stub import LIBRARY, PATIENCE_S, NvmlStub, Watch, ended
from overnight.adapters.child import module_argv
from overnight.adapters.gpu import is_visible, parse_line
from overnight.core.events import GpuSample


@pytest.fixture
def nvml(tmp_path: Path) -> NvmlStub:
    """One RTX 4090 at 54 °C."""
    return NvmlStub(tmp_path)


@pytest.fixture
def watch() -> Iterator[Callable[..., Watch]]:
    """Starts monitors and closes them."""
    started: list[Watch] = []

    def start(env: dict[str, str], **options: Any) -> Watch:
        started.append(Watch(env, **options))
        return started[-1]

    yield start
    for each in started:
        each.monitor.close()


def start_child(nvml: NvmlStub) -> subprocess.Popen[bytes]:
    """The child alone, after its first line."""
    child = subprocess.Popen(
        module_argv("overnight.adapters.gpu", "--interval=0.05"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=nvml.env(),
    )
    assert child.stdout.readline()
    return child


# --- what a sample says --------------------------------------------------------------------------


def test_a_sample_carries_everything_the_card_says(nvml, watch):
    """Units are converted, processes are listed, the driver's own memory does not count as used."""
    nvml.set({"gpu0.procs": "4711:1073741824,4712:5"})
    before = time.monotonic()
    sample = watch(nvml.env()).sample()
    assert before < sample.at <= time.monotonic()
    assert sample == GpuSample(
        at=sample.at,
        index=0,
        uuid="GPU-00000000-0000-0000-0000-000000004090",
        name="NVIDIA GeForce RTX 4090",
        temperature_c=54,
        power_w=312.0,
        utilization_pct=98,
        memory_used_bytes=19327352832,
        memory_total_bytes=25757220864,
        pids=(4711, 4712),
    )


def test_a_ramp_is_seen_degree_by_degree(nvml, watch):
    """Every change of temperature reaches the supervisor at the next poll."""
    seen = watch(nvml.env())
    for celsius in range(60, 96, 5):
        nvml.set_temperature(0, celsius)
        assert seen.sample(lambda sample, want=celsius: sample.temperature_c == want)


@pytest.mark.parametrize(
    ("key", "field"),
    [
        ("temp", "temperature_c"),
        ("power_mw", "power_w"),
        ("util", "utilization_pct"),
        ("mem_used", "memory_used_bytes"),
        ("mem_total", "memory_total_bytes"),
    ],
)
@pytest.mark.parametrize("answer", [None, "!999"], ids=["not-supported", "unknown-error"])
def test_what_a_card_does_not_say_is_none(nvml, watch, key, field, answer):
    """Neither NotSupported nor a failing getter becomes a zero, and the other values stay."""
    nvml.set({f"gpu0.{key}": answer})
    sample = watch(nvml.env()).sample()
    assert getattr(sample, field) is None
    assert sample.name == "NVIDIA GeForce RTX 4090"
    assert sample.temperature_c == (None if key == "temp" else 54)


def test_an_old_driver_is_asked_in_the_old_way(tmp_path, watch):
    """Without nvmlDeviceGetTemperatureV the deprecated call serves, here for a Blackwell card."""
    sample = watch(NvmlStub(tmp_path, "rtx5090", old_driver=True).env()).sample()
    assert (sample.name, sample.temperature_c) == ("NVIDIA GeForce RTX 5090", 61)


def test_memory_falls_back_to_the_first_version(nvml, watch):
    """A driver without the second version of the memory call still tells used and total."""
    nvml.set({"err.nvmlDeviceGetMemoryInfo_v2": 13, "gpu0.mem_reserved": 1000})
    sample = watch(nvml.env()).sample()
    assert sample.memory_used_bytes == 19327352832 + 1000
    assert sample.memory_total_bytes == 25757220864


# --- which cards ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("visible", "indices"),
    [
        (None, {0, 1}),
        ("", {0, 1}),
        ("1", {1}),
        ("GPU-00000001", {1}),
        ("GPU-00000000-0000-0000-0000-000000004090", {0}),
        ("1, 0", {0, 1}),
        ("0,-1,1", {0}),
    ],
)
def test_only_visible_cards_are_reported(nvml, watch, visible, indices):
    """CUDA_VISIBLE_DEVICES by index or beginning of UUID; empty means all."""
    nvml.add_gpu()
    seen = watch(nvml.env(), visible=visible)
    seen.until(lambda: len(seen.reports) >= 6)
    assert {report.index for report in seen.reports} == indices


@pytest.mark.parametrize(
    ("index", "uuid", "visible", "answer"),
    [
        (10, "GPU-1", "1", False),
        (0, "GPU-1", "MIG-5/1/0", True),
        (0, "GPU-1", "NoDevFiles", False),
        (0, "GPU-1", "GPU-2", False),
        (1, None, "GPU-2", True),
        (1, None, "0", False),
    ],
)
def test_visibility_of_odd_entries(index, uuid, visible, answer):
    """Indices match as a whole, MIG watches all, an unreadable UUID may be the one meant."""
    assert is_visible(index, uuid, visible) is answer


def test_no_visible_card_is_final(nvml, watch):
    """A worker that was told to use no GPU needs no telemetry: one report, no second child."""
    seen = watch(nvml.env(), visible="-1")
    trouble = seen.trouble()
    assert trouble.permanent
    assert "CUDA_VISIBLE_DEVICES is '-1'" in trouble.reason


# --- drivers that do not answer ------------------------------------------------------------------


def test_no_library_is_one_permanent_report(tmp_path, watch):
    """A machine without a driver is told once, and the child is not started again."""
    (tmp_path / LIBRARY).write_bytes(b"")  # also hides the true one of a machine that has it
    seen = watch({**os.environ, "LD_LIBRARY_PATH": str(tmp_path)})
    trouble = seen.trouble()
    assert trouble.permanent
    assert "libnvidia-ml.so.1" in trouble.reason
    seen.until(lambda: seen.monitor.pid is None)
    seen.monitor.check(time.monotonic() + 1000)
    assert seen.monitor.pid is None
    assert len(seen.reports) == 1


@pytest.mark.parametrize(
    ("code", "words"),
    [(18, "driver and library versions differ"), (9, "driver is not loaded")],
    ids=["version-mismatch", "not-loaded"],
)
def test_a_driver_that_cannot_come_back_by_itself_is_permanent(nvml, watch, code, words):
    """An upgrade under a running system needs a reboot, not another attempt."""
    nvml.set(init_error=code)
    trouble = watch(nvml.env()).trouble()
    assert trouble.permanent
    assert words in trouble.reason


def test_an_unknown_failure_is_told_once_and_retried(nvml, watch):
    """NVML may recover: later children try again, silently, until samples come."""
    nvml.set(init_error=999)
    seen = watch(nvml.env())
    first = seen.monitor.pid
    assert not seen.trouble().permanent
    seen.replaced(first)
    nvml.set(init_error=0)
    assert seen.sample()
    assert seen.troubles == ["NVML fails: Unknown Error"]


def test_a_lost_card_is_told_and_the_other_goes_on(nvml, watch):
    """The lost card has no values, which is reported once; its neighbour is still measured."""
    nvml.add_gpu()
    seen = watch(nvml.env())
    seen.sample()
    nvml.set({"gpu1.lost": 15})
    trouble = seen.trouble()
    assert trouble.reason == "GPU 1 does not answer: GPU is lost"
    assert not trouble.permanent
    lost = seen.sample(lambda sample: sample.index == 1)
    assert (lost.temperature_c, lost.power_w, lost.pids) == (None, None, ())
    assert seen.sample(lambda sample: sample.index == 0).temperature_c == 54
    assert len(seen.troubles) == 1


def test_when_every_card_is_lost_the_driver_is_opened_again(nvml, watch):
    """One report, then new children until the card is back."""
    seen = watch(nvml.env())
    seen.sample()
    first = seen.monitor.pid
    nvml.set({"gpu0.lost": 15})
    assert "GPU is lost" in seen.trouble().reason
    seen.replaced(first)
    nvml.set({"gpu0.lost": None})
    assert seen.sample(lambda sample: sample.temperature_c == 54)
    assert len(seen.troubles) == 1


# --- children that hang, die or babble -----------------------------------------------------------


@pytest.mark.slow
def test_a_hung_call_is_told_once_and_the_child_replaced(nvml, watch):
    """Stale after the deadline; while calls go on hanging, nothing new is said; then data again."""
    seen = watch(nvml.env(), deadline_s=1.0)
    seen.sample()
    first = seen.monitor.pid
    last_sample_at = seen.reports[-1].at
    nvml.set({"delay_ms.nvmlDeviceGetPowerUsage": 600_000})
    trouble = seen.trouble()
    assert trouble.reason == "telemetry stale: no answer from NVML for 1 s"
    assert not trouble.permanent
    assert trouble.at - last_sample_at < 2.0
    second = seen.replaced(first)
    seen.replaced(first, second)
    nvml.set({"delay_ms.nvmlDeviceGetPowerUsage": None})
    assert seen.sample().temperature_c == 54
    assert len(seen.troubles) == 1
    assert not Path(f"/proc/{first}").exists()


def test_a_silent_child_is_first_asked_to_end(nvml, watch):
    """One SIGTERM is enough for a child that does not hang inside the driver."""
    seen = watch(nvml.env())
    seen.sample()
    pidfd = os.pidfd_open(seen.monitor.pid)
    seen.monitor.check(time.monotonic() + 100)
    assert ended(pidfd)


def test_restarts_back_off(nvml, watch):
    """1, 2, 4 … 60 s between children that die young; a long life starts the row anew."""
    nvml.set({"delay_ms.nvmlInitWithFlags": 600_000})
    now = [0.0]
    seen = watch(nvml.env(), clock=lambda: now[0], deadline_s=1000)
    for lived_s, wait_s in [(0, wait) for wait in (1, 2, 4, 8, 16, 32, 60, 60)] + [(61, 1)]:
        now[0] += lived_s
        os.kill(seen.monitor.pid, signal.SIGKILL)
        seen.until(lambda: seen.monitor.pid is None)
        seen.monitor.check(now[0] + wait_s - 0.1)
        assert seen.monitor.pid is None
        now[0] += wait_s
        seen.monitor.check(now[0])
        assert seen.monitor.pid is not None
    assert seen.troubles == ["the GPU telemetry process has ended: -9"]


def test_a_child_that_cannot_be_killed_is_left_alone(nvml, watch, tmp_path):
    """As in a dead driver: told after ten seconds, and no second child joins the first."""
    holder = tmp_path / "holder"  # keeps the output open, so that the child does not seem gone
    (tmp_path / "sitecustomize.py").write_text(
        "import pathlib, subprocess\n"
        "process = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        f"pathlib.Path({str(holder)!r}).write_text(str(process.pid))\n"
    )
    seen = watch({**nvml.env(), "PYTHONPATH": str(tmp_path)})
    try:
        seen.sample()
        first, silent = seen.monitor.pid, time.monotonic() + 100
        for later_s in (0, 1, 5, 10, 11, 1000):
            seen.monitor.check(silent + later_s)
        assert seen.monitor.pid == first
    finally:
        os.kill(int(holder.read_text()), signal.SIGKILL)
    assert "telemetry stale" in seen.trouble().reason
    assert "does not die of SIGKILL" in seen.trouble().reason
    seen.until(lambda: seen.monitor.pid != first)


def test_a_child_that_cannot_be_started_is_a_report(nvml, watch, monkeypatch):
    """No process to be had means a later attempt, never an exception."""
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    seen = watch(nvml.env())
    assert "does not start" in seen.trouble().reason
    assert seen.monitor.pid is None


def test_junk_on_stdout_is_ignored(nvml, watch, tmp_path):
    """Something that prints in the child's interpreter does not disturb the samples."""
    (tmp_path / "sitecustomize.py").write_text("print('hello\\n[1, 2]\\n{}')\n")
    seen = watch({**nvml.env(), "PYTHONPATH": str(tmp_path)})
    assert seen.sample().temperature_c == 54
    assert not seen.troubles


@pytest.mark.parametrize(
    "line",
    [
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"gpus": 5}',
        b'{"gpus": [5]}',
        b'{"gpus": [{"index": 0}]}',
        b'{"gpus": [{"index": 0, "uuid": "u", "name": "n", "pids": [], "colour": 1}]}',
        b'{"unavailable": "no"}',
        b'{"unavailable": 5, "permanent": true}',
    ],
)
def test_a_line_that_is_not_ours_says_nothing(line):
    """Torn, foreign and half-right lines are no reports."""
    assert parse_line(line, 0.0) is None


# --- the child's own end -------------------------------------------------------------------------


def test_closing_the_monitor_ends_the_child(nvml, watch):
    """No signal is needed, nothing is reported any more, and nobody starts another."""
    seen = watch(nvml.env())
    seen.sample()
    pidfd = os.pidfd_open(seen.monitor.pid)
    seen.monitor.close()
    assert ended(pidfd)
    seen.until(lambda: seen.monitor.pid is None)
    seen.monitor.check(time.monotonic() + 1000)
    assert seen.monitor.pid is None
    assert not seen.troubles


def test_sigterm_ends_the_child_cleanly(nvml):
    """A child that is asked to end shuts NVML down and exits with 0."""
    child = start_child(nvml)
    child.terminate()
    assert child.wait(PATIENCE_S) == 0
    child.communicate()


def test_a_hung_child_does_not_outlive_its_parent(nvml):
    """Even inside a call that never returns, the end of stdin ends the process."""
    child = start_child(nvml)
    nvml.set({"delay_ms.nvmlDeviceGetUtilizationRates": 600_000})
    while select.select([child.stdout], [], [], 1.0)[0]:  # twenty polls without a line: it hangs
        os.read(child.stdout.fileno(), 4096)
    child.communicate(timeout=PATIENCE_S)
    assert child.returncode == 1


def test_the_child_ends_when_the_supervisor_is_killed(nvml):
    """kill -9 of the parent closes its end of stdin."""
    script = (
        "import sys; from overnight.adapters.gpu import GpuMonitor\n"
        "monitor = GpuMonitor(interval_s=0.05, visible=None, report=lambda _: None)\n"
        "monitor.start(); print(monitor.pid, flush=True); sys.stdin.read()\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=nvml.env(),
    )
    pidfd = os.pidfd_open(int(parent.stdout.readline()))
    parent.kill()
    assert ended(pidfd)
    parent.communicate()


def test_the_child_stays_small(nvml, watch):
    """The NVML child may cost 25 MiB; the driver's own library comes on top of that on a GPU."""
    seen = watch(nvml.env())
    seen.until(lambda: len(seen.reports) > 50)
    status = Path(f"/proc/{seen.monitor.pid}/status").read_text()
    peak_kib = int(status.split("VmHWM:")[1].split()[0])
    assert peak_kib <= 25 * 1024, f"{peak_kib / 1024:.1f} MiB"
