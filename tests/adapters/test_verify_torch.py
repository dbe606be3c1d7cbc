"""Real files of torch.save: what is healthy, what is damaged, and what each is called."""

from __future__ import annotations

import argparse
import datetime as dt
import pathlib
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from overnight.adapters.checkpoints.report import Report
from overnight.adapters.checkpoints.verify import verify
from overnight.core.events import Health

torch = pytest.importorskip("torch")
numpy = pytest.importorskip("numpy")

NAN, INF = float("nan"), float("inf")


@dataclass
class Settings:
    """What people keep beside their weights."""

    lr: float = 3e-4
    out: pathlib.Path = pathlib.Path("out")


def model() -> Any:
    """A small model with named layers."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.LayerNorm(16))


def trained() -> tuple[Any, Any]:
    """A model and the AdamW that has taken one step with it."""
    net = model()
    optimizer = torch.optim.AdamW(net.parameters())
    net(torch.ones(2, 8)).square().sum().backward()
    optimizer.step()
    return net, optimizer


def saved(tmp_path: Path, value: Any, name: str = "model.pt", **options: Any) -> Path:
    """The path of `value` after torch.save."""
    path = tmp_path / name
    torch.save(value, path, **options)
    return path


def check(tmp_path: Path, value: Any, **options: Any) -> Report:
    """The verifier's answer for `value` after torch.save."""
    return verify(saved(tmp_path, value, **options))


def test_a_state_dict_is_verified(tmp_path: Path) -> None:
    """All tensors are counted and all floating bytes are scanned."""
    state = model().state_dict()
    report = check(tmp_path, state)
    assert report == Report(
        path=str(tmp_path / "model.pt"),
        health=Health.VERIFIED,
        reason="4 tensors, 704 bytes of floating-point data, all finite;"
        " weights only: no optimizer state",
        format="torch",
        tensors=4,
        bytes_scanned=sum(t.numel() * t.element_size() for t in state.values()),
        partial=True,
    )


@pytest.mark.parametrize("key", ["step", "global_step", "iter_num", "iteration"])
def test_optimizer_state_and_the_step_are_read(tmp_path: Path, key: str) -> None:
    """A training checkpoint: weights, AdamW state, generator state, a step under a usual name."""
    net, optimizer = trained()
    value = {
        "model": net.state_dict(),
        "optimizer": optimizer.state_dict(),
        "rng": torch.get_rng_state(),
        key: 1200,
    }
    report = check(tmp_path, value)
    assert (report.health, report.step) == (Health.VERIFIED, 1200)
    assert report.tensors == 4 + 4 * 3 + 1


@pytest.mark.parametrize("step", [True, "12", -3, 2.5, NAN, None])
def test_a_step_that_is_no_step_is_unknown(tmp_path: Path, step: object) -> None:
    """Unknown is null, never 0."""
    report = check(tmp_path, {"step": step})
    assert (report.health, report.step) == (Health.VERIFIED, None)


@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize(
    "dtype",
    ["float64", "float32", "float16", "bfloat16", "float8_e5m2", "complex64", "complex128"],
)
def test_a_nonfinite_weight_is_corrupt(tmp_path: Path, dtype: str, value: float) -> None:
    """In each type, with the file, the kind, the tensor and the element in the reason."""
    weight = torch.ones(64)
    weight[17] = value
    state = {"a.bias": torch.zeros(8), "blocks.0.attn.weight": weight.to(getattr(torch, dtype))}
    report = check(tmp_path, state)
    kind = {"nan": "NaN", "inf": "Inf", "-inf": "-Inf"}[str(value)]
    assert report.health is Health.CORRUPT
    assert report.reason == f"model.pt: {kind} in tensor 'blocks.0.attn.weight' (element 17)"


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2fnuz"])
def test_nan_in_the_other_fp8_types_is_corrupt(tmp_path: Path, dtype: str) -> None:
    """They have no infinity, and torch saves them as untyped bytes."""
    good = torch.ones(32).to(getattr(torch, dtype))
    bad = torch.full((32,), NAN).to(getattr(torch, dtype))
    assert check(tmp_path, {"w": good}).health is Health.VERIFIED
    assert check(tmp_path, {"w": good}).bytes_scanned == 32
    assert check(tmp_path, {"w": bad}).reason == "model.pt: NaN in tensor 'w' (element 0)"


def test_infinity_in_the_optimizer_alone_is_corrupt(tmp_path: Path) -> None:
    """Finite weights with a poisoned second moment would be NaN one step later."""
    net, optimizer = trained()
    optimizer.state[net[0].weight]["exp_avg_sq"][3, 2] = INF
    report = check(tmp_path, {"model": net.state_dict(), "optimizer": optimizer.state_dict()})
    assert report.health is Health.CORRUPT
    assert "Inf in tensor 'optimizer.state.0.exp_avg_sq' (element 26)" in report.reason


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
def test_integer_bits_are_never_taken_for_floats(tmp_path: Path, legacy: bool) -> None:
    """An int64 of all ones is -1, not NaN."""
    value = {
        str(dtype): torch.full((9,), -1, dtype=torch.int64).to(dtype)
        for dtype in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
    }
    report = check(tmp_path, value, _use_new_zipfile_serialization=not legacy)
    assert (report.health, report.tensors, report.bytes_scanned) == (Health.VERIFIED, 6, 0)


