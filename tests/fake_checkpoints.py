"""Checkpoints of the scripted world in fakes.py: found, verified, kept safe and moved at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from overnight.core.events import (
    CheckpointChecked,
    CheckpointSecured,
    CheckpointSeen,
    Health,
    Identity,
)
from overnight.core.orders import Tidied, Tidying

if TYPE_CHECKING:
    from fakes import World


@dataclass
class Checkpoints:
    """Every checkpoint is sound, unless its path says otherwise."""

    world: World

    def start(self, known: Sequence[Identity]) -> None:
        """Watch."""

    def existing(self) -> list[CheckpointSeen]:
        """What lies on disk."""
        return list(self.world.on_disk)

    def announce(self, path: str, step: int | None) -> None:
        """Complete now."""

    def verify(self, identity: Identity) -> None:
        """Answered at once, or never."""
        if self.world.verifier_hangs:
            return
        health = Health.CORRUPT if "bad" in identity.path else Health.VERIFIED
        partial = "weights" in identity.path
        why = "as its name says"
        self.world.put(
            CheckpointChecked(self.world.now, identity, health, why, None, partial=partial)
        )

    def secure(self, identity: Identity, *, in_place: bool, has_step: bool) -> None:
        """Linked."""
        vault = f"/vault{identity.path}"
        self.world.put(CheckpointSecured(self.world.now, identity, vault, "hard link"))

    def release(self, vault_path: str) -> None:
        """Unlinked."""

    def tidy(self, order: Tidying) -> None:
        """Moved."""
        for identity in order.aside:
            self.world.happened.append(f"aside {identity.path}")
        moved = tuple((identity, f"/aside{identity.path}") for identity in order.aside)
        self.world.put(Tidied(self.world.now, moved, problem=self.world.tidy_problem))

    def unchanged(self, identity: Identity) -> bool:
        """Nobody touches them."""
        return True

    def vault_holds(self, identity: Identity, vault_path: str) -> bool:
        """Nor with the vault."""
        return True

    def close(self) -> None:
        """Done."""
