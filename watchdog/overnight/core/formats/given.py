"""What the config says about a run's numbers, `[metrics]`: it overrides what would be learned."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from overnight.core.formats.names import Meaning, meaning, words_of
from overnight.core.formats.plan import MAX_STEP, significant_digits, to_number
from overnight.core.formats.reading import Loss, Reading

ROLES = (
    *("loss", "step", "total_steps", "eval_loss", "grad_norm"),
    *("lr", "tokens_per_s", "epoch", "loss_scale"),
)
"""What a group of `pattern` may be called."""

GIVEN_RANK = 9
"""A step of which the user says so is surer than any that we recognise."""

MATCHED_CHARS = 4096
"""A user's pattern may be slow; it is not tried on more of a line than this."""

SLOW_LINES = 20
"""A pattern that was too slow for so many lines, and fitted none in between, is given up."""

_NUMBER = (
    r"[-+]?(?:1\.#(?:qnan|snan|ind|inf)\d*|\d[\d,]*\.?\d*(?:e[-+]?\d+)?|\.\d+(?:e[-+]?\d+)?"
    r"|nan(?:\((?:ind|snan)\))?|inf(?:inity)?)"
)
_HALF = re.compile(rf"(?<!\\)\{{(?:{'|'.join(ROLES)})(?=\s|$)|(?<![\w{{])(?:loss|step)\}}")
_NONFINITE = re.compile(r"\b(?:nan|inf(?:inity)?)\b", re.IGNORECASE)
# As Microsoft's C library prints them: -nan(ind), 1.#QNAN, 1.#INF.
_WINDOWS = re.compile(r"^[-+]?(?:1\.#(?:(inf)|\w+)|nan\(\w+\))\d*$", re.IGNORECASE)
_PLACEHOLDER = re.compile(r"\{([A-Za-z_]\w*)\}")


class MetricsConfig(BaseModel):
    """`[metrics]`: where the numbers are, where they need not be looked for in the output."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: Literal["stdout", "file", "tensorboard", "trainer_state"] = Field(
        "stdout",
        description="what is read: the worker's output, a text, JSON-lines or CSV file that it"
        " writes, its TensorBoard event files, or the trainer_state.json of its checkpoints"
        " (or any other JSON file that is one list of objects)",
    )
    path: str | None = Field(
        None,
        min_length=1,
        description="that file, or a glob of which the files that change are read; relative to"
        " the working directory",
    )
    pattern: str | None = Field(
        None,
        description="a regular expression for lines that report a step, in which {loss} and"
        " {step} stand for the numbers; also {grad_norm}, {lr}, {eval_loss}, {epoch},"
        " {tokens_per_s}, {loss_scale}, {total_steps}. Other lines then report none",
    )
    loss_key: str | None = Field(None, min_length=1, description="the name of the training loss")
    step_key: str | None = Field(None, min_length=1, description="the name of the step")

    @field_validator("pattern")
    @classmethod
    def _is_pattern(cls, value: str | None) -> str | None:
        if value is not None:
            _compiled(value)
        return value

    @model_validator(mode="after")
    def _fits_together(self) -> MetricsConfig:
        if self.path is not None and not self.path.isprintable():
            raise ValueError(f"path holds characters that no file name should: {self.path!r}")
        for name, key in (("loss_key", self.loss_key), ("step_key", self.step_key)):
            if key is not None and not words_of(key):
                raise ValueError(f"{name} = {key!r} is no name")
        if self.loss_key is not None and self.loss_key == self.step_key:
            raise ValueError(f"loss_key and step_key are both {self.loss_key!r}")
        if self.source == "stdout" and self.path is not None:
            raise ValueError('path is given, but source is not (try source = "file")')
        if self.source != "stdout" and self.path is None:
            raise ValueError(f'source = "{self.source}" needs a path (a file or a glob)')
        if self.pattern is not None and (self.loss_key or self.step_key):
            raise ValueError("pattern names the numbers itself: leave out loss_key and step_key")
        if self.pattern is not None and self.source in ("tensorboard", "trainer_state"):
            raise ValueError(f'a pattern reads lines; source = "{self.source}" has none')
        return self

    def names_only(self) -> MetricsConfig:
        """The same names, read from the text at hand: for an old log."""
        return MetricsConfig(pattern=self.pattern, loss_key=self.loss_key, step_key=self.step_key)


Search = Callable[[re.Pattern[str], str], re.Match[str] | None]
"""Finds a pattern in a text; raises TimeoutError when it takes too long."""


class Given:
    """The names that the user has given; without any of them it changes nothing."""

    def __init__(self, config: MetricsConfig, search: Search = re.Pattern.search) -> None:
        """`search` tries the user's pattern, and knows an end."""
        self._search = search
        self._slow_lines = 0
        self.step_seen = False
        self._pattern = None if config.pattern is None else _compiled(config.pattern)
        self._loss, self._step = config.loss_key, config.step_key
        self._loss_words = words_of(config.loss_key or "")
        self._step_words = words_of(config.step_key or "")
        self._find_loss = None if self._loss is None else _key_pattern(self._loss)
        self._find_step = None if self._step is None else _key_pattern(self._step)
        self.has_keys = bool(self._loss or self._step)
        self.means: Meaning = self._meaning if self.has_keys else meaning

    @property
    def has_pattern(self) -> bool:
        """Whether a pattern says what is a record."""
        return self._pattern is not None

    @property
    def is_too_slow(self) -> bool:
        """Whether there was a pattern, and it was given up."""
        return self._slow_lines >= SLOW_LINES

    @property
    def missing_step(self) -> str:
        """The name of the step that was given and has never been seen; "" if all is well."""
        return "" if self.step_seen else self._step or ""

    @property
    def hint(self) -> str:
        """What was given and has not been found, in words."""
        if self.has_pattern:
            return ", the pattern fits none of them"
        return f", none names loss_key = {self._loss!r}" if self._loss else ""

    def names_loss(self, low: str) -> bool:
        """Whether this lower-case line holds the given name of the loss."""
        return self._loss is not None and self._loss.lower() in low

    def _meaning(self, name: str) -> tuple[str, int]:
        """A name's role and rank, as `names.meaning`, but for the names that were given."""
        words = words_of(name)
        if self._loss is not None and words == self._loss_words:
            return "loss", 0
        if self._step is not None and words == self._step_words:
            self.step_seen = True
            return "step", GIVEN_RANK
        role, rank = meaning(name)
        if (role == "loss" and self._loss) or (role == "step" and self._step):
            return "", 0
        return role, rank

    def corrected(self, line: str, found: Reading | None) -> Reading | None:
        """A reading of free text with the numbers behind the given names; None: it has none."""
        line = line[:MATCHED_CHARS]
        if self._find_loss is not None:
            found = _with_loss(found, self._find_loss.search(line), self._loss or "")
        if self._find_step is not None and found is not None:
            match = self._find_step.search(line)
            found.step, found.rank, found.counted_to = None, 0, None
            if match is not None:
                self.step_seen = True
                _put(found, "step", match[1])
                found.counted_to = int(match[2]) if match[2] and len(match[2]) < 20 else None
        return found

    def match(self, line: str) -> Reading | None:
        """The numbers of a line that the pattern fits.

        Many a pattern says `[\\d.]+` and means any number: where it does not fit, it is tried
        again with `0.0` in the place of each `nan` and `inf`.
        """
        assert self._pattern is not None
        line = line[:MATCHED_CHARS]
        try:
            found = self._search(self._pattern, line)
            if found is None and _NONFINITE.search(line):
                found = self._search(self._pattern, _NONFINITE.sub(_zero, line))
        except TimeoutError:
            self._slow_lines += 1
            if self.is_too_slow:
                self._pattern = None
            return None
        if found is None:
            return None
        self._slow_lines = 0
        reading = Reading()
        for role in found.re.groupindex:
            begin, end = found.span(role)
            if begin >= 0:
                _put(reading, role, line[begin:end])
        return reading


