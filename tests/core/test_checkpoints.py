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
    found = to_set_aside(rows, TARGET, latest=True, by_pattern=True)
    assert found == ([other] if aside else [])


def test_without_a_target_everything_of_the_run():
    own, foreign = entry(200), entry(0, position=BEFORE_ALL, abandoned=True)
    rows = [(own, Health.HEALTHY), (foreign, Health.VERIFIED)]
    assert to_set_aside(rows, None, latest=True, by_pattern=True) == [own]


@pytest.mark.parametrize(
    ("name", "latest", "by_pattern", "aside"),
    [
        ("/o/400", False, False, True),
        ("/o/last.ckpt", False, False, False),
        ("/o/losses.pt", False, True, False),
        ("/elsewhere/400", False, False, False),
        ("/o/sample_400.pt", False, False, False),
        ("/o/last.ckpt", True, False, True),
        ("/o/losses.pt", True, False, False),
        ("/o/losses.pt", True, True, True),
        ("/o/sample_400.pt", True, False, True),
    ],
)
def test_only_what_may_be_a_checkpoint_is_moved(name, latest, by_pattern, aside):
    """A script also saves losses and samples, and looks for them when it resumes."""
    other = entry(400, identity=Identity(name, 4, 4, 1))
    rows = [(TARGET, Health.HEALTHY), (other, Health.VERIFIED)]
    found = to_set_aside(rows, TARGET, latest=latest, by_pattern=by_pattern)
    assert found == ([other] if aside else [])
