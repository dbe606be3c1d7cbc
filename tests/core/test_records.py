"""The record stream: one source an attempt, no duplicates, positions in order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from overnight.core.events import LogChunk, Position, StepMetric
from overnight.core.formats import WorkerEvent
from overnight.core.formats.given import MetricsConfig
from overnight.core.records import RecordStream


class Worker:
    """A worker that prints to its log and writes metrics, and the stream that reads both."""

    def __init__(self, *, attempt: int = 1, records_before: int = 0, **more: Any) -> None:
        self.stream = RecordStream(attempt, records_before=records_before, **more)
        self.events: list[WorkerEvent] = []

    def _read(self, source, at: float, lines: tuple[str, ...], **more: Any) -> Iterator[StepMetric]:
        chunk = LogChunk(at, 1, source, lines, first_line=10, end_offset=0, **more)
        for found in self.stream.read(chunk, time_utc=1000.0 + at):
            if isinstance(found, WorkerEvent):
                self.events.append(found)
            else:
                yield found

    def log(self, *lines: str, at: float = 0.0) -> list[StepMetric]:
        """Records read from these lines of worker.log."""
        return list(self._read("log", at, lines))

    def metrics(self, *lines: str, at: float = 0.0) -> list[StepMetric]:
        """Records read from these lines of the metrics file."""
        return list(self._read("metrics", at, lines))

    def file(self, *lines: str, at: float = 0.0, **more: Any) -> list[StepMetric]:
        """Records read from these lines of a file that the config names."""
        return list(self._read("file", at, lines, **more))


def jsonl(*steps: int) -> tuple[str, ...]:
    """Metric lines of these steps."""
    return tuple(f'{{"step": {step}, "loss": 2.0}}' for step in steps)


def steps(records: list[StepMetric]) -> list[int]:
    """The steps of records."""
    return [record.step for record in records]


HELLO = '{"event": "hello", "total_steps": 500}'


def test_records_have_positions_lines_and_times() -> None:
    """Our own order, the line in the file, and the wall clock for people."""
    first, second = Worker(attempt=3).log("hi", "step 7 loss 2.0", "step 8 loss 1.9", at=5.0)
    assert first.position == Position(3, 1)
    assert second.position == Position(3, 2)
    assert (first.line, second.line) == (11, 12)
    assert (first.at, first.time_utc, first.digits) == (5.0, 1005.0, 2)


def test_without_steps_records_are_numbered_across_attempts() -> None:
    """A script that prints no step gets the record number, continued after a restart."""
    assert steps(Worker().log("loss 2.0", "loss 2.0", "loss 1.9")) == [1, 2, 3]
    assert steps(Worker(attempt=2, records_before=3).log("loss 1.8")) == [4]


@pytest.mark.parametrize(
    ("lines", "accepted"),
    [
        pytest.param(["step 5 loss 2.0"] * 8, [5], id="eight-ranks-say-the-same"),
        pytest.param(["step 5 loss nan"] * 8, [5], id="eight-ranks-say-nan"),
        pytest.param(["step 5 loss nan norm nan"] * 2, [5], id="nan-loss-and-norm"),
        pytest.param(["step 5 loss 2.0", "step 5 loss 2.1"], [5], id="another-rank"),
        pytest.param(["step 5 loss 2.0", "step 5 loss nan"], [5, 5], id="a-rank-with-nan"),
        pytest.param(["step 5 loss 2.0", "step 6 loss 2.0"], [5, 6], id="other-steps"),
        pytest.param(["loss 2.0", "loss 2.0"], [1, 2], id="no-steps-no-duplicates"),
    ],
)
def test_the_same_line_again_is_no_record(lines: list[str], accepted: list[int]) -> None:
    """Ranks and redrawn bars repeat themselves: three times NaN is not three NaN records."""
    assert steps(Worker().log(*lines)) == accepted


def test_the_metrics_file_takes_over_from_its_first_metric_on() -> None:
    """What the log has given already is not taken again, and the log is then silent."""
    worker = Worker()
    assert steps(worker.log("step 1 loss 2.0", "step 2 loss 2.0")) == [1, 2]
    assert steps(worker.metrics(*jsonl(1, 2, 3, 4), at=1.0)) == [3, 4]
    assert worker.log("step 5 loss 2.0", at=1.1) == []
    assert worker.stream.source == "the metrics file"


def test_a_hello_claims_the_metrics_file_and_tells_the_length() -> None:
    """A cooperating worker's log is not read for records from its first line on."""
    worker = Worker()
    assert worker.metrics(HELLO) == []
    assert worker.log("initial loss: 10.9", "step 1 loss 2.0", at=1.0) == []
    assert steps(worker.metrics(*jsonl(1), at=1.0)) == [1]
    assert worker.stream.total_steps == 500
    assert [event.name for event in worker.events] == ["hello"]


