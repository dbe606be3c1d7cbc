"""Checkpoint directories: manifest, Hugging Face, shards, distributed, and none of these."""

from __future__ import annotations

import argparse
import hashlib
import json
import warnings
from pathlib import Path
from typing import Any

import pytest

from overnight.adapters.checkpoints.verify import verify
from overnight.core.events import Health

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.torch")

NAN = float("nan")


def with_manifest(directory: Path, *, nan: bool = False, **changes: Any) -> Path:
    """What the reference trainer writes, with keys of the manifest changed."""
    directory.mkdir()
    torch.save({"w": torch.full((64,), NAN if nan else 1.0)}, directory / "model.pt")
    torch.save({"exp_avg": torch.ones(64)}, directory / "optimizer.pt")
    (directory / "state.json").write_text('{"step": 7}')
    files = {
        path.name: {
            "bytes": path.stat().st_size,
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        }
        for path in directory.iterdir()
    }
    manifest = {"format": "overnight-trainer/1", "step": 400, "files": files} | changes
    (directory / "manifest.json").write_text(json.dumps(manifest))
    return directory


def huggingface(parent: Path, step: int = 500) -> Path:
    """A `checkpoint-N` as transformers' Trainer leaves it."""
    directory = parent / f"checkpoint-{step}"
    directory.mkdir()
    net = torch.nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(net.parameters())
    net(torch.ones(4)).sum().backward()
    optimizer.step()
    safetensors.save_file(net.state_dict(), directory / "model.safetensors")
    torch.save(optimizer.state_dict(), directory / "optimizer.pt")
    torch.save({"last_epoch": step, "_last_lr": [1e-4]}, directory / "scheduler.pt")
    torch.save({"cpu": torch.get_rng_state()}, directory / "rng_state.pth")
    torch.save(argparse.Namespace(lr=1e-4), directory / "training_args.bin")
    (directory / "config.json").write_text("{}")
    (directory / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    return directory


def sharded(directory: Path, *, shards: int = 2) -> Path:
    """A model in several files with an index."""
    directory.mkdir()
    names = [f"model-{at:05}-of-{shards:05}.safetensors" for at in range(1, shards + 1)]
    for at, name in enumerate(names):
        safetensors.save_file({f"layer.{at}": torch.ones(5)}, directory / name)
    weight_map = {f"layer.{at}": name for at, name in enumerate(names)}
    index = {"metadata": {"total_size": 40}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    return directory


def test_a_manifest_directory_is_verified(tmp_path: Path) -> None:
    """Sizes and sha256 match and all tensors are finite; the step is the manifest's."""
    report = verify(with_manifest(tmp_path / "step-400"))
    assert (report.health, report.step, report.format) == (Health.VERIFIED, 400, "manifest")
    assert (report.tensors, report.bytes_scanned) == (2, 512)


def test_a_changed_byte_fails_its_sha256(tmp_path: Path) -> None:
    """Also in a file without tensors."""
    directory = with_manifest(tmp_path / "c")
    (directory / "state.json").write_text('{"step": 8}')
    report = verify(directory)
    assert report.health is Health.CORRUPT
    assert report.reason.startswith("state.json does not match its sha256 in manifest.json")


def test_a_missing_or_short_file_is_corrupt(tmp_path: Path) -> None:
    """The cheap tests come first and name the file."""
    directory = with_manifest(tmp_path / "c")
    data = (directory / "model.pt").read_bytes()
    (directory / "model.pt").write_bytes(data[:-10])
    short = verify(directory).reason
    assert short == f"model.pt has {len(data) - 10:,} bytes instead of {len(data):,}"
    (directory / "model.pt").unlink()
    assert verify(directory).reason == "model.pt is missing (manifest.json lists it)"


def test_nan_under_a_matching_sha256_is_still_corrupt(tmp_path: Path) -> None:
    """The trainer wrote down faithfully what was broken already."""
    report = verify(with_manifest(tmp_path / "c", nan=True))
    assert report.reason == "model.pt: NaN in tensor 'w' (element 0)"


@pytest.mark.parametrize(
    ("changes", "health", "reason"),
    [
        ({"files": {}}, Health.CORRUPT, "lists no files"),
        ({"files": {"model.pt": {}}}, Health.CORRUPT, "does not list its files"),
        ({"files": {"../x": {"bytes": 1, "sha256": ""}}}, Health.CORRUPT, "outside the checkpoint"),
        ({"format": "overnight-trainer/2"}, Health.UNVERIFIED, "version 2"),
        ({"format": "somebody-else"}, Health.VERIFIED, "all finite"),
    ],
    ids=["none", "incomplete", "outside", "newer", "foreign"],
)
def test_odd_manifests(tmp_path: Path, changes: Any, health: Health, reason: str) -> None:
    """Ours must be complete; another program's manifest.json is not ours to judge."""
    report = verify(with_manifest(tmp_path / "c", **changes))
    assert report.health is health
    assert reason in report.reason


def test_a_torn_manifest_is_corrupt(tmp_path: Path) -> None:
    """It is written last; half of it means that the save did not finish."""
    directory = with_manifest(tmp_path / "c")
    (directory / "manifest.json").write_text('{"format": "overnight-tr')
    assert "manifest.json is cut off" in verify(directory).reason


def test_a_huggingface_checkpoint_is_verified(tmp_path: Path) -> None:
    """Weights, optimizer, scheduler and generator state; the step is trainer_state.json's."""
    report = verify(huggingface(tmp_path))
    assert (report.health, report.step, report.format) == (Health.VERIFIED, 500, "directory")
    assert report.tensors == 2 + 6 + 1


def test_a_huggingface_checkpoint_without_its_last_file_is_corrupt(tmp_path: Path) -> None:
    """trainer_state.json is written last, and a resume would crash without it."""
    directory = huggingface(tmp_path)
    (directory / "trainer_state.json").unlink()
    assert verify(directory).reason == "trainer_state.json is missing: the save did not finish"
    (directory / "trainer_state.json").write_text('{"global_')
    assert verify(directory).health is Health.CORRUPT


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.pt", "scheduler.pt"])
def test_any_torn_file_makes_the_directory_corrupt(tmp_path: Path, name: str) -> None:
    """A resume reads them all."""
    directory = huggingface(tmp_path)
    data = (directory / name).read_bytes()
    (directory / name).write_bytes(data[: len(data) // 2])
    report = verify(directory)
    assert report.health is Health.CORRUPT
    assert report.reason.startswith(f"{name}: ")


def test_a_poisoned_optimizer_makes_the_directory_corrupt(tmp_path: Path) -> None:
    """Finite weights beside an infinite moment."""
    directory = huggingface(tmp_path)
    state = torch.load(directory / "optimizer.pt")
    state["state"][0]["exp_avg"][1, 1] = float("inf")
    torch.save(state, directory / "optimizer.pt")
    assert verify(directory).reason == ("optimizer.pt: Inf in tensor 'state.0.exp_avg' (element 5)")


def test_damage_speaks_before_ignorance(tmp_path: Path) -> None:
    """A file that is not understood comes first in the alphabet; the damaged one decides."""
    directory = huggingface(tmp_path)
    (directory / "a_note.bin").write_text("no tensors here\n")
    assert verify(directory).health is Health.UNVERIFIED
    (directory / "model.safetensors").write_bytes(b"")
    assert verify(directory).health is Health.CORRUPT


def test_shards_are_verified_by_directory_or_index(tmp_path: Path) -> None:
    """Either path means the same checkpoint."""
    directory = sharded(tmp_path / "c")
    by_directory, by_index = verify(directory), verify(directory / "model.safetensors.index.json")
    assert by_directory.health is by_index.health is Health.VERIFIED
    assert by_directory.tensors == by_index.tensors == 2


def test_a_missing_shard_is_corrupt(tmp_path: Path) -> None:
    """The index names it."""
    directory = sharded(tmp_path / "c", shards=3)
    (directory / "model-00002-of-00003.safetensors").unlink()
    report = verify(directory)
    assert report.health is Health.CORRUPT
    assert "'model-00002-of-00003.safetensors' is missing" in report.reason


@pytest.mark.parametrize("index", ["{}", '{"weight_map": 3}', '{"weight_', "[]"])
def test_a_broken_index_is_corrupt(tmp_path: Path, index: str) -> None:
    """Without its map nobody knows which shards there should be."""
    directory = sharded(tmp_path / "c")
    (directory / "model.safetensors.index.json").write_text(index)
    assert verify(directory).health is Health.CORRUPT


def distributed(directory: Path, weight: Any) -> Path:
    """A torch.distributed.checkpoint of one process."""
    dcp = pytest.importorskip("torch.distributed.checkpoint")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save({"model": {"w": weight}, "step": 60}, checkpoint_id=directory)
    return directory


def test_a_distributed_checkpoint_is_verified(tmp_path: Path) -> None:
    """Each piece is an archive of its own; the step is a pickled value among them."""
    report = verify(distributed(tmp_path / "c", torch.ones(100)))
    assert (report.health, report.step) == (Health.VERIFIED, 60)
    assert (report.tensors, report.bytes_scanned) == (1, 400)


def test_damage_in_a_distributed_checkpoint_is_found(tmp_path: Path) -> None:
    """NaN, a cut file, a missing `.metadata` (it is written last)."""
    weight = torch.ones(100)
    weight[8] = NAN
    directory = distributed(tmp_path / "c", weight)
    assert verify(directory).reason == "c: __0_0.distcp: NaN in tensor 'model.w' (element 8)"
    shard = directory / "__0_0.distcp"
    shard.write_bytes(shard.read_bytes()[:-100])
    assert verify(directory).reason.startswith("c: __0_0.distcp is cut off")
    (directory / ".metadata").unlink()
    assert ".metadata is missing" in verify(directory).reason


def test_one_shard_alone_is_not_understood(tmp_path: Path) -> None:
    """Its last archive looks like a whole zip; the ones before it must not go unseen."""
    directory = distributed(tmp_path / "c", torch.full((100,), NAN))
    report = verify(directory / "__0_0.distcp")
    assert report.health is Health.UNVERIFIED
    assert "several files in one" in report.reason


def test_nested_files_count_and_hidden_ones_do_not(tmp_path: Path) -> None:
    """DeepSpeed nests its states; our own vault and temporary files are hidden."""
    directory = huggingface(tmp_path)
    nested = directory / "global_step500"
    nested.mkdir()
    hidden = directory / ".tmp"
    hidden.mkdir()
    (hidden / "x.pt").write_bytes(b"")
    torch.save({"a": torch.ones(1)}, nested / "mp_rank_00_model_states.pt")
    assert verify(directory).health is Health.VERIFIED
    torch.save({"a": torch.full((1,), NAN)}, nested / "mp_rank_00_model_states.pt")
    assert verify(directory).reason == (
        "global_step500/mp_rank_00_model_states.pt: NaN in tensor 'a' (element 0)"
    )


def test_directories_without_tensors(tmp_path: Path) -> None:
    """Empty is damage, strange files are not."""
    assert verify(tmp_path).health is Health.CORRUPT
    (tmp_path / "log.txt").write_text("hello")
    assert verify(tmp_path).health is Health.UNVERIFIED
    (tmp_path / "model.pt").symlink_to(tmp_path / "gone.pt")
    assert verify(tmp_path).reason == "model.pt is a link to a file that is gone"


def test_state_json_gives_the_step(tmp_path: Path) -> None:
    """A script's own state file goes before what the pickles say."""
    torch.save({"step": 3, "w": torch.ones(2)}, tmp_path / "model.pt")
    assert verify(tmp_path).step == 3
    (tmp_path / "state.json").write_text('{"step": 90}')
    assert verify(tmp_path).step == 90
