"""The protocol with the watchdog: records out, orders and signals in."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
from trainer_lab import Lab, read_until, series

from overnight_trainer import TrainerError
from overnight_trainer.report import NO_WINDOW, Control

# -- what it says -----------------------------------------------------------------------------


def test_records_are_hello_then_steps_then_checkpoint(lab: Lab) -> None:
    """The shape that docs/protocol.md promises, in order."""
    records = lab.run("--steps", 2, "--eval-every", 2)
    assert records[0] == {
        "event": "hello",
        "checkpoint_signal": "SIGUSR1",
        "total_steps": 2,
        "resume": True,
        "lr_scale": True,
        "pid": os.getpid(),
        "step": 0,
    }
    assert list(records[1]) == ["step", "loss", "grad_norm", "lr", "tokens_per_s", "epoch"]
    assert math.isclose(records[1]["loss"], math.log(256), rel_tol=0.05)
    assert records[3:] == [
        {"event": "phase", "name": "eval"},
        {"event": "phase", "name": "train"},
        {"step": 2, "eval_loss": records[5]["eval_loss"]},
        {"event": "phase", "name": "save"},
        {"event": "phase", "name": "train"},
        {"event": "checkpoint", "path": str(lab.checkpoint(2)), "step": 2},
    ]
    assert lab.checkpoint(2).is_absolute()


def test_lines_for_people(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    """The printed line is the one that many scripts print."""
    lab.run("--steps", 4, "--log-every", 2, "--eval-every", 4)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Step")]
    number = r"[\d.]+"
    step = rf"Loss: {number} \| Grad Norm: {number} \| LR: \d\.\de-\d\d \| Tok/s: [\d,]+"
    assert re.fullmatch(rf"Step 2 \| {step}", lines[0])
    assert re.fullmatch(rf"Step 4 \| {step}", lines[1])
    assert re.fullmatch(rf"Step 4 \| Val Loss: {number}", lines[2])
    assert len(lines) == 3


def test_works_without_the_watchdog(lab: Lab) -> None:
    """No variable set: it trains, saves, and writes no records."""
    assert lab.run("--steps", 1, metrics="") == []
    assert lab.checkpoints() == [1]


def test_signal_is_not_offered_under_torchrun(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The parent is then the launcher, and SIGUSR1 would kill it."""
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    assert lab.run("--steps", 1)[0]["checkpoint_signal"] is None


# -- learning rate ----------------------------------------------------------------------------


def test_lr_scale_is_applied_after_the_state_is_loaded(lab: Lab) -> None:
    """An optimizer state saved at full rate does not undo the watchdog's factor."""
    full = series(lab.run("--steps", 6, "--save-every", 3), "lr")
    halved = lab.run("--steps", 6, "--resume", lab.checkpoint(3), lr_scale="0.5")
    assert series(halved, "lr") == {step: full[step] * 0.5 for step in (4, 5, 6)}


def test_control_file_changes_the_rate_of_a_running_worker(lab: Lab) -> None:
    """A new control file holds from the next step on, without a restart."""
    control = lab.folder / "control.json"
    worker = lab.start("--steps", 100_000, control=control)
    try:
        read_until(worker, "Step 12 ")
        (lab.folder / "new").write_text('{"lr_scale": 0.25}')
        (lab.folder / "new").rename(control)
        line = read_until(worker, "LR: 7.5e-04")  # a quarter of tiny's 3e-3
        worker.terminate()
        worker.communicate(timeout=20)
    finally:
        worker.kill()
    step = int(line.split()[1])
    rates = series(lab.records(), "lr")
    assert rates[step - 1] == pytest.approx(3e-3, rel=1e-3)
    assert rates[step] == pytest.approx(0.75e-3, rel=1e-3)


