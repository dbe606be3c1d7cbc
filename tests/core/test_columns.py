"""CSV and other columns: which lines name them, and a NaN that was written as nothing."""

from __future__ import annotations

import math

import pytest

from overnight.core.formats.given import Given, MetricsConfig
from overnight.core.formats.shape import Shape

ROWS = [(1, "2.5"), (2, "2.4"), (3, "2.3"), (4, "2.2")]


def read(text: str, *, of_file: bool = True, loss_key: str | None = None):
    """(step, loss) of the records in the lines of a file."""
    shape = Shape(Given(MetricsConfig(loss_key=loss_key)), of_file=of_file)
    lines = enumerate(text.splitlines(), 1)
    found = [placed for number, line in lines for placed in shape.feed(line, number)]
    readings = [placed.reading for placed in [*found, *shape.end()]]
    return [(r.step, r.loss) for r in readings if r.is_training_record]


@pytest.mark.parametrize(
    "heading",
    [
        "step,loss",
        "\ufeffstep,loss",
        '"step","loss"',
        "# step,loss",
        "step, loss",
        "step;loss",
        "step\tloss",
        "# step loss",
        "step,loss[0]",
        "step,train@loss",
        "step,train:loss",
        "step,损失",
        "step,loss(k=5)",
    ],
)
@pytest.mark.parametrize("quoted", [False, True])
def test_a_file_names_its_columns_in_any_way(heading, quoted):
    """Quoted, commented, with a byte-order mark, semicolons, odd names."""
    signs = [sign for sign in ";\t" if sign in heading] or [" " if "," not in heading else ","]
    cells = [(str(step), f'"{loss}"' if quoted and signs != [" "] else loss) for step, loss in ROWS]
    text = "\n".join([heading, *(signs[0].join(row) for row in cells)])
    assert read(text) == [(step, float(loss)) for step, loss in ROWS]


def test_a_decimal_comma_beside_semicolons():
    """As spreadsheets of half of Europe write it."""
    assert read("step;loss\n1;2,5\n2;2,4") == [(1, 2.5), (2, 2.4)]


def test_one_column_and_a_thousand():
    """No step: the rows are numbered; very wide: the loss is found behind the others."""
    assert read("loss\n2.5\n2.4") == [(None, 2.5), (None, 2.4)]
    wide = ",".join(f"layer{n}" for n in range(300))
    row = ",".join("0.5" for _ in range(300))
    assert read(f"step,{wide},loss\n7,{row},2.5") == [(7, 2.5)]


@pytest.mark.parametrize("name", ["box", "total", "cls"])
def test_the_given_column_is_that_column(name):
    """YOLO's short names are spelled out only where nobody has asked for them."""
    assert read("step,total,box,cls\n1,2.5,2.5,2.5", loss_key=name) == [(1, 2.5)]


@pytest.mark.parametrize(
    "prose",
    [
        "Training loss, validation loss and accuracy: see below",
        "loss: 2.5, step: 3",
        "warning: the loss, the step, the rate",
        '{"loss": 2.5, "step": 3}',
        "loss=2.5,step=3",
        "epoch, train loss, valid loss",
    ],
)
def test_in_the_output_a_heading_has_to_look_like_one(prose):
    """Otherwise every line below it with a few numbers would be a record."""
    rows = read(f"{prose}\n1, 2.5\n1,2.5", of_file=False)
    assert all(loss == 2.5 for _step, loss in rows)
    assert len(rows) <= 1


# --- what was written as nothing ------------------------------------------------------------------

ROWS_BEFORE = 120
CSV = "step,loss,lr\n" + "".join(f"{n},2.{n},0.1\n" for n in range(1, ROWS_BEFORE))
JSON = "".join(f'{{"step": {n}, "loss": 2.{n}, "lr": 0.1}}\n' for n in range(1, ROWS_BEFORE))


def nan_steps(text: str) -> list[int | None]:
    return [step for step, loss in read(text) if loss is not None and math.isnan(loss)]


def test_an_empty_cell_where_there_has_always_been_a_number_is_nan():
    """pandas; with its gradient norm, which goes the same way."""
    assert nan_steps(CSV + "600,,0.1\n700,,0.1") == [600, 700]
    with_norm = CSV.replace(",lr", ",grad_norm,lr").replace(",0.1", ",1.5,0.1")
    assert nan_steps(with_norm + "600,,,0.1") == [600]


