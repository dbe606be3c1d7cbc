"""What the supervisor makes of output: counters over a restart, files that say nothing, advice."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from fakes import World, checkpoint, chunk, dies, do, line, steps, wait
from overnight.core.events import CheckpointSeen, Identity

LIMITS = {"detect": {"stall": {"first_s": 60, "floor_s": 60}}}


def probe_says(**values):
    """An event of the probe, in the metrics file."""
    said = json.dumps({"event": "probe", **values})
    return lambda world: world.put(replace(chunk(world, said), source="metrics"))


def epoch(number, first, last):
    """Lines of an epoch of 100 batches, a second each."""

    def step(world):
        world.now += 1.0
        rate = 0.001 * world.run.lr_scale
        text = f"epoch {number} batch {first}/100 loss {2 + first % 7 * 0.01:.4f} lr {rate:.3e}"
        world.put(chunk(world, text))
        if first < last:
            world.next(epoch(number, first + 1, last))

    return step


def test_counters_of_an_epoch_go_on_after_a_restart():
    """The second rollback goes to where the run was, not to the first epoch."""
    nans = [line(f"epoch 2 batch {n}/100 loss nan lr 0.0005") for n in (60, 61, 62)]
    world = World(
        [epoch(0, 1, 100), epoch(1, 1, 50), checkpoint(150), epoch(1, 51, 80), dies(code=1)]
        + [wait(20), epoch(1, 51, 100), epoch(2, 1, 10), checkpoint(210), epoch(2, 11, 59), *nans]
        + [wait(20), epoch(1, 51, 100), epoch(2, 1, 100), dies(code=0)]
    )
    assert world.supervise() == 0
    resumed = [launch.env["OVERNIGHT_RESUME"] for launch in world.launches]
    assert resumed == ["", "/out/step_150.pt", "/out/step_150.pt"]
    incident = list(world.incidents.values())[-1]
    assert (incident.fault, incident.onset_step) == ("loss-nonfinite", 260)
    assert world.run.last.step == 300


def file_grows(seconds):
    """The script's own file grows, and nothing in it is understood."""

    def step(world):
        world.now += 1.0
        world.put(replace(chunk(world), source="file"))
        if seconds > 1:
            world.next(file_grows(seconds - 1))

    return step


@pytest.mark.parametrize("grows", [True, False])
def test_a_file_that_grows_is_a_sign_of_life(grows):
    """An idle worker is not killed for it; one whose file has stopped is."""
    config = {**LIMITS, "metrics": {"source": "file", "path": "m.csv"}}
    quiet = file_grows(200) if grows else wait(200)
    world = World([quiet, dies(code=0), wait(5), dies(code=0)], config=config)
    world.supervise()
    assert any("kill" in entry for entry in world.happened) is not grows


def test_output_that_is_not_understood_is_told_once():
    """While it can still be changed; not at the end of the night."""
    world = World([do(lambda w: w.put(chunk(w, *["hello"] * 30))), wait(700), dies(code=0)])
    world.supervise()
    told = [entry for entry in world.happened if "say no training loss" in entry]
    assert len(told) == 1


def test_damage_of_a_file_is_said():
    def damaged(world):
        world.put(replace(chunk(world), source="file", damage="m is damaged at byte 7"))

    world = World([do(damaged), dies(code=0)])
    world.supervise()
    assert world.said("warning: m is damaged at byte 7")


@pytest.mark.parametrize("announced", [True, False])
def test_an_announced_change_of_data_is_no_fault(announced):
    """A longer context: the loss is half as high again from there on."""

    def rebase(world):
        said = '{"event": "rebase", "why": "8k context"}'
        if announced:
            world.put(replace(chunk(world, said), source="metrics"))

    world = World([steps(1, 200), do(rebase), steps(201, 400, loss=3.0), dies(code=0)])
    world.supervise()
    assert ("announced (8k context)" in " ".join(world.happened)) is announced
    assert bool(world.incidents) is not announced


@pytest.mark.parametrize("joined", [True, False])
def test_a_probe_that_does_not_join_is_told(joined):
    """`python -I`, a container, JAX: the worker is watched from outside, and one should know."""
    script = [probe_says(hello=1, optimizer="SGD", ranks=1)] if joined else []
    world = World([*script, steps(1, 100), dies(code=0)], config={"probe": {"enabled": True}})
    world.supervise()
    told = [entry for entry in world.happened if "has not joined" in entry]
    assert len(told) == (0 if joined else 1)


@pytest.mark.parametrize("announced", [True, False])
def test_another_model_in_the_same_process_is_no_fault(announced):
    """The next fold of a cross-validation begins with the loss of an untrained model."""
    hello = probe_says(hello=1, optimizer="SGD", ranks=1)
    second = [hello] if announced else []
    world = World(
        [hello, steps(1, 200), *second, steps(201, 400, loss=4.0), dies(code=0)],
        config={"probe": {"enabled": True}},
    )
    world.supervise()
    assert bool(world.incidents) is not announced


def numbered(number):
    """A checkpoint whose name holds the number of the epoch."""

    def seen(world):
        identity = Identity(f"/out/epoch_{number}.pt", number, int(world.now), 4096)
        world.put(CheckpointSeen(world.now, identity, "pt", number, world.wall()))

    return seen


def test_the_number_of_an_epoch_in_a_name_is_no_step():
    """What was lost, where it goes on and what is healthy are told in steps of the log."""
    world = World(
        [epoch(0, 1, 100), numbered(1), epoch(1, 1, 100), numbered(2), epoch(2, 1, 50)]
        + [dies(code=1), wait(20), epoch(2, 1, 100), numbered(3), epoch(3, 1, 30), dies(code=1)]
        + [wait(20), epoch(3, 1, 100), dies(code=0)]
    )
    assert world.supervise() == 0
    incidents = list(world.incidents.values())
    assert incidents[0].checkpoint_step == 200
    assert incidents[-1].checkpoint_step == 300
    assert incidents[-1].cost_steps == 30
    assert world.run.last.step == 400
