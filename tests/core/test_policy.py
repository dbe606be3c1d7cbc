"""The policy: every row of the table of what to do, row by row."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from core_lab import verdict
from overnight.core.events import Action, Fault, Health, Severity
from overnight.core.exits import Death
from overnight.core.policy import Policy
from overnight.core.resume import Means, Route
from overnight.core.situation import BudgetConfig, FaultPolicy, PolicyConfig, Situation
from policy_lab import NUMERIC, now, past, target

HEALTHY, VERIFIED = Health.HEALTHY, Health.VERIFIED
ROLLBACK, RESTART, COOL, HALT = Action.ROLLBACK, Action.RESTART, Action.COOL, Action.HALT
NO_ROUTE = Means(Route.NONE, lowers_lr=False)


def decide(fault: Fault, situation: Situation, death: Death | None = None, **config):
    """The decision on a critical verdict of that fault at step 400."""
    return Policy(PolicyConfig(**config)).decide(verdict(fault), situation, death)


def death(cause: str = "traceback", *, startup: bool = False) -> Death:
    """A death before the first record."""
    fault = Fault.STARTUP_FAILURE if startup else Fault.CRASH
    return Death(cause, fault, "a hint", ("RuntimeError: boom",), startup)


NEW_VERIFIED = now(target(390, VERIFIED), target(250))


# --- the table -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "action", "step", "lr_scale"),
    [
        *(pytest.param(fault, ROLLBACK, 250, 0.5, id=fault.value) for fault in NUMERIC),
        pytest.param(Fault.GPU_HOT, COOL, 250, 0.5, id="gpu-hot"),
        pytest.param(Fault.CRASH, RESTART, 390, 1.0, id="crash"),
        pytest.param(Fault.CUDA_OOM, RESTART, 390, 1.0, id="cuda-oom"),
        pytest.param(Fault.HOST_OOM, RESTART, 390, 1.0, id="host-oom"),
        pytest.param(Fault.STALL, RESTART, 250, 1.0, id="stall-healthy-first"),
        pytest.param(Fault.GPU_XID, RESTART, 250, 1.0, id="xid-healthy-first"),
        pytest.param(Fault.GPU_ECC, RESTART, 250, 1.0, id="ecc-healthy-first"),
        pytest.param(Fault.GPU_LOST, HALT, None, 1.0, id="gpu-lost"),
        pytest.param(Fault.STARTUP_FAILURE, HALT, None, 1.0, id="startup-failure"),
        pytest.param(Fault.DISK_FULL, HALT, None, 1.0, id="disk-full"),
        pytest.param(Fault.LR_NOT_REDUCED, Action.NOTIFY, None, 1.0, id="lr-not-reduced-no-kill"),
        pytest.param(Fault.SLOWDOWN, Action.NOTIFY, None, 1.0, id="slowdown"),
        pytest.param(Fault.CHECKPOINT_OVERDUE, Action.NOTIFY, None, 1.0, id="overdue"),
    ],
)
def test_defaults(fault: Fault, action: Action, step: int | None, lr_scale: float) -> None:
    """A newest verified one at 390, the newest healthy at 250."""
    decision = decide(fault, NEW_VERIFIED)
    chosen = decision.target.step if decision.target else None
    assert (decision.action, chosen, decision.lr_scale) == (action, step, lr_scale)
    assert decision.needs_you is (action is HALT)
    assert decision.reason.startswith(f"{fault} happened")


@pytest.mark.parametrize("fault", [*NUMERIC, Fault.STALL])
def test_without_a_healthy_one_the_newest_verified(fault: Fault) -> None:
    """Healthy first, else verified."""
    decision = decide(fault, now(target(390, VERIFIED), target(200, VERIFIED)))
    assert decision.target is not None
    assert decision.target.step == 390


@pytest.mark.parametrize("severity", [Severity.INFO, Severity.WARNING])
def test_only_critical_verdicts_are_acted_on(severity: Severity) -> None:
    """Everything else is told."""
    soft = verdict(Fault.LOSS_NONFINITE, severity=severity)
    assert Policy(PolicyConfig()).decide(soft, NEW_VERIFIED).action is Action.NOTIFY


@pytest.mark.parametrize("fault", [*NUMERIC, Fault.CRASH], ids=str)
def test_checkpoints_of_which_none_is_good_are_a_halt(fault: Fault) -> None:
    """Never the newest anyway."""
    decision = decide(fault, now(checkpoints_exist=True))
    assert decision.action is HALT
    assert "can be used" in decision.reason


@pytest.mark.parametrize(
    ("fault", "config", "action", "lr_scale"),
    [
        pytest.param(Fault.CRASH, {}, RESTART, 1.0, id="external"),
        pytest.param(Fault.GPU_HOT, {}, COOL, 1.0, id="hot-is-external-too"),
        pytest.param(Fault.LOSS_NONFINITE, {}, HALT, 1.0, id="numeric"),
        pytest.param(
            Fault.LOSS_NONFINITE, {"from_scratch": True}, ROLLBACK, 0.5, id="numeric-if-allowed"
        ),
    ],
)
@pytest.mark.parametrize("route", [Route.NONE, Route.ARGUMENTS])
def test_no_checkpoint_ever_seen(
    fault: Fault, config: dict, action: Action, lr_scale: float, route: Route
) -> None:
    """An external cause starts from scratch, a numeric one only if the config allows it."""
    decision = decide(fault, now(means=Means(route, lowers_lr=True)), **config)
    assert (decision.action, decision.lr_scale) == (action, lr_scale)
    assert decision.from_scratch is (action is not HALT)
    assert decision.target is None


@pytest.mark.parametrize("fault", [*NUMERIC, Fault.CRASH, Fault.STALL, Fault.GPU_HOT], ids=str)
def test_without_a_resume_route_nothing_is_relaunched(fault: Fault) -> None:
    """A script started at step 0 would overwrite its own checkpoints."""
    decision = decide(fault, now(target(390, VERIFIED), means=NO_ROUTE))
    assert (decision.action, decision.needs_you) == (HALT, True)
    assert decision.target is not None  # to be secured
    assert any("--resume-args" in line for line in decision.advice)
    assert any("ckpt/step_390.pt" in line for line in decision.advice)


def test_without_a_route_and_without_a_good_checkpoint_it_halts_too() -> None:
    """Checkpoints exist, though none can be used: they must not be overwritten either."""
    decision = decide(Fault.CRASH, now(checkpoints_exist=True, means=NO_ROUTE))
    assert (decision.action, decision.target) == (HALT, None)
    assert decision.advice


# --- deaths before the first record --------------------------------------------------------------


def test_a_startup_failure_halts_at_once() -> None:
    """A missing module is missing the second time as well."""
    dead = death("missing-module", startup=True)
    assert decide(Fault.CRASH, now(any_record=False), dead).action is HALT


def test_another_death_is_tried_again_and_the_same_one_halts() -> None:
    """Equal signatures: it would die a third time."""
    dead = death()
    once = now(any_record=False, signatures=(dead.signature,))
    assert decide(Fault.CRASH, once, dead).action is RESTART
    twice = now(any_record=False, signatures=(dead.signature, "other", dead.signature))
    halted = decide(Fault.CRASH, twice, dead)
    assert halted.action is HALT
    assert halted.reason == "crash happened; it died the same way before"


def test_a_rejected_checkpoint_is_passed_over() -> None:
    """Death before the first record after a resume: one further back, then halt."""
    dead = death()
    more = {"any_record": False, "records_since_resume": 0}
    first = now(target(390), target(250), target(200), signatures=(dead.signature,), **more)
    decision = decide(Fault.CRASH, first, dead)
    assert decision.action is RESTART
    assert decision.target is not None
    assert (decision.target.step, decision.lr_scale) == (250, 1.0)
    second = now(target(250), target(200), signatures=(dead.signature,) * 2, **more)
    assert decide(Fault.CRASH, second, dead).action is HALT


def test_an_early_death_without_a_route_does_not_relaunch_over_checkpoints() -> None:
    """The same rule as for later deaths."""
    situation = now(target(390), any_record=False, means=NO_ROUTE)
    assert decide(Fault.CRASH, situation, death()).action is HALT


# --- overrides -----------------------------------------------------------------------------------


@pytest.mark.parametrize("action", [Action.RECORD, Action.NOTIFY, HALT, RESTART])
def test_the_config_may_choose_another_action(action: Action) -> None:
    """`[policy.FAULT] action`."""
    config = {Fault.LOSS_SPIKE: FaultPolicy(action=action)}
    assert decide(Fault.LOSS_SPIKE, NEW_VERIFIED, faults=config).action is action


def test_the_config_may_choose_another_factor() -> None:
    """`[policy.FAULT] lr_factor`, for external causes too."""
    config = {fault: FaultPolicy(lr_factor=0.8) for fault in (Fault.LOSS_SPIKE, Fault.CRASH)}
    assert decide(Fault.LOSS_SPIKE, NEW_VERIFIED, faults=config).lr_scale == 0.8
    assert decide(Fault.CRASH, NEW_VERIFIED, faults=config).lr_scale == 0.8


def test_an_action_that_does_nothing_is_refused() -> None:
    """`checkpoint` alone would leave a critical fault running without a word."""
    with pytest.raises(ValidationError, match="no action of a policy"):
        FaultPolicy(action=Action.CHECKPOINT)


def test_a_rate_that_the_script_cannot_take_is_said() -> None:
    """The reason names the missing {lr}."""
    blind = now(target(250), means=Means(Route.ARGUMENTS, lowers_lr=False))
    assert "no {lr} in resume.args" in decide(Fault.LOSS_SPIKE, blind).reason


def test_only_a_hot_card_is_stopped_gracefully() -> None:
    """What a worker saves after a numeric fault is poisoned."""
    assert decide(Fault.GPU_HOT, NEW_VERIFIED).graceful
    assert not decide(Fault.LOSS_SPIKE, NEW_VERIFIED).graceful


def test_the_limits_of_the_budget_are_configurable() -> None:
    """`[budget]` counts from its own numbers."""
    history = (past(Fault.CRASH, reached=9000, incident=1),)
    config = BudgetConfig(attempts=1)
    assert decide(Fault.CRASH, now(target(250), past=history), budget=config).action is HALT
