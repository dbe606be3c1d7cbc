"""Which decoder turns a file's bytes into lines: text, TensorBoard events, trainer_state.json."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from overnight.core.formats.event_file import EventDecoder
from overnight.core.formats.history import HistoryDecoder
from overnight.core.lines import Decoder, LineSplitter

Source = Literal["file", "tensorboard", "trainer_state"]

DECODERS: dict[Source, Callable[[], Decoder]] = {
    "file": LineSplitter,
    "tensorboard": EventDecoder,
    "trainer_state": HistoryDecoder,
}
"""`metrics.source` -> the decoder of such files."""

CHANGES: dict[Source, Literal["appended", "whole", "rewritten"]] = {
    "file": "appended",
    "tensorboard": "whole",
    "trainer_state": "rewritten",
}
"""`metrics.source` -> how such files change (adapters/tail/script_files.py)."""


def decoder_of(name: str, head: bytes) -> Decoder:
    """The decoder for a file of this name that begins so."""
    if "tfevents" in name:
        return EventDecoder()
    history = b'"log_history"' in head or name.startswith("trainer_state")
    if name.endswith(".json") and (history or head.lstrip()[:1] == b"["):
        return HistoryDecoder()
    return LineSplitter()
