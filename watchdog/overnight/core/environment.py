"""The worker's environment: the user's, without a word that was meant for us."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

SERVICE_VARIABLES = ("NOTIFY_SOCKET", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES")
"""systemd's words to us; a worker that heard them could speak to systemd in our name."""


def worker_environment(
    base: Mapping[str, str],
    *,
    secrets: Sequence[str] = (),
    our_prefix: str = "",
    our_path: str = "",
    columns: int | None = None,
) -> dict[str, str]:
    """`base` without outer runs, systemd and receivers.

    `secrets` are receiver specs and URLs: a variable that holds one is left out. `our_prefix` and
    `our_path` are Overnight's own virtual environment and package directory; `columns` is the
    width of the terminal on which the worker's output is shown, None without one.
    """
    named = {spec[4:] for spec in secrets if spec.lower().startswith("env:")}
    hidden = [spec for spec in secrets if "://" in spec]
    env = {
        name: value
        for name, value in base.items()
        if not name.startswith(("OVERNIGHT_", "WATCHDOG_"))
        and name not in SERVICE_VARIABLES
        and name not in named
        and not any(secret in value for secret in hidden)
    }
    if our_prefix and env.get("VIRTUAL_ENV") == our_prefix:
        del env["VIRTUAL_ENV"]
    kept = [part for part in env.pop("PYTHONPATH", "").split(":") if part and part != our_path]
    if kept:
        env["PYTHONPATH"] = ":".join(kept)
    if columns is not None:
        shown = {"FORCE_COLOR": "1", "COLUMNS": str(columns), "TERM": "xterm-256color"}
        env = shown | env
    return env
