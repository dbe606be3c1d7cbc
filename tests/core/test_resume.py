"""Resuming: the command that is started, and the proof that the learning rate fell."""

from __future__ import annotations

import shlex

import pytest
from pydantic import ValidationError

from core_lab import record
from overnight.core.arguments import Values, fill, rate_arguments, resumed_command
from overnight.core.proof import LrProof, LrWatch
from overnight.core.resume import ResumeConfig, Route, base_batch, base_lr, means_of

VALUES = Values("out/250.pt", attempt=2, lr_scale=0.5, step=250, lr=1.5e-4, skip=(390, 410))
PROVED, UNPROVEN, NOT_REDUCED = LrProof.PROVED, LrProof.UNPROVEN, LrProof.NOT_REDUCED


def resumed(command: str, args: str, values: Values = VALUES) -> str:
    """The command that would be started, as one line."""
    template = ResumeConfig(args=args).args
    return shlex.join(resumed_command(shlex.split(command), template, values))


# --- placeholders --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("template", "filled"),
    [
        ("{checkpoint}", "out/250.pt"),
        ("{step}", "250"),
        ("{lr}", "0.00015"),
        ("{lr_scale}", "0.5"),
        ("{attempt}", "2"),
        ("{skip_first}:{skip_last}", "390:410"),
        ("a{step}b{step}", "a250b250"),
        ("no braces", "no braces"),
    ],
)
def test_placeholders(template: str, filled: str) -> None:
    """Each stands for one value of the attempt."""
    assert fill(template, VALUES) == filled


def test_unknown_values_are_empty() -> None:
    """A step that nobody knows is no text."""
    assert fill("[{step}{lr}{skip_first}{skip_last}]", Values("c", 1, 1.0)) == "[]"


@pytest.mark.parametrize(
    "wrong",
    [
        {"args": ["--resume", "{ckpt}"]},
        {"args": "--lr {LR}"},
        {"env": {"A": "{}"}},
        {"args": "--x 'unclosed"},
    ],
)
def test_unknown_placeholders_are_config_errors(wrong: dict) -> None:
    """They are found when the config is read, not in the middle of the night."""
    with pytest.raises(ValidationError, match=r"unknown placeholder|No closing quotation"):
        ResumeConfig(**wrong)


# --- the command ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "args", "expected"),
    [
        pytest.param(
            "python t.py --bs 8",
            "--resume {checkpoint} --lr {lr}",
            "python t.py --bs 8 --resume out/250.pt --lr 0.00015",
            id="appended",
        ),
        pytest.param("t --lr 3e-4 --bs 8", "--lr {lr}", "t --lr 0.00015 --bs 8", id="in-place"),
        pytest.param("t --lr=3e-4 --bs 8", "--lr {lr}", "t --lr=0.00015 --bs 8", id="joined-stays"),
        pytest.param("t --lr 3e-4 --bs 8", "--lr={lr}", "t --lr 0.00015 --bs 8", id="apart-stays"),
        pytest.param("t lr=3e-4 bs=8", "lr={lr}", "t lr=0.00015 bs=8", id="hydra"),
        pytest.param("t bs=8", "ckpt={checkpoint}", "t bs=8 ckpt=out/250.pt", id="hydra-appended"),
        pytest.param(
            "t --lr 1 --lr 2", "--lr {lr}", "t --lr 1 --lr 0.00015", id="the-last-one-counts"
        ),
        pytest.param("t --lr=1 --lr 2", "--lr {lr}", "t --lr=1 --lr 0.00015", id="last-of-mixed"),
        pytest.param("t --lr-decay 1", "--lr {lr}", "t --lr-decay 1 --lr 0.00015", id="no-prefix"),
        pytest.param("t --temp -1", "--temp {lr}", "t --temp 0.00015", id="negative-value"),
        pytest.param(
            "t --resume --bs 8",
            "--resume {checkpoint}",
            "t --resume out/250.pt --bs 8",
            id="a-bare-flag-gets-its-value",
        ),
        pytest.param(
            "t --resume", "--resume {checkpoint}", "t --resume out/250.pt", id="bare-last"
        ),
        pytest.param("t -r old", "-r {checkpoint}", "t -r out/250.pt", id="short"),
        pytest.param("t --auto", "--auto", "t --auto", id="a-flag-is-not-doubled"),
        pytest.param("t", "--auto", "t --auto", id="a-flag-is-added"),
        pytest.param("t --auto=yes", "--auto", "t --auto=yes", id="a-flag-with-a-value-stays"),
        pytest.param("t", "{checkpoint}", "t out/250.pt", id="positional"),
        pytest.param("t --lr 3e-4", "", "t --lr 3e-4", id="nothing-to-do"),
    ],
)
def test_the_command_of_the_next_attempt(command: str, args: str, expected: str) -> None:
    """Flags are replaced where they stand, in their own spelling, or appended."""
    assert resumed(command, args) == expected


