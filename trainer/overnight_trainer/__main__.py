"""Command line. Three ways to start it:

    python -m overnight_trainer --preset tiny --steps 500 --out out
    python path/to/overnight_trainer --preset tiny
    torchrun --nproc-per-node 2 -m overnight_trainer --preset large

Exit status: 0 done or stopped by SIGTERM, 1 crashed, 2 usage, 3 the checkpoint cannot be used.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path


def load_package() -> None:
    """Started by its path: make the package importable by name, and nothing beside it.

    Its parent may be a site-packages folder of another Python; on sys.path it would shadow torch.
    """
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != here]
    spec = importlib.util.spec_from_file_location(
        "overnight_trainer", os.path.join(here, "__init__.py"), submodule_search_locations=[here]
    )
    assert spec is not None
    assert spec.loader is not None
    package = sys.modules["overnight_trainer"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(package)


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The flags, checked; a mistake is argparse's message and exit 2."""
    parser = argparse.ArgumentParser("overnight_trainer", description="Train a small GPT on bytes.")
    add = parser.add_argument
    add("--preset", default="tiny", help="model size: tiny (default), small, base, large")
    add("--out", type=Path, default=Path("out"), help="checkpoints and corpus go here")
    add("--data", type=Path, nargs="+", metavar="FILE", help="text; default: Python's library")
    add("--steps", type=int, default=2000, help="optimizer steps in all")
    add("--batch", type=int, default=0, help="sequences a micro-batch; default: the preset's")
    add("--accum", type=int, default=1, help="micro-batches a step")
    add("--lr", type=float, default=0.0, help="peak learning rate; default: the preset's")
    add("--warmup", type=int, default=100, help="steps of linear warm-up")
    add("--clip", type=float, default=1.0, help="gradient norm limit; 0 is none")
    add("--seed", type=int, default=0)
    add("--device", choices=("auto", "cpu", "cuda"), default="auto")
    add("--threads", type=int, default=0, help="CPU threads; default: PyTorch's choice")
    add("--compile", action="store_true", help="torch.compile the model")
    add("--log-every", type=int, default=10, help="steps between printed lines")
    add("--eval-every", type=int, default=0, help="steps between held-out losses; 0 is never")
    add("--save-every", type=int, default=200, help="steps between checkpoints")
    add("--keep", type=int, default=5, help="checkpoints kept; 0 is all")
    add("--resume", metavar="PATH", help="checkpoint to go on from; OVERNIGHT_RESUME wins over it")
    add("--inject", action="append", default=[], metavar="KIND@STEP", help="a fault, for drills")
    args = parser.parse_args(argv)

    floors = {"steps": 1, "accum": 1, "log_every": 1, "save_every": 1}
    for name, value in vars(args).items():
        low = floors.get(name, 0)
        if isinstance(value, (int, float)) and not low <= value < float("inf"):
            parser.error(f"--{name.replace('_', '-')} {value}: must be a number from {low} up")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Train; the exit status."""
    args = parse_args(argv)  # before PyTorch, so that --help is quick and needs nothing
    try:
        import torch

        too_old = tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 4)
    except ModuleNotFoundError:
        too_old = True
    if too_old:
        needs = "overnight_trainer needs PyTorch >= 2.4: pip install torch"
        print(needs, file=sys.stderr)
        return 2
    from overnight_trainer import TrainerError
    from overnight_trainer.train import train

    try:
        train(args)
    except TrainerError as error:
        print(f"overnight_trainer: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    if not __package__:
        load_package()
    sys.exit(main())
