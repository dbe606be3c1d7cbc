"""The policy when a fault comes back: further back, slower, past the data, and then no more."""

from __future__ import annotations

import pytest

from core_lab import identity, verdict
from overnight.core.events import Action, Fault, Health, Position, Target
from overnight.core.policy import Policy
from overnight.core.policy import Situation as Now
from overnight.core.resume import Means, Route
from overnight.core.situation import BudgetConfig, FaultPolicy, PastRecovery, PolicyConfig

NAN, SPIKE, CRASH = Fault.LOSS_NONFINITE, Fault.LOSS_SPIKE, Fault.CRASH


def targets(*steps: int, health: Health = Health.HEALTHY) -> tuple[Target, ...]:
    """Checkpoints, newest first."""
    return tuple(
        Target(f"{step}.pt", step, health, Position(1, step), identity(f"{step}.pt"), "good")
        for step in steps
    )


def past(to: int | None, *, fault: Fault = NAN, seen: int = 400, reached: int = 400, **more):
    """One recovery of the past."""
    values = {"at_utc": 900.0, "incident": 1, "onset_step": seen, **more}
    return PastRecovery(
        fault=fault, detected_step=seen, target_step=to, reached_step=reached, **values
    )


def now(steps: tuple[int, ...] = (350, 300, 250, 200, 100), *history: PastRecovery, **more) -> Now:
    """A situation in incident 1, with healthy checkpoints at these steps."""
    values = {
        "now_utc": 1000.0,
        "means": Means(Route.ARGUMENTS, lowers_lr=True, skips=True),
        "targets": targets(*steps),
        "checkpoints_exist": bool(steps),
        "any_record": True,
        "lr_scale": 1.0,
        "incident": 1,
        "past": history,
    }
    return Now(**{**values, **more})


def decide(fault: Fault, situation: Now, *, step: int = 400, **config):
    """The decision on a critical verdict at a step."""
    return Policy(PolicyConfig(**config)).decide(verdict(fault, step=step), situation)


def step_of(decision) -> int | None:
    """Where it resumes."""
    return decision.target.step if decision.target else None


ROOMY = BudgetConfig(attempts=100, recoveries=100, stuck=100)


# --- the same fault again ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("history", "expected"),
    [
        pytest.param([], 350, id="first-time-the-newest"),
        pytest.param([past(350)], 300, id="again-twice-as-far-back"),
        pytest.param([past(350), past(300)], 200, id="and-four-times"),
        pytest.param([past(350, seen=100)], 350, id="far-away-is-another-fault"),
        pytest.param([past(350, seen=600)], 300, id="within-200-steps-is-the-same"),
        pytest.param([past(350, fault=CRASH)], 350, id="another-fault"),
        pytest.param([past(150)], 100, id="not-twice-as-far-but-older"),
    ],
)
def test_it_goes_further_back(history: list[PastRecovery], expected: int) -> None:
    """At least twice as far as before; else at least an older one."""
    assert step_of(decide(NAN, now((350, 300, 250, 200, 100), *history), budget=ROOMY)) == expected


def test_with_nothing_older_it_halts() -> None:
    """The only checkpoint has been tried."""
    decision = decide(NAN, now((350,), past(350)))
    assert decision.action is Action.HALT


def test_the_rate_falls_each_time_and_ends_at_its_floor() -> None:
    """x0.5, x0.25, x0.125, x0.0625, halt."""
    scale, seen = 1.0, []
    for _attempt in range(6):
        decision = decide(NAN, now(lr_scale=scale))
        if decision.action is Action.HALT:
            break
        scale = decision.lr_scale
        seen.append(scale)
    assert seen == [0.5, 0.25, 0.125, 0.0625]
    assert decision.reason == "loss-nonfinite happened; the learning rate is at its floor (x0.0625)"
    assert decision.lr_scale == 0.0625


def test_the_floor_holds_from_scratch_too() -> None:
    """No checkpoint, allowed to start over: not below the floor either."""
    situation = now((), lr_scale=0.0625)
    assert decide(NAN, situation, from_scratch=True).action is Action.HALT


def test_a_crash_below_the_floor_is_no_reason_to_halt() -> None:
    """A rate that a person set by hand is not reduced by a restart."""
    decision = decide(CRASH, now(lr_scale=0.01))
    assert (decision.action, decision.lr_scale) == (Action.RESTART, 0.01)


