"""The configuration: values in, one frozen Config out, all problems at once."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from overnight.config import Config, default_name, parse_config
from overnight.core.events import Action, Fault
from overnight.errors import ConfigError


def problems(values: dict) -> list[str]:
    """The sentences of a config that is refused."""
    with pytest.raises(ConfigError) as caught:
        parse_config(values, source="overnight.toml")
    assert caught.value.exit_code == 2
    assert caught.value.hint
    return caught.value.problems


def test_nothing_given_is_the_defaults() -> None:
    """A run needs no config file."""
    config = parse_config({}, source="none")
    assert config == Config()
    assert config.detect.stall.floor_s == 900
    assert config.panel.nonfinite.loss_records == 3
    assert config.policies.min_lr_scale == 0.0625


def test_a_full_file() -> None:
    """Every section reaches its owner."""
    config = parse_config(
        {
            "run": {"name": "gpt-2", "command": ["python", "t.py"], "env": {"A": "1"}},
            "checkpoints": {"glob": ["a/*.pt", "b/*.pt"], "keep": 3},
            "resume": {"args": ["--resume", "{checkpoint}"], "from_scratch": True},
            "detect": {"spike": {"need": 8}, "stall": {"floor_s": 60}},
            "policy": {"loss-spike": {"action": "notify"}, "crash": {"lr_factor": 0.9}},
            "budget": {"attempts": 5},
            "gpu": {"kill_c": 92},
            "notify": {"receivers": ["env:HOOK"]},
        },
        source="x",
    )
    assert config.checkpoints.glob == ("a/*.pt", "b/*.pt")
    assert config.policies.faults[Fault.LOSS_SPIKE].action is Action.NOTIFY
    assert config.policies.from_scratch
    assert config.policies.budget.attempts == 5
    assert config.panel.spike.need == 8
    assert config.panel.spike.model_fields_set == {"need"}


@pytest.mark.parametrize(
    ("values", "read"),
    [
        ({"run": {"command": "python t.py --name 'a b'"}}, ("python", "t.py", "--name", "a b")),
        ({"resume": {"args": "--resume {checkpoint}"}}, ("--resume", "{checkpoint}")),
        ({"checkpoints": {"glob": "out/*.pt"}}, ("out/*.pt",)),
    ],
    ids=["command", "args", "glob"],
)
def test_lists_may_be_written_as_strings(values: dict, read: tuple[str, ...]) -> None:
    """As one types them in a shell."""
    config = parse_config(values, source="x")
    assert read in (config.run.command, config.resume.args, config.checkpoints.glob)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        pytest.param(
            {"chekpoints": {}}, "chekpoints: unknown key (did you mean checkpoints?)", id="section"
        ),
        pytest.param(
            {"detect": {"spike": {"windw": 3}}},
            "detect.spike.windw: unknown key (did you mean window?)",
            id="nested",
        ),
        pytest.param(
            {"policy": {"crash": {"lr_facter": 1}}},
            "policy.crash.lr_facter: unknown key (did you mean lr_factor?)",
            id="in-a-policy",
        ),
        pytest.param(
            {"policy": {"lossspike": {}}},
            "policy.lossspike: unknown fault (did you mean loss-spike?)",
            id="fault",
        ),
        pytest.param(
            {"policy": {"zzz": {}}},
            "policy.zzz: unknown fault (see docs/glossary.md for the faults)",
            id="no-such-fault",
        ),
        pytest.param(
            {"budget": {"zzz": 1}}, "budget.zzz: unknown key (known keys: ", id="all-known-keys"
        ),
        pytest.param(
            {"policy": {"crash": {"zzz": 1}}},
            "policy.crash.zzz: unknown key (known keys: action, delay_s, in_flight, lr_climb_",
            id="known-keys-of-a-policy",
        ),
        pytest.param(
            {"checkpoints": {"keep": 0}},
            "checkpoints.keep: input should be greater than or equal to 1",
            id="range",
        ),
        pytest.param(
            {"checkpoints": {"keep": "two"}},
            "checkpoints.keep: input should be a valid integer",
            id="type",
        ),
        pytest.param(
            {"checkpoints": 3}, "checkpoints: input should be a valid dictionary", id="no-section"
        ),
        pytest.param({"run": {"name": "../x"}}, "run.name: a name is letters, digits", id="name"),
        pytest.param(
            {"run": {"command": "python 't.py"}}, "run.command: no closing quotation", id="quotes"
        ),
        pytest.param(
            {"resume": {"args": "--r {ckpt}"}},
            "resume.args: unknown placeholder {ckpt}; known are {checkpoint}",
            id="placeholder",
        ),
        pytest.param(
            {"gpu": {"resume_below_c": 95}},
            "gpu: resume_below_c (95) must be below kill_c (88)",
            id="levels",
        ),
        pytest.param(
            {"detect": {"spike": {"need": 20}}},
            "detect.spike: need (20) must not be above persist (12)",
            id="deaf",
        ),
    ],
)
def test_each_problem_is_a_sentence_with_its_key(values: dict, sentence: str) -> None:
    """The key as it stands in the file, what is wrong, and what to do."""
    (problem,) = problems(values)
    assert problem.startswith(sentence)


def test_all_problems_come_at_once() -> None:
    """Nobody fixes a config one error a night."""
    values = {"run": {"nam": "x"}, "budget": {"attempts": 0}, "policy": {"nan": {}}, "zzz": 1}
    found = problems(values)
    assert [problem.split(":")[0] for problem in found] == [
        "run.nam",
        "policy.nan",
        "budget.attempts",
        "zzz",
    ]
    with pytest.raises(ConfigError, match=r"overnight\.toml: 4 problems\n  run\.nam"):
        parse_config(values, source="overnight.toml")


def test_a_receiver_is_shown_nowhere() -> None:
    """A URL holds a password: not in an error, not in a repr."""
    secret = "discord://hunter2@token"
    assert all(secret not in p for p in problems({"notify": {"receivers": [secret, 3]}}))
    config = parse_config({"notify": {"receivers": [secret]}}, source="x")
    assert "hunter2" not in repr(config)


def test_a_config_is_frozen_and_the_values_stay_as_they_were() -> None:
    """One value for the whole run."""
    values = {"checkpoints": {"glob": "a/*"}}
    config = parse_config(values, source="x")
    assert values == {"checkpoints": {"glob": "a/*"}}
    with pytest.raises(ValidationError):
        config.run = None  # type: ignore[assignment, misc] - that it cannot be set is the test


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("gpt2", "gpt2"),
        ("my run (2)", "my-run-2-"),
        (".hidden", "hidden"),
        ("---", "run"),
        ("ü", "run"),
        ("a" * 99, "a" * 64),
    ],
)
def test_a_run_is_named_after_its_folder(folder: str, name: str) -> None:
    """With what a name may not hold left out."""
    assert default_name(Path("/nowhere") / folder) == name
