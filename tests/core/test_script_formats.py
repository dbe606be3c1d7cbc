"""Files that scripts write beside their output: TensorBoard events, trainer_state.json."""

from __future__ import annotations

import itertools
import json
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overnight.core.formats.event_file import RECORD_BYTES, EventDecoder, check_sum
from overnight.core.formats.files import decoder_of
from overnight.core.formats.history import ENTRY_CHARS, HistoryDecoder
from overnight.core.lines import LineSplitter

DATA = Path(__file__).parents[1] / "data" / "tensorboard"
TORCH = (DATA / "torch.tfevents").read_bytes()  # torch.utils.tensorboard of torch 2.13
TENSORFLOW = (DATA / "tensorflow.tfevents").read_bytes()  # tensors, as TensorFlow 2 writes them


def decoded(decoder, data, *cuts):
    """What comes of these bytes, in pieces."""
    lines = []
    for begin, end in itertools.pairwise([0, *sorted(cuts), len(data)]):
        lines += decoder.feed(data[begin:end])
    return [json.loads(line) for line in [*lines, *decoder.flush()]]


def numbers(lines):
    """(step, tag, value) of each scalar; a step may come in several lines."""
    pairs = [(line["step"], key, str(value)) for line in lines for key, value in line.items()]
    return [(step, key, value) for step, key, value in pairs if key != "step"]


def record(content: bytes) -> bytes:
    """One record of an event file."""
    length = struct.pack("<Q", len(content))
    sums = (struct.pack("<I", check_sum(part)) for part in (length, content))
    return length + next(sums) + content + next(sums)


def test_scalars_of_a_step_are_one_line():
    """As torch.utils.tensorboard writes them, NaN included; text and headers say nothing."""
    lines = decoded(EventDecoder(), TORCH)
    assert [line["step"] for line in lines] == [0, 10, 20, 30, 40, 50]
    assert lines[2].keys() == {"Loss/train", "Loss/valid", "grad_norm", "lr", "step"}
    assert lines[2]["Loss/train"] == pytest.approx(2.8)
    assert str(lines[-1]["Loss/train"]) == "nan"


def test_tensors_of_one_number_are_scalars():
    """As TensorFlow 2 writes them, with the value in either of two places."""
    lines = decoded(EventDecoder(), TENSORFLOW)
    assert [(line["step"], line["train/loss"]) for line in lines] == [(1, 3.0), (2, 2.0), (3, 1.0)]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, len(TORCH)), max_size=6))
def test_events_do_not_depend_on_how_the_bytes_arrive(cuts):
    """Cut anywhere: the same numbers in the same order."""
    pieces = decoded(EventDecoder(), TORCH, *cuts)
    assert numbers(pieces) == numbers(decoded(EventDecoder(), TORCH))


def test_pictures_are_passed_over_without_being_kept():
    """A record of 40 MiB costs nothing, and what stands behind it is read."""
    size = 40 * RECORD_BYTES
    decoder = EventDecoder()
    length = struct.pack("<Q", size)
    decoder.feed(length + struct.pack("<I", check_sum(length)))
    for _ in range(40):
        decoder.feed(b"x" * RECORD_BYTES)
        assert decoder.pending_bytes < RECORD_BYTES
    assert len(decoded(decoder, b"\0\0\0\0" + TENSORFLOW)) == 3


