"""Checkpoints of each framework as it writes them: found once, whole, with their step and what is
missing in them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from discovery_lab import POLL_S, Watch
from overnight.adapters.checkpoints.complete import identity_of
from overnight.adapters.checkpoints.discover import CheckpointWatcher
from overnight.adapters.checkpoints.vault import Vault
from overnight.adapters.checkpoints.verify import verify
from overnight.core.events import Health
from reports import Reports

MODEL = torch.nn.Linear(3, 2)
ADAM = torch.optim.AdamW(MODEL.parameters())
MODEL(torch.ones(1, 3)).sum().backward()
ADAM.step()
SGD = torch.optim.SGD(MODEL.parameters(), lr=0.1)
WEIGHTS = MODEL.state_dict()


def hugging_face(folder: Path, *, optimizer: bool = True) -> Path:
    """`checkpoint-500` of the Trainer."""
    folder = folder / "checkpoint-500"
    folder.mkdir(parents=True)
    save_file(dict(WEIGHTS), folder / "model.safetensors")
    torch.save({"lr": 1}, folder / "training_args.bin")
    if optimizer:
        torch.save(ADAM.state_dict(), folder / "optimizer.pt")
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": 500, "log_history": []}))
    return folder


def deepspeed(folder: Path) -> Path:
    """`global_step500` of DeepSpeed; `latest` names it last."""
    inner = folder / "global_step500"
    inner.mkdir(parents=True)
    torch.save({"module": WEIGHTS, "global_steps": 500}, inner / "mp_rank_00_model_states.pt")
    states = {"optimizer_state_dict": ADAM.state_dict()}
    torch.save(states, inner / "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt")
    (folder / "latest").write_text("global_step500")
    return inner


def accelerate(folder: Path) -> Path:
    """`checkpoint_3` of accelerator.save_state."""
    folder = folder / "checkpoint_3"
    folder.mkdir(parents=True)
    save_file(dict(WEIGHTS), folder / "model.safetensors")
    torch.save(ADAM.state_dict(), folder / "optimizer.bin")
    torch.save({"step": 7, "random_state": [1, 2]}, folder / "random_states_0.pkl")
    return folder


def sharded(folder: Path, *, missing: bool = False) -> Path:
    """A model in three files with an index."""
    folder = folder / "step-500"
    folder.mkdir(parents=True)
    names = [f"model-0000{n}-of-00003.safetensors" for n in (1, 2, 3)]
    for name in names[: 2 if missing else 3]:
        save_file({f"w.{name}": torch.ones(2)}, folder / name)
    index = {"weight_map": {f"w.{name}": name for name in names}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def saved(value: object, **options: object) -> Callable[[Path], Path]:
    """A file of torch.save."""

    def write(folder: Path) -> Path:
        torch.save(value, folder / "ckpt.pt", **options)
        return folder / "ckpt.pt"

    return write


def arrays(**values: np.ndarray) -> Callable[[Path], Path]:
    """A file of numpy.savez."""

    def write(folder: Path) -> Path:
        np.savez(folder / "ckpt.npz", **values)
        return folder / "ckpt.npz"

    return write


def tensors(metadata: dict[str, str] | None = None, **names: str) -> Callable[[Path], Path]:
    """A safetensors file."""

    def write(folder: Path) -> Path:
        path = folder / "model.safetensors"
        save_file({**WEIGHTS, **{n: torch.ones(2) for n in names.values()}}, path, metadata)
        return path

    return write


W, A, S = WEIGHTS, ADAM.state_dict(), SGD.state_dict()
LEGACY = {"_use_new_zipfile_serialization": False}


@pytest.mark.parametrize(
    ("write", "step", "partial"),
    [
        pytest.param(saved({"model": W, "optimizer": A, "step": 500}), 500, False, id="full"),
        pytest.param(saved({"model": W, "optimizer": S, "iter_num": 5}), 5, False, id="sgd"),
        pytest.param(saved({"model": W, "optimizer": A}), None, False, id="no step"),
        pytest.param(saved({"model": W, "step": 5}), 5, False, id="no optimizer, but a step"),
        pytest.param(saved(W), None, True, id="a state dict"),
        pytest.param(saved({"model": W, "epoch": 3}), None, True, id="weights and an epoch"),
        pytest.param(saved(W, **LEGACY), None, True, id="legacy weights"),
        pytest.param(saved({"m": W, "opt": A}, **LEGACY), None, False, id="legacy"),
        pytest.param(
            saved({"state_dict": W, "optimizer_states": [A], "global_step": 500}),
            500,
            False,
            id="lightning",
        ),
        pytest.param(saved({"net": W, "train_state": {"step": 9}}), 9, False, id="deeper"),
        pytest.param(saved({"net": W, "config": {"step": 9}}), None, True, id="config"),
        pytest.param(hugging_face, 500, False, id="hf"),
        pytest.param(lambda f: hugging_face(f, optimizer=False), 500, True, id="hf-no-optim"),
        pytest.param(deepspeed, None, False, id="deepspeed"),
        pytest.param(accelerate, None, False, id="accelerate"),
        pytest.param(sharded, None, True, id="sharded weights"),
        pytest.param(tensors(), None, True, id="safetensors"),
        pytest.param(tensors({"step": "500"}), 500, False, id="safetensors-with-a-step"),
        pytest.param(tensors(m="optim.exp_avg.w"), None, False, id="safetensors-with-moments"),
        pytest.param(arrays(w=np.ones(3)), None, True, id="npz"),
        pytest.param(arrays(w=np.ones(3), opt=np.ones(3)), None, False, id="npz-with-an-optimizer"),
    ],
)
def test_what_is_in_it(tmp_path: Path, write, step: int | None, partial: bool) -> None:
    """Finite throughout; its step; and whether a resume from it is one in part."""
    report = verify(write(tmp_path))
    assert report.health is Health.VERIFIED, report.reason
    assert (report.step, report.partial) == (step, partial)
    assert ("weights only" in report.reason) is partial


def test_a_missing_shard(tmp_path: Path) -> None:
    report = verify(sharded(tmp_path, missing=True))
    assert report.health is Health.CORRUPT
    assert "model-00003-of-00003.safetensors' is missing" in report.reason


# --- found ---------------------------------------------------------------------------


def found_in(workdir: Path, *patterns: str) -> list[tuple[str, int | None]]:
    """(path, step) of what is complete in a folder."""
    watcher = CheckpointWatcher(
        patterns=patterns, workdir=workdir, since_utc=0.0, report=lambda _found: None
    )
    known = watcher.existing()
    return sorted((str(Path(s.identity.path).relative_to(workdir)), s.step) for s in known)


@pytest.mark.parametrize(
    ("write", "patterns", "expected"),
    [
        (hugging_face, (), [("out/checkpoint-500", 500)]),
        (hugging_face, ("out/checkpoint-*",), [("out/checkpoint-500", 500)]),
        (deepspeed, (), [("out/global_step500", 500)]),
        (deepspeed, ("out/global_step*",), [("out/global_step500", 500)]),
        (sharded, ("out/*/*.safetensors",), []),
        (saved(W), (), [("out/ckpt.pt", None)]),
        (arrays(w=np.ones(2)), ("out/*.npz",), [("out/ckpt.npz", None)]),
    ],
)
def test_found_once(tmp_path: Path, write, patterns, expected) -> None:
    out = tmp_path / "out"
    out.mkdir()
    write(out)
    assert found_in(tmp_path, *patterns) == expected


def test_deepspeed_inside_hugging_face_is_one(tmp_path: Path) -> None:
    deepspeed(hugging_face(tmp_path / "out"))
    assert found_in(tmp_path) == [("out/checkpoint-500", 500)]


def test_deepspeed_is_whole_when_latest_names_it(tmp_path: Path) -> None:
    folder = deepspeed(tmp_path / "out")
    (folder.parent / "latest").write_text("global_step400")
    now = time.time()
    for path in folder.iterdir():
        os.utime(path, (now, now))
    assert found_in(tmp_path) == []
    assert found_in(tmp_path, "out/global_step*") == []
    (folder.parent / "latest").write_text("global_step500")
    assert found_in(tmp_path) == [("out/global_step500", 500)]


def test_a_link_to_the_newest_is_not_counted_twice(tmp_path: Path) -> None:
    folder = hugging_face(tmp_path / "out")
    (folder.parent / "latest").symlink_to(folder.name)
    (folder.parent / "last.pt").symlink_to(folder.name)
    assert found_in(tmp_path, "out/*") == [("out/checkpoint-500", 500)]


# --- nested --------------------------------------------------------------------------


def test_a_change_deep_inside_is_another_identity(tmp_path: Path) -> None:
    folder = hugging_face(tmp_path)
    deep = deepspeed(folder) / "mp_rank_00_model_states.pt"
    before = identity_of(folder)
    deep.write_bytes(deep.read_bytes() + b"x")
    assert identity_of(folder) != before


def test_a_write_deep_inside_is_reported(tmp_path: Path) -> None:
    watch = Watch(tmp_path, ("out/checkpoint-*",))
    folder = hugging_face(tmp_path / "out")
    first = watch.reports.next()
    deepspeed(folder)
    later = [watch.reports.next(timeout_s=20 * POLL_S)]
    while later[-1].identity != identity_of(folder):
        later.append(watch.reports.next(timeout_s=20 * POLL_S))
    assert first.identity.path == later[-1].identity.path == str(folder)
    watch.watcher.close()


def test_the_vault_keeps_nested_folders(tmp_path: Path) -> None:
    folder = hugging_face(tmp_path / "out")
    deepspeed(folder)
    identity, reports = identity_of(folder), Reports()
    assert identity is not None
    vault = Vault(name="nano", report=reports.put)
    vault.secure(identity, beside=tmp_path, linkable=True)
    answer = reports.next()
    assert vault.holds(identity, answer.vault_path)
    assert verify(Path(answer.vault_path)).health is Health.VERIFIED
    inner = Path(answer.vault_path) / "global_step500" / "mp_rank_00_model_states.pt"
    assert inner.is_file()
