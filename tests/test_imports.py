"""What a process of ours loads and weighs: the supervisor lives beside a training for weeks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

SUPERVISOR_MIB = 60
QUERY_MIB = 40

PROBE = """
import json, sys
from pathlib import Path
{body}
status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
packages = sorted({{name.partition(".")[0] for name in sys.modules}})
modules = [name for name in sys.modules if name.startswith("overnight")]
rss_mib = int(status["VmRSS"].split()[0]) / 1024
print(json.dumps({{"packages": packages, "modules": modules, "rss_mib": rss_mib}}))
"""

QUERY = """
from overnight.cli import main
try:
    main(["status", "--json"])
except SystemExit as left:
    assert left.code == 3, left.code
else:
    raise AssertionError("a query without a run must say so")
"""


def probe(body: str, **variables: str) -> dict[str, Any]:
    """What a fresh interpreter has loaded after `body`."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE.format(body=body)],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_the_supervisor_never_loads_what_belongs_to_children_or_to_the_training() -> None:
    """torch alone would cost 219 MiB and 1.5 s; Apprise and plots live in the sender child."""
    loaded = set(probe("import overnight.app")["packages"])
    children = {"apprise", "matplotlib", "PIL", "pynvml", "requests", "yaml"}
    training = {"torch", "numpy", "safetensors", "overnight_trainer"}
    assert not loaded & (children | training)


def test_the_supervisor_fits_in_60_mib() -> None:
    """All of its code loaded, nothing running: what it needs for a run has to fit above that."""
    assert probe("import overnight.app")["rss_mib"] <= SUPERVISOR_MIB


def test_a_query_loads_little(tmp_path: Path) -> None:
    """`overnight status` may be called in a loop: no pydantic, no psutil, no supervisor."""
    found = probe(QUERY, OVERNIGHT_STATE_DIR=str(tmp_path / "none"))
    assert not set(found["packages"]) & {"pydantic", "psutil", "apscheduler", "apprise", "rich"}
    heavy = ("overnight.app", "overnight.config", "overnight.supervisor")
    assert not [name for name in found["modules"] if name.startswith(heavy)]
    assert found["rss_mib"] <= QUERY_MIB


def test_importing_starts_nothing() -> None:
    """No thread, no child, no file: an import is not a start."""
    body = """
import os, threading
before = len(os.listdir("/proc/self/fd"))
import overnight.app
assert threading.active_count() == 1, threading.enumerate()
assert len(os.listdir("/proc/self/fd")) == before
assert not Path(f"/proc/self/task/{os.getpid()}/children").read_text()
"""
    probe(body)
