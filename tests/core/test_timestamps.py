"""The time at the head of a line."""

from __future__ import annotations

import pytest

from overnight.core.timestamps import stamp_s


@pytest.mark.parametrize(
    ("earlier", "later", "apart_s"),
    [
        ("2024-10-01 00:00:00.858: a", "2024-10-01 00:09:00.308: b", 539.45),
        ("2026-07-21T02:52:10 - 0 - x", "2026-07-22T02:52:10 - 0 - x", 86_400),
        ("[gpu-node] 2021-04-23 18:00:00,409 (t)", "[gpu-node] 2021-04-23 18:00:12,409", 12),
        ("08/03 22:08:00 - mmengine", "08/03 22:08:01 - mmengine", 1),
        ("[11/18 18:13:40] d2.utils", "[11/19 18:13:40] d2.utils", 86_400),
    ],
)
def test_time_stamps(earlier: str, later: str, apart_s: float) -> None:
    """Differences are all that counts."""
    first, second = stamp_s(earlier), stamp_s(later)
    assert first is not None
    assert second is not None
    assert second - first == pytest.approx(apart_s)


@pytest.mark.parametrize(
    "line",
    [
        "step 3 loss 2.0",
        "12/40 [00:10<60:33:09]",
        "2024-13-45 10:00:00",
        "eta: 3 days, 6:25:11",
        "",
        "x" * 80 + " 2024-10-01 00:00:00",
    ],
)
def test_lines_without_a_time(line: str) -> None:
    """Elapsed times, counters, impossible dates, and dates far inside a line are no time stamps."""
    assert stamp_s(line) is None
