"""`overnight run`: supervise a training command in the foreground."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from overnight.errors import UsageError

if TYPE_CHECKING:
    from overnight.config import Config
    from overnight.preflight import Order


_SHARED = (
    click.option("--config", "config_path", type=click.Path(path_type=Path), help="TOML file."),
    click.option("--name", help="The run's name; default: the working directory's."),
    click.option("--checkpoints", "globs", multiple=True, help="Pattern of the checkpoints."),
    click.option("--resume-args", help='E.g. "--resume {checkpoint} --lr {lr}".'),
    click.option("--notify", multiple=True, help="Apprise URL, @FILE (0600) or env:NAME."),
    click.option("--probe", is_flag=True, help="Watch and steer a PyTorch script from inside."),
)


def about_the_run(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say what is supervised and how, of `run` and of `drill`."""
    for option in reversed(_SHARED):
        function = option(function)
    return function


@click.command(
    short_help="Supervise a training command.",
    context_settings={"ignore_unknown_options": False},
)
@about_the_run
@click.option("--observe", is_flag=True, help="Detect and tell, never act.")
@click.option("--detach", is_flag=True, help="Go on in the background.")
@click.option("--fresh", is_flag=True, help="Put an earlier run of this name aside.")
@click.option("--from-checkpoint", type=click.Path(path_type=Path), help="Start from this one.")
@click.option("--lr-scale", type=click.FloatRange(0, 1, min_open=True), help="Start with this.")
@click.option("--echo/--no-echo", default=None, help="Show the worker's output; default: on a TTY.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def run(command: tuple[str, ...], **flags: Any) -> int:
    """Supervise COMMAND until it has completed.

    \b
    overnight run -- python train.py
    overnight run --resume-args "--resume {checkpoint} --lr {lr}" -- python train.py --lr 3e-4

    Exit status: 0 completed or stopped by `overnight stop`, 1 halted, 2 usage or config,
    130 and 143 ended by a signal.
    """
    from overnight.app import supervise

    return supervise(build_order(command, flags))


def build_order(command: tuple[str, ...], flags: dict[str, Any]) -> Order:
    """Merge file and flags: flags win, `--notify` adds. Raises UsageError."""
    from overnight.cli.text import state_parent
    from overnight.config import default_name
    from overnight.preflight import Order

    config = read_settings(flags)
    here = Path.cwd()
    words = command or config.run.command
    if not words:
        raise UsageError("no command to run", hint="overnight run -- python train.py")
    workdir = (config.run.workdir or here).absolute()
    return Order(
        config=config,
        name=config.run.name or default_name(workdir),
        command=words,
        workdir=workdir,
        state_parent=state_parent(),
        observe=bool(flags.get("observe")),
        fresh=bool(flags.get("fresh")),
        echo=_wants_echo(flags.get("echo")),
        from_checkpoint=flags.get("from_checkpoint"),
        lr_scale=flags.get("lr_scale"),
        detach=bool(flags.get("detach")),
    )


def read_settings(flags: dict[str, Any]) -> Config:
    """The config file with the flags laid over it. Raises UsageError and ConfigError."""
    from overnight.config import parse_config, read_config

    values, source = read_config(flags.get("config_path"), Path.cwd())
    where = str(source) if source else "the command line"
    return parse_config(_with_flags(values, flags), source=where)


def _wants_echo(flag: bool | None) -> bool:
    return sys.stdout.isatty() if flag is None else flag


def _section(values: dict[str, Any], name: str) -> dict[str, Any]:
    found = values.get(name, {})
    return dict(found) if isinstance(found, dict) else {}


def _with_flags(values: dict[str, Any], flags: dict[str, Any]) -> dict[str, Any]:
    """The file's values with the flags laid over them; wrong types are left for the parser."""
    merged = dict(values)
    if flags.get("name"):
        merged["run"] = {**_section(values, "run"), "name": flags["name"]}
    if flags.get("globs"):
        merged["checkpoints"] = {**_section(values, "checkpoints"), "glob": flags["globs"]}
    if flags.get("resume_args"):
        merged["resume"] = {**_section(values, "resume"), "args": flags["resume_args"]}
    if flags.get("probe"):
        merged["probe"] = {**_section(values, "probe"), "enabled": True}
    told = [*flags.get("notify", ())]
    if os.environ.get("OVERNIGHT_NOTIFY"):
        told += os.environ["OVERNIGHT_NOTIFY"].split()
    if told:
        section = _section(values, "notify")
        receivers = section.get("receivers", [])
        if isinstance(receivers, list):
            merged["notify"] = {**section, "receivers": [*receivers, *told]}
    return merged
