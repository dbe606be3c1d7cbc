"""When something of ours or of the machine fails: an alert or a line, never a silent end."""

from __future__ import annotations

import pytest

from fakes import Checkpoints, Tails, World, checkpoint, dies, do, heat, line, steps, wait
from overnight.core.events import CheckpointSecured, StopRequested, TreeStuck
from overnight.errors import WorkerError

NANS = [line(f"Step {n} | Loss: nan | LR: 1.000e-03") for n in (260, 261, 262)]
STORY = [steps(1, 100), checkpoint(100), steps(101, 150), checkpoint(150), steps(151, 259), *NANS]


def test_incidents_of_a_full_disk_are_written_when_there_is_room():
    """Nothing that was decided from memory stays unrecorded."""
    full, room = (do(lambda w, v=v: setattr(w, "disk_full", v)) for v in (True, False))
    world = World([full, *STORY, steps(151, 400), room, wait(60), steps(401, 450), dies(code=0)])
    assert world.supervise() == 0
    [incident] = world.incidents.values()
    assert incident.lr_proof == "proved"


def test_a_tree_that_does_not_die_pages_and_can_be_left(monkeypatch):
    """D state: a person is told; two Ctrl-C end the watch although the worker cannot be killed."""

    def stuck(world):
        world.put(TreeStuck(world.now, 1, (101,)))

    script = [*STORY, do(stuck), wait(5)]
    interrupt = do(lambda w: w.put(StopRequested(w.now, 2)))
    world = World([do(lambda w: setattr(w, "dies_of_kill", False)), *script, interrupt, interrupt])
    assert world.supervise() == 130
    assert ("critical") in [severity for _, severity in world.phone.sent]


def test_a_vault_that_has_no_room_is_not_asked_at_every_record(monkeypatch):
    """A copy that was refused is tried again minutes later."""
    asked = []

    def refuse(self, identity, *, in_place, has_step):
        asked.append(identity)
        self.world.put(CheckpointSecured(self.world.now, identity, None, "none", "no room"))

    monkeypatch.setattr(Checkpoints, "secure", refuse)
    world = World([steps(1, 50), checkpoint(50), steps(51, 250), dies(code=0)])
    assert world.supervise() == 0
    assert 1 <= len(asked) <= 3


def test_a_worker_whose_output_cannot_be_read_is_not_started(monkeypatch):
    """No descriptors left: the start fails as a whole, the run halts with the reason."""

    def fail(self, attempt, directory):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(Tails, "open", fail)
    world = World([wait(5)])
    assert world.supervise() == 1
    assert not world.launches
    assert world.said("Too many open files")


def test_a_start_that_fails_during_a_recovery_halts_and_pages(monkeypatch):
    """The person learns which checkpoint waits."""
    started = World.start

    def fail_later(self, launch):
        if launch.attempt > 1:
            raise WorkerError("cannot start the recorder: no memory")
        started(self, launch)

    monkeypatch.setattr(World, "start", fail_later)
    world = World([*STORY, wait(30)])
    assert world.supervise() == 1
    [incident] = world.incidents.values()
    assert (incident.action, incident.needs_you) == ("halt", True)
    assert world.phone.sent[-1][1] == "critical"


def test_a_policy_with_a_bug_pages_instead_of_idling_for_ever(monkeypatch):
    """A dead worker that nobody recovers is noticed."""
    world = World([steps(1, 20), dies(code=1), wait(60)])

    def broken(*_):
        raise ZeroDivisionError

    monkeypatch.setattr(world.run.policy, "decide", broken)
    assert world.supervise() == 1
    assert world.said("lost track of it") or world.said("kept it from acting")
    assert world.phone.sent == [("[night] needs you", "critical")]


def test_a_halt_is_one_page():
    """No checkpoint to go back to: told once."""
    world = World([steps(1, 60), *NANS])
    assert world.supervise() == 1
    assert [severity for _, severity in world.phone.sent] == ["critical"]


def test_heat_during_a_crash_is_judged_again_in_the_next_attempt():
    """The card is still hot: the verdict that nobody could act on is not lost."""
    hot = [step for _ in range(10) for step in (heat(93), wait(2))]
    cool = [step for _ in range(100) for step in (heat(50), wait(2))]
    world = World(
        [steps(1, 60), checkpoint(60), steps(61, 170), *hot[:4], dies(code=1), *hot]
        + [steps(61, 80), *hot, *cool, steps(61, 200), dies(code=0)]
    )
    assert world.supervise() == 0
    assert "gpu-hot" in {i.fault.value for i in world.incidents.values()}


def test_observing_a_crash_ends_the_run_and_starts_nothing():
    """--observe tells; what the worker does is its own affair, its death too."""
    world = World([steps(1, 120), checkpoint(120), dies(code=1)], observe=True)
    assert world.supervise() == 1
    assert len(world.launches) == 1


@pytest.mark.parametrize("moment", ["stopping", "checking", "waiting", "starting", "proving"])
def test_a_person_may_stop_in_every_phase_of_a_recovery(moment):
    """SIGINT ends with 130, and the phone's last word is not 'rolling back'."""
    interrupt = do(lambda w: w.put(StopRequested(w.now, 2)))
    ways = {
        "stopping": [do(lambda w: setattr(w, "dies_of_kill", False)), *STORY, interrupt, interrupt]
        + [do(lambda w: w.dies(signal=9))],
        "checking": [do(lambda w: setattr(w, "verifier_hangs", True)), *STORY, interrupt],
        "waiting": [*STORY, steps(151, 160), dies(code=1), wait(1), interrupt],
        "starting": [*STORY, wait(2), interrupt],
        "proving": [*STORY, steps(151, 152), interrupt],
    }
    world = World([*ways[moment], wait(15)])
    assert world.supervise() == 130
    assert not [title for title, _ in world.phone.sent[-1:] if "rolling back" in title]


def test_a_second_stop_does_not_change_the_first():
    """Ctrl-C and then `overnight stop`: still 130."""
    interrupt = do(lambda w: w.put(StopRequested(w.now, 2)))
    answers = []

    def ask(world):
        from overnight.core.events import Request

        world.put(Request(world.now, "stop", {}, answers.append))

    world = World(
        [do(lambda w: setattr(w, "obeys_terminate", False)), steps(1, 20), interrupt, do(ask)]
        + [wait(100)]
    )
    assert world.supervise() == 130
    assert answers == [{"ok": True}]
