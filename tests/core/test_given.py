"""What the config says about a run's numbers wins over what would be learned."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from overnight.core.formats.given import SLOW_LINES, Given, MetricsConfig
from overnight.core.formats.reading import Placed
from overnight.core.formats.shape import Shape


def readings(lines, **config):
    """What a run whose metrics are configured so says."""
    shape = Shape(Given(MetricsConfig(**config)))
    found = [item for number, line in enumerate(lines, 1) for item in shape.feed(line, number)]
    found += shape.end()
    return shape, [item.reading for item in found if isinstance(item, Placed)]


def records(lines, **config):
    """Step and loss of the training records."""
    _shape, found = readings(lines, **config)
    return [(r.step, r.loss) for r in found if r.is_training_record and r.kind != "skip"]


def test_columns_without_names_are_read_with_a_pattern():
    """Nothing but the pattern could tell which number is which."""
    lines = ["starting", "10 2.5 0.0003 1.21", "20 2.4 0.0003 1.19", "step 30 loss 9"]
    pattern = "^{step} {loss} {lr} {grad_norm}$"
    assert records(lines) == [(30, 9.0)]
    shape, found = readings(lines, pattern=pattern)
    assert [(r.step, r.loss, r.lr, r.grad_norm) for r in found] == [
        (10, 2.5, 0.0003, 1.21),
        (20, 2.4, 0.0003, 1.19),
    ]
    assert (shape.loss_key, shape.last_grad_norm, shape.last_lr) == ("loss", 1.19, 0.0003)


@pytest.mark.parametrize(
    "pattern",
    [
        "it {step} value {loss}",
        r"it (?P<step>\d+) value (?P<loss>[\d.]+)",
        r"it (?P<step>\d+) value (?P<loss>\d+\.\d+)",
        r"it (?P<step>\d+) value -?(?P<loss>\S+)",
    ],
)
@pytest.mark.parametrize("text", ["nan", "NaN", "inf", "Infinity"])
def test_a_pattern_for_digits_sees_nan_too(pattern, text):
    """Who writes `[\\d.]+` means any number: a dead run must not look like silence."""
    [first, second] = records(["it 1 value 2.5", f"it 2 value {text}"], pattern=pattern)
    assert first == (1, 2.5)
    assert second[0] == 2
    assert not math.isfinite(second[1])


def test_a_pattern_hears_of_skipped_updates_and_of_epochs():
    """A counter that begins anew in each epoch is added up; an evaluation is no record."""
    lines = ["epoch 0 batch 1: 2.5", "epoch 0 batch 2: 2.4", "epoch 1 batch 1: 2.3"]
    assert records(lines, pattern="epoch {epoch} batch {step}: {loss}") == [
        (1, 2.5),
        (2, 2.4),
        (3, 2.3),
    ]
    config = {"pattern": "(?:loss {loss}|val {eval_loss})"}
    _shape, found = readings(["loss 2.5", "val 2.6", "OVERFLOW! Skipping step."], **config)
    assert [(r.loss, r.eval_loss, r.kind) for r in found] == [
        (2.5, None, ""),
        (None, 2.6, ""),
        (None, None, "skip"),
    ]


@pytest.mark.parametrize(
    "line",
    [
        "tick 7 | loss 9.0 | Objective: 2.5",
        "objective=2.5, tick=7, loss=9.0, step=3",
        '{"loss": 9.0, "objective": 2.5, "tick": 7, "step": 3}',
        "{'objective': 2.5, 'tick': 7}",
    ],
)
def test_given_keys_win_over_known_names(line):
    """In text, in JSON, in dictionaries."""
    assert records([line], loss_key="objective", step_key="tick") == [(7, 2.5)]


@pytest.mark.parametrize("mark", [": ", " = ", "\t", " -> ", " => ", " | ", " is ", " (ema): "])
def test_given_keys_stand_before_their_number_in_many_ways(mark):
    """Each way in which somebody prints a name and its number."""
    assert records([f"step 7 objective{mark}2.5 now"], loss_key="objective") == [(7, 2.5)]


@pytest.mark.parametrize("text", ["-nan(ind)", "nan(snan)", "1.#QNAN", "-1.#IND00"])
def test_a_pattern_knows_the_nan_of_other_systems(text):
    """Microsoft's C library prints such."""
    [(step, loss)] = records([f"7 {text}"], pattern="^{step} {loss}$")
    assert step == 7
    assert math.isnan(loss)
    [(_step, large)] = records(["7 1.#INF"], pattern="^{step} {loss}$")
    assert large == math.inf


