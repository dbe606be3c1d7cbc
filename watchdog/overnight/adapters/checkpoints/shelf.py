"""All that the supervisor may ask about checkpoints, behind one face."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from overnight.adapters.checkpoints.complete import identity_of
from overnight.adapters.checkpoints.discover import CheckpointWatcher
from overnight.adapters.checkpoints.naming import step_of
from overnight.adapters.checkpoints.patterns import anchored, fixed_prefix, glob_regex
from overnight.adapters.checkpoints.quarantine import Quarantine
from overnight.adapters.checkpoints.vault import Vault
from overnight.adapters.child import ChildResult, module_argv, run_child
from overnight.core.events import (
    CheckpointChecked,
    CheckpointGone,
    CheckpointSecured,
    CheckpointSeen,
    Health,
    Identity,
)
from overnight.core.orders import Tidied, Tidying

VERIFY_S = 900.0
"""Even 100 GB on a slow disk is read in this time; a verifier that takes longer is stuck."""

Seen = CheckpointSeen | CheckpointGone
Report = Callable[[Seen | CheckpointChecked | CheckpointSecured | Tidied], None]


class Shelf:
    """Discovery, verification, vault and quarantine of one run.

    Everything returns at once and reports.
    """

    def __init__(
        self,
        *,
        name: str,
        patterns: Sequence[str],
        workdir: Path,
        roots: Sequence[Path] = (),
        since_utc: float,
        report: Report,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._report = report
        self._clock = clock
        self._workdir = workdir
        self._patterns = [anchored(pattern, workdir) for pattern in patterns]
        self._watcher = CheckpointWatcher(
            patterns=patterns,
            workdir=workdir,
            roots=roots,
            since_utc=since_utc,
            report=report,
            clock=clock,
        )
        self._vault = Vault(name=name, report=report, clock=clock)
        self._quarantine = Quarantine(
            name=name, sight=self._watcher, beside=self._beside, report=report, clock=clock
        )

    def start(self, known: Sequence[Identity]) -> None:
        """Begin to watch; what is known is not reported again."""
        self._watcher.start(known)

    def existing(self) -> list[CheckpointSeen]:
        """What is complete on disk now and not known yet; before `start`, or beside it."""
        return self._watcher.existing()

    def announce(self, path: str, step: int | None) -> None:
        """The worker says that a checkpoint is complete."""
        self._watcher.announce(self._workdir / path, step=step)

    def verify(self, identity: Identity) -> None:
        """Read it in a niced child, without unpickling; CheckpointChecked follows."""

        def done(result: ChildResult) -> None:
            self._report(self._checked(identity, result))

        argv = module_argv("overnight.adapters.checkpoints.verify", identity.path)
        run_child(argv, deadline_s=VERIFY_S, done=done)

    def _checked(self, identity: Identity, result: ChildResult) -> CheckpointChecked:
        answer = result.json()
        if identity_of(Path(identity.path)) != identity:
            reason = "it changed while it was being verified"
            return CheckpointChecked(self._clock(), identity, Health.UNVERIFIED, reason)
        if answer is None:
            reason = f"the verifier failed: {result.complaint()}"
            return CheckpointChecked(self._clock(), identity, Health.UNVERIFIED, reason)
        health, reason = Health(answer["health"]), str(answer["reason"])
        return CheckpointChecked(
            self._clock(),
            identity,
            health,
            reason,
            answer.get("step"),
            partial=bool(answer.get("partial")),
        )

    def secure(self, identity: Identity, *, in_place: bool, has_step: bool) -> None:
        """Make a protected copy; CheckpointSecured follows."""
        # By its name: a step that only the content tells is that of a file written again and again.
        linkable = has_step and not in_place and step_of(Path(identity.path)) is not None
        beside = self._beside(Path(identity.path))
        self._vault.secure(identity, beside=beside, linkable=linkable)

    def tidy(self, order: Tidying) -> None:
        """Leave nothing newer than the target where the script looks; Tidied follows."""
        self._quarantine.tidy(order)

    def _beside(self, path: Path) -> Path:
        """The parent of the pattern's fixed prefix, so that no pattern ever sees the vault."""
        for pattern in self._patterns:
            if glob_regex(pattern).fullmatch(str(path)):
                return fixed_prefix(pattern).parent
        folder = path.parent
        return folder if folder == self._workdir else folder.parent

    def release(self, vault_path: str) -> None:
        """Delete a protected copy."""
        self._vault.release(vault_path)

    def unchanged(self, identity: Identity) -> bool:
        """Whether the path still holds the very bytes that were verified."""
        with contextlib.suppress(OSError):
            return identity_of(Path(identity.path)) == identity
        return False

    def vault_holds(self, identity: Identity, vault_path: str) -> bool:
        """Whether the vault's copy still is what was verified."""
        with contextlib.suppress(OSError):
            return self._vault.holds(identity, vault_path)
        return False

    def close(self) -> None:
        """Stop watching."""
        self._watcher.close()
