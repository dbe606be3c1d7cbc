"""Which checkpoints a rollback puts out of a script's sight."""

from __future__ import annotations

from dataclasses import replace

import pytest

from overnight.core.checkpoints import to_set_aside
from overnight.core.events import Health, Identity, Position
from overnight.core.placing import BEFORE_ALL
from overnight.core.story import Entry

TARGET = Entry(Identity("/o/300", 3, 3, 1), "file", saved_utc=300.0, position=Position(1, 300))


def entry(record: int, *, saved: float | None = None, **more) -> Entry:
    """Another checkpoint, saved after this record."""
    path = f"/o/{record}-{saved}"
    when = float(record) if saved is None else saved
    made = Entry(Identity(path, record, record, 1), "file", when, Position(1, record))
    return replace(made, **more)


@pytest.mark.parametrize(
    ("other", "health", "aside"),
    [
        (entry(400), Health.SUSPECT, True),
        (entry(400), Health.HEALTHY, True),
        (entry(200), Health.HEALTHY, False),
        (entry(200), Health.CORRUPT, False),
        (entry(200, abandoned=True), Health.VERIFIED, True),
        (entry(400, gone=True, vault_path="/v/400"), Health.SUSPECT, False),
        (entry(300, saved=301.0), Health.CORRUPT, True),
        (entry(300, saved=301.0), Health.CANDIDATE, True),
        (entry(300, saved=301.0), Health.VERIFIED, False),
        (entry(300, saved=299.0), Health.CORRUPT, False),
        (entry(0, position=BEFORE_ALL, abandoned=True), Health.VERIFIED, False),
    ],
)
def test_newer_than_the_target(other, health, aside):
    rows = [(TARGET, Health.HEALTHY), (other, health)]
    assert to_set_aside(rows, TARGET) == ([other] if aside else [])


def test_without_a_target_everything_of_the_run():
    own, foreign = entry(200), entry(0, position=BEFORE_ALL, abandoned=True)
    rows = [(own, Health.HEALTHY), (foreign, Health.VERIFIED)]
    assert to_set_aside(rows, None) == [own]
