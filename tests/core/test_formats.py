"""Reading log lines: what a line says, for the formats of many frameworks."""

from __future__ import annotations

import json
import math
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overnight.core.formats import (
    MAX_LINE_CHARS,
    Reading,
    WorkerEvent,
    read_json,
    read_line,
    read_protocol,
    significant_digits,
)


def shown(line: str) -> dict[str, object]:
    """What was read, without what was not given."""
    reading = read_line(line)
    assert isinstance(reading, Reading), line
    fields = {name: getattr(reading, name) for name in Reading.__slots__}
    return {k: v for k, v in fields.items() if v not in (None, False) and k not in SHAPE}


SHAPE = ("loss_key", "digits", "rank", "exact", "kind", "losses", "counted_to")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        pytest.param(
            "Step 45100 | Loss: 2.338 | Grad Norm: 1.1 | LR: 2.9e-04",
            {"step": 45100, "loss": 2.338, "grad_norm": 1.1, "lr": 2.9e-4},
            id="pipes",
        ),
        pytest.param(
            "Epoch 3, Val Loss: 1.9006, Train Loss: 1.9029",
            {"loss": 1.9029, "eval_loss": 1.9006},
            id="validation-first",
        ),
        pytest.param("Epoch: 003, Val: 0.77, Test: 0.76, Loss: 1.9698", {"loss": 1.9698}, id="pyg"),
        pytest.param(
            "step 3 | validation: acc 0.80 | training loss 1.9",
            {"step": 3, "loss": 1.9},
            id="trains",
        ),
        pytest.param("INFO:test:step 3: loss 2.1", {"step": 3, "loss": 2.1}, id="logger"),
        pytest.param("Test: [ 10/79] Loss 2.1", {"step": 10, "eval_loss": 2.1}, id="test-set"),
        pytest.param("Epoch(val) [3][10/20] loss: 2.1", {"step": 10, "eval_loss": 2.1}, id="mm"),
        pytest.param(
            "[epoch:  0, iter:   1,100, lr:(1.000e-04,)] [eta: 3 days] l_pix: 9.8201e-02",
            {"step": 1100, "loss": 0.098201, "lr": 1e-4},
            id="basicsr",
        ),
        pytest.param(
            "global_step=99.0, train_loss=2.5", {"step": 99, "loss": 2.5}, id="whole-float"
        ),
        pytest.param("batch_count=2048.0, loss=2.5", {"loss": 2.5}, id="warm-up-count"),
        pytest.param("Ep. 1 : Cost 8.25 : L.r. 3.0000e-04", {"loss": 8.25, "lr": 3e-4}, id="lr"),
        pytest.param(
            "iter 120: loss 2.1034, time 71.2ms", {"step": 120, "loss": 2.1034}, id="nano"
        ),
        pytest.param(
            "step  326/19560 | loss     nan (+nanz)| norm    nan (+nanz)| lr 2.79e-04 | 3605.22 ms",
            {"step": 326, "loss": "nan", "grad_norm": "nan", "lr": 2.79e-4},
            id="llm.c",
        ),
        pytest.param(
            "s:12 trl:3.2 loss:3.25 norm:0.41",
            {"step": 12, "loss": 3.25, "grad_norm": 0.41},
            id="s",
        ),
        pytest.param(
            "step:947/6200 train_loss:3.7331 train_time:1234ms step_avg:nanms",
            {"step": 947, "loss": 3.7331},
            id="modded-nanogpt",
        ),
        pytest.param(
            "{'loss': 2.31, 'grad_norm': 1.25, 'learning_rate': 4.9e-05, 'epoch': 0.12}",
            {"loss": 2.31, "grad_norm": 1.25, "lr": 4.9e-5, "epoch": 0.12},
            id="hf-trainer",
        ),
        pytest.param(
            "{'loss': '2.31', 'grad_norm': 'nan', 'learning_rate': '4.9e-05'}",
            {"loss": 2.31, "grad_norm": "nan", "lr": 4.9e-5},
            id="hf-quoted",
        ),
        pytest.param(
            "eta: 1:02:03  iter: 1,519  total_loss: 0.4109  lr: 0.01",
            {"step": 1519, "loss": 0.4109, "lr": 0.01},
            id="detectron2-with-thousands",
        ),
        pytest.param("loss=inf step=3", {"loss": "inf", "step": 3}, id="inf"),
        pytest.param("Loss -1.5E-3 at step 7", {"loss": -1.5e-3, "step": 7}, id="negative"),
        pytest.param(
            "step 250: train loss 2.1, val loss 2.2", {"step": 250, "eval_loss": 2.2}, id="ev"
        ),
        pytest.param(
            "step 5 loss 2.0 loss scale: 65536",
            {"step": 5, "loss": 2.0, "loss_scale": 65536.0},
            id="scale",
        ),
        pytest.param(
            "step 9 loss 2.5 tok/s 144188",
            {"step": 9, "loss": 2.5, "tokens_per_s": 144188.0},
            id="tok",
        ),
        pytest.param(
            "step 5 loss 2.1 param_norm: 350.1 grad_norm: 1.2",
            {"step": 5, "loss": 2.1, "grad_norm": 1.2},
            id="the-norm-of-the-weights-is-not-the-gradients",
        ),
        pytest.param("time per step: 0.51, loss: 2.0", {"loss": 2.0}, id="a-duration-is-no-step"),
        pytest.param("aux_loss: 0.1 loss: 2.0", {"loss": 2.0}, id="the-plain-name-wins"),
        pytest.param(
            '{"step": 3, "loss": NaN, "skipped": true}',
            {"step": 3, "loss": "nan", "skipped": True},
            id="json-nan",
        ),
        pytest.param('{"step": 3, "loss": "NaN"}', {"step": 3, "loss": "nan"}, id="json-string"),
        pytest.param(
            '{"step": 4, "loss": -Infinity}', {"step": 4, "loss": "-inf"}, id="json-infinity"
        ),
        pytest.param(
            '{"step": 4, "train": {"loss": 2.0, "lr": 0.1}}',
            {"step": 4, "loss": 2.0, "lr": 0.1},
            id="json-nested",
        ),
        pytest.param('{"step": 4, "val_loss": 2.0}', {"step": 4, "eval_loss": 2.0}, id="json-eval"),
    ],
)
def test_known_formats(line: str, expected: dict[str, object]) -> None:
    """One line of each kind, with the numbers under their roles."""
    plain = {
        k: str(v) if isinstance(v, float) and not math.isfinite(v) else v
        for k, v in shown(line).items()
    }
    assert {k: plain.get(k) for k in expected} == expected
    assert {"step", "loss", "eval_loss", "grad_norm"} & plain.keys() <= expected.keys()


