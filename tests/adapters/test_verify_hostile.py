"""Pickles that try to run something: each attack works on Python's own unpickler, none on ours."""

from __future__ import annotations

import io
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from overnight.adapters.checkpoints import inert
from overnight.adapters.checkpoints.report import DamagedError
from overnight.adapters.checkpoints.verify import verify
from overnight.core.events import Health


class ByReduce:
    """REDUCE: call a function with arguments."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> Any:
        return os.system, (self.command,)


class ByState:
    """REDUCE with a state setter: the function is called on (object, state)."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> Any:
        return dict, (), self.command, None, None, _run


def _run(_: object, command: str) -> None:
    os.system(command)


def unicode(text: str) -> bytes:
    """BINUNICODE of a text."""
    raw = text.encode()
    return b"X" + len(raw).to_bytes(4, "little") + raw


def by_build(command: str) -> bytes:
    """NEWOBJ of a class whose __setstate__ a later BUILD replaces with os.system, then BUILD."""
    make = b"cargparse\nNamespace\n)\x81"
    poison = b"}" + unicode("__setstate__") + b"cos\nsystem\nsb"
    return b"\x80\x02" + make + poison + unicode(command) + b"b."


def _lazy_call(command: str) -> bytes:
    """NEWOBJ of map(os.system, [command]): nothing runs until somebody iterates."""
    return b"cbuiltins\nmap\ncos\nsystem\n]" + unicode(command) + b"a\x86\x81"


def by_newobj(command: str) -> bytes:
    """NEWOBJ of bytes(map(…)): making the object iterates."""
    return b"\x80\x02cbuiltins\nbytes\n" + _lazy_call(command) + b"\x85\x81."


def by_newobj_ex(command: str) -> bytes:
    """NEWOBJ_EX: the same with (no) keyword arguments."""
    return b"\x80\x04cbuiltins\nbytes\n" + _lazy_call(command) + b"\x85}\x92."


def by_real_container(command: str) -> bytes:
    """The same with a container that stays real: its argument must be inert."""
    return b"\x80\x02cbuiltins\ntuple\n" + _lazy_call(command) + b"\x85\x81."


def by_inst(command: str) -> bytes:
    """INST of protocol 0: name, then call with what lies above the mark."""
    return b"(S'" + command.encode() + b"'\nios\nsystem\n."


def by_obj(command: str) -> bytes:
    """OBJ of protocol 1."""
    return b"(cos\nsystem\n" + unicode(command) + b"o."


def by_stack_global(command: str) -> bytes:
    """STACK_GLOBAL of protocol 4 with a dotted name."""
    names = unicode("os") + unicode("system")
    return b"\x80\x04" + names + b"\x93" + unicode(command) + b"\x85R."


def by_getattr(command: str) -> bytes:
    """getattr(os, 'system'), built out of harmless looking names."""
    module = b"cimportlib\nimport_module\n" + unicode("os") + b"\x85R"
    function = b"c__builtin__\ngetattr\n" + module + unicode("system") + b"\x86R"
    return b"\x80\x02" + function + unicode(command) + b"\x85R."


def by_container(command: str) -> bytes:
    """BUILD on a real OrderedDict, which has attributes that can be replaced."""
    poison = b"}" + unicode("items") + b"cos\nsystem\nsb"
    return b"\x80\x02ccollections\nOrderedDict\n)R" + poison + unicode(command) + b"\x85R."


def by_class_state(command: str) -> bytes:
    """BUILD with a slot state on a class object: setattr on what find_class returned."""
    slots = b"N}" + unicode("__call__") + b"cos\nsystem\ns\x86b"
    return b"\x80\x02cargparse\nNamespace\n" + slots + unicode(command) + b"\x85R."


def by_reduce(command: str) -> bytes:
    """What pickle itself writes."""
    return pickle.dumps({"w": [ByReduce(command)]}, protocol=4)


def by_state_setter(command: str) -> bytes:
    """The sixth item of __reduce__."""
    return pickle.dumps(ByState(command), protocol=2)


Attack = Callable[[str], bytes]

