"""Text that a worker prints -> what it says. Never raises, whatever the bytes."""

from overnight.core.formats.jsonl import read_json, read_line, read_protocol
from overnight.core.formats.reading import Loss, Placed, Reading, WorkerEvent
from overnight.core.formats.text import MAX_LINE_CHARS, read_text, significant_digits

__all__ = [
    "MAX_LINE_CHARS",
    "Loss",
    "Placed",
    "Reading",
    "WorkerEvent",
    "read_json",
    "read_line",
    "read_protocol",
    "read_text",
    "significant_digits",
]
