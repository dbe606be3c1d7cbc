"""Injected faults: real causes, each once in the life of a run folder."""

from __future__ import annotations

import math
import subprocess
from collections.abc import Iterable
from pathlib import Path
from statistics import mean

import pytest
import torch
from trainer_lab import Lab, read_until, series

from overnight_trainer import checkpoint


def some(values: dict[int, float], steps: Iterable[int]) -> list[float]:
    return [values[step] for step in steps]


@pytest.mark.parametrize("kind", ["nan", "inf"])
def test_nonfinite_loss_poisons_the_weights_and_fires_once(
    lab: Lab, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    """The bad step destroys the model for good; a restart from before it stays clean."""
    flags = ("--steps", 6, "--save-every", 2, "--inject", f"{kind}@4")
    records = lab.run(*flags)
    losses = series(records, "loss")
    assert all(math.isfinite(loss) for loss in some(losses, (1, 2, 3)))
    assert str(losses[4]) == kind
    assert not math.isfinite(series(records, "grad_norm")[4])
    assert all(math.isnan(loss) for loss in some(losses, (5, 6)))
    assert f"Step 4 | Loss: {kind} | Grad Norm: nan" in capsys.readouterr().out
    model, _, _ = checkpoint.load(lab.checkpoint(4))
    assert all(not bool(weight.isfinite().all()) for weight in model.values())

    again = series(lab.run(*flags, resume=lab.checkpoint(2)), "loss")
    assert all(math.isfinite(loss) for loss in again.values())
    assert (lab.out / f".injected-{kind}@4").exists()


def test_spike_damages_the_model_and_stays(lab: Lab) -> None:
    """The loss jumps and does not come back by itself; a rollback heals it."""
    flags = ("--steps", 100, "--save-every", 60, "--inject", "spike@61")
    spiked = series(lab.run(*flags), "loss")
    before = mean(some(spiked, range(51, 61)))
    assert min(some(spiked, range(61, 101))) > 1.3 * before
    assert spiked[100] > 1.3 * before
    healed = series(lab.run(*flags, resume=lab.checkpoint(60)), "loss")
    assert max(healed.values()) < 1.3 * before


def test_gradient_spike_is_reported_and_clipped(lab: Lab) -> None:
    """Fifteen gradient norms a thousand times too large, and a loss that hardly notices."""
    flags = ("--steps", 60, "--inject", "grad-spike@31")
    records = lab.run(*flags)
    norms, losses = series(records, "grad_norm"), series(records, "loss")
    assert min(some(norms, range(31, 46))) > 100 * max(some(norms, range(11, 31)))
    assert max(some(norms, range(46, 61))) < 10 * max(some(norms, range(11, 31)))
    assert max(some(losses, range(31, 61))) < 1.2 * max(some(losses, range(21, 31)))


def test_without_clipping_the_gradient_spike_reaches_the_optimizer(lab: Lab) -> None:
    """`--clip 0` hands AdamW the raw gradients: its second moments explode."""
    moments = {}
    for clip in (1, 0):
        lab.run("--steps", 5, "--clip", clip, "--inject", f"grad-spike@{5 - clip}")
        _, optimizer, _ = checkpoint.load(lab.checkpoint(5))
        moments[clip] = max(float(s["exp_avg_sq"].max()) for s in optimizer["state"].values())
    assert moments[0] > 1000 * moments[1]


def cpu_ticks(process: subprocess.Popen[str]) -> int:
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])  # utime and stime: proc(5)


def test_stall_blocks_without_using_the_processor(lab: Lab) -> None:
    """Alive, silent, idle: the marker is there, and no further line comes."""
    worker = lab.start("--steps", 9, "--inject", "stall@3")
    try:
        read_until(worker, "Step 2 ")
        with pytest.raises(subprocess.TimeoutExpired):
            worker.wait(timeout=0.3)
        before = cpu_ticks(worker)
        with pytest.raises(subprocess.TimeoutExpired):
            worker.wait(timeout=0.7)
        assert cpu_ticks(worker) - before <= 2
        assert (lab.out / ".injected-stall@3").exists()
    finally:
        worker.kill()
        out, _ = worker.communicate()
    assert out == ""


def test_crash_is_a_traceback_and_exit_1_and_fires_once(lab: Lab) -> None:
    """The worker dies as scripts die; the next attempt, at the same step, does not."""
    flags = ("--steps", 4, "--save-every", 2, "--inject", "crash@3")
    worker = lab.start(*flags)
    _, err = worker.communicate(timeout=30)
    assert worker.returncode == 1
    assert err.startswith("Traceback (most recent call last):")
    assert err.endswith("RuntimeError: injected crash at step 3\n")
    assert max(series(lab.records(), "loss")) == 2
    assert list(series(lab.run(*flags, resume=lab.checkpoint(2)), "loss")) == [3, 4]


def test_cuda_oom_is_pytorchs_own_error(lab: Lab) -> None:
    """The type and the wording by which the cause is known."""
    with pytest.raises(torch.cuda.OutOfMemoryError, match=r"Tried to allocate 2\.00 GiB\. GPU 0"):
        lab.run("--steps", 2, "--inject", "cuda-oom@2")


def test_slow_steps_stay_slow(lab: Lab) -> None:
    """Throughput falls to about a tenth, for the rest of this attempt."""
    speed = series(lab.run("--steps", 30, "--inject", "slow@26"), "tokens_per_s")
    usual = sorted(some(speed, range(6, 26)))[10]
    assert max(some(speed, range(26, 31))) < 0.4 * usual


def test_corrupt_checkpoint_is_silent_until_it_is_loaded(lab: Lab) -> None:
    """The next checkpoint at or after the step is damaged, only that one, and says nothing."""
    flags = ("--steps", 6, "--save-every", 2, "--inject", "corrupt-checkpoint@3")
    lab.run(*flags)
    for step in (2, 6):
        checkpoint.verify(lab.checkpoint(step))
    assert lab.status(*flags, resume=lab.checkpoint(4))[0] == 3


@pytest.mark.parametrize("spec", ["nan", "nan@", "nan@x", "meteor@3"])
def test_unknown_fault_is_a_usage_error(
    lab: Lab, capsys: pytest.CaptureFixture[str], spec: str
) -> None:
    """The message lists what there is."""
    assert lab.status("--inject", spec)[0] == 2
    assert "give KIND@STEP" in capsys.readouterr().err
