"""A user's pattern that would never end, on the real clock of this process."""

from __future__ import annotations

import re
import signal
import threading
import time

import pytest

from overnight.adapters.patience import LIMIT_S, Patience

ENDLESS = re.compile(r"(a|aa)+$"), "a" * 60 + "b"


@pytest.fixture
def patience():
    before = signal.getsignal(signal.SIGVTALRM)
    yield Patience()
    signal.signal(signal.SIGVTALRM, before)


def test_an_endless_search_ends(patience):
    """By CPU time, so that a busy box makes no difference; and the next search is not harmed."""
    began = time.process_time()
    with pytest.raises(TimeoutError):
        patience.search(*ENDLESS)
    assert time.process_time() - began < 20 * LIMIT_S
    found = patience.search(re.compile(r"loss (\d+)"), "loss 25")
    assert found is not None
    assert found[1] == "25"
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0.0, 0.0)


def test_an_alarm_that_comes_late_harms_nobody(patience):
    """The signal may be delivered after the search has ended."""
    signal.raise_signal(signal.SIGVTALRM)
    assert patience.search(re.compile("x"), "x") is not None


def test_on_another_thread_there_is_no_limit_and_no_error():
    """Signals belong to the main thread."""
    found: list[object] = []
    pattern = re.compile("x")
    thread = threading.Thread(target=lambda: found.append(Patience().search(pattern, "x")))
    thread.start()
    thread.join()
    assert found[0] is not None
