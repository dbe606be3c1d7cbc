"""An old log as if it were live: what was understood, when, and what would have been done."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from overnight.core.detect.panel import PanelConfig
from overnight.core.detect.stall import StallConfig
from overnight.core.events import Action, Fault, Severity
from overnight.core.policy import Policy, PolicyConfig
from overnight.core.replay import Pacing, Replay, Report, public


def replayed(
    lines: list[str], *, exit_code: int | None = None, pacing: dict[str, Any] | None = None
) -> Report:
    """The report on these lines."""
    replay = Replay(
        panel=PanelConfig(),
        stall=StallConfig(),
        policy=Policy(PolicyConfig()),
        pacing=Pacing.model_validate(pacing) if pacing else None,
    )
    replay.feed(lines)
    return replay.finish(exit_code)


def told(report: Report) -> list[tuple[Fault, int]]:
    """Fault and line of the critical verdicts."""
    critical = [f for f in report.findings if f.verdict.severity is Severity.CRITICAL]
    return [(finding.verdict.fault, finding.line) for finding in critical]


def healthy(count: int, *, first: int = 0) -> list[str]:
    """Lines of a run without trouble."""
    return [f"step {n} | loss {3 - n / 1000:.4f} | lr 1e-4" for n in range(first, first + count)]


STAMPED = "2024-05-01 {:02d}:{:02d}:00,123 INFO step {} | loss 2.{}"


def test_what_was_understood() -> None:
    """The last printed values, from whichever line they stand in."""
    lines = ["hello", *healthy(30), "step 29 eval loss 2.5", "grad norm 0.5"]
    report = replayed(lines)
    assert (report.records, report.eval_records, report.lines) == (30, 1, 33)
    assert (report.first_step, report.last_step, report.last_loss) == (0, 29, 2.971)
    assert (report.loss_key, report.last_lr, report.last_grad_norm) == ("loss", 1e-4, 0.5)
    assert (report.findings, report.death, report.timed) == ([], None, False)


def test_a_verdict_has_its_line_and_the_intended_action() -> None:
    """NaN three times: critical on the third line, and one would have rolled back."""
    report = replayed([*healthy(50), *(f"step {n} | loss nan" for n in range(50, 60))])
    assert told(report) == [(Fault.LOSS_NONFINITE, 53)]
    assert report.findings[-1].action is Action.ROLLBACK
    assert report.findings[0].action is Action.NOTIFY
    assert math.isnan(report.last_loss or 0.0)


def test_json_is_plain() -> None:
    """Non-finite numbers are strings, unknown ones null."""
    report = replayed(["step 1 loss nan", "step 2 loss -inf grad_norm inf"])
    shown = public("a.log", report)
    assert json.loads(json.dumps(shown, allow_nan=False)) == shown
    assert (shown["last_loss"], shown["last_grad_norm"]) == ("-Infinity", "Infinity")
    assert (shown["last_lr"], shown["exit_cause"]) == (None, "unknown")
    fields = {"fault", "severity", "line", "onset_step", "detected_step", "reason", "action"}
    assert all(set(verdict) == fields for verdict in shown["verdicts"])


def test_an_empty_log_says_nothing() -> None:
    """No lines, no records, no verdicts."""
    assert public("a.log", replayed([]))["records"] == 0
    assert replayed(["", "  "]).findings == []


# --- silence --------------------------------------------------------------------------------------


def test_silence_by_pacing() -> None:
    """A long pause that the pacing tells is a stall at the last line before it."""
    pacing = {"normal_gap_s": 10, "silent_gaps": [{"after_line": 40, "seconds": 5400}]}
    assert told(replayed(healthy(40), pacing=pacing)) == [(Fault.STALL, 40)]


def test_usual_pauses_are_no_stall() -> None:
    """An evaluation of a quarter of an hour; lines without progress take no time of their own."""
    lines = [line for n in range(40) for line in (f"step {n} loss 2.{n}", "saving", "", "saved")]
    gaps = [{"after_line": 4 * n, "seconds": 870} for n in range(1, 40)]
    assert told(replayed(lines, pacing={"normal_gap_s": 540, "legit_gaps": gaps})) == []


def test_silence_by_time_stamps() -> None:
    """The log's own clock is enough."""
    lines = [STAMPED.format(10, n, n, n) for n in range(30)] + [STAMPED.format(14, 0, 30, 30)]
    assert told(replayed(lines)) == [(Fault.STALL, 30)]


def test_a_run_started_again_is_no_hang() -> None:
    """Hours later it goes on from a checkpoint: nobody was waiting."""
    lines = [STAMPED.format(10, n, n, n) for n in range(30)]
    lines += [STAMPED.format(20, n, 20 + n, n) for n in range(20)]
    assert told(replayed(lines)) == []
    again = [f"2024-05-01 20:00:00 starting up, line {n}" for n in range(9)]
    again += [STAMPED.format(20, n, 30 + n, n) for n in range(20)]
    assert told(replayed(lines[:30] + again)) == []


