"""A checkpoint watcher over a folder, and the saves of a training script."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from overnight.adapters.checkpoints.complete import identity_of
from overnight.adapters.checkpoints.discover import CheckpointWatcher
from overnight.core.events import CheckpointGone, CheckpointSeen
from reports import Reports

POLL_S = 0.2
SILENT_S = 1.0
"""Several polls."""

HOUR_S = 3600.0
"""How old the bytes of an atomic save are: a poll would take that for its moment."""


class Watch:
    """A watcher over a folder, once it watches."""

    def __init__(self, workdir: Path, patterns: tuple[str, ...], **options: Any) -> None:
        self.workdir, self.reports = workdir, Reports()
        self.watcher = CheckpointWatcher(
            patterns=patterns,
            workdir=workdir,
            since_utc=options.pop("since_utc", time.time() - 5),
            report=self.reports.put,
            poll_s=POLL_S,
        )
        self.watcher.start(**options)

    def seen(self, path: Path) -> CheckpointSeen:
        """The next report, which must be this checkpoint, at the moment of its completion."""
        found = self.reports.next()
        assert isinstance(found, CheckpointSeen), found
        assert found.identity.path == str(path)
        assert found.identity == identity_of(path)
        assert abs(found.saved_utc - time.time()) < HOUR_S / 2
        return found

    def gone(self, path: Path) -> CheckpointGone:
        """The next report, which must be the loss of this one."""
        found = self.reports.next()
        assert isinstance(found, CheckpointGone), found
        assert found.identity.path == str(path)
        return found


def begun(watch: Watch, folder: Path) -> Watch:
    """The watcher has reported what was there before it."""
    watch.seen(folder / "step_1.pt")
    return watch


def rename_into(path: Path, data: bytes = b"weights") -> Path:
    """An atomic save."""
    temp = path.with_name(path.name + ".tmp")
    temp.write_bytes(data)
    old = time.time() - HOUR_S
    os.utime(temp, (old, old))
    return temp.rename(path)
