"""How a worker ended, as the loop takes it: status, last words, and the kernel's."""

from __future__ import annotations

import pytest

from fakes import World, checkpoint, dies, do, line, steps, wait

BEGIN = [steps(1, 100), checkpoint(100), steps(101, 150), checkpoint(150), steps(151, 259)]


def kernel(world: World) -> None:
    """Its log names the card."""
    world.kernel.append("NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.")


def killed_for_memory(world: World) -> None:
    """One more process of ours was ended."""
    world.oom_kills = 1


@pytest.mark.parametrize("words", ["Loss is nan, stopping training", "ERROR: loss is NaN, exiting"])
def test_a_script_that_stops_itself_on_a_bad_number_is_not_done(words):
    """It says status 0 and means failure."""
    world = World([*BEGIN, line(words), dies(code=0), wait(5), steps(101, 300), dies(code=0)])
    assert world.supervise() == 0
    [incident] = world.incidents.values()
    assert (incident.cause, incident.action) == ("numeric", "rollback")
    assert len(world.launches) == 2


@pytest.mark.parametrize(
    "words",
    [
        ["Summary: NaN losses: 0", "bye"],
        ["Loss is nan, stopping this sweep", *(f"result {n}: fine" for n in range(12))],
    ],
)
def test_words_of_a_bad_number_that_do_not_end_it(words):
    """A count of them, or some while ago: status 0 means done."""
    world = World([*BEGIN, *(line(text) for text in words), dies(code=0)])
    assert world.supervise() == 0
    assert world.incidents == {}


def test_a_script_that_has_trained_to_its_end_is_done():
    """Whatever its teardown does: nobody trains it again."""
    world = World([*BEGIN, line("Training complete."), dies(signal=11)])
    assert world.supervise() == 0
    assert world.incidents == {}


def test_the_kernel_knows_who_killed_it():
    world = World(
        [*BEGIN, do(killed_for_memory), dies(signal=9), wait(5), steps(151, 160), dies(code=0)]
    )
    assert world.supervise() == 0
    [incident] = world.incidents.values()
    assert (incident.fault, incident.cause) == ("host-oom", "host-oom")


def test_somebody_killed_it():
    world = World([*BEGIN, dies(signal=9), wait(5), steps(151, 160), dies(code=0)])
    assert world.supervise() == 0
    [incident] = world.incidents.values()
    assert (incident.fault, incident.cause) == ("crash", "killed")


def test_a_card_that_is_gone_ends_the_run():
    """A restart would fail until the reboot: the checkpoint is safe, and somebody is called."""
    words = line("RuntimeError: CUDA error: unknown error")
    world = World([*BEGIN, words, do(kernel), dies(code=1), wait(5)])
    assert world.supervise() == 1
    [incident] = world.incidents.values()
    assert (incident.fault, incident.action) == ("gpu-lost", "halt")
    assert world.said("HALTED")
    assert len(world.launches) == 1


def test_weights_alone_are_resumed_in_part_and_never_called_healed():
    """The optimizer began anew: who reads it in the morning must know."""
    world = World(
        [steps(1, 100), checkpoint(100, path="/out/weights_100.pt"), steps(101, 259)]
        + [dies(code=1), wait(5), steps(101, 300), dies(code=0)]
    )
    assert world.supervise() == 0
    [incident] = world.incidents.values()
    assert "in part: that checkpoint has no optimizer state" in incident.outcome
    assert [name for name, _ in incident.progress][-1] == "resumed in part"
    assert not world.said("healed")
    assert "resumed in part" in world.phone.sent[0][0]


@pytest.mark.parametrize("answers", [True, False])
def test_a_hanging_worker_is_examined_before_it_is_killed(answers):
    """And never waited for: the kill comes after eight seconds at the latest."""
    world = World([*BEGIN, wait(2000), steps(151, 160), dies(code=0)])
    world.autopsy_answers = answers
    assert world.supervise() == 0
    examined, killed = (world.happened.index(what) for what in ("examined (101,)", "kill"))
    assert examined < killed
    [incident] = world.incidents.values()
    assert (incident.fault, incident.action) == ("stall", "restart")
    assert ("autopsy" in incident.evidence) is answers


def test_only_a_hanging_worker_is_examined():
    """What a bad number has poisoned is killed at once."""
    bad = [line(f"Step {n} | Loss: nan | LR: 1.0e-03") for n in (260, 261, 262)]
    world = World([*BEGIN, *bad, wait(5), steps(151, 160), dies(code=0)])
    assert world.supervise() == 0
    assert not any(what.startswith("examined") for what in world.happened)
