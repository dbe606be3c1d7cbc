"""Tensors as views of stored numbers, whatever the file format; finds the tensor that went bad.

A storage is a run of elements in a file. Tensors are windows on it: several may share it (tied
weights), and it may hold elements that no tensor shows (a saved slice drags its whole storage
along, uninitialised memory included), so only what a tensor can reach is judged.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from math import prod

from overnight.adapters.checkpoints.report import (
    DamagedError,
    NotUnderstoodError,
    Tally,
    quoted,
)
from overnight.adapters.checkpoints.scan import (
    FLOATS,
    FloatFormat,
    Hit,
    always_finite,
    first_hit,
)

_RECORD_NAME = re.compile(r"(^|\.)(best_\w+|kth_value|(min|max)_val)$")
"""Single numbers that begin at infinity by design: the best score that Lightning's callbacks
remember, the observed range of a quantisation observer. They are records, not state."""

_MASK_MIN_ROWS = 3
"""A smaller triangle of -inf could be an accident."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A window on a storage; offset and strides are in elements."""

    name: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def numel(self) -> int:
        """How many elements the tensor has."""
        return prod(self.shape)

    @property
    def span(self) -> tuple[int, int]:
        """First element and the one after the last that the tensor can reach in its storage."""
        if not self.numel:
            return self.offset, self.offset
        reach = sum((n - 1) * stride for n, stride in zip(self.shape, self.strides, strict=True))
        return self.offset, self.offset + reach + 1

    @property
    def contiguous(self) -> bool:
        """Whether elements lie in the order of their index (dimensions of size 1 do not count)."""
        expected = 1
        for n, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if n != 1 and stride != expected:
                return False
            expected *= n
        return True

    def index_of(self, element: int) -> int:
        """The flat index, as `tensor.flatten()` counts, of an element of the storage."""
        left, coordinates = element - self.offset, [0] * len(self.shape)
        for axis in sorted(range(len(self.shape)), key=lambda axis: -self.strides[axis]):
            if self.shape[axis] > 1 and self.strides[axis]:
                coordinates[axis], left = divmod(left, self.strides[axis])
        flat = 0
        for n, coordinate in zip(self.shape, coordinates, strict=True):
            flat = flat * n + coordinate
        return flat


def plain(name: str, shape: tuple[int, ...]) -> Tensor:
    """A contiguous tensor that has its storage for itself."""
    return Tensor(name, 0, shape, tuple(prod(shape[axis + 1 :]) for axis in range(len(shape))))


@dataclass(slots=True)
class Storage:
    """A run of `numel` elements of one type, and the tensors that show it.

    `label` names it in a message when no tensor does; `byte_order` is "little" or "big".
    """

    label: str
    dtype: str
    numel: int
    tensors: list[Tensor] = field(default_factory=list)
    byte_order: str = "little"

    @property
    def called(self) -> str:
        """What a message calls it: its first tensor, else its own label."""
        return f"tensor {quoted(self.tensors[0].name)}" if self.tensors else self.label

    def check_bounds(self) -> None:
        """Raises DamagedError for a tensor that reaches outside its storage."""
        for tensor in self.tensors:
            start, stop = tensor.span
            smallest = min((*tensor.shape, *tensor.strides), default=0)
            if start < 0 or stop > self.numel or smallest < 0:
                raise DamagedError(
                    f"tensor {quoted(tensor.name)} needs {stop:,} elements,"
                    f" its data holds {self.numel:,}"
                )

    def spans(self) -> list[tuple[int, int]]:
        """What to scan, sorted and disjoint; all of it when no tensor is known."""
        if not self.tensors:
            return [(0, self.numel)] if self.numel else []
        merged: list[tuple[int, int]] = []
        for start, stop in sorted(tensor.span for tensor in self.tensors):
            if merged and start <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
            elif start < stop:
                merged.append((start, stop))
        return merged


OpenData = Callable[[], Iterator[bytes]]
"""Gives the bytes of a storage in blocks, from the beginning each time it is called."""


def check_finite(storage: Storage, open_data: OpenData, tally: Tally) -> None:
    """Read all of a storage; raises DamagedError naming the first tensor that is not finite.

    Integer types are read (a checksum may hang on it) but not judged; a type that is not known
    raises NotUnderstoodError.
    """
    storage.check_bounds()
    form = _form_of(storage)
    if form is None:
        for _ in open_data():
            pass
        if not always_finite(storage.dtype):
            raise NotUnderstoodError(f"{storage.called} is of the unknown type {storage.dtype}")
        return
    tally.bytes_scanned += storage.numel * form.item_bytes
    suspects = Storage(storage.label, storage.dtype, storage.numel, list(storage.tensors))
    while hit := first_hit(open_data(), form, suspects.spans()):
        owners = [t for t in suspects.tensors if t.span[0] <= hit.element < t.span[1]]
        if not owners or not all(_by_design(t, hit, form, open_data) for t in owners):
            raise DamagedError(_complaint(storage, owners, hit))
        tally.note(f"{quoted(owners[0].name)} holds {hit.kind} by design")
        suspects.tensors = [t for t in suspects.tensors if t not in owners]
        if not suspects.tensors:
            return


def _form_of(storage: Storage) -> FloatFormat | None:
    form = FLOATS.get(storage.dtype)
    if form is not None and storage.byte_order == "big":
        return replace(form, big_endian=True)
    return form


def _complaint(storage: Storage, owners: list[Tensor], hit: Hit) -> str:
    if not owners:
        return f"{hit.kind} in {storage.label} (element {hit.element})"
    tensor = owners[0]
    return f"{hit.kind} in tensor {quoted(tensor.name)} (element {tensor.index_of(hit.element)})"


def _by_design(tensor: Tensor, hit: Hit, form: FloatFormat, open_data: OpenData) -> bool:
    """Whether a working training writes this infinity itself. NaN never is."""
    if hit.kind == "NaN":
        return False
    if tensor.numel == 1 and _RECORD_NAME.search(tensor.name):
        return True
    return hit.kind == "-Inf" and form.parts == 1 and _is_causal_mask(tensor, form, open_data)


def _is_causal_mask(tensor: Tensor, form: FloatFormat, open_data: OpenData) -> bool:
    """Whether the tensor is 0 up to the diagonal and -inf right of it, in each square.

    Hand-written attention often registers that mask as a buffer, and so it is in every
    checkpoint; it must not make all of them corrupt.
    """
    side = tensor.shape[-1] if tensor.shape else 0
    if side < _MASK_MIN_ROWS or tensor.shape[-2:] != (side, side) or not tensor.contiguous:
        return False
    size = form.value_bytes
    sign_and_exponent = ((1 << 8 * size) - 1) & ~form.fraction
    minus_inf = sign_and_exponent.to_bytes(size, "big" if form.big_endian else "little")
    rows = _rows(open_data(), tensor.offset * size, side * size, tensor.numel // side)
    return all(
        row == bytes(size * (at % side + 1)) + minus_inf * (side - 1 - at % side)
        for at, row in enumerate(rows)
    )


def _rows(data: Iterable[bytes], skip: int, row_bytes: int, count: int) -> Iterator[bytes]:
    """`count` rows of the data after `skip` bytes."""
    pending = bytearray()
    for block in data:
        pending += block[skip:]
        skip = max(0, skip - len(block))
        at = 0
        while count and at + row_bytes <= len(pending):
            yield bytes(pending[at : at + row_bytes])
            at, count = at + row_bytes, count - 1
        del pending[:at]
        if not count:
            return
