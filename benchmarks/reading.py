"""What reading a line costs, in units of `json.loads` of the same numbers, in one run.

    python benchmarks/reading.py

A metric line may cost 6 of them, a line without metrics 2, and no line more than its length.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable

from overnight.core.formats import read_line
from overnight.core.formats.text import MAX_LINE_CHARS

METRICS = {
    "key-value": "Step 45100 | Loss: 2.338 | Grad Norm: 1.1 | LR: 2.9e-04",
    "hugging face": "{'loss': 2.31, 'grad_norm': 1.25, 'learning_rate': 4.9e-05, 'epoch': 0.12}",
    "nanoGPT": "iter 120: loss 2.1034, time 71.2ms, mfu 12.3%",
    "bar": "Epoch 0:  30%|███      | 121/400 [00:29<01:06,  4.17it/s, loss=1.4, lr=1e-4]",
    "megatron": " iteration     3290/    8000 | consumed samples:       210560 | elapsed time per"
    " iteration (ms): 7690.6 | learning rate: 6.860E-06 | global batch size:    64 | lm loss:"
    " 7.188455E-01 | loss scale: 1.0 | grad norm: 0.734 | number of skipped iterations:   0 |",
    "jsonl": '{"step": 45100, "loss": 2.338, "grad_norm": 1.1, "lr": 2.9e-04, "epoch": 1}',
}
PLAIN = {
    "a path": '  File "/opt/env/lib/python3.10/site-packages/torch/nn/modules/module.py", line 15',
    "a message": "Saving model checkpoint to out/checkpoint-500",
    "a log line": "2024-10-01 00:00:00,858 INFO loading shard 3 of 12 from /data/shard_0003.bin",
    "prose": "some words of a sampled text that the model wrote, which says nothing at all",
}
HOSTILE = ("1", "loss ", "| ", "a ", "nan", "[1/", "loss=1,", "\t", "Epoch ", "%|", "-.")
ROUNDS = 2000


def cost_s(work: Callable[[], object]) -> float:
    """Seconds for one call, the best of seven rounds."""
    best = float("inf")
    for _round in range(7):
        start = time.perf_counter()
        for _call in range(ROUNDS):
            work()
        best = min(best, time.perf_counter() - start)
    return best / ROUNDS


def as_jsonl(line: str) -> str:
    """The numbers that were read from a line, as a line of JSON."""
    found = read_line(line)
    names = ("step", "loss", "grad_norm", "lr", "epoch", "loss_scale", "tokens_per_s")
    return json.dumps({name: getattr(found, name) for name in names if getattr(found, name, None)})


def ratios() -> dict[str, float]:
    """Cost of each line over the cost of its JSONL form; of plain ones, of the first form."""
    found = {}
    for name, line in METRICS.items():
        form = as_jsonl(line)
        found[name] = cost_s(lambda: read_line(line)) / cost_s(lambda: json.loads(form))  # noqa: B023
    first = as_jsonl(METRICS["key-value"])
    usual = cost_s(lambda: json.loads(first))
    for name, line in PLAIN.items():
        found[name] = cost_s(lambda: read_line(line)) / usual  # noqa: B023
    return found


def growth() -> float:
    """The worst cost of a hostile line over that of one half as long: 2 is linear."""
    worst = 0.0
    for unit in HOSTILE:
        seconds = []
        for size in (MAX_LINE_CHARS // 2, MAX_LINE_CHARS):
            line = ("loss " + unit * size)[: size - 1] + "!"
            starts = []
            for _round in range(5):
                start = time.perf_counter()
                read_line(line)
                starts.append(time.perf_counter() - start)
            seconds.append(min(starts))
        worst = max(worst, seconds[1] / seconds[0])
    return worst


def main() -> None:
    """Print the table."""
    for name, ratio in ratios().items():
        limit = 6 if name in METRICS else 2
        print(f"{name:14} {ratio:5.1f}  (at most {limit})")
    print(f"twice the length of a hostile line costs {growth():.1f} times as much")


if __name__ == "__main__":
    main()
