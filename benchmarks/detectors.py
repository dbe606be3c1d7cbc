"""False alarms, recall and delay of the detectors on real loss curves, beside published rules.

    python benchmarks/detectors.py [CURVES_DIR]

CURVES_DIR holds CSV files with the columns step, loss, grad_norm, lr; the default is the excerpts
of tests/data/curves. Each curve is judged as it is (none of those runs had failed: every critical
verdict is a false alarm), and again with one fault put into its middle. The published rules see
what they were written for, the loss; each of their alarms stands for a critical verdict, and
alarms less than 100 records apart are one; published_rules.py holds them.
"""

from __future__ import annotations

import argparse
import copy
import csv
import json
import math
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from published_rules import RULES

from overnight.core.detect.panel import SPARSE_STRIDE, Panel, PanelConfig
from overnight.core.events import Position, Severity, StepMetric

DEFAULT = Path(__file__).parents[1] / "tests" / "data" / "curves"
FAMILIES = {
    "language models": ("bng", "kj", "llmc", "hf", "jsonl", "gpt", "t5"),
    "vision": ("d2", "ultra", "yolo7"),
    "adversarial": ("gan",),
    "physics-informed": ("pl",),
}
EPISODE_RECORDS = 100
AFTER = 1500
"""Records that are judged after the onset of an injected fault."""


# --- curves ---------------------------------------------------------------------------------------


def number(text: str | None) -> float | None:
    """A cell of the CSV."""
    return float(text) if text else None


def digits(text: str) -> int:
    """Significant digits as printed."""
    return len(text.lower().partition("e")[0].replace(".", "").strip("-+").lstrip("0")) or 1


def load(path: Path) -> list[StepMetric]:
    """A curve as records of one attempt."""
    with path.open() as file:
        rows = list(csv.DictReader(file))
    return [
        StepMetric(
            at=float(index),
            position=Position(1, index),
            step=int(float(row["step"])),
            loss=number(row["loss"]),
            grad_norm=number(row["grad_norm"]),
            lr=number(row["lr"]),
            digits=digits(row["loss"]) if row["loss"] else None,
        )
        for index, row in enumerate(rows, start=1)
    ]


def family(path: Path) -> str:
    """What kind of run a curve is from, by the first part of its name."""
    prefix = path.stem.split("_")[0]
    return next((name for name, prefixes in FAMILIES.items() if prefix in prefixes), "other")


def is_sparse(records: Sequence[StepMetric]) -> bool:
    """A line every ten steps or rarer."""
    steps = [record.step for record in records[:8]]
    return statistics.median(b - a for a, b in pairwise(steps)) >= SPARSE_STRIDE


def is_dead(records: Sequence[StepMetric]) -> bool:
    """A run that was NaN from its first record: a true positive, told apart."""
    return all(record.loss is None or math.isnan(record.loss) for record in records)


OURS = "Overnight"


class Watcher:
    """One candidate on one curve: at which records it is critical, and its warnings."""

    def __init__(self, name: str) -> None:
        self._panel = Panel(PanelConfig()) if name == OURS else None
        self._rule = None if name == OURS else RULES[name]()
        self._last: int | None = None
        self.criticals: list[int] = []
        self.warnings = 0

    def observe(self, record: StepMetric) -> None:
        """Judge one record."""
        if self._panel is not None:
            verdict = self._panel.observe(record).verdict
            if verdict is not None and verdict.severity is Severity.CRITICAL:
                self.criticals.append(record.position.record)
            self.warnings += verdict is not None and verdict.severity is Severity.WARNING
        elif self._rule is not None and record.loss is not None and self._rule.alarms(record.loss):
            at = record.position.record
            if self._last is None or at - self._last >= EPISODE_RECORDS:
                self.criticals.append(at)
            self._last = at


# --- faults ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class InjectedFault:
    """What is done to the k-th record after the onset, and whether it must be found."""

    name: str
    change: Callable[[StepMetric, int], StepMetric]
    must_find: bool
    needs_grad: bool = False


def scaled(factor: Callable[[int], float]) -> Callable[[StepMetric, int], StepMetric]:
    """The loss times a factor that depends on the records since the onset."""

    def change(record: StepMetric, k: int) -> StepMetric:
        loss = record.loss
        return record if loss is None else replace(record, loss=loss + abs(loss) * (factor(k) - 1))

    return change


def nan(record: StepMetric, _k: int) -> StepMetric:
    """NaN from here on."""
    return replace(record, loss=math.nan, grad_norm=record.grad_norm and math.nan)


