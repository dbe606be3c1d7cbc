"""Whole histories through the real supervisor, with a clock that we move and no process at all."""

from __future__ import annotations

import pytest

from fakes import World, checkpoint, chunk, dies, do, heat, line, steps, wait

NAN = line("Step 260 | Loss: nan | LR: 1.000e-03")
STORY = [
    steps(1, 100),
    checkpoint(100),
    steps(101, 150),
    checkpoint(150),
    steps(151, 259),
    NAN,
    line("Step 261 | Loss: nan | LR: 1.000e-03"),
    line("Step 262 | Loss: nan | LR: 1.000e-03"),
]
HEALED = [steps(151, 300), dies(code=0)]


def position(world: World, text: str) -> int:
    """Where in the history something happened."""
    return next(i for i, entry in enumerate(world.happened) if text in entry)


def test_intention_is_on_disk_before_anything_is_done():
    """Order of effects: commit, kill, each sub-step written, start, outcome, alert."""
    world = World([*STORY, *HEALED])
    assert world.supervise() == 0
    order = [
        position(world, "commit loss-nonfinite rollback"),
        position(world, "kill"),
        position(world, "rollback killed,gone"),
        position(world, "rollback killed,gone,checkpoint ready"),
        position(world, "start 2"),
        position(world, "checkpoint ready,started"),
        position(world, "started,healed"),
        position(world, "delivered"),
    ]
    assert order == sorted(order)


def test_quick_healing_is_one_message():
    """The opened alert waits 10 s and is replaced by the outcome."""
    world = World([*STORY, steps(151, 300), dies(code=0)])
    world.supervise()
    assert [title for title, _ in world.phone.sent] == ["[night] loss went NaN at step 262: healed"]


def test_slow_healing_is_two_messages():
    """A worker that needs minutes to load: first what is being done, then how it ended."""
    world = World([*STORY, wait(120), steps(151, 300), dies(code=0)])
    world.supervise()
    titles = [title for title, _ in world.phone.sent]
    assert titles == [
        "[night] loss went NaN at step 262: rolling back",
        "[night] loss went NaN at step 262: healed",
    ]


def test_the_resumed_command_carries_checkpoint_and_reduced_rate():
    """{checkpoint} and {lr} stand in the command; the control file has the scale."""
    world = World([*STORY, *HEALED])
    world.supervise()
    assert list(world.launches[1].command) == [
        "train", "--lr", "0.0005", "--resume", "/out/step_150.pt",
    ]  # fmt: skip
    assert "control 0.5" in world.happened


def test_a_full_disk_does_not_stop_the_recovery():
    """No commit succeeds: the worker is killed and resumed all the same, the alert leaves."""
    world = World([do(lambda w: setattr(w, "disk_full", True)), *STORY, *HEALED])
    assert world.supervise() == 0
    assert "kill" in world.happened
    assert len(world.launches) == 2
    assert world.said("going on from memory")
    assert [severity for _, severity in world.phone.sent] == ["warning"]


def test_a_night_of_silence_is_a_stall():
    """15 minutes without a record and without CPU time: killed, restarted, the rate kept."""
    world = World([steps(1, 120), checkpoint(120), wait(1000), steps(121, 130), dies(code=0)])
    assert world.supervise() == 0
    [incident] = world.incidents.values()
    assert (incident.fault, incident.action) == ("stall", "restart")
    assert incident.lr_scale_after == 1.0


def test_a_busy_worker_gets_twice_the_time():
    """Without a second witness the stall is a warning until twice the limit."""

    def work(world: World) -> None:
        world.cpu_s += 1.0

    busy = [step for _ in range(1000) for step in (do(work), wait(1))]
    world = World([steps(1, 120), *busy, steps(121, 130), dies(code=0)])
    assert world.supervise() == 0
    [incident] = world.incidents.values()
    assert (incident.severity, incident.action) == ("warning", "notify")
    assert "kill" not in world.happened


def test_the_verifier_may_not_hold_up_a_restart_for_ever():
    """Candidates that are not verified in 30 s are no targets: halt, never 'newest anyway'."""
    hang = do(lambda w: setattr(w, "verifier_hangs", True))
    world = World([hang, steps(1, 60), checkpoint(50), steps(61, 90), dies(code=1)])
    began = world.now
    assert world.supervise() == 1
    assert world.now - began < 300
    assert world.said("HALTED")


def test_corrupt_newest_checkpoint_is_passed_over():
    """The one before it is verified and taken."""
    script = [steps(1, 50), checkpoint(50), steps(51, 80), checkpoint(80, path="/out/bad_80.pt")]
    world = World([*script, steps(81, 90), dies(code=1), steps(51, 90), dies(code=0)])
    assert world.supervise() == 0
    assert world.launches[1].command[-1] == "/out/step_50.pt"


