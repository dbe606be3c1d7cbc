"""The tail: whole lines, at once, none lost, in bounded memory, and an end that drains."""

from __future__ import annotations

import itertools
import os
import re
import threading
import time
from pathlib import Path

import psutil
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from overnight.adapters.tail.attempt import AttemptTails
from overnight.adapters.tail.echo import Echo
from overnight.adapters.tail.follow import READ_BYTES
from overnight.adapters.tail.lines import LAG_BYTES, Tail
from overnight.core.events import Drained, LogChunk
from overnight.core.lines import LINE_BYTES, LineSplitter
from reports import Reports

PIECES = [b"\n", b"\r\n", b"\r", b"\0", b"\xff", b"\xc3\xa9", b"loss", b"1.5", b" ", b"x" * 9000]


def reference(data: bytes) -> list[str]:
    """What the lines are when everything is there at once."""
    lines = re.split(rb"\r\n|\n|\r", data)
    if not lines[-1]:
        lines.pop()
    return [line[:LINE_BYTES].decode(errors="replace") for line in lines]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=40).map(b"".join), st.data())
@example(b"a\r\nb\r\n", None)
def test_lines_do_not_depend_on_how_the_bytes_arrive(data: bytes, draw: st.DataObject) -> None:
    """Split anywhere, also between CR and LF or inside a character, and with empty reads."""
    cuts = st.lists(st.integers(0, len(data)), max_size=8)
    places = [0, *sorted(draw.draw(cuts) if draw else range(len(data))), len(data)]
    splitter = LineSplitter()
    lines = []
    for begin, end in itertools.pairwise(places):
        lines += splitter.feed(data[begin:end])
        assert splitter.pending_bytes == len(re.split(rb"[\r\n]", data[:end])[-1])
    assert lines + splitter.flush() == reference(data)
    assert splitter.flush() == []


def test_a_long_line_is_cut_and_the_next_is_whole() -> None:
    """1 MiB without a line end costs 64 KiB and one line."""
    splitter = LineSplitter()
    for _ in range(16):
        assert splitter.feed(b"x" * (1 << 16)) == []
    assert splitter.feed(b"y\nnext\n") == ["x" * LINE_BYTES, "next"]
    assert splitter.cut_lines == 1
    splitter.feed(b"x" * LINE_BYTES + b"\n" + b"x" * (LINE_BYTES + 1) + b"\nz\n")
    assert splitter.cut_lines == 2


def test_half_a_line_after_a_jump_is_dropped() -> None:
    """The end of one number can read like another."""
    splitter = LineSplitter()
    assert splitter.feed(b"step 1") == []
    splitter.restart(mid_line=True)
    assert splitter.feed(b"00 loss 3") == []
    assert splitter.feed(b".5\nstep 200 loss 3.4\n") == ["step 200 loss 3.4"]
    splitter.restart(mid_line=True)
    splitter.feed(b"tail of a line")
    assert splitter.flush() == []


class Following:
    """A tail of `path` with its chunks and its end."""

    def __init__(
        self, path: Path, source: str = "log", *, block: threading.Semaphore | None = None
    ):
        self.chunks, self.ends = Reports(), Reports()
        self.path, self.blocked = path, threading.Event()

        def report(chunk: LogChunk) -> None:
            if block is not None:
                self.blocked.set()
                block.acquire()
            self.chunks.put(chunk)

        self.tail = Tail(
            path,
            attempt=3,
            source=source,  # type: ignore[arg-type]
            report=report,
            drained=lambda: self.ends.put("drained"),
            clock=lambda: 7.0,
        )

    def append(self, data: bytes) -> None:
        """What the worker would write."""
        with self.path.open("ab") as out:
            out.write(data)

    def end(self) -> list[str]:
        """Finish, and all lines that were not taken yet."""
        self.tail.finish()
        self.ends.next()
        return [line for chunk in self.chunks.rest() for line in chunk.lines]


def test_a_file_that_appears_later_is_read_from_its_first_line(tmp_path: Path) -> None:
    """Lines are numbered from 1; the offset is that of the last line's end."""
    following = Following(tmp_path / "log")
    following.append(b"a\nb\nhal")
    assert following.chunks.next() == LogChunk(7.0, 3, "log", ("a", "b"), 1, 4, read_bytes=7)
    following.append(b"f\n")
    assert following.chunks.next() == LogChunk(7.0, 3, "log", ("half",), 3, 9, read_bytes=2)
    assert following.end() == []


def test_a_file_that_is_renamed_into_place_is_read(tmp_path: Path) -> None:
    """The metrics file may be made that way."""
    following = Following(tmp_path / "metrics.jsonl", "metrics")
    (tmp_path / "new").write_text('{"step": 1}\n')
    (tmp_path / "new").rename(following.path)
    assert following.chunks.next(timeout_s=5).lines == ('{"step": 1}',)
    following.end()


def test_a_line_arrives_at_once(tmp_path: Path) -> None:
    """inotify, not the poll: the median of 20 is far below the poll's second."""
    following = Following(tmp_path / "log")
    following.append(b"first\n")
    following.chunks.next()
    delays = []
    for number in range(20):
        began = time.monotonic()
        following.append(b"%d\n" % number)
        following.chunks.next()
        delays.append(time.monotonic() - began)
    assert sorted(delays)[10] < 0.05
    following.end()


