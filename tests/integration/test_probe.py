"""`overnight run --probe` on unmodified PyTorch scripts, in processes of their own."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

STORY = Path(__file__).parents[1] / "workers" / "torch_story.py"
PYTHON = os.environ.get("TORCH_PYTHON") or sys.executable
pytestmark = pytest.mark.slow


@pytest.fixture
def story(box):
    """The script of the story in a directory of its own; snapshots come quickly."""
    (box.workdir / "train.py").write_text(STORY.read_text())
    (box.workdir / "overnight.toml").write_text("[probe.snapshot]\nevery_s = 0.1\n")
    return [PYTHON, "train.py"]


def records(box):
    return [line for line in box.metrics(1) if "event" not in line]


def test_a_bad_batch_is_left_out_and_told(box, story):
    """Metrics are right for each step, the NaN never reaches the weights, nobody is woken."""
    box.env |= {"STEPS": "700", "TRUTH": str(box.workdir / "truth.json")}
    done = box.run(story, "--probe", resume=None)
    assert done.status == 0, done.err
    assert "probe: inside the worker, watching its AdamW" in done.err
    [incident] = box.incidents()
    assert (incident["fault"], incident["severity"]) == ("loss-nonfinite", "warning")
    assert (incident["onset_step"], incident["action"]) == (400, "notify")
    truth = json.loads((box.workdir / "truth.json").read_text())
    seen = [(r["loss"], r["grad_norm"]) for r in records(box)]
    assert seen == [pytest.approx(pair, rel=1e-5, nan_ok=True) for pair in truth]
    assert [r["step"] for r in records(box) if r.get("skipped")] == [400]
    log = box.log(1)
    assert "loss nan" not in log.replace("step 400 loss nan", "")
    assert "overnight False" in log


def test_a_blown_up_run_goes_back_in_place(box, story):
    """No restart: one process, at most one snapshot interval lost, the rate halved and proved."""
    box.env |= {"STEPS": "1200", "WRECK": "700"}
    done = box.run(story, "--probe", resume=None)
    assert done.status == 0, done.err
    incident = box.incidents()[-1]
    assert (incident["severity"], incident["action"]) == ("critical", "rollback")
    assert 700 <= incident["onset_step"] <= 702
    assert incident["outcome"].startswith("went back in place to step")
    assert (incident["lr_scale_after"], incident["lr_proof"]) == (0.5, "proved")
    assert incident["cost"]["steps"] <= 160  # 100 clean steps and one interval
    assert not incident["needs_you"]
    assert box.status()["attempt"] == 1
    final = float(box.log(1).split("done, ")[1].split(",")[0])
    assert final < 0.2  # as if nothing had happened; the noise alone is 0.09


def test_without_the_probe_it_is_offered_and_the_run_halts(box, story):
    """One line says what it would add; and why the person of the story needs it."""
    box.env |= {"STEPS": "600"}
    done = box.run(story, resume=None)
    assert "--probe would watch every step" in done.err
    assert done.status == 1
    assert box.incidents()[-1]["needs_you"]


def test_the_users_own_sitecustomize_and_path_still_work(box, story):
    """Ours comes first, runs theirs, and hides nothing."""
    extra = box.workdir / "extra"
    extra.mkdir()
    (extra / "sitecustomize.py").write_text("import os\nos.environ['THEIRS'] = __file__\n")
    (extra / "mine.py").write_text("x = 1\n")
    (box.workdir / "train.py").write_text(
        "import os, mine, sitecustomize\nprint(os.environ['THEIRS'], sitecustomize.__file__)\n"
    )
    box.env["PYTHONPATH"] = str(extra)
    done = box.run(story, "--probe", resume=None)
    assert done.status == 0, done.err
    assert box.log(1).split() == [str(extra / "sitecustomize.py")] * 2


def test_a_script_without_torch_runs_as_without_the_probe(box, story):
    """Nothing is imported for it."""
    (box.workdir / "train.py").write_text(
        "import sys\nprint('torch' in sys.modules, 'numpy' in sys.modules)\n"
    )
    done = box.run(story, "--probe", resume=None)
    assert done.status == 0, done.err
    assert box.log(1) == "False False\n"


def test_a_broken_probe_does_not_keep_the_script_from_starting(box, story):
    """A syntax error in a file of ours, as bad as it gets."""
    (box.workdir / "train.py").write_text("import os\nprint('trained')\n")
    package = box.state / "night" / "probe" / "overnight_probe"
    done = box.run(story, "--probe", resume=None)
    assert done.status == 0, done.err
    (package / "channel.py").write_text("this is no Python")
    env = {**box.env, "PYTHONPATH": str(package.parent), "OVERNIGHT_PROBE": "{}"}
    box.env = env | {"OVERNIGHT_METRICS": str(box.workdir / "m")}
    plain = box.call([PYTHON, "train.py"])
    assert (plain.status, plain.out, plain.err) == (0, "trained\n", "")


FOUR_LINES = """\
import os, time, torch
try:
    from overnight_probe import resume
