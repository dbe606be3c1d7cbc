"""`overnight replay` as people type it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

GOOD = [f"step {n} | loss {3 - n / 1000:.4f} | lr 1e-4" for n in range(60)]
BAD = [f"step {n} | loss nan | lr 1e-4" for n in range(60, 70)]


def replay(*args: str | Path, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run the command."""
    command = [sys.executable, "-m", "overnight", "replay", *map(str, args)]
    return subprocess.run(command, input=stdin, capture_output=True, check=False, timeout=60)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log that goes NaN, with the line ends of a progress bar."""
    path = tmp_path / "train.log"
    path.write_bytes("\r".join([*GOOD, *BAD]).encode())
    return path


def test_one_log_is_one_object(log: Path) -> None:
    """With what docs/protocol.md promises."""
    done = replay("--json", log)
    assert (done.returncode, done.stderr) == (0, b"")
    found = json.loads(done.stdout)
    assert (found["log"], found["records"], found["last_loss"]) == (str(log), 70, "NaN")
    (verdict,) = [v for v in found["verdicts"] if v["severity"] == "critical"]
    assert (verdict["fault"], verdict["line"], verdict["action"]) == (
        "loss-nonfinite",
        63,
        "rollback",
    )


def test_several_logs_are_json_lines_and_dash_is_stdin(log: Path) -> None:
    """In the order in which they were given."""
    done = replay("--json", "-", log, stdin="\n".join(GOOD).encode())
    first, second = [json.loads(line) for line in done.stdout.splitlines()]
    assert (first["log"], first["records"], first["verdicts"]) == ("-", 60, [])
    assert second["records"] == 70


def test_people_are_told_in_sentences(log: Path) -> None:
    """What was understood, what was found, what would have been done."""
    out = replay(log, "--exit-code", "1").stdout.decode()
    assert "70 records (step 0 to 69)" in out
    assert "line 63: critical: loss-nonfinite" in out
    assert "-> rollback" in out
    assert "died of: unknown" in out
    assert "no training loss was found" in replay("-", stdin=b"hello\n").stdout.decode()


def test_the_config_and_the_pacing_count(log: Path, tmp_path: Path) -> None:
    """Thresholds from a file; the pacing alone, or under its key as in a case."""
    config, pacing = tmp_path / "o.toml", tmp_path / "case.json"
    config.write_text("[detect.nonfinite]\nloss_records = 8\n")
    gaps = {"normal_gap_s": 1, "silent_gaps": [{"after_line": 50, "seconds": 7200}]}
    pacing.write_text(json.dumps({"healthy": False, "pacing": gaps}))
    done = replay("--json", log, "--config", config, "--pacing", pacing)
    critical = [v for v in json.loads(done.stdout)["verdicts"] if v["severity"] == "critical"]
    assert [(v["fault"], v["line"]) for v in critical] == [("stall", 50), ("loss-nonfinite", 68)]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere.log"], "cannot read nowhere.log"),
        (["-", "--pacing", "nowhere.json"], "cannot read nowhere.json"),
        (["-", "--pacing", __file__], "is no pacing"),
        (["-", "--config", "nowhere.toml"], "no config file"),
        ([], "Missing argument"),
    ],
)
def test_a_mistake_is_one_message(arguments: list[str], words: str) -> None:
    """With status 2, and nothing on stdout."""
    done = replay(*arguments)
    assert (done.returncode, done.stdout) == (2, b"")
    assert words in done.stderr.decode()


def test_any_bytes_are_read(tmp_path: Path) -> None:
    """No log is so broken that it raises."""
    path = tmp_path / "bytes.log"
    path.write_bytes(bytes(range(256)) * 200 + b"loss " * 50_000 + b"\xff\xfe\0" * 9)
    assert json.loads(replay("--json", path).stdout)["records"] == 0


def test_the_log_that_transformers_keeps(tmp_path: Path) -> None:
    """trainer_state.json has its entries under log_history, with the step behind the loss."""
    entries = [{"loss": 2.5 - n / 100, "grad_norm": 1.0, "step": 10 * n} for n in range(1, 31)]
    entries.append({"eval_loss": 2.2, "step": 300})
    state = tmp_path / "trainer_state.json"
    state.write_text(json.dumps({"global_step": 300, "log_history": entries}, indent=2))
    found = json.loads(replay("--json", state).stdout)
    assert (found["records"], found["eval_records"]) == (30, 1)
    assert (found["first_step"], found["last_step"], found["last_loss"]) == (10, 300, 2.2)
    state.write_text("{")
    assert replay("--json", state).returncode == 0


def test_tensorboard_files_and_histories_are_read(tmp_path: Path) -> None:
    """As written by torch.utils.tensorboard, and by Transformers beside a checkpoint."""
    events = Path(__file__).parents[1] / "data" / "tensorboard" / "torch.tfevents"
    history = tmp_path / "trainer_state.json"
    entries = [{"loss": 2.5, "step": 10}, {"eval_loss": 2.6, "step": 10}, {"loss": 2.4, "step": 20}]
    history.write_text(
        json.dumps({"epoch": 1.0, "log_history": entries, "max_steps": 99}, indent=2)
    )
    done = replay("--json", events, history)
    first, second = [json.loads(line) for line in done.stdout.splitlines()]
    assert (first["loss_key"], first["records"], first["last_loss"]) == ("Loss/train", 6, "NaN")
    assert (second["records"], second["eval_records"], second["last_step"]) == (2, 1, 20)


def test_the_names_of_the_config_count(tmp_path: Path) -> None:
    """A pattern for a log without names."""
    config, log = tmp_path / "o.toml", tmp_path / "log"
    config.write_text("[metrics]\npattern = '^{step} {loss}$'\n")
    log.write_text("\n".join(f"{n} {3 - n / 100}" for n in range(50)))
    assert json.loads(replay("--json", log).stdout)["records"] == 0
    found = json.loads(replay("--json", log, "--config", config).stdout)
    assert (found["records"], found["last_step"], found["loss_key"]) == (50, 49, "loss")
    config.write_text("[metrics]\npattern = '{step} (.*)'\n")
    wrong = replay(log, "--config", config)
    assert (wrong.returncode, wrong.stdout) == (2, b"")
    assert "metrics.pattern" in wrong.stderr.decode()
    assert "write {loss} for the number" in wrong.stderr.decode()


def test_a_pattern_that_would_never_end_is_given_up(tmp_path: Path) -> None:
    """And the log is read without it."""
    config, log = tmp_path / "o.toml", tmp_path / "log"
    config.write_text("[metrics]\npattern = '(a|aa)+b{loss}$'\n")
    lines = [f"{'a' * 60} step {n} loss {3 - n / 100}" for n in range(60)]
    log.write_text("\n".join(lines))
    done = replay("--json", log, "--config", config)
    assert done.returncode == 0
    assert "the pattern takes too long" in done.stderr.decode()
    assert json.loads(done.stdout)["records"] == 40
