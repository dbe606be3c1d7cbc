"""Going back in place through the real supervisor: asked, obeyed, proved; or else the ladder."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fakes import Step, World, checkpoint, dies, do, line, steps, wait
from overnight.core.events import LogChunk


def probe_says(**values: Any) -> Step:
    """An event of the probe, in the metrics file."""

    def step(world: World) -> None:
        text = json.dumps({"event": "probe", **values})
        attempt = world.launches[-1].attempt
        world.put(LogChunk(world.now, attempt, "metrics", (text,), first_line=1, end_offset=0))

    return step


HELLO = [
    probe_says(hello=1, optimizer="AdamW", ranks=1, in_flight=True),
    probe_says(snapshots=True, bytes_each=100),
]
BAD = [line(f"Step {n} | Loss: nan | LR: 1.000e-03") for n in (260, 261, 262)]
STORY = [*HELLO, steps(1, 150), checkpoint(150), steps(151, 259), *BAD]
CONFIG = {"probe": {"enabled": True}}
NO_FLAGS = {**CONFIG, "checkpoints": {"confirm_steps": 100}}


GOES_ON = [line(f"Step {n} | Loss: nan | LR: 1.000e-03") for n in range(263, 270)]


def obeys(step: int = 263, snapshot: int = 150):
    """The probe has gone back."""
    return probe_says(rollback=1, ok=True, step=step, snapshot_step=snapshot)


def world(*script, config=NO_FLAGS):
    return World([*STORY, *script], config=config)


def test_the_worker_is_not_restarted():
    """Intention on disk, order, answer, proof of the rate, one message; the process lives on."""
    run = world(obeys(), steps(264, 300, lr=0.0005), dies(code=0))
    assert run.supervise() == 0
    assert len(run.launches) == 1
    assert "kill" not in run.happened
    (incident,) = run.incidents.values()
    assert (incident.action, incident.lr_proof) == ("rollback", "proved")
    assert (incident.lr_scale_before, incident.lr_scale_after) == (1.0, 0.5)
    assert incident.outcome.startswith("went back in place to step 150, no restart")
    assert incident.cost_steps == 262 - 150
    assert not incident.needs_you
    assert [title for title, _ in run.phone.sent] == ["[night] loss went NaN at step 262: healed"]
    names = [name for name, _ in incident.progress]
    assert names == ["asked to go back in place", "back in place", "healed"]


def test_what_the_order_says():
    """Before the onset, 100 clean steps before it if possible; half the rate; clipping on."""
    run = world(obeys(), steps(264, 300), dies(code=0))
    run.supervise()
    order = run.controls[-1]
    assert order["lr_scale"] == 0.5
    assert order["probe"]["clip"] == "auto"
    expected = {"number": 1, "before_step": 260, "healthy_step": 160}
    assert order["probe"]["rollback"] == expected


def test_the_history_goes_on_before_the_fault():
    """The bad records are forgotten, checkpoints saved afterwards can be healthy again."""
    run = world(obeys(), steps(264, 270), checkpoint(270), steps(271, 400), dies(code=0))
    assert run.supervise() == 0
    seen = [record.step for record in run.run.records]
    assert seen == [*range(1, 260), *range(264, 401)]
    newest = run.run.ledger.newest(*[h for _e, h, _w in run.run.ledger.listing() if h == "healthy"])
    assert newest is not None
    assert newest.step == 270


def test_what_still_comes_while_it_is_asked_changes_nothing():
    """Left-out updates go on until the probe has read the order."""
    more = [line(f"Step {n} | Loss: nan | LR: 1.000e-03") for n in range(263, 300)]
    run = world(*more, obeys(300), steps(301, 350), dies(code=0))
    assert run.supervise() == 0
    assert len(run.launches) == 1
    assert len(run.incidents) == 1


@pytest.mark.parametrize(
    "answer",
    [
        [probe_says(rollback=1, ok=False, step=263, why="snapshots of steps: none")],
        [*GOES_ON, wait(60)],
        [wait(1000)],
        [probe_says(off="KeyError: 1"), wait(2)],
    ],
    ids=["refused", "silent", "hangs", "switched off"],
)
def test_a_probe_that_does_not_obey_is_killed_and_resumed(answer):
    """Where there is a resume route the ladder goes on with it."""
    config = {**CONFIG, "resume": {"args": "--resume {checkpoint} --lr {lr}"}}
    run = world(*answer, steps(151, 300), dies(code=0), config=config)
    assert run.supervise() == 0
    assert "kill" in run.happened
    assert len(run.launches) == 2
    assert "/out/step_150.pt" in run.launches[1].command


def test_without_a_route_a_probe_that_does_not_obey_means_halt():
    """The checkpoint is kept safe, and nothing is relaunched."""
    run = world(*GOES_ON, wait(60), config=NO_FLAGS)
    assert run.supervise() == 1
    assert len(run.launches) == 1
    (incident,) = run.incidents.values()
    assert (incident.action, incident.needs_you) == ("halt", True)


def test_an_evaluation_in_between_is_no_refusal():
    """Without an update the probe cannot obey, and nothing gets worse."""
    run = world(wait(600), obeys(), steps(264, 300, lr=0.0005), dies(code=0))
    assert run.supervise() == 0
    assert len(run.launches) == 1
    (incident,) = run.incidents.values()
    assert incident.outcome.startswith("went back in place")


def test_an_order_that_cannot_be_written_is_not_waited_for():
    """The disk is full: on with the ladder at once."""
    run = World(
        [*STORY[:-1], do(lambda w: setattr(w, "control_broken", True)), BAD[-1], wait(5)],
        config=NO_FLAGS,
    )
    assert run.supervise() == 1
    assert run.said("the order could not be written")


def test_a_worker_that_dies_while_it_is_asked_is_a_death():
    """It is judged like any other, and the order is void."""
    config = {**CONFIG, "resume": {"args": "--resume {checkpoint} --lr {lr}"}}
    run = world(dies(code=1), steps(151, 300), dies(code=0), config=config)
    assert run.supervise() == 0
    assert len(run.launches) == 2


def test_a_fault_that_comes_back_at_once_is_not_tried_again_in_place():
    """NaN again right after: a route is needed, or halt."""
    again = [line(f"Step {n} | Loss: nan | LR: 5.000e-04") for n in (264, 265, 266)]
    run = world(obeys(), *again, wait(5))
    assert run.supervise() == 1
    assert len(run.launches) == 1
    assert any("nothing is relaunched" in (i.outcome or "") for i in run.incidents.values())


def test_the_first_left_out_update_is_told_once():
    """A warning for each attempt, not for each update."""
    skipped = '{{"step": {0}, "loss": NaN, "grad_norm": NaN, "lr": 0.001, "skipped": true}}'
    metrics = '{{"step": {0}, "loss": 2.0, "grad_norm": 1.0, "lr": 0.001}}'

    def says(text):
        def step(w):
            w.now += 1.0
            w.put(LogChunk(w.now, 1, "metrics", (text,), first_line=1, end_offset=0))

        return step

    script = [says(metrics.format(n)) for n in range(1, 200)]
    script += [says(skipped.format(200)), says(metrics.format(201)), says(skipped.format(202))]
    script += [says(metrics.format(n)) for n in range(203, 320)]
    run = World([*HELLO, *script, dies(code=0)], config=NO_FLAGS)
    assert run.supervise() == 0
    (incident,) = run.incidents.values()
    assert (incident.severity, incident.action, incident.onset_step) == ("warning", "notify", 200)


def test_a_probe_without_room_says_so_and_the_run_is_as_without_it():
    """No snapshots: a numeric fault needs the route that is not there."""
    script = [HELLO[0], probe_says(snapshots=False, why="3 snapshots of 9 MiB do not fit")]
    run = World([*script, *STORY[2:], wait(5)], config=NO_FLAGS)
    assert run.supervise() == 1
    assert run.said("cannot go back in place")


def test_back_in_place_the_level_is_still_that_of_the_second_model():
    """k-fold: what the first model reached at its end is no measure for the second."""
    run = World(
        [*HELLO, steps(1, 200, loss=0.2), HELLO[0], steps(201, 300)]
        + [line(f"Step {n} | Loss: nan | LR: 1.000e-03") for n in (301, 302, 303)]
        + [obeys(304, 250), steps(305, 500, lr=0.0005), dies(code=0)],
        config=NO_FLAGS,
    )
    assert run.supervise() == 0
    assert len(run.incidents) == 1
