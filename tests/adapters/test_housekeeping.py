"""Wall-clock chores: they start and end without waiting for anything."""

from __future__ import annotations

import threading

from overnight.adapters.housekeeping import Chores
from reports import Reports


def test_chores_start_and_end_at_once() -> None:
    """Nothing is due at the start; closing twice, or before the start, is no error."""
    reports = Reports()
    chores = Chores(reports.put)
    chores.close()
    before = threading.active_count()
    chores.start()
    assert threading.active_count() > before
    chores.close()
    chores.close()
    assert not reports.rest()
