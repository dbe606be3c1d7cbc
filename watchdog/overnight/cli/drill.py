"""`overnight drill`: before bed, on the user's own command."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from overnight.cli.query import echo_json
from overnight.cli.run import about_the_run, build_order

if TYPE_CHECKING:
    from overnight.core.drill import Point

_SIGNS = {True: ("works", "green"), False: ("FAILS", "red"), None: ("open ", "yellow")}


@click.command(short_help="Before bed: prove kill, resume, rate and alerts on your own command.")
@about_the_run
@click.option(
    "--budget",
    type=click.FloatRange(min=0.1),
    default=10.0,
    show_default=True,
    help="Minutes that it may take.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON list.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def drill(command: tuple[str, ...], *, budget: float, as_json: bool, **flags: Any) -> int:
    """Practise a night on COMMAND: a NaN, a hanging and a killed worker, made on purpose.

    Kill, rollback, resume and alerts are real. Your checkpoints are as they were afterwards; what
    else the script writes (its own logs, for example) stays.

    Exit status: 0 nothing fails, 1 something does (the table says what to do), 2 usage or config.
    """
    from overnight.practice import drill as practise

    found, saved = practise(build_order(command, flags), budget * 60)
    if as_json:
        echo_json([asdict(point) for point in found])
    else:
        _print(found)
    if saved is not None:
        click.echo(f"\nWhat the script saved meanwhile: rm -r {shlex.quote(str(saved))}", err=True)
    return 1 if any(point.held is False for point in found) else 0


def _print(found: list[Point]) -> None:
    click.secho("\nWhat the drill has shown:", bold=True)
    width = max(len(point.what) for point in found)
    for point in found:
        word, color = _SIGNS[point.held]
        click.secho(f"  {word} ", fg=color, nl=False)
        click.echo(f"{point.what:{width}}  {point.found}")
        for line in point.advice:
            click.echo(f"{' ' * (width + 10)}{line}")
