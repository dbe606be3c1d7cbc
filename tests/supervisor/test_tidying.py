"""Before a start the folder is put in order, and after it the script must be where it should."""

from __future__ import annotations

import pytest

from fakes import World, checkpoint, dies, do, heat, line, steps, wait
from overnight.core.proof import LrProof
from overnight.supervisor.opening import Start

BEGIN = [steps(1, 100), checkpoint(100), steps(101, 150), checkpoint(150), steps(151, 259)]
NANS = [line(f"Step {n} | Loss: nan | LR: 1.000e-03") for n in (260, 261, 262)]
LATEST = {"resume": {"mode": "latest", "args": "--lr {lr}"}}


def test_what_is_newer_is_moved_before_the_start():
    world = World([*BEGIN, checkpoint(259), *NANS, wait(3), steps(151, 300), dies(code=0)])
    assert world.supervise() == 0
    moved, started = (world.happened.index(what) for what in ("aside /out/step_259.pt", "start 2"))
    assert moved < started
    assert "aside /out/step_150.pt" not in world.happened
    entry = world.run.ledger.find("/out/step_259.pt")
    assert entry.quarantine_path == "/aside/out/step_259.pt"
    assert entry.gone


def test_a_script_that_takes_its_newest_needs_no_flag():
    world = World(
        [*BEGIN, checkpoint(259), *NANS, wait(3), steps(151, 300, lr=0.0005), dies(code=0)],
        config=LATEST,
    )
    assert world.supervise() == 0
    assert world.launches[1].command == ["train", "--lr", "0.0005"]
    incident = next(iter(world.incidents.values()))
    assert incident.lr_proof is LrProof.PROVED
    assert incident.checkpoint_step == 150


def broken(world: World) -> None:
    """The folder cannot be put in order."""
    world.tidy_problem = "/out/step_259.pt: Read-only file system"


def test_a_folder_that_stays_in_disorder_is_no_place_for_such_a_script():
    world = World([do(broken), *BEGIN, checkpoint(259), *NANS, wait(3)], config=LATEST)
    assert world.supervise() == 1
    assert world.said("HALTED")
    assert world.said("Read-only file system")
    assert len(world.launches) == 1


def test_a_script_that_is_given_its_checkpoint_goes_on_all_the_same():
    world = World([do(broken), *BEGIN, *NANS, wait(3), steps(151, 300), dies(code=0)])
    assert world.supervise() == 0
    assert world.said("warning: /out/step_259.pt: Read-only")


def test_a_run_that_is_taken_up_again_is_put_in_order_first():
    world = World([dies(code=0)], config=LATEST)
    assert world.supervise(Start(continues=True)) == 0
    assert world.launches[0].command == ["train", "--lr", "0.001"]


@pytest.mark.parametrize("first", [1, 260])
def test_a_script_that_did_not_resume_is_stopped_at_once(first):
    """From scratch, or from the very checkpoint that was just left."""
    loss = 9.0 if first == 1 else 2.0
    world = World(
        [*BEGIN, checkpoint(259), *NANS, wait(3), steps(first, first + 1, loss=loss), wait(5)]
        + [checkpoint(first + 1, path="/out/wrong.pt"), wait(5)]
    )
    assert world.supervise() == 1
    assert world.said("the script did not resume from step 150")
    assert not world.said("healed")
    assert [severity for _, severity in world.phone.sent].count("critical") == 1
    assert len(world.launches) == 2


OOM = line("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB")
OOMS = [
    *(*BEGIN, OOM, dies(code=1), wait(30), steps(151, 700), OOM, dies(code=1), wait(30)),
    *(steps(151, 1300), OOM, dies(code=1), wait(60), steps(151, 200), dies(code=0)),
]


