"""The configuration of a run: TOML in, one frozen value out, all problems at once.

Every section is declared beside its owner; this file only composes them and reads the file.
Flags override file keys; the environment is no layer (the worker is given variables of the same
prefix), except for the places where config and state are kept.
"""

from __future__ import annotations

import difflib
import re
import shlex
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from overnight.core.checkpoints import CheckpointsConfig
from overnight.core.detect.collapse import CollapseConfig
from overnight.core.detect.drift import DriftConfig
from overnight.core.detect.gpu_hot import GpuHotConfig
from overnight.core.detect.nonfinite import NonfiniteConfig
from overnight.core.detect.panel import PanelConfig
from overnight.core.detect.slowdown import SlowdownConfig
from overnight.core.detect.spike import SpikeConfig
from overnight.core.detect.stall import StallConfig
from overnight.core.events import Fault
from overnight.core.formats.given import MetricsConfig
from overnight.core.probe import ProbeConfig
from overnight.core.resume import ResumeConfig
from overnight.core.situation import BudgetConfig, FaultPolicy, PolicyConfig
from overnight.errors import ConfigError, UsageError

NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
CONFIG_NAME = "overnight.toml"


class RunConfig(BaseModel):
    """`[run]`: what is supervised."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str | None = Field(None, description="the run's name; default: the working directory's")
    command: tuple[str, ...] = Field((), description="the training command, a list or a string")
    workdir: Path | None = Field(None, description="where it runs; default: where Overnight runs")
    env: dict[str, str] = Field(default_factory=dict, description="variables for the worker")
    grace_s: float = Field(90, gt=0, description="seconds from SIGTERM to SIGKILL at a stop")

    @field_validator("command", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return tuple(shlex.split(value)) if isinstance(value, str) else value

    @field_validator("name")
    @classmethod
    def _is_name(cls, value: str | None) -> str | None:
        if value is not None and not NAME_PATTERN.fullmatch(value):
            raise ValueError("a name is letters, digits, '.', '_' or '-', at most 64 of them")
        return value


class DetectConfig(BaseModel):
    """`[detect.NAME]`: the thresholds of each detector."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    nonfinite: NonfiniteConfig = Field(default_factory=NonfiniteConfig)
    spike: SpikeConfig = Field(default_factory=SpikeConfig)
    drift: DriftConfig = Field(default_factory=DriftConfig)
    collapse: CollapseConfig = Field(default_factory=CollapseConfig)
    slowdown: SlowdownConfig = Field(default_factory=SlowdownConfig)
    stall: StallConfig = Field(default_factory=StallConfig)


class NotifyConfig(BaseModel):
    """`[notify]`: who is told. A receiver is an Apprise URL, `@FILE` (0600) or `env:NAME`."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    receivers: tuple[str, ...] = Field((), repr=False, description="where alerts go")

    @field_validator("receivers", mode="before")
    @classmethod
    def _one_or_many(cls, value: object) -> object:
        return (value,) if isinstance(value, str) else value


class Config(BaseModel):
    """Everything about one run."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    run: RunConfig = Field(default_factory=RunConfig)
    metrics: MetricsConfig = Field(default_factory=MetricsConfig)
    checkpoints: CheckpointsConfig = Field(default_factory=CheckpointsConfig)
    resume: ResumeConfig = Field(default_factory=ResumeConfig)
    detect: DetectConfig = Field(default_factory=DetectConfig)
    policy: dict[Fault, FaultPolicy] = Field(default_factory=dict)
    budget: BudgetConfig = Field(default_factory=BudgetConfig)
    gpu: GpuHotConfig = Field(default_factory=GpuHotConfig)
    probe: ProbeConfig = Field(default_factory=ProbeConfig)
    notify: NotifyConfig = Field(default_factory=NotifyConfig)

    @property
    def panel(self) -> PanelConfig:
        """What the record detectors need."""
        return PanelConfig(
            nonfinite=self.detect.nonfinite,
            spike=self.detect.spike,
            drift=self.detect.drift,
            collapse=self.detect.collapse,
            slowdown=self.detect.slowdown,
        )

    @property
    def policies(self) -> PolicyConfig:
        """What the policy needs."""
        return PolicyConfig(
            budget=self.budget,
            faults=self.policy,
            min_lr_scale=self.resume.min_lr_scale,
            from_scratch=self.resume.from_scratch,
        )


def read_config(path: Path | None, workdir: Path) -> tuple[dict[str, Any], Path | None]:
    """The raw values of a config file: `path`, else overnight.toml in `workdir`, else none.

    Raises UsageError where a named file cannot be read, ConfigError where it is not TOML.
    """
    found = path or workdir / CONFIG_NAME
    try:
        text = found.read_bytes()
    except FileNotFoundError as error:
        if path is None:
            return {}, None
        raise UsageError(f"no config file at {path}", hint="check --config") from error
    except OSError as error:
        raise UsageError(f"cannot read {found}: {error.strerror}") from error
    try:
        return tomllib.loads(text.decode()), found
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(str(found), [f"not valid TOML: {error}"]) from error


def parse_config(values: Mapping[str, Any], *, source: str) -> Config:
    """Values as one frozen Config. Raises ConfigError with every problem and a hint for each."""
    try:
        return Config.model_validate(dict(values))
    except ValidationError as error:
        problems = [_sentence(problem) for problem in error.errors(include_url=False)]
        raise ConfigError(source, problems) from None


def _sentence(problem: Any) -> str:
    """One pydantic error as `key: what is wrong (what to do)`."""
    path = [str(part) for part in problem["loc"] if part != "[key]"]
    key = ".".join(path)
    message = str(problem["msg"]).removeprefix("Value error, ")
    if problem["type"] == "extra_forbidden":
        known = _keys_at(path[:-1])
        close = difflib.get_close_matches(path[-1], known, n=1)
        hint = f"did you mean {close[0]}?" if close else f"known keys: {', '.join(sorted(known))}"
        return f"{key}: unknown key ({hint})"
    if path[:1] == ["policy"] and problem["type"] == "enum" and len(path) == 2:
        close = difflib.get_close_matches(path[1], [fault.value for fault in Fault], n=1)
        hint = f"did you mean {close[0]}?" if close else "see docs/glossary.md for the faults"
        return f"{key}: unknown fault ({hint})"
    return f"{key}: {message[:1].lower()}{message[1:]}"


def _keys_at(path: Sequence[str]) -> list[str]:
    """The keys that the section at this path knows."""
    if path[:1] == ["policy"]:
        return list(FaultPolicy.model_fields)
    model: Any = Config
    for part in path:
        if not (isinstance(model, type) and issubclass(model, BaseModel)):
            return []
        found = model.model_fields.get(part)
        if found is None:
            return []
        model = found.annotation
    if isinstance(model, type) and issubclass(model, BaseModel):
        return list(model.model_fields)
    return []


def default_name(workdir: Path) -> str:
    """A run's name from its working directory, with what a name may not hold left out."""
    cleaned = re.sub(r"[^A-Za-z0-9_.-]+", "-", workdir.resolve().name).lstrip("._-")[:64]
    return cleaned or "run"
