"""Several processes of one run: they keep and restore the same snapshots, or none."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from overnight_probe.channel import Rollback, Settings
from overnight_probe.going_back import GoingBack
from overnight_probe.ranks import Ranks


class Rank:
    """One rank: a parameter, its optimizer, and what its probe says."""

    def __init__(self, base, number, *, size=2, **settings):
        about = {"snapshot_steps": 1, "snapshot_s": 0.0, **settings}
        self.parameter = torch.nn.Parameter(torch.zeros(4))
        self.optimizer = torch.optim.SGD([self.parameter], lr=0.1)
        self.said: list[dict[str, object]] = []
        self.back = GoingBack(
            torch, Settings(metrics=base, control="", **about), lambda **v: self.said.append(v)
        )
        self.back.ranks = Ranks(base, rank=number, size=size)

    def update(self, step, *, loss=1.0):
        with torch.no_grad():
            self.parameter.fill_(float(step))
        self.back.calm.observe(loss)
        self.back.keep(step, [self.optimizer])


@pytest.fixture
def base(tmp_path, monkeypatch):
    monkeypatch.delenv("TORCHELASTIC_RESTART_COUNT", raising=False)
    return str(tmp_path / "metrics.jsonl")


def went_back(ranks, order, steps):
    """All ranks obey at once, each before the given step of its own."""
    with ThreadPoolExecutor(len(ranks)) as pool:
        asked = [
            pool.submit(rank.back.go_back, order, step)
            for rank, step in zip(ranks, steps, strict=False)
        ]
        return [answer.result() for answer in asked]


def test_all_ranks_keep_what_rank_zero_keeps(base):
    """The loss of the others does not matter: each alone would keep another set."""
    first, second = Rank(base, 0), Rank(base, 1)
    for step, (mine, theirs) in enumerate([(1, 1), (1, 99), (9, 99), (1, 99), (1, 1)], start=1):
        first.update(step, loss=mine)
        second.update(step, loss=theirs)
    assert first.back.ring.steps == second.back.ring.steps
    assert 3 not in first.back.ring.steps


def test_snapshots_of_ranks_are_spaced(base):
    first, second = Rank(base, 0, snapshot_steps=4), Rank(base, 1, snapshot_steps=4)
    for step in range(1, 11):
        first.update(step)
        second.update(step)
    assert first.back.ring.steps == second.back.ring.steps == [1, 5, 9]


def test_they_restore_the_newest_one_that_all_hold(base):
    """One rank's newest is poisoned: all take the one before it."""
    ranks = [Rank(base, number, size=3) for number in range(3)]
    for step in (1, 2, 3):
        for rank in ranks:
            rank.update(step)
    ranks[2].back.ring._taken[-1].kept[0].copy.fill_(float("nan"))
    order = Rollback(number=1, before_step=9, healthy_step=9)
    assert went_back(ranks, order, [5, 5, 5]) == [True, True, True]
    assert [rank.parameter.tolist() for rank in ranks] == [[2.0] * 4] * 3
    assert ranks[0].said[-1]["snapshot_step"] == 2


@pytest.mark.parametrize("missing", ["late", "nowhere"])
def test_ranks_that_are_not_at_one_step_stay_as_they_are(base, monkeypatch, missing):
    """A rank that has run ahead, or is not there: nobody goes back, and it is said."""
    monkeypatch.setattr("overnight_probe.going_back.OFFER_WAIT_S", 0.05)
    monkeypatch.setattr("overnight_probe.going_back.ANSWER_WAIT_S", 0.1)
    ranks = [Rank(base, number) for number in range(2)]
    for step in (1, 2, 3):
        for rank in ranks:
            rank.update(step)
    order = Rollback(number=1, before_step=9, healthy_step=9)
    asked = ranks if missing == "late" else ranks[:1]
    assert not any(went_back(asked, order, [5, 6]))
    assert all(rank.parameter.tolist() == [3.0] * 4 for rank in ranks)
    assert ranks[0].said[-1]["ok"] is False


def test_a_rank_without_room_is_told_to_all(base):
    """Snapshots of a part of the ranks are of no use: none are kept, and rank 0 says why."""
    first, second = Rank(base, 0), Rank(base, 1, snapshot_bytes=1)
    for step in (1, 2, 3):
        first.update(step)
        second.update(step)
    told = [said for said in first.said if "snapshots" in said]
    assert [said["snapshots"] for said in told] == [True, False]
    assert "do not fit" in str(told[-1]["why"])
    assert first.back.ring.steps == second.back.ring.steps == []


def test_a_rank_on_its_own_waits_once(base, monkeypatch):
    """Ranks that train independently are not held up at each snapshot."""
    monkeypatch.setattr("overnight_probe.going_back.SNAPSHOT_WAIT_S", 0.05)
    alone = Rank(base, 1)
    for step in (1, 2, 3):
        alone.update(step)
    assert len(alone.said) == 1
    assert "do not step together" in str(alone.said[0]["why"])


def test_what_an_earlier_generation_said_is_not_heard(base, monkeypatch):
    """An elastic launcher restarts all ranks: steps begin anew."""
    old = Ranks(base, rank=0, size=2)
    old.say(snapshot=[1, True])
    follower = Ranks(base, rank=1, size=2)
    assert follower.heard("snapshot", lambda said: said[0] == 1, 0.0) == [1, True]
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert follower.heard("snapshot", lambda said: said[0] == 1, 0.0) is None


def test_a_full_disk_or_half_a_file_is_silence(tmp_path):
    ranks = Ranks(str(tmp_path / "nowhere" / "metrics"), rank=0, size=2)
    ranks.say(snapshot=[1, True])
    path = tmp_path / "m.rank-0-0"
    for text in ("", "[]", '{"snapshot": [1'):
        path.write_text(text)
        assert Ranks(str(tmp_path / "m"), rank=1, size=2).heard("snapshot", bool, 0.0) is None


@pytest.mark.parametrize("broken", [0, 1])
def test_where_one_is_off_all_are(base, broken):
    """Ranks that lower their rates differently would drift apart."""
    ranks = [Rank(base, number) for number in range(2)]
    for rank in ranks:
        rank.update(1)
    ranks[broken].back.ranks.say(off="planted")
    with pytest.raises(RuntimeError, match="another rank is off: planted"):
        ranks[1 - broken].update(2)
