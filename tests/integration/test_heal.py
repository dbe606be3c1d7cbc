"""Faults that heal: the right checkpoint, the right learning rate, one message, exit 0."""

from __future__ import annotations

from pathlib import Path

from receivers import Recorder


def test_nan_rolls_back_to_a_healthy_checkpoint_with_half_the_rate(box):
    """NaN: kill, newest healthy checkpoint before the onset, lr halved and proved, one alert."""
    with Recorder() as phone:
        done = box.run(box.command("--fault", "nan@230"), "--notify", phone.url("json"))
        [message] = phone.wait(1, timeout_s=5)
        assert len(phone.requests) == 1
    assert done.status == 0, done.err
    [incident] = box.incidents()
    assert incident["fault"] == "loss-nonfinite"
    assert incident["severity"] == "critical"
    assert incident["action"] == "rollback"
    assert (incident["onset_step"], incident["detected_step"]) == (230, 232)
    assert incident["checkpoint"]["step"] == 120  # 120 + 100 clean steps = 220 < 230; 140 is young
    assert (incident["lr_scale_before"], incident["lr_scale_after"]) == (1.0, 0.5)
    assert incident["lr_proof"] == "proved"
    assert incident["cost"]["steps"] == 112
    assert not incident["needs_you"]
    assert incident["closed_utc"] is not None
    assert "healed" in message.json["title"]
    first, second = box.starts()
    assert "--resume" not in first["argv"]
    assert second["argv"][2:4] == ["--lr", "0.00015"]  # replaced in place
    assert second["argv"][-2:] == ["--resume", str(box.out / "step_120.safetensors")]
    assert "LR: 1.500e-04" in box.log(2)
    assert box.status()["step"] == 300


def test_gradient_spike_with_a_normal_loss_rolls_back(box):
    """A gradient norm x1000 is acted on although the loss looks normal."""
    done = box.run(box.command("--fault", "grad-spike@230", "--cooperate"), resume=None)
    assert done.status == 0, done.err
    [incident] = box.incidents()
    assert incident["fault"] == "grad-spike"
    assert incident["action"] == "rollback"
    assert incident["onset_step"] == 230
    assert incident["lr_proof"] == "proved"
    rates = {metric["lr"] for metric in box.metrics(2) if "lr" in metric}
    assert rates == {1.5e-4}


def test_lasting_loss_spike_rolls_back(box):
    """A loss that stays up is rolled back to before it rose."""
    done = box.run(box.command("--fault", "spike@230"))
    assert done.status == 0, done.err
    [incident] = box.incidents()
    assert (incident["fault"], incident["onset_step"]) == ("loss-spike", 230)
    assert incident["checkpoint"]["step"] < 230


def test_crash_restarts_at_once_from_the_newest_verified(box):
    """A crash keeps the learning rate and loses only the steps since the newest checkpoint."""
    done = box.run(box.command("--fault", "crash@230"))
    assert done.status == 0, done.err
    [incident] = box.incidents()
    assert (incident["fault"], incident["cause"]) == ("crash", "runtime-error")
    assert incident["action"] == "restart"
    assert incident["checkpoint"]["step"] == 220
    assert incident["lr_scale_after"] == 1.0
    assert incident["lr_proof"] is None
    assert "back-off" not in done.err


def test_second_crash_waits(box):
    """The first restart is immediate, the next one without progress waits."""
    faults = ("--fault", "crash@230", "--fault", "crash@235")
    live = box.start(box.command(*faults))
    live.wait_for("attempt 2 started")
    live.wait_for("next attempt in 10 s (back-off)")
    live.process.terminate()
    assert live.finish().status == 143


def test_stall_is_killed_and_restarted(box):
    """Silence with an idle CPU past the limit is a stall; the limit is the config's."""
    (box.workdir / "overnight.toml").write_text("[detect.stall]\nfloor_s = 2\nwitness_s = 1.5\n")
    done = box.run(box.command("--fault", "stall@230"))
    assert done.status == 0, done.err
    [incident] = box.incidents()
    assert (incident["fault"], incident["action"]) == ("stall", "restart")
    assert incident["lr_scale_after"] == 1.0
    assert "no CPU time" in incident["reason"]
    autopsy = Path(incident["evidence"]["autopsy"]).read_text()
    assert "thread" in autopsy
    assert "Step 229 " in autopsy
    assert "autopsy  " in box.overnight("incidents", "night").out


def test_a_single_nan_record_is_a_warning_and_nothing_more(box):
    """One bad record in a dense log is told, not acted on."""
    done = box.run(box.command("--fault", "one-nan@230"))
    assert done.status == 0, done.err
    [incident] = box.incidents()
    assert (incident["severity"], incident["action"]) == ("warning", "notify")
    assert len(box.starts()) == 1


def test_sparse_log_acts_on_the_first_nan(box):
    """A line every 20 steps: the first NaN is certain."""
    done = box.run(box.command("--fault", "nan@210", "--stride", "20"))
    assert done.status == 0, done.err
    [incident] = box.incidents()
    assert (incident["onset_step"], incident["detected_step"]) == (220, 220)
    assert incident["checkpoint"]["step"] == 100


def test_a_fault_that_returns_climbs_the_ladder_and_halts(box):
    """Older checkpoints and smaller rates each time; at the end a person is asked."""
    (box.workdir / "overnight.toml").write_text("[budget]\nbackoff_s = 0\n")
    done = box.run(box.command("--fault", "nan@230", "--always"))
    assert done.status == 1, done.err
    incidents = box.incidents()
    steps = [i["checkpoint"]["step"] for i in incidents if i["action"] == "rollback"]
    scales = [i["lr_scale_after"] for i in incidents if i["action"] == "rollback"]
    assert steps == sorted(steps, reverse=True)
    assert len(set(steps)) == len(steps) >= 2
    assert scales == [0.5**n for n in range(1, len(scales) + 1)]
    assert incidents[-1]["needs_you"]
    assert box.status()["state"] == "halted"


def test_rate_that_does_not_fall_is_an_incident_for_a_person(box):
    """Loading state that overwrites --lr is seen in the log, told, and never killed for."""
    done = box.run(box.command("--fault", "nan@230", "--keep-lr"))
    assert done.status == 0, done.err
    first, second = box.incidents()
    assert first["lr_proof"] == "not-reduced"
    assert second["fault"] == "lr-not-reduced"
    assert second["needs_you"]
    assert second["action"] == "notify"
    assert len(box.starts()) == 2


def test_a_script_that_prints_nothing_is_healed_from_its_csv_file(box):
    """`[metrics] source = "file"`: both attempts append to it; its lr proves the reduction."""
    config = box.workdir / "overnight.toml"
    config.write_text('[metrics]\nsource = "file"\npath = "out/*.csv"\n')
    box.out.mkdir()
    (box.out / "old.csv").write_text("step,train/loss\n1,nan\n2,nan\n3,nan\n")
    done = box.run(box.command("--fault", "nan@230", "--csv", str(box.out / "m.csv")))
    assert done.status == 0, done.err
    assert "metrics: file out/*.csv" in done.err
    [incident] = box.incidents()
    assert (incident["fault"], incident["onset_step"]) == ("loss-nonfinite", 230)
    assert incident["checkpoint"]["step"] == 120
    assert incident["lr_proof"] == "proved"
    assert box.log(1) == ""
    assert box.status()["step"] == 300
