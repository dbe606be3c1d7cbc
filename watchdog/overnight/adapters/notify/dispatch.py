"""Hand alerts to the sender child, one at a time, and report what became of each.

The URL travels on the child's stdin: argv and environment are public on a shared machine.
"""

from __future__ import annotations

import json
import os
import queue
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from overnight.adapters.child import ChildResult, module_argv, run_child
from overnight.adapters.notify.receivers import Receiver, secrets_of
from overnight.core.events import AlertSent
from overnight.core.text import defang, mask_secrets, one_line

_MODULE = "overnight.adapters.notify.sender"

_NOT_FOR_CHILDREN = ("OVERNIGHT_NOTIFY", "NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC")


@dataclass(frozen=True, slots=True)
class _Waiting:
    """An accepted alert whose child has not started yet."""

    alert_id: int
    receiver: Receiver
    stdin: bytes


def _last_words(job: _Waiting, result: ChildResult) -> str:
    """Why a child left without an answer. It masks its own sentences; a crash masks nothing."""
    said = result.stderr.decode(errors="replace").strip()
    if result.timed_out or not said:
        return result.complaint()
    # Masked before it is cut: half a token would pass the mask.
    masked = mask_secrets(said, secrets_of(job.receiver.url.reveal()))
    last = one_line(defang(masked).strip().split("\n")[-1], limit=300)
    return last or f"exit status {result.returncode}"


class Dispatcher:
    """Sends alerts without ever blocking its caller.

    One child lives at a time, which bounds the memory; alerts for other receivers wait their
    turn, one for each receiver, in the order they came.
    """

    def __init__(
        self,
        *,
        receivers: Iterable[Receiver],
        report: Callable[[AlertSent], None],
        deadline_s: float = 40.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`report` is called from a thread, exactly once for each accepted alert."""
        self._receivers = {receiver.key: receiver for receiver in receivers}
        self._report = report
        self._deadline_s = deadline_s
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting: dict[str, _Waiting] = {}
        self._running: str | None = None

    def send(
        self, alert_id: int, receiver_key: str, *, title: str, body: str, severity: str
    ) -> bool:
        """Accept an alert for a receiver; False while that receiver still has one under way."""
        receiver = self._receivers.get(receiver_key)
        if receiver is None:
            # A row of the outbox can outlive its receiver: the config changed in between.
            answer = self._answer(alert_id, error="this receiver is not configured any more")
            threading.Thread(target=self._report, args=(answer,), daemon=True).start()
            return True
        job = {
            "url": receiver.url.reveal(),
            "title": title,
            "body": body,
            "severity": severity,
            "alert_id": str(alert_id),
        }
        waiting = _Waiting(alert_id, receiver, json.dumps(job).encode())
        with self._lock:
            if receiver_key == self._running or receiver_key in self._waiting:
                return False
            self._waiting[receiver_key] = waiting
        self._start_next()
        return True

    def _start_next(self) -> None:
        with self._lock:
            if self._running is not None or not self._waiting:
                return
            key, job = next(iter(self._waiting.items()))
            del self._waiting[key]
            self._running = key
        run_child(
            module_argv(_MODULE),
            deadline_s=self._deadline_s,
            done=lambda result: self._done(job, result),
            stdin=job.stdin,
            env=self._environment(),
        )

    def _done(self, job: _Waiting, result: ChildResult) -> None:
        """From the child's thread; the receiver is free again before anybody hears of it."""
        with self._lock:
            self._running = None
        self._start_next()
        answer = result.json() or {}
        if answer.get("ok") is True:
            self._report(AlertSent(self._clock(), job.alert_id, ok=True))
            return
        error = str(answer.get("error") or f"{job.receiver.label}: {_last_words(job, result)}")
        permanent = answer.get("permanent") is True
        self._report(self._answer(job.alert_id, error=error, permanent=permanent))

    def _answer(self, alert_id: int, *, error: str, permanent: bool = True) -> AlertSent:
        return AlertSent(self._clock(), alert_id, ok=False, error=error, permanent=permanent)

    def _environment(self) -> dict[str, str]:
        """Ours, without the variables that hold receivers or belong to our own service manager."""
        urls = [receiver.url.reveal() for receiver in self._receivers.values()]
        kept = {
            name: value
            for name, value in os.environ.items()
            if name not in _NOT_FOR_CHILDREN and not any(url in value for url in urls)
        }
        # `python -m` would look for modules in the working directory first, and the folder of a
        # training script may well hold a queue.py or a requests.py.
        kept["PYTHONSAFEPATH"] = "1"
        return kept


def unusable(receivers: Iterable[Receiver], *, deadline_s: float = 10.0) -> list[str]:
    """What is wrong with the receivers' URLs, a sentence each; nothing is sent to anybody.

    Waits for the sender child (a third of a second each): only for before a start.
    """
    answers: queue.SimpleQueue[AlertSent] = queue.SimpleQueue()
    dispatcher = Dispatcher(receivers=receivers, report=answers.put, deadline_s=deadline_s)
    wrong = []
    for number, receiver in enumerate(receivers, start=1):
        dispatcher.send(number, receiver.key, title="", body="", severity="check")
        answer = answers.get()
        if not answer.ok and answer.permanent:
            wrong.append(answer.error)
    return wrong