def grad_spike(record: StepMetric, k: int) -> StepMetric:
    """Ten times the gradient norm for six records."""
    grad = record.grad_norm
    return replace(record, grad_norm=10 * grad) if grad is not None and k < 6 else record


FAULTS = [
    InjectedFault("NaN", nan, must_find=True),
    InjectedFault("+5 % kept", scaled(lambda _k: 1.05), must_find=False),
    InjectedFault("+10 % kept", scaled(lambda _k: 1.10), must_find=False),
    InjectedFault("+15 % kept", scaled(lambda _k: 1.15), must_find=True),
    InjectedFault("+25 % kept", scaled(lambda _k: 1.25), must_find=True),
    InjectedFault("+50 % kept", scaled(lambda _k: 1.50), must_find=True),
    InjectedFault("x4 kept", scaled(lambda _k: 4.0), must_find=True),
    InjectedFault("+1 % per 20 records", scaled(lambda k: 1 + k / 2000), must_find=True),
    InjectedFault("blow-up e^(k/20)", scaled(lambda k: math.exp(min(k, 400) / 20)), must_find=True),
    InjectedFault("gradient x10, 6 records", grad_spike, must_find=True, needs_grad=True),
    InjectedFault("1 record x2", scaled(lambda k: 2.0 if k == 0 else 1.0), must_find=False),
    InjectedFault("5 records x2", scaled(lambda k: 2.0 if k < 5 else 1.0), must_find=False),
    InjectedFault("healing x2, tau 5", scaled(lambda k: 1 + math.exp(-k / 5)), must_find=False),
    InjectedFault("healing x2, tau 20", scaled(lambda k: 1 + math.exp(-k / 20)), must_find=False),
]
RUNNING_MEAN = "running mean, 2 decimals"


def running_mean(records: Sequence[StepMetric], epoch: int = 500) -> list[StepMetric]:
    """What a progress bar prints: the mean since the epoch began, with two decimals."""
    out, total = [], 0.0
    for index, record in enumerate(records):
        if index % epoch == 0:
            total = 0.0
        total += record.loss or 0.0
        text = f"{total / (index % epoch + 1):.2f}"
        out.append(replace(record, loss=float(text), digits=digits(text), grad_norm=None))
    return out


# --- one curve ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CurveResult:
    """All that was measured on one curve. Delays: records from the onset, None where not found."""

    name: str
    family: str
    records: int
    sparse: bool
    dead: bool
    criticals: dict[str, int]
    warnings: int
    delays: dict[tuple[str, str], int | None]
    mean_verdicts: int


def measure(path: Path) -> CurveResult:
    """Judge a curve as it is, then with each fault in its middle."""
    records = load(path)
    middle = len(records) // 2
    injected = len(records) >= 1000 and family(path) == "language models" and not is_dead(records)
    criticals, delays, warnings, mean_verdicts = {}, {}, 0, 0
    for name in (OURS, *RULES):
        watcher, halfway = Watcher(name), None
        for index, record in enumerate(records):
            if index == middle and injected:
                halfway = copy.deepcopy(watcher)
            watcher.observe(record)
        criticals[name] = len(watcher.criticals)
        warnings = watcher.warnings if name == OURS else warnings
        if halfway is not None:
            for fault, delay in delays_of(halfway, records, middle):
                delays[fault, name] = delay
    if injected:
        watcher = Watcher(OURS)
        for record in running_mean(records):
            watcher.observe(record)
        mean_verdicts = len(watcher.criticals) + watcher.warnings
    return CurveResult(
        name=path.stem,
        family=family(path),
        records=len(records),
        sparse=is_sparse(records),
        dead=is_dead(records),
        criticals=criticals,
        warnings=warnings,
        delays=delays,
        mean_verdicts=mean_verdicts,
    )


def delays_of(
    halfway: Watcher, records: Sequence[StepMetric], middle: int
) -> Iterator[tuple[str, int | None]]:
    """For each fault the records from its onset to the first critical verdict."""
    for fault in FAULTS:
        if fault.needs_grad and records[middle].grad_norm is None:
            continue
        watcher = copy.deepcopy(halfway)
        before = len(watcher.criticals)
        for k, record in enumerate(records[middle : middle + AFTER]):
            watcher.observe(fault.change(record, k))
            if len(watcher.criticals) > before:
                break
        found = watcher.criticals[before:]
        yield fault.name, found[0] - middle if found else None


# --- tables ---------------------------------------------------------------------------------------


