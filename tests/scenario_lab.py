"""Seeded nights: real files, saved and damaged in every way, and what should be resumed from.

The real supervisor, verifier, vault and quarantine work on them; only the worker and the clock are
scripted. What is right is worked out in `expected` from the sentences of the design alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import math
import os
import queue
import random
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save as as_safetensors

from fakes import World, dies, do, line, wait
from overnight.adapters.checkpoints.complete import identity_of
from overnight.adapters.checkpoints.quarantine import Quarantine
from overnight.adapters.checkpoints.vault import Vault
from overnight.adapters.checkpoints.verify import verify
from overnight.core.events import CheckpointChecked, CheckpointSeen, Identity
from overnight.core.orders import Tidying

FILES = ("torch", "legacy", "safetensors", "npz")
FOLDERS = ("hf", "sharded", "manifest")
CHECKSUMS = ("torch", "npz", "manifest")
"""Formats in which a flipped bit shows; elsewhere it is another number, as good as any."""

DAMAGES = ("torn", "zeros", "shard", "nan", "inf", "flip")
FAULTS = ("nan", "spike", "crash", "oom", "stall")
CONFIRM_STEPS, CONFIRM_RECORDS = 100, 2
LATEST = "latest"


@dataclass(frozen=True)
class Save:
    """One checkpoint: when, how, and what is wrong with it ("" for nothing)."""

    step: int
    kind: str
    damage: str
    name: str


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


# --- real files ----------------------------------------------------------------------------------


def write(save: Save, folder: Path, *, in_place: bool) -> Path:
    """The checkpoint on disk, damaged as it should be. Returns its path."""
    if save.kind in FOLDERS:
        path = folder / save.name
        path.mkdir()
        _FOLDER_WRITERS[save.kind](save, path)
        return path
    path = folder / f"{save.name}{_SUFFIX[save.kind]}"
    data = _damaged(_bytes(save.kind, save.damage, save.step), save)
    if in_place and path.exists():
        with path.open("r+b") as out:
            out.write(data)
            out.truncate()
    else:
        temp = path.with_name(f".{path.name}.tmp")
        temp.write_bytes(data)
        temp.rename(path)
    return path


_SUFFIX = {"torch": ".pt", "legacy": ".pth", "safetensors": ".safetensors", "npz": ".npz"}


def _tensors(damage: str, step: int) -> dict[str, torch.Tensor]:
    weights = torch.full((64,), float(step))
    moments = torch.full((64,), 0.25)
    if damage == "nan":
        weights[17] = math.nan
    if damage == "inf":
        moments[5] = math.inf
    return {"model.w": weights, "optimizer.exp_avg": moments}


@cache
def _bytes(kind: str, damage: str, step: int) -> bytes:
    tensors = _tensors(damage, step)
    out = io.BytesIO()
    if kind == "safetensors":
        return as_safetensors(tensors)
    if kind == "npz":
        np.savez(out, **{name: tensor.numpy() for name, tensor in tensors.items()})
        return out.getvalue()
    state = {"model": tensors["model.w"], "optimizer": {"exp_avg": tensors["optimizer.exp_avg"]}}
    torch.save(state, out, _use_new_zipfile_serialization=kind == "torch")
    return out.getvalue()


def _damaged(data: bytes, save: Save) -> bytes:
    if save.damage == "torn":
        return data[: len(data) // 2]
    if save.damage == "zeros":
        return bytes(len(data))
    if save.damage == "flip":
        at = data.index(np.float32(save.step).tobytes() * 8) + 3
        return data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]
    return data


def _hf(save: Save, folder: Path) -> None:
    tensors = _tensors(save.damage, save.step)
    weights = as_safetensors({"w": tensors["model.w"]})
    (folder / "model.safetensors").write_bytes(_damaged(weights, save))
    torch.save({"exp_avg": tensors["optimizer.exp_avg"]}, folder / "optimizer.pt")
    state = {"global_step": save.step, "log_history": []}
    (folder / "trainer_state.json").write_text(json.dumps(state))


def _sharded(save: Save, folder: Path) -> None:
    tensors = _tensors(save.damage, save.step)
    names = [f"model-0000{n}-of-00002.safetensors" for n in (1, 2)]
    for name, (key, tensor) in zip(names, tensors.items(), strict=True):
        if not (save.damage == "shard" and name == names[1]):
            (folder / name).write_bytes(_damaged(as_safetensors({key: tensor}), save))
    index = {"weight_map": dict(zip(tensors, names, strict=True))}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": save.step}))
    torch.save({"lr": 0.1}, folder / "optimizer.pt")


def _manifest(save: Save, folder: Path) -> None:
    good = _bytes("torch", save.damage, save.step)
    (folder / "state.pt").write_bytes(_damaged(good, save))
    entry = {"bytes": len(good), "sha256": hashlib.sha256(good).hexdigest()}
    manifest = {"format": "overnight-trainer/1", "step": save.step, "files": {"state.pt": entry}}
    (folder / "manifest.json").write_text(json.dumps(manifest))


_FOLDER_WRITERS: dict[str, Callable[[Save, Path], None]] = {
    "hf": _hf,
    "sharded": _sharded,
    "manifest": _manifest,
}


def step_in(path: Path) -> int:
    """Which save the bytes at a path are: every weight is its step."""
    for inner in sorted(path.rglob("*")) if path.is_dir() else [path]:
        data = inner.read_bytes() if inner.is_file() else b""
        for step in range(1, 2100):
            if np.float32(step).tobytes() * 32 in data:
                return step
    raise AssertionError(f"{path} holds no step")


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
