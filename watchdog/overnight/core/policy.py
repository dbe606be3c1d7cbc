"""What to do about a verdict: one action, with the checkpoint, the learning rate and a reason.

The defaults in a sentence: numeric faults roll back to before their onset with half the
learning rate, external causes keep it, and without a resume route nothing is ever relaunched that
could overwrite its own checkpoints. Measured on 9 seeded divergences, the same rate diverged again
9 of 9 times, x0.9 9, x0.7 4, x0.5 none (docs/science.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from overnight.core.advice import resume_advice
from overnight.core.causes import Retry
from overnight.core.events import (
    NUMERIC_FAULTS,
    Action,
    Decision,
    Fault,
    Health,
    Severity,
    Target,
    Verdict,
)
from overnight.core.exits import Death
from overnight.core.recurrence import oldest_tried, same_fault
from overnight.core.resume import Means, Route
from overnight.core.situation import PastRecovery, PolicyConfig, Situation

CLIMB_STEPS = 200
"""After a thermal stop nothing was wrong with the training: the rate returns this much later."""

REJECTED_RECORDS = 20
"""A numeric fault this soon after a resume says that the checkpoint itself is not sound."""

_FACTORS: Mapping[Fault, float] = {
    **dict.fromkeys(NUMERIC_FAULTS, 0.5),
    Fault.GPU_HOT: 0.5,
}

_RESTART = frozenset(
    {Fault.CRASH, Fault.CUDA_OOM, Fault.HOST_OOM, Fault.STALL, Fault.GPU_XID, Fault.GPU_ECC}
)
_HEALTHY_FIRST = frozenset({Fault.STALL, Fault.GPU_XID, Fault.GPU_ECC, Fault.GPU_HOT})
"""Faults that may have harmed the state without a number to show for it."""


class Policy:
    """decide() is a pure function of its arguments and the config."""

    def __init__(self, config: PolicyConfig) -> None:
        self._config = config

    def decide(self, verdict: Verdict, now: Situation, death: Death | None = None) -> Decision:
        """The one thing to do, and why. `death` is given where the worker has died by itself."""
        if verdict.severity is not Severity.CRITICAL:
            return Decision(Action.NOTIFY, verdict.reason, lr_scale=now.lr_scale)
        action = self._action(verdict.fault)
        if action in (Action.RECORD, Action.NOTIFY):
            return Decision(
                action, f"{verdict.reason}; the config only tells", lr_scale=now.lr_scale
            )
        if action is Action.HALT:
            return self._halt(now, verdict.reason)
        reboot = death is not None and death.retry is Retry.NEEDS_REBOOT
        spent = "a restart would fail until the reboot" if reboot else self._budget_spent(now)
        if spent:
            return self._halt(now, f"{verdict.reason}; {spent}")
        if death is not None and not now.any_record:
            return self._died_before_training(verdict, now, death)
        return self._resume(verdict, now, action)

    def first(
        self,
        targets: Sequence[Target],
        *,
        means: Means,
        checkpoints_exist: bool,
        careful: bool,
    ) -> Decision:
        """Where a run that a person starts again goes on; never over its own checkpoints.

        `careful` after a halt on a bad number: what is healthy comes before what is only verified.
        """
        healthy = [target for target in targets if target.health is Health.HEALTHY]
        choices = healthy or targets if careful else targets
        if not choices and not checkpoints_exist:
            return Decision(Action.RESTART, "no checkpoint yet, from scratch", from_scratch=True)
        if means.route is Route.NONE:
            best = choices[0] if choices else None
            reason = "the run has checkpoints, but no known way to resume from them"
            return Decision(Action.HALT, reason, needs_you=True, advice=resume_advice(best))
        if not choices:
            reason = "none of the run's checkpoints is verified; --fresh would start it over"
            return Decision(Action.HALT, reason, needs_you=True)
        return Decision(Action.RESTART, choices[0].why, target=choices[0])

    def intent(self, verdict: Verdict) -> Action:
        """What would be done where every way is open: for an old log, of which nothing is left."""
        if verdict.severity is not Severity.CRITICAL:
            return Action.NOTIFY
        return self._action(verdict.fault)

    def _action(self, fault: Fault) -> Action:
        override = self._config.faults.get(fault)
        if override is not None and override.action is not None:
            return override.action
        if fault in NUMERIC_FAULTS:
            return Action.ROLLBACK
        if fault is Fault.GPU_HOT:
            return Action.COOL
        if fault in _RESTART:
            return Action.RESTART
        if fault in (Fault.GPU_LOST, Fault.STARTUP_FAILURE, Fault.DISK_FULL):
            return Action.HALT
        return Action.NOTIFY

    # --- ways to go on -------------------------------------------------------------------------

    def _resume(self, verdict: Verdict, now: Situation, action: Action) -> Decision:
        if action is Action.ROLLBACK and self._may_stay(verdict, now):
            return self._in_place(verdict, now)
        if now.means.route is Route.NONE:
            if now.checkpoints_exist:
                return self._no_route(verdict, now)
            return self._no_checkpoint(verdict, now, action)
        same = same_fault(verdict, now.past)
        target = self._target(verdict, now, same)
        if target is None:
            if now.checkpoints_exist or now.targets:
                return self._halt(
                    now, f"{verdict.reason}; no checkpoint {_needed(verdict)} can be used"
                )
            return self._no_checkpoint(verdict, now, action)
        return self._with_target(verdict, now, action=action, target=target, same=same)

    def _may_stay(self, verdict: Verdict, now: Situation) -> bool:
        """Whether the worker may go back in place; a fault that came back asks for more."""
        override = self._config.faults.get(verdict.fault)
        how = (override.in_flight if override else None) or "first"
        numeric = verdict.fault in NUMERIC_FAULTS and verdict.onset_step is not None
        if how == "never" or not (numeric and now.means.in_flight):
            return False
        return how == "only" or not any(p.in_flight for p in same_fault(verdict, now.past))

    def _in_place(self, verdict: Verdict, now: Situation) -> Decision:
        lr_scale = now.lr_scale * self._factor(verdict.fault)
        if self._below_floor(lr_scale, now):
            return self._at_floor(verdict, now)
        reason = (
            f"{verdict.reason}; go back in place to a snapshot from before step"
            f" {verdict.onset_step} with the learning rate x{lr_scale:g}, without a restart"
        )
        return Decision(Action.ROLLBACK, reason, lr_scale=lr_scale, in_flight=True)

    def _with_target(
        self,
        verdict: Verdict,
        now: Situation,
        *,
        action: Action,
        target: Target,
        same: Sequence[PastRecovery],
    ) -> Decision:
        lr_scale = now.lr_scale * self._factor(verdict.fault)
        if self._below_floor(lr_scale, now):
            return self._at_floor(verdict, now)
        step = "an unknown step" if target.step is None else f"step {target.step}"
        reason = f"{verdict.reason}; resume from {step} ({target.health}: {target.why})"
        if lr_scale != now.lr_scale:
            reason += f" with the learning rate x{lr_scale:g}"
            if not now.means.lowers_lr:
                reason += ", which this script may not take: no {lr} in resume.args"
        if same:
            reason += f"; this fault came back, try {len(same) + 1}"
        decision = Decision(
            action=action,
            reason=reason,
            target=target,
            lr_scale=lr_scale,
            delay_s=self._delay(verdict.fault, now),
            graceful=verdict.fault is Fault.GPU_HOT,
            skip=self._skip(verdict, now, same),
            climb_steps=self._climb_steps(verdict.fault, lowered=lr_scale < now.lr_scale),
        )
        return _relieved(decision, verdict.fault, now)

    def _no_route(self, verdict: Verdict, now: Situation) -> Decision:
        best = self._target(verdict, now, ())
        reason = f"{verdict.reason}; the script has no known way to resume"
        if best is not None:
            step = "its best checkpoint" if best.step is None else f"that of step {best.step}"
            reason += f", so {step} ({best.health}) is kept safe and nothing is relaunched"
        else:
            reason += ", and starting it again would overwrite its checkpoints"
        return replace(self._halt(now, reason), target=best, advice=resume_advice(best))

    def _no_checkpoint(self, verdict: Verdict, now: Situation, action: Action) -> Decision:
        numeric = verdict.fault in NUMERIC_FAULTS
        if numeric and not self._config.from_scratch:
            return self._halt(
                now,
                f"{verdict.reason}; there is no checkpoint to go back to, and starting over is off",
            )
        lr_scale = now.lr_scale * (self._factor(verdict.fault) if numeric else 1.0)
        if self._below_floor(lr_scale, now):
            return self._at_floor(verdict, now)
        decision = Decision(
            action=action,
            reason=f"{verdict.reason}; no checkpoint yet, so the run starts from scratch",
            lr_scale=lr_scale,
            delay_s=self._delay(verdict.fault, now),
            from_scratch=True,
        )
        return _relieved(decision, verdict.fault, now)

    def _died_before_training(self, verdict: Verdict, now: Situation, death: Death) -> Decision:
        if death.startup:
            return self._halt(now, f"{verdict.reason}; it would fail again the same way")
        if now.signatures.count(death.signature) >= 2:
            return self._halt(now, f"{verdict.reason}; it died the same way before")
        if now.means.route is Route.NONE and now.checkpoints_exist:
            return self._no_route(verdict, now)
        if not now.targets and now.checkpoints_exist:
            return self._halt(now, f"{verdict.reason}; there is no checkpoint {_needed(verdict)}")
        if now.records_since_resume is None or not now.targets:
            return self._no_checkpoint(verdict, now, Action.RESTART)
        rejected = now.targets[1:] or now.targets
        return self._with_target(verdict, now, action=Action.RESTART, target=rejected[0], same=())

    # --- choices -------------------------------------------------------------------------------

    def _target(
        self, verdict: Verdict, now: Situation, same: Sequence[PastRecovery]
    ) -> Target | None:
        """Healthy before verified where the state may be harmed; further back when it came back."""
        healthy = [t for t in now.targets if t.health is Health.HEALTHY]
        careful = verdict.fault in NUMERIC_FAULTS or verdict.fault in _HEALTHY_FIRST
        ordered = healthy + [t for t in now.targets if t.health is not Health.HEALTHY]
        choices = ordered if careful else list(now.targets)
        choices = [t for t in choices if not self._rejected(t, verdict, now)]
        if verdict.fault in NUMERIC_FAULTS and same and verdict.onset_step is not None:
            reach = max((past.reach_steps or 0) for past in same)
            far = [
                t
                for t in choices
                if t.step is not None and verdict.onset_step - t.step >= 2 * max(reach, 1)
            ]
            older = [t for t in choices if t.step is not None and t.step < oldest_tried(same)]
            choices = far or older
        return choices[0] if choices else None

    def _rejected(self, target: Target, verdict: Verdict, now: Situation) -> bool:
        """Whether a numeric fault right after the resume speaks against this checkpoint."""
        records = now.records_since_resume
        soon = records is not None and records <= REJECTED_RECORDS
        soon = soon or "resumed_step" in verdict.evidence  # its loss never came back
        if not (soon and now.past and verdict.fault in NUMERIC_FAULTS):
            return False
        tried = now.past[-1].target_step
        return tried is not None and target.step is not None and target.step >= tried

    def _factor(self, fault: Fault) -> float:
        override = self._config.faults.get(fault)
        if override is not None and override.lr_factor is not None:
            return override.lr_factor
        return _FACTORS.get(fault, 1.0)

    def _climb_steps(self, fault: Fault, *, lowered: bool) -> int | None:
        """Clean steps after which the rate returns to what it was; None: it stays."""
        override = self._config.faults.get(fault)
        wanted = override.lr_climb_after_steps if override else None
        if wanted is None and fault is Fault.GPU_HOT:
            wanted = CLIMB_STEPS
        return wanted if lowered and wanted else None

    def _skip(
        self, verdict: Verdict, now: Situation, same: Sequence[PastRecovery]
    ) -> tuple[int, int] | None:
        """The data window of a numeric fault that came back: 10 steps either side, 500 at most."""
        override = self._config.faults.get(verdict.fault)
        wanted = override is None or override.skip is not False
        known = verdict.onset_step is not None and verdict.detected_step is not None
        numeric = verdict.fault in NUMERIC_FAULTS
        if not (same and numeric and known and wanted and now.means.skips):
            return None
        assert verdict.onset_step is not None
        assert verdict.detected_step is not None
        first = max(0, verdict.onset_step - 10)
        return first, min(verdict.detected_step + 10, first + 500)

    # --- limits --------------------------------------------------------------------------------

    def _below_floor(self, lr_scale: float, now: Situation) -> bool:
        """Whether a reduction would leave too little to train with."""
        return lr_scale < min(self._config.min_lr_scale, now.lr_scale)

    def _at_floor(self, verdict: Verdict, now: Situation) -> Decision:
        floor = self._config.min_lr_scale
        return self._halt(now, f"{verdict.reason}; the learning rate is at its floor (x{floor:g})")

    def _stuck(self, now: Situation) -> int:
        """Recoveries in a row, newest first, that led to no real progress."""
        count = 0
        for past in reversed(now.past):
            if past.reached_step is not None and past.target_step is not None:
                progress = past.reached_step - past.target_step
                if progress >= self._config.budget.min_progress_steps:
                    break
            count += 1
        return count

    def _budget_spent(self, now: Situation) -> str:
        budget = self._config.budget
        mine = [past for past in now.past if past.incident == now.incident]
        if len(mine) >= budget.attempts:
            return f"{len(mine)} recoveries did not cure it"
        if self._stuck(now) >= budget.stuck:
            return (
                f"{budget.stuck} recoveries without {budget.min_progress_steps} steps of progress"
            )
        recent = [past for past in now.past if now.now_utc - past.at_utc < budget.window_s]
        if len(recent) >= budget.recoveries:
            return f"{len(recent)} recoveries within {budget.window_s / 3600:.0f} h"
        return ""

    def _delay(self, fault: Fault, now: Situation) -> float:
        """Back-off in seconds: 0, 10, 20, 40 ... and 0 again after real progress.

        Never less than the config wants after this fault.
        """
        override = self._config.faults.get(fault)
        least = (override.delay_s if override else None) or 0.0
        stuck = self._stuck(now)
        if stuck == 0:
            return least
        budget = self._config.budget
        doublings = min(stuck - 1, 60)  # a float ends at 2^1024, and no limit is 2^60 s
        return max(least, min(budget.backoff_max_s, budget.backoff_s * 2.0**doublings))

    def _halt(self, now: Situation, reason: str) -> Decision:
        advice: tuple[str, ...] = ()
        if now.means.route is not Route.NONE and now.targets:
            scale = max(self._config.min_lr_scale, now.lr_scale / 2)
            flags = f"--from-checkpoint {now.targets[0].path} --lr-scale {scale:g}"
            advice = (
                "look at the loss and at the last lines of worker.log; to go on from a checkpoint",
                f"of your choice, for example: overnight run {flags} -- CMD",
            )
        return Decision(Action.HALT, reason, lr_scale=now.lr_scale, needs_you=True, advice=advice)


def _relieved(decision: Decision, fault: Fault, now: Situation) -> Decision:
    """After an OOM: first the allocator that fragments less, then half the batch, if it can be."""
    relief = now.relief + 1 if fault is Fault.CUDA_OOM else now.relief
    if relief >= 2 and not now.means.halves_batch:
        relief = 1
    if relief == now.relief:
        return replace(decision, relief=relief)
    how = "with expandable_segments:True for the allocator"
    if relief >= 2:
        how = f"with the batch size divided by {2 ** (relief - 1)}"
    return replace(decision, relief=relief, reason=f"{decision.reason}, {how}")


def _needed(verdict: Verdict) -> str:
    """What kind of checkpoint was looked for."""
    if verdict.fault in NUMERIC_FAULTS:
        step = "" if verdict.onset_step is None else f" (step {verdict.onset_step})"
        return f"from before the onset{step} that is proved good"
    return "that is verified and not suspect"