def test_paths_with_spaces_stay_one_argument() -> None:
    """No shell is on the way."""
    values = Values("/my runs/a b.pt", 1, 1.0)
    assert resumed_command(["t"], ["--resume", "{checkpoint}"], values)[-1] == "/my runs/a b.pt"


@pytest.mark.parametrize(
    ("command", "config", "expected"),
    [
        pytest.param("t --lr 3e-4", {"args": "--lr {lr}"}, 3e-4, id="from-the-command"),
        pytest.param("t --lr=3e-4", {"args": "--lr {lr}"}, 3e-4, id="joined"),
        pytest.param("t lr=1 lr=2", {"args": "lr={lr}"}, 2.0, id="the-last"),
        pytest.param("t --lr 1", {"args": "--lr {lr}", "base_lr": 0.2}, 0.2, id="config-first"),
        pytest.param("t --lr 1", {"args": "--resume {checkpoint}"}, None, id="not-used"),
        pytest.param("t", {"env": {"LR": "{lr}"}, "base_lr": 0.1}, 0.1, id="environment"),
    ],
)
def test_the_base_of_the_learning_rate(command: str, config: dict, expected: float | None) -> None:
    """Configured, else what the flag says that {lr} replaces."""
    assert base_lr(shlex.split(command), ResumeConfig(**config)) == expected


@pytest.mark.parametrize(
    ("command", "config"),
    [
        ("t", {"args": "--lr {lr}"}),
        ("t --lr auto", {"args": "--lr {lr}"}),
        ("t --lr 1", {"env": {"LR": "{lr}"}}),
    ],
)
def test_a_rate_without_a_base_is_refused(command: str, config: dict) -> None:
    """The message says what to set."""
    with pytest.raises(ValueError, match="base_lr"):
        base_lr(shlex.split(command), ResumeConfig(**config))


IN_FILE = {"config": "a.yaml", "config_values": {"data.batch": "{batch}"}}


@pytest.mark.parametrize(
    ("command", "config", "in_file", "expected"),
    [
        pytest.param("t --bs 32", {"batch_args": "--bs {batch}"}, None, 32, id="command"),
        pytest.param("t bs=8", {"batch_args": "bs={batch}"}, None, 8, id="joined"),
        pytest.param("t a.yaml", IN_FILE, 16.0, 16, id="file"),
        pytest.param("t --bs 32", {}, None, None, id="not-used"),
    ],
)
def test_the_base_of_the_batch_size(
    command: str, config: dict, in_file: float | None, expected: int | None
) -> None:
    resume = ResumeConfig(**config)
    assert base_batch(shlex.split(command), resume, in_file=in_file) == expected
    assert means_of(resume, None).halves_batch is (expected is not None)


@pytest.mark.parametrize("config", [{"batch_args": "--bs {batch}"}, IN_FILE])
def test_a_batch_size_without_a_base_is_refused(config: dict) -> None:
    with pytest.raises(ValueError, match="write it there"):
        base_batch(("t", "--bs", "auto"), ResumeConfig(**config))


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"args": "--resume {checkpoint} --bs {batch}"}, "belongs into batch_args"),
        ({"env": {"BS": "{batch}"}}, "belongs into batch_args"),
        ({"batch_args": "--bs 8"}, "say no {batch}"),
    ],
)
def test_the_batch_size_has_its_place(config: dict, problem: str) -> None:
    """Elsewhere it would be empty until the second out-of-memory death."""
    with pytest.raises(ValueError, match=problem):
        ResumeConfig(**config)


@pytest.mark.parametrize(
    ("config", "hello", "route", "lowers_lr"),
    [
        ({}, None, Route.NONE, False),
        ({"args": "--resume {checkpoint}"}, None, Route.ARGUMENTS, False),
        ({"args": "--resume {checkpoint} --lr {lr}"}, None, Route.ARGUMENTS, True),
        ({"env": {"CKPT": "{checkpoint}", "S": "{lr_scale}"}}, None, Route.ARGUMENTS, True),
        ({"args": "--lr {lr}"}, None, Route.NONE, True),
        ({}, {"resume": True}, Route.COOPERATIVE, False),
        ({}, {"resume": True, "lr_scale": True}, Route.COOPERATIVE, True),
        ({}, {"checkpoint_signal": "SIGUSR1"}, Route.NONE, False),
    ],
)
def test_what_can_be_done_to_a_worker(
    config: dict, hello: dict | None, route: Route, lowers_lr: bool
) -> None:
    """A template or the worker's own word makes a route."""
    means = means_of(ResumeConfig(**config), hello)
    assert (means.route, means.lowers_lr) == (route, lowers_lr)
    assert ("no resume route" in means.sentence) is (route is Route.NONE)


# --- the closed loop -----------------------------------------------------------------------------

LOGGED = {step: (1e-3 / step, 1.0) for step in range(251, 401)}


