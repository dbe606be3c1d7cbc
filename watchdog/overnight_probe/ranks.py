"""The processes of one distributed run on this box agree, by small files beside the metrics.

Not by collectives: those would wait for ever on ranks that do something else, and the probe may
never be the reason that a training hangs. Rank 0 decides, the others follow, everybody has a
deadline, and whoever has missed one keeps the state that it has.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from typing import Any

SNAPSHOT_WAIT_S, OFFER_WAIT_S, ANSWER_WAIT_S = 2.0, 5.0, 20.0
"""Ranks that share gradients are never more than an update apart, unless the box is very busy."""


class Ranks:
    """One rank among `size`. The files are `base`.rank-N, each written by its rank alone."""

    def __init__(self, base: str, *, rank: int, size: int) -> None:
        self._base = base
        self._rank = rank
        self._size = size
        self._said: dict[str, Any] = {}

    @property
    def leads(self) -> bool:
        """Whether this rank decides."""
        return self._rank == 0

    def say(self, **values: Any) -> None:
        """Tell the others, beside what was said before. On a full disk they do not hear it."""
        self._said.update(values)
        temp = f"{self._path(self._rank)}.tmp"
        try:
            with open(temp, "w", encoding="utf-8") as file:
                json.dump(self._said, file)
            os.replace(temp, self._path(self._rank))
        except OSError:
            return

    def heard(self, key: str, accept: Callable[[Any], bool], wait_s: float) -> Any:
        """What rank 0 has said under this name, once it is acceptable; None: not in time."""
        return self._wait(lambda: self._read(0).get(key), accept, wait_s)

    def heard_of_all(self, key: str, accept: Callable[[Any], bool], wait_s: float) -> list[Any]:
        """What each other rank has said under this name; empty if one has not, in time."""
        deadline, heard = time.monotonic() + wait_s, []
        for rank in range(1, self._size):
            left_s = deadline - time.monotonic()
            said = self._wait(lambda rank=rank: self._read(rank).get(key), accept, left_s)
            if said is None:
                return []
            heard.append(said)
        return heard

    def any_says(self, key: str) -> str:
        """What another rank has said under this name, "" if none has."""
        others = (rank for rank in range(self._size) if rank != self._rank)
        said = (self._read(rank).get(key) for rank in others)
        return next((str(words) for words in said if words), "")

    def _wait(self, look: Callable[[], Any], accept: Callable[[Any], bool], wait_s: float) -> Any:
        deadline, pause_s = time.monotonic() + wait_s, 0.0005
        while True:
            said = look()
            if said is not None and accept(said):
                return said
            if time.monotonic() >= deadline:
                return None
            time.sleep(pause_s)
            pause_s = min(0.02, 2 * pause_s)

    def _read(self, rank: int) -> dict[str, Any]:
        try:
            with open(self._path(rank), encoding="utf-8") as file:
                said = json.load(file)
        except (OSError, ValueError):
            return {}
        return said if isinstance(said, dict) else {}

    def _path(self, rank: int) -> str:
        # Elastic launchers start all ranks again within one attempt: their steps begin anew.
        generation = os.environ.get("TORCHELASTIC_RESTART_COUNT") or "0"
        return f"{self._base}.rank-{generation}-{rank}"
