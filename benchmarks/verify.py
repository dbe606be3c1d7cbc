"""The checkpoint verifier beside torch.isfinite: speed and memory over the same file.

    python benchmarks/verify.py [--mib 256] [--rounds 5]

Each measurement runs in a fresh process on one thread, for the training needs the others. Time is
that of the check alone (imports left out, the file in the page cache), the best of the rounds;
memory is the process's peak, imports included. torch maps the file and tests it tensor by tensor;
it never compares checksums, the verifier does unless the file was written without.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

WRITE = """
import sys, torch
path, dtype, mib, checksums = sys.argv[1:]
torch.serialization.set_crc32_options(checksums == "yes")
torch.manual_seed(0)
count = (int(mib) << 18) // 16
state = {f"layer.{at}": (torch.randn(count) * 0.02) for at in range(16)}
if dtype == "bfloat16":
    state = {name: torch.cat((t, t)).bfloat16() for name, t in state.items()}
torch.save(state, path)
"""

MEASURE = """
import json, sys, time
from pathlib import Path
{prepare}
wall, cpu = time.perf_counter(), time.process_time()
{check}
wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(json.dumps([wall, cpu, int(status["VmHWM"].split()[0]) / 1024]))
"""

OURS = MEASURE.format(
    prepare="from overnight.adapters.checkpoints.verify import verify",
    check="report = verify(Path(sys.argv[1])); assert report.health == 'verified', report",
)

TORCH = MEASURE.format(
    prepare="import torch; torch.set_num_threads(1)",
    check="""
state = torch.load(sys.argv[1], mmap=True, weights_only=True)
assert all(torch.isfinite(tensor).all() for tensor in state.values())
""",
)


@dataclass(frozen=True)
class Row:
    """The best of some rounds."""

    wall_s: float
    cpu_s: float
    peak_mib: float


def python(script: str, *arguments: str) -> str:
    """What a fresh interpreter prints. Raises CalledProcessError."""
    argv = [sys.executable, "-c", script, *arguments]
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


def measure(rounds: int, script: str, *arguments: str) -> Row:
    """The quickest wall and CPU time and the highest memory of the rounds."""
    results = [json.loads(python(script, *arguments)) for _ in range(rounds)]
    walls, cpus, peaks = zip(*results, strict=True)
    return Row(min(walls), min(cpus), max(peaks))


def compare(directory: Path, dtype: str, mib: int, rounds: int) -> None:
    """Write two files of a type and print a table row for each way to check them."""
    files = {}
    for checksums in ("yes", "no"):
        files[checksums] = str(directory / f"{dtype}-{checksums}.pt")
        python(WRITE, files[checksums], dtype, str(mib), checksums)
    reference = measure(rounds, TORCH, files["yes"])
    rows = {
        "verifier, finite": measure(rounds, OURS, files["no"]),
        "verifier, finite + CRC32": measure(rounds, OURS, files["yes"]),
        "torch.load + isfinite": reference,
    }
    gib = mib / 1024
    for what, row in rows.items():
        print(
            f"{dtype:9} {what:26} {gib / row.wall_s:7.2f} {gib / row.cpu_s:9.2f}"
            f" {row.peak_mib:9.0f} {reference.wall_s / row.wall_s:7.1f}x"
            f" {reference.peak_mib / row.peak_mib:7.1f}x",
            flush=True,
        )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, default=256, help="size of each checkpoint")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each measurement")
    options = parser.parse_args()
    print(f"{options.mib} MiB, page cache warm, best of {options.rounds}; x: beside torch")
    print("type      how                          GiB/s GiB/CPU-s  peak MiB    speed   memory")
    with tempfile.TemporaryDirectory() as directory:
        for dtype in ("float32", "bfloat16"):
            compare(Path(directory), dtype, options.mib, options.rounds)


if __name__ == "__main__":
    main()