def test_a_hello_that_nothing_follows_does_not_blind_us() -> None:
    """A minute of steps in the log without any metric: the log is read after all."""
    worker = Worker()
    worker.metrics(HELLO)
    assert worker.log("step 1 loss 2.0", at=59.0) == []
    assert steps(worker.log("step 2 loss 2.0", at=61.0)) == [2]
    assert worker.stream.notes == [
        "no metrics in the metrics file for 61 s: reading worker.log instead"
    ]


def test_a_metrics_file_that_falls_silent_is_given_up() -> None:
    """Ten median gaps without a metric while the log shows newer steps."""
    worker = Worker()
    for step in range(1, 6):
        worker.metrics(*jsonl(step), at=10.0 * step)
    assert worker.log("step 6 loss 2.0", at=140.0) == []
    assert worker.log("step 5 loss 2.0", at=160.0) == []
    assert steps(worker.log("step 7 loss 2.0", at=160.0)) == [7]
    assert worker.stream.source == "worker.log"
    assert len(worker.stream.notes) == 1
    assert steps(worker.metrics(*jsonl(6, 7, 8), at=170.0)) == [8]


def test_metrics_that_come_in_bunches_are_not_silent_in_between() -> None:
    """A worker that buffers its file has the pace of its bunches, not of its lines."""
    worker = Worker()
    for bunch in range(4):
        first = 50 * bunch + 1
        worker.metrics(*jsonl(*range(first, first + 50)), at=30.0 * bunch)
    assert worker.log("step 201 loss 2.0", at=92.0) == []
    assert worker.stream.notes == []


def test_protocol_events_in_the_log_are_not_obeyed() -> None:
    """A log may print anything; the protocol has a file of its own."""
    worker = Worker()
    assert worker.log('{"event": "checkpoint", "path": "/etc"}') == []
    assert worker.events == []
    assert worker.stream.source == "worker.log"


def test_evaluations_are_no_records_but_the_length_is_learned() -> None:
    """`max_steps` may stand in any line that carries metrics."""
    worker = Worker()
    assert worker.log("step 5 val loss 2.0", "step 6 max_steps 900 loss 2.0")[0].step == 6
    assert worker.stream.total_steps == 900


def test_steps_may_go_back() -> None:
    """Positions order the records, steps are labels."""
    records = Worker().log("step 100 loss 2.0", "step 1 loss 2.0")
    assert steps(records) == [100, 1]
    assert records[0].position < records[1].position


CSV = MetricsConfig(source="file", path="metrics.csv")
STATES = MetricsConfig(source="trainer_state", path="out/*/trainer_state.json")
ROWS = ("step,loss", "1,2.5", "2,2.4", "3,2.3")


def test_a_file_that_the_config_names_is_the_source_from_the_start() -> None:
    """Neither the output nor the protocol's metrics are mixed into it; the protocol is heard."""
    worker = Worker(metrics=CSV)
    assert worker.stream.source == "the file of [metrics]"
    assert worker.log("step 1 loss 9.0") == []
    assert worker.metrics(HELLO, *jsonl(1)) == []
    assert [event.name for event in worker.events] == ["hello"]
    assert steps(worker.file(*ROWS, begins=True)) == [1, 2, 3]
    assert worker.stream.shape.loss_key == "loss"


def test_a_file_that_is_written_anew_gives_only_what_is_new() -> None:
    """Lightning's CSVLogger writes all of it again when a column is added."""
    worker = Worker(metrics=CSV)
    worker.file(*ROWS, begins=True)
    again = ("step,lr,loss", "1,,2.5", "2,,2.4", "3,,2.3", "4,0.1,2.2")
    [record] = worker.file(*again, at=5.0, begins=True)
    assert (record.step, record.loss, record.lr) == (4, 2.2, 0.1)


def test_a_file_that_begins_to_count_anew_is_believed_later() -> None:
    """What is known comes again at once, not a minute later."""
    worker = Worker(metrics=CSV)
    worker.file(*ROWS, begins=True)
    assert worker.file("step,loss", "1,3.0", at=5.0, begins=True) == []
    assert steps(worker.file("2,2.9", at=70.0)) == [2]


def test_behind_old_rows_the_heading_still_names_the_columns() -> None:
    """An attempt that appends to the file of the one before."""
    worker = Worker(metrics=CSV, resumed_step=100)
    found = worker.file("1,101,2.5", heading="epoch,step,train_loss")
    assert [(r.step, r.loss, r.epoch) for r in found] == [(101, 2.5, 1.0)]


