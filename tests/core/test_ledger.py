"""The checkpoint ledger: what is healthy, what is suspect, what a rollback may use."""

from __future__ import annotations

import pytest

from core_lab import checked, identity, record, seen
from ledger_lab import Run
from overnight.core.checkpoints import CheckpointsConfig
from overnight.core.events import Health, Position
from overnight.core.health import Ledger

CANDIDATE, VERIFIED, HEALTHY = Health.CANDIDATE, Health.VERIFIED, Health.HEALTHY
SUSPECT, CORRUPT = Health.SUSPECT, Health.CORRUPT


# --- from candidate to healthy -------------------------------------------------------------------


def test_the_life_of_a_checkpoint() -> None:
    """Candidate, verified, and healthy when 100 clean steps have followed."""
    run = Run()
    run.train(250)
    saved = run.save(health=None)
    assert run.health(saved) is CANDIDATE
    run.ledger.checked(checked(saved))
    run.train(349)
    assert run.health(saved) is VERIFIED
    run.train(350)
    assert run.health(saved) is HEALTHY


@pytest.mark.parametrize(
    ("stride", "every", "trained", "onset", "best"),
    [
        pytest.param(1, 50, 399, 400, (250, HEALTHY), id="onset-400-saved-every-50"),
        pytest.param(100, 500, 45_300, 45_300, (45_000, HEALTHY), id="onset-45300-at-stride-100"),
        pytest.param(500, 1000, 4500, 5000, (3000, HEALTHY), id="two-records-are-needed-at-least"),
    ],
)
def test_the_newest_healthy_one_before_the_onset(
    stride: int, every: int, trained: int, onset: int, best: tuple[int, Health]
) -> None:
    """The examples of the design."""
    run = Run(stride=stride)
    run.train_and_save(trained, every=every)
    run.train(trained)
    healthy = [t for t in run.targets(onset) if t[1] is HEALTHY]
    assert healthy[0] == best


def test_without_any_step_100_clean_records_are_needed() -> None:
    """A checkpoint without a step, seen before the first record, is not trusted after two."""
    run = Run()
    saved = run.save("best.pt", step=None, saved_utc=1.0)
    run.last = record(45_000, position=Position(1, 0))
    run.train(45_099)
    assert run.health(saved) is VERIFIED
    run.train(45_100)
    assert run.health(saved) is HEALTHY


def test_a_suspect_record_in_its_hundred_steps_keeps_it_verified() -> None:
    """It is no worse than before, but never proved healthy."""
    run = Run()
    run.train(250)
    saved = run.save()
    run.train(299)
    run.train(300, suspect=True)
    assert run.health(saved) is VERIFIED
    run.train(600)
    assert run.health(saved) is VERIFIED


def test_lost_records_prove_nothing() -> None:
    """Where part of the log was not read, nothing that waits becomes healthy."""
    run = Run()
    run.train(100)
    early = run.save()
    run.train(220)
    late = run.save()
    run.ledger.records_lost()
    run.train(500)
    assert (run.health(early), run.health(late)) == (HEALTHY, VERIFIED)


def test_a_healthy_one_stays_healthy_through_later_suspicion() -> None:
    """Its hundred steps are behind it."""
    run = Run()
    run.train(100)
    saved = run.save()
    run.train(200)
    run.train(210, suspect=True)
    assert run.health(saved) is HEALTHY


# --- episodes ------------------------------------------------------------------------------------


def test_what_is_saved_in_an_open_episode_is_suspect_and_no_target() -> None:
    """From the first suspect record on, whether or not a verdict follows."""
    run = Run()
    run.train(250)
    run.save()
    run.train(300)
    run.train(303, suspect=True, since=Position(1, 301))
    inside = run.save()
    run.train(310, since=Position(1, 301))
    later = run.save()
    assert (run.health(inside), run.health(later)) == (SUSPECT, SUSPECT)
    assert run.targets() == [(250, VERIFIED)]


def test_an_episode_that_closes_by_itself_gives_back() -> None:
    """Verified again, and it can still become healthy."""
    run = Run()
    run.train(300)
    run.train(303, suspect=True, since=Position(1, 301))
    inside = run.save()
    run.train(306, suspect=True, since=Position(1, 301))
    run.train(406, since=Position(1, 301))
    assert run.health(inside) is SUSPECT
    run.train(407)
    assert run.health(inside) is VERIFIED
    run.train(510)
    assert run.health(inside) is HEALTHY


