"""A drill on the user's own command: everything is real but the faults.

Part of app.py's layer: it names concrete adapters.
"""

from __future__ import annotations

import os
import queue
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from overnight.adapters.gpu import GpuMonitor
from overnight.adapters.lock import is_held
from overnight.adapters.notify.receivers import load_receivers
from overnight.adapters.store import StoreReader
from overnight.app import supervise
from overnight.core.drill import Drilled, Point, points
from overnight.core.events import GpuSample, GpuUnavailable, Health
from overnight.core.resume import means_of
from overnight.errors import UsageError
from overnight.preflight import (
    Order,
    completed,
    keepsake_of,
    memory_of,
    practice_name,
    refuse_living_worker,
)

FOLDER = ".drill"
"""Below the parent of all runs: a drill is none of them."""

GPU_S = 10.0
"""A driver that does not answer for so long is no reason not to try."""


def drill(order: Order, budget_s: float) -> tuple[list[Point], Path | None]:
    """Practise a night: a NaN, a hang and a death on the user's own command, within the budget.

    Returns what it has shown, and where the checkpoints lie that it has saved, if any.

    Raises UsageError where it must not begin: the run lives, the GPU is taken, or there is no
    room to keep the checkpoints that are there.
    """
    if is_held(order.directory):
        raise UsageError(f"run {order.name} is being supervised", hint="overnight stop it first")
    memory = memory_of(order.directory)
    if memory is not None:
        refuse_living_worker(order.name, memory.run)
    _refuse_taken_gpu()
    keepsake = keepsake_of(order)
    practice = _practice(order, budget_s)
    shutil.rmtree(practice.directory, ignore_errors=True)
    try:
        keepsake.put_back()  # a drill that was killed
        keepsake.take()
    except OSError as error:
        where = error.filename or "the checkpoints"
        raise UsageError(f"cannot keep {where} safe during a drill: {error.strerror}") from error
    untouched = ""
    try:
        supervise(practice)
    finally:
        try:
            moved = keepsake.put_back()
        except OSError as error:
            moved, untouched = None, f"{error.filename}: {error.strerror}; run the drill again"
    found = points(_facts(practice, untouched=untouched))
    return found, keepsake.drilled if moved else None


def _practice(order: Order, budget_s: float) -> Order:
    """The same run under another name, with as little patience as a drill needs."""
    config = order.config
    patient = {"stuck": 10, "min_progress_steps": 1, "backoff_s": 0.0}
    changed: dict[str, Any] = {
        "checkpoints": config.checkpoints.model_copy(
            update={"confirm_steps": 0, "confirm_records": 1}
        ),
        "budget": config.budget.model_copy(update=patient),
        "run": config.run.model_copy(update={"grace_s": min(config.run.grace_s, 20.0)}),
    }
    return replace(
        order,
        config=config.model_copy(update=changed),
        name=practice_name(order.name),
        state_parent=order.state_parent / FOLDER,
        observe=False,
        detach=False,
        from_checkpoint=None,
        drill_s=budget_s,
    )


def _refuse_taken_gpu() -> None:
    """Raises UsageError while another program computes on a GPU that the worker would use."""
    heard: queue.SimpleQueue[GpuSample | GpuUnavailable] = queue.SimpleQueue()
    monitor = GpuMonitor(
        interval_s=1.0, visible=os.environ.get("CUDA_VISIBLE_DEVICES"), report=heard.put
    )
    monitor.start()
    until, indices = time.monotonic() + GPU_S, set[int]()
    try:
        while (left := until - time.monotonic()) > 0:
            found = heard.get(timeout=left)
            if isinstance(found, GpuUnavailable) or found.index in indices:
                return
            indices.add(found.index)
            if found.pids:
                pids = ", ".join(map(str, found.pids))
                raise UsageError(
                    f"GPU {found.index} ({found.name}) is used by process {pids}",
                    hint="a drill would disturb it; end it, or set CUDA_VISIBLE_DEVICES",
                )
    except queue.Empty:
        return
    finally:
        monitor.close()


def _facts(order: Order, *, untouched: str) -> Drilled:
    """What the drill's own store holds when it has ended."""
    order, _ = completed(order)
    receivers = load_receivers(order.config.notify.receivers)
    labels = {receiver.key: receiver.label for receiver in receivers}
    reader = StoreReader(order.directory)
    try:
        row, errors = reader.run() or {}, reader.undelivered()
        records = reader.records()
        return Drilled(
            incidents=reader.incidents(),
            checkpoints=[
                entry
                for entry in reader.checkpoints()
                if entry.checked is Health.VERIFIED and entry.position.attempt
            ],
            records=int(row.get("record_count", 0)),
            shows_lr=any(record.lr is not None for record in records),
            means=means_of(order.config.resume, row.get("hello"), probe=order.config.probe.enabled),
            receivers=[receiver.label for receiver in receivers],
            errors=sorted({labels.get(e[:12], "") + e[12:] for e in errors}),
            budget_s=order.drill_s,
            ending=str(row.get("ending", "")),
            untouched=untouched,
        )
    finally:
        reader.close()
