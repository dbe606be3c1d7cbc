"""Bytes into whole lines, in bounded memory, however a program ends its lines."""

from __future__ import annotations

from typing import Protocol

LINE_BYTES = 1 << 16
"""What is kept of one line; the rest of a longer one is read and forgotten."""


class Decoder(Protocol):
    """Bytes in, whole lines out, in bounded memory."""

    @property
    def pending_bytes(self) -> int:
        """How many bytes have come that no line holds yet."""

    @property
    def cut_lines(self) -> int:
        """How many lines were too long, so that only their head was kept."""

    @property
    def damage(self) -> str:
        """Why nothing more can be read; "" while all is well."""

    def restart(self, *, mid_line: bool) -> None:
        """What follows does not continue what came; `mid_line`: it begins inside a line."""

    def feed(self, data: bytes) -> list[str]:
        """The lines that these bytes complete."""

    def flush(self) -> list[str]:
        """What is left, at the end of a file that will not grow."""


class LineSplitter:
    """Bytes in, whole lines out; ends a line at LF, CR LF or CR. Memory stays below one line.

    `pending_bytes` counts what has come since the end of the last whole line,
    `cut_lines` the lines of which only the head was kept.
    """

    damage = ""

    def __init__(self) -> None:
        self._partial = b""
        self._after_cr = False
        self._mid_line = False
        self._overlong = False
        self.pending_bytes = 0
        self.cut_lines = 0

    def restart(self, *, mid_line: bool) -> None:
        """What follows does not continue what came; `mid_line`: it begins inside a line."""
        self._partial, self._after_cr, self._mid_line = b"", False, mid_line
        self._overlong = False
        self.pending_bytes = 0

    def feed(self, data: bytes) -> list[str]:
        """The lines that these bytes complete."""
        if self._after_cr and data:
            data = data.removeprefix(b"\n")
            self._after_cr = False
        if data:
            self._after_cr = data.endswith(b"\r")
        last_end = max(data.rfind(b"\n"), data.rfind(b"\r"))
        if last_end >= 0:
            self.pending_bytes = 0
        self.pending_bytes += len(data) - last_end - 1
        parts = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        first_is_long = self._overlong or len(self._partial) + len(parts[0]) > LINE_BYTES
        parts[0] = self._partial + parts[0][: max(0, LINE_BYTES - len(self._partial))]
        last = parts.pop()
        self._overlong = len(last) > LINE_BYTES if parts else first_is_long
        if parts:
            self.cut_lines += first_is_long + sum(len(part) > LINE_BYTES for part in parts[1:])
        self._partial = last[:LINE_BYTES]
        if self._mid_line and parts:
            self._mid_line = False
            del parts[0]  # half a line can read like a record
        return [part[:LINE_BYTES].decode(errors="replace") for part in parts]

    def flush(self) -> list[str]:
        """The unfinished last line, at the end of a file that will not grow."""
        partial, self._partial, self.pending_bytes = self._partial, b"", 0
        if self._mid_line:
            return []
        return [partial.decode(errors="replace")] if partial else []
