"""From a verdict to a committed decision: the first numbered point of the order of effects."""

from __future__ import annotations

import signal
from dataclasses import replace

from overnight.core import alerting
from overnight.core.events import (
    NUMERIC_FAULTS,
    Action,
    Decision,
    Fault,
    Position,
    Severity,
    StepMetric,
    Verdict,
)
from overnight.core.exits import Death, describe
from overnight.core.incidents import Change
from overnight.core.proof import LrProof, LrWatch
from overnight.core.story import Incident
from overnight.supervisor.attempt import Attempt
from overnight.supervisor.journal import Journal
from overnight.supervisor.phases import ACTING
from overnight.supervisor.ports import Effects
from overnight.supervisor.recovery import Recoverer
from overnight.supervisor.run import Run

QUOTED_CHARS = 120
"""What a reason quotes of the worker's last line; the evidence holds more of it."""


class Judge:
    """Asks the policy, writes the intention down, and only then lets the recoverer act."""

    def __init__(self, run: Run, effects: Effects, journal: Journal, recoverer: Recoverer) -> None:
        self._run = run
        self._effects = effects
        self._journal = journal
        self._recoverer = recoverer

    def judge(self, verdict: Verdict, death: Death | None = None) -> None:
        """From a verdict to a committed decision, and on to acting on it."""
        run, now_utc = self._run, self._effects.wall()
        home = run.book.home_of(verdict, now_utc=now_utc, record_count=run.record_count)
        if death is not None and home is not None and home.fault in NUMERIC_FAULTS:
            verdict = _died_of_numbers(verdict, home)
        critical = verdict.severity is Severity.CRITICAL
        spoils = verdict.fault in NUMERIC_FAULTS or "resumed_step" in verdict.evidence
        if critical and spoils and verdict.onset is not None:
            run.ledger.numeric_fault(
                onset=verdict.onset, onset_step=verdict.onset_step, name=verdict.fault.value
            )
        decision = self._decide(verdict, death, incident=home.id if home else 0)
        incident, change = run.book.judge(
            verdict, decision, now_utc=now_utc, record_count=run.record_count
        )
        incident = replace(incident, drill=run.settings.drill_s > 0)
        incident = self._written(incident, change, decision)
        self._tell(verdict, decision, change)
        if change is Change.OPENED and verdict.severity is Severity.WARNING:
            self._ask_for_checkpoint(verdict)
        if change is not Change.JOINED and decision.action in ACTING:
            self._act(incident, verdict, decision, death)

    def _ask_for_checkpoint(self, verdict: Verdict) -> None:
        """A worker that can is asked to save while it may still be well.

        The ledger takes it for suspect until the episode has closed by itself.
        """
        run = self._run
        can = bool(run.hello and run.hello.get("checkpoint_signal"))
        if can and verdict.fault in NUMERIC_FAULTS and not run.settings.observe:
            self._effects.worker.signal(signal.SIGUSR1)
            self._effects.say("asked the worker for a checkpoint, to be trusted if this passes")

    def _decide(self, verdict: Verdict, death: Death | None, *, incident: int) -> Decision:
        run = self._run
        situation = run.situation(
            verdict, now_utc=self._effects.wall(), incident=incident, death=death
        )
        decision = run.policy.decide(verdict, situation, death)
        if verdict.fault is Fault.LR_NOT_REDUCED:
            return replace(decision, needs_you=True)
        if run.settings.observe and decision.action in ACTING:
            would = f"only observing; would {decision.action}: {decision.reason}"
            return Decision(
                Action.NOTIFY, would, lr_scale=run.lr_scale, needs_you=True, advice=(would,)
            )
        return decision

    def _written(self, incident: Incident, change: Change, decision: Decision) -> Incident:
        """Point 1: incident, intention and alert in one transaction, before anything is done."""
        acts = decision.action in ACTING and change is not Change.JOINED
        if acts:
            incident = replace(
                incident, lr_scale_before=self._run.lr_scale, lr_scale_after=decision.lr_scale
            )
        # A halt is told once, by its outcome, as soon as the checkpoint is safe.
        provisional = acts and decision.action is Action.HALT
        shown = replace(incident, needs_you=False) if provisional else incident
        alert = None
        if change is not Change.JOINED:
            wait_s = decision.delay_s
            alert = alerting.opened(self._run.settings.name, shown, backoff_s=wait_s)
        incident = self._journal.incident(incident, alert)
        return self._run.book.put(incident)

    def _tell(self, verdict: Verdict, decision: Decision, change: Change) -> None:
        self._effects.say(f"{verdict.severity}: {verdict.fault}: {verdict.reason}")
        if change is not Change.JOINED and decision.reason != verdict.reason:
            self._effects.say(f"intend: {decision.action}: {decision.reason}")

    def _act(
        self, incident: Incident, verdict: Verdict, decision: Decision, death: Death | None
    ) -> None:
        if self._recoverer.between_attempts or self._run.stop is not None:
            return  # the worker is already being dealt with
        if self._recoverer.is_going_back and death is None:
            return  # it still prints what the snapshot will undo
        self._recoverer.abandon(f"not cured: {verdict.fault} before the recovery was proved")
        self._recoverer.begin(incident, verdict, decision, death)

    def close_calm(self) -> None:
        """Close incidents that have been quiet long enough."""
        closed = self._run.book.calm(
            record_count=self._run.record_count,
            now_utc=self._effects.wall(),
            busy=self._recoverer.busy_incident,
        )
        if closed:
            self._journal.note(closed)

    def check_lr_proof(self, attempt: Attempt, record: StepMetric) -> None:
        """A learning rate that did not fall is an incident of its own, for a person."""
        watch = attempt.watch
        if watch is not None and watch.proof is LrProof.NOT_REDUCED:
            attempt.watch = None
            self.judge(_not_reduced(watch, record))


