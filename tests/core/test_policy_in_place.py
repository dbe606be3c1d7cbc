"""Going back in place: before everything else, instead of it, or never; and what comes after."""

from __future__ import annotations

import pytest

from core_lab import verdict
from overnight.core.events import Action, Fault
from overnight.core.policy import Policy
from overnight.core.resume import Means, Route
from overnight.core.situation import FaultPolicy, PolicyConfig
from policy_lab import NUMERIC, now, past, target

PROBED = Means(Route.ARGUMENTS, lowers_lr=True, live=True, in_flight=True)
NO_FLAGS = Means(Route.NONE, lowers_lr=True, live=True, in_flight=True)


def decide(fault=Fault.LOSS_SPIKE, *targets, how=None, **more):
    faults = {fault: FaultPolicy(in_flight=how)} if how else {}
    situation = now(*targets, **{"means": PROBED, **more})
    return Policy(PolicyConfig(faults=faults)).decide(verdict(fault), situation)


@pytest.mark.parametrize("fault", NUMERIC)
@pytest.mark.parametrize("means", [PROBED, NO_FLAGS])
def test_a_numeric_fault_goes_back_in_place_first(fault, means):
    """Even where the script could be restarted, and above all where it could not."""
    decision = decide(fault, target(250), means=means)
    assert (decision.action, decision.in_flight) == (Action.ROLLBACK, True)
    assert (decision.lr_scale, decision.target, decision.delay_s) == (0.5, None, 0.0)
    assert "from before step" in decision.reason
    assert "without a restart" in decision.reason


@pytest.mark.parametrize("fault", [Fault.CRASH, Fault.STALL, Fault.GPU_HOT, Fault.CUDA_OOM])
def test_other_faults_need_a_new_process(fault):
    """A snapshot cures numbers only."""
    assert not decide(fault, target(250)).in_flight


def test_a_fault_that_comes_back_climbs_the_ladder():
    """A checkpoint where there is a route, else halt; far away it is another fault."""
    again = (past(Fault.LOSS_SPIKE, seen=390, in_flight=True),)
    decision = decide(Fault.LOSS_SPIKE, target(250), past=again)
    assert (decision.action, decision.in_flight) == (Action.ROLLBACK, False)
    assert decision.target is not None
    halted = decide(Fault.LOSS_SPIKE, target(250), past=again, means=NO_FLAGS)
    assert (halted.action, halted.needs_you) == (Action.HALT, True)
    far = (past(Fault.LOSS_SPIKE, seen=100, to=50, in_flight=True),)
    assert decide(Fault.LOSS_SPIKE, target(250), past=far).in_flight


def test_the_config_decides():
    """`never` restarts at once, `only` never restarts, and then the budget ends it."""
    assert not decide(Fault.LOSS_SPIKE, target(250), how="never").in_flight
    again = tuple(past(Fault.LOSS_SPIKE, seen=390, in_flight=True) for _ in range(2))
    assert decide(Fault.LOSS_SPIKE, target(250), how="only", past=again).in_flight
    spent = tuple(past(Fault.LOSS_SPIKE, seen=390, incident=1, in_flight=True) for _ in range(3))
    assert decide(Fault.LOSS_SPIKE, target(250), how="only", past=spent).action is Action.HALT


def test_the_floor_of_the_learning_rate_holds_in_place_too():
    """Below it nothing is trained any more."""
    decision = decide(Fault.LOSS_SPIKE, target(250), lr_scale=0.0625)
    assert decision.action is Action.HALT
    assert "floor" in decision.reason


def test_without_snapshots_it_is_as_without_the_probe():
    """They did not fit, or the probe is off."""
    blind = Means(Route.ARGUMENTS, lowers_lr=True, live=True)
    assert not decide(Fault.LOSS_SPIKE, target(250), means=blind).in_flight