def test_a_pattern_that_takes_too_long_is_given_up():
    """Each slow line is passed over; after a few the general reader takes over."""
    tried = []

    def search(pattern, text):
        tried.append(text)
        if "slow" in text:
            raise TimeoutError
        return pattern.search(text)

    given = Given(MetricsConfig(pattern="^{step} {loss}$"), search)
    shape = Shape(given)
    lines = ["1 2.5", *["slow"] * SLOW_LINES, "step 2 loss 2.4"]
    found = [r for number, line in enumerate(lines) for r in shape.feed(line, number)]
    assert [(r.reading.step, r.reading.loss) for r in found] == [(1, 2.5), (2, 2.4)]
    assert given.is_too_slow
    assert len(tried) == 1 + SLOW_LINES


def test_given_keys_are_whole_names():
    """`loss` is not the end of `val_loss`, nor the beginning of `loss_scale`."""
    lines = ["step 1 val_loss 9 loss_scale 8 my_loss 7 loss 2.5", "step 2 val_loss 9"]
    assert records(lines, loss_key="loss") == [(1, 2.5)]
    assert records(["step 4 train/loss 2.5"], loss_key="train/loss") == [(4, 2.5)]


def test_given_keys_name_columns_and_nested_json():
    """A column of a CSV file, and an object in an object."""
    csv = ["epoch,tick,quality", "1,10,2.5", "1,20,2.4"]
    assert records(csv, loss_key="quality", step_key="tick") == [(10, 2.5), (20, 2.4)]
    nested = json.dumps({"model": {"main": 2.5}, "loss": 9.0})
    assert records([nested], loss_key="model/main") == [(None, 2.5)]
    assert records([nested], loss_key="model.main") == [(None, 2.5)]


def test_a_given_step_that_counts_to_a_total_begins_anew_with_it():
    """`tick 20/90` of the second epoch is the 110th."""
    lines = [f"tick {n}/90 loss 2.{n}" for n in (60, 90, 3, 20)]
    assert [step for step, _loss in records(lines, step_key="tick")] == [60, 90, 93, 110]


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"pattern": "loss (.*)"}, "write {loss}"),
        ({"pattern": "{loss} {speed}"}, "unknown name speed"),
        ({"pattern": "(?P<loss>[}"}, "not a regular expression"),
        ({"pattern": "{loss} {loss}"}, "not a regular expression"),
        ({"pattern": "{loss}", "loss_key": "x"}, "leave out loss_key"),
        ({"pattern": "{loss}", "source": "tensorboard", "path": "runs"}, "has none"),
        ({"source": "file"}, "needs a path"),
        ({"path": "x.csv"}, 'source = "file"'),
        ({"source": "wandb"}, "'stdout', 'file'"),
        ({"loss_key": ""}, "at least 1 character"),
        ({"loss_key": " / "}, "is no name"),
        ({"loss_key": "x", "step_key": "x"}, "are both 'x'"),
        ({"source": "file", "path": "a\0b"}, "no file name"),
        ({"pattern": "loss {loss"}, "two braces"),
        ({"pattern": "loss {loss} {step"}, "two braces"),
        ({"pattern": "loss step} {loss}"}, "two braces"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_a_hint(config, words):
    """Before anything is started."""
    with pytest.raises(ValidationError, match=words):
        MetricsConfig(**config)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.text(max_size=60), max_size=8), st.sampled_from(["keys", "pattern", "json"]))
def test_it_never_raises(lines, kind):
    """Whatever the bytes, and whatever the user's names look like."""
    if kind == "json":
        lines = [json.dumps({"objective": line, "tick": [line], line: 1e400}) for line in lines]
    config = {"pattern": "{step}.*?{loss}"} if kind == "pattern" else {}
    config = config or {"loss_key": "objective (a+b", "step_key": "tick["}
    readings([*lines, "objective (a+b: 1e9999 tick[ 99999999999999999999"], **config)