def _compiled(pattern: str) -> re.Pattern[str]:
    """The user's pattern with its placeholders filled in. Raises ValueError with a hint."""
    filled = _PLACEHOLDER.sub(lambda found: f"(?P<{found[1]}>{_NUMBER})", pattern)
    if half := _HALF.search(filled):
        raise ValueError(f"half a placeholder: {half[0]} (they have two braces: {{loss}})")
    try:
        compiled = re.compile(filled, re.IGNORECASE)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"not a regular expression: {error}") from None
    unknown = [name for name in compiled.groupindex if name not in ROLES]
    if unknown:
        raise ValueError(f"unknown name {unknown[0]} (known: {', '.join(ROLES)})")
    if "loss" not in compiled.groupindex:
        raise ValueError("it must say where the loss stands (write {loss} for the number)")
    return compiled


def _key_pattern(key: str) -> re.Pattern[str]:
    """A name, whole, and the number behind it: `MSE: 0.3`, `"mse"=0.3`, `mse (ema) -> 0.3/10`."""
    return re.compile(
        rf"(?<![\w/.-]){re.escape(key)}(?![\w/.]|-\w)[\"']?[ \t]{{0,8}}"
        r"(?:\([^()\d]{1,20}\)[ \t]{0,8})?(?:[:=|]|[-=]>|is|was|of)?[ \t]{0,8}[\"'\[(]?"
        rf"({_NUMBER})(?:/(\d+))?",
        re.IGNORECASE,
    )


def _zero(found: re.Match[str]) -> str:
    return "0.0".ljust(len(found[0]), "0")


def _with_loss(found: Reading | None, match: re.Match[str] | None, name: str) -> Reading | None:
    if match is None and found is None:
        return None
    reading = found or Reading()
    reading.loss, reading.losses, reading.loss_key = None, (), None
    if match is not None:
        _put(reading, "loss", match[1], name=name)
        reading.eval_loss = None
    return reading


def _put(reading: Reading, role: str, text: str, *, name: str = "loss") -> None:
    """Set one number; what is no number is left out."""
    text = text.strip().strip("\"'")
    windows = _WINDOWS.match(text)
    value = (math.inf if windows[1] else math.nan) if windows else to_number(text)
    if value is None:
        return
    if role == "loss":
        reading.loss, reading.loss_key = value, name
        reading.losses = (Loss(name, value, text),)
        reading.digits = significant_digits(text)
    elif role in ("step", "total_steps"):
        if math.isfinite(value) and abs(value) <= MAX_STEP:
            setattr(reading, role, int(value))
            reading.rank = GIVEN_RANK if role == "step" else reading.rank
    else:
        setattr(reading, role, value)
        if role == "epoch" and value == value // 1:
            reading.whole_epoch = True
