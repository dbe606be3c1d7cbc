"""Before a hanging worker is killed: what it looks like is written down, for the morning."""

from __future__ import annotations

from dataclasses import replace

from overnight.core.events import Fault, GpuSample
from overnight.core.orders import Autopsy, AutopsyDone
from overnight.supervisor.attempt import Attempt
from overnight.supervisor.journal import Journal
from overnight.supervisor.phases import AUTOPSY_S, Recovery
from overnight.supervisor.ports import Effects
from overnight.supervisor.run import Run


class Examiner:
    """Asks for an autopsy; the kill waits for it, but never long."""

    def __init__(self, run: Run, effects: Effects, journal: Journal) -> None:
        self._run = run
        self._effects = effects
        self._journal = journal
        self._waiting: Recovery | None = None

    def begin(self, recovery: Recovery, attempt: Attempt, at: float) -> bool:
        """Whether this worker is being examined now; a dead or a poisoned one is not."""
        if recovery.verdict.fault is not Fault.STALL:
            return False
        folder = self._run.settings.directory / "attempts" / f"{attempt.number:04d}"
        recovery.examining_until = at + AUTOPSY_S
        self._waiting = recovery
        self._effects.autopsy(
            Autopsy(
                attempt=attempt.number,
                pids=tuple(self._effects.worker.pids()),
                reason=recovery.verdict.reason,
                command=tuple(self._run.settings.command),
                workdir=self._run.settings.workdir,
                log=folder / "worker.log",
                into=folder / "autopsy.txt",
                gpus=tuple(_gpu_line(sample) for sample in self._run.gpus.values()),
                kernel=tuple(self._effects.kernel_lines(attempt.started_at)),
            )
        )
        return True

    def is_over(self, recovery: Recovery, at: float) -> bool:
        """Whether it has been examined, or has had its time."""
        return self._waiting is not recovery or at >= recovery.examining_until

    def done(self, answer: AutopsyDone) -> None:
        """The report lies there, or why not."""
        recovery, self._waiting = self._waiting, None
        if recovery is None:
            return
        if answer.path is None:
            self._effects.say(f"warning: no autopsy: {answer.why}")
            return
        incident = self._run.book.get(recovery.incident)
        if incident is not None:
            evidence = {**incident.evidence, "autopsy": answer.path}
            self._journal.note([self._run.book.put(replace(incident, evidence=evidence))])
        self._effects.say(f"what it looked like: {answer.path}")


def _gpu_line(sample: GpuSample) -> str:
    shown = {
        "°C": sample.temperature_c,
        "W": sample.power_w,
        "% busy": sample.utilization_pct,
        "bytes used": sample.memory_used_bytes,
    }
    known = [f"{value:g} {unit}" for unit, value in shown.items() if value is not None]
    pids = f", processes {', '.join(map(str, sample.pids))}" if sample.pids else ""
    return f"{sample.index} {sample.name}: {', '.join(known) or 'nothing known'}{pids}"
