"""Reading the configuration file: where it is looked for, and what is said when that fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from overnight.config import parse_config, read_config
from overnight.errors import ConfigError, UsageError


def test_the_file_of_the_working_directory(tmp_path: Path) -> None:
    """overnight.toml is found by itself."""
    path = tmp_path / "overnight.toml"
    path.write_text('[checkpoints]\nglob = "out/*.pt"\n[policy.loss-spike]\naction = "notify"\n')
    values, found = read_config(None, tmp_path)
    assert found == path
    assert parse_config(values, source=str(found)).checkpoints.glob == ("out/*.pt",)


def test_without_a_file_there_are_no_values(tmp_path: Path) -> None:
    """A config is not needed."""
    assert read_config(None, tmp_path) == ({}, None)


def test_a_named_file_wins(tmp_path: Path) -> None:
    """`--config` is read instead."""
    (tmp_path / "overnight.toml").write_text("[run]\nname = 'a'\n")
    other = tmp_path / "other.toml"
    other.write_text("[run]\nname = 'b'\n")
    assert read_config(other, tmp_path) == ({"run": {"name": "b"}}, other)


def test_a_named_file_must_exist(tmp_path: Path) -> None:
    """A typing mistake must not start a run with the defaults."""
    with pytest.raises(UsageError, match=r"no config file at .*typo\.toml") as caught:
        read_config(tmp_path / "typo.toml", tmp_path)
    assert caught.value.hint == "check --config"


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    """The system's reason is given."""
    with pytest.raises(UsageError, match="Is a directory"):
        read_config(tmp_path, tmp_path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"[run\nname = 1", "not valid TOML"),
        (b"[run]\nname = 'a'\nname = 'b'", "not valid TOML"),
        (b"\xff\xfe", "not valid TOML: 'utf-8' codec"),
    ],
    ids=["broken", "twice", "not-utf-8"],
)
def test_what_is_not_toml(tmp_path: Path, content: bytes, words: str) -> None:
    """With the line that is wrong, where TOML tells it."""
    path = tmp_path / "overnight.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        read_config(None, tmp_path)
    assert caught.value.problems[0].startswith(words)
    assert str(path) in str(caught.value)