@pytest.mark.parametrize(
    "line",
    [
        "",
        "Traceback (most recent call last):",
        "Saving checkpoint to out/step_100.pt",
        "the loss function is cross entropy",
        "warning: floss is deprecated since version v2",
        "loss: see below",
        "loss 3rd-party",
        "loss nanosecond",
        "loss 1,234abc",
        "Downloading loss.bin",
    ],
)
def test_lines_without_a_metric(line: str) -> None:
    """Prose, tracebacks and half numbers say nothing of the loss."""
    reading = read_line(line)
    assert reading is None or (isinstance(reading, Reading) and not reading.is_training_record)


@pytest.mark.parametrize(
    ("line", "is_record"),
    [
        ("loss: 2.0", True),
        ("step 3 grad norm 1.0", True),
        ("grad norm 1.0", False),
        ("step 3 val loss 2.0", False),
        ("step 3 norm of the seasons", False),
    ],
)
def test_what_is_a_training_record(line: str, is_record: bool) -> None:
    """A loss, or a gradient norm with its step; an evaluation alone is none."""
    reading = read_line(line)
    assert bool(isinstance(reading, Reading) and reading.is_training_record) is is_record


def test_protocol_events() -> None:
    """hello, checkpoint and phase are no metrics."""
    assert read_protocol('{"event": "phase", "name": "eval"}') == WorkerEvent(
        "phase", {"event": "phase", "name": "eval"}
    )
    assert read_line('{"event": "hello", "total_steps": 10}') is not None


@pytest.mark.parametrize("reader", [read_line, read_protocol])
def test_event_is_a_key_like_any_other(reader) -> None:
    """structlog writes its messages there."""
    found = reader('{"event": "train step", "step": 5, "loss": 2.5, "level": "info"}')
    assert (found.step, found.loss) == (5, 2.5)


@pytest.mark.parametrize(
    "line",
    [
        "[1, 2]",
        '"text"',
        "null",
        "{",
        '{"a": ' * 50_000,
        '{"loss": 1' + "0" * 5000 + "}",
        '{"loss": [1.0]}',
        '{"loss": true}',
        '{"loss": 2.0, "pad": "' + "x" * MAX_LINE_CHARS + '"}',
    ],
    ids=["list", "string", "null", "broken", "deep", "huge-int", "array", "bool", "long"],
)
def test_json_that_is_no_metric(line: str) -> None:
    """Anything but an object with numbers in it is nothing, and no error."""
    found = read_json(line)
    assert found is None or not math.isfinite(found.loss or math.inf)


