"""When the state is kept, and which of the kept ones it goes back to; on all ranks the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from overnight_probe.channel import Rollback, Settings, now
from overnight_probe.guard import Calm
from overnight_probe.ranks import ANSWER_WAIT_S, OFFER_WAIT_S, SNAPSHOT_WAIT_S, Ranks
from overnight_probe.snapshots import Ring

_NEVER = 1 << 62


class GoingBack:
    """The snapshots of one process, taken and restored together with those of its other ranks."""

    def __init__(self, torch: Any, settings: Settings, say: Callable[..., None]) -> None:
        """`say` writes an event of the probe, where this process reports."""
        self._settings = settings
        self._say = say
        self.ring = Ring(torch, keep=settings.keep, max_bytes=settings.snapshot_bytes)
        self.calm = Calm()
        self.ranks: Ranks | None = None
        self._last: tuple[int, float] | None = None
        self._told = False

    def begin_anew(self) -> None:
        """Another model is trained from here on: what was kept, and its level, are of the first."""
        self.ring.clear()
        self.calm, self._last = Calm(), None

    # --- keeping -------------------------------------------------------------------------------

    def keep(self, step: int, optimizers: list[Any]) -> None:
        """After the update `step`: take a snapshot if one is due."""
        if not self._settings.snapshots or self.ring.refused:
            return
        if not (self._is_due(step) if self.ranks is None else self._is_agreed(self.ranks, step)):
            return
        taken = self.ring.take(step, optimizers)
        if self._told and taken:
            return
        self._tell(taken)

    def _tell(self, taken: bool) -> None:
        self._told = True
        why = self.ring.refused or None
        if why:
            self.ring.clear()
        self._say(snapshots=taken, bytes_each=self.ring.bytes_each, why=why)
        if self.ranks is not None and why:
            self.ranks.say(snapshot=[_NEVER, False], refused=why)

    def _is_due(self, step: int) -> bool:
        settings, last = self._settings, self._last
        if last is not None and (
            step - last[0] < settings.snapshot_steps or now() - last[1] < settings.snapshot_s
        ):
            return False
        self._last = (step, now())
        return self.calm.allows()

    def _is_agreed(self, ranks: Ranks, step: int) -> bool:
        """Rank 0's clock, loss and memory decide for all, at steps that all of them know."""
        if (step - self._settings.first_step - 1) % self._settings.snapshot_steps:
            return False
        if off := ranks.any_says("off"):
            raise RuntimeError(f"the probe of another rank is off: {off}")
        if ranks.leads:
            self.ring.refused = ranks.any_says("refused")
            if self.ring.refused:
                self._tell(taken=False)
                return False
            due = self._is_due(step)
            ranks.say(snapshot=[step, due])
            return due
        heard = ranks.heard("snapshot", lambda said: said[0] >= step, SNAPSHOT_WAIT_S)
        if heard is None:
            self.ring.refused = "the ranks do not step together"
            self._tell(taken=False)
        return bool(heard) and heard[1] and heard[0] == step

    # --- going back ----------------------------------------------------------------------------

    def go_back(self, order: Rollback, step: int) -> bool:
        """Before the update `step`: restore what the order asks for. False: nothing was changed."""
        offer = self.ring.sound_steps(before_step=order.before_step)
        chosen = _newest(offer, order.healthy_step)
        if self.ranks is not None:
            chosen = self._agreed_step(self.ranks, order, step, offer)
        if chosen is None:
            held = ", ".join(map(str, self.ring.steps)) or "none"
            self._say(rollback=order.number, ok=False, step=step, why=f"snapshots of steps: {held}")
            return False
        self.ring.restore(chosen)
        self._last = (step, now())
        self._say(rollback=order.number, ok=True, step=step, snapshot_step=chosen)
        return True

    def _agreed_step(
        self, ranks: Ranks, order: Rollback, step: int, offer: list[int]
    ) -> int | None:
        """The newest snapshot that all ranks hold, if all of them are at this very step."""

        def is_now(said: Any) -> bool:
            return said[:2] == [order.number, step]

        if not ranks.leads:
            ranks.say(offer=[order.number, step, offer])
            heard = ranks.heard("restore", is_now, ANSWER_WAIT_S)
            return None if heard is None else heard[2]
        common = set(offer)
        for said in ranks.heard_of_all("offer", is_now, OFFER_WAIT_S) or [[0, 0, []]]:
            common &= set(said[2])
        chosen = _newest(sorted(common), order.healthy_step)
        ranks.say(restore=[order.number, step, chosen])
        return chosen


def _newest(steps: list[int], healthy_step: int) -> int | None:
    """The newest up to `healthy_step`, else the newest of all; None without any."""
    healthy = [step for step in steps if step <= healthy_step]
    return max(healthy or steps, default=None)
