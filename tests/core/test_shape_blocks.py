"""Records that are spread over blocks, tables and columns; deaths without a NaN; hostile lines."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shape_lab import losses, readings, records, steps

# --- blocks, tables, columns ----------------------------------------------------------------------

COQUI = """
\x1b[1m   --> STEP: 24/199 -- GLOBAL_STEP: 25\x1b[0m
     | > decoder_loss: 0.59148  (0.64148)
     | > ga_loss: 0.01000  (0.06000)
     | > loss: 1.47871  (1.52871)
     | > grad_norm: 0.68343  (0.90171)
     | > current_lr: 0.0001

\x1b[1m   --> STEP: 49/199 -- GLOBAL_STEP: 50\x1b[0m
     | > decoder_loss: 0.52340  (0.57340)
     | > loss: 1.30851  (1.35851)
     | > grad_norm: nan  (0.90171)
"""


def test_a_block_of_lines_is_one_record() -> None:
    """Coqui: the step in the heading, one number a line, the gradient norm after the loss."""
    first, second = [found for found in readings(COQUI.splitlines()) if found.loss is not None]
    assert (first.step, first.loss, first.grad_norm, first.lr) == (25, 1.47871, 0.68343, 1e-4)
    assert (second.step, second.loss) == (50, 1.30851)
    assert second.grad_norm is not None
    assert math.isnan(second.grad_norm)


def test_a_table_is_one_record() -> None:
    """Stable-Baselines: a frame of rows; a statistic that is NaN is not the loss."""
    table = [
        "-" * 38,
        "| ep_rewmean         | nan           |",
        "| policy_loss        | -0.0052       |",
    ]
    table += ["| serial_timesteps   | 128           |", "| total_timesteps    | 256           |"]
    table += ["| value_loss         | 59.993812     |", "-" * 38]
    assert records(table) == [(256, 59.993812)]


def test_columns_below_a_heading() -> None:
    """Ultralytics: names once an epoch, numbers below, a bar behind; and CSV."""
    heading = "      Epoch    GPU_mem   box_loss   cls_loss  Instances       Size"
    row = (
        "      1/100     6.15G      1.234      2.345         24        640:  20%|██ | {}/100 [00:12"
    )
    assert records([heading, row.format(20), row.format(40)]) == [(20, 1.234), (40, 1.234)]
    colored = "\x1b[K" + row.format(60)
    assert records([heading, colored]) == [(60, 1.234)]
    assert records(["time,step,loss", "2026-01-01 00:00:01,1,2.5"]) == [(1, 2.5)]
    assert records(["step,loss,lr", "10,2.5,0.001", "20,nan,0.001"])[0] == (10, 2.5)


def test_a_table_needs_no_rule_at_its_end() -> None:
    """The next line ends it, or the end of the log; one without a loss is a configuration."""
    table = ["| total_timesteps | 2048 |", "| train/ | |", "| loss | 2.5 |"]
    assert records([*table, "", "saving"]) == [(2048, 2.5)]
    assert records(table) == [(2048, 2.5)]
    assert records(["| lr | 0.1 |", "| epochs | 9 |", "", *table]) == [(2048, 2.5)]


@pytest.mark.parametrize(
    "block",
    [
        ["{'accuracy': 0.31,", " 'gradient_norm': 1.5,", " 'loss': 2.5,", " 'step': 50}"],
        ["{", '  "loss": 2.5,', '  "grads": {', '    "norm": 1.5', "  },", '  "step": 50', "}"],
        [
            "{'optim': {'grad_norm': 1.5, 'x': 1,",
            "           'y': 2},",
            " 'loss': 2.5,",
            " 'step': 50}",
        ],
    ],
)
def test_a_dictionary_over_several_lines_is_one_record(block: list[str]) -> None:
    """The step behind the loss is that of this record, not of the next."""
    later = [line.replace("50", "60") for line in block]
    assert records([*block, *later]) == [(50, 2.5), (60, 2.5)]
    assert {r.grad_norm for r in readings(block)} == {1.5}


def test_a_dictionary_without_an_end_hides_nothing() -> None:
    """What another process prints in between, a cut log, a model configuration of any length."""
    assert records(["{'loss': 2.5,", "step 7 loss 2.4"]) == [(None, 2.5), (7, 2.4)]
    assert records(["{'step': 5,", " 'loss': 2.5,"]) == [(5, 2.5)]
    config = ["{", *(f'  "key_{n}": {n},' for n in range(200)), "}"]
    assert records([*config, "step 7 loss 2.4"]) == [(7, 2.4)]


def test_a_block_with_counters_of_time() -> None:
    """Composer: `Train time/batch` counts the batches before this one."""
    lines = []
    for n in (1, 2, 3):
        lines += [
            f"[batch={n}/4800]:",
            f"\t Train time/batch: {n - 1}",
            f"\t Train loss/train/total: 2.{n}",
        ]
    assert records(lines) == [(1, 2.1), (2, 2.2), (3, 2.3)]


def test_spacy_counts_steps_in_a_column_without_a_name() -> None:
    """`E` is the epoch, `#` the step."""
    lines = ["E    #       LOSS TOK2VEC  LOSS NER", "---  ------  ------------  --------"]
    lines += ["  0       0          2.50     50.00", "  0     200          2.40     40.00"]
    assert steps(lines) == [0, 200]


def test_decimal_commas() -> None:
    """`0,49` is no thousand; in such a log `2,052` is none either. `56,041` is one."""
    german = ["Epoch: 1, Cross-Entropy: 2,297537", "Epoch: 2, Cross-Entropy: 2,052"]
    assert losses(german) == [2.297537, 2.052]
    assert steps(["step: 56,041 loss: 2.1"]) == [56041]


# --- deaths without `loss: nan` -------------------------------------------------------------------


def test_a_loss_field_that_vanishes_leaves_records() -> None:
    """Megatron prints no loss for an iteration that was NaN."""
    line = "iteration {:8d}/ 8000 | {}loss scale: 1.0 | grad norm: {} | nan iterations:   0 |"
    lines = [line.format(n, f"lm loss: 7.{n}E-01 | ", "0.7") for n in range(3)]
    found = records([*lines, line.format(3, "", "nan")])
    assert found[-1] == (3, None)


def test_an_unbroken_series_of_overflows_shows() -> None:
    """DeepSpeed under Hugging Face: every update is skipped, and the loss looks good."""
    overflow = (
        "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: {}, reducing to {}"
    )
    lines = []
    for n in range(30):
        lines += [
            overflow.format(2 ** (31 - n), 2 ** (30 - n)),
            f"{{'loss': 2.{n}, 'epoch': 0.{n}}}",
        ]
    found = [r for r in readings(lines) if r.loss is not None]
    assert all(r.skipped for r in found)
    assert found[0].grad_norm is None
    assert found[-1].grad_norm == math.inf


def test_messages_of_skipped_updates() -> None:
    """They are told, but another rank's are not told again, and prose is no message."""
    nan = "WARNING: The grad norm is nan. Skipping updating the model."
    (found,) = readings([nan])
    assert (found.kind, found.skipped) == ("skip", True)
    scale = "| WARNING: overflow detected, setting loss scale to: 64"
    assert len(readings([scale, scale])) == 1
    assert not readings(["  # Avoid Inf/NaN error", "raise ValueError('found inf')"])


# --- hostile lines --------------------------------------------------------------------------------


@given(st.lists(st.text(max_size=80), max_size=30))
@settings(max_examples=150, deadline=None)
def test_any_lines_are_read_without_an_error(lines: list[str]) -> None:
    """Whatever a worker prints."""
    readings(lines)


FRAGMENTS = ["loss", "nan", "step", " ", "1", "1/2", "|", ":", "=", "[", "]", "Epoch", "%|", "\r"]
FRAGMENTS += [
    "e9",
    "-",
    ",",
    ".",
    "'",
    "{",
    "val",
    "overflow",
    "lr",
    "it/s",
    "\x1b[0m",
    "\x08",
    "99999",
]


@given(st.lists(st.lists(st.sampled_from(FRAGMENTS), max_size=14).map("".join), max_size=20))
@settings(max_examples=300, deadline=None)
def test_half_metrics_are_read_without_an_error(lines: list[str]) -> None:
    """Pieces of real lines in any order."""
    readings(lines)
