"""`overnight alert-test`: one real message to each receiver, and what each answered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from overnight.errors import UsageError


@click.command(name="alert-test", short_help="Send a test alert to each receiver.")
@click.option("--config", "config_path", type=click.Path(path_type=Path), help="TOML file.")
@click.option("--notify", multiple=True, help="Apprise URL, @FILE (0600) or env:NAME.")
def alert_test(**flags: Any) -> int:
    """Send a test alert to each receiver and say whether it was accepted.

    Exit status: 0 all accepted, 1 not all, 2 no receiver.
    """
    from overnight.app import send_test_alerts
    from overnight.cli.run import read_settings

    answers = send_test_alerts(read_settings(flags))
    if not answers:
        hint = "--notify ntfy://ntfy.sh/your-topic, or receivers under [notify]"
        raise UsageError("no receiver is configured", hint=hint)
    for label, error in answers:
        click.echo(f"{label}: {error or 'accepted'}")
    return 1 if any(error for _, error in answers) else 0
