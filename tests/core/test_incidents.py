"""Incidents are episodes: what opens one, what joins it, what ends it."""

from __future__ import annotations

import pytest

from core_lab import identity, verdict
from overnight.core.events import Action, Decision, Fault, Health, Severity, Target
from overnight.core.incidents import Book, Change, decided
from overnight.core.story import Incident

NAN, SPIKE, CRASH, STALL = Fault.LOSS_NONFINITE, Fault.LOSS_SPIKE, Fault.CRASH, Fault.STALL
WARNING, CRITICAL = Severity.WARNING, Severity.CRITICAL
OPENED, ESCALATED, JOINED = Change.OPENED, Change.ESCALATED, Change.JOINED
TELL = Decision(Action.NOTIFY, "told")
TARGET = Target("250.pt", 250, Health.HEALTHY, None, identity("250.pt"), "good")
ROLL = Decision(Action.ROLLBACK, "rolled back", target=TARGET)
RESTART = Decision(Action.RESTART, "restarted")


def judge(
    book: Book, fault: Fault, decision: Decision = TELL, *, at: float = 0.0, count: int = 0, **more
) -> tuple[Incident, Change]:
    """A verdict in the book, at a time and a count of records."""
    return book.judge(verdict(fault, **more), decision, now_utc=at, record_count=count)


def test_a_warning_opens_and_stronger_ones_escalate_the_same_row() -> None:
    """Fault, severity, action and detected step follow; the onset stays."""
    book = Book()
    first, change = judge(book, SPIKE, severity=WARNING, step=400, onset=395)
    assert (first.id, change, first.action) == (1, OPENED, Action.NOTIFY)
    second, change = judge(book, NAN, ROLL, step=420, onset=418, count=20)
    assert (second.id, change) == (1, ESCALATED)
    assert (second.fault, second.severity, second.action) == (NAN, CRITICAL, Action.ROLLBACK)
    assert (second.onset_step, second.detected_step) == (395, 420)
    assert (second.checkpoint_path, second.checkpoint_step) == ("250.pt", 250)
    assert book.open_incidents() == [second]


def test_a_softer_verdict_joins_and_changes_no_word() -> None:
    """The row shows the strongest one."""
    book = Book()
    judge(book, NAN, ROLL)
    joined, change = judge(book, SPIKE, severity=WARNING, step=450, count=50)
    assert change is JOINED
    assert (joined.fault, joined.severity, joined.action) == (NAN, CRITICAL, Action.ROLLBACK)
    assert joined.last_bad == 50


@pytest.mark.parametrize(
    ("fault", "count", "change"),
    [
        pytest.param(SPIKE, 99, ESCALATED, id="same-family-99-records-later"),
        pytest.param(SPIKE, 100, OPENED, id="same-family-100-records-later"),
        pytest.param(STALL, 1, OPENED, id="another-family"),
        pytest.param(Fault.GPU_HOT, 1, OPENED, id="a-device"),
    ],
)
def test_what_belongs_together(fault: Fault, count: int, change: Change) -> None:
    """One family, less than a hundred records after the last bad one."""
    book = Book()
    judge(book, NAN)
    assert judge(book, fault, count=count)[1] is change


@pytest.mark.parametrize(
    ("at", "step", "attempt", "joins"),
    [
        pytest.param(10.0, 401, 1, True, id="within-ten-seconds"),
        pytest.param(10.1, 401, 1, False, id="later"),
        pytest.param(5.0, 401, 2, False, id="the-next-attempt-died"),
        pytest.param(5.0, None, 1, False, id="died-before-any-record"),
    ],
)
def test_a_death_joins_the_numeric_verdict_before_it(
    at: float, step: int | None, attempt: int, joins: bool
) -> None:
    """The same attempt, within ten seconds: a NaN and the crash it caused are one story."""
    book = Book()
    judge(book, NAN, severity=WARNING)
    found, change = judge(
        book, CRASH, RESTART, at=at, step=step, attempt=attempt, cause="traceback"
    )
    assert (found.id == 1) is joins
    assert change is (ESCALATED if joins else OPENED)
    assert (found.cause, found.action) == ("traceback", Action.RESTART)


def test_the_ten_seconds_count_from_the_last_numeric_verdict() -> None:
    """An episode may have been open for long."""
    book = Book()
    judge(book, SPIKE, severity=WARNING, at=0.0)
    judge(book, NAN, severity=WARNING, at=60.0, count=30)
    found, change = judge(book, CRASH, RESTART, at=65.0, count=31, cause="runtime-error")
    assert (found.id, change) == (1, ESCALATED)


def test_a_death_after_a_critical_number_is_its_end_and_is_acted_on() -> None:
    """Fault and reason stay the number's, the cause is the death's, and the action is taken."""
    book = Book()
    judge(book, NAN)
    found, change = judge(book, CRASH, RESTART, at=1.0, cause="runtime-error")
    assert (found.fault, found.cause, change) == (NAN, "runtime-error", ESCALATED)
    assert found.action is Action.RESTART


def test_an_episode_closes_after_100_calm_records() -> None:
    """With the outcome that is known, else as healed by itself."""
    book = Book()
    judge(book, SPIKE, severity=WARNING, count=10)
    assert book.calm(record_count=109, now_utc=1.0, busy=None) == []
    (closed,) = book.calm(record_count=110, now_utc=2.0, busy=None)
    assert (closed.closed_utc, closed.outcome) == (2.0, "healed by itself")
    assert book.open_incidents() == []
    assert judge(book, SPIKE, count=111)[0].id == 2


def test_busy_and_human_incidents_stay_open() -> None:
    """A recovery under way and a person's task do not end by calm."""
    book = Book()
    judge(book, NAN)
    assert book.calm(record_count=500, now_utc=1.0, busy=1) == []
    judge(book, STALL, Decision(Action.HALT, "halted", needs_you=True))
    closed = book.calm(record_count=500, now_utc=1.0, busy=None)
    assert [incident.fault for incident in closed] == [NAN]


def test_an_escalation_forgets_the_outcome_of_before() -> None:
    """A healed episode that comes back is not healed."""
    book = Book()
    first, _change = judge(book, NAN, ROLL)
    book.put(decided(first, ROLL))
    book.put(first.passed("healed", 1.0))
    again, _change = judge(book, NAN, ROLL, count=50)
    assert again.outcome is None
    assert again.progress == (("healed", 1.0),)


def test_the_end_of_a_run_closes_all() -> None:
    """What is known of an outcome stays."""
    book = Book()
    judge(book, NAN)
    judge(book, STALL)
    closed = book.close_all(now_utc=9.0, outcome="run completed")
    assert [(i.outcome, i.closed_utc) for i in closed] == [("run completed", 9.0)] * 2
    assert book.open_incidents() == []


def test_a_book_goes_on_where_the_last_one_ended() -> None:
    """Open incidents are taken over, closed ones are not, numbers are never used twice."""
    old = Book()
    first, _change = judge(old, NAN)
    closed = Incident(7, STALL, WARNING, 0.0, "x", Action.NOTIFY, closed_utc=1.0)
    book = Book([first, closed], next_id=8)
    assert [incident.id for incident in book.open_incidents()] == [1]
    assert (book.get(1), book.get(7)) == (first, None)
    assert judge(book, STALL)[0].id == 8
