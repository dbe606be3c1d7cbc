"""What people do to a run: stop it, close the terminal, start it again, make mistakes."""

from __future__ import annotations

import json
import signal

import psutil
import pytest

from overnight_box import OVERNIGHT
from waiting import wait_for_file, wait_until

LONG = ("--steps", "5000")


def test_interrupt_lets_the_worker_save(box):
    """Ctrl-C: SIGTERM to the worker, it saves and leaves, exit 130; the next start continues."""
    live = box.start(box.command(*LONG))
    live.wait_for("attempt 1 started")
    wait_for_file(box.out / "step_40.safetensors")
    live.process.send_signal(signal.SIGINT)
    done = live.finish()
    assert done.status == 130
    assert "leaving" in box.log(1)
    assert box.status()["state"] == "interrupted"
    again = box.start(box.command(*LONG))
    line = again.wait_for("continuing from")
    wait_until(lambda: len(box.starts()) == 2, box.out)
    again.process.terminate()
    assert again.finish().status == 143
    assert str(box.out) in line
    assert "--resume" in box.starts()[1]["argv"]


def test_second_interrupt_kills_at_once(box):
    """A worker that ignores SIGTERM does not hold up a person who insists."""
    live = box.start(box.command(*LONG, "--stubborn"))
    live.wait_for("attempt 1 started")
    wait_for_file(box.out / "step_20.safetensors")
    live.process.send_signal(signal.SIGINT)
    live.wait_for("90 s to save")
    live.process.send_signal(signal.SIGINT)
    assert live.finish(timeout_s=10).status == 130
    assert not psutil.pid_exists(box.starts()[0]["pid"])


def test_overnight_stop_ends_with_zero(box):
    """`overnight stop` waits for the end; the supervisor leaves with 0."""
    live = box.start(box.command(*LONG))
    wait_for_file(box.out / "step_20.safetensors")
    stopped = box.overnight("stop", "night")
    assert stopped.status == 0, stopped.err
    assert live.finish().status == 0
    assert box.status()["state"] == "interrupted"


def test_a_closed_terminal_does_not_end_the_watch(box):
    """SIGHUP detaches: the fault that comes later is still healed."""
    gate = box.workdir / "gate"
    live = box.start(box.command("--fault", "nan@230", "--wait-for", str(gate)))
    live.wait_for("attempt 1 started")
    live.process.send_signal(signal.SIGHUP)
    gate.touch()
    assert live.finish().status == 0
    assert box.incidents()[0]["lr_proof"] == "proved"


def test_killing_the_supervisor_leaves_the_worker_running(box):
    """kill -9 of the watchdog: the worker trains to its end and its exit is recorded."""
    gate = box.workdir / "gate"
    live = box.start(box.command("--steps", "50", "--wait-for", str(gate)))
    live.wait_for("attempt 1 started")
    worker = psutil.Process(box.first_start()["pid"])
    live.process.kill()
    live.process.wait()
    assert worker.is_running()
    assert box.status()["state"] == "lost"
    refused = box.run(box.command("--steps", "50", "--wait-for", str(gate)))
    assert refused.status == 2
    assert f"pid {worker.pid}" in refused.err
    gate.touch()
    record = box.state / "night" / "attempts" / "0001" / "exit.json"
    wait_for_file(record)
    assert json.loads(record.read_text())["code"] == 0
    assert "training done" in box.log(1)


def test_second_supervisor_is_refused(box):
    """One supervisor a run."""
    live = box.start(box.command(*LONG))
    live.wait_for("attempt 1 started")
    second = box.run(box.command(*LONG))
    assert second.status == 2
    assert f"pid {live.process.pid}" in second.err
    assert len(box.starts()) <= 1


def test_a_run_that_ended_while_nobody_watched_is_complete(box):
    """kill -9 of the watchdog, the worker finishes: a new start overwrites nothing."""
    gate = box.workdir / "gate"
    command = box.command("--steps", "60", "--wait-for", str(gate))
    live = box.start(command, resume=None)
    live.wait_for("attempt 1 started")
    box.first_start()
    live.process.kill()
    live.process.wait()
    gate.touch()
    wait_for_file(box.state / "night" / "attempts" / "0001" / "exit.json")
    again = box.run(command, resume=None)
    assert again.status == 2
    assert "completed while no supervisor watched" in again.err
    assert len(box.starts()) == 1


def test_what_was_saved_while_nobody_watched_is_continued_from(box):
    """A worker that outlived its watchdog and then died: its newest checkpoint counts."""
    gate = box.workdir / "gate"
    command = box.command("--steps", "130", "--fault", "crash@110", "--wait-for", str(gate))
    live = box.start(command)
    live.wait_for("attempt 1 started")
    box.first_start()
    live.process.kill()
    live.process.wait()
    gate.touch()
    wait_for_file(box.state / "night" / "attempts" / "0001" / "exit.json")
    again = box.run(command)
    assert again.status == 0, again.err
    assert "step_100.safetensors" in " ".join(box.starts()[1]["argv"])


def test_vault_copies_stand_in_for_what_was_deleted_meanwhile(box):
    """Between two starts somebody clears the folder: the vault has the run's healthy ones."""
    live = box.start(box.command(*LONG))
    wait_for_file(box.out / "step_300.safetensors")
    live.process.send_signal(signal.SIGINT)
    assert live.finish().status == 130
    for path in box.out.glob("*.safetensors"):
        path.unlink()
    again = box.start(box.command(*LONG))
    line = again.wait_for("continuing from")
    assert ".overnight-vault" in line
    wait_until(lambda: len(box.starts()) == 2, box.out)
    again.process.terminate()
    assert again.finish().status == 143


