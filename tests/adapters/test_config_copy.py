"""A patched copy of a script's config file: only what was asked for changes."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from overnight.adapters.config_copy import number_at, write_patched
from overnight.core.orders import Patch
from overnight.errors import ConfigError

YAML = """\
# the run
optim: {name: adamw, lr: 3e-4}   # flow
model:
  layers: 12
  path: !hub some/model
train:
  lr: 0.0003  # peak
  steps: [1, 2,
          3]
resume:
"""
TOML = """\
title = "run"  # mine

[optim]
lr = 3e-4  # peak
betas = [0.9, 0.95]

[optim.schedule]
lr = 1

[train]
steps = 100
"""


def patched(folder: Path, name: str, text: str, values: dict[str, str]) -> str:
    """The text of the copy; the original stays as it was."""
    original, copy = folder / name, folder / "attempts" / "0002" / name
    copy.parent.mkdir(parents=True)
    original.write_text(text)
    write_patched(Patch(original, copy, values))
    assert original.read_text() == text
    return copy.read_text()


def test_yaml_keeps_everything_else(tmp_path):
    values = {"train.lr": "0.00015", "optim.lr": "1.5e-05", "resume": "out/step 300.pt"}
    text = patched(tmp_path, "a.yaml", YAML, values)
    expected = YAML.replace("lr: 0.0003 ", "lr: 0.00015 ").replace("lr: 3e-4", "lr: 1.5e-05")
    assert text == expected.replace("resume:\n", 'resume: "out/step 300.pt"\n')
    assert yaml.safe_load(text.replace("!hub ", ""))["optim"]["lr"] == 1.5e-05


def test_a_new_key_in_yaml(tmp_path):
    values = {"train.resume_from": "c.pt", "fresh.deep.lr": "0.5"}
    text = patched(tmp_path, "a.yml", "train:\n  lr: 1\nlast: 2\n", values)
    assert yaml.safe_load(text) == {
        "train": {"lr": 1, "resume_from": "c.pt"},
        "last": 2,
        "fresh": {"deep": {"lr": 0.5}},
    }


def test_a_tiny_rate_is_a_number_in_yaml(tmp_path):
    text = patched(tmp_path, "a.yaml", "lr: 1.0\n", {"lr": "1e-05"})
    assert yaml.safe_load(text) == {"lr": 1e-05}


def test_toml_keeps_everything_else(tmp_path):
    text = patched(tmp_path, "a.toml", TOML, {"optim.lr": "0.00015", "train.resume": "c.pt"})
    expected = TOML.replace("lr = 3e-4  #", "lr = 0.00015  #")
    assert text == expected + 'resume = "c.pt"\n'


def test_a_new_table_in_toml(tmp_path):
    text = patched(tmp_path, "a.toml", TOML, {"resume.path": "c.pt", "top": "3"})
    assert tomllib.loads(text)["resume"] == {"path": "c.pt"}
    assert tomllib.loads(text)["top"] == 3
    assert tomllib.loads(text)["optim"]["schedule"] == {"lr": 1}


def test_json(tmp_path):
    text = patched(tmp_path, "a.json", '{"a": {"lr": 1e-3, "b": null}}', {"a.lr": "5e-4"})
    assert json.loads(text) == {"a": {"lr": 5e-4, "b": None}}


@pytest.mark.parametrize(
    ("name", "text", "key", "problem"),
    [
        ("a.json", "{", "lr", "cannot be read"),
        ("a.yaml", "a: [", "lr", "cannot be read"),
        ("a.toml", "a = ", "lr", "cannot be read"),
        ("a.ini", "[a]", "lr", r"only \.json, \.yaml, \.yml and \.toml"),
        ("a.json", '{"a": 1}', "a.lr", "a.lr: there is no such table"),
        ("a.yaml", "a: 1\n", "a.lr", "there is no such table"),
        ("a.toml", 'a = """\nlr = 1\n"""\n', "lr", "lr: cannot be set in this file"),
        ("a.toml", "a = {lr = 1}\n", "a.lr", "cannot be set in this file"),
    ],
)
def test_what_cannot_be_set_is_an_error_and_no_file(tmp_path, name, text, key, problem):
    with pytest.raises(ConfigError, match=problem):
        patched(tmp_path, name, text, {key: "0.5"})
    assert not (tmp_path / "attempts" / "0002" / name).exists()


@pytest.mark.parametrize(
    ("name", "text", "rate"),
    [
        ("a.yaml", YAML, 0.0003),
        ("a.yaml", "train: {lr: 3e-4}", 3e-4),
        ("a.yaml", "train: {lr: fast}", None),
        ("a.yaml", "", None),
        ("a.toml", "[train]\nlr = 3e-4", 3e-4),
        ("a.json", '{"train": {"lr": 3}}', 3.0),
        ("a.json", '{"train": 5}', None),
        ("a.json", '{"train": {"lr": true}}', None),
    ],
)
def test_the_rate_that_a_file_gives(tmp_path, name, text, rate):
    path = tmp_path / name
    path.write_text(text)
    assert number_at(path, "train.lr") == rate


keys = st.text("abcdefgh", min_size=1, max_size=4)
plain = st.recursive(
    st.one_of(st.integers(-99, 99), st.sampled_from(["word", "two words", "x: y", "# z", ""])),
    lambda inner: st.dictionaries(keys, inner, min_size=1, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(keys, plain, min_size=1, max_size=4), st.data())
def test_any_yaml_document_gets_its_value_or_is_refused(tmp_path_factory, document, data):
    """However it is laid out: the copy says what was asked, and nothing else has changed."""
    folder = tmp_path_factory.mktemp("yaml")
    style = data.draw(st.sampled_from([True, False, None]))
    text = yaml.safe_dump(document, default_flow_style=style)
    key = data.draw(st.sampled_from(sorted(document)))
    if isinstance(document[key], dict):
        return
    copy = patched(folder, "a.yaml", text, {key: "0.125"})
    assert yaml.safe_load(copy) == {**document, key: 0.125}
