"""Metrics files of the script's own: found, followed, and never read twice."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import psutil
import pytest

from overnight.adapters.tail.attempt import AttemptTails
from overnight.adapters.tail.script_files import MAX_FILES, Place, ScriptFiles
from overnight.core.events import Drained, LogChunk
from overnight.core.formats.event_file import EventDecoder
from overnight.core.formats.history import HistoryDecoder
from overnight.core.lines import LineSplitter
from reports import Reports


class Following:
    """The files at a place, with their chunks and their end."""

    def __init__(self, pattern: Path, decoder=LineSplitter, change="appended") -> None:
        self.chunks, self.ends = Reports(), Reports()
        self.files = ScriptFiles(
            Place(str(pattern), decoder, change),
            attempt=3,
            report=self.chunks.put,
            drained=lambda: self.ends.put("drained"),
            clock=lambda: 7.0,
        )

    def next(self) -> LogChunk:
        """The next chunk with lines in it."""
        found = self.chunks.next()
        while isinstance(found, LogChunk) and not found.lines:
            found = self.chunks.next()
        assert isinstance(found, LogChunk)
        assert (found.source, found.attempt, found.at) == ("file", 3, 7.0)
        return found

    def end(self) -> list[str]:
        """Finish, and all lines that were not taken yet."""
        self.files.finish()
        self.ends.next()
        return [line for chunk in self.chunks.rest() for line in chunk.lines]


def append(path: Path, text: str) -> None:
    with path.open("a") as out:
        out.write(text)


def test_a_new_file_is_read_from_its_head_and_followed(tmp_path: Path) -> None:
    """In a directory that does not exist yet."""
    following = Following(tmp_path / "logs" / "m.csv")
    (tmp_path / "logs").mkdir()
    append(tmp_path / "logs" / "m.csv", "step,loss\n1,2.5\n")
    chunk = following.next()
    assert (chunk.lines, chunk.first_line, chunk.begins) == (("step,loss", "1,2.5"), 1, True)
    append(tmp_path / "logs" / "m.csv", "2,2.4\n")
    chunk = following.next()
    assert (chunk.lines, chunk.first_line, chunk.begins) == (("2,2.4",), 3, False)
    append(tmp_path / "logs" / "m.csv", "3,2.3")
    assert following.end() == ["3,2.3"]


def test_what_was_there_before_is_old(tmp_path: Path) -> None:
    """Its first line comes along, for it may name the columns."""
    path = tmp_path / "m.csv"
    append(path, "step,loss\r\n1,2.5\r\n")
    following = Following(path)
    append(path, "2,2.4\r\n")
    chunk = following.next()
    assert (chunk.lines, chunk.heading, chunk.begins) == (("2,2.4",), "step,loss", False)
    assert following.end() == []


def test_a_half_written_old_line_is_not_finished_as_a_new_one(tmp_path: Path) -> None:
    """The end of one number reads like another."""
    path = tmp_path / "m.csv"
    append(path, "step,loss\n1,2.")
    following = Following(path)
    append(path, "5\n2,2.4\n")
    assert following.next().lines == ("2,2.4",)
    assert following.end() == []


def test_a_file_that_nobody_touches_is_not_read(tmp_path: Path) -> None:
    """Yesterday's run beside today's."""
    append(tmp_path / "v0.csv", "step,loss\n1,9\n")
    following = Following(tmp_path / "v*.csv")
    append(tmp_path / "v1.csv", "step,loss\n1,2.5\n")
    assert following.next().lines == ("step,loss", "1,2.5")
    assert following.end() == []


@pytest.mark.parametrize("how", ["truncated", "replaced"])
def test_a_file_that_is_written_anew_begins_again(tmp_path: Path, how: str) -> None:
    """In place or by rename; whatever was there before, all of it is news."""
    path = tmp_path / "m.csv"
    append(path, "step,loss\n1,9\n2,9\n")
    following = Following(path)
    if how == "truncated":
        path.write_text("step,loss\n1,2.5\n")
    else:
        append(tmp_path / "new", "step,loss\n1,2.5\n2,2.4\n3,2.3\n")
        (tmp_path / "new").rename(path)
    chunk = following.next()
    assert (chunk.begins, chunk.first_line, chunk.lines[:2]) == (True, 1, ("step,loss", "1,2.5"))
    following.end()
    again = Following(path)
    append(path, "4,2.2\n")
    assert again.next().lines == ("4,2.2",)
    path.write_text("step,loss\n")
    assert again.next().begins
    again.end()


def test_a_history_is_read_again_at_each_change(tmp_path: Path) -> None:
    """In a new checkpoint directory, or over the old one, even where it only grows."""
    following = Following(tmp_path / "c-*" / "trainer_state.json", HistoryDecoder, "rewritten")
    state = {"log_history": [{"loss": 2.5, "step": 10}]}
    (tmp_path / "c-10").mkdir()
    path = tmp_path / "c-10" / "trainer_state.json"
    path.write_text(json.dumps(state))
    assert following.next().lines == (json.dumps(state["log_history"][0]),)
    state["log_history"].append({"loss": 2.4, "step": 20})
    temp = tmp_path / "temp"
    temp.write_text(json.dumps(state))
    with path.open("r+") as out:
        out.write(temp.read_text())
    lines = []
    while len(lines) < 2:
        chunk = following.next()
        assert chunk.begins
        lines = chunk.lines
    assert [json.loads(line)["step"] for line in lines] == [10, 20]
    (tmp_path / "c-30").mkdir()
    shutil.copy(path, tmp_path / "c-30")
    assert len(following.next().lines) == 2
    following.end()


def test_the_files_of_a_real_writer_are_followed(tmp_path: Path) -> None:
    """Scalars and 2 MiB of text, flushed in between; an earlier run's file is passed over."""
    from tensorboardX import SummaryWriter

    with SummaryWriter(str(tmp_path / "old")) as writer:
        writer.add_scalar("Loss/train", 9.0, 1)
    following = Following(tmp_path / "*" / "events.out.tfevents.*", EventDecoder, "whole")
    writer = SummaryWriter(str(tmp_path / "new"), flush_secs=0)
    for step in (1, 2):
        writer.add_scalar("Loss/train", 2.5, step)
        writer.add_scalar("lr", 0.5, step)
    seen = [json.loads(line) for line in following.next().lines]
    while seen[-1]["step"] < 2 or "lr" not in seen[-1]:
        seen += [json.loads(line) for line in following.next().lines]
    assert [line["step"] for line in seen if "Loss/train" in line] == [1, 2]
    writer.add_text("much", "x" * (2 << 20), 3)
    writer.add_scalar("Loss/train", float("nan"), 3)
    writer.close()
    assert json.loads(following.next().lines[-1])["step"] == 3
    following.end()