def test_completed_run_is_not_started_again(box):
    """A finished name needs --fresh, which deletes nothing."""
    command = box.command("--steps", "30")
    assert box.run(command).status == 0
    refused = box.run(command)
    assert refused.status == 2
    assert "--fresh" in refused.err
    assert box.run(command, "--fresh").status == 0
    assert len(list((box.state / ".archive").iterdir())) == 1


def test_another_command_under_the_same_name_is_refused(box):
    """The name remembers its command."""
    live = box.start(box.command(*LONG))
    wait_for_file(box.out / "step_20.safetensors")
    live.process.terminate()
    live.finish()
    refused = box.run(box.command("--steps", "7"))
    assert refused.status == 2
    assert "another command" in refused.err


def test_a_mistyped_first_command_does_not_occupy_the_name(box):
    """A run that never had a record may be started with the right command."""
    assert box.run(["python3", "no_such_script.py"], resume=None).status == 1
    assert box.run(box.command("--steps", "30"), resume=None).status == 0


def test_missing_program_is_one_clear_error(box):
    """Nothing is started, nothing is left behind."""
    done = box.run(["no-such-program-anywhere"], resume=None)
    assert done.status == 2
    assert "no-such-program-anywhere" in done.err
    assert not (box.state / "night").exists()


def test_unwritable_state_directory_is_one_clear_error(box):
    """A state directory that is a file cannot hold a run."""
    box.state.write_text("not a directory")
    done = box.run(box.command())
    assert done.status == 2
    assert "OVERNIGHT_STATE_DIR" in done.err
    assert box.starts() == []


def test_all_config_errors_are_told_at_once(box):
    """Each with its key and a hint; exit 2; nothing started."""
    (box.workdir / "overnight.toml").write_text(
        "[detect.stall]\nflor_s = 3\n[budget]\nattempts = 0\n[policy.loss-spik]\nlr_factor = 2\n"
        '[resume]\nargs = "--resume {chekpoint}"\n'
    )
    done = box.run(box.command(), resume=None)
    assert done.status == 2
    for word in ("detect.stall.flor_s", "did you mean floor_s", "budget.attempts"):
        assert word in done.err
    for word in ("policy.loss-spik", "did you mean loss-spike", "{chekpoint}", "{checkpoint}"):
        assert word in done.err
    assert box.starts() == []


@pytest.mark.parametrize(
    "text", ["[run", "run = 3\n[x]", "\xff"], ids=["cut", "wrong type", "bytes"]
)
def test_broken_config_is_refused(box, text):
    """Not TOML, or not ours: exit 2."""
    (box.workdir / "overnight.toml").write_bytes(text.encode("latin-1"))
    assert box.run(box.command(), resume=None).status == 2


def test_unknown_run_has_its_own_status(box):
    """3: no such run."""
    assert box.overnight("status", "nobody").status == 3
    assert box.overnight("incidents", "nobody").status == 3


def test_ack_marks_what_is_open(box):
    """An acknowledged incident no longer asks for a person."""
    gate = box.workdir / "gate"
    command = box.command(
        "--fault", "nan@230", "--keep-lr", "--wait-for", str(gate), "--steps", "5000"
    )
    live = box.start(command)
    gate.touch()
    live.wait_for("lr-not-reduced")
    assert box.overnight("status", "night").status == 1
    assert box.overnight("ack", "night").out.startswith("acknowledged")
    assert box.overnight("status", "night").status == 0
    live.process.terminate()
    live.finish()


def test_detach_gives_the_prompt_back(box):
    """--detach: the command returns, the watch goes on."""
    argv = box.run_argv(box.command("--steps", "400"), "--detach")
    done = box.call(argv, timeout_s=20)
    assert done.status == 0, done.err
    assert "overnight status night" in done.out
    wait_for_file(box.out / "step_400.safetensors")
    stop = box.overnight("stop", "night")
    assert stop.status in (0, 1)


@pytest.mark.slow
def test_secrets_are_not_printed_anywhere(box):
    """A receiver's URL is in no output, no log and no store of the run."""
    url = "json://user:s3cr3tt0ken@127.0.0.1:9/hook"
    done = box.run(box.command("--steps", "30", "--fault", "one-nan@20"), "--notify", url)
    assert done.status == 0
    assert "s3cr3tt0ken" not in done.err
    for path in (box.state / "night").rglob("*"):
        if path.is_file():
            assert b"s3cr3tt0ken" not in path.read_bytes(), path


def test_module_form_works(box):
    """`python -m overnight --version`."""
    assert "overnight" in box.call([*OVERNIGHT, "--version"]).out


def test_a_metrics_path_that_cannot_be_read_is_refused(box):
    """A directory: exit 2 with a hint, nothing left behind."""
    (box.workdir / "logs").mkdir()
    (box.workdir / "overnight.toml").write_text('[metrics]\nsource = "file"\npath = "logs/"\n')
    done = box.run(box.command(), resume=None)
    assert done.status == 2
    assert "'logs/' is a directory" in done.err
    assert 'path = "logs/*.csv"' in done.err
    assert not (box.state / "night").exists()