def test_a_huge_integer_is_infinite() -> None:
    """An integer too large for a float is an infinite loss, not an error."""
    found = read_json('{"step": 1, "loss": 1' + "0" * 400 + "}")
    assert isinstance(found, Reading)
    assert found.loss == math.inf


@pytest.mark.parametrize(
    ("text", "digits"),
    [("2.338", 4), ("0.00120", 3), ("1e-5", 1), ("2.50e-04", 3), ("-12,345.6", 6), ("0.0", 0)],
)
def test_significant_digits(text: str, digits: int) -> None:
    """Leading zeros and the exponent are no precision."""
    assert significant_digits(text) == digits


@given(st.text(max_size=300))
@settings(max_examples=200, deadline=None)
def test_any_text_is_read_without_an_error(text: str) -> None:
    """A worker prints what it likes."""
    read_line(text)
    read_line(f"loss {text}")
    read_json(f'{{"loss": {json.dumps(text)}}}')


@given(st.integers(0, 10**9), st.floats(allow_nan=False), st.floats(allow_nan=False))
@settings(max_examples=100, deadline=None)
def test_the_protocol_round_trips(step: int, loss: float, grad: float) -> None:
    """What the worker writes as JSON is what is read."""
    found = read_json(json.dumps({"step": step, "loss": loss, "grad_norm": grad}))
    assert isinstance(found, Reading)
    assert (found.step, found.loss, found.grad_norm) == (step, loss, grad)


HOSTILE_S = 2.0
"""CPU seconds for a line of 64 KiB: a linear reader takes a tenth of it, a quadratic minutes."""


@pytest.mark.parametrize(
    "unit",
    [
        "1",
        "1,",
        "1.",
        "a",
        "a ",
        " ",
        "\t",
        "loss ",
        "loss=",
        "loss 1x",
        "_1",
        "(a",
        "e1",
        "nan",
        "-",
    ],
)
def test_reading_is_linear_in_the_length(unit: str) -> None:
    """No line, however made, takes the reader out of its stride."""
    line = ("loss " + unit * MAX_LINE_CHARS)[: MAX_LINE_CHARS - 2] + "x!"
    start = time.process_time()
    read_line(line)
    assert time.process_time() - start < HOSTILE_S


def test_blanks_behind_an_evaluation_word_are_read_once() -> None:
    """The look ahead for a number of its own does not go back over them."""
    line = "step 3 val" + " " * (MAX_LINE_CHARS - 40) + "x loss 3.0"
    start = time.process_time()
    read_line(line)
    assert time.process_time() - start < HOSTILE_S


@pytest.mark.parametrize(
    "text",
    [
        "step 330 loss nan lr 1.000e-02",
        "step 330 loss NaN lr 1.000e-02",
        "step 330 loss inf lr 1e-4",
        "Epoch 1 Step 330 loss nan grad_norm 1.2",
        "step=330 train_loss_step=nan",
        "step 330 loss tensor(nan, device='cuda:0', grad_fn=<NllLossBackward0>)",
    ],
)
def test_a_number_that_is_none_is_not_part_of_a_name(text: str) -> None:
    """`loss nan lr 1e-2` is a loss and a rate, not a rate called `loss nan lr`."""
    found = read_line(text)
    assert found is not None
    assert found.loss is not None
    assert not math.isfinite(found.loss)
    assert found.step == 330


FILLERS = [
    "lorem ipsum dolor ",
    "information about nano ",
    "x" * 300 + " ",
    "a=b, c: d; ",
    "\u4e2d\u6587 ",
]
RECORDS = [
    "step 7 loss 2.5",
    "| global step: 7 | lm loss: 2.5E+00 | grad norm: 1.5 |",
    "{'loss': 2.5, 'step': 7}",
    "step: 7, train/loss: nan",
    "iter=7 loss=-inf lr=1e-4",
]


@given(
    st.sampled_from(RECORDS),
    st.lists(st.sampled_from(FILLERS), max_size=5),
    st.lists(st.sampled_from(FILLERS), max_size=5),
    st.integers(1, 40),
)
@settings(max_examples=300, deadline=None)
def test_a_long_line_says_what_a_short_one_says(
    record: str, before: list[str], behind: list[str], times: int
) -> None:
    """However many words stand around the numbers, up to MAX_LINE_CHARS."""
    short = read_line(f"words {record} ")
    long = read_line("".join(before) * times + record + " " + "".join(behind) * times)
    assert isinstance(short, Reading)
    assert isinstance(long, Reading)
    numbers = [repr((r.step, r.loss, r.grad_norm, r.lr)) for r in (short, long)]
    assert numbers[0] == numbers[1]
