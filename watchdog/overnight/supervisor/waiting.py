"""Between two attempts: back-off, cooling, and the GPU memory of the dead to be released."""

from __future__ import annotations

from overnight.core.detect.gpu_hot import Cooling
from overnight.core.events import Action, GpuSample
from overnight.core.lifecycle import Event
from overnight.supervisor.phases import COOL_S, GPU_MEMORY_S, Phase, Recovery
from overnight.supervisor.ports import Effects
from overnight.supervisor.run import Run


class Wait:
    """When the next attempt may start."""

    def __init__(self, run: Run, effects: Effects) -> None:
        self._run = run
        self._effects = effects

    def begin(self, recovery: Recovery, at: float) -> None:
        """The worker is gone and the decision stands."""
        decision, config = recovery.decision, self._run.settings.gpu
        recovery.phase = Phase.WAITING
        recovery.due = at + decision.delay_s * (1 + 0.1 * self._effects.jitter())
        recovery.memory_deadline = at + GPU_MEMORY_S
        if decision.action is Action.COOL and self._run.gpus:
            recovery.cooling = Cooling(config, at)
            recovery.deadline = at + COOL_S
            self._run.life.apply(Event.COOL)
            self._effects.say(
                f"cooling until every GPU is below {config.resume_below_c:g} °C"
                f" for {config.hold_s:g} s"
            )
            return
        self._run.life.apply(Event.WAIT)
        if decision.delay_s > 0:
            self._effects.say(f"next attempt in {decision.delay_s:.0f} s (back-off)")

    def gpu(self, recovery: Recovery, sample: GpuSample) -> None:
        """What a card says meanwhile."""
        if recovery.cooling is not None and recovery.cooling.observe(sample):
            recovery.cooled = True
        since = recovery.memory_deadline - GPU_MEMORY_S
        if sample.at > since and not recovery.dead_pids & set(sample.pids):
            recovery.dead_pids = frozenset()

    def too_hot(self, recovery: Recovery, at: float) -> bool:
        """Whether the card has had its time to cool and did not."""
        waits = recovery.cooling is not None and not recovery.cooled
        return waits and at >= recovery.deadline

    def is_over(self, recovery: Recovery, at: float) -> bool:
        """Whether nothing is left to be waited for."""
        if recovery.cooling is not None and not recovery.cooled:
            return False
        return at >= recovery.due and (not recovery.dead_pids or at >= recovery.memory_deadline)