def test_a_silent_file_is_given_up_for_newer_steps_and_taken_again() -> None:
    """Ten minutes, because TensorBoard writes in blocks; and it says so."""
    worker = Worker(metrics=CSV, started_at=100.0)
    worker.file(*ROWS, begins=True, at=110.0)
    assert worker.log("step 4 loss 2.2", at=700.0) == []
    assert steps(worker.log("step 5 loss 2.1", at=711.0)) == [5]
    assert worker.stream.notes == [
        "no metrics in the file of [metrics] for 601 s: reading worker.log instead"
    ]
    assert steps(worker.file("5,2.1", "6,2.0", at=720.0)) == [6]
    assert worker.stream.source == "the file of [metrics]"


def test_a_file_that_never_appears_does_not_blind_us() -> None:
    """The path was wrong: after ten minutes the output is better than nothing."""
    worker = Worker(metrics=CSV, started_at=100.0)
    assert worker.log("step 1 loss 2.2", at=650.0) == []
    assert steps(worker.log("step 2 loss 2.1", at=701.0)) == [2]


def test_a_history_gives_only_what_lies_behind_the_checkpoint() -> None:
    """Each trainer_state.json holds the whole past; it may be hours old and is not given up."""
    worker = Worker(attempt=2, metrics=STATES, started_at=0.0, resumed_step=20)
    entries = [f'{{"loss": 2.5, "step": {step}}}' for step in (10, 20, 30, 40)]
    assert steps(worker.file(*entries[:3], at=7200.0, begins=True)) == [30]
    assert worker.log("step 35 loss 2.1", at=9000.0) == []
    assert steps(worker.file(*entries, at=14400.0, begins=True)) == [40]


def test_a_waiting_record_of_the_file_is_complete_at_the_end() -> None:
    """A dictionary over several lines, in a text file."""
    worker = Worker(metrics=CSV)
    assert worker.file("{'loss': 2.5,", " 'step': 7}", begins=True)[0].step == 7
    assert worker.file("step: 8", "loss: 2.4") == []
    assert [r.step for r in worker.stream.finish(at=1.0, time_utc=1.0)] == [8]


def test_old_rows_that_come_late_are_still_old() -> None:
    """A script that loads for minutes, then writes the kept rows of its file again."""
    worker = Worker(attempt=2, metrics=CSV, started_at=0.0, resumed_step=2)
    assert steps(worker.file(*ROWS, at=300.0, begins=True)) == [3]


HIST = [f"{n},{3 - n / 100:.4f}" for n in range(6)]


def test_a_file_without_steps_that_is_written_anew_gives_each_row_once() -> None:
    """`DataFrame.to_csv` after each step: the rows at its head are those of before."""
    worker = Worker(metrics=MetricsConfig(source="file", path="m.csv", loss_key="loss"))
    found = []
    for count in range(1, 7):
        found += worker.file(",loss", *HIST[:count], at=float(count), begins=True)
    assert [(r.step, r.loss) for r in found] == [(n + 1, 3 - n / 100) for n in range(6)]
    other = worker.file(",loss", "0,2.5", "1,2.4", at=9.0, begins=True)
    assert [(r.step, r.loss) for r in other] == [(7, 2.5), (8, 2.4)]
    assert [r.loss for r in worker.file("2,2.3", at=10.0)] == [2.3]


def continued(lines: list[str], resumed_step: int, more: list[str], **config: Any) -> list[int]:
    """The steps of an attempt that resumes there, after one that has printed these lines."""
    first = Worker(**config)
    first.log(*lines)
    second = Worker(attempt=2, resumed_step=resumed_step, earlier=first.stream.steps, **config)
    return steps(second.log(*more))


def epochs(form: str, *ranges: tuple[int, int, int]) -> list[str]:
    """Lines of epochs: (epoch, first, last), in steps of ten."""
    return [
        form.format(e=epoch, n=n)
        for epoch, first, last in ranges
        for n in range(first, last + 1, 10)
    ]


FORMS = [
    "epoch {e} step {n}/100 loss 2.5",
    "[{n}/100] loss 2.5",
    "epoch {e} iter {n} loss 2.5",
]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("resumed", "more", "expected"),
    [
        (150, (1, 60, 100), [160, 170, 180, 190, 200]),  # in the middle of an epoch
        (200, (2, 10, 30), [210, 220, 230]),  # at the end of one
        (230, (2, 40, 60), [240, 250, 260]),  # in the one that had begun
        (300, (3, 10, 20), [310, 320]),  # in one that had not
    ],
)
def test_counters_go_on_after_a_resume(form, resumed, more, expected) -> None:
    """The first attempt has shown that they begin anew with each epoch."""
    before = epochs(form, (0, 10, 100), (1, 10, 100), (2, 10, 100))
    assert continued(before, resumed, epochs(form, more)) == expected


