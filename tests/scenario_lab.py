"""Seeded nights: real files, saved and damaged in every way, and what should be resumed from.

The real supervisor, verifier, vault and quarantine work on them; only the worker and the clock are
scripted. What is right is worked out in `expected` from the sentences of the design alone.
"""

from __future__ import annotations

import contextlib
import os
import queue
import random
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fakes import World, dies, do, line, wait
from overnight.adapters.checkpoints.complete import identity_of
from overnight.adapters.checkpoints.quarantine import Quarantine
from overnight.adapters.checkpoints.vault import Vault
from overnight.adapters.checkpoints.verify import verify
from overnight.core.events import CheckpointChecked, CheckpointSeen, Identity
from overnight.core.orders import Tidying
from scenario_files import CHECKSUMS, FILES, FOLDERS, Save, write

DAMAGES = ("torn", "zeros", "shard", "nan", "inf", "flip")
FAULTS = ("nan", "spike", "crash", "oom", "stall")
CONFIRM_STEPS, CONFIRM_RECORDS = 100, 2
LATEST = "latest"


@dataclass
class Night:
    """One scenario. `after` of the saves come behind the onset, with finite numbers."""

    seed: int
    stride: int
    fault: str
    onset: int
    saves: list[Save]
    rotation: int | None
    in_place: bool
    link: bool

    def __str__(self) -> str:
        shown = [f"{s.step}:{s.kind}{':' + s.damage if s.damage else ''}" for s in self.saves]
        return (
            f"seed {self.seed}: {self.fault} at {self.onset}, a line every {self.stride}, rotation"
            f" {self.rotation}, in place {self.in_place}, link {self.link}; {', '.join(shown)}"
        )


def night(seed: int) -> Night:
    """A night, drawn."""
    draw = random.Random(seed)
    stride = draw.choice((1, 1, 5, 10))
    fault = FAULTS[seed % len(FAULTS)]
    every = stride * draw.choice((10, 20, 25, 40))
    onset = stride * draw.randrange(60, 200)
    in_place = draw.random() < 0.15
    kind = draw.choice(FILES) if in_place else ""
    steps = list(range(every, onset, every))
    if fault in ("nan", "spike"):  # finite, but saved when it had begun
        steps += [onset + stride * n for n in draw.sample((1, 2), draw.randrange(0, 2))]
    saves = []
    for step in steps:
        damage = draw.choice(DAMAGES) if draw.random() < 0.4 else ""
        one = kind or _kind_for(damage, draw)
        if damage == "shard" and one != "sharded":
            damage = "torn"
        if damage == "flip" and one not in CHECKSUMS:
            damage = "nan"
        named = draw.choice((step, 7, 10 * onset)) if draw.random() < 0.15 else step
        saves.append(Save(step, one, damage, "ckpt" if in_place else f"step_{step}_{named}"))
    return Night(
        seed=seed,
        stride=stride,
        fault=fault,
        onset=onset,
        saves=saves,
        rotation=None if in_place else draw.choice((None, None, 1, 2, 3)),
        in_place=in_place,
        link=not in_place and draw.random() < 0.3,
    )


def _kind_for(damage: str, draw: random.Random) -> str:
    if damage == "shard":
        return "sharded"
    return draw.choice(CHECKSUMS if damage == "flip" else FILES + FOLDERS)


# --- what is right -------------------------------------------------------------------------------


def expected(told: Night) -> Save | None:
    """The checkpoint to resume from, None for a halt. From design.md §4, not from the code.

    Structure, checksums and every float must be good. A bad number goes back to the newest healthy
    one before its onset, else to the newest good one before it, else nowhere; a crash and an OOM go
    to the newest good one; a stall to the newest healthy, else good one. Healthy: 100 clean steps
    and two clean records have followed. Rotation and overwriting
    change nothing: the vault keeps what is needed.
    """
    good = [save for save in told.saves if not save.damage]
    if told.fault in ("nan", "spike"):
        good = [save for save in good if save.step < told.onset]
    healthy = [save for save in good if _is_healthy(save, told)]
    if told.fault in ("crash", "oom"):
        return good[-1] if good else None
    return (healthy or good or [None])[-1]


def _is_healthy(save: Save, told: Night) -> bool:
    last_clean = told.onset - told.stride
    records = (last_clean - save.step) // told.stride
    return last_clean - save.step >= CONFIRM_STEPS and records >= CONFIRM_RECORDS


# --- the night -----------------------------------------------------------------------------------