def test_control_file_missing_or_torn_keeps_the_last_orders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a complete file with sensible values changes anything; absent keys stay."""
    path = tmp_path / "control.json"
    monkeypatch.setenv("OVERNIGHT_CONTROL", str(path))
    monkeypatch.setenv("OVERNIGHT_LR_SCALE", "0.5")
    monkeypatch.setenv("OVERNIGHT_SKIP", "10:19")
    control = Control()
    history: list[tuple[str | None, float, tuple[int, int]]] = [
        (None, 0.5, (10, 19)),
        ('{"lr_scale": 0.25}', 0.25, (10, 19)),
        ('{"lr_scale": 0.1', 0.25, (10, 19)),
        ('{"lr_scale": "fast"}', 0.25, (10, 19)),
        ('{"lr_scale": NaN, "skip": "1:2"}', 0.25, (10, 19)),
        ('{"lr_scale": 0, "skip": "1:2"}', 0.25, (10, 19)),
        ('{"skip": "9:1"}', 0.25, (10, 19)),
        ("[0.1]", 0.25, (10, 19)),
        ('{"lr_scale": 1, "skip": ""}', 1.0, NO_WINDOW),
        (None, 1.0, NO_WINDOW),
        ('{"skip": "3:3"}', 1.0, (3, 3)),
    ]
    for content, lr_scale, skip in history:
        path.unlink(missing_ok=True)
        if content is not None:
            path.write_text(content)
        control.read()
        assert (control.lr_scale, control.skip) == (lr_scale, skip), content


@pytest.mark.parametrize(
    ("name", "value"),
    [("LR_SCALE", "half"), ("LR_SCALE", "nan"), ("LR_SCALE", "-1"), ("SKIP", "9"), ("SKIP", "9:1")],
)
def test_nonsense_in_the_environment_is_a_usage_error(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    """A wrong order at the start is refused, never guessed at."""
    monkeypatch.setenv(f"OVERNIGHT_{name}", value)
    with pytest.raises(TrainerError, match="OVERNIGHT_LR_SCALE takes"):
        Control()


# -- data to leave out ------------------------------------------------------------------------

# At this rate no weight moves in float32, so the loss of a step depends on its data alone.
STILL = ("--lr", "1e-30")


def test_skipped_window_is_never_seen(lab: Lab) -> None:
    """With 4:6 skipped, step 4 gets the data that step 7 would have had, and so on."""
    plain = series(lab.run("--steps", 12, *STILL), "loss")
    assert len(set(plain.values())) == 12
    skipped = series(lab.run("--steps", 9, *STILL, skip="4:6"), "loss")
    assert skipped == {step: plain[step if step < 4 else step + 3] for step in range(1, 10)}


def test_window_is_jumped_over_once_across_restarts(lab: Lab) -> None:
    """A resume inside the window leaves out its rest, or nothing if the checkpoint is past it."""
    plain = series(lab.run("--steps", 12, "--save-every", 4, *STILL), "loss")
    rest = series(
        lab.run("--steps", 8, "--save-every", 5, *STILL, resume=lab.checkpoint(4), skip="3:6"),
        "loss",
    )
    assert rest == {step: plain[step + 2] for step in (5, 6, 7, 8)}  # 5 and 6 were left
    again = series(lab.run("--steps", 8, *STILL, resume=lab.checkpoint(5), skip="3:6"), "loss")
    assert again == {step: rest[step] for step in (6, 7, 8)}
    past = series(lab.run("--steps", 9, *STILL, resume=lab.checkpoint(8), skip="1:3"), "loss")
    assert past == {9: plain[11]}


def test_window_can_come_by_the_control_file(lab: Lab) -> None:
    """The control file's window is as good as the environment's."""
    plain = series(lab.run("--steps", 6, *STILL), "loss")
    control = lab.folder / "control.json"
    control.write_text(json.dumps({"skip": "2:3"}))
    assert series(lab.run("--steps", 3, *STILL, control=control), "loss")[2] == plain[4]


# -- signals ----------------------------------------------------------------------------------


def stop(worker: subprocess.Popen[str], number: signal.Signals) -> tuple[int, str, str]:
    worker.send_signal(number)
    out, err = worker.communicate(timeout=20)
    return worker.returncode, out, err


def test_signals_save_and_save_and_leave(lab: Lab) -> None:
    """SIGUSR1 saves once and trains on; SIGTERM saves the step it is in and exits 0."""
    worker = lab.start("--steps", 100_000, "--save-every", 100_000)
    try:
        read_until(worker, "Step 3 ")
        worker.send_signal(signal.SIGUSR1)
        for _ in range(20):  # the lines of the following steps
            read_until(worker, "Step ")
        asked = lab.checkpoints()
        status, out, _ = stop(worker, signal.SIGTERM)
    finally:
        worker.kill()
    records = lab.records()
    last = max(series(records, "loss"))
    assert status == 0
    assert len(asked) == 1
    assert lab.checkpoints() == [asked[0], last]
    assert records[-1] == {
        "event": "checkpoint",
        "path": str(lab.checkpoint(last)),
        "step": last,
    }
    assert out.splitlines()[-1] == f"stopped by SIGTERM at step {last}"
