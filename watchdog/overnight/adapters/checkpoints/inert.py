"""Reads a pickle's structure without running any of it.

A pickle is a program: it names functions and calls them. Here every name but a few plain
containers becomes an `Inert` class that stores what it is given and does nothing, so a call, a
`__reduce__`, a `__setstate__` or an item assignment in the file only ever reaches our own five
methods below. What is left is the shape of the data, from which tensors are told by the names of
torch's rebuild functions.
"""

from __future__ import annotations

import pickle
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, Self

from overnight.adapters.checkpoints.report import DamagedError, NotUnderstoodError
from overnight.adapters.checkpoints.tensors import Tensor

_CONTAINERS: dict[tuple[str, str], type] = {("collections", "OrderedDict"): OrderedDict} | {
    (module, kind.__name__): kind
    for module in ("builtins", "__builtin__")
    for kind in (dict, list, set, frozenset, tuple)
}
"""The only real objects a file can name: none of them runs anything or opens anything."""

_REBUILDERS = frozenset(
    f"torch._utils.{name}"
    for name in (
        "_rebuild_tensor",
        "_rebuild_tensor_v2",
        "_rebuild_tensor_v3",
        "_rebuild_qtensor",
    )
)
"""All begin with (storage, offset, size, stride); v3 has the type as its seventh argument."""

_SUBCLASS_REBUILDER = "torch._tensor._rebuild_from_type_v2"  # (function, type, its args, state)

_STORAGE_TYPES = {
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "ComplexDoubleStorage": "complex128",
    "ComplexFloatStorage": "complex64",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "UntypedStorage": "uint8",
    "BoolStorage": "bool",
    "QInt8Storage": "qint8",
    "QUInt8Storage": "quint8",
    "QInt32Storage": "qint32",
    "QUInt4x2Storage": "uint8",
    "QUInt2x4Storage": "uint8",
}

_UNNAMED = frozenset({"_parameters", "_buffers", "_modules"})
"""Attributes of a pickled nn.Module that its state dict leaves out of names; so do we."""


_MAX_NAME = 1000
"""Longer paths of keys are not followed to their end: a hostile file nests for ever."""


class Inert:
    """Stands for any class or function that a file names; keeps what it is given, runs nothing."""

    __slots__ = ("args", "items", "state")
    origin = ""
    args: tuple[Any, ...]
    items: list[Any]
    state: Any

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """What REDUCE, INST, OBJ and NEWOBJ of a pickle end up in."""
        self = object.__new__(cls)
        self.args, self.items, self.state = (*args, *kwargs.values()), [], None
        return self

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        """What BUILD ends up in."""
        self.state = state

    def __setitem__(self, key: Any, value: Any) -> None:
        """What SETITEM ends up in (dict subclasses)."""
        self.items.append({key: value})

    def append(self, value: Any) -> None:
        """What APPEND and APPENDS end up in (list subclasses)."""
        self.items.append(value)

    add = append


@dataclass(frozen=True, slots=True)
class StorageRef:
    """A pickle's pointer to numbers outside it: key, type and element count as the file says."""

    key: str
    dtype: str
    numel: int


@dataclass(frozen=True, slots=True)
class Found:
    """A tensor (or a bare storage, `tensor` None) met in a pickle, and where its numbers are."""

    name: str
    storage: StorageRef
    tensor: Tensor | None
    dtype: str


class _InertUnpickler(pickle.Unpickler):
    """Python's own parser with nothing real to call."""

    def __init__(self, stream: BinaryIO) -> None:
        super().__init__(stream, encoding="utf-8", errors="replace")
        self._names: dict[tuple[str, str], type] = {}

    def find_class(self, module: str, name: str, /) -> type:
        """Never imports: a container, or an inert class that remembers the name."""
        key = (module, name)
        if key in _CONTAINERS:
            return _CONTAINERS[key]
        if key not in self._names:
            body = {"origin": f"{module}.{name}", "__slots__": ()}
            self._names[key] = type("Inert", (Inert,), body)
        return self._names[key]

    def persistent_load(self, pid: Any, /) -> Any:
        """('storage', type, key, location, count[, view]); anything else stays what it is."""
        match pid:
            case ("storage", type() as kind, str() as key, _, int() as numel, *view):
                if view and view[0] is not None:
                    raise NotUnderstoodError("it uses storage views of torch before 0.4")
                name = getattr(kind, "origin", "").rpartition(".")[2]
                return StorageRef(key, _STORAGE_TYPES.get(name, name), numel)
            case ("module", type() as kind, *_):  # legacy files carry the class's source along
                return kind
        return pid


def load(stream: BinaryIO, what: str) -> Any:
    """The data of one pickle, with `Inert` and `StorageRef` in it; the stream stays behind it.

    Raises DamagedError for one that ends early or is no pickle, NotUnderstoodError for one that
    does what no checkpoint does.
    """
    try:
        return _InertUnpickler(stream).load()
    except (pickle.UnpicklingError, EOFError, UnicodeDecodeError) as error:
        raise DamagedError(f"{what} is cut off or damaged ({error})") from error
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        raise NotUnderstoodError(f"{what} cannot be followed ({error})") from error


def find_tensors(root: Any, name: str = "") -> Iterator[Found]:
    """Every tensor below `root`, named by the keys that lead to it: model.blocks.0.attn.weight.

    Works with a stack of iterators: a file can nest deeper than Python may recurse.
    """
    seen: set[int] = set()
    stack = [iter([(name, root)])]
    while stack:
        for key, value in stack[-1]:
            if isinstance(value, StorageRef):
                yield Found(key, value, None, value.dtype)
                continue
            if not isinstance(value, dict | list | tuple | set | frozenset | Inert):
                continue
            if id(value) in seen:
                continue
            seen.add(id(value))
            found = _as_tensor(key, value) if isinstance(value, Inert) else None
            if found:
                yield found
            else:
                stack.append(_children(key, value))
                break
        else:
            stack.pop()


def _children(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """What a container or an inert object holds; its arguments and state go by its own name."""
    if isinstance(value, dict):
        for key, item in dict.items(value):  # not value.items(): a file may have replaced it
            yield _join(name, key), item
    elif isinstance(value, Inert):
        for part in (*value.args, *value.items, value.state):
            for item in part if isinstance(part, tuple) else (part,):
                yield name, item
    else:
        for index, item in enumerate(value):
            yield _join(name, index), item


def _join(name: str, key: object) -> str:
    if key in _UNNAMED or len(name) > _MAX_NAME:
        return name
    text = str(key) if isinstance(key, str | int) else type(key).__name__
    return f"{name}.{text}" if name else text


def _as_tensor(name: str, value: Inert) -> Found | None:
    """The tensor that torch would rebuild from this call, if it is such a call."""
    origin, args = value.origin, value.args
    if origin == _SUBCLASS_REBUILDER and len(args) >= 3 and isinstance(args[2], tuple):
        origin, args = getattr(args[0], "origin", ""), args[2]
    if origin not in _REBUILDERS:
        return None
    match args:
        case (
            StorageRef() as storage,
            int() as offset,
            tuple() as shape,
            tuple() as strides,
            *more,
        ):
            pass
        case _:
            return None
    if len(shape) != len(strides) or not all(isinstance(n, int) for n in (*shape, *strides)):
        raise DamagedError(f"tensor '{name}' has no sensible shape")
    dtype = storage.dtype
    if origin.endswith("_v3") and len(more) >= 3:
        dtype = getattr(more[2], "origin", dtype).rpartition(".")[2]
    return Found(name, storage, Tensor(name, offset, shape, strides), dtype)
