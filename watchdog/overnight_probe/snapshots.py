"""Copies of the training state in host memory, to go back to without a restart."""

from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

MEMORY_SHARE = 0.5
"""All snapshots together may take this share of the memory that is available at the first one."""

BUFFER = "buffer"


Holder = Callable[[], "dict[str, Any] | None"]
"""Gives the dictionary that holds a value now; None if there is none any more."""


@dataclass
class _Kept:
    """One value: where it lives (a number: nowhere), how to get there again, and its copy."""

    place: Callable[[], Any]
    holder: Holder | None
    name: str
    copy: Any

    @property
    def is_buffer(self) -> bool:
        """Whether it is a buffer of a module, such as a running mean."""
        return self.name == BUFFER


@dataclass
class Snapshot:
    """The state after one step: parameters, buffers, optimizer state."""

    step: int
    kept: list[_Kept]
    ready: Any = None

    def wait(self) -> None:
        """Until the copies to host memory have ended."""
        if self.ready is not None:
            self.ready.synchronize()


class Ring:
    """The last few snapshots. They cost `keep` times parameters, buffers and optimizer state."""

    def __init__(self, torch: Any, *, keep: int, max_bytes: int) -> None:
        """`max_bytes` 0: half of the memory that is available when the first one is taken."""
        self._torch = torch
        self._keep = keep
        self._max_bytes = max_bytes
        self._taken: list[Snapshot] = []
        self._roots: list[Any] | None = None
        self.refused = ""
        self.bytes_each = 0

    @property
    def steps(self) -> list[int]:
        """The steps of the snapshots, oldest first."""
        return [snapshot.step for snapshot in self._taken]

    def take(self, step: int, optimizers: list[Any]) -> bool:
        """Copy the state as it is after `step`. False, with a reason in `refused`, if too large.

        A device copies in the background; the values are those of now, because whatever changes
        them later runs behind the copy on the same stream.
        """
        torch, live = self._torch, list(self._values(optimizers))
        if self.refused or not self._fits([value for value, _h, _n in live]):
            return False
        spare: list[_Kept] = self._taken.pop(0).kept if len(self._taken) >= self._keep else []
        kept, on_device = [], False
        for index, (value, holder, name) in enumerate(live):
            if not torch.is_tensor(value):
                kept.append(_Kept(_nowhere, holder, name, value))
                continue
            on_device = on_device or value.is_cuda
            copy = spare[index].copy if index < len(spare) else None
            if not torch.is_tensor(copy) or copy.shape != value.shape or copy.dtype != value.dtype:
                copy = torch.empty(value.shape, dtype=value.dtype, pin_memory=value.is_cuda)
            copy.copy_(value.detach(), non_blocking=True)
            kept.append(_Kept(weakref.ref(value), holder, name, copy))
        snapshot = Snapshot(step, kept)
        if on_device:
            snapshot.ready = torch.cuda.Event()
            snapshot.ready.record()
        self._taken.append(snapshot)
        return True

    def sound_steps(self, *, before_step: int) -> list[int]:
        """The steps of those snapshots before `before_step` that hold no NaN and no infinity."""
        early = [snapshot for snapshot in self._taken if snapshot.step < before_step]
        return [snapshot.step for snapshot in early if self._is_finite(snapshot)]

    def restore(self, step: int) -> None:
        """Put the state of this step back in place; later snapshots are of a future that is left.

        Raises KeyError without such a snapshot.
        """
        snapshot = {taken.step: taken for taken in self._taken}[step]
        snapshot.wait()
        with self._torch.no_grad():
            for kept in snapshot.kept:
                tensor = kept.place()
                if tensor is not None:
                    tensor.copy_(kept.copy)
                held = None if kept.holder is None else kept.holder()
                if held is not None and held.get(kept.name) is not tensor:
                    self._put_back(kept, held)
        self._taken = [taken for taken in self._taken if taken.step <= step]

    def _put_back(self, kept: _Kept, held: dict[str, Any]) -> None:
        """A value that the script has replaced or removed since; the copy stays ours."""
        now, copy = held.get(kept.name), kept.copy
        if not self._torch.is_tensor(copy):
            held[kept.name] = copy
        elif self._torch.is_tensor(now) and now.shape == copy.shape:
            now.copy_(copy)
        else:
            held[kept.name] = copy.clone()

    def clear(self) -> None:
        """Let go of all of them."""
        self._taken.clear()

    def mend_buffers(self) -> None:
        """Give running statistics that a bad batch has poisoned their last finite values back.

        They are written in the forward pass, which nobody can take back: an update that is left
        out keeps the weights, but a BatchNorm would never be finite again.
        """
        if not self._taken:
            return
        with self._torch.no_grad():
            for kept in self._taken[-1].kept:
                tensor = kept.place() if kept.is_buffer else None
                if tensor is None or not tensor.is_floating_point():
                    continue
                if not bool(self._torch.isfinite(tensor).all()):
                    self._taken[-1].wait()
                    tensor.copy_(kept.copy)

    # --- what belongs to the state ---------------------------------------------------------------

    def _values(self, optimizers: list[Any]) -> Iterator[tuple[Any, Holder | None, str]]:
        """(value, what holds it, its name there) of everything, each once."""
        parameters = [
            p for opt in optimizers for group in opt.param_groups for p in group["params"]
        ]
        seen = set()
        named = [(p, "") for p in parameters]
        for tensor, name in [*named, *((b, BUFFER) for b in self._buffers(parameters))]:
            if id(tensor) not in seen:
                seen.add(id(tensor))
                yield tensor, None, name
        for optimizer in optimizers:
            yield from self._state(optimizer)

    def _state(self, optimizer: Any) -> Iterator[tuple[Any, Holder | None, str]]:
        """What an optimizer has gathered, in its state and as numbers in its groups."""
        ref = weakref.ref(optimizer)
        for key, state in optimizer.state.items():
            if not isinstance(state, dict):
                continue
            whose = (
                weakref.ref(key) if self._torch.is_tensor(key) else functools.partial(_same, key)
            )
            holder = functools.partial(_state_of, ref, whose)
            for name, value in state.items():
                if isinstance(value, (list, tuple)):
                    yield from ((item, None, "") for item in value if self._torch.is_tensor(item))
                else:
                    yield value, holder, name
        for index, group in enumerate(optimizer.param_groups):
            holder = functools.partial(_group_of, ref, index)
            for name, value in group.items():
                rate = name.endswith("lr")  # the schedule's, which goes on
                if isinstance(value, (int, float)) and not isinstance(value, bool) and not rate:
                    yield value, holder, name

    def _buffers(self, parameters: list[Any]) -> Iterator[Any]:
        """Buffers (running statistics) of the models that own the parameters."""
        if self._roots is None or any(ref() is None for ref in self._roots):
            self._roots = [weakref.ref(module) for module in self._models(parameters)]
        for ref in self._roots:
            model = ref()
            if model is not None:
                yield from model.buffers()

    def _models(self, parameters: list[Any]) -> list[Any]:
        """The outermost modules that hold one of these parameters, among all living objects."""
        wanted = {id(parameter) for parameter in parameters}
        kind = self._torch.nn.Module
        modules = [item for item in gc.get_objects() if issubclass(type(item), kind)]
        inner = {id(child) for module in modules for child in module.children()}
        roots = [module for module in modules if id(module) not in inner]
        return [root for root in roots if any(id(p) in wanted for p in root.parameters())]

    # --- room and soundness ----------------------------------------------------------------------

    def _fits(self, values: list[Any]) -> bool:
        tensors = [value for value in values if self._torch.is_tensor(value)]
        if any(hasattr(tensor, "_local_tensor") for tensor in tensors):
            self.refused = "the parameters are sharded over several processes"
        size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        if not self._taken and not self.refused:
            limit = self._max_bytes or int(MEMORY_SHARE * _available_bytes())
            if size * self._keep > limit:
                self.refused = (
                    f"{self._keep} snapshots of {size >> 20} MiB do not fit into {limit >> 20} MiB"
                )
        self.bytes_each = size
        return not self.refused

    def _is_finite(self, snapshot: Snapshot) -> bool:
        snapshot.wait()
        return all(self._is_sound(kept) for kept in snapshot.kept)

    def _is_sound(self, kept: _Kept) -> bool:
        """No NaN and no infinity, but for those that a buffer has always had: an attention mask."""
        copy = kept.copy
        if not self._torch.is_tensor(copy) or not (copy.is_floating_point() or copy.is_complex()):
            return True
        if kept.is_buffer and self._torch.isinf(copy).any():
            live, oldest = kept.place(), self._taken[0].kept
            first = next((k for k in oldest if k.is_buffer and k.place() is live), kept)
            same = self._torch.isinf(first.copy) == self._torch.isinf(copy)
            return bool(same.all()) and not bool(self._torch.isnan(copy).any())
        return bool(self._torch.isfinite(copy).all())


def _nowhere() -> None:
    """The place of a value that is no tensor."""


def _same(key: Any) -> Any:
    return key


def _state_of(ref: Callable[[], Any], whose: Callable[[], Any]) -> dict[str, Any] | None:
    """The state of a parameter; one that the script has cleared is there again."""
    optimizer, key = ref(), whose()
    if optimizer is None or key is None:
        return None
    state: dict[str, Any] = optimizer.state[key]
    return state


def _group_of(ref: Callable[[], Any], index: int) -> dict[str, Any] | None:
    optimizer = ref()
    groups: list[dict[str, Any]] = [] if optimizer is None else optimizer.param_groups
    return groups[index] if index < len(groups) else None


def _available_bytes() -> int:
    """Memory that the kernel would give without swapping; 0 where it does not say."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) << 10
    except (OSError, ValueError, IndexError):
        pass
    return 0
