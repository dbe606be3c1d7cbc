"""A training script of the kind that people have: prints lines, saves checkpoints, and misbehaves.

    python script.py --out DIR [--lr 3e-4] [--resume CKPT] [--fault KIND@STEP]...

No torch: a checkpoint is a safetensors file written by hand. Each fault fires once, across
restarts (a marker in DIR remembers), unless `--always` is given.
"""

import argparse
import json
import math
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path


def save(path, step, lr, *, value=0.5, in_place=False):
    """A safetensors file with two tensors and the step in its metadata."""
    import array

    data = array.array("f", [value] * 1024).tobytes()
    header = {
        "__metadata__": {"step": str(step), "lr": str(lr)},
        "w": {"dtype": "F32", "shape": [512], "data_offsets": [0, 2048]},
        "m": {"dtype": "F32", "shape": [512], "data_offsets": [2048, 4096]},
    }
    text = json.dumps(header).encode()
    blob = len(text).to_bytes(8, "little") + text + data
    if in_place:
        with path.open("r+b" if path.exists() else "wb") as out:
            out.write(blob)
            out.truncate()
        return
    temp = path.with_name(f".{path.name}.tmp")
    temp.write_bytes(blob)
    temp.rename(path)


def load(path):
    """(step, lr) of a checkpoint."""
    blob = Path(path).read_bytes()
    length = int.from_bytes(blob[:8], "little")
    metadata = json.loads(blob[8 : 8 + length])["__metadata__"]
    return int(metadata["step"]), float(metadata["lr"])


class Faults:
    """Each fault stays on in the process that it first fires in, and is off in later ones."""

    def __init__(self, specs, out, *, always):
        self.out = out
        self.live = []
        for kind, _, step in (spec.partition("@") for spec in specs):
            if always or not (out / f".fired-{kind}@{step}").exists():
                self.live.append((kind, int(step)))

    def at(self, kind, step, *, lasts=1):
        """Whether this fault is on at this step."""
        for known, start in self.live:
            if known == kind and start <= step < start + lasts:
                (self.out / f".fired-{known}@{start}").touch()
                return True
        return False

    def end(self, step):
        """Crash, leave or hang, if it is time."""
        if self.at("crash", step):
            raise RuntimeError(f"a crash at step {step}")
        if self.at("exit-3", step):
            sys.exit(3)
        if self.at("stall", step):
            threading.Event().wait()


def options():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--save-every", type=int, default=20)
    parser.add_argument("--step-s", type=float, default=0.002)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--resume")
    parser.add_argument("--fault", action="append", default=[])
    parser.add_argument("--always", action="store_true", help="faults fire in every attempt")
    parser.add_argument("--stride", type=int, default=1, help="steps between printed lines")
    parser.add_argument("--fixed-name", action="store_true", help="overwrite one checkpoint file")
    parser.add_argument("--keep-lr", action="store_true", help="the checkpoint's lr wins")
    parser.add_argument("--cooperate", action="store_true", help="speak the worker protocol")
    parser.add_argument("--csv", type=Path, help="write metrics here, and print nothing")
    parser.add_argument("--latest", action="store_true", help="resume from the newest by itself")
    parser.add_argument("--deaf", action="store_true", help="take --resume and ignore it")
    parser.add_argument("--config", type=Path, help="TOML with lr and resume, which win")
    parser.add_argument("--stubborn", action="store_true", help="ignore SIGTERM")
    parser.add_argument("--wait-for", type=Path, help="pause at the first step until this exists")
    args = parser.parse_args()
    if args.config:
        import tomllib

        for name, value in tomllib.loads(args.config.read_text())["train"].items():
            setattr(args, name, value)
    return args


def newest(out):
    """What a script that resumes by itself takes: a `latest` link, else the highest number."""
    link, fixed = out / "latest", out / "model.safetensors"
    if link.exists() or fixed.exists():
        return link if link.exists() else fixed
    found = out.glob("step_*.safetensors")
    return max(found, key=lambda path: int(path.stem.partition("_")[2]), default=None)


class Reporter:
    def __init__(self, args):
        self.args = args
        path = os.environ.get("OVERNIGHT_METRICS") if args.cooperate else None
        self.metrics = open(path, "a") if path else None  # noqa: PTH123, SIM115
        self.csv = args.csv.open("a") if args.csv else None
        if self.csv and self.csv.tell() == 0:
            self.csv.write("step,train/loss,grad,lr\n")

    def write(self, value):
        if self.metrics:
            self.metrics.write(json.dumps(value) + "\n")
            self.metrics.flush()

    def step(self, step, loss, grad, lr):
        self.write({"step": step, "loss": loss, "grad_norm": grad, "lr": lr})
        if self.csv:
            self.csv.write(f"{step},{loss},{grad},{lr}\n")
            self.csv.flush()
        elif step % self.args.stride == 0:
            print(f"Step {step} | Loss: {loss:.4f} | Grad Norm: {grad:.3f} | LR: {lr:.3e}")


def main():
    args = options()
    args.out.mkdir(parents=True, exist_ok=True)
    with (args.out / "starts").open("a") as starts:
        starts.write(json.dumps({"argv": sys.argv[1:], "pid": os.getpid()}) + "\n")
    stopping = threading.Event()
    handler = signal.SIG_IGN if args.stubborn else lambda *_: stopping.set()
    signal.signal(signal.SIGTERM, handler)
    reporter, faults = Reporter(args), Faults(args.fault, args.out, always=args.always)
    path = os.environ.get("OVERNIGHT_RESUME") if args.cooperate else args.resume
    path = None if args.deaf else newest(args.out) if args.latest else path
    scale = float(os.environ.get("OVERNIGHT_LR_SCALE", "1")) if args.cooperate else 1.0
    start, saved_lr = load(path) if path else (0, None)
    base = saved_lr if args.keep_lr and saved_lr else args.lr
    hello = {"event": "hello", "total_steps": args.steps, "resume": True, "lr_scale": True}
    reporter.write(hello)
    rng = random.Random(start)
    for step in range(start + 1, args.steps + 1):
        lr = base * scale
        loss = 2.0 + 1.5 * math.exp(-step / 80) + rng.gauss(0, 0.02)
        grad = 1.0 + abs(rng.gauss(0, 0.1))
        if args.wait_for and step == start + 1:
            while not args.wait_for.exists():
                time.sleep(0.01)
        faults.end(step)
        if faults.at("one-nan", step):
            loss = math.nan
        poisoned = False
        if faults.at("nan", step, lasts=10_000):
            loss, grad, poisoned = math.nan, math.nan, True
        if faults.at("grad-spike", step, lasts=12):
            grad *= 1000
        if faults.at("spike", step, lasts=10_000):
            loss += 2.0
        reporter.step(step, loss, grad, lr)
        if step % args.save_every == 0:
            name = "model.safetensors" if args.fixed_name else f"step_{step}.safetensors"
            value = math.nan if poisoned and args.fixed_name else 0.5
            save(args.out / name, step, lr, value=value, in_place=args.fixed_name)
        if stopping.is_set():
            save(args.out / f"step_{step}.safetensors", step, lr)
            print(f"saved at step {step}, leaving")
            return
        time.sleep(args.step_s)
    print("training done")


if __name__ == "__main__":
    main()