def test_a_truncated_file_begins_again(tmp_path: Path) -> None:
    """A script that opens its log anew: no line is glued to what was there before."""
    following = Following(tmp_path / "log")
    following.append(b"old 1\nold 2\nstep 1")
    following.chunks.next()
    following.path.write_bytes(b"")
    assert following.chunks.silent_for(1.3)
    following.append(b"9 new\n")
    assert following.chunks.next() == LogChunk(7.0, 3, "log", ("9 new",), 1, 6, read_bytes=6)
    following.end()


def test_a_slow_reader_loses_nothing(tmp_path: Path) -> None:
    """The file is the buffer: the tail stands still while its report does."""
    gate = threading.Semaphore(0)
    following = Following(tmp_path / "log", block=gate)
    lines = [f"step {number} loss 1.5" for number in range(100_000)]
    following.append("\n".join(lines[:50_000]).encode() + b"\n")
    assert following.blocked.wait(20)
    following.append("\n".join(lines[50_000:]).encode() + b"\n")
    gate.release(1000)
    assert following.end() == lines


def test_a_hopeless_reader_skips_ahead_and_says_so(tmp_path: Path) -> None:
    """More than LAG_BYTES behind; the line that it lands in is not reported as one."""
    path = tmp_path / "log"
    path.write_bytes(b"step 1\nstep 2")
    os.truncate(path, 2 * LAG_BYTES)
    with path.open("ab") as out:
        out.write(b"00\nlast\n")
    following = Following(path)
    chunk = following.chunks.next()
    assert chunk.lines == ("last",)
    assert chunk.skipped_bytes == path.stat().st_size - READ_BYTES
    assert following.end() == []


def test_metrics_are_never_skipped(tmp_path: Path) -> None:
    """They are what the detectors live on."""
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b"first\n")
    os.truncate(path, LAG_BYTES + (1 << 20))
    following = Following(path, "metrics")
    assert following.chunks.next().lines == ("first",)
    assert len(following.end()) == 1


def test_finish_reads_to_the_end_and_reports_the_last_unfinished_line(tmp_path: Path) -> None:
    """The last words of a crash often have no line end."""
    following = Following(tmp_path / "log")
    following.append(b"".join(b"line %d\n" % n for n in range(50_000)) + b"Killed")
    lines = following.end()
    assert (len(lines), lines[-1]) == (50_001, "Killed")


def test_finish_of_a_file_that_never_came_ends_too(tmp_path: Path) -> None:
    """A worker that writes no metrics."""
    assert Following(tmp_path / "none").end() == []


def test_a_tail_in_a_folder_that_does_not_exist_ends_too(tmp_path: Path) -> None:
    """The state directory was deleted under us."""
    assert Following(tmp_path / "no" / "log").end() == []


def test_the_echo_copies_every_byte(tmp_path: Path) -> None:
    """Carriage returns, colours and what is no text: a progress bar stays one."""
    read, write = os.pipe()
    echo = Echo(tmp_path / "log", descriptor=write)
    (tmp_path / "log").write_bytes(b"\r 10%\r 20%\n\x1b[31mred\xff")
    echo.finish()
    assert echo.done.wait(20)
    os.close(write)
    assert os.read(read, 100) == b"\r 10%\r 20%\n\x1b[31mred\xff"
    os.close(read)


def test_the_echo_survives_a_full_terminal_that_does_not_wait(tmp_path: Path) -> None:
    """Another program on the terminal may have made it non-blocking: nothing is lost."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    data = bytes(range(256)) * 2048
    (tmp_path / "log").write_bytes(data)
    echo = Echo(tmp_path / "log", descriptor=write)
    with os.fdopen(read, "rb") as reader:
        assert reader.read(len(data)) == data
        echo.finish()
        assert echo.done.wait(20)
    os.close(write)


def test_an_echo_whose_reader_is_gone_writes_into_no_other_file(tmp_path: Path) -> None:
    """It ends; its descriptors' numbers then belong to others, which `finish` must not touch."""
    read, write = os.pipe()
    os.close(read)
    before = psutil.Process().num_fds()
    echo = Echo(tmp_path / "log", descriptor=write)
    (tmp_path / "log").write_bytes(b"words\n")
    assert echo.done.wait(20)
    assert psutil.Process().num_fds() <= before
    victims = [(tmp_path / f"victim{n}").open("wb") for n in range(8)]
    echo.finish()
    for victim in victims:
        victim.close()
    assert [path.stat().st_size for path in sorted(tmp_path.glob("victim*"))] == [0] * 8
    os.close(write)


@pytest.mark.parametrize("echoing", [False, True])
def test_both_files_of_an_attempt_are_drained_once(tmp_path: Path, echoing: bool) -> None:
    """Drained comes after the last chunk of either file; finishing twice changes nothing."""
    reports = Reports()
    read, write = os.pipe()
    tails = AttemptTails(reports.put, echo_to=write if echoing else None)
    for attempt in (1, 2):
        directory = tmp_path / str(attempt)
        directory.mkdir()
        tails.open(attempt, directory)
        (directory / "worker.log").write_bytes(b"out\n" * 9000)
        (directory / "metrics.jsonl").write_bytes(b"{}\n" * 9000)
        tails.finish()
        *chunks, drained = reports.until(Drained)
        assert drained.attempt == attempt
        for source in ("log", "metrics"):
            assert sum(len(c.lines) for c in chunks if c.source == source) == 9000
        tails.finish()
        assert not reports.rest()
        if echoing:
            assert len(os.read(read, 1 << 16)) == 36000
    os.close(read)
    os.close(write)
