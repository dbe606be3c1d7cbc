"""The shelf: what the supervisor asks about checkpoints, with the real verifier."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from overnight.adapters.checkpoints.complete import identity_of
from overnight.adapters.checkpoints.shelf import Shelf
from overnight.core.events import (
    CheckpointChecked,
    CheckpointSecured,
    CheckpointSeen,
    Health,
    Identity,
)
from reports import Reports


class Run:
    """A shelf over a folder, and what it reports."""

    def __init__(self, workdir: Path, *patterns: str) -> None:
        self.reports = Reports()
        self.shelf = Shelf(
            name="nano",
            patterns=patterns,
            workdir=workdir,
            since_utc=0,
            report=self.reports.put,
            clock=lambda: 7.0,
        )

    def check(self, identity: Identity) -> CheckpointChecked:
        """The verifier's answer."""
        self.shelf.verify(identity)
        answer = self.reports.next(CheckpointChecked)
        assert isinstance(answer, CheckpointChecked)
        assert answer.identity == identity
        return answer


Runs = Callable[..., Run]


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Runs]:
    """Makes shelves over `tmp_path`, and closes them."""
    made: list[Run] = []

    def make(*patterns: str, workdir: Path = tmp_path) -> Run:
        made.append(Run(workdir, *patterns))
        return made[-1]

    yield make
    for each in made:
        each.shelf.close()


def save(path: Path, value: float = 1.0) -> Identity:
    """A real safetensors file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({"weight": np.full((64, 64), value, dtype=np.float32)}, path)
    identity = identity_of(path)
    assert identity is not None
    return identity


def test_a_sound_file_is_verified_in_a_child(runs: Runs, tmp_path: Path) -> None:
    """With a reason that says what was looked at."""
    answer = runs().check(save(tmp_path / "step_100.safetensors"))
    assert answer.health is Health.VERIFIED
    assert answer.reason.startswith("1 tensor")


def test_a_poisoned_and_a_torn_file_are_corrupt(runs: Runs, tmp_path: Path) -> None:
    """NaN among the weights; the end missing."""
    run = runs()
    assert run.check(save(tmp_path / "nan.safetensors", float("nan"))).health is Health.CORRUPT
    torn = tmp_path / "torn.safetensors"
    save(torn)
    torn.write_bytes(torn.read_bytes()[:-100])
    identity = identity_of(torn)
    assert identity is not None
    assert run.check(identity).health is Health.CORRUPT


def test_what_has_changed_since_is_not_judged(runs: Runs, tmp_path: Path) -> None:
    """An answer about other bytes would be no answer; a missing file likewise."""
    path = tmp_path / "last.safetensors"
    old = save(path)
    save(path, 2.0)
    answer = runs().check(old)
    assert answer.health is Health.UNVERIFIED
    assert answer.reason == "it changed while it was being verified"
    path.unlink()
    assert runs().check(old).health is Health.UNVERIFIED


def test_what_is_no_checkpoint_is_unverified(runs: Runs, tmp_path: Path) -> None:
    """Not understood is not corrupt; a name that looks like a flag is only a name."""
    path = tmp_path / "--help.bin"
    path.write_bytes(struct.pack("<Q", 5) + json.dumps({}).encode())
    identity = identity_of(path)
    assert identity is not None
    answer = runs().check(identity)
    assert answer.health is not Health.VERIFIED
    assert answer.reason


def test_unchanged_is_about_the_very_bytes(runs: Runs, tmp_path: Path) -> None:
    """Same path, size and inode, other time: other bytes."""
    shelf = runs().shelf
    path = tmp_path / "last.pt"
    identity = save(path)
    assert shelf.unchanged(identity)
    path.write_bytes(path.read_bytes())
    assert not shelf.unchanged(identity)
    path.unlink()
    assert not shelf.unchanged(identity)


def test_it_finds_and_hears_of_checkpoints(runs: Runs, tmp_path: Path) -> None:
    """By pattern, and relative to the working directory when the worker announces one."""
    run = runs("ckpts/*.safetensors")
    first = save(tmp_path / "ckpts" / "step_100.safetensors")
    run.shelf.start([])
    assert run.reports.next(CheckpointSeen).identity == first
    other = save(tmp_path / "odd" / "name.bin")
    run.shelf.announce("odd/name.bin", 300)
    seen = run.reports.next(CheckpointSeen)
    assert (seen.identity, seen.step) == (other, 300)


@pytest.mark.parametrize(
    ("pattern", "path", "beside"),
    [
        ("ckpts/*.safetensors", "ckpts/step_1.safetensors", "."),
        ("out/*/m_*.safetensors", "out/a/m_1.safetensors", "."),
        ("out/a/**/m*.safetensors", "out/a/b/c/m.safetensors", "out"),
        (None, "step_1.safetensors", "."),
        (None, "out/ckpts/step_1.safetensors", "out"),
        ("ckpts/*.pt", "announced/step_1.safetensors", "."),
    ],
)
@pytest.mark.parametrize("folder", ["run", "exp[lr=0.1]"])
def test_the_vault_lies_where_no_pattern_sees_it(
    runs: Runs, tmp_path: Path, *, folder: str, pattern: str | None, path: str, beside: str
) -> None:
    """Beside the pattern's fixed prefix; without one, never in the folder that is searched."""
    workdir = tmp_path / folder
    run = runs(*([pattern] if pattern else []), workdir=workdir)
    identity = save(workdir / path)
    run.shelf.secure(identity, in_place=False, has_step=True)
    secured = run.reports.next(CheckpointSecured)
    assert secured.vault_path is not None
    vault = workdir / beside / ".overnight-vault" / "nano"
    assert Path(secured.vault_path).is_relative_to(vault)
    run.shelf.start([identity])
    assert run.reports.silent_for(0.5)


@pytest.mark.parametrize(
    ("in_place", "has_step", "linked"),
    [(False, True, True), (True, True, False), (False, False, False)],
)
def test_only_what_is_never_rewritten_is_linked(
    runs: Runs, tmp_path: Path, *, in_place: bool, has_step: bool, linked: bool
) -> None:
    """A fixed name is rewritten sooner or later."""
    run = runs()
    identity = save(tmp_path / "out" / "step_1.safetensors")
    run.shelf.secure(identity, in_place=in_place, has_step=has_step)
    secured = run.reports.next(CheckpointSecured)
    if secured.method == "reflink":
        pytest.skip("this file system can do better")
    assert (secured.method == "hard link") is linked
    run.shelf.release(secured.vault_path)
