"""A worker that prints a gigabyte: the supervisor neither stalls nor grows, and still decides.

    python benchmarks/flood.py [--mebibytes 1024]

Four kinds of output (text lines, 1 MiB lines, no newline at all, bytes that are no text), each
ending in a crash that has to be understood. Bar: 80 MiB of RSS.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from overnight_box import OVERNIGHT

KINDS = {
    "text lines": "block = b'a line of no interest, number 17 of very many such lines\\n' * 17476",
    "1 MiB lines": "block = b'x' * ((1 << 20) - 1) + b'\\n'",
    "no newline": "block = b'loss: ' * 174763",
    "not text": "block = bytes(range(256)) * 4096",
}
SCRIPT = """\
import os, sys
{kind}
for _ in range({count}):
    view = memoryview(block)
    while view:
        view = view[os.write(1, view):]
os.write(1, b"\\nStep 1 | Loss: 2.5\\n")
raise MemoryError
"""


def one(kind: str, mebibytes: int, root: Path) -> None:
    """Run one kind and print its row."""
    worker = root / "flood.py"
    worker.write_text(SCRIPT.format(kind=KINDS[kind], count=mebibytes))
    env = {**os.environ, "OVERNIGHT_STATE_DIR": str(root / "state")}
    argv = [*OVERNIGHT, "run", "--name", "flood", "--fresh", "--", sys.executable, str(worker)]
    began = time.monotonic()
    supervisor = subprocess.Popen(
        argv, cwd=root, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    process, peak = psutil.Process(supervisor.pid), 0
    assert supervisor.stderr is not None
    os.set_blocking(supervisor.stderr.fileno(), False)
    said = b""
    while b"critical: crash" not in said:
        peak = max(peak, process.memory_info().rss)
        said += supervisor.stderr.read() or b""
        time.sleep(0.02)
    elapsed = time.monotonic() - began
    supervisor.terminate()
    supervisor.wait(30)
    incidents = subprocess.run(
        [*OVERNIGHT, "incidents", "flood", "--json"], env=env, capture_output=True, check=True
    )
    cause = json.loads(incidents.stdout)[0]["cause"]
    print(
        f"{kind:12} {mebibytes} MiB {elapsed:7.1f} s   peak {peak / 2**20:5.1f} MiB   cause {cause}"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--mebibytes", type=int, default=1024)
    mebibytes = parser.parse_args().mebibytes
    for kind in KINDS:
        with tempfile.TemporaryDirectory() as root:
            one(kind, mebibytes, Path(root))


if __name__ == "__main__":
    main()