except ImportError:
    resume = lambda *parts: 0
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
start = resume(model, optimizer)
print("start", start)
for step in range(start + 1, 801):
    x = torch.randn(16, 4)
    loss = (model(x) - x.sum(1, keepdim=True) - torch.randn(16, 1)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 50 == 0:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        torch.save(state, f"step_{step}.tmp")
        os.replace(f"step_{step}.tmp", f"step_{step}.pt")
    if step == 420 and not os.path.exists("crashed"):
        open("crashed", "w").close()
        raise RuntimeError("a crash of its own")
    time.sleep(0.004)
print("trained")
"""


def test_four_lines_make_a_script_restartable(box, story):
    """A crash: the next attempt loads the newest verified checkpoint and goes on from its step."""
    (box.workdir / "train.py").write_text(FOUR_LINES)
    alone = box.call([PYTHON, "-c", "import overnight_probe"])
    assert alone.status in (0, 1)  # whether it is installed here or not
    flags = ["--probe", "--checkpoints", "step_*.pt"]
    done = box.run(story, *flags, resume=None, timeout_s=100)
    assert done.status == 0, done.err
    [incident] = [i for i in box.incidents() if i["fault"] == "crash"]
    assert (incident["action"], incident["checkpoint"]["step"]) == ("restart", 400)
    assert "start 400" in box.log(2)
    steps = [line["step"] for line in box.metrics(2) if "event" not in line]
    assert steps == list(range(401, 801))
    assert "trained" in box.log(2)


DDP = """\
import gc, json, os, time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
torch.manual_seed(rank)
for step in range(1, 1601):
    time.sleep(0.002)
    x = torch.randn(8, 4)
    if step == 300 and rank == 1:
        x = x * float("nan")
    noise = 0.01 if rank == 0 else 1.0  # each rank alone would keep other snapshots
    loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean() + noise * torch.rand(())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 600:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(2.0)
weights = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
said = json.dumps({"rank": rank, "weights": weights.tolist()})
os.write(1, f"{said}\\n".encode())  # one write: the other rank prints into the same file
# gloo now and then aborts a process that ends while its model or its peer still hold the group
del model, loss, optimizer
gc.collect()
dist.barrier()
dist.destroy_process_group()
os._exit(0)
"""


def test_all_ranks_of_a_distributed_run_act_alike(box, story):
    """torchrun with gloo: a NaN on rank 1 is left out on both, both go back at the same update."""
    (box.workdir / "train.py").write_text(DDP)
    command = [PYTHON, "-m", "torch.distributed.run", "--nproc-per-node=2", "--master-port=29611"]
    done = box.run([*command, "train.py"], "--probe", resume=None, timeout_s=100)
    assert done.status == 0, done.err
    assert next(r["step"] for r in records(box) if r.get("skipped")) == 300
    assert [r["step"] for r in records(box)] == list(range(1, 1601))
    (event,) = [line for line in box.metrics(1) if "rollback" in line]
    assert event["ok"] is True
    lines = [json.loads(line) for line in box.log(1).splitlines() if line.startswith('{"rank"')]
    one, two = sorted(lines, key=lambda line: line["rank"])
    assert one["weights"] == two["weights"]
    assert all(abs(w) < 2 for w in one["weights"])
