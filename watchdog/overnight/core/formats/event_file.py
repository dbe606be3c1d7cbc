"""TensorBoard event files: their scalars as JSON lines, one a step.

An event file is a row of records: length (u64), its check sum (u32), the record, its check sum
(u32), all little-endian; the check sums are CRC-32C, rotated and shifted. A record is a
protocol-buffer Event: 2 = step, 5 = summary, whose values (1) carry a tag (1) and a number:
`simple_value` (2, float), as PyTorch writes it, or a `tensor` (8) of one float, as TensorFlow 2
does. Sources: tensorflow/core/lib/io/record_writer.h, lib/hash/crc32c.h, core/util/event.proto,
core/framework/summary.proto and tensor.proto.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator

RECORD_BYTES = 1 << 20
"""A longer record is a picture or a graph: it is passed over, not kept."""

CHECKED_BYTES = 4096
"""The check sums of longer records are not computed: scalars are short."""

_HEAD, _CHECK_BYTES = struct.Struct("<QI"), 4
_FLOAT, _DOUBLE = 1, 2
_SIZES = {1: 8, 5: 4}


class EventDecoder:
    """Bytes in, a JSON line out for each step: `{"train/loss": 2.3, "step": 100}`.

    The scalars of a step are written one after the other; they are given as one line when the
    next step begins or when there is nothing more to read for now. Where a check sum is wrong
    nobody knows how the file goes on: reading ends, and `damage` says so.
    """

    cut_lines = 0

    def __init__(self) -> None:
        self.restart(mid_line=False)

    def restart(self, *, mid_line: bool) -> None:
        """What follows is the head of a file; `mid_line`: its middle, in which nothing is read."""
        self._data = b""
        self._skip = 0
        self._offset = 0
        self._ended = mid_line
        self.damage = ""
        self._step: int | None = None
        self._scalars: dict[str, float] = {}

    @property
    def pending_bytes(self) -> int:
        """How much of an unfinished record has come."""
        return len(self._data)

    def feed(self, data: bytes) -> list[str]:
        """The steps that these bytes complete."""
        if self._ended:
            return []
        lines = []
        for record in self._records(data):
            step, scalars = _event(record)
            if not scalars:
                continue
            if step != self._step:
                lines += self._line()
                self._step = step
            self._scalars.update(scalars)
        return lines + self._line()

    def flush(self) -> list[str]:
        """Half a record says nothing."""
        return []

    def _line(self) -> list[str]:
        scalars, self._scalars = self._scalars, {}
        return [json.dumps({**scalars, "step": self._step})] if scalars else []

    def _records(self, data: bytes) -> Iterator[bytes]:
        skipped = min(self._skip, len(data))
        self._skip -= skipped
        self._offset += skipped
        self._data += data[skipped:]
        at = 0
        while len(self._data) - at >= _HEAD.size:
            length, check = _HEAD.unpack_from(self._data, at)
            begin, end = at + _HEAD.size, at + _HEAD.size + length
            if check != check_sum(self._data[at : at + 8]):
                return self._end(at)
            if length > RECORD_BYTES:
                at = min(end + _CHECK_BYTES, len(self._data))
                self._skip = end + _CHECK_BYTES - at
            elif end + _CHECK_BYTES > len(self._data):
                break
            else:
                record, check = self._data[begin:end], self._data[end : end + _CHECK_BYTES]
                if length <= CHECKED_BYTES and check != check_sum(record).to_bytes(4, "little"):
                    return self._end(at)
                yield record
                at = end + _CHECK_BYTES
        self._data = self._data[at:]
        self._offset += at

    def _end(self, at: int) -> None:
        self.damage = f"damaged at byte {self._offset + at:,}; nothing behind it is read"
        self._ended, self._data = True, b""


def _crc_table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        crc = byte
        for _bit in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    return tuple(table)


_CRC_TABLE = _crc_table()


def check_sum(data: bytes) -> int:
    """CRC-32C (Castagnoli), masked as in event files."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC_TABLE[(crc ^ byte) & 255] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _event(record: bytes) -> tuple[int, dict[str, float]]:
    """The step of an event and its scalars; none for what is no event."""
    step = 0
    scalars: dict[str, float] = {}
    try:
        for field, value in _fields(record):
            if field == 2 and isinstance(value, int):
                step = value if value < 1 << 63 else value - (1 << 64)
            elif field == 5 and isinstance(value, bytes):
                scalars.update(_scalars(value))
    except (IndexError, struct.error):
        return step, {}
    return step, scalars


def _scalars(summary: bytes) -> Iterator[tuple[str, float]]:
    for field, value in _fields(summary):
        if field != 1 or not isinstance(value, bytes):
            continue
        tag, number = "", None
        for inner, content in _fields(value):
            if inner == 1 and isinstance(content, bytes):
                tag = content.decode(errors="replace")
            elif inner == 2 and isinstance(content, bytes) and len(content) == 4:
                number = _unpacked("<f", content)
            elif inner == 8 and isinstance(content, bytes):
                number = _tensor(content)
        if tag and number is not None:
            yield tag, number


def _tensor(content: bytes) -> float | None:
    """The value of a tensor that holds a single float or double."""
    kind, raw = 0, b""
    for field, value in _fields(content):
        if field == 1 and isinstance(value, int):
            kind = value
        elif field in (4, 5, 6) and isinstance(value, bytes):
            raw = value
    layout = {_FLOAT: "<f", _DOUBLE: "<d"}.get(kind)
    return _unpacked(layout, raw) if layout and len(raw) == struct.calcsize(layout) else None


def _unpacked(layout: str, raw: bytes) -> float:
    return float(struct.unpack(layout, raw)[0])


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a protocol-buffer message. Raises IndexError where it is cut or none."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(message, at)
            yield key >> 3, value
            continue
        if kind == 2:
            size, at = _varint(message, at)
        else:
            size = _SIZES.get(kind, len(message) + 1)
        if at + size > len(message):
            raise IndexError(at)
        yield key >> 3, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = message[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise IndexError(at)
