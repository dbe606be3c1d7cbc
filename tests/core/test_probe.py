"""The probe as the supervisor knows it: its config, what it says, what it is told."""

from __future__ import annotations

import json

import pytest
from pydantic import ValidationError

from core_lab import record
from overnight.core.events import Fault, Severity
from overnight.core.probe import (
    MAX_SAVES,
    GuardConfig,
    PlaceOrder,
    ProbeConfig,
    ProbeState,
    from_step,
    is_poisoned,
    skipped_verdict,
)
from overnight_probe.channel import Control, settings_of


def test_both_sides_agree_on_the_settings(tmp_path):
    """What the config says is what the probe reads: every key has its counterpart."""
    config = ProbeConfig.model_validate(
        {"guard": {"skip_nonfinite": False, "clip": 2}, "snapshot": {"keep": 5, "every_s": 1}}
    )
    text = config.settings(first_step=400, applied_scale=0.5, clip=None)
    env = {"OVERNIGHT_PROBE": text, "OVERNIGHT_METRICS": "m", "OVERNIGHT_LR_SCALE": "0.25"}
    settings = settings_of(env)
    assert settings is not None
    assert (settings.first_step, settings.applied_scale, settings.lr_scale) == (400, 0.5, 0.25)
    assert (settings.skip_nonfinite, settings.clip, settings.keep) == (False, "2", 5)
    assert settings_of({"OVERNIGHT_METRICS": "m"}) is None
    assert json.loads(config.settings(first_step=0, applied_scale=1, clip="auto"))["clip"] == "auto"


def test_both_sides_agree_on_an_order(tmp_path):
    """The control file that the supervisor writes is the one that the probe obeys."""
    path = tmp_path / "control.json"
    order = PlaceOrder(number=3, onset_step=900, healthy_step=800, lr_scale=0.5, from_step=950)
    path.write_text(json.dumps(order.control()))
    control = Control(str(path), 1.0)
    assert control.read(949).rollback is None
    found = control.read(950)
    assert (found.lr_scale, found.clip) == (0.5, "auto")
    assert found.rollback is not None
    assert (found.rollback.number, found.rollback.before_step) == (3, 900)
    assert found.rollback.healthy_step == 800


@pytest.mark.parametrize("clip", ["hard", "0", "-1", "nan", "inf", True, [1]])
def test_a_clip_that_is_none_is_refused(clip):
    """Before anything is started, with the choices."""
    with pytest.raises(ValidationError, match=r"clip is|string"):
        GuardConfig(clip=clip)


def test_what_the_probe_says_of_itself():
    """It joins, it holds snapshots, it goes; people hear only what matters to them."""
    state = ProbeState()
    said = state.hear({"hello": 1, "optimizer": "AdamW", "ranks": 2})
    assert said == "probe: inside the worker, watching its AdamW"
    assert (state.alive, state.snapshots, state.ranks) == (True, False, 2)
    assert state.hear({"snapshots": True, "bytes_each": 9}) is None
    assert state.snapshots
    assert "no snapshots (too large)" in str(state.hear({"snapshots": False, "why": "too large"}))
    assert not state.snapshots
    state.snapshots = True
    assert "switched off (KeyError: 1)" in str(state.hear({"off": "KeyError: 1"}))
    assert not state.alive
    assert not state.snapshots
    assert state.hear({"anything": "else"}) is None


def test_several_processes_are_given_time():
    """An order holds from a step that no rank has reached: 1 s ahead, 5 steps at least."""
    quick = [record(step, at=step * 0.125) for step in range(1, 31)]
    assert from_step(quick, ranks=1) == 0
    assert from_step(quick, ranks=2) == 30 + 8
    slow = [record(step, at=step * 10.0) for step in range(1, 31)]
    assert from_step(slow, ranks=8) == 30 + 5
    assert from_step([], ranks=8) == 0


@pytest.mark.parametrize(
    ("loss", "fault"),
    [(float("nan"), Fault.LOSS_NONFINITE), (2.0, Fault.GRAD_NONFINITE)],
)
def test_a_left_out_update_is_a_warning(loss, fault):
    """It names the step and says that the weights are as before."""
    verdict = skipped_verdict(record(400, loss, float("inf"), skipped=True))
    assert (verdict.fault, verdict.severity, verdict.onset_step) == (fault, Severity.WARNING, 400)
    assert "at step 400" in verdict.reason
    assert "weights are as before" in verdict.reason


def test_only_poisoned_updates_are_warned_of():
    """Not those that a GradScaler leaves out, nor the one that a rollback drops."""
    nan = float("nan")
    assert is_poisoned(record(4, nan, nan, skipped=True))
    assert is_poisoned(record(4, 2.0, float("inf"), skipped=True))
    assert not is_poisoned(record(4, 2.0, float("inf"), skipped=True, loss_scale=8.0))
    assert not is_poisoned(record(4, 2.0, 0.8, skipped=True))
    assert not is_poisoned(record(4, nan, nan))


def test_the_steps_of_saves_are_remembered() -> None:
    """For files whose names do not tell; the newest ones."""
    state = ProbeState()
    for step in range(100):
        assert state.hear({"event": "probe", "saved": f"/out/{step}.pt", "step": step}) is None
    assert state.saved["/out/99.pt"] == 99
    assert len(state.saved) == MAX_SAVES
