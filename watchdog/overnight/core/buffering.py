"""Output that arrives in whole blocks after long silences: the program buffers it.

Python is told not to (PYTHONUNBUFFERED); C programs and pipes are not. Whoever waits for blocks of
4 or 8 KiB sees a NaN hours late, so it is worth one line of advice.
"""

from __future__ import annotations

BLOCK_BYTES = 4096
SILENCE_S = 2.0
"""Blocks in quick succession are merely much output."""

SEEN = 3
"""Three arrivals of exact blocks are no coincidence (each is one in 4096)."""

ADVICE = (
    "the worker's output arrives in whole blocks, so it is buffered and seen late:"
    " start it with stdbuf -oL, or flush after each line"
)


class BlockBuffering:
    """Watches the sizes and times of what is read from worker.log."""

    def __init__(self) -> None:
        self._last_at: float | None = None
        self._blocks = 0
        self._told = False

    def observe(self, *, at: float, read_bytes: int) -> str | None:
        """The advice, once, when it is certain. `read_bytes`: what one read found new."""
        silence = at - self._last_at if self._last_at is not None else 0.0
        self._last_at = at
        if read_bytes == 0 or read_bytes % BLOCK_BYTES:
            self._blocks = 0
        elif silence >= SILENCE_S:
            self._blocks += 1
        if self._blocks < SEEN or self._told:
            return None
        self._told = True
        return ADVICE