def test_a_null_where_there_has_always_been_a_number_is_nan():
    """orjson; also inside another object."""
    assert nan_steps(JSON + '{"step": 600, "loss": null, "lr": 0.1}') == [600]
    inside = JSON.replace('"loss": ', '"train": {"loss": ').replace(', "lr"', '}, "lr"')
    assert nan_steps(inside + '{"step": 600, "train": {"loss": null}, "lr": 0.1}') == [600]
    alone = '{"loss": 2.5}\n' * 120
    assert nan_steps(alone + '{"loss": null}') == [None]


@pytest.mark.parametrize(("rows", "wait"), [(5, 20), (10, 10), (50, 2), (100, 1), (500, 1)])
def test_the_fewer_rows_the_longer_it_waits(rows, wait):
    """Many a script writes its loss at each of the first steps, then at every tenth."""
    text = "step,loss\n" + "".join(f"{n},2.5\n" for n in range(rows))
    blank = "".join(f"{n},\n" for n in range(rows, rows + 30))
    assert nan_steps(text + blank)[0] == rows + wait - 1


def test_when_it_comes_back_it_was_never_gone():
    """From then on empty cells are usual."""
    text = CSV + "600,,0.1\n601,2.5,0.1\n" + "".join(f"{n},,0.1\n" for n in range(602, 650))
    assert nan_steps(text) == [600]


def test_training_and_validation_gone_together_is_clear():
    """One row is enough where all rows had both, however few."""
    text = "epoch,train_loss,val_loss\n" + "".join(f"{n},2.5,2.6\n" for n in range(5))
    assert len(nan_steps(text + "5,,\n")) == 1
    rows = "".join(f'{{"epoch": {n}, "train_loss": 2.5, "val_loss": 2.6}}\n' for n in range(5))
    assert len(nan_steps(rows + '{"epoch": 5, "train_loss": null, "val_loss": null}')) == 1


def test_a_loss_that_is_gone_beside_its_parts():
    """The parts go on; they are not the loss."""
    text = "step,loss,aux_loss\n" + "".join(f"{n},2.5,0.5\n" for n in range(120))
    assert nan_steps(text + "120,,0.5\n121,,0.5\n") == [120, 121]


def many(form: str) -> str:
    """120 rows of this form, with the step in place of `#`."""
    return "".join(form.replace("#", str(n)) + "\n" for n in range(120))


@pytest.mark.parametrize(
    "rows",
    [
        # Lightning: an evaluation, and a learning-rate monitor with rows of its own.
        "step,loss,val_loss\n1,2.1,\n2,2.2,\n3,2.3,\n4,2.4,\n5,2.5,\n5,,2.6\n6,2.5,\n",
        "step,loss,lr\n1,2.1,\n2,2.2,\n3,2.3,\n4,2.4,\n5,2.5,\n6,,0.1\n7,2.5,\n",
        # The loss of every third step, with the first ones before it.
        "step,loss\n1,2.1\n2,\n3,\n4,2.2\n5,\n6,\n7,2.3\n8,\n9,\n10,2.2\n11,\n12,",
        "step,loss\n1,2.1\n2,2.2\n3,\n4,2.3\n5,2.4\n6,\n7,2.3\n8,2.4\n9,\n",
        # A row of a summary.
        CSV + ",,,\n",
        CSV + "5,,\n",
        JSON + '{"step": 5, "loss": null, "eval_loss": 2.5}',
        JSON + '{"step": 5, "loss": null, "train_runtime": 60.5}',
        JSON + '{"event": "saved", "loss": null}',
        '{"step": 1, "loss": null}\n{"step": 2, "loss": null}',
        # Rows that differ in what we have no name for.
        "step,loss,val_acc\n" + many("#,2.5,") + "120,,0.75\n",
        "step,loss,phase\n" + many("#,2.5,train") + "120,,val\n",
        many('{"step": #, "loss": 2.5, "path": null}')
        + '{"step": 9, "loss": null, "path": "a.pt"}',
        many('{"step": #, "loss": 2.5, "phase": "train"}')
        + '{"step": 9, "loss": null, "phase": "eval"}',
        many('{"step": #, "loss": 2.5}') + '{"step": 9, "loss": null, "bleu": "20.1 / 18"}',
    ],
)
def test_most_empty_cells_mean_nothing(rows):
    """A row about something else, or a loss that is not written each time."""
    assert nan_steps(rows) == []


def test_rows_of_an_evaluation_are_told_by_a_word():
    """A column `phase` with `train` and `val`: the losses of one are the training's."""
    text = "epoch,phase,loss,acc\n" + "".join(
        f"{n},train,2.{n},0.5\n{n},val,9.{n},0.5\n" for n in range(5)
    )
    assert [loss for _step, loss in read(text)] == [2.0, 2.1, 2.2, 2.3, 2.4]