WORKING: list[Attack] = [
    by_build,
    by_newobj,
    by_newobj_ex,
    by_real_container,
    by_inst,
    by_obj,
    by_stack_global,
    by_getattr,
    by_reduce,
    by_state_setter,
]
AGAINST_US: list[Attack] = [by_container, by_class_state]


def as_zip(path: Path, payload: bytes) -> None:
    """A torch.save archive with a structure of our own."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("m/data.pkl", payload)
        archive.writestr("m/version", "3\n")


def as_legacy(path: Path, payload: bytes) -> None:
    """The five pickles of the old format."""
    magic = pickle.dumps(0x1950A86A20F9469CFC6C, protocol=2)
    rest = [pickle.dumps(1001, 2), pickle.dumps({}, 2), payload, pickle.dumps([], 2)]
    path.write_bytes(magic + b"".join(rest))


@pytest.mark.parametrize("write", [as_zip, as_legacy])
@pytest.mark.parametrize("attack", WORKING + AGAINST_US)
def test_nothing_in_a_pickle_runs(
    tmp_path: Path, attack: Attack, write: Callable[[Path, bytes], None]
) -> None:
    """The planted command would create a file; there is an answer and no file."""
    witness, path = tmp_path / "ran", tmp_path / "model.pt"
    write(path, attack(f"touch {witness}"))
    report = verify(path)
    assert report.health in {Health.VERIFIED, Health.UNVERIFIED}
    assert not witness.exists()


@pytest.mark.parametrize("attack", WORKING)
def test_the_attacks_are_real(tmp_path: Path, attack: Attack) -> None:
    """Otherwise the test above would prove nothing: plain pickle does run them."""
    witness = tmp_path / "ran"
    pickle.loads(attack(f"touch {witness}"))
    assert witness.exists()


def test_every_name_but_containers_is_inert() -> None:
    """What is left of a call is its name and its arguments."""
    value = inert.load(io.BytesIO(pickle.dumps(ByReduce("true"), protocol=2)), "it")
    assert isinstance(value, inert.Inert)
    assert (value.origin, value.args) == ("posix.system", ("true",))


def test_subclasses_of_containers_keep_their_content() -> None:
    """APPENDS, SETITEMS and ADDITEMS on an unknown class store what they are given."""
    payload = b"\x80\x04cx\nL\n)\x81(K\x01K\x02e."
    assert inert.load(io.BytesIO(payload), "it").items == [1, 2]
    payload = b"\x80\x04cx\nD\n)\x81(K\x01K\x02u."
    assert inert.load(io.BytesIO(payload), "it").items == [{1: 2}]


def test_deep_nesting_does_not_overflow_the_stack(tmp_path: Path) -> None:
    """100,000 lists inside one another are walked without recursion."""
    path = tmp_path / "model.pt"
    as_zip(path, b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".")
    assert verify(path).health is Health.VERIFIED


def test_a_cycle_ends(tmp_path: Path) -> None:
    """A list that contains itself is walked once."""
    path = tmp_path / "model.pt"
    as_zip(path, b"\x80\x02]q\x00h\x00a.")
    assert verify(path).health is Health.VERIFIED


def test_a_structure_too_large_to_be_one_is_not_read(tmp_path: Path) -> None:
    """64 MB is the bound; a zip that inflates to more is left alone."""
    path = tmp_path / "model.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("m/data.pkl", bytes((64 << 20) + 1))
    report = verify(path)
    assert report.health is Health.UNVERIFIED
    assert "67.1 MB" in report.reason


@pytest.mark.parametrize("payload", [b"", b"\x80\x02", b"\x80\x02}q", b"\xff\xff"])
def test_a_torn_pickle_is_damage(payload: bytes) -> None:
    """It ends before its end, or is none."""
    with pytest.raises(DamagedError):
        inert.load(io.BytesIO(payload), "it")


def test_control_characters_never_reach_the_reason(tmp_path: Path) -> None:
    """A tensor may be named like a terminal command; the alert shows question marks."""
    torch = pytest.importorskip("torch")
    path = tmp_path / "model.pt"
    torch.save({"\x1b]0;owned\x07" + "x" * 5000: torch.tensor([float("nan")])}, path)
    reason = verify(path).reason
    assert reason.isprintable()
    assert len(reason) < 300
