"""The byte scan against torch.isfinite, on every pattern where there are few enough."""

from __future__ import annotations

import random
import struct

import pytest

from overnight.adapters.checkpoints import scan
from overnight.adapters.checkpoints.report import DamagedError

torch = pytest.importorskip("torch")

ONE_BYTE = [name for name, form in scan.FLOATS.items() if form.item_bytes == 1]


def nonfinite(data: bytes, dtype: str) -> set[int]:
    """All values that the scan calls non-finite, found one after the other."""
    form, found, start = scan.FLOATS[dtype], set(), 0
    while (at := scan.first_nonfinite(data[start * form.value_bytes :], form)) is not None:
        found.add(start + at)
        start += at + 1
    return found


def torch_nonfinite(data: bytes, dtype: str) -> set[int]:
    """The same from torch, through fp64 where a type has no isfinite of its own."""
    tensor = torch.frombuffer(bytearray(data), dtype=getattr(torch, dtype)).double()
    return set(torch.nonzero(~torch.isfinite(tensor)).flatten().tolist())


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_every_two_byte_pattern_agrees_with_torch(dtype: str) -> None:
    """All 65,536 patterns of the half-precision types."""
    data = b"".join(struct.pack("<H", bits) for bits in range(1 << 16))
    assert nonfinite(data, dtype) == torch_nonfinite(data, dtype)


@pytest.mark.parametrize("dtype", ONE_BYTE)
def test_every_one_byte_pattern_agrees_with_torch(dtype: str) -> None:
    """All 256 patterns of each fp8 type, those without infinity included."""
    data = bytes(range(256))
    assert nonfinite(data, dtype) == torch_nonfinite(data, dtype)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_wide_types_agree_with_torch_on_extreme_patterns(dtype: str, seed: int) -> None:
    """Random bytes whose top bytes are drawn from the neighbourhood of infinity."""
    rng, size = random.Random(seed), scan.FLOATS[dtype].value_bytes
    edge = (0x00, 0x7E, 0x7F, 0x80, 0xEF, 0xF0, 0xFE, 0xFF)
    values = [
        rng.choice((bytes(size - 2), rng.randbytes(size - 2)))
        + bytes((rng.choice(edge), rng.choice(edge)))
        for _ in range(2000)
    ]
    data = b"".join(values)
    assert nonfinite(data, dtype) == torch_nonfinite(data, dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "float8_e5m2"])
@pytest.mark.parametrize(
    ("value", "kind"), [(float("nan"), "NaN"), (float("inf"), "Inf"), (float("-inf"), "-Inf")]
)
def test_says_which_kind_it_is(dtype: str, value: float, kind: str) -> None:
    """NaN, Inf and -Inf are told apart in each type that has them."""
    raw = bytes(torch.tensor([value], dtype=getattr(torch, dtype)).view(torch.uint8).tolist())
    assert scan.kind_of(raw, scan.FLOATS[dtype]) == kind


def test_big_endian_bytes_are_read_from_the_other_end() -> None:
    """Archives written on s390x say so, and their top byte comes first."""
    form = scan.FloatFormat(4, b"\x7f\xff", 0x80, (1 << 23) - 1, big_endian=True)
    data = struct.pack(">4f", 1.0, -3e38, float("-inf"), float("nan"))
    assert scan.first_nonfinite(data, form) == 2
    assert scan.kind_of(data[8:12], form) == "-Inf"


@pytest.mark.parametrize("bad", [0, 7, 8, 15, 16, 31])
def test_finds_the_element_across_blocks_and_spans(bad: int) -> None:
    """The element counts from the start of the run, whichever block or span it is in."""
    values = [1.0] * 32
    values[bad] = float("nan")
    data = struct.pack("<32f", *values)
    pieces = [data[at : at + 32] for at in range(0, len(data), 32)]
    form = scan.FLOATS["float32"]
    assert scan.first_hit(iter(pieces), form, [(0, 32)]) == scan.Hit(bad, "NaN")
    assert scan.first_hit(iter(pieces), form, [(0, bad), (bad + 1, 32)]) is None
    assert scan.first_hit(iter(pieces), form, [(bad, bad + 1)]) == scan.Hit(bad, "NaN")


def test_an_imaginary_part_counts_for_its_element() -> None:
    """A complex number is one element of two values."""
    data = struct.pack("<6f", 1, 2, 3, float("inf"), 5, 6)
    assert scan.first_hit(iter([data]), scan.FLOATS["complex64"], [(0, 3)]) == scan.Hit(1, "Inf")


def test_a_stream_that_ends_early_is_damage() -> None:
    """Blocks promise all the bytes they were asked for."""

    class Short:
        def read(self, count: int) -> bytes:
            return b""

    with pytest.raises(DamagedError, match="10 bytes too early"):
        list(scan.blocks(Short(), 10))
