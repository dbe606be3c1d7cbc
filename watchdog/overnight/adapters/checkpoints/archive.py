"""Zip archives as checkpoints use them: entries read in blocks, checksums where they were made."""

from __future__ import annotations

import contextlib
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, BinaryIO, Self, cast

from overnight.adapters.checkpoints.report import DamagedError, NotUnderstoodError, quoted
from overnight.adapters.checkpoints.scan import blocks


class Archive:
    """An open zip file whose damage shows as DamagedError, with a sentence."""

    def __init__(self, source: Path | IO[bytes]) -> None:
        """Read the directory. Raises DamagedError where it is missing: it is written last."""
        try:
            self._zip = zipfile.ZipFile(source)
        except zipfile.BadZipFile as error:
            raise DamagedError("cut off: the directory at its end is missing") from error
        except (ValueError, NotImplementedError) as error:  # names, versions that cannot be
            raise DamagedError("the directory at its end is damaged") from error
        self.entries = {info.filename: info for info in self._zip.infolist()}
        if min((info.header_offset for info in self.entries.values()), default=0):
            raise NotUnderstoodError("several files in one, or something before its beginning")
        self.checksummed = any(info.CRC for info in self.entries.values())
        if not self.checksummed:
            for info in self.entries.values():
                # torch.serialization.set_crc32_options(False) writes zeros: no checksum, no damage.
                info.CRC = cast("int", None)  # what zipfile itself takes for "do not check"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._zip.close()

    @contextlib.contextmanager
    def open(self, name: str, called: str = "") -> Iterator[BinaryIO]:
        """The decompressed bytes of an entry; its checksum is compared when the end is read.

        `called` is what a message calls it, if not by its name in the archive.
        Raises, also while the caller reads, DamagedError for a wrong checksum, a bad compressed
        stream or a missing end, and NotUnderstoodError for what Python cannot decompress.
        """
        called = called or quoted(name)
        try:
            with self._zip.open(self.entries[name]) as stream:
                yield cast("BinaryIO", stream)
        except zipfile.BadZipFile as error:
            if "CRC" not in str(error):
                raise DamagedError(f"{called} is damaged ({error})") from error
            raise DamagedError(
                f"{called} does not match its checksum: bytes changed after it was written"
            ) from error
        except (zlib.error, EOFError) as error:
            raise DamagedError(f"{called} ends early or is damaged") from error
        except RuntimeError as error:  # NotImplementedError is one; encryption is another
            raise NotUnderstoodError(f"{called} cannot be read ({error})") from error

    def blocks(self, name: str, called: str = "", *, skip_bytes: int = 0) -> Iterator[bytes]:
        """All of an entry after `skip_bytes`, in blocks. Raises what `open` does."""
        with self.open(name, called) as stream:
            stream.read(skip_bytes)
            yield from blocks(stream, self.entries[name].file_size - skip_bytes)
            stream.read(1)  # so that the end has been read, and the checksum compared

    def check(self, name: str) -> None:
        """Read an entry for its checksum alone. Raises DamagedError."""
        for _ in self.blocks(name):
            pass