def test_hot_gpu_waits_until_cool_and_ends_an_unwilling_worker():
    """SIGTERM, the grace time, SIGKILL, cooling, then half the rate."""
    hot = [step for _ in range(8) for step in (heat(92), wait(2))]
    cool = [step for _ in range(100) for step in (heat(50), wait(2))]
    world = World(
        [
            do(lambda w: setattr(w, "obeys_terminate", False)),
            steps(1, 60),
            checkpoint(60),
            steps(61, 170),
            *hot,
            wait(95),
            *cool,
            steps(61, 200),
            dies(code=0),
        ]
    )
    assert world.supervise() == 0
    order = [position(world, "signal 15"), position(world, "kill"), position(world, "start 2")]
    assert order == sorted(order)
    [incident] = world.incidents.values()
    assert (incident.fault, incident.lr_scale_after) == ("gpu-hot", 0.5)
    assert world.said("cooling until every GPU is below 65 °C")


def test_gpu_memory_of_the_dead_is_waited_for():
    """The next attempt starts only when the driver lists the old process no more."""
    world = World(
        [
            steps(1, 120),
            checkpoint(120),
            do(lambda w: setattr(w, "gpu_pids", (101,))),
            heat(60),
            dies(signal=11),
            wait(5),
            do(lambda w: w.happened.append("released")),
            do(lambda w: setattr(w, "gpu_pids", ())),
            heat(55),
            steps(121, 150),
            dies(code=0),
        ]
    )
    # The supervisor learns of the pids from the sample before the death.
    assert world.supervise() == 0
    assert position(world, "start 2") > position(world, "released")


def test_crash_loop_backs_off_and_ends():
    """0, 10, 20 s between restarts without progress; after three of them a person is asked."""
    crash = [steps(121, 125), dies(code=1), wait(30)]
    world = World([steps(1, 120), checkpoint(120), dies(code=1), *crash * 5])
    assert world.supervise() == 1
    starts = [i for i, entry in enumerate(world.happened) if entry.startswith("start")]
    assert len(starts) == 4
    assert world.said("next attempt in 10 s")
    assert world.said("next attempt in 20 s")
    assert world.phone.sent[-1][1] == "critical"


def test_an_unreachable_phone_is_tried_again():
    """An alert that was not accepted stays due, and leaves when the phone is back."""
    world = World(
        [
            do(lambda w: setattr(w.phone, "down", True)),
            *STORY,
            steps(151, 200),
            wait(20),
            do(lambda w: setattr(w.phone, "down", False)),
            wait(30),
            dies(code=0),
        ]
    )
    world.supervise()
    assert len(world.phone.sent) == 1


def test_a_bug_of_ours_costs_a_line_not_the_watch():
    """An observation that breaks a handler is logged; the run goes on to its end."""
    broken = do(lambda w: w.put(chunk(w, None)))
    world = World([steps(1, 10), broken, steps(11, 20), dies(code=0)])
    assert world.supervise() == 0
    assert world.said("a bug in Overnight (1)")


@pytest.mark.parametrize("code", [0, 1], ids=["completed", "crashed"])
def test_a_death_right_after_nan_belongs_to_the_nan(code):
    """The process that dies within 10 s of a numeric verdict is the same incident."""
    world = World([*STORY[:-1], dies(code=code), *HEALED])
    world.supervise()
    assert {incident.fault.value for incident in world.incidents.values()} <= {
        "loss-nonfinite",
        "crash",
    }
    assert len(world.incidents) == 1


def test_a_script_that_stops_itself_on_a_bad_number_is_rolled_back():
    """One NaN and an exit: the death is numeric, and what came before the NaN is resumed."""
    world = World([*STORY[:-2], dies(code=1), *HEALED])
    assert world.supervise() == 0
    [incident] = world.incidents.values()
    assert (incident.fault, incident.action) == ("loss-nonfinite", "rollback")
    assert (incident.lr_scale_after, incident.lr_proof) == (0.5, "proved")
    assert incident.cause == "unknown"


def test_records_that_stay_bad_keep_a_warning_open():
    """An episode whose verdict has been spoken is not closed as healed while it goes on."""
    bad = [line(f"Step {n} | Loss: {2.9 + n % 3 * 0.01:.3f} | LR: 1e-03") for n in range(201, 206)]
    world = World([steps(1, 200), *bad, steps(206, 330), dies(code=0)])
    assert world.supervise() == 0
    assert all(i.closed_utc is not None for i in world.incidents.values())


def test_work_at_risk_is_told_once():
    """Half an hour and more without a healthy checkpoint: one quiet push, no action."""
    slow = [step for n in range(1, 60) for step in (steps(n, n), wait(60))]
    world = World([*slow, dies(code=0)])
    assert world.supervise() == 0
    [incident] = world.incidents.values()
    assert (incident.fault, incident.severity, incident.action) == (
        "checkpoint-overdue",
        "warning",
        "notify",
    )
    assert [severity for _, severity in world.phone.sent] == ["warning"]