def test_a_counter_that_never_began_anew_says_itself_where_it_is() -> None:
    """So that a script that ignores its checkpoint is seen to start from the head."""
    before = epochs("step {n} loss 2.5", (0, 10, 250))
    assert continued(before, 250, ["step 260 loss 2.5"]) == [260]
    assert continued(before, 250, ["step 10 loss 2.5"]) == [10]
    printed = epochs(FORMS[0], (0, 10, 100), (1, 10, 50))
    assert continued(printed, 150, epochs(FORMS[0], (0, 10, 20))) == [10, 20]


def test_counters_go_on_over_an_attempt_that_printed_nothing() -> None:
    first = Worker()
    first.log(*epochs(FORMS[0], (0, 10, 100), (1, 10, 100)))
    second = Worker(attempt=2, resumed_step=150, earlier=first.stream.steps)
    third = Worker(attempt=3, resumed_step=150, earlier=second.stream.steps)
    assert steps(third.log(*epochs(FORMS[0], (1, 60, 80)))) == [160, 170, 180]


def test_a_run_that_is_not_understood_is_told_once() -> None:
    """After five minutes, with what was given and is of no use."""
    worker = Worker()
    worker.log(*["something"] * 30, at=10.0)
    assert worker.stream.advise(299.0) == ""
    assert "30 lines of worker.log say no training loss" in worker.stream.advise(301.0)
    assert worker.stream.advise(999.0) == ""
    assert Worker().stream.advise(999.0) == ""  # a script that prints nothing
    understood = Worker()
    understood.log("step 1 loss 2.5", *["something"] * 30)
    assert understood.stream.advise(999.0) == ""


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"loss_key": "objective"}, "none names loss_key = 'objective'"),
        ({"pattern": "^{loss}$"}, "the pattern fits none of them"),
    ],
)
def test_what_was_given_in_vain_is_named(config: dict[str, str], words: str) -> None:
    worker = Worker(metrics=MetricsConfig.model_validate(config))
    worker.log(*["step 3 loss 2.5"] * 30)
    assert words in worker.stream.advise(301.0)


def test_a_path_without_anything_new_is_named() -> None:
    worker = Worker(metrics=CSV)
    worker.log(*["something"] * 30)
    assert "path = 'metrics.csv'" in worker.stream.advise(301.0)


def test_a_pattern_that_was_given_up_is_told() -> None:
    def slow(_pattern: object, _text: str) -> None:
        raise TimeoutError

    worker = Worker(metrics=MetricsConfig(pattern="{loss}"), search=slow)
    worker.log(*["x"] * 30)
    assert "takes too long" in worker.stream.advise(1.0)
    assert worker.stream.advise(2.0) == ""


def test_a_null_in_the_metrics_file_is_nan() -> None:
    """Some JSON writers know no NaN."""
    worker = Worker()
    worker.metrics(*jsonl(*range(1, 120)))
    [record] = worker.metrics('{"step": 120, "loss": null}')
    assert repr(record.loss) == "nan"


def test_a_file_that_is_written_anew_goes_on_after_a_resume() -> None:
    """Rows of this process only, all of them again at each save: none is taken for a known one."""
    first = Worker(metrics=CSV)
    head = "epoch,batch,loss"
    rows = [f"{e},{b},2.5" for e in range(4) for b in range(10, 41, 10)]
    assert steps(first.file(head, *rows[:13], begins=True)) == list(range(10, 140, 10))
    second = Worker(attempt=2, metrics=CSV, resumed_step=120, earlier=first.stream.steps)
    more = rows[12:] + [f"4,{b},2.5" for b in range(10, 41, 10)]
    found = []
    for count in range(1, len(more) + 1):
        found += steps(second.file(head, *more[:count], at=100.0 + 5 * count, begins=True))
    assert found == list(range(130, 210, 10))


def test_an_epoch_that_is_begun_again_after_a_resume_is_not_the_next_one() -> None:
    """No epoch is printed; the script goes back to its beginning."""
    before = epochs(FORMS[1], (0, 10, 100), (1, 10, 90))
    assert continued(before, 175, epochs(FORMS[1], (1, 10, 30))) == [110, 120, 130]


@pytest.mark.parametrize("key", ["tick", "step"])
def test_a_step_that_never_comes_is_named(key: str) -> None:
    worker = Worker(metrics=MetricsConfig(step_key=key))
    worker.log(*[f"step: {n} loss: 2.5" for n in range(30)])
    assert ("step_key = 'tick'" in worker.stream.advise(1.0)) is (key == "tick")
