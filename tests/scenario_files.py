"""Checkpoints of every kind, written for real and damaged in every way."""

from __future__ import annotations

import hashlib
import io
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save as as_safetensors

FILES = ("torch", "legacy", "safetensors", "npz")
FOLDERS = ("hf", "sharded", "manifest")
CHECKSUMS = ("torch", "npz", "manifest")
"""Formats in which a flipped bit shows; elsewhere it is another number, as good as any."""


@dataclass(frozen=True)
class Save:
    """One checkpoint: when, how, and what is wrong with it ("" for nothing)."""

    step: int
    kind: str
    damage: str
    name: str


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
