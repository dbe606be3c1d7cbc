"""A history in one JSON file, an entry a line: `trainer_state.json` of Transformers, or a list."""

from __future__ import annotations

import codecs
import json
import re

ENTRY_CHARS = 1 << 20
"""An entry longer than this is none: the rest of the file is left."""

_START = re.compile(r'\A\s*\[|"log_history"\s*:\s*\[')
_START_CHARS = 64
_BETWEEN = re.compile(r"[\s,]*")


class HistoryDecoder:
    """Bytes in, the entries of `log_history`, or of a file that is one list, out as JSON lines.

    Memory holds one entry, however long the history. `pending_bytes` is always 0: such a file is
    read again from its head when it changes.
    """

    pending_bytes = 0
    cut_lines = 0
    damage = ""

    def __init__(self) -> None:
        self.restart(mid_line=False)

    def restart(self, *, mid_line: bool) -> None:
        """What follows is the head of a file; `mid_line`: its middle, in which nothing is read."""
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._text = ""
        self._began, self._ended = False, mid_line

    def feed(self, data: bytes) -> list[str]:
        """The entries that these bytes complete."""
        if self._ended:
            return []
        self._text += self._decoder.decode(data)
        if not self._began and not self._find_start():
            return []
        entries, at = [], 0
        while True:
            at = _end(_BETWEEN, self._text, at)
            if at == len(self._text):
                break
            if self._text[at] == "]":
                self._ended = True
                break
            try:
                entry, at = json.JSONDecoder().raw_decode(self._text, at)
            except (ValueError, RecursionError):
                self._ended = len(self._text) - at > ENTRY_CHARS
                break  # the rest of this entry is still to come
            if isinstance(entry, dict):
                entries.append(json.dumps(entry))
        self._text = "" if self._ended else self._text[at:]
        return entries

    def flush(self) -> list[str]:
        """Half an entry says nothing."""
        return []

    def _find_start(self) -> bool:
        found = _START.search(self._text)
        if found is None:
            self._text = self._text[-_START_CHARS:]
            return False
        self._began, self._text = True, self._text[found.end() :]
        return True


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    return at if found is None else found.end()
