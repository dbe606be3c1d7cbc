"""safetensors and npz files: layout, finiteness, and pages lost at the end."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from overnight.adapters.checkpoints.verify import verify
from overnight.core.events import Health

NAN = float("nan")


def write(path: Path, header: Any, data: bytes) -> Path:
    """A safetensors file made by hand, so that it can be wrong."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + data)
    return path


def entry(begin: int, end: int, shape: list[int] | None = None, dtype: str = "F32") -> Any:
    """One tensor of a header."""
    return {"dtype": dtype, "shape": shape or [(end - begin) // 4], "data_offsets": [begin, end]}


def floats(*values: float) -> bytes:
    """fp32, little-endian."""
    return struct.pack(f"<{len(values)}f", *values)


def test_a_real_file_is_verified(tmp_path: Path) -> None:
    """All types that the library writes, with metadata."""
    torch = pytest.importorskip("torch")
    save_file = pytest.importorskip("safetensors.torch").save_file
    names = ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"]
    names += ["int64", "int32", "int16", "int8", "uint8", "bool", "complex64"]
    tensors = {name: torch.ones(3, 5).to(getattr(torch, name)) for name in names}
    path = tmp_path / "model.safetensors"
    save_file(tensors, path, metadata={"format": "pt"})
    report = verify(path)
    assert (report.health, report.format) == (Health.VERIFIED, "safetensors")
    assert report.tensors == len(names)
    assert report.bytes_scanned == 15 * (8 + 4 + 2 + 2 + 1 + 1 + 8)


@pytest.mark.parametrize(
    "dtype", ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"]
)
def test_nan_in_a_real_file_is_corrupt(tmp_path: Path, dtype: str) -> None:
    """With the tensor's name and the element's index."""
    torch = pytest.importorskip("torch")
    save_file = pytest.importorskip("safetensors.torch").save_file
    weight = torch.ones(4, 4)
    weight[2, 1] = NAN
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.ones(9), "blocks.0.w": weight.to(getattr(torch, dtype))}, path)
    assert verify(path).reason == "model.safetensors: NaN in tensor 'blocks.0.w' (element 9)"


GOOD = {"a": entry(0, 8), "b": entry(8, 16), "__metadata__": {"x": "y"}}


