"""What is written down comes back as it was."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core_lab import INF, NAN, identity
from overnight.core.events import (
    Action,
    Family,
    Fault,
    Health,
    Position,
    Severity,
    StepMetric,
)
from overnight.core.proof import LrProof
from overnight.core.story import (
    Entry,
    Incident,
    checkpoint_json,
    decode_entry,
    decode_incident,
    decode_record,
    encode,
    incident_json,
)

INCIDENT = Incident(
    id=3,
    fault=Fault.LOSS_NONFINITE,
    severity=Severity.CRITICAL,
    opened_utc=1e9,
    reason="loss is nan",
    action=Action.ROLLBACK,
    cause="numeric",
    closed_utc=1e9 + 5,
    onset=Position(2, 45_300),
    onset_step=45_300,
    detected_step=45_302,
    evidence={"in_a_row": 3, "lines": ["a", "b"], "grad_norm": None},
    checkpoint_path="45000.pt",
    checkpoint_step=45_000,
    lr_scale_before=1.0,
    lr_scale_after=0.5,
    lr_proof=LrProof.PROVED,
    outcome="resumed",
    cost_steps=302,
    cost_s=1000.5,
    advice=("one", "two"),
    acked_utc=1e9 + 9,
    drill=True,
    last_bad=12,
    last_verdict_utc=1e9 + 1,
    last_attempt=2,
    recoveries=1,
    progress=(("killed", 1e9), ("gone", 1e9 + 1)),
    unrecorded=True,
)
ENTRY = Entry(
    identity("45000.pt"),
    "torch",
    1e9,
    Position(2, 45_000),
    step=45_000,
    order_step=45_000,
    in_place=True,
    checked=Health.VERIFIED,
    reason="finite",
    confirmed=True,
    tainted=True,
    unseen=True,
    clean_records=7,
    poisoned="why",
    abandoned=True,
    gone=True,
    vault_path="vault/45000.pt",
    health=Health.SUSPECT,
    health_reason="why",
)
BARE_INCIDENT = Incident(1, Fault.STALL, Severity.WARNING, 0.0, "silent", Action.NOTIFY)
BARE_ENTRY = Entry(identity(), "npz", 0.0, Position(0, 0))


@pytest.mark.parametrize("incident", [INCIDENT, BARE_INCIDENT], ids=["full", "bare"])
def test_incidents_round_trip(incident: Incident) -> None:
    """Enums, tuples and positions included."""
    assert decode_incident(encode(incident)) == incident


@pytest.mark.parametrize("entry", [ENTRY, BARE_ENTRY], ids=["full", "bare"])
def test_entries_round_trip(entry: Entry) -> None:
    """Identity and health included."""
    assert decode_entry(encode(entry)) == entry


def test_rows_of_an_older_version_are_read() -> None:
    """Fields that were added later have defaults."""
    data = json.loads(encode(BARE_INCIDENT))
    for name in ("last_attempt", "unrecorded", "recoveries", "advice", "progress"):
        data.pop(name, None)
    assert decode_incident(json.dumps(data)) == BARE_INCIDENT


numbers = st.none() | st.floats(allow_nan=True, allow_infinity=True)


@given(numbers, numbers, numbers, st.booleans(), st.integers(-1, 10**12))
@settings(max_examples=80, deadline=None)
def test_records_round_trip(loss, grad, lr, skipped: bool, step: int) -> None:
    """NaN and infinity included: they are what the evidence is made of."""
    before = StepMetric(1.5, Position(1, 2), step, loss, grad, lr, skipped=skipped)
    assert repr(decode_record(encode(before))) == repr(before)


@pytest.mark.parametrize("loss", [NAN, INF, -INF])
def test_a_broken_loss_comes_back_broken(loss: float) -> None:
    """Not as None, not as text."""
    found = decode_record(encode(StepMetric(0.0, Position(1, 1), 1, loss))).loss
    assert found is not None
    assert math.isnan(found) if math.isnan(loss) else found == loss


def test_unknown_numbers_take_no_room() -> None:
    """5000 records are kept; most of their fields are unknown."""
    assert "tokens_per_s" not in encode(StepMetric(0.0, Position(1, 1), 1, 2.0))


def test_the_public_form_of_an_incident() -> None:
    """The contract of `incidents --json`."""
    data = incident_json(INCIDENT)
    fields = (
        "id fault cause severity opened_utc closed_utc onset_step detected_step reason evidence"
        " action checkpoint lr_scale_before lr_scale_after lr_proof outcome cost needs_you drill"
    )
    assert list(data) == fields.split()
    assert data["checkpoint"] == {"path": "45000.pt", "step": 45_000}
    assert data["cost"] == {"steps": 302, "seconds": 1000.5}
    assert (data["fault"], data["lr_proof"]) == ("loss-nonfinite", "proved")
    assert incident_json(BARE_INCIDENT)["checkpoint"] is None


def test_the_public_form_of_a_checkpoint() -> None:
    """The contract of `checkpoints --json`."""
    data = checkpoint_json(ENTRY, Health.SUSPECT, "why")
    fields = "path step format size_bytes saved_utc health reason vaulted quarantined"
    assert list(data) == [*fields.split(), "quarantine_path"]
    assert (data["path"], data["health"], data["vaulted"]) == ("45000.pt", "suspect", True)


def test_where_a_checkpoint_is_loaded_from() -> None:
    """The original while it is there, else the vault, else nowhere."""
    assert ENTRY.path == "vault/45000.pt"
    assert ENTRY.available
    assert BARE_ENTRY.path == BARE_ENTRY.identity.path
    lost = Entry(identity(), "npz", 0.0, Position(0, 0), gone=True)
    assert not lost.available


def test_an_incident_knows_its_family_and_whether_it_goes_on() -> None:
    """Derived, never stored."""
    assert (INCIDENT.family, INCIDENT.open) == (Family.NUMERIC, False)
    assert (BARE_INCIDENT.family, BARE_INCIDENT.open) == (Family.PROGRESS, True)
    assert BARE_INCIDENT.passed("killed", 2.0).progress == (("killed", 2.0),)
