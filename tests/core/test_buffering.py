"""Block-buffered output is told once, and nothing else is taken for it."""

from __future__ import annotations

from overnight.core.buffering import BlockBuffering


def advice(*arrivals: tuple[float, int]) -> list[bool]:
    """Whether each arrival (at, bytes) brought the advice."""
    watch = BlockBuffering()
    return [watch.observe(at=at, read_bytes=size) is not None for at, size in arrivals]


def test_blocks_after_silences_are_told_once() -> None:
    """8 KiB every minute is a buffer; the advice comes at the third silence and never again."""
    arrivals = [(60.0 * n, 8192) for n in range(6)]
    assert advice(*arrivals) == [False, False, False, True, False, False]


def test_lines_are_no_blocks() -> None:
    """One arrival of another size starts the count again."""
    sizes = [8192, 8192, 70, 8192, 8192, 70, 4096]
    assert not any(advice(*[(60.0 * n, size) for n, size in enumerate(sizes)]))


def test_much_output_at_once_is_no_silence() -> None:
    """A flood is read in blocks too."""
    assert not any(advice(*[(0.01 * n, 262_144) for n in range(50)]))
