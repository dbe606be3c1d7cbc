"""A hot GPU, through the real pynvml on the stub library."""

from __future__ import annotations

import pytest

from nvml_stub import NvmlStub
from waiting import wait_until

CONFIG = """\
[gpu]
warn_c = 80
kill_c = 88
window_s = 3
resume_below_c = 60
hold_s = 3
"""


@pytest.fixture
def card(box, tmp_path):
    """A box whose supervisor sees one RTX 4090 that we can heat."""
    stub = NvmlStub(tmp_path)
    box.env.update(stub.env())
    (box.workdir / "overnight.toml").write_text(CONFIG)
    return stub


@pytest.mark.slow
def test_hot_gpu_is_killed_cooled_and_resumed(box, card):
    """gpu-hot: stop, wait until cool, roll back with half the rate, resume."""
    card.set_temperature(0, 54)
    gate = box.workdir / "gate"
    live = box.start(
        box.command("--steps", "3000", "--cooperate", "--wait-for", str(gate)), resume=None
    )
    live.wait_for("attempt 1 started")
    gate.touch()
    wait_until((box.out / "step_240.safetensors").exists, box.out)
    assert box.status()["gpus"][0]["temperature_c"] == 54
    card.set_temperature(0, 91)
    live.wait_for("critical: gpu-hot: GPU 0", timeout_s=30)
    live.wait_for("cooling until every GPU is below 60 °C")
    assert box.status()["state"] == "cooling"
    card.set_temperature(0, 50)
    live.wait_for("attempt 2 started", timeout_s=30)
    live.wait_for("healed", timeout_s=30)
    live.process.terminate()
    assert live.finish().status == 143
    [incident] = box.incidents()
    assert incident["fault"] == "gpu-hot"
    assert incident["action"] == "cool"
    assert (incident["lr_scale_after"], incident["lr_proof"]) == (0.5, "proved")
    assert incident["checkpoint"]["step"] is not None


def test_no_driver_is_one_line_of_information(box):
    """Without NVML everything else works."""
    done = box.run(box.command("--steps", "30"))
    assert done.status == 0
    assert done.err.count("gpu: ") == 1
    assert box.status()["gpus"] == []
