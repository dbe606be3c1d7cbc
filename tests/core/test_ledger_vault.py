"""The checkpoint ledger when bytes change: overwritten, left behind, protected in the vault."""

from __future__ import annotations

from core_lab import checked, identity, record, seen
from ledger_lab import Run
from overnight.core.checkpoints import CheckpointsConfig
from overnight.core.events import CheckpointSecured, Health, Position
from overnight.core.health import Ledger

VERIFIED, HEALTHY = Health.VERIFIED, Health.HEALTHY


def test_overwritten_in_place_the_old_bytes_are_gone() -> None:
    """The same path is another checkpoint; the vault's copy of the old one still counts."""
    run = Run()
    run.train(100)
    old = run.save("last.pt")
    run.ledger.secured(CheckpointSecured(0.0, old, "vault/last.pt", "copy"))
    run.train(250)
    new = run.save("last.pt", version=2)
    paths = [(t.identity == new, t.path) for t in run.ledger.targets()]
    assert paths == [(True, "last.pt"), (False, "vault/last.pt")]
    assert run.ledger.forget_lost() == []
    run.train(400)
    newest = run.save("last.pt", version=3)
    assert run.ledger.forget_lost() == [new]
    assert run.ledger.find("last.pt").identity == newest


def test_renamed_away_and_back_it_is_there_again() -> None:
    """A checkpoint that comes out of quarantine is no stranger."""
    run = Run()
    run.train(100)
    saved = run.save()
    run.ledger.gone(saved)
    assert run.targets() == []
    run.save(health=None)
    assert [step for step, _health in run.targets()] == [100]


def test_what_a_rollback_left_behind_is_no_target_and_no_witness() -> None:
    """Checkpoints after the target belong to an abandoned future."""
    run = Run()
    run.train_and_save(400, every=100)
    target = next(t for t in run.ledger.targets() if t.step == 200)
    run.ledger.resumed_from(target.identity)
    assert [step for step, _health in run.targets()] == [200, 100]
    reasons = [why for entry, _health, why in run.ledger.listing() if entry.step == 300]
    assert reasons[0].endswith("(left behind by a rollback)")
    run.attempt, run.count, run.last = 2, 0, record(200)
    run.train(300)
    again = run.save("step_300.pt", version=2)
    assert run.targets()[0] == (300, VERIFIED)
    assert run.health(again) is VERIFIED


def test_from_scratch_leaves_all_behind() -> None:
    """No target at all after a start at step 0."""
    run = Run()
    run.train_and_save(200, every=100)
    run.ledger.resumed_from(None)
    assert run.targets() == []
    assert run.ledger.newest(HEALTHY, VERIFIED) is None


def test_the_vault_holds_the_newest_healthy_and_the_young_ones() -> None:
    """Two healthy ones, and verified ones on their way; what falls behind is released."""
    run = Run(keep=2)
    run.train_and_save(400, every=100)
    assert [entry.step for entry in run.ledger.to_secure()] == [400, 300, 200]
    for entry in run.ledger.to_secure():
        copy = CheckpointSecured(0.0, entry.identity, f"vault/{entry.step}", "reflink")
        run.ledger.secured(copy)
    assert run.ledger.to_secure() == []
    run.train_and_save(500, every=100)
    assert [entry.step for entry in run.ledger.to_secure()] == [500]
    released = run.ledger.to_release()
    assert [entry.step for entry in released] == [200]
    run.ledger.released(released[0].identity)
    assert run.ledger.to_release() == []


def test_a_suspect_one_does_not_push_a_healthy_one_out_of_the_vault() -> None:
    """During an episode the last good ones stay."""
    run = Run(keep=1)
    run.train(100)
    good = run.save()
    run.train(200)
    run.ledger.secured(CheckpointSecured(0.0, good, "vault/100", "copy"))
    run.train(210, suspect=True, since=Position(1, 201))
    run.save()
    assert run.ledger.to_release() == []
    assert run.ledger.to_secure() == []


def test_the_verifier_may_give_the_step_that_the_name_did_not() -> None:
    """A step read from the state fills an unknown one."""
    ledger = Ledger(CheckpointsConfig())
    which = identity("best.pt")
    ledger.seen(seen(which), last=None, stride=1)
    ledger.checked(checked(which, step=700))
    (entry,) = ledger.described()
    assert (entry.step, entry.order_step, entry.health) == (700, 700, VERIFIED)


def test_the_only_good_one_stays_in_the_vault_when_a_fault_begins_behind_it() -> None:
    """Rotation may have deleted the original meanwhile; of such ones only the newest are kept."""
    run = Run(keep=2)
    for step in (10, 20, 30):
        run.train(step)
        saved = run.save()
        run.ledger.secured(CheckpointSecured(0.0, saved, f"vault/{step}", "copy"))
        run.ledger.gone(saved)
    run.train(35)
    run.train(36, suspect=True)
    assert {entry.step for entry in run.ledger.to_release()} == {10}
    run.train(180)
    assert [health for _step, health in run.targets(onset=36)] == [VERIFIED, VERIFIED, VERIFIED]