def healthy_table(results: Sequence[CurveResult]) -> None:
    """Critical verdicts and warnings on curves of runs that did not fail."""
    print("## Healthy curves\n")
    print("| family | curves | records | " + " | ".join((OURS, *RULES)) + " | our warnings |")
    print("|---" * (len(RULES) + 5) + "|")
    groups = defaultdict(list)
    for result in results:
        if not result.dead:
            groups[result.family].append(result)
    for name, group in groups.items():
        total = sum(result.records for result in group)
        cells = [
            per_10k(sum(result.criticals[rule] for result in group), total)
            for rule in (OURS, *RULES)
        ]
        cells.append(per_10k(sum(result.warnings for result in group), total))
        print(f"| {name} | {len(group)} | {total} | " + " | ".join(cells) + " |")
    print("\nCritical verdicts, in brackets per 10,000 records. By curve, where there are any:")
    for result in results:
        if not result.dead and (result.criticals[OURS] or result.warnings):
            print(f"  {result.name}: {result.criticals[OURS]} critical, {result.warnings} warnings")
    for result in results:
        if result.dead:
            print(
                f"  {result.name}: NaN throughout, {result.criticals[OURS]} critical (it is dead)"
            )
    print()


def per_10k(count: int, records: int) -> str:
    """A count and its rate."""
    return f"{count} ({1e4 * count / records:.2f})" if count else "0"


def fault_table(results: Sequence[CurveResult], *, sparse: bool) -> None:
    """Recall and median delay for each injected fault."""
    group = [result for result in results if result.sparse == sparse and result.delays]
    if not group:
        return
    what = "a line every 10 steps or rarer" if sparse else "not sparse"
    print(f"## Faults in the middle of {len(group)} curves of language models, {what}\n")
    print("| fault | should be found | " + " | ".join((OURS, *RULES)) + " |")
    print("|---" * (len(RULES) + 3) + "|")
    for fault in FAULTS:
        cells = [cell(group, fault.name, rule) for rule in (OURS, *RULES)]
        wanted = "yes" if fault.must_find else "no"
        print(f"| {fault.name} | {wanted} | " + " | ".join(cells) + " |")
    loud = sum(result.mean_verdicts > 0 for result in group)
    print(f"| {RUNNING_MEAN} | no | {loud}/{len(group)}" + " | " * len(RULES) + " |")
    print("\nCurves with a critical verdict; behind @ its median and largest delay in records.\n")


def cell(group: Sequence[CurveResult], fault: str, rule: str) -> str:
    """found/all @ median delay."""
    known = [result.delays[fault, rule] for result in group if (fault, rule) in result.delays]
    found = [delay for delay in known if delay is not None]
    text = f"{len(found)}/{len(known)}"
    return f"{text} @{statistics.median(found):.0f}, {max(found)}" if found else text


def speed_table(paths: Sequence[Path]) -> None:
    """Microseconds per record, and against reading the same record with json.loads."""
    print("## Speed\n")
    for wanted, label in ((True, "loss and gradient norm"), (False, "loss only")):
        curves = (load(path) for path in paths if family(path) == "language models")
        records = next(
            (c for c in curves if not is_dead(c) and (c[0].grad_norm is not None) == wanted), None
        )
        if records is None:
            continue
        records = records[:5000]
        lines = [
            json.dumps({"step": r.step, "loss": r.loss, "grad_norm": r.grad_norm, "lr": r.lr})
            for r in records
        ]
        reading = min(timed(lambda lines=lines: Counter(map(len, map(json.loads, lines)))))
        judging = min(timed(lambda records=records: judge_all(records)))
        n = len(records)
        print(
            f"{label}: {1e6 * judging / n:.1f} us a record, json.loads {1e6 * reading / n:.1f} us,"
            f" ratio {judging / reading:.1f}"
        )


def judge_all(records: Sequence[StepMetric]) -> None:
    """A fresh panel over all of them."""
    panel = Panel(PanelConfig())
    for record in records:
        panel.observe(record)


def timed(work: Callable[[], object]) -> list[float]:
    """CPU seconds of five runs."""
    found = []
    for _ in range(5):
        began = time.process_time()
        work()
        found.append(time.process_time() - began)
    return found


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("curves", nargs="?", type=Path, default=DEFAULT)
    paths = sorted(parser.parse_args().curves.glob("*.csv"))
    with ProcessPoolExecutor() as pool:
        results = list(pool.map(measure, paths))
    healthy_table(results)
    fault_table(results, sparse=False)
    fault_table(results, sparse=True)
    speed_table(paths)


if __name__ == "__main__":
    main()
