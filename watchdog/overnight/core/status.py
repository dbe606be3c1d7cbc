"""The answer to `overnight status`: one run in numbers, from values only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from overnight.core.events import GpuSample, Health, StepMetric
from overnight.core.story import Entry, Incident

DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Now:
    """What the snapshot is made of, beside records, checkpoints and incidents."""

    name: str
    state: str
    attempt: int
    pid: int | None
    started_utc: float
    now_utc: float
    total_steps: int | None
    lr_scale: float
    resume_route: str
    alerts_waiting: int
    healthy_step: int | None = None


def steps_per_s(records: Sequence[StepMetric]) -> float | None:
    """Speed over the last records of the newest attempt."""
    recent = [r for r in records[-50:] if r.time_utc is not None]
    if recent:
        attempt = recent[-1].position.attempt
        recent = [r for r in recent if r.position.attempt == attempt]
    if len(recent) < 3:
        return None
    first, last = recent[0], recent[-1]
    assert first.time_utc is not None
    assert last.time_utc is not None
    elapsed = last.time_utc - first.time_utc
    if elapsed <= 0 or last.step <= first.step:
        return None
    return (last.step - first.step) / elapsed


def snapshot(
    now: Now,
    *,
    records: Sequence[StepMetric],
    best: tuple[Entry, Health] | None,
    gpus: Iterable[GpuSample],
    open_incidents: Sequence[Incident],
) -> dict[str, Any]:
    """The public fields of `status --json` for one run (docs/protocol.md)."""
    last = records[-1] if records else None
    speed = steps_per_s(records)
    return {
        "name": now.name,
        "state": now.state,
        "attempt": now.attempt,
        "pid": now.pid,
        "started_utc": now.started_utc,
        "step": last.step if last else None,
        "total_steps": now.total_steps,
        "loss": last.loss if last else None,
        "grad_norm": last.grad_norm if last else None,
        "lr": last.lr if last else None,
        "lr_scale": now.lr_scale,
        "steps_per_s": speed,
        "eta_s": _eta_s(now, last, speed),
        "last_metric_utc": last.time_utc if last else None,
        "resume_route": now.resume_route,
        "gpus": [_gpu(sample) for sample in gpus],
        "checkpoint": _checkpoint(best),
        "healthy_step": now.healthy_step,
        "at_risk": _at_risk(now, best, last, records),
        "open_incidents": len(open_incidents),
        "needs_you": sum(1 for incident in open_incidents if incident.needs_you),
        "alerts": {"waiting": now.alerts_waiting},
    }


def _eta_s(now: Now, last: StepMetric | None, speed: float | None) -> float | None:
    if now.total_steps is None or last is None or not speed:
        return None
    return max(0, now.total_steps - last.step) / speed


def _gpu(sample: GpuSample) -> dict[str, Any]:
    return {
        "index": sample.index,
        "name": sample.name,
        "temperature_c": sample.temperature_c,
        "power_w": sample.power_w,
        "utilization_pct": sample.utilization_pct,
        "memory_used_bytes": sample.memory_used_bytes,
    }


def _checkpoint(best: tuple[Entry, Health] | None) -> dict[str, Any] | None:
    if best is None:
        return None
    entry, health = best
    return {
        "path": entry.path,
        "step": entry.run_step,
        "health": health.value,
        "saved_utc": entry.saved_utc,
    }


def _at_risk(
    now: Now,
    best: tuple[Entry, Health] | None,
    last: StepMetric | None,
    records: Sequence[StepMetric],
) -> dict[str, Any]:
    """What would be lost if the worker died now: since the best checkpoint, or since the start."""
    if last is None:
        return {"steps": 0, "seconds": None}
    if best is None:
        first = records[0].step
        return {"steps": last.step - min(first, 0), "since_utc": now.started_utc}
    entry, _health = best
    base = entry.order_step if entry.order_step is not None else entry.step
    steps = max(0, last.step - base) if base is not None else None
    return {"steps": steps, "since_utc": entry.saved_utc}


def public(
    run: Mapping[str, Any],
    *,
    now_utc: float,
    incidents: Sequence[Incident],
    alerts: Mapping[str, int],
    alive: bool,
) -> dict[str, Any]:
    """A stored or live snapshot as it is printed: ages instead of moments, ends marked lost."""
    data = dict(run)
    ended = data["state"] in ("completed", "halted", "interrupted")
    if not alive and not ended:
        data["state"] = "lost"
    metric_utc = data.pop("last_metric_utc", None)
    data["last_metric_age_s"] = None if metric_utc is None else max(0.0, now_utc - metric_utc)
    checkpoint = data.get("checkpoint")
    if checkpoint:
        checkpoint = dict(checkpoint)
        saved = checkpoint.pop("saved_utc")
        data["checkpoint"] = {**checkpoint, "age_s": max(0.0, now_utc - saved)}
    risk = dict(data.get("at_risk") or {})
    since = risk.pop("since_utc", None)
    data["at_risk"] = {
        "steps": risk.get("steps"),
        "seconds": None if since is None else max(0.0, now_utc - since),
    }
    data["incidents_24h"] = sum(1 for i in incidents if now_utc - i.opened_utc < DAY_S)
    data["open_incidents"] = sum(1 for i in incidents if i.open)
    waiting_for_you = any(i.needs_you and i.acked_utc is None for i in incidents)
    data["needs_you"] = waiting_for_you or data["state"] in ("halted", "lost")
    data["alerts"] = dict(alerts)
    return data
