"""The verifier as the supervisor runs it: a child with one line of JSON, small and humble."""

from __future__ import annotations

import json
import os
import queue
import resource
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from overnight.adapters.checkpoints.verify import verify
from overnight.adapters.child import ChildResult, module_argv, run_child
from overnight.core.events import Health

MODULE = "overnight.adapters.checkpoints.verify"


def safetensors(path: Path, count: int) -> Path:
    """A file of `count` fp32 ones."""
    header = json.dumps({"w": {"dtype": "F32", "shape": [count], "data_offsets": [0, 4 * count]}})
    with path.open("wb") as out:
        out.write(struct.pack("<Q", len(header)) + header.encode())
        for _ in range(count >> 20):
            out.write(struct.pack("<f", 1.0) * (1 << 20))
        out.write(struct.pack("<f", 1.0) * (count % (1 << 20)))
    return path


def run(path: Path) -> ChildResult:
    """The child's result, through the adapter that the supervisor uses."""
    results: queue.Queue[ChildResult] = queue.Queue()
    run_child(module_argv(MODULE, str(path)), deadline_s=60, done=results.put)
    return results.get(timeout=60)


def test_the_child_answers_with_one_line_of_json(tmp_path: Path) -> None:
    """Exactly the fields of the contract, exit status 0, nothing on stderr."""
    path = safetensors(tmp_path / "m.safetensors", 1000)
    result = run(path)
    assert (result.returncode, result.stderr, result.stdout.count(b"\n")) == (0, b"", 1)
    assert result.json() == {
        "path": str(path),
        "health": "verified",
        "reason": "1 tensor, 4.0 kB of floating-point data, all finite;"
        " weights only: no optimizer state",
        "step": None,
        "format": "safetensors",
        "tensors": 1,
        "bytes_scanned": 4000,
        "partial": True,
    }


def test_the_child_answers_for_damage_and_for_nothing(tmp_path: Path) -> None:
    """Exit 0 whenever it could answer, a path that is gone included."""
    (tmp_path / "m.pt").write_bytes(b"")
    for name, health in (("m.pt", "corrupt"), ("gone.pt", "unverified")):
        result = run(tmp_path / name)
        answer = result.json()
        assert result.returncode == 0
        assert answer is not None
        assert answer["health"] == health


def test_a_name_that_is_no_utf8_survives(tmp_path: Path) -> None:
    """Paths are bytes to Linux; the answer is JSON all the same."""
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/m\xff.pt"))
    path.write_bytes(b"")
    answer = run(path).json()
    assert answer is not None
    assert answer["path"] == str(path)


def test_usage(tmp_path: Path) -> None:
    """No path is the caller's mistake: exit 2."""
    result = subprocess.run([sys.executable, "-m", MODULE], capture_output=True, check=False)
    assert (result.returncode, result.stdout) == (2, b"")


def test_the_child_is_humble_and_small(tmp_path: Path) -> None:
    """Niceness 19, idle disk priority, a memory bound; 64 MiB of weights in under 40 MiB."""
    path = safetensors(tmp_path / "m.safetensors", 16 << 20)
    script = (
        "import os, resource, sys\n"
        f"from {MODULE} import main\n"
        "code = main(sys.argv[1:])\n"
        "status = dict(line.split(':', 1) for line in open('/proc/self/status'))\n"
        "print(os.nice(0), resource.getrlimit(resource.RLIMIT_AS)[0], status['VmHWM'].split()[0])\n"
        "print(sorted({'torch', 'numpy', 'pydantic', 'sqlite3'} & set(sys.modules)))\n"
        "os.system('ionice -p %d' % os.getpid())\n"
    )
    output = subprocess.run(
        [sys.executable, "-u", "-c", script, str(path)], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert json.loads(output[0])["health"] == "verified"
    nice, limit, peak_kib = map(int, output[1].split())
    assert nice == 19
    assert 0 < limit < 256 << 20
    assert limit != resource.RLIM_INFINITY
    assert peak_kib < 40 << 10
    assert output[2] == "[]"
    assert output[3:] in ([], ["idle"])


def test_a_structure_that_eats_memory_is_unverified_within_the_bound(tmp_path: Path) -> None:
    """50 MB of pickle unfold to half a gigabyte of objects; the child says so and lives."""
    zipfile = pytest.importorskip("zipfile")
    path = tmp_path / "m.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("m/data.pkl", b"\x80\x02](" + b"]" * (8 << 20) + b"e.")
    result = run(path)
    answer = result.json()
    assert result.returncode == 0
    assert answer is not None
    assert answer["health"] == "unverified"
    assert "more memory" in answer["reason"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_of_somebody_else_is_unverified(tmp_path: Path) -> None:
    """No permission is not damage."""
    path = safetensors(tmp_path / "m.safetensors", 10)
    path.chmod(0)
    assert verify(path).health is Health.UNVERIFIED


def test_a_device_is_no_checkpoint() -> None:
    """What is neither file nor directory ends in an answer, too."""
    assert verify(Path("/dev/null")).health is not Health.VERIFIED
