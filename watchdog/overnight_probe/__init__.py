"""The part of Overnight that runs inside the worker: watch and steer a PyTorch script in place.

Standard library only, Python >= 3.9, torch >= 2.0 of the training environment, which need not have
Overnight. `overnight run --probe` copies this package beside the run's state, with a
sitecustomize.py that calls `install()`; nothing of the script is changed. Any error in here
switches the probe off, never the training, and it never prints.

Read in this order: imports.py (when torch comes), torch_hooks.py (where it is listened to),
probe.py (what is done at each update), guard.py, snapshots.py, channel.py (the supervisor);
resuming.py is for scripts that can be changed.
"""

from __future__ import annotations

import os

from overnight_probe.resuming import ResumeError, resume

__all__ = ["ResumeError", "install", "resume"]


def install() -> None:
    """Listen for torch in this process, if a supervisor has asked for it. Never raises."""
    try:
        from overnight_probe.channel import settings_of

        settings = settings_of(os.environ)
        if settings is not None:
            from overnight_probe.imports import when_torch_comes

            when_torch_comes(settings)
    except Exception:  # noqa: BLE001 - whatever it is, the training goes on without us
        return