@pytest.mark.parametrize(
    ("header", "data", "reason"),
    [
        (GOOD, bytes(12), "cut off: 4 bytes are missing"),
        (GOOD, bytes(20), "4 bytes at its end belong to no tensor"),
        ({"a": entry(0, 8), "b": entry(4, 12)}, bytes(12), "'b' overlaps the one before"),
        ({"a": entry(0, 8), "b": entry(12, 16)}, bytes(16), "'b' follows a gap"),
        ({"a": entry(4, 8)}, bytes(8), "'a' follows a gap"),
        ({"a": entry(0, 8, [3])}, bytes(8), "its shape needs 12"),
        ({"a": entry(0, 8, [-2])}, bytes(8), "no whole number"),
        ({"a": {"dtype": "F32"}}, bytes(8), "header is damaged"),
        (b'{"a": ', bytes(8), "header is damaged"),
        (b"[1, 2]", bytes(8), "header is damaged"),
        (b"\xff\xfe\x00\x00", bytes(8), "header is damaged"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_layout_that_cannot_be_is_corrupt(
    tmp_path: Path, header: Any, data: bytes, reason: str
) -> None:
    """Header, offsets and size must agree."""
    report = verify(write(tmp_path / "m.safetensors", header, data))
    assert report.health is Health.CORRUPT
    assert reason in report.reason


def test_a_type_of_the_future_is_unverified(tmp_path: Path) -> None:
    """Not knowing a type is no reason to call a file damaged."""
    report = verify(write(tmp_path / "m.safetensors", {"a": entry(0, 8, None, "F99")}, bytes(8)))
    assert report.health is Health.UNVERIFIED
    assert "'F99'" in report.reason


@pytest.mark.parametrize("keep", [0, 3, 8, 30, 70])
def test_a_cut_off_file_is_corrupt(tmp_path: Path, keep: int) -> None:
    """Inside the length, inside the header, inside the data."""
    path = write(tmp_path / "m.safetensors", GOOD, floats(1, 2, 3, 4))
    path.write_bytes(path.read_bytes()[:keep])
    assert verify(path).health is Health.CORRUPT


def test_a_header_that_claims_gigabytes_is_corrupt(tmp_path: Path) -> None:
    """The length is checked before anything is read."""
    path = tmp_path / "m.safetensors"
    path.write_bytes(b"\xff" * 64)
    assert "its header claims" in verify(path).reason


def test_the_name_may_hide_the_format(tmp_path: Path) -> None:
    """A safetensors file by another name is known by its first bytes."""
    report = verify(write(tmp_path / "weights.dat", GOOD, floats(1, 2, 3, NAN)))
    assert report.reason == "weights.dat: NaN in tensor 'b' (element 1)"


def padded(header: Any) -> bytes:
    """A header filled up with spaces, so that the data begins at byte 4096 of the file."""
    return json.dumps(header).encode().ljust(4088)


@pytest.mark.parametrize(
    ("shape", "zeros_from", "health"),
    [
        ([10_000], 20_480, Health.CORRUPT),
        ([10, 1000], 20_480, Health.CORRUPT),
        ([10, 1000], 20_000, Health.VERIFIED),
        ([10_000], 20_004, Health.VERIFIED),
        ([10, 1024], 20_480, Health.VERIFIED),
        ([10_000], 36_864, Health.CORRUPT),
        ([10_000], 40_000 - 8, Health.VERIFIED),
    ],
    ids=["page", "page in a row", "a row", "no page", "a row at a page", "last page", "two zeros"],
)
def test_pages_that_never_reached_the_disk_are_noticed(
    tmp_path: Path, shape: list[int], zeros_from: int, health: Health
) -> None:
    """Zeros from a page boundary to the end are damage; from a row's start they may be meant."""
    count = shape[0] * (shape[1] if shape[1:] else 1)
    size = 4 * count
    data = floats(*([1.0] * count))[:zeros_from] + bytes(size - zeros_from)
    path = write(tmp_path / "m.safetensors", padded({"w": entry(0, size, shape)}), data)
    report = verify(path)
    assert report.health is health
    assert ("never reached the disk" in report.reason) == (health is Health.CORRUPT)


@pytest.mark.parametrize("save", ["savez", "savez_compressed"])
def test_npz_is_scanned(tmp_path: Path, save: str) -> None:
    """Plain and compressed, either byte order, every float type."""
    numpy = pytest.importorskip("numpy")
    store: Callable[..., None] = getattr(numpy, save)
    arrays: dict[str, Any] = {
        f"{kind}{order}".replace(">", "big"): numpy.ones((3, 7), dtype=f"{order}{kind}")
        for kind in ("f8", "f4", "f2", "c8", "i4")
        for order in ("<", ">")
    }
    path = tmp_path / "weights.npz"
    store(path, **arrays, names=numpy.array(["a", "b"]))
    report = verify(path)
    assert (report.health, report.format, report.tensors) == (Health.VERIFIED, "npz", 11)
    arrays["f4big"][1, 2] = -numpy.inf
    store(path, **arrays)
    assert verify(path).reason == "weights.npz: -Inf in tensor 'f4big' (element 9)"


def test_npz_with_objects_is_not_understood(tmp_path: Path) -> None:
    """They are pickles, and those are never loaded."""
    numpy = pytest.importorskip("numpy")
    path = tmp_path / "weights.npz"
    numpy.savez(path, a=numpy.array([{}], dtype=object))
    assert verify(path).health is Health.UNVERIFIED


def test_a_damaged_npz_is_corrupt(tmp_path: Path) -> None:
    """A flipped bit in the numbers, a cut."""
    numpy = pytest.importorskip("numpy")
    path = tmp_path / "weights.npz"
    numpy.savez(path, a=numpy.ones(1000))
    data = bytearray(path.read_bytes())
    data[3000] ^= 4
    path.write_bytes(data)
    assert "checksum" in verify(path).reason
    path.write_bytes(data[:5000])
    assert verify(path).health is Health.CORRUPT
