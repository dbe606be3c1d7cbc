"""What an alert says, how loud it is, and when it leaves."""

from __future__ import annotations

from dataclasses import replace

import pytest

from overnight.core.alerting import (
    OPENED_DELAY_S,
    TITLE_CHARS,
    Moment,
    cost_text,
    duration_text,
    healed_text,
    opened,
    outcome,
    retry_delay_s,
)
from overnight.core.events import Action, Fault, Severity
from overnight.core.proof import LrProof
from overnight.core.story import Incident

ROLLED = Incident(
    id=4,
    fault=Fault.LOSS_NONFINITE,
    severity=Severity.CRITICAL,
    opened_utc=0.0,
    reason="loss is nan at step 45300",
    action=Action.ROLLBACK,
    detected_step=45_300,
    checkpoint_path="45000.pt",
    checkpoint_step=45_000,
    lr_scale_before=1.0,
    lr_scale_after=0.5,
)
HALTED = replace(ROLLED, action=Action.HALT, needs_you=True, advice=("add --resume-args",))


def test_a_healing_incident_waits_and_is_no_alarm() -> None:
    """Ten seconds for a better message; the fault is critical, the message is not."""
    alert = opened("gpt", ROLLED)
    assert alert is not None
    assert (alert.incident, alert.moment) == (4, Moment.OPENED)
    assert (alert.severity, alert.delay_s) == (Severity.WARNING, OPENED_DELAY_S)
    assert alert.title == "[gpt] loss went NaN at step 45,300: rolling back"
    assert alert.body == (
        "loss-nonfinite: loss is nan at step 45300.\n"
        "Checkpoint: step 45,000.\n"
        "Learning rate scale: 1 -> 0.5.\n"
        "What you need to do: nothing."
    )


def test_a_needed_human_is_told_at_once_and_loudly() -> None:
    """With what to do as the last lines."""
    alert = opened("gpt", HALTED)
    assert alert is not None
    assert (alert.severity, alert.delay_s) == (Severity.CRITICAL, 0.0)
    assert alert.title.endswith(": needs you")
    assert alert.body.endswith("What you need to do:\nadd --resume-args")


def test_without_advice_the_command_to_look_is_given() -> None:
    """Nobody is left without a next step."""
    alert = opened("gpt", replace(HALTED, advice=()))
    assert alert is not None
    assert alert.body.endswith("overnight incidents gpt")


def test_the_outcome_is_due_at_once() -> None:
    """It ends the story with its proof and its price."""
    healed = replace(
        ROLLED,
        outcome="resumed from step 45,000",
        lr_proof=LrProof.PROVED,
        cost_steps=300,
        cost_s=1000.0,
        cause="numeric",
    )
    alert = outcome("gpt", healed)
    assert (alert.moment, alert.delay_s) == (Moment.OUTCOME, 0.0)
    assert alert.severity is Severity.WARNING
    assert alert.title == "[gpt] loss went NaN at step 45,300: healed"
    assert "Cause of death: numeric." in alert.body
    assert "1 -> 0.5 (proved)." in alert.body
    assert "Outcome: resumed from step 45,000.\nCost: 300 steps / 17 min." in alert.body


def test_information_is_no_alert() -> None:
    """A note is for the history."""
    assert opened("gpt", replace(ROLLED, severity=Severity.INFO)) is None


@pytest.mark.parametrize("fault", list(Fault))
def test_every_title_fits_a_lock_screen(fault: Fault) -> None:
    """Whatever the run's name is."""
    for name in ("gpt", "a-very-long-run-name-" * 3):
        for action in Action:
            alert = opened(name, replace(ROLLED, fault=fault, action=action))
            assert alert is not None
            assert len(alert.title) <= TITLE_CHARS


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (42.4, "42 s"),
        (99, "99 s"),
        (100, "2 min"),
        (1000, "17 min"),
        (15_120, "4 h 12 min"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    """As a person says them."""
    assert duration_text(seconds) == text


def test_an_unknown_cost_is_said() -> None:
    """Never 0 for what nobody knows."""
    assert cost_text(ROLLED) == "unknown"
    assert cost_text(replace(ROLLED, cost_steps=0)) == "0 steps"


@pytest.mark.parametrize(
    ("proof", "words"),
    [
        (None, "resumed from step 45,000"),
        (LrProof.PROVED, "the logged learning rate is the reduced one"),
        (LrProof.UNPROVEN, "does not show"),
        (LrProof.NOT_REDUCED, "was NOT reduced"),
    ],
)
def test_how_a_recovery_ended(proof: LrProof | None, words: str) -> None:
    """The proof is part of the sentence."""
    assert words in healed_text(replace(ROLLED, lr_proof=proof), resumed_step=45_000)
    assert healed_text(ROLLED, resumed_step=None) == "resumed from the beginning"


@pytest.mark.parametrize(
    ("failures", "age_s", "delay_s"),
    [
        (0, 0, 5),
        (1, 0, 5),
        (2, 5, 10),
        (3, 15, 20),
        (8, 0, 640),
        (9, 0, 900),
        (90, 80_000, 900),
        (3, 86_400, None),
    ],
)
def test_undelivered_alerts_are_tried_for_a_day(
    failures: int, age_s: float, delay_s: float | None
) -> None:
    """5 s, doubling to 15 minutes."""
    assert retry_delay_s(failures, age_s=age_s) == delay_s
