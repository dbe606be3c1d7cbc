"""The detectors' configs for sparse logs: a line every ten steps or rarer gives fewer chances."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel

from overnight.core.detect.spike import SPARSE, SpikeConfig

_Config = TypeVar("_Config", bound=BaseModel)


def with_preset(config: _Config, values: Mapping[str, Any]) -> _Config:
    """The preset for sparse logs, except for what the user set by hand."""
    mine = config.model_fields_set
    return config.model_copy(update={key: values[key] for key in values if key not in mine})


def sparse_spike(config: SpikeConfig) -> SpikeConfig:
    """The same for spikes, without what then would not fit together."""
    preset = {key: value for key, value in SPARSE.items() if key not in config.model_fields_set}
    if preset.get("min_records", config.min_records) > preset.get("window", config.window):
        preset = {key: preset[key] for key in preset.keys() - {"window", "min_records"}}
    if preset.get("need", config.need) > preset.get("persist", config.persist):
        preset = {key: preset[key] for key in preset.keys() - {"need", "persist"}}
    return config.model_copy(update=preset)
