"""Files that others rely on: whole or not at all, private, durable."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

import pytest

from overnight.adapters.files import (
    filesystem_type,
    private_directory,
    read_json,
    sync_directory,
    write_atomically,
    write_json,
)


def mode(path: Path) -> int:
    """The permission bits."""
    return stat.S_IMODE(path.stat().st_mode)


def test_a_value_round_trips_and_the_file_is_private(tmp_path: Path) -> None:
    """One line of JSON, readable by the owner alone."""
    path = tmp_path / "control.json"
    write_json(path, {"lr_scale": 0.5, "skip": "3:9"})
    assert read_json(path) == {"lr_scale": 0.5, "skip": "3:9"}
    assert path.read_bytes().endswith(b"}\n")
    assert mode(path) == 0o600


def test_writing_replaces_the_file_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    """A reader that has the old one open keeps the old one whole."""
    path = tmp_path / "file"
    write_atomically(path, b"old")
    with path.open("rb") as reader:
        write_atomically(path, b"new", mode=0o644)
        assert reader.read() == b"old"
    assert path.read_bytes() == b"new"
    assert mode(path) == 0o644
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_write_keeps_the_old_file_and_leaves_no_temporary(tmp_path: Path) -> None:
    """The target is a directory: the rename fails after everything was written."""
    target = tmp_path / "target"
    (target / "full").mkdir(parents=True)
    with pytest.raises(OSError, match="target"):
        write_atomically(target, b"data")
    assert list(tmp_path.iterdir()) == [target]


def test_a_killed_writer_never_leaves_a_torn_file(tmp_path: Path) -> None:
    """A process that rewrites for ever is killed; the file is one of its versions."""
    path = tmp_path / "file"
    code = (
        "import sys; from pathlib import Path; from overnight.adapters.files import write_json\n"
        "for n in range(10**9):\n"
        "    write_json(Path(sys.argv[1]), [n] * 20000)\n"
        "    if n % 5 == 4: print(n, flush=True)\n"
    )
    for _ in range(3):
        argv = [sys.executable, "-c", code, str(path)]
        with subprocess.Popen(argv, stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            writer.stdout.readline()
            writer.kill()
        value = read_json(path)
        assert len(value) == 20000
        assert len(set(value)) == 1


@pytest.mark.parametrize("data", [b"", b"{", b'{"a": ', b"\xff\xfe"])
def test_a_torn_or_foreign_file_reads_as_none(tmp_path: Path, data: bytes) -> None:
    """The caller treats it as one that is not there."""
    path = tmp_path / "file"
    path.write_bytes(data)
    assert read_json(path) is None


def test_a_missing_file_reads_as_none(tmp_path: Path) -> None:
    """Also where the directory is missing."""
    assert read_json(tmp_path / "no" / "file") is None


def test_a_private_directory_is_made_and_closed_to_others(tmp_path: Path) -> None:
    """One that was open before is closed."""
    path = private_directory(tmp_path / "a" / "b")
    assert mode(path) == 0o700
    path.chmod(0o755)
    assert mode(private_directory(path)) == 0o700


def test_only_a_directory_can_be_synced(tmp_path: Path) -> None:
    """A file in its place is a programmer's mistake and shows."""
    sync_directory(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        sync_directory(tmp_path / "file")


def test_the_type_of_a_filesystem_is_that_of_its_mount() -> None:
    """/proc is proc, wherever else one looks there is some type."""
    assert filesystem_type(Path("/proc/self")) == "proc"
    assert filesystem_type(Path("/")) != ""