class Shelf:
    """The world's checkpoints: real verifier, vault and quarantine, answered at once."""

    def __init__(self, world: World, root: Path) -> None:
        self._world = world
        self._answers: queue.Queue[Any] = queue.Queue()
        self._safe = root / "safe"
        clock = world.clock
        self._vault = Vault(name="night", report=self._answers.put, clock=clock)
        self._quarantine = Quarantine(
            name="night",
            sight=_Sight(),
            beside=lambda _path: self._safe,
            report=self._answers.put,
            clock=clock,
        )

    def start(self, known: Sequence[Identity]) -> None:
        """Nothing to watch: the script tells."""

    def existing(self) -> list[CheckpointSeen]:
        """Nothing that was not told."""
        return []

    def announce(self, path: str, step: int | None) -> None:
        """Not used."""

    def verify(self, identity: Identity) -> None:
        """The real verifier, in this process."""
        report = verify(Path(identity.path))
        self._world.put(
            CheckpointChecked(
                self._world.now, identity, report.health, report.reason, report.step, report.partial
            )
        )

    def secure(self, identity: Identity, *, in_place: bool, has_step: bool) -> None:
        """The real vault."""
        self._vault.secure(identity, beside=self._safe, linkable=has_step and not in_place)
        self._world.put(self._answers.get(timeout=20))

    def release(self, vault_path: str) -> None:
        """As the real one does."""
        self._vault.release(vault_path)

    def tidy(self, order: Tidying) -> None:
        """The real quarantine."""
        self._quarantine.tidy(order)
        self._world.put(self._answers.get(timeout=20))

    def unchanged(self, identity: Identity) -> bool:
        """Whether the path still holds these bytes."""
        return identity_of(Path(identity.path)) == identity

    def vault_holds(self, identity: Identity, vault_path: str) -> bool:
        """Whether the copy is still there."""
        return self._vault.holds(identity, vault_path)

    def close(self) -> None:
        """Nothing."""


class _Sight:
    def held(self) -> contextlib.AbstractContextManager[object]:
        return contextlib.nullcontext()

    def let_go(self, path: Path) -> None:
        pass

    def take(self, identity: Identity) -> None:
        pass

    def unfinished(self, since_utc: float) -> list[Path]:
        return []


def live_through(told: Night, root: Path) -> World:
    """Run the night; the world afterwards knows what was launched."""
    out = root / "out"
    out.mkdir()
    script = [*_training(told, out), *_fault(told, out)]
    right = expected(told)
    begin = 0 if right is None else right.step
    script += [wait(5), *_records(begin + told.stride, begin + 30 * told.stride, told.stride)]
    script += [dies(code=0)]
    world = World(script)
    world.checkpoints = Shelf(world, root)
    world.supervise()
    return world


def _training(told: Night, out: Path) -> list[Callable[[World], None]]:
    script: list[Callable[[World], None]] = []
    at = told.stride
    for save in (s for s in told.saves if s.step < told.onset):
        script += _records(at, save.step, told.stride)
        script += [do(_saving(save, told, out)), wait(0)]
        at = save.step + told.stride
    return [*script, *_records(at, told.onset - told.stride, told.stride)]


def _records(first: int, last: int, stride: int) -> list[Callable[[World], None]]:
    return [
        line(f"Step {n} | Loss: {2.0 + n % 3 * 0.01:.4f} | LR: 1.0e-03")
        for n in range(first, last + 1, stride)
    ]


def _saving(save: Save, told: Night, out: Path) -> Callable[[World], None]:
    def body(world: World) -> None:
        path = write(save, out, in_place=told.in_place)
        identity = identity_of(path)
        assert identity is not None
        # Real saves are minutes apart: each has a time of its own.
        identity = _stamped(path, 1_700_000_000 + save.step)
        number = int(save.name.rpartition("_")[2]) if "_" in save.name else None
        seen = CheckpointSeen(
            world.now, identity, save.kind, number, world.wall(), in_place=told.in_place
        )
        if told.link:
            (out / LATEST).unlink(missing_ok=True)
            (out / LATEST).symlink_to(path.name)
        world.put(seen)
        if told.rotation is not None:
            world.next(do(lambda _world: _rotate(out, told)))

    return body


def _stamped(path: Path, seconds: int) -> Identity:
    for inner in [path, *(path.rglob("*") if path.is_dir() else ())]:
        os.utime(inner, (seconds, seconds))
    found = identity_of(path)
    assert found is not None
    return found


def _rotate(out: Path, told: Night) -> None:
    """The script keeps only its newest few."""
    assert told.rotation is not None
    mine = [path for path in out.iterdir() if path.name.startswith("step_")]
    mine.sort(key=lambda path: int(path.name.split("_")[1]))
    for path in mine[: -told.rotation]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def _fault(told: Night, out: Path) -> list[Callable[[World], None]]:
    if told.fault in ("nan", "spike"):
        after = {save.step: save for save in told.saves if save.step >= told.onset}
        script: list[Callable[[World], None]] = []
        for n in range(3 if told.fault == "nan" else 60):
            step = told.onset + n * told.stride
            loss = "nan" if told.fault == "nan" else f"{4.9 + n % 3 * 0.01:.4f}"
            script.append(_while_first(line(f"Step {step} | Loss: {loss} | LR: 1.0e-03")))
            if step in after:
                script.append(do(_late_saving(after[step], told, out)))
        return script
    if told.fault == "crash":
        return [dies(code=1)]
    if told.fault == "oom":
        return [line("torch.OutOfMemoryError: CUDA out of memory."), dies(code=1)]
    return [wait(2000)]


def _while_first(step: Callable[[World], None]) -> Callable[[World], None]:
    """What a worker does that has not been killed yet."""
    return lambda world: step(world) if world.alive and len(world.launches) == 1 else None


def _late_saving(save: Save, told: Night, out: Path) -> Callable[[World], None]:
    return _while_first(_saving(save, told, out))
