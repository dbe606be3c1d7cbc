"""The dispatcher with its real child: one at a time, never blocking, nothing secret in sight."""

from __future__ import annotations

import queue
from pathlib import Path

import psutil
import pytest

from overnight.adapters.notify.dispatch import Dispatcher
from overnight.adapters.notify.receivers import Receiver, Secret
from overnight.core.events import AlertSent
from receivers import Answer, Recorder

TOKEN = "tk_V3ryS3cret"  # the tests look for this string where it must not be


def receiver(url: str) -> Receiver:
    """A receiver with that URL."""
    return Receiver("phone", Secret(url))


class Inbox:
    """A dispatcher's reports, in order."""

    def __init__(self) -> None:
        self._reports: queue.Queue[AlertSent] = queue.Queue()
        self.put = self._reports.put

    def next(self) -> AlertSent:
        """The next report; fails after 20 s."""
        return self._reports.get(timeout=20)


@pytest.mark.slow
def test_a_hanging_receiver_is_killed_and_then_the_next_gets_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One child at a time; its URL is nowhere to be read while it lives; the deadline kills it."""
    reports = Inbox()
    with Recorder(Answer(hang=True)) as stuck, Recorder() as phone:
        url = stuck.url("ntfy", TOKEN, user=f"me:{TOKEN}")
        monkeypatch.setenv("OVERNIGHT_NOTIFY", url)
        monkeypatch.setenv("MY_RECEIVER", url)
        first, second = receiver(url), receiver(phone.url("json"))
        dispatcher = Dispatcher(
            receivers=[first, second], report=reports.put, deadline_s=3.5, clock=lambda: 7.0
        )
        text = {"title": "t", "body": "b", "severity": "critical"}
        assert dispatcher.send(1, first.key, **text)
        assert dispatcher.send(2, second.key, **text)
        assert not dispatcher.send(3, first.key, **text)
        assert not dispatcher.send(4, second.key, **text)

        stuck.wait(1, timeout_s=20)
        (child,) = psutil.Process().children(recursive=True)
        seen = b"".join(Path(f"/proc/{child.pid}/{f}").read_bytes() for f in ("cmdline", "environ"))
        assert b"overnight.adapters.notify.sender" in seen
        assert TOKEN.encode() not in seen
        assert not phone.requests

        failed, sent = reports.next(), reports.next()
        assert not child.is_running()
        label = f"ntfy://127.0.0.1:{stuck.port}/…"
        assert failed == AlertSent(7.0, 1, False, f"{label}: no answer before the deadline")
        assert sent == AlertSent(7.0, 2, True)
        assert dispatcher.send(5, second.key, **text)
        assert reports.next() == AlertSent(7.0, 5, True)


def test_a_permanent_refusal_is_reported_as_such() -> None:
    """So that the outbox stops trying."""
    reports = Inbox()
    with Recorder(404) as phone:
        one = receiver(phone.url("ntfy", TOKEN))
        dispatcher = Dispatcher(receivers=[one], report=reports.put)
        assert dispatcher.send(9, one.key, title="t", body="b", severity="info")
        got = reports.next()
    assert (got.alert_id, got.ok, got.permanent) == (9, False, True)
    assert "error=404" in got.error
    assert TOKEN not in got.error


def test_an_alert_for_a_receiver_that_is_gone_is_reported() -> None:
    """The outbox can hold rows of a receiver that the config no longer names."""
    reports = Inbox()
    dispatcher = Dispatcher(receivers=[], report=reports.put, clock=lambda: 7.0)
    assert dispatcher.send(3, "0123456789ab", title="t", body="b", severity="info")
    assert reports.next() == AlertSent(
        7.0, 3, False, "this receiver is not configured any more", permanent=True
    )


@pytest.mark.parametrize(
    ("apprise", "says"),
    [
        pytest.param("raise ImportError('no good near ' + TOKEN)", "ImportError", id="broken"),
        pytest.param(
            "os.write(2, b'died near ' + TOKEN.encode()); os._exit(9)", "died near ***", id="dies"
        ),
        pytest.param("sys.exit('x' * 296 + TOKEN)", "xxx***", id="dies-at-length"),
        pytest.param("os.write(2, b'\\x1b[0m'); os._exit(9)", "exit status 9", id="dies-mute"),
        pytest.param("print('chatty'); sys.exit('exit near ' + TOKEN)", "near ***", id="exits"),
    ],
)
def test_a_broken_apprise_is_an_error_without_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, apprise: str, says: str
) -> None:
    """Whatever it prints while it dies passes the mask; a later version may be better."""
    (tmp_path / "apprise.py").write_text(f"import os, sys\nTOKEN = {TOKEN!r}\n{apprise}\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    reports = Inbox()
    one = receiver(f"ntfy://h.example/{TOKEN}")
    Dispatcher(receivers=[one], report=reports.put).send(
        1, one.key, title="t", body="b", severity="info"
    )
    got = reports.next()
    assert (got.ok, got.permanent) == (False, False)
    assert says in got.error
    assert TOKEN[:4] not in got.error


def test_the_working_directory_cannot_shadow_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder of a training script may hold a queue.py; `python -m` would import it."""
    for name in ("queue", "requests", "json", "apprise"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('shadowed')\n")
    monkeypatch.chdir(tmp_path)
    reports = Inbox()
    with Recorder() as phone:
        one = receiver(phone.url("json"))
        Dispatcher(receivers=[one], report=reports.put).send(
            1, one.key, title="t", body="b", severity="info"
        )
        got = reports.next()
    assert got.ok, got.error