def _not_reduced(watch: LrWatch, record: StepMetric) -> Verdict:
    shown, expected = watch.evidence["lr"], watch.evidence["expected_lr"]
    return Verdict(
        at=record.at,
        fault=Fault.LR_NOT_REDUCED,
        severity=Severity.CRITICAL,
        reason=(
            f"the logged learning rate is {shown:.3g}, expected {expected:.3g};"
            " loading the optimizer or scheduler state may have overwritten it"
        ),
        onset=record.position,
        detected=record.position,
        onset_step=record.step,
        detected_step=record.step,
        evidence=watch.evidence,
    )


def death_verdict(attempt: Attempt, death: Death, *, at: float) -> Verdict:
    """What a death says, as a verdict. A numeric one began at the last record at the latest."""
    last, record = attempt.last, attempt.exited
    assert record is not None
    reason = f"the worker {describe(record)}: {death.cause}; {death.hint}"
    if death.evidence:
        reason += f" [{_quoted(death.evidence[-1])}]"
    numeric = death.fault in NUMERIC_FAULTS
    position = last.position if last else Position(attempt.number, 0)
    return Verdict(
        at=at,
        fault=death.fault,
        severity=Severity.CRITICAL,
        reason=reason,
        onset=position if numeric else None,
        detected=position if last else None,
        onset_step=last.step if numeric and last else None,
        detected_step=last.step if last else None,
        evidence={"lines": list(death.evidence)},
        cause=death.cause,
    )


def _died_of_numbers(verdict: Verdict, home: Incident) -> Verdict:
    """A script that dies right after a bad number died of it: go back to before that number."""
    return replace(
        verdict,
        fault=home.fault,
        reason=f"{home.reason}; then {verdict.reason}",
        onset=home.onset or verdict.onset,
        onset_step=home.onset_step if home.onset_step is not None else verdict.onset_step,
    )


def _quoted(line: str) -> str:
    """A worker's line as a reason quotes it: both ends, the middle left out."""
    if len(line) <= QUOTED_CHARS:
        return line
    half = QUOTED_CHARS // 2
    return f"{line[:half]} … {line[-half:]}"
