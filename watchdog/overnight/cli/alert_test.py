"""`overnight alert-test`: one real message to each receiver, and what each answered."""

from __future__ import annotations

import queue
from pathlib import Path
from typing import Any

import click

from overnight.errors import UsageError

WAIT_S = 60.0


@click.command(name="alert-test", short_help="Send a test alert to each receiver.")
@click.option("--config", "config_path", type=click.Path(path_type=Path), help="TOML file.")
@click.option("--notify", multiple=True, help="Apprise URL, @FILE (0600) or env:NAME.")
def alert_test(**flags: Any) -> int:
    """Send a test alert to each receiver and say whether it was accepted.

    Exit status: 0 all accepted, 1 not all, 2 no receiver.
    """
    from overnight.adapters.notify.dispatch import Dispatcher
    from overnight.adapters.notify.receivers import load_receivers
    from overnight.cli.run import read_settings
    from overnight.core.events import AlertSent

    config = read_settings(flags)
    receivers = load_receivers(config.notify.receivers)
    if not receivers:
        hint = "--notify ntfy://ntfy.sh/your-topic, or receivers under [notify]"
        raise UsageError("no receiver is configured", hint=hint)
    answers: queue.SimpleQueue[AlertSent] = queue.SimpleQueue()
    dispatcher = Dispatcher(receivers=receivers, report=answers.put)
    failed = 0
    for number, receiver in enumerate(receivers, start=1):
        dispatcher.send(
            number,
            receiver.key,
            title="[overnight] test alert",
            body="This is a test. What you need to do: nothing.",
            severity="warning",
        )
        answer = answers.get(timeout=WAIT_S)
        failed += not answer.ok
        click.echo(f"{receiver.label}: {'accepted' if answer.ok else answer.error}")
    return 1 if failed else 0
