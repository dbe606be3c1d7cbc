"""The steps of one recovery, each a request whose result comes back through the queue.

    IN_PLACE   the probe is asked to restore a snapshot; if it does not, the worker is stopped
    STOPPING   a hanging worker is examined first; then it is told to end, or killed; until its tree
               is gone and its output read
    CHECKING   candidates that nobody has verified yet are verified, newest first, 30 s in all
    WAITING    back-off, cooling, and the GPU memory of the dead to be released
    TIDYING    what is newer than the target is moved into quarantine
    STARTING   the new attempt is launched; until its first record
    PROVING    the logged learning rate is held against the expected one
    SECURING   (halt only) the best checkpoint is copied into the vault before we give up

What is resumed from is decided twice: when the fault is seen (intention and reason are on disk
before anything is done), and when the worker is gone and all candidates are verified."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from overnight.core.events import (
    NUMERIC_FAULTS,
    Action,
    Decision,
    GpuSample,
    Identity,
    StepMetric,
    Target,
    Verdict,
)
from overnight.core.exits import Death
from overnight.core.incidents import decided
from overnight.core.lifecycle import Event
from overnight.core.proof import LrProof
from overnight.core.resume import Route
from overnight.core.situation import PastRecovery
from overnight.core.story import Incident
from overnight.errors import WorkerError
from overnight.supervisor.attempt import Attempt
from overnight.supervisor.examining import Examiner
from overnight.supervisor.in_place import InPlace
from overnight.supervisor.journal import Journal
from overnight.supervisor.keeping import Keeper
from overnight.supervisor.launching import Launcher
from overnight.supervisor.outcomes import Outcomes
from overnight.supervisor.phases import (
    CHECK_S,
    COOL_S,
    SAVE_S,
    SECURE_S,
    Phase,
    Recovery,
)
from overnight.supervisor.ports import Effects
from overnight.supervisor.run import Run
from overnight.supervisor.tidying import Tidier
from overnight.supervisor.waiting import Wait


class Recoverer:
    """Carries one recovery at a time through its phases. Everything returns at once."""

    def __init__(self, run: Run, effects: Effects, journal: Journal, keeper: Keeper) -> None:
        self._run = run
        self._effects = effects
        self._journal = journal
        self._keeper = keeper
        self._outcomes = Outcomes(run, effects, journal)
        self._in_place = InPlace(run, effects, journal)
        self._wait = Wait(run, effects)
        self.examiner = Examiner(run, effects, journal)
        self.tidier = Tidier(run, effects, journal)
        self.launcher = Launcher(run, effects, journal)
        self.current: Recovery | None = None

    @property
    def busy_incident(self) -> int | None:
        """The incident that is being recovered, if any."""
        return self.current.incident if self.current else None

    @property
    def between_attempts(self) -> bool:
        """Whether the worker is being stopped or none has been started again yet."""
        done = (Phase.STARTING, Phase.PROVING, Phase.IN_PLACE)
        return self.current is not None and self.current.phase not in done

    @property
    def is_going_back(self) -> bool:
        """Whether the probe has been asked to restore a snapshot and has not answered yet."""
        return self.current is not None and self.current.phase is Phase.IN_PLACE

    # --- begin -----------------------------------------------------------------------------------

    def begin(
        self, incident: Incident, verdict: Verdict, decision: Decision, death: Death | None
    ) -> None:
        """Act on a decision whose intention has been committed."""
        run, at = self._run, self._effects.clock()
        recovery = Recovery(incident.id, verdict, death, decision, self._effects.wall())
        recovery.dead_pids = self._pids_on_gpu()
        self.current = recovery
        attempt = run.attempt
        assert attempt is not None
        if decision.in_flight:
            self._ask(recovery)
        else:
            self._stop(recovery, attempt, at)

    def _ask(self, recovery: Recovery) -> None:
        try:
            self._in_place.ask(recovery, confirm_steps=self._run.ledger.confirm_steps)
            self._passed("asked to go back in place")
        except OSError as error:
            self._leave_place(f"the order could not be written ({error.strerror})")

    def answered(self, said: Mapping[str, Any]) -> None:
        """The probe has obeyed an order to go back, or says why it could not, or it is off."""
        recovery = self.current
        asked = recovery is not None and said.get("rollback", recovery.order) == recovery.order
        if recovery is None or not self.is_going_back or not asked:
            return
        why = self._in_place.answered(recovery, said)
        if why:
            self._leave_place(why)
        else:
            self._passed("back in place")

    def _leave_place(self, why: str) -> None:
        """In place it does not work: on with the ladder, which ends this process."""
        recovery, run = self.current, self._run
        assert recovery is not None
        assert run.attempt is not None
        self._effects.say(f"warning: {why}")
        run.attempt.probe.snapshots = False
        situation = run.situation(
            recovery.verdict,
            now_utc=self._effects.wall(),
            incident=recovery.incident,
            death=recovery.death,
        )
        recovery.decision = run.policy.decide(recovery.verdict, situation, recovery.death)
        recovery.phase = Phase.STOPPING
        self._stop(recovery, run.attempt, self._effects.clock())

    def _stop(self, recovery: Recovery, attempt: Attempt, at: float) -> None:
        """End the worker, as gently as the decision allows."""
        run = self._run
        attempt.condemned = True
        if attempt.exited is not None:
            self._effects.worker.kill()  # what it has left behind
            return
        run.life.apply(Event.STOP)
        if not self.examiner.begin(recovery, attempt, at):
            self._end_worker(recovery, at)

    def _end_worker(self, recovery: Recovery, at: float) -> None:
        run, decision = self._run, recovery.decision
        wants_save = decision.graceful and bool(run.hello and run.hello.get("checkpoint_signal"))
        if wants_save:
            self._effects.worker.signal(signal.SIGUSR1)
            recovery.saving_until = at + SAVE_S
        elif decision.graceful:
            self._terminate(recovery, at)
        else:
            # Whatever a worker would save after a numeric fault is poisoned: no grace.
            self._effects.worker.kill()
            self._passed("killed")

    def _pids_on_gpu(self) -> frozenset[int]:
        """Processes of ours that hold GPU memory, as far as the driver names them."""
        on_gpu = {pid for sample in self._run.gpus.values() for pid in sample.pids}
        return frozenset(on_gpu & set(self._effects.worker.pids())) if on_gpu else frozenset()

    def _terminate(self, recovery: Recovery, at: float) -> None:
        recovery.saving_until = None
        recovery.deadline = at + self._run.settings.grace_s
        self._effects.worker.signal(signal.SIGTERM)
        self._passed("terminated")

    def checkpoint_saved(self, at: float) -> None:
        """A checkpoint became complete at `at`; a worker that was asked for one may now stop."""
        recovery = self.current
        if recovery is None or recovery.phase is not Phase.STOPPING:
            return
        if recovery.saving_until is not None and at >= recovery.saving_until - SAVE_S:
            self._terminate(recovery, self._effects.clock())

    def stuck(self, pids: tuple[int, ...]) -> None:
        """The tree does not die of SIGKILL: only a person can help now."""
        listed = ", ".join(map(str, pids))
        why = (
            f"processes {listed} do not die of SIGKILL: stuck in a driver or a filesystem;"
            " a reboot may be needed"
        )
        self._effects.say(f"warning: {why}")
        if self.current is not None:
            self._outcomes.needs_somebody(self.current, why)

    # --- onwards ---------------------------------------------------------------------------------

    def advance(self, at: float) -> None:
        """Take the next step if it is due."""
        recovery = self.current
        if recovery is None:
            return
        if recovery.phase is Phase.IN_PLACE and self._in_place.is_refused(recovery, at):
            self._leave_place("the probe has not answered")
        if recovery.phase is Phase.STOPPING:
            self._stopping(recovery, at)
        if recovery.phase is Phase.CHECKING and (not recovery.checking or at >= recovery.deadline):
            self._decide_again(recovery, at)
        if recovery.phase is Phase.WAITING and self._wait.too_hot(recovery, at):
            self._give_up(recovery, at, f"the GPU did not cool down in {COOL_S / 3600:.0f} h")
        if recovery.phase is Phase.WAITING and self._wait.is_over(recovery, at):
            self._tidy(recovery)
        if recovery.phase is Phase.TIDYING and not self.tidier.busy(at):
            self._start(recovery)
        if recovery.phase is Phase.SECURING and self._secured(recovery, at):
            self._end(self._outcomes.halted)

    def _stopping(self, recovery: Recovery, at: float) -> None:
        attempt = self._run.attempt
        assert attempt is not None
        if recovery.examining_until and self.examiner.is_over(recovery, at):
            recovery.examining_until = 0.0
            self._end_worker(recovery, at)
        if attempt.over:
            self._passed("gone")
            self._check(recovery, at)
        elif recovery.saving_until is not None and at >= recovery.saving_until:
            self._terminate(recovery, at)
        elif recovery.deadline and at >= recovery.deadline:
            recovery.deadline = 0.0
            self._effects.worker.kill()

    def _check(self, recovery: Recovery, at: float) -> None:
        """Have every candidate verified that could be a target."""
        verdict = recovery.verdict
        numeric = verdict.fault in NUMERIC_FAULTS
        unchecked = self._run.ledger.unchecked(
            onset=verdict.onset if numeric else None,
            onset_step=verdict.onset_step if numeric else None,
        )
        recovery.phase, recovery.deadline = Phase.CHECKING, at + CHECK_S
        recovery.checking = {entry.identity for entry in unchecked}
        self._keeper.verify_first(unchecked)

    def checked(self, identity: Identity) -> None:
        """A verifier has answered."""
        if self.current is not None:
            self.current.checking.discard(identity)

    def _decide_again(self, recovery: Recovery, at: float) -> None:
        run = self._run
        self._keeper.take_stock()
        situation = run.situation(
            recovery.verdict,
            now_utc=self._effects.wall(),
            incident=recovery.incident,
            death=recovery.death,
        )
        decision = run.policy.decide(recovery.verdict, situation, recovery.death)
        if decision.reason != recovery.decision.reason:
            self._effects.say(f"decided: {decision.action}: {decision.reason}")
        recovery.decision = decision
        incident = replace(
            decided(self._outcomes.incident(recovery), decision),
            lr_scale_before=run.lr_scale,
            lr_scale_after=decision.lr_scale,
        )
        self._journal.note([run.book.put(incident)])
        if decision.action is Action.HALT:
            recovery.phase, recovery.deadline = Phase.SECURING, at + SECURE_S
            if decision.target is not None:
                run.ledger.pin(decision.target.identity)
            self._keeper.keep_safe()
        else:
            self._wait.begin(recovery, at)

    def gpu(self, sample: GpuSample) -> None:
        """Telemetry while no worker runs: is the card cool, is the memory free?"""
        if self.current is not None and self.current.phase is Phase.WAITING:
            self._wait.gpu(self.current, sample)

    def _give_up(self, recovery: Recovery, at: float, why: str) -> None:
        """Turn a recovery into a halt."""
        reason = f"{recovery.verdict.reason}; {why}"
        recovery.decision = replace(
            recovery.decision, action=Action.HALT, reason=reason, needs_you=True
        )
        if recovery.decision.target is not None:
            self._run.ledger.pin(recovery.decision.target.identity)
        self._keeper.keep_safe()
        recovery.phase, recovery.deadline = Phase.SECURING, at + SECURE_S

    def _tidy(self, recovery: Recovery) -> None:
        target = recovery.decision.target
        if recovery.dead_pids:
            held = ", ".join(map(str, sorted(recovery.dead_pids)))
            self._effects.say(f"warning: GPU memory is still held by {held}; starting all the same")
        if target is not None and not self._still_there(target):
            self._check(recovery, self._effects.clock())
            return
        recovery.phase = Phase.TIDYING
        self.tidier.begin(target)

    def _start(self, recovery: Recovery) -> None:
        decision, run = recovery.decision, self._run
        if self.tidier.problem and run.means.route is Route.LATEST:
            self._give_up(recovery, self._effects.clock(), self.tidier.problem)
            return
        if self.tidier.problem:
            self._effects.say(f"warning: {self.tidier.problem}")
        target = self.tidier.placed(decision.target)
        self._passed("checkpoint ready")
        run.reached(run.last.step if run.last else 0)
        run.past.append(_past(recovery, target))
        if recovery.death is not None and run.attempt is not None and run.attempt.records == 0:
            run.signatures.append(recovery.death.signature)
        run.life.apply(Event.START)
        recovery.phase = Phase.STARTING
        changed = decision.lr_scale != run.lr_scale
        watch = run.lr_watch(decision.lr_scale) if changed else None
        try:
            run.take_measures(decision)
            self.launcher.launch(
                target, lr_scale=decision.lr_scale, skip=decision.skip, watch=watch
            )
        except WorkerError as error:
            self._give_up(recovery, self._effects.clock(), str(error))

    def _still_there(self, target: Target) -> bool:
        """Whether the path still means the bytes that were verified (or their vault copy)."""
        self._keeper.take_stock()
        entry = self._run.ledger.find(target.path)
        return entry is not None and entry.available and entry.path == target.path

    # --- the new attempt -------------------------------------------------------------------------

    def started(self) -> None:
        """The new worker's process exists."""
        if self.current is not None and self.current.phase is Phase.STARTING:
            self._passed("started")

    def record(self, record: StepMetric) -> None:
        """A record of the new attempt: it lives, and its learning rate shows."""
        recovery, attempt = self.current, self._run.attempt
        if recovery is None or attempt is None or attempt.condemned:
            return
        if recovery.phase is Phase.STARTING:
            recovery.phase = Phase.PROVING
        if recovery.phase is not Phase.PROVING:
            return
        proof = attempt.watch.observe(record) if attempt.watch else None
        placed = attempt.comeback is None or attempt.comeback.placed
        if placed and (attempt.watch is None or proof is not None):
            self.conclude(proof)

    # --- the end ---------------------------------------------------------------------------------

    def conclude(self, proof: LrProof | None) -> None:
        """It worked: the new attempt lives, with or without a proof of its learning rate."""
        self._end(lambda recovery: self._outcomes.healed(recovery, proof))

    def abandon(self, why: str) -> None:
        """The fault came back: the recovery under way, if any, has not worked."""
        if self.current is not None:
            self._end(lambda recovery: self._outcomes.abandoned(recovery, why))

    def stop(self, why: str) -> None:
        """A person ends the run: no more recovering."""
        if self.current is not None:
            self._end(lambda recovery: self._outcomes.stopped(recovery, why))

    def _end(self, ending: Callable[[Recovery], None]) -> None:
        recovery, self.current = self.current, None
        assert recovery is not None
        ending(recovery)

    def _secured(self, recovery: Recovery, at: float) -> bool:
        return not self._keeper.securing or at >= recovery.deadline

    def _passed(self, step: str) -> None:
        assert self.current is not None
        self._outcomes.passed(self.current, step)


def _past(recovery: Recovery, target: Target | None) -> PastRecovery:
    verdict = recovery.verdict
    return PastRecovery(
        at_utc=recovery.begun_utc,
        fault=verdict.fault,
        incident=recovery.incident,
        detected_step=verdict.detected_step,
        onset_step=verdict.onset_step,
        target_step=target.step if target else 0,
    )