def test_only_so_many_files_are_followed(tmp_path: Path) -> None:
    """A glob that matches everything costs no more descriptors, and nothing new is missed."""
    following = Following(tmp_path / "*.csv")
    before = psutil.Process().num_fds()
    for number in range(5 * MAX_FILES):
        append(tmp_path / f"{number:03d}.csv", "step,loss\n")
        os.utime(tmp_path / f"{number:03d}.csv", (number, number))
    following.next()
    append(tmp_path / "039.csv", "1,2.5\n")
    while "1,2.5" not in following.next().lines:
        pass
    assert psutil.Process().num_fds() <= before + MAX_FILES
    following.end()


def test_a_file_that_is_deleted_is_let_go(tmp_path: Path) -> None:
    """Rotation of checkpoints takes their histories along."""
    following = Following(tmp_path / "*.csv")
    append(tmp_path / "a.csv", "step,loss\n1,2.5\n")
    following.next()
    (tmp_path / "a.csv").unlink()
    append(tmp_path / "b.csv", "step,loss\n2,2.5\n")
    assert following.next().begins
    assert following.end() == []
    held = [file.path for file in psutil.Process().open_files()]
    assert not [path for path in held if path.startswith(str(tmp_path))]


def test_an_attempt_is_drained_when_its_script_files_are(tmp_path: Path) -> None:
    """All three sources, then Drained, once."""
    reports = Reports()
    place = Place(str(tmp_path / "m.csv"), LineSplitter, "appended")
    tails = AttemptTails(reports.put, echo_to=None, script=place)
    tails.open(1, tmp_path / "attempt")
    (tmp_path / "attempt" / "worker.log").write_bytes(b"out\n" * 9000)
    (tmp_path / "attempt" / "metrics.jsonl").write_bytes(b"{}\n" * 9000)
    (tmp_path / "m.csv").write_bytes(b"1,2\n" * 90000)
    tails.finish()
    *chunks, drained = reports.until(Drained)
    assert drained.attempt == 1
    counts = {s: sum(len(c.lines) for c in chunks if c.source == s) for s in ("log", "file")}
    assert counts == {"log": 9000, "file": 90000}
    tails.finish()
    assert not reports.rest()


@pytest.mark.parametrize("old", [True, False], ids=["before the start", "while it is read"])
def test_a_file_that_is_written_anew_and_longer_begins_again(tmp_path: Path, old: bool) -> None:
    """Lightning adds a column: at no moment that we see is the file shorter than it was."""
    path = tmp_path / "m.csv"
    if old:
        append(path, "step,loss\n1,2.5\n")
    following = Following(path)
    if not old:
        append(path, "step,loss\n1,2.5\n")
        following.next()
    with path.open("r+") as out:  # in place, and never truncated
        out.write("lr,step,loss\n,1,2.5\n0.1,2,2.4\n")
    chunk = following.next()
    assert (chunk.begins, chunk.first_line, chunk.heading) == (True, 1, "")
    assert chunk.lines == ("lr,step,loss", ",1,2.5", "0.1,2,2.4")
    append(path, "0.1,3,2.3\n")
    assert following.next().lines == ("0.1,3,2.3",)
    following.end()


def test_pipes_and_devices_are_passed_over(tmp_path: Path) -> None:
    """Opening a pipe waits for ever, and a device has no end."""
    os.mkfifo(tmp_path / "a.csv")
    (tmp_path / "b.csv").symlink_to("/dev/zero")
    following = Following(tmp_path / "*.csv")
    append(tmp_path / "c.csv", "step,loss\n1,2.5\n")
    assert following.next().lines == ("step,loss", "1,2.5")
    assert following.end() == []


def test_growth_without_lines_is_reported_too(tmp_path: Path) -> None:
    """A sign of life; the head of the file is told with its first line."""
    path = tmp_path / "events.out.tfevents.1"
    following = Following(path, EventDecoder, "whole")
    append(path, "x")
    first = following.chunks.next()
    assert (first.lines, first.begins) == ((), False)
    following.end()


def test_damage_is_told_once(tmp_path: Path) -> None:
    """With the name of the file."""
    path = tmp_path / "events.out.tfevents.1"
    following = Following(path, EventDecoder, "whole")
    append(path, "no event file, for sure")
    assert following.chunks.next().damage == (
        f"{path} is damaged at byte 0; nothing behind it is read"
    )
    append(path, "more of it")
    assert following.chunks.next().damage == ""
    following.end()
