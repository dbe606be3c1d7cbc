"""The whole product from outside: a real `overnight` process on real workers."""

from __future__ import annotations

import pytest

from overnight_box import Box


@pytest.fixture
def box(tmp_path):
    """A working directory, a state directory, and the commands to use them."""
    with Box(tmp_path) as made:
        yield made
