"""The command line: one function a command, every effect behind a lazy import."""

from __future__ import annotations

import sys
from typing import Any, ClassVar

import click

from overnight import __version__
from overnight.errors import OvernightError


class Commands(click.Group):
    """Commands are imported when they are used: `status` must not pay for `run`."""

    modules: ClassVar[dict[str, str]] = {
        "run": "overnight.cli.run",
        "demo": "overnight.cli.demo",
        "drill": "overnight.cli.drill",
        "status": "overnight.cli.query",
        "incidents": "overnight.cli.query",
        "checkpoints": "overnight.cli.checkpoints",
        "replay": "overnight.cli.replay",
        "stop": "overnight.cli.steer",
        "ack": "overnight.cli.steer",
        "alert-test": "overnight.cli.alert_test",
    }

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """In the order in which a newcomer meets them."""
        return list(self.modules)

    def get_command(
        self,
        ctx: click.Context,  # noqa: ARG002
        cmd_name: str,
    ) -> click.Command | None:
        """The command, from its module."""
        import importlib

        module = self.modules.get(cmd_name)
        if module is None:
            return None
        command = getattr(importlib.import_module(module), cmd_name.replace("-", "_"))
        assert isinstance(command, click.Command)
        return command


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="overnight")
def cli() -> None:
    """A watchdog for GPU training runs: it watches, heals and tells, so that you can sleep."""


def main(argv: list[str] | None = None) -> None:
    """The console script. Every mistake is one message with a hint and a status."""
    try:
        status: Any = cli.main(argv, prog_name="overnight", standalone_mode=False)
    except OvernightError as error:
        click.echo(f"overnight: {error}", err=True)
        if error.hint:
            click.echo(f"  hint: {error.hint}", err=True)
        sys.exit(error.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except click.Abort:
        sys.exit(130)
    sys.exit(status if isinstance(status, int) else 0)