@pytest.mark.parametrize("cut", [1, 500])
@pytest.mark.parametrize("at", [3, 9, 90, 200, 500, 700])
def test_damage_ends_the_reading_and_is_said(at, cut):
    """A wrong bit in a length, a check sum or a number: nothing behind it is believed."""
    whole = numbers(decoded(EventDecoder(), TORCH))
    broken = bytearray(TORCH)
    broken[at] ^= 64
    decoder = EventDecoder()
    seen = numbers(decoded(decoder, bytes(broken), cut))
    assert len(seen) < len(whole)
    assert seen == whole[: len(seen)]
    place = int(decoder.damage.split("byte ")[1].split(";")[0].replace(",", ""))
    assert place <= at
    assert at - place < 200
    assert decoded(decoder, TORCH) == []
    decoder.restart(mid_line=False)
    assert decoder.damage == ""
    assert len(decoded(decoder, TORCH)) == 6
    decoder.restart(mid_line=True)
    assert decoded(decoder, TORCH) == []


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200), st.binary(max_size=60), st.booleans())
def test_no_bytes_make_it_raise(data, content, framed):
    """As a file, and as the inside of a record."""
    EventDecoder().feed(record(content) + record(b"\x2a" + bytes([len(data) % 128]) + data))
    EventDecoder().feed(data if framed else TORCH[:90] + data)
    history = HistoryDecoder()
    history.feed(b'{"log_history": [' + data)
    history.feed(data)


STATE = {
    "best_metric": None,
    "epoch": 1.5,
    "global_step": 30,
    "log_history": [
        {"loss": 2.5, "grad_norm": 1.0, "step": 10},
        {"eval_loss": 2.6, "step": 10},
        {"loss": float("nan"), "note": 'a "[{]}" in text, grüße', "step": 20},
    ],
    "max_steps": 100,
    "stateful_callbacks": {"X": {"log_history": [{"loss": 9, "step": 9}]}},
}


@pytest.mark.parametrize("indent", [None, 2])
def test_the_entries_of_a_history(indent):
    """Byte by byte, with and without line breaks; what stands behind the history is not read."""
    data = json.dumps(STATE, indent=indent, ensure_ascii=False).encode()
    lines = decoded(HistoryDecoder(), data, *range(1, len(data)))
    assert [(line["step"], str(line.get("loss"))) for line in lines] == [
        (10, "2.5"),
        (10, "None"),
        (20, "nan"),
    ]
    assert decoded(HistoryDecoder(), data[: data.index(b'"note"')]) == lines[:2]


def test_a_file_that_is_one_list() -> None:
    """`json.dump(history, file)`, with and without line breaks."""
    rows = [{"step": 1, "loss": 2.5}, {"step": 2, "loss": 2.4}]
    for indent in (None, 2):
        assert decoded(HistoryDecoder(), json.dumps(rows, indent=indent).encode(), 3, 9) == rows


def test_an_entry_without_an_end_is_given_up():
    """In bounded memory."""
    decoder = HistoryDecoder()
    assert decoded(decoder, b'"log_history": [{"loss": "' + b"x" * (ENTRY_CHARS + 99)) == []
    assert decoder.feed(b'"}, {"loss": 1}]') == []
    decoder.restart(mid_line=False)
    assert decoded(decoder, b'"log_history": [{"loss": 1}], "b": [{"loss": 3}]') == [{"loss": 1}]


@pytest.mark.parametrize("cut", [0, 20, 40, 50, 60])
def test_entries_that_are_no_objects_are_passed_over(cut):
    """A null, a list or a text among the entries."""
    text = b'{"log_history": [{"loss": 1}, null, [{"loss": 2}], "x]", {"loss": 3}]}'
    assert decoded(HistoryDecoder(), text, cut) == [{"loss": 1}, {"loss": 3}]


def test_which_decoder_a_file_needs():
    """By its name and its first bytes; everything else is text."""
    state = json.dumps(STATE).encode()
    assert isinstance(decoder_of("events.out.tfevents.17.host", b""), EventDecoder)
    assert isinstance(decoder_of("trainer_state.json", state), HistoryDecoder)
    late = b'{"best_metric": ' + b" " * 100  # the history may begin far behind the head
    assert isinstance(decoder_of("trainer_state.json", late), HistoryDecoder)
    assert isinstance(decoder_of("metrics.json", b'{"loss": 1}'), LineSplitter)
    assert isinstance(decoder_of("history.json", b' [{"loss": 1}]'), HistoryDecoder)
    assert isinstance(decoder_of("train.log", state), LineSplitter)
