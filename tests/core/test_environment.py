"""The worker's environment: the user's, without a word that was meant for us."""

from __future__ import annotations

import pytest

from overnight.core.environment import worker_environment


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("PATH", True),
        ("WANDB_API_KEY", True),
        ("CUDA_VISIBLE_DEVICES", True),
        ("MY_OVERNIGHT_RUN", True),
        ("OVERNIGHT_RUN", False),
        ("OVERNIGHT_NOTIFY", False),
        ("NOTIFY_SOCKET", False),
        ("WATCHDOG_USEC", False),
        ("WATCHDOG_PID", False),
        ("LISTEN_FDS", False),
        ("LISTEN_PID", False),
        ("LISTEN_FDNAMES", False),
    ],
)
def test_which_variables_pass(name: str, kept: bool) -> None:
    """Outer runs and systemd's words to us stay out."""
    assert (name in worker_environment({name: "x"})) is kept


@pytest.mark.parametrize(
    ("base", "kept"),
    [
        pytest.param({"HOOK": "json://host/secret"}, [], id="the-url-itself"),
        pytest.param({"HOOKS": "a,json://host/secret,b"}, [], id="a-list-with-the-url"),
        pytest.param({"MY_URL": "whatever"}, [], id="named-by-env-NAME"),
        pytest.param({"OTHER": "json://host/other"}, ["OTHER"], id="another-url"),
        pytest.param({"FILE": "@/etc/secret"}, ["FILE"], id="the-name-of-a-file-is-no-secret"),
    ],
)
def test_receivers_stay_ours(base: dict[str, str], kept: list[str]) -> None:
    """A training script can neither read nor leak where alerts go."""
    secrets = ["json://host/secret", "ENV:MY_URL", "@/etc/secret"]
    assert list(worker_environment(base, secrets=secrets)) == kept


def test_our_own_python_stays_ours() -> None:
    """The user's virtual environment and paths pass, ours do not."""
    ours = {"our_prefix": "/opt/overnight", "our_path": "/opt/overnight/src"}
    mixed = {"VIRTUAL_ENV": "/opt/overnight", "PYTHONPATH": "/mine:/opt/overnight/src:/too"}
    assert worker_environment(mixed, **ours) == {"PYTHONPATH": "/mine:/too"}
    only = {"VIRTUAL_ENV": "/home/u/venv", "PYTHONPATH": "/opt/overnight/src"}
    assert worker_environment(only, **ours) == {"VIRTUAL_ENV": "/home/u/venv"}


def test_a_shown_worker_knows_its_terminal_and_the_user_wins() -> None:
    """Colours and width where output is shown, and nothing where it is not."""
    assert worker_environment({}, columns=120) == {
        "FORCE_COLOR": "1",
        "COLUMNS": "120",
        "TERM": "xterm-256color",
    }
    assert worker_environment({"TERM": "dumb"}, columns=80)["TERM"] == "dumb"
    assert worker_environment({}) == {}


def test_the_base_is_left_alone() -> None:
    """The supervisor goes on using its own environment."""
    base = {"PYTHONPATH": "/a", "OVERNIGHT_RUN": "x"}
    worker_environment(base)
    assert base == {"PYTHONPATH": "/a", "OVERNIGHT_RUN": "x"}