def test_a_bar_without_any_loss_is_progress() -> None:
    """Silence can be judged even where no loss is printed."""
    bar = " {}%|██  | {}/18684 [00:42<1:49:19,  2.83it/s]"
    lines = [bar.format(n, 187 * n) for n in range(100)]
    pacing = {"normal_gap_s": 42, "silent_gaps": [{"after_line": 100, "seconds": 3600}]}
    report = replayed(lines, pacing=pacing)
    assert (report.records, told(report)) == (0, [(Fault.STALL, 100)])


def test_hours_saved_where_times_are_known() -> None:
    """From the first critical verdict to the end of the log."""
    lines = [STAMPED.format(10, n, n, n) for n in range(30)]
    lines += [f"2024-05-01 {11 + n}:00:00 step {30 + n} | loss nan" for n in range(10)]
    report = replayed(lines)
    assert report.timed
    assert report.hours_saved == pytest.approx(7.0, abs=0.1)


# --- the end --------------------------------------------------------------------------------------

TRACEBACK = ["Traceback (most recent call last):", '  File "train.py", line 3, in <module>']


@pytest.mark.parametrize(
    ("words", "exit_code", "cause"),
    [
        (["torch.OutOfMemoryError: CUDA out of memory. Tried to"], 1, "cuda-oom"),
        ([*TRACEBACK, "RuntimeError: shapes do not match"], None, "runtime-error"),
        (["slurmstepd: error: *** JOB 1 ON node CANCELLED AT 2024-10-11 ***"], None, "killed"),
        (["WARNING: The gradients at all steps are invalid in this epoch."], 0, "numeric"),
        (["  traceback : Signal 9 (SIGKILL) received by PID 1322"], 1, "host-oom"),
        ([], -9, "host-oom"),
        ([], 139, "segfault"),
        ([], 0, None),
        ([], None, None),
        (["done"], None, None),
        (["CUDA OutOfMemoryError in k-means, using CPU"], None, None),
        (["CUDA out of memory in eval, reduced batch size to 4 and continuing"], None, None),
        (["box:1:2 [0] NCCL INFO Connection closed by remote peer box<4711>"], None, None),
        (["Exception ignored in: <function _Iter.__del__>", *TRACEBACK, "done"], None, None),
        (["Exception in thread Thread-3:", *TRACEBACK, "done"], None, None),
        (["torch.OutOfMemoryError: CUDA out of memory.", *healthy(9, first=100)], None, None),
    ],
)
def test_the_end_of_a_log(words: list[str], exit_code: int | None, cause: str | None) -> None:
    """Last words tell, where nothing came after them; without a status only certain ones do."""
    report = replayed([*healthy(20), *words], exit_code=exit_code)
    assert (report.death.cause if report.death else None) == cause
    deaths = [f for f in report.findings if f.verdict.cause]
    assert [f.line for f in deaths] == ([20 + len(words[:-1]) + bool(words)] if cause else [])


def test_nan_that_only_the_exception_tells_is_a_numeric_fault() -> None:
    """Mozilla TTS stops itself; the printed losses are all good."""
    words = [*TRACEBACK, "RuntimeError:  [!] NaN loss with decoder_loss."]
    report = replayed([*healthy(20), *words], exit_code=1)
    assert told(report) == [(Fault.LOSS_NONFINITE, 23)]


def test_a_message_that_an_update_was_skipped_is_no_record() -> None:
    """Twenty in a row are a dead run all the same."""
    skip = "(trainer:581) WARNING: The grad norm is nan. Skipping updating the model."
    report = replayed([*healthy(70), *[skip] * 30])
    assert report.records == 70
    assert {fault for fault, _line in told(report)} & {Fault.LOSS_NONFINITE, Fault.COLLAPSE}


def test_a_script_that_starts_again_from_nothing_is_judged_anew() -> None:
    """The first step and the first loss are back; without that, the same numbers are a fault."""
    losses = [3 + 6 * 0.97**n + 0.01 * (n % 3) for n in range(300)]
    learned = [f"step {n} | loss {loss:.4f}" for n, loss in enumerate(losses)]
    assert told(replayed([*learned, *learned])) == []
    later = [f"step {n} | loss {loss:.4f}" for n, loss in enumerate(losses, start=300)]
    assert told(replayed([*learned, *later]))


def test_a_policy_is_not_judged_by_its_loss() -> None:
    """The loss of GRPO is a distance from the start, and rises; DPO's falls like any other."""
    grown = [0.001 + 0.0001 * max(0, n - 100) for n in range(400)]
    rises = [f"{{'loss': {loss:.4f}, 'reward': 0.5}}" for loss in grown]
    assert told(replayed(rises)) == []
    dpo = [f"{{'loss': {loss:.4f}, 'rewards/chosen': 0.5}}" for loss in grown]
    assert told(replayed(dpo))
