"""What stands around a name is no part of it, and what looks like a record is not always one."""

from __future__ import annotations

import pytest

from shape_lab import losses, records, steps


@pytest.mark.parametrize(
    ("form", "step"),
    [
        ("Training loss (for 1 batch) at step {n}: {loss}", True),
        ("Training loss (for one batch) at step {n}: {loss}", True),
        ("Average loss at step {n} : {loss}", True),
        ("Cost after iteration {n}: {loss}", True),
        ("Loss after mini-batch {n}: {loss}", True),
        ("step {n} avg loss over last 10 batches: {loss}", True),
        ("step {n} loss on 50,000 images: {loss}", True),
        ("step {n} loss (last 100): {loss}", True),
        ("step {n} smoothed loss (window 50) = {loss}", True),
        ("Loss[17]: {loss}", False),
        ("loss after 300 samples: {loss}", False),
    ],
)
def test_a_number_inside_the_phrase_is_not_the_loss(form: str, step: bool) -> None:
    """The one behind the colon is, also where it is NaN."""
    values = ["2.5", "2.4", "2.3", "nan"]
    lines = [form.format(n=100 * n + 100, loss=value) for n, value in enumerate(values)]
    assert [repr(loss) for loss in losses(lines)] == values
    if step:
        assert steps(lines) == [100, 200, 300, 400]


@pytest.mark.parametrize(
    "form",
    [
        "step {n} eta 5h{n:02d}m loss {loss}",
        "step {n} eta 5h{n:02d}m loss {loss} | sample: {word} beta",
        "step {n} id={word}x loss={loss}",
        "step {n} img_{n:04d}.png loss {loss}",
        "step {n} is_best={word} loss={loss}",
        "step {n} phase={word} loss={loss}",
        "step {n} dt {n}.5s loss {loss}",
        "step={n} blob=" + "{word}" * 600 + " loss={loss}",
    ],
)
def test_what_stands_before_a_name_is_no_part_of_it(form: str) -> None:
    """Otherwise each line has a loss of its own, and most of them are lost."""
    words = ["alpha", "True", "be7a", "gamma", "False"]
    lines = [
        form.format(n=n + 1, loss="nan" if n > 30 else f"2.{n:02d}", word=words[n % 5] + "q" * n)
        for n in range(40)
    ]
    assert steps(lines) == list(range(1, 41))


def test_a_printed_data_frame_is_no_part_of_the_run() -> None:
    """`print(history)` at the end: its index has no heading."""
    run = [f"step {n} loss {3 - n / 100:.2f}" for n in range(1, 71)]
    frame = ["    step    loss    lr", *(f"{n}      {n + 1}  3.0000  0.001" for n in range(30))]
    assert steps(run + frame) == list(range(1, 71))
    assert losses(frame)[:2] == [3.0, 3.0]


def test_a_table_behind_records_of_another_form_is_something_else() -> None:
    """Loss by class, at the end of an epoch."""
    form = "{{'loss': {}, 'grad_norm': 1.1, 'learning_rate': 1e-05, 'epoch': 0.{}}}"
    run = [form.format(2.9 - n / 10, n) for n in range(6)]
    table = ["class,acc,loss", "0,0.5,nan", "1,0.5,nan", "2,0.5,nan"]
    assert losses(run + table) == losses(run)


def test_a_record_that_says_loss_is_nan_is_a_record() -> None:
    """MindSpore prints all of them so."""
    lines = [f"epoch: 1 step: {n}, loss is {'nan' if n > 5 else 2.5}" for n in range(1, 9)]
    assert steps(lines) == list(range(1, 9))
    assert [repr(loss) for loss in losses(lines)][-3:] == ["nan"] * 3


def test_a_whole_epoch_among_fractions_is_no_step() -> None:
    """Transformers 5 prints four digits: `1.9`, then `2`."""
    form = "{{'loss': '2.5{}', 'learning_rate': '1e-05', 'epoch': '{}'}}"
    lines = [form.format(n, text) for n, text in enumerate(["1.8", "1.9", "2", "2.1"])]
    assert steps(lines) == [None] * 4


def test_nan_at_the_head_of_an_epoch_is_believed_at_once() -> None:
    """A counter that goes back, in a line that differs from the others only by its NaN."""
    lines = [f"Epoch {e}, Batch {b}, Loss: 2.{b}5" for e in (1, 2) for b in range(4)]
    lines += ["Epoch 3, Batch 0, Loss: nan", "Epoch 3, Batch 1, Loss: nan"]
    assert len(losses(lines)) == 10


def test_a_tag_and_its_value() -> None:
    """One object a scalar, as some loggers write them."""
    lines = [f'{{"tag": "train/loss", "value": 2.{n}, "step": {n}}}' for n in range(3)]
    assert records(lines) == [(0, 2.0), (1, 2.1), (2, 2.2)]
