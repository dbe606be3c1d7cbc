"""What arrives late, twice or under an old name: the ledger stays one line of history."""

from __future__ import annotations

from fakes import World, checkpoint, dies, do, line, steps, wait
from overnight.core.events import CheckpointSeen, Health, Identity

BEGIN = [steps(1, 100), checkpoint(100), steps(101, 150), checkpoint(150), steps(151, 259)]
SPIKE = [
    line(f"Step {n} | Loss: {2.9 + n % 3 * 0.01:.2f} | LR: 1.000e-03") for n in range(260, 270)
]
NANS = [line(f"Step {n} | Loss: nan | LR: 1.000e-03") for n in (260, 261, 262)]


def health_of(world: World, path: str) -> Health:
    """What the ledger thinks of a checkpoint."""
    entry = world.run.ledger.find(path)
    assert entry is not None
    return world.run.ledger.health(entry)[0]


def test_a_poisoned_checkpoint_reported_after_the_rollback_is_never_resumed_from():
    """Saved during the spike, seen by a slow poll when the next attempt already runs."""
    moments = []

    def save(world):
        world.now += 1
        moments.append((world.now, world.wall()))

    def seen(world):
        at, saved_utc = moments[0]
        identity = Identity("/out/step_265", 999, int(at), 4096)
        world.put(CheckpointSeen(at, identity, "directory", 265, saved_utc))

    world = World(
        [*BEGIN, *SPIKE[:6], do(save), wait(1), *SPIKE[6:], wait(3), do(seen), steps(151, 300)]
        + [dies(code=1), wait(20), steps(301, 310), dies(code=0)]
    )
    world.supervise()
    entry = world.run.ledger.find("/out/step_265")
    assert entry is not None
    assert entry.abandoned
    assert all("/out/step_265" not in launch.command for launch in world.launches)


def test_a_step_counter_that_begins_again_with_each_epoch_keeps_its_checkpoints():
    """Positions order everything: epoch 2 fails at its step 51, epoch 1's end is the target."""
    first = [steps(1, 200), checkpoint(1, path="/out/epoch_1.pt")]
    second = [steps(1, 200), checkpoint(2, path="/out/epoch_2.pt"), steps(1, 50)]
    nans = [line(f"Step {n} | Loss: nan | LR: 1e-03") for n in (51, 52, 53)]
    world = World([*first, *second, *nans, steps(1, 60), dies(code=0)])
    assert world.supervise() == 0
    assert world.launches[1].command[-1] == "/out/epoch_1.pt"
    assert health_of(world, "/out/epoch_1.pt") is Health.HEALTHY


def test_a_clock_that_is_set_back_does_not_move_a_checkpoint():
    """Positions come from the monotonic clock; wall time is for people."""

    def save(world):
        identity = Identity("/out/late.pt", 7, 7, 4096)
        world.put(CheckpointSeen(world.now, identity, "pt", None, world.wall() - 3600))

    world = World([*BEGIN, *SPIKE[:6], do(save), *SPIKE[6:], steps(151, 300), dies(code=0)])
    world.supervise()
    assert health_of(world, "/out/late.pt") is Health.SUSPECT


def test_another_runs_checkpoints_in_the_same_folder_are_no_targets():
    """A fresh run that crashes early does not go on from yesterday's step 300."""

    def old(world):
        identity = Identity("/out/step_300.pt", 3, 3, 4096)
        saved_utc = world.wall() - 5000
        world.put(CheckpointSeen(world.now - 5000, identity, "pt", 300, saved_utc))

    world = World([do(old), steps(1, 25), dies(code=1), steps(1, 40), dies(code=0)])
    assert world.supervise() == 0
    assert "/out/step_300.pt" not in world.launches[1].command


def test_the_checkpoint_that_the_user_resumes_from_is_a_target():
    """Started by hand from step 5000: that is the past of this run."""

    def old(world):
        identity = Identity("/out/step_5000.pt", 3, 3, 4096)
        saved_utc = world.wall() - 5000
        world.put(CheckpointSeen(world.now - 5000, identity, "pt", 5000, saved_utc))

    nans = [line(f"Step {n} | Loss: nan | LR: 1e-03") for n in (5121, 5122, 5123)]
    world = World([do(old), steps(5001, 5120), *nans, steps(5001, 5010), dies(code=0)])
    assert world.supervise() == 0
    assert world.launches[1].command[-1] == "/out/step_5000.pt"


def test_the_same_words_in_the_middle_of_training_are_no_second_startup_death():
    """Only deaths before the first record count as dying the same way again."""
    same = line("RuntimeError: NCCL communicator was aborted")
    world = World(
        [steps(1, 400), checkpoint(400), same, dies(code=1), same, dies(code=1), wait(30)]
        + [steps(401, 420), dies(code=0)]
    )
    assert world.supervise() == 0
    assert len(world.launches) == 3
