"""Being told when a module has been imported, without importing anything."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

Then = Callable[[ModuleType], None]


class AfterImport(importlib.abc.MetaPathFinder):
    """Calls a function on each of some modules right after it has been executed."""

    def __init__(self, thens: dict[str, Then]) -> None:
        self._thens = thens
        self._busy = False

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec that the others find, with our loader around theirs."""
        if self._busy or name not in self._thens:
            return None
        self._busy = True
        try:
            spec = _found_by_others(self, name, path, target)
        finally:
            self._busy = False
        if spec is None or spec.loader is None or not hasattr(spec.loader, "exec_module"):
            return None
        spec.loader = _Loader(spec.loader, self._thens.pop(name))
        return spec


def _found_by_others(
    us: AfterImport, name: str, path: Sequence[str] | None, target: ModuleType | None
) -> importlib.machinery.ModuleSpec | None:
    for finder in list(sys.meta_path):
        find = getattr(finder, "find_spec", None)
        if finder is us or find is None:
            continue
        spec = find(name, path, target)
        if spec is not None:
            return spec  # type: ignore[no-any-return]
    return None


class _Loader(importlib.abc.Loader):
    """A loader that looks like the original but for what it does afterwards."""

    def __init__(self, original: Any, then: Then) -> None:
        self._original = original
        self._then = then

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._original.create_module(spec)  # type: ignore[no-any-return]

    def exec_module(self, module: ModuleType) -> None:
        self._original.exec_module(module)
        try:
            self._then(module)
        except Exception:  # noqa: BLE001 - the import has succeeded; only the probe has not
            return


def when_torch_comes(settings: Any) -> None:
    """Hook into torch's modules as they are imported; those that are there already, at once."""
    from overnight_probe import trainers
    from overnight_probe.torch_hooks import Hooks

    hooks = Hooks(settings)
    thens = {
        "torch.optim.optimizer": hooks.optimizer,
        "torch.nn.utils.clip_grad": hooks.clip_grad,
        "torch.amp.grad_scaler": hooks.grad_scaler,
        "torch.cuda.amp.grad_scaler": hooks.grad_scaler,  # torch 2.0 to 2.2
        "torch.serialization": hooks.saves.torch,
        "safetensors.torch": hooks.saves.safetensors,
        "transformers.trainer": trainers.hugging_face,
        "lightning.pytorch.trainer.trainer": trainers.lightning,
        "pytorch_lightning.trainer.trainer": trainers.lightning,
    }
    for name in [name for name in thens if name in sys.modules]:
        thens.pop(name)(sys.modules[name])
    sys.meta_path.insert(0, AfterImport(thens))
