"""The loop: one queue, one consumer that owns all state.

    observation -> parse -> detect -> policy -> (1) intention and alert on disk -> act -> outcome

Threads and children only report into the queue. Deadlines run on the monotonic clock that comes
with the observations; the wall clock is for people and disk.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Mapping
from typing import Any

from overnight.core.detect.gpu_hot import GpuHotDetector
from overnight.core.events import (
    Action,
    AlertSent,
    CheckpointChecked,
    CheckpointGone,
    CheckpointSecured,
    CheckpointSeen,
    Decision,
    Drained,
    GpuSample,
    GpuUnavailable,
    Housekeeping,
    LogChunk,
    Request,
    StopRequested,
    TreeGone,
    TreeStuck,
    WorkerExited,
    WorkerStarted,
)
from overnight.core.exits import describe
from overnight.core.lifecycle import Event, State
from overnight.core.orders import AutopsyDone, Tidied
from overnight.core.proof import LrProof
from overnight.errors import UsageError, WorkerError
from overnight.supervisor.attempt import Attempt
from overnight.supervisor.drilling import Driller
from overnight.supervisor.ending import death_of, finish, is_done
from overnight.supervisor.inbox import Inbox
from overnight.supervisor.journal import Journal
from overnight.supervisor.judging import Judge, death_verdict
from overnight.supervisor.keeping import Keeper
from overnight.supervisor.opening import Opening, Start
from overnight.supervisor.ports import Effects
from overnight.supervisor.reading import Reader
from overnight.supervisor.recovery import Recoverer
from overnight.supervisor.requests import answer
from overnight.supervisor.run import Run, Stop

TICK_S = 1.0
ORPHANS_S = 5.0
"""Background processes of a worker that ended well get this long; then they are left alone."""

LOST_S = 5.0
"""A worker that has ended is judged in one turn of the loop; this much later something broke."""

log = logging.getLogger("overnight")


class Supervisor:
    """Watches one run from its first attempt to its end."""

    def __init__(self, run: Run, effects: Effects, journal: Journal, inbox: Inbox) -> None:
        self._run = run
        self._effects = effects
        self._journal = journal
        self._inbox = inbox
        self._keeper = Keeper(run, effects, journal)
        self._recoverer = Recoverer(run, effects, journal, self._keeper)
        self._judge = Judge(run, effects, journal, self._recoverer)
        self._reader = Reader(
            run,
            effects,
            journal,
            keeper=self._keeper,
            recoverer=self._recoverer,
            judge=self._judge,
        )
        self._driller = Driller(
            run,
            effects,
            reader=self._reader,
            judge=self._judge,
            recoverer=self._recoverer,
            stop=lambda why: self.stop(Stop(0, why), at=effects.clock()),
        )
        self._gpu_hot = GpuHotDetector(run.settings.gpu)
        self._gpu_attempt = 0
        self._stuck = False
        self._lost_since: float | None = None
        self._ticked_at = 0.0
        self._bugs = 0
        self._kill_at: float | None = None
        self._drain_at: float | None = None
        self._handlers: dict[type, Callable[[Any], None]] = {
            LogChunk: self._reader.chunk,
            WorkerStarted: self._on_started,
            WorkerExited: self._on_exited,
            TreeGone: self._on_tree_gone,
            TreeStuck: self._on_tree_stuck,
            Drained: self._on_drained,
            GpuSample: self._on_gpu,
            GpuUnavailable: self._on_gpu_unavailable,
            CheckpointSeen: self._on_checkpoint_seen,
            CheckpointGone: self._keeper.gone,
            CheckpointChecked: self._on_checkpoint_checked,
            CheckpointSecured: self._keeper.secured,
            Tidied: self._recoverer.tidier.done,
            AutopsyDone: self._recoverer.examiner.done,
            AlertSent: journal.sent,
            StopRequested: self._on_stop_signal,
            Request: self._on_request,
            Housekeeping: self._on_housekeeping,
        }

    # --- from start to end -----------------------------------------------------------------------

    def supervise(self, start: Start) -> int:
        """Run the worker until the run has ended. Returns the exit status."""
        run = self._run
        self._effects.checkpoints.start([e.identity for e in run.ledger.entries() if not e.gone])
        self._effects.gpu.start()
        opening = Opening(run, self._effects, self._keeper, start)
        while not run.life.ended and not opening.ready(self._effects.clock()):
            self._turn()
        if not run.life.ended:
            self._first_attempt(opening.decision(), continues=start.continues)
        while not run.life.ended:
            self._turn()
        finish(run, self._effects, self._journal, self._keeper, self._inbox, self._handlers)
        return run.exit_status

    def _first_attempt(self, decision: Decision, *, continues: bool) -> None:
        run, tidier = self._run, self._recoverer.tidier
        if decision.action is Action.HALT:
            run.exit_status = UsageError.exit_code
            self._halt(decision.reason, decision.advice)
            return
        target = decision.target
        if continues and not run.settings.observe:
            tidier.begin(target)
            while not run.life.ended and tidier.busy(self._effects.clock()):
                self._turn()
            target = tidier.placed(target)
        if run.life.ended:
            return
        if tidier.problem:
            self._effects.say(f"warning: {tidier.problem}")
        if target is not None:
            where = f"continuing from {target.path}"
            self._effects.say(f"{where} with the learning rate x{run.lr_scale:g}")
        try:
            self._recoverer.launcher.launch(target, lr_scale=run.lr_scale)
        except WorkerError as error:
            self._halt(str(error))

    def _halt(self, reason: str, advice: tuple[str, ...] = ()) -> None:
        """End the run here and now, without an incident to tell."""
        self._run.ending = reason
        self._run.life.apply(Event.HALT)
        self._effects.say(f"HALTED: {reason}")
        for line in advice:
            self._effects.say(f"  {line}")

    def _turn(self) -> None:
        """One observation, then whatever time has made due."""
        observation = self._inbox.get(self._patience_s())
        if observation is not None:
            self._guarded(self._handlers[type(observation)], observation)
        at = self._effects.clock()
        self._guarded(self._recoverer.advance, at)
        self._guarded(self._tick, at)

    def _guarded(self, step: Callable[[Any], None], argument: Any) -> None:
        """A bug of ours costs a line in the log, never the watch: the worker must train on."""
        try:
            step(argument)
        except Exception:
            log.exception("a bug in Overnight; going on")
            self._bugs += 1
            if self._bugs in (1, 10, 100):
                self._effects.say(f"warning: a bug in Overnight ({self._bugs}), see supervisor.log")

    def _patience_s(self) -> float:
        """How long the queue may stay quiet before time alone makes something due."""
        recovery = self._recoverer.current
        due = recovery.due - self._effects.clock() if recovery else TICK_S
        return min(TICK_S, max(0.005, due), max(0.02, self._journal.next_due_s()))

    def _tick(self, at: float) -> None:
        """What is due by time alone; most of it once a second."""
        self._journal.deliver()
        if at - self._ticked_at < TICK_S:
            return
        self._ticked_at = at
        attempt = self._run.attempt
        self._effects.gpu.check(at)
        self._journal.flush(at)
        if self._kill_at is not None and at >= self._kill_at:
            self._kill_at = None
            self._effects.worker.kill()
        if self._drain_at is not None and at >= self._drain_at:
            self._drain()
        if attempt is not None and not attempt.condemned and attempt.exited is None:
            self._check_stall(attempt, at)
            at_risk = self._keeper.overdue(attempt, at)
            if at_risk is not None:
                self._judge.judge(at_risk)
            self._reader.tick(attempt, at)
        if self._run.settings.drill_s:
            self._driller.advance(at)
        self._check_lost(attempt, at)

    def _check_lost(self, attempt: Attempt | None, at: float) -> None:
        """A dead worker that nobody recovers can only be a bug of ours: say so and end."""
        lost = attempt is not None and attempt.over and self._recoverer.current is None
        if not lost or self._run.life.ended:
            self._lost_since = None
        elif self._lost_since is None:
            self._lost_since = at
        elif at - self._lost_since > LOST_S:
            self._journal.page("the worker has ended and Overnight lost track of it (a bug)")
            self._halt("the worker has ended, and a bug in Overnight kept it from acting")

    def _check_stall(self, attempt: Attempt, at: float) -> None:
        wants = attempt.stall.wants_witness(at)
        cpu_s = self._effects.worker.cpu_seconds() if wants else None
        verdict = attempt.check_stall(at, cpu_s) if wants else None
        if verdict is not None:
            self._judge.judge(verdict)

    # --- the worker's processes ------------------------------------------------------------------

    def _current(self, number: int) -> Attempt | None:
        attempt = self._run.attempt
        return attempt if attempt is not None and attempt.number == number else None

    def _on_started(self, started: WorkerStarted) -> None:
        attempt = self._current(started.attempt)
        if attempt is None:
            return
        attempt.process = started
        self._recoverer.started()
        self._effects.say(f"attempt {attempt.number} started, pid {started.pid}")
        self._journal.flush(started.at, force=True)

    def _on_exited(self, exited: WorkerExited) -> None:
        attempt = self._current(exited.attempt)
        if attempt is None:
            return
        attempt.exited = exited.record
        if self._run.stop is not None and self._kill_at is not None:
            self._effects.worker.signal_rest(signal.SIGTERM)  # it has the rest of the grace time
        elif exited.record.code == 0 and not attempt.condemned:
            self._drain_at = exited.at + ORPHANS_S  # its background processes are its own affair
        else:
            self._effects.worker.kill()

    def _on_tree_gone(self, gone: TreeGone) -> None:
        if self._current(gone.attempt) is not None:
            self._drain()

    def _drain(self) -> None:
        self._drain_at = None
        self._kill_at = None
        attempt = self._run.attempt
        if attempt is not None and not attempt.draining:
            attempt.draining = True
            self._effects.tails.finish()

    def _on_tree_stuck(self, stuck: TreeStuck) -> None:
        self._stuck = True
        self._recoverer.stuck(stuck.pids)

    def _on_drained(self, drained: Drained) -> None:
        attempt = self._current(drained.attempt)
        if attempt is None:
            return
        self._reader.finish(attempt, drained.at)
        attempt.drained = True
        if self._run.stop is not None:
            self._interrupt(self._run.stop)
        elif not attempt.condemned:
            self._worker_ended(attempt)

    def _worker_ended(self, attempt: Attempt) -> None:
        """The worker ended by itself: done, or dead."""
        record = attempt.exited
        assert record is not None
        death = death_of(attempt, record, self._effects)
        if is_done(self._run, record, death):
            if self._recoverer.current is not None:
                self._recoverer.conclude(LrProof.UNPROVEN if attempt.watch else None)
            self._run.life.apply(Event.COMPLETE)
            self._effects.say("completed")
            return
        self._judge.judge(death_verdict(attempt, death, at=self._effects.clock()), death)
        if self._recoverer.current is None and not self._run.life.ended:
            self._run.ending = f"the worker {describe(record)} and the config says to leave it"
            self._run.life.apply(Event.HALT)

    # --- checkpoints and GPU ---------------------------------------------------------------------

    def _on_checkpoint_seen(self, seen: CheckpointSeen) -> None:
        self._keeper.seen(seen)
        self._recoverer.checkpoint_saved(seen.at)

    def _on_checkpoint_checked(self, checked: CheckpointChecked) -> None:
        self._keeper.checked(checked)
        self._recoverer.checked(checked.identity)

    def _on_gpu(self, sample: GpuSample) -> None:
        self._run.gpus[sample.uuid] = sample
        self._recoverer.gpu(sample)
        attempt = self._run.attempt
        if attempt is None or attempt.condemned:
            return
        if attempt.number != self._gpu_attempt:  # what an earlier attempt was told counts no more
            self._gpu_attempt = attempt.number
            self._gpu_hot.reset()
        verdict = self._gpu_hot.observe(sample)
        if verdict is not None:
            self._judge.judge(verdict)

    def _on_gpu_unavailable(self, unavailable: GpuUnavailable) -> None:
        self._effects.say(f"gpu: {unavailable.reason}")
        if unavailable.permanent:
            self._run.gpus.clear()

    # --- people ----------------------------------------------------------------------------------

    def _on_stop_signal(self, request: StopRequested) -> None:
        if self._run.stop is not None:
            self._effects.say("killing the worker at once")
            self._effects.worker.kill()
            if self._stuck:  # nothing kills it: do not keep the person waiting
                self._interrupt(self._run.stop)
            return
        name = signal.Signals(request.signal).name
        self.stop(Stop(128 + request.signal, f"stopped by {name}"), at=request.at)

    def stop(self, stop: Stop, *, at: float) -> None:
        """End the run: the worker is asked to save and exit, then killed."""
        run, attempt = self._run, self._run.attempt
        run.stop = stop
        self._recoverer.stop(stop.why)
        if attempt is None or attempt.over:
            self._interrupt(stop)
            return
        attempt.condemned = True
        if run.life.state in (State.STARTING, State.RUNNING):
            run.life.apply(Event.STOP)
        grace_s = run.settings.grace_s
        self._effects.say(f"{stop.why}: the worker has {grace_s:.0f} s to save and exit")
        self._kill_at = at + grace_s
        self._effects.worker.signal(signal.SIGTERM)

    def _interrupt(self, stop: Stop) -> None:
        last = self._run.last
        where = f" at step {last.step}" if last else ""
        onwards = "" if self._run.settings.drill_s else "; the same command goes on from there"
        self._effects.say(f"{stop.why}{where}{onwards}")
        self._run.exit_status = stop.exit_status
        self._run.ending = stop.why
        self._run.life.apply(Event.INTERRUPT)

    def _on_request(self, request: Request) -> None:
        request.reply(self.answer(request.op, request.args, at=request.at))

    def answer(self, op: str, args: Mapping[str, Any], *, at: float) -> dict[str, Any]:
        """A command from the control socket."""
        if op == "stop" and self._run.stop is None:
            self.stop(Stop(0, "stopped by overnight stop"), at=at)
        if op == "stop":
            return {"ok": True}
        return answer(op, args, run=self._run, journal=self._journal)

    def _on_housekeeping(self, due: Housekeeping) -> None:
        log.info("housekeeping: %s", due.job)
        self._journal.prune()
