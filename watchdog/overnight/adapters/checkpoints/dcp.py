"""torch.distributed.checkpoint (FSDP, torchtitan): `.metadata` and `__RANK_N.distcp` files.

A `.distcp` file is a row of complete torch.save archives, one for each piece of a tensor;
`.metadata`, a pickle that is written last, says where each begins.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from overnight.adapters.checkpoints import torch_zip
from overnight.adapters.checkpoints.archive import Archive
from overnight.adapters.checkpoints.inert import Inert, load
from overnight.adapters.checkpoints.report import (
    DamagedError,
    NotUnderstoodError,
    Tally,
    human_bytes,
    quoted,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer  # collections.abc has it since Python 3.12

METADATA = ".metadata"
SUFFIX = ".distcp"


@dataclass(frozen=True, slots=True)
class Piece:
    """One archive inside a `.distcp` file: a tensor's part, or a pickled value."""

    name: str
    file: str
    offset: int
    length: int


class _Window(io.RawIOBase):
    """A part of a file that looks like a file of its own."""

    def __init__(self, path: Path, offset: int, length: int) -> None:
        self._file = path.open("rb")
        self._offset, self._length, self._at = offset, length, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._length}[whence]
        if start + offset < 0:
            raise OSError("seek before the start")  # what zipfile expects of a real file
        self._at = start + offset
        return self._at

    def readinto(self, buffer: Buffer, /) -> int:
        room = memoryview(buffer).cast("B")[: max(0, self._length - self._at)]
        self._file.seek(self._offset + self._at)
        count = self._file.readinto(room)
        self._at += count
        return count

    def close(self) -> None:
        self._file.close()
        super().close()


def check_shards(metadata: Path, tally: Tally) -> None:
    """Verify all pieces that `metadata` lists. Raises DamagedError, NotUnderstoodError, OSError."""
    size = metadata.stat().st_size
    if size > torch_zip.MAX_PICKLE_BYTES:
        raise NotUnderstoodError(f"its metadata has {human_bytes(size)}")
    with metadata.open("rb") as stream:
        pieces = sorted(
            parse_metadata(load(stream, METADATA)), key=lambda piece: (piece.file, piece.offset)
        )
    for piece in pieces:
        path = metadata.parent / piece.file
        if Path(piece.file).name != piece.file or not path.is_file():
            raise DamagedError(f"{quoted(piece.file)} is missing ({METADATA} names it)")
        if piece.offset + piece.length > path.stat().st_size:
            raise DamagedError(f"{piece.file} is cut off before tensor {quoted(piece.name)}")
    for piece in pieces:
        _check_piece(metadata.parent / piece.file, piece, tally)


def parse_metadata(root: Any) -> Iterator[Piece]:
    """The pieces in an unpickled (inert) Metadata. Raises NotUnderstoodError."""
    for index, info in _state(root).get("storage_data", {}).items():
        where = _state(info)
        match where:
            case {"relative_path": str(file), "offset": int(offset), "length": int(length)}:
                if where.get("transform_descriptors"):
                    raise NotUnderstoodError("its tensors are compressed")
                yield Piece(str(_state(index).get("fqn", "?")), file, offset, length)
            case _:
                raise NotUnderstoodError(f"{METADATA} is of an unknown layout")


def _state(value: Any) -> dict[Any, Any]:
    """The fields of a pickled dataclass."""
    if isinstance(value, Inert) and isinstance(value.state, dict):
        return value.state
    raise NotUnderstoodError(f"{METADATA} is of an unknown layout")


def _check_piece(path: Path, piece: Piece, tally: Tally) -> None:
    window = _Window(path, piece.offset, piece.length)
    try:
        with window, Archive(io.BufferedReader(window)) as archive:
            torch_zip.check(archive, tally, piece.name)
    except DamagedError as error:
        raise DamagedError(f"{path.name}: {error}") from error
