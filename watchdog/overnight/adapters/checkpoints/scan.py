"""Finds NaN and infinity in raw bytes, without numpy.

A float is non-finite when all its exponent bits are ones, and those bits sit in its most
significant byte (and the top of the next one). So the scan slices out that byte of every value,
`block[3::4]` for fp32, and lets memchr look for the few values that can mean trouble; finite
weights hold none of them, or next to none, and the exact test runs on those alone. It reads
several GiB/s on one core; a block is small enough to stay in the CPU's cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from overnight.adapters.checkpoints.report import DamagedError

BLOCK_BYTES = 1 << 20
"""How much is read at a time: a multiple of every value's size; 4 MiB was no faster."""


@dataclass(frozen=True, slots=True)
class FloatFormat:
    """How a floating-point type spells NaN and infinity.

    A value is non-finite when its most significant byte is in `tops` and the byte below it is at
    least `next_min`. It is infinite when it is non-finite and its `fraction` bits are all zero;
    `fraction` 0 marks types without infinity. `parts` is 2 for complex numbers.
    """

    value_bytes: int
    tops: bytes
    next_min: int = 0
    fraction: int = 0
    parts: int = 1
    big_endian: bool = False

    @property
    def item_bytes(self) -> int:
        """Bytes of one tensor element."""
        return self.value_bytes * self.parts


_SIGNED_ONES = bytes((0x7F, 0xFF))
_FIVE_BITS = bytes((*range(0x7C, 0x80), *range(0xFC, 0x100)))

_F64 = FloatFormat(8, _SIGNED_ONES, next_min=0xF0, fraction=(1 << 52) - 1)
_F32 = FloatFormat(4, _SIGNED_ONES, next_min=0x80, fraction=(1 << 23) - 1)
_F16 = FloatFormat(2, _FIVE_BITS, fraction=(1 << 10) - 1)

FLOATS: Mapping[str, FloatFormat] = {
    "float64": _F64,
    "float32": _F32,
    "float16": _F16,
    "bfloat16": FloatFormat(2, _SIGNED_ONES, next_min=0x80, fraction=(1 << 7) - 1),
    "complex128": replace(_F64, parts=2),
    "complex64": replace(_F32, parts=2),
    "complex32": replace(_F16, parts=2),
    "float8_e5m2": FloatFormat(1, _FIVE_BITS, fraction=0b11),
    # "fn": finite, the all-ones pattern is the only NaN; "uz": NaN sits where -0 would be.
    "float8_e4m3fn": FloatFormat(1, _SIGNED_ONES),
    "float8_e4m3fnuz": FloatFormat(1, b"\x80"),
    "float8_e5m2fnuz": FloatFormat(1, b"\x80"),
    "float8_e8m0fnu": FloatFormat(1, b"\xff"),
}
"""Every floating type that can be non-finite, by torch's name; fp4 and fp6 cannot."""

INTEGER_BYTES: Mapping[str, int] = {
    **dict.fromkeys(("uint8", "int8", "bool", "qint8", "quint8", "float4_e2m1fn_x2"), 1),
    **dict.fromkeys(("int16", "uint16"), 2),
    **dict.fromkeys(("int32", "uint32", "qint32"), 4),
    **dict.fromkeys(("int64", "uint64"), 8),
}
"""Bytes of one element of the types that are always finite."""

_PACKED_INTEGERS = ("int", "uint", "bits", "qint", "quint")


def item_bytes(dtype: str) -> int | None:
    """Bytes of one element, or None for a type we do not know."""
    known = FLOATS.get(dtype)
    return known.item_bytes if known else INTEGER_BYTES.get(dtype)


def always_finite(dtype: str) -> bool:
    """Whether values of this type cannot be NaN; False for a floating or an unheard-of type."""
    return dtype in INTEGER_BYTES or dtype.startswith(_PACKED_INTEGERS)


@dataclass(frozen=True, slots=True)
class Hit:
    """The first non-finite value of a run of bytes.

    `element` counts tensor elements from the start of the run; `kind` is NaN, Inf or -Inf.
    """

    element: int
    kind: str


class Readable(Protocol):
    """The one thing asked of a stream: bytes, all of those wanted unless it ends."""

    def read(self, count: int, /) -> bytes:
        """Up to `count` bytes; empty at the end."""
        ...


def blocks(stream: Readable, size_bytes: int) -> Iterator[bytes]:
    """`size_bytes` of the stream in blocks. Raises DamagedError if it ends before."""
    left = size_bytes
    while left:
        block = stream.read(min(BLOCK_BYTES, left))
        if not block:
            raise DamagedError(f"the file ends {left:,} bytes too early")
        left -= len(block)
        yield block


def first_nonfinite(block: bytes, form: FloatFormat) -> int | None:
    """The index of the first value in `block` (whole values) that is NaN or infinite, or None."""
    size = form.value_bytes
    top, below = (0, 1) if form.big_endian else (size - 1, size - 2)
    tops = block if size == 1 else block[top::size]
    first = len(tops)
    for suspicious in form.tops:
        at = tops.find(suspicious, 0, first)
        while at != -1 and form.next_min and block[at * size + below] < form.next_min:
            at = tops.find(suspicious, at + 1, first)
        if at != -1:
            first = at
    return first if first < len(tops) else None


def kind_of(raw: bytes, form: FloatFormat) -> str:
    """NaN, Inf or -Inf for the bytes of one non-finite value."""
    bits = int.from_bytes(raw, "big" if form.big_endian else "little")
    if not form.fraction or bits & form.fraction:
        return "NaN"
    return "-Inf" if bits >> (8 * form.value_bytes - 1) else "Inf"


def first_hit(
    data: Iterator[bytes], form: FloatFormat, spans: Sequence[tuple[int, int]]
) -> Hit | None:
    """The first non-finite element inside `spans` (sorted, disjoint, in elements).

    Always reads `data` to its end, so that a checksum over it is complete and speaks first: a
    flipped bit that happens to make a NaN is a broken disk, not a broken training.
    """
    hit: Hit | None = None
    base = 0
    todo = iter(spans)
    start, stop = next(todo, (0, 0))
    for block in data:
        end = base + len(block) // form.item_bytes
        while hit is None and start < min(stop, end):
            low, high = max(start, base), min(stop, end)
            hit = _in_piece(block, form, base, (low, high))
            if stop > end:
                break
            start, stop = next(todo, (0, 0))
        base = end
    return hit


def _in_piece(block: bytes, form: FloatFormat, base: int, piece: tuple[int, int]) -> Hit | None:
    """The first hit among the elements `piece` of a block that begins at element `base`."""
    low, high = ((edge - base) * form.item_bytes for edge in piece)
    part = block[low:high]  # no copy when it is the whole block
    at = first_nonfinite(part, form)
    if at is None:
        return None
    raw = part[at * form.value_bytes : (at + 1) * form.value_bytes]
    return Hit(piece[0] + at // form.parts, kind_of(raw, form))
