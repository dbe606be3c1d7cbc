"""Numbers from the device, without waiting for it: read a step or more later."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

MAX_WAITING = 64
"""So many steps may be on their way; a device that is further behind is waited for."""


class Readback:
    """Copies scalars to the host in the background and hands them on, in order."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._waiting: deque[tuple[Any, Any, Sequence[bool], Callable[..., None]]] = deque()

    def push(self, scalars: Sequence[Any], then: Callable[..., None]) -> None:
        """Call `then` with these scalar tensors as floats (None stays None) when they are known."""
        torch = self._torch
        given = [scalar is not None for scalar in scalars]
        tensors = [s.detach().reshape(()).float() for s in scalars if s is not None]
        device = next((tensor.device for tensor in tensors if tensor.is_cuda), None)
        if device is None:
            self._waiting.append(([float(tensor) for tensor in tensors], None, given, then))
        else:
            row = torch.stack([tensor.to(device) for tensor in tensors])
            copy = torch.empty(row.shape, dtype=row.dtype, pin_memory=True)
            copy.copy_(row, non_blocking=True)
            event = torch.cuda.Event()
            event.record()
            self._waiting.append((copy, event, given, then))
        self._drain(all_of_it=len(self._waiting) > MAX_WAITING)

    def finish(self) -> None:
        """Wait for all that is on its way."""
        self._drain(all_of_it=True)

    def _drain(self, *, all_of_it: bool) -> None:
        while self._waiting:
            copy, event, given, then = self._waiting[0]
            if event is not None and not event.query():
                if not all_of_it:
                    return
                event.synchronize()
            self._waiting.popleft()
            numbers = iter(copy if event is None else copy.tolist())
            then(*[next(numbers) if there else None for there in given])
