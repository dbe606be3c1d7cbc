"""The right checkpoint is chosen in all of 340 seeded nights, by an oracle that knows no ledger."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

import scenario_lab
from overnight.adapters.checkpoints.report import Report
from overnight.core.events import Health
from scenario_files import step_in
from scenario_lab import DAMAGES, FAULTS, LATEST, expected, live_through, night

SEEDS, QUICK = 340, 60


def chosen(seed: int, root: Path) -> tuple[int | None, int | None]:
    """(the save that was resumed from, the one that should be); None for a halt."""
    told = night(seed)
    world = live_through(told, root)
    right = expected(told)
    found = None
    if len(world.launches) > 1:
        command = list(world.launches[1].command)
        found = (
            step_in(Path(command[command.index("--resume") + 1])) if "--resume" in command else 0
        )
    return found, right.step if right else None


@pytest.mark.parametrize(
    "seed",
    [*range(QUICK), *(pytest.param(s, marks=pytest.mark.slow) for s in range(QUICK, SEEDS))],
)
def test_the_right_checkpoint(seed: int, tmp_path: Path) -> None:
    found, right = chosen(seed, tmp_path)
    no_save = right is None and night(seed).fault in ("crash", "oom", "stall")
    if no_save and not night(seed).saves:
        right = 0  # no checkpoint ever: an external cause starts from scratch
    assert found == right, night(seed)
    link = tmp_path / "out" / LATEST
    if found and link.is_symlink() and link.exists():
        assert step_in(link) <= found, f"{LATEST} names a later one; {night(seed)}"


def test_every_kind_is_met_often_enough() -> None:
    nights = [night(seed) for seed in range(SEEDS)]
    damages = Counter(damage for told in nights for damage in {s.damage for s in told.saves})
    assert min(damages[damage] for damage in DAMAGES) >= 15
    assert min(Counter(told.fault for told in nights)[fault] for fault in FAULTS) >= 15
    late = [told for told in nights if any(s.step >= told.onset for s in told.saves)]
    names = [
        t for t in nights if any(s.name.split("_")[1:2] != s.name.split("_")[2:] for s in t.saves)
    ]
    others = [
        sum(told.rotation is not None for told in nights),
        sum(told.in_place for told in nights),
        sum(told.link for told in nights),
        sum(expected(told) is None for told in nights),
        len(late),
        len(names),
    ]
    assert min(others) >= 15, others


def test_the_oracle_would_notice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a verifier that finds everything good, many nights go wrong."""

    def credulous(path: Path) -> Report:
        return replace(verify(path), health=Health.VERIFIED)

    verify = scenario_lab.verify
    monkeypatch.setattr(scenario_lab, "verify", credulous)
    wrong = 0
    for seed in range(30):
        root = tmp_path / str(seed)
        root.mkdir()
        try:
            found, right = chosen(seed, root)
        except AssertionError:  # a damaged one was resumed from: it does not even hold its step
            wrong += 1
        else:
            wrong += found != right
    assert wrong >= 8