@pytest.mark.parametrize(
    "extra",
    [
        argparse.Namespace(lr=0.1, tags={"a", "b"}),
        Settings(),
        numpy.float64(3.5),
        {"numpy": numpy.random.RandomState(0).get_state(), "array": numpy.ones(3)},
        defaultdict(list, {"losses": [NAN, INF]}),
        dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
        torch.nn.Linear(2, 2),
        [torch.float32, torch.device("cpu"), torch.Size((1, 2))],
        torch.eye(4).to_sparse(),
        torch.empty(3, device="meta"),
    ],
    ids=lambda extra: type(extra).__name__,
)
def test_objects_beside_the_weights_are_no_damage(tmp_path: Path, extra: object) -> None:
    """Contents that torch.load(weights_only=True) refuses are still a sound checkpoint."""
    state = {"model": model().state_dict(), "extra": extra, "step": 5}
    report = check(tmp_path, state)
    assert (report.health, report.step) == (Health.VERIFIED, 5)
    assert report.tensors >= 4


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (lambda bad: {"net": torch.nn.ParameterDict({"w": bad})}, "net.w"),
        (lambda bad: argparse.Namespace(ema=[bad]), "ema.0"),
        (lambda bad: {"a": {"b": (1, {2: bad})}}, "a.b.1.2"),
        (lambda bad: defaultdict(list, {"w": [bad]}), "w.0"),
        (lambda bad: bad, ""),
    ],
    ids=["module", "namespace", "nested", "defaultdict", "bare"],
)
def test_the_name_is_the_path_of_keys(tmp_path: Path, value: Any, name: str) -> None:
    """Attributes, indices and keys lead to the tensor; a module's inner dicts are left out."""
    report = check(tmp_path, value(torch.nn.Parameter(torch.tensor([[1.0, NAN]]))))
    assert report.reason == f"model.pt: NaN in tensor '{name}' (element 1)"


def test_a_shared_storage_is_scanned_once(tmp_path: Path) -> None:
    """Tied weights are two tensors and one run of bytes."""
    shared = torch.ones(10, 10)
    report = check(tmp_path, {"wte": shared, "head": shared.t(), "slice": shared[2:4]})
    assert (report.health, report.tensors, report.bytes_scanned) == (Health.VERIFIED, 3, 400)


def test_the_element_of_a_transposed_view_is_its_own_index(tmp_path: Path) -> None:
    """The reader will look at tensor.flatten()[i], so that is what i must mean."""
    base = torch.ones(3, 5)
    base[1, 4] = NAN
    report = check(tmp_path, {"w": base.t()})
    index = int(torch.isnan(base.t().flatten()).nonzero())
    assert report.reason == f"model.pt: NaN in tensor 'w' (element {index})"


def test_memory_that_no_tensor_shows_is_not_judged(tmp_path: Path) -> None:
    """Saving a slice drags its whole storage along, uninitialised parts included."""
    base = torch.full((100,), NAN)
    base[10:20] = 1.0
    assert check(tmp_path, {"a": base[10:15], "b": base[15:20]}).health is Health.VERIFIED
    report = check(tmp_path, {"a": base[10:15], "b": base[15:21]})
    assert report.reason == "model.pt: NaN in tensor 'b' (element 5)"


@pytest.mark.filterwarnings("ignore:TypedStorage")
def test_a_bare_storage_is_scanned_whole(tmp_path: Path) -> None:
    """Nothing says which part of it counts."""
    report = check(tmp_path, {"s": torch.tensor([1.0, NAN]).storage()})
    assert report.reason == "model.pt: NaN in storage 's' (element 1)"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_a_causal_mask_is_infinite_by_design(tmp_path: Path, dtype: str) -> None:
    """A registered attention mask must not make every checkpoint of a run corrupt."""
    mask = torch.full((1, 1, 70, 70), -INF).triu(1).to(getattr(torch, dtype))
    report = check(tmp_path, {"mask": mask, "w": torch.ones(3)})
    assert report.health is Health.VERIFIED
    assert "'mask' holds -Inf by design" in report.reason
    broken = mask.clone()
    broken[0, 0, 30, 2] = -INF
    assert check(tmp_path, {"mask": broken}).health is Health.CORRUPT


@pytest.mark.parametrize("name", ["best_score", "kth_value", "best_val_loss", "obs.min_val"])
def test_a_record_that_starts_at_infinity_is_no_damage(tmp_path: Path, name: str) -> None:
    """Lightning remembers its best score as a tensor, inf until the first validation."""
    value = {"callbacks": {"EarlyStopping": {name: torch.tensor(INF)}}}
    assert check(tmp_path, value).health is Health.VERIFIED
    value["callbacks"]["EarlyStopping"][name] = torch.tensor(NAN)
    assert check(tmp_path, value).health is Health.CORRUPT


def test_the_legacy_format_is_scanned(tmp_path: Path) -> None:
    """Weights, optimizer, fp8 and views, in the format before 1.6, at any pickle protocol."""
    net, optimizer = trained()
    value = {
        "model": net.state_dict(),
        "optimizer": optimizer.state_dict(),
        "fp8": torch.ones(6).to(torch.float8_e5m2),
        "view": torch.arange(10.0)[2:5],
        "step": 77,
    }
    for protocol in (2, 4):
        report = check(
            tmp_path, value, _use_new_zipfile_serialization=False, pickle_protocol=protocol
        )
        assert (report.health, report.step, report.format) == (Health.VERIFIED, 77, "torch")
        assert report.tensors == 4 + 4 * 3 + 2
    net[1].weight.data[3] = NAN
    report = check(tmp_path, value, _use_new_zipfile_serialization=False)
    assert report.reason == "model.pt: NaN in tensor 'model.1.weight' (element 3)"
