"""`overnight replay`: an old log through today's parser, detectors and policy."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from overnight.cli.text import number
from overnight.core.formats.files import decoder_of
from overnight.core.lines import LINE_BYTES, Decoder, LineSplitter
from overnight.errors import UsageError

if TYPE_CHECKING:
    from overnight.core.replay import Pacing, Replay, Report

BLOCK_BYTES = 1 << 20

TABLES = (".csv", ".tsv")
"""Files whose first line names columns."""


@click.command()
@click.argument("logs", metavar="LOG...", nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a log, a line each.")
@click.option("--config", type=click.Path(path_type=Path), help="A TOML file with thresholds.")
@click.option("--exit-code", type=int, help="How the run ended: N, -N or 128+N for a signal.")
@click.option("--pacing", type=click.Path(path_type=Path), help="When the lines came, as JSON.")
def replay(
    logs: tuple[str, ...],
    *,
    as_json: bool,
    config: Path | None,
    exit_code: int | None,
    pacing: Path | None,
) -> None:
    """What would have happened to an old run: LOG is a file, or - for standard input."""
    from overnight.core.replay import public

    fresh = _replays(config, _pacing(pacing) if pacing else None)
    for log in logs:
        report = _read(log, fresh(Path(log).suffix.lower() in TABLES), exit_code)
        if as_json:
            click.echo(json.dumps(public(log, report), allow_nan=False))
        else:
            click.echo("\n".join(_sentences(log, report)))


def _replays(config: Path | None, pacing: Pacing | None) -> Callable[[bool], Replay]:
    """A maker of fresh replays with the thresholds of a config."""
    from overnight.adapters.patience import Patience
    from overnight.config import parse_config, read_config
    from overnight.core.policy import Policy
    from overnight.core.replay import Replay

    values, source = read_config(config, Path.cwd()) if config else ({}, None)
    settings = parse_config(values, source=str(source))
    policy = Policy(settings.policies)

    search = Patience().search

    def fresh(has_heading: bool) -> Replay:
        return Replay(
            panel=settings.panel,
            stall=settings.detect.stall,
            policy=policy,
            pacing=pacing,
            metrics=settings.metrics,
            has_heading=has_heading,
            search=search,
        )

    return fresh


def _pacing(path: Path) -> Pacing:
    from overnight.core.replay import Pacing

    hint = 'a JSON object with "normal_gap_s", "legit_gaps", "silent_gaps"'
    try:
        value: Any = json.loads(path.read_bytes())
        if isinstance(value, dict) and "pacing" in value:
            value = value["pacing"]
        return Pacing.model_validate(value)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", hint="check --pacing") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is no pacing", hint=hint) from error


def _read(log: str, replay: Replay, exit_code: int | None) -> Report:
    """Feed a whole log, in memory that does not grow with it."""
    decoder: Decoder = LineSplitter()
    try:
        with _opened(log) as (stream, size), _bar(log, size) as advance:
            block = stream.read(BLOCK_BYTES)
            decoder = decoder_of(Path(log).name, block)
            while block:
                replay.feed(decoder.feed(block))
                advance(len(block))
                block = stream.read(BLOCK_BYTES)
    except OSError as error:
        raise UsageError(f"cannot read {log}: {error.strerror}", hint="check LOG") from error
    replay.feed(decoder.flush())
    if decoder.damage:
        click.echo(f"{log} is {decoder.damage}", err=True)
    if decoder.cut_lines:
        cut = f"{decoder.cut_lines} lines are longer than {LINE_BYTES >> 10} KiB and were cut"
        click.echo(f"{log}: {cut}", err=True)
    report = replay.finish(exit_code)
    for note in report.notes:
        click.echo(f"{log}: {note}", err=True)
    return report


@contextlib.contextmanager
def _opened(log: str) -> Iterator[tuple[IO[bytes], int | None]]:
    if log == "-":
        yield sys.stdin.buffer, None
        return
    path = Path(log)
    with path.open("rb") as stream:
        yield stream, path.stat().st_size


@contextlib.contextmanager
def _bar(log: str, size: int | None) -> Iterator[Callable[[int], None]]:
    """Progress on a terminal, for logs that take longer than a blink."""
    if size is None or size < 8 * BLOCK_BYTES or not sys.stderr.isatty():
        yield lambda _done: None
        return
    with click.progressbar(length=size, label=Path(log).name, file=sys.stderr) as bar:
        yield bar.update


def _sentences(log: str, report: Report) -> Iterator[str]:
    """A report for people."""
    yield f"{log}: {report.lines} lines"
    if report.records:
        first, last = report.first_step, report.last_step
        yield (
            f"  understood: {report.format}, loss is {report.loss_key!r},"
            f" {report.records} records (step {first} to {last}),"
            f" {report.eval_records} evaluations"
        )
        yield (
            f"  last: loss {number(report.last_loss)}, gradient norm"
            f" {number(report.last_grad_norm)}, lr {number(report.last_lr)}"
        )
    else:
        yield "  no training loss was found: only silence and the end could be judged"
    for finding in report.findings:
        verdict = finding.verdict
        yield (
            f"  line {finding.line}: {verdict.severity}: {verdict.fault}: {verdict.reason}"
            f" -> {finding.action}"
        )
    if not report.findings:
        yield "  nothing to report"
    if report.death is not None:
        yield f"  died of: {report.death.cause} ({report.death.hint})"
    elif report.exit_cause == "numeric":
        yield "  ended: numeric (the loss was not finite any more)"
    else:
        yield f"  ended: {report.exit_cause}"
    if report.hours_saved is not None and report.hours_saved >= 0.01:
        yield f"  would have saved {report.hours_saved:.1f} h"