@pytest.mark.parametrize(
    ("history", "means", "override", "skip"),
    [
        pytest.param([], True, None, None, id="not-the-first-time"),
        pytest.param([past(350)], True, None, (390, 410), id="the-second-time"),
        pytest.param([past(350)], False, None, None, id="a-script-that-cannot"),
        pytest.param([past(350)], True, False, None, id="switched-off"),
    ],
)
def test_the_data_window_is_skipped(
    history: list[PastRecovery], means: bool, override: bool | None, skip: tuple | None
) -> None:
    """Ten steps either side, once the fault has come back."""
    situation = now((350, 300), *history, means=Means(Route.ARGUMENTS, lowers_lr=True, skips=means))
    faults = {} if override is None else {NAN: FaultPolicy(skip=override)}
    assert decide(NAN, situation, faults=faults).skip == skip


def test_the_data_window_is_never_wider_than_500_steps() -> None:
    """A slow divergence does not throw away an epoch."""
    policy = Policy(PolicyConfig())
    slow = verdict(SPIKE, step=2000, onset=400)
    history = past(300, fault=SPIKE, seen=2000, reached=5000, onset_step=400)
    assert policy.decide(slow, now((100,), history)).skip == (390, 890)


def test_external_faults_skip_nothing() -> None:
    """The data has no part in a crash."""
    assert decide(CRASH, now((350,), past(350, fault=CRASH))).skip is None


@pytest.mark.parametrize(
    ("records", "expected"),
    [(0, 300), (20, 300), (21, 350), (None, 350)],
    ids=["at-once", "20-records", "later", "never-resumed"],
)
def test_a_numeric_fault_right_after_a_resume_rejects_the_checkpoint(
    records: int | None, expected: int
) -> None:
    """Whatever its name, within 20 records it speaks against the state that was restored."""
    history = past(350, fault=SPIKE)
    situation = now((350, 300), history, records_since_resume=records)
    assert step_of(decide(NAN, situation)) == expected


def test_a_crash_right_after_a_resume_rejects_nothing() -> None:
    """Only numbers speak against a checkpoint that has given records."""
    situation = now((350, 300), past(350, fault=CRASH), records_since_resume=5)
    assert step_of(decide(CRASH, situation)) == 350


# --- budget and back-off -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("history", "reason"),
    [
        pytest.param([past(0, reached=900)] * 3, "3 recoveries did not cure it", id="attempts"),
        pytest.param(
            [past(350, incident=i, reached=360) for i in (7, 8, 9)],
            "3 recoveries without 200 steps of progress",
            id="stuck",
        ),
        pytest.param(
            [past(0, incident=i, reached=900) for i in range(10, 20)],
            "10 recoveries within 24 h",
            id="recoveries",
        ),
    ],
)
def test_the_budget_ends_it(history: list[PastRecovery], reason: str) -> None:
    """A crash loop is for a person."""
    decision = decide(CRASH, now((350,), *history))
    assert (decision.action, decision.needs_you) == (Action.HALT, True)
    assert decision.reason == f"crash happened; {reason}"


@pytest.mark.parametrize(
    "history",
    [
        pytest.param([past(0, reached=900)] * 2, id="two-attempts"),
        pytest.param(
            [past(350, incident=7), past(350, incident=8), past(0, incident=9, reached=900)],
            id="progress-in-between",
        ),
        pytest.param(
            [past(0, incident=i, reached=900, at_utc=-90_000.0) for i in range(10, 20)],
            id="long-ago",
        ),
    ],
)
def test_within_the_budget_it_goes_on(history: list[PastRecovery]) -> None:
    """Real progress and time forgive."""
    assert decide(CRASH, now((350,), *history)).action is Action.RESTART


def test_back_off_doubles_to_ten_minutes() -> None:
    """0, 10, 20, 40 ... 600 s while there is no progress."""
    delays = []
    for count in range(9):
        history = [past(350, fault=CRASH, incident=i + 5, reached=360) for i in range(count)]
        delays.append(decide(CRASH, now((350,), *history), budget=ROOMY).delay_s)
    assert delays == [0, 10, 20, 40, 80, 160, 320, 600, 600]


def test_back_off_starts_anew_after_progress_and_never_overflows() -> None:
    """200 steps are progress; a thousand restarts are still ten minutes apart."""
    history = [past(350, incident=5, reached=360), past(350, incident=6, reached=560)]
    assert decide(CRASH, now((350,), *history), budget=ROOMY).delay_s == 0
    endless = BudgetConfig(attempts=10_000, recoveries=10_000, stuck=10_000)
    history = [past(350, incident=5, reached=360)] * 2000
    assert decide(CRASH, now((350,), *history), budget=endless).delay_s == 600