def test_an_oom_is_answered_by_the_allocator_then_by_the_batch():
    world = World(
        OOMS,
        config={
            "resume": {
                "args": "--resume {checkpoint} --lr {lr}",
                "batch_args": "--batch-size {batch}",
            }
        },
        base_batch=32,
    )
    world.run.settings.__dict__["command"] = ("train", "--lr", "0.001", "--batch-size", "32")
    world.run.settings.__dict__["env"] = {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"}
    assert world.supervise() == 0
    allocators = [one.env.get("PYTORCH_CUDA_ALLOC_CONF") for one in world.launches]
    merged = "max_split_size_mb:64,expandable_segments:True"
    assert allocators == ["max_split_size_mb:64", merged, merged, merged]
    batches = [one.command[one.command.index("--batch-size") + 1] for one in world.launches]
    assert batches == ["32", "32", "16", "8"]
    assert world.run.row({})["relief"] == 3


def test_a_smaller_batch_in_the_scripts_config():
    """It is left as it is until it helps; nobody writes an empty size."""
    values = {"resume": "{checkpoint}", "data.batch": "{batch}"}
    world = World(
        OOMS, config={"resume": {"config": "a.yaml", "config_values": values}}, base_batch=32
    )
    assert world.supervise() == 0
    patches = [words.split(" ", 2)[2] for words in world.happened if words.startswith("patch")]
    sizes = ["", ", 'data.batch': '16'", ", 'data.batch': '8'"]
    assert patches == [f"{{'resume': '/out/step_150.pt'{size}}}" for size in sizes]


HOT = [step for _ in range(8) for step in (heat(92), wait(2))]
COOL = [step for _ in range(100) for step in (heat(50), wait(2))]


def test_after_heat_a_worker_that_listens_has_its_rate_back():
    """200 clean steps later, without a restart; heat says nothing about the training."""
    world = World(
        [steps(1, 60), checkpoint(60), steps(61, 170), *HOT, *COOL, steps(61, 300), dies(code=0)]
    )
    world.run.hello = {"resume": True, "lr_scale": True}
    assert world.supervise() == 0
    assert world.launches[1].env["OVERNIGHT_LR_SCALE"] == "0.5"
    assert [control["lr_scale"] for control in world.controls] == [1.0, 0.5, 1.0]
    assert world.said("the learning rate is back at x1")
    assert world.run.lr_scale == 1.0


def test_after_heat_any_other_script_has_its_rate_back_at_its_next_start():
    world = World(
        [steps(1, 60), checkpoint(60), steps(61, 170), *HOT, *COOL, steps(61, 300)]
        + [dies(code=1), wait(20), steps(61, 200), dies(code=0)]
    )
    assert world.supervise() == 0
    scales = [launch.env["OVERNIGHT_LR_SCALE"] for launch in world.launches]
    assert scales == ["1", "0.5", "1"]
    assert world.launches[2].command[2] == "0.001"


def test_after_a_bad_number_the_rate_stays_down():
    world = World(
        [*BEGIN, *NANS, wait(3), steps(151, 600, lr=0.0005), dies(code=1), wait(20)]
        + [steps(151, 300, lr=0.0005), dies(code=0)]
    )
    assert world.supervise() == 0
    scales = [launch.env["OVERNIGHT_LR_SCALE"] for launch in world.launches]
    assert scales == ["1", "0.5", "0.5"]


def test_the_config_says_when_it_climbs_and_how_long_it_waits():
    world = World(
        [*BEGIN, *NANS, wait(90), steps(151, 300, lr=0.0005), dies(code=1), wait(20)]
        + [steps(151, 300), dies(code=0)],
        config={
            "resume": {"args": "--resume {checkpoint} --lr {lr}"},
            "policy": {"loss-nonfinite": {"lr_climb_after_steps": 100, "delay_s": 60}},
        },
    )
    assert world.supervise() == 0
    scales = [launch.env["OVERNIGHT_LR_SCALE"] for launch in world.launches]
    assert scales == ["1", "0.5", "1"]
    assert world.said("next attempt in 60 s")


@pytest.mark.parametrize("can", [True, False])
def test_at_the_first_warning_the_worker_is_asked_to_save(can):
    """What it saves is not trusted while the episode is open."""
    odd = line("Step 260 | Loss: nan | LR: 1.000e-03")
    world = World(
        [*BEGIN, odd, checkpoint(260), steps(261, 262), dies(code=1), wait(5), steps(151, 160)]
        + [dies(code=0)]
    )
    world.run.hello = {"checkpoint_signal": "SIGUSR1" if can else None}
    world.supervise()
    assert ("signal 10" in world.happened) is can
    assert world.run.ledger.find("/out/step_260.pt").quarantine_path is not None