def proofs(rates: list[float | None], *, scale: float = 0.5, first: int = 251, **more):
    """The proof after each record of the new attempt."""
    watch = LrWatch(scale, more.get("logged", LOGGED), more.get("newest"))
    return [watch.observe(record(first + i, lr=rate)) for i, rate in enumerate(rates)]


def rates(factor: float, count: int = 3, *, first: int = 251) -> list[float]:
    """What was logged at these steps, times a factor."""
    return [factor * 1e-3 / step for step in range(first, first + count)]


@pytest.mark.parametrize(
    ("logged", "proof"),
    [
        pytest.param(rates(0.5), [None, None, PROVED], id="reduced"),
        pytest.param(rates(0.549), [None, None, PROVED], id="within-ten-percent"),
        pytest.param(rates(0.1), [None, None, PROVED], id="lower-still"),
        pytest.param(rates(1.0), [None, None, NOT_REDUCED], id="overwritten-by-the-optimizer"),
        pytest.param(rates(0.56), [None, None, NOT_REDUCED], id="above-ten-percent"),
        pytest.param(
            [*rates(1.0, 2), *rates(0.5, 3, first=253)],
            [None, None, None, None, PROVED],
            id="two-records-above-are-not-enough",
        ),
        pytest.param([None] * 29, [None] * 29, id="no-rate-yet"),
        pytest.param([None] * 30, [None] * 29 + [UNPROVEN], id="no-rate-in-the-log"),
    ],
)
def test_the_rate_against_the_same_steps(logged: list, proof: list) -> None:
    """Expected is what was logged there, times the new scale over the old."""
    assert proofs(logged) == proof


def test_the_scale_that_was_in_force_counts() -> None:
    """A second cut is held against the first one."""
    halved = {step: (rate * 0.5, 0.5) for step, (rate, _scale) in LOGGED.items()}
    assert proofs(rates(0.25), scale=0.25, logged=halved)[-1] is PROVED
    assert proofs(rates(0.5), scale=0.25, logged=halved)[-1] is NOT_REDUCED


@pytest.mark.parametrize(
    ("factor", "proof"), [(0.5, PROVED), (0.7, PROVED), (0.8, NOT_REDUCED), (1.0, NOT_REDUCED)]
)
def test_steps_never_logged_are_held_against_the_newest(factor: float, proof: LrProof) -> None:
    """With a wider tolerance, as the schedule may have moved."""
    newest = (1e-3, 1.0)
    found = proofs([factor * 1e-3] * 3, first=500, logged={}, newest=newest)
    assert found[-1] is proof


def test_what_could_not_stand_out_proves_nothing() -> None:
    """A cut smaller than the tolerance, or a rate of zero, is never called proved."""
    newest = (1e-3, 1.0)
    small = proofs([1e-3] * 30, scale=0.7, first=500, logged={}, newest=newest)
    assert (small[2], small[-1]) == (None, UNPROVEN)
    warmup = {251: (0.0, 1.0), 252: (0.0, 1.0), 253: (0.0, 1.0)}
    assert proofs([0.0, 1e-6, 2e-6], logged=warmup) == [None, None, None]


def test_a_proof_stays_and_shows_its_numbers() -> None:
    """Decided once; the evidence is for the report."""
    watch = LrWatch(0.5, LOGGED)
    for step in (251, 252, 253):
        watch.observe(record(step, lr=1e-3 / step))
    assert watch.observe(record(254, lr=1e-9)) is NOT_REDUCED
    assert watch.evidence["expected_lr"] == pytest.approx(0.5e-3 / 253)


def test_a_start_from_scratch_takes_only_the_rate() -> None:
    """No checkpoint, but the reduced rate: the other templates are left out."""
    args = ["--resume", "{checkpoint}", "--lr", "{lr}", "--scale={lr_scale}", "--auto"]
    assert rate_arguments(args) == ["--lr", "{lr}", "--scale={lr_scale}"]


@pytest.mark.parametrize(
    ("loads", "path", "can"),
    [
        ("*.ckpt", "/out/step=1.ckpt", True),
        ("*.ckpt", "/out/weights_1.pt", False),
        ("checkpoint-*", "/out/checkpoint-100", True),
        ("checkpoint-*", "/out/weights_100.pt", False),
        ("", "/out/x.pt", True),
        (".", "/out/x.pt", True),
        ("[", "/out/x.pt", False),
        (7, "/out/x.pt", False),
    ],
)
def test_a_worker_names_what_it_can_load(loads, path, can):
    """A trainer that also writes other files; and a hello may say anything."""
    hello = {"resume": True, "loads": loads}
    assert means_of(ResumeConfig(), hello).can_load(path) is can
    by_flag = ResumeConfig(args="--resume {checkpoint}")
    assert means_of(by_flag, hello).can_load(path)


def test_a_worker_that_leaves_no_data_out_is_not_asked_to():
    assert means_of(ResumeConfig(), {"resume": True}).skips
    assert not means_of(ResumeConfig(), {"resume": True, "skip": False}).skips