def test_an_episode_with_a_critical_verdict_gives_nothing_back() -> None:
    """What was saved in it stays suspect, also from before the onset of the verdict."""
    run = Run()
    run.train(300)
    run.train(303, suspect=True, since=Position(1, 301))
    inside = run.save()
    run.train(320, suspect=True, since=Position(1, 301))
    run.ledger.numeric_fault(onset=Position(1, 310), onset_step=310, name="loss-spike")
    run.train(500)
    assert run.health(inside) is SUSPECT


# --- faults and targets --------------------------------------------------------------------------


def test_a_numeric_fault_makes_suspect_what_came_at_or_after_its_onset() -> None:
    """The reason names the fault; what came before is untouched."""
    run = Run()
    run.train_and_save(400, every=100)
    hit = run.ledger.numeric_fault(onset=Position(1, 300), onset_step=300, name="loss-nonfinite")
    assert [entry.step for entry in hit] == [300, 400]
    rows = {entry.step: (health, why) for entry, health, why in run.ledger.listing()}
    assert rows[300] == (SUSPECT, "saved at or after the onset of loss-nonfinite at step 300")
    assert rows[200][0] is HEALTHY
    assert run.targets(300) == [(200, HEALTHY), (100, HEALTHY)]


def test_external_causes_make_nothing_suspect() -> None:
    """Without an onset every verified one is a target, newest first."""
    run = Run()
    run.train_and_save(300, every=100)
    assert [step for step, _health in run.targets()] == [300, 200, 100]


@pytest.mark.parametrize("health", [CORRUPT, Health.UNVERIFIED, None], ids=str)
def test_what_is_not_verified_is_no_target(health: Health | None) -> None:
    """Never the newest anyway."""
    run = Run()
    run.train(100)
    run.save(health=health)
    run.train(300)
    assert run.targets() == []


def test_unchecked_candidates_before_the_onset_come_newest_first() -> None:
    """They are verified on demand before a recovery."""
    run = Run()
    for step in (100, 200, 300):
        run.train(step)
        run.save(health=None)
    found = run.ledger.unchecked(onset=Position(1, 250), onset_step=250)
    assert [entry.step for entry in found] == [200, 100]
    assert len(run.ledger.unchecked()) == 3


@pytest.mark.parametrize(
    ("named", "logged", "stride", "ordered_by"),
    [
        pytest.param(45_000, 45_000, 100, 45_000, id="its-own"),
        pytest.param(45_050, 45_000, 100, 45_050, id="within-a-stride"),
        pytest.param(3, 45_000, 100, 45_000, id="an-epoch-number"),
        pytest.param(None, 45_000, 100, 45_000, id="no-step"),
        pytest.param(45_000, None, 1, 45_000, id="before-the-first-record"),
    ],
)
def test_the_step_that_orders(
    named: int | None, logged: int | None, stride: int, ordered_by: int
) -> None:
    """The step in a name orders only within one log stride of the logged one."""
    last = None if logged is None else record(logged)
    ledger = Ledger(CheckpointsConfig())
    entry = ledger.seen(seen(identity(), step=named), last=last, stride=stride)
    assert (entry.step, entry.order_step) == (named, ordered_by)


def test_a_later_step_than_the_onset_is_no_target_whatever_its_position() -> None:
    """A foreign checkpoint of step 45,000 does not serve a run that fails at step 400."""
    run = Run()
    run.save("old/step_45000.pt", step=45_000)
    run.train(400)
    assert run.targets(400) == []


@pytest.mark.parametrize(
    ("every", "named", "needed"),
    [
        pytest.param(10, 500, 2, id="50 steps a record: two records are 100 steps"),
        pytest.param(10, 100, 10, id="10 steps a record"),
        pytest.param(10, 10, 100, id="named like the log: one step a record"),
        pytest.param(10, 1, 100, id="named by epoch"),
    ],
)
def test_a_log_without_steps_is_paced_by_the_names_of_its_checkpoints(
    every: int, named: int, needed: int
) -> None:
    """Records are numbered where none are printed; 100 records may be 50,000 steps."""
    run = Run()
    for number in range(1, 4):
        run.train(every * number)
        saved = run.save(f"checkpoint-{named * number}", step=named * number)
    run.train(3 * every + needed - 1)
    assert run.health(saved) is VERIFIED
    run.train(3 * every + needed)
    assert run.health(saved) is HEALTHY
