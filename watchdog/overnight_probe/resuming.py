"""For those who can add four lines: a script that goes on from the checkpoint that was chosen.

    try:
        from overnight_probe import resume
    except ImportError:  # started without Overnight
        resume = lambda *parts: 0
    start = resume(model, optimizer)  # 0 on a fresh start

The checkpoint is one of the script's own, as `torch.save` wrote it: a state dict, or a dictionary
that holds those of model, optimizer and others under any names, and the step under a usual one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from overnight_probe.channel import Report, is_main_process

STEP_NAMES = ("step", "global_step", "iter_num", "iteration", "iter", "steps", "completed_steps")
PREFIXES = ("module.", "_orig_mod.")
"""What DistributedDataParallel and torch.compile put before the names of a model's parameters."""


Named = tuple[str, Mapping[str, Any]]
"""A dictionary inside a checkpoint, with its name there."""


class ResumeError(RuntimeError):
    """The chosen checkpoint does not fit what it is to be loaded into; nothing was changed."""


def resume(*parts: Any, weights_only: bool = True) -> int:
    """Load the checkpoint that Overnight chose into `parts`; returns the step to go on from.

    `parts` are whatever has a `load_state_dict`: the model first, then optimizer, schedule,
    scaler. Without a checkpoint (a fresh start, or no Overnight) nothing is loaded and 0 is
    returned. The step is the one in the checkpoint, else the last number of its name.

    Raises ResumeError where a part finds no state that fits, and what `torch.load` raises;
    `weights_only=False` is for checkpoints that hold objects of your own, which you trust.
    """
    metrics = os.environ.get("OVERNIGHT_METRICS")
    if metrics and is_main_process(os.environ):
        Report(metrics).write({"event": "hello", "resume": True, "lr_scale": True, "skip": False})
    path = os.environ.get("OVERNIGHT_RESUME")
    if not path:
        return 0
    import torch

    state = torch.load(path, map_location="cpu", weights_only=weights_only)
    if not isinstance(state, Mapping):
        raise ResumeError(f"{path} holds no dictionary, but a {type(state).__name__}")
    left = sorted(_dictionaries("", state), key=_is_average)
    loads = [(part, _state_for(part, left, path)) for part in parts]
    for part, values in loads:
        part.load_state_dict(values)
    return _step_of(state, path)


def _state_for(part: Any, left: list[Named], path: str) -> Mapping[str, Any]:
    """The first dictionary with this part's very keys and shapes; it is taken out of `left`."""
    wanted = _bare(part.state_dict())
    for place, (_name, candidate) in enumerate(left):
        if set(_bare(candidate)) == set(wanted) and _shapes(candidate) == _shapes(wanted):
            del left[place]
            own, values = list(part.state_dict()), _bare(candidate)
            return {name: values[bare] for name, bare in zip(own, _bare_names(own))}
    names = ", ".join(name for name, _dictionary in left if name) or "nothing else"
    raise ResumeError(f"{path} holds no state for {type(part).__name__} (it holds: {names})")


def _dictionaries(name: str, state: Mapping[Any, Any], depth: int = 0) -> Iterator[Named]:
    """Every dictionary with names for keys, under its own name, outermost first."""
    if state and all(isinstance(key, str) for key in state):
        yield name, state
    if depth < 2:
        for key, value in state.items():
            if isinstance(value, Mapping):
                yield from _dictionaries(str(key), value, depth + 1)


def _is_average(named: Named) -> bool:
    """Whether it is an averaged copy, with the same keys as the model itself."""
    return re.search(r"ema|avg|average|swa|shadow|best", named[0].lower()) is not None


def _bare_names(names: list[str]) -> list[str]:
    bare = []
    for name in names:
        short = name
        while short.startswith(PREFIXES):
            short = short.partition(".")[2]
        bare.append(short)
    return bare


def _bare(state: Mapping[str, Any]) -> dict[str, Any]:
    """The same values under names without the wrappers' prefixes."""
    return dict(zip(_bare_names(list(state)), state.values()))


def _shapes(state: Mapping[str, Any]) -> list[tuple[int, ...]]:
    """The shapes of all tensors, and how many parameters each group of an optimizer has."""
    shapes = {name: tuple(v.shape) for name, v in _bare(state).items() if hasattr(v, "shape")}
    groups = state.get("param_groups")
    sizes = [(len(group["params"]),) for group in groups] if groups else []
    return [shapes[name] for name in sorted(shapes)] + sizes


def _step_of(state: Mapping[str, Any], path: str) -> int:
    for name in STEP_NAMES:
        value = state.get(name)
        if hasattr(value, "item") and getattr(value, "numel", lambda: 1)() == 1:
            value = value.item()
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return int(value)
    numbers = re.findall(r"\d+", os.path.splitext(os.path.basename(path))[0])
    return int(numbers[-1]) if numbers else 0
