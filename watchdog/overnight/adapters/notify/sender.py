"""Deliver one alert and say how it went: `python -m overnight.adapters.notify.sender`.

A short-lived child: one JSON job on stdin, one JSON answer on stdout. Apprise lives only here,
so its memory comes and goes with the child, and whatever one of its 190 plugins does (hang,
raise, keep threads alive) ends with the child too.

    stdin   {"url", "title", "body", "severity": info|warning|critical|resolved|check, "alert_id"}
    stdout  {"ok", "permanent", "error", "elapsed_s"}

`permanent` means that another try cannot help: the URL is wrong, or the service refuses us.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from overnight.adapters.notify.receivers import label_of, scheme_of, secrets_of
from overnight.core.text import defang, mask_secrets, one_line, shorten

TIMEOUT_S = 30.0
"""Apprise gives up after this, before the supervisor kills us, so that the reason is told."""

CHECK = "check"
"""The severity of a job that only asks whether the URL can be used; nothing is sent."""

TITLE_CHARS = 120
ERROR_CHARS = 300
BODY_CHARS = 16_000
"""No alert is longer, whatever the service takes: nobody reads more on a phone."""

MIN_ROOM_CHARS = 480
"""Services with tiny messages (SMS, pagers) get about three of them, not 160 characters."""

NTFY_BYTES = 3_800
"""ntfy turns a message above 4096 bytes into an attachment that it deletes after three hours."""

_ALWAYS: Mapping[str, Any] = {
    "rto": 15,  # Apprise's 4 s read timeout reports failure for a slow server that did deliver
    "cto": 10,
    "overflow": "split",  # the default sends too much and is refused
    "image": False,  # the default makes the phone fetch a picture from a third party
}

_SILENT = 1 << 12  # Discord's SUPPRESS_NOTIFICATIONS
_QUIET: Mapping[str, Mapping[str, Any]] = {
    "ntfy": {"priority": "low"},
    "Pushover": {"priority": "low"},
    "Gotify": {"priority": "low"},
    "Telegram": {"silent": True},
    "Discord": {"flags": _SILENT},
}
_LOUDNESS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "info": _QUIET,
    "resolved": _QUIET,
    "warning": {
        "ntfy": {"priority": "high"},
        "Pushover": {"priority": "normal"},
        "Gotify": {"priority": "normal"},
        "Telegram": {"silent": False},
    },
    "critical": {
        "ntfy": {"priority": "max"},
        # Emergency: rings every five minutes for an hour, until somebody confirms.
        "Pushover": {"priority": "emergency", "interval": 300, "expire": 3600},
        "Gotify": {"priority": "high"},
        "Telegram": {"silent": False},
    },
}
"""Severity and Apprise service name -> options that make the phone as loud as the alert."""

# "error=404" and, from ntfy, its own longer code "error=40301": the first three digits count.
_STATUS = re.compile(r"\berror[=: ]+(\d{3})")
_REFUSED = frozenset({"401", "403", "404", "410"})
_NO_TARGET = re.compile(r"\bno [\w ]+ to notify", re.IGNORECASE)

_REPEATS_URL = ("Could not load", "Unparseable", "Unsupported URL")

# Apprise's own sentence for a socket error says nothing; the exception does, at debug level.
_CAUSES = (
    ("refused", "connection refused"),
    ("timed out", "no answer in time"),
    ("name resolution|Name or service|No address associated", "the host name is not known"),
    ("unreachable", "network unreachable"),
    ("CERTIFICATE", "its certificate is not trusted"),
    ("IncompleteRead|aborted|reset by peer", "the connection broke off"),
)


@dataclass(frozen=True, slots=True)
class Answer:
    """What the child prints; `error` is a masked sentence, or empty."""

    ok: bool
    permanent: bool
    error: str
    elapsed_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Job:
    """What the child is told."""

    url: str
    title: str
    body: str
    severity: str
    alert_id: str

    @classmethod
    def parse(cls, data: bytes) -> Job:
        """Raises ValueError, without repeating the data."""
        try:
            fields = json.loads(data)
            values = {name: fields[name] for name in cls.__slots__}
        except (ValueError, TypeError, KeyError):
            values = {}
        if not values or not all(isinstance(value, str) for value in values.values()):
            raise ValueError("the job on stdin is not understood")
        return cls(**values)


class _UnusableUrlError(Exception):
    """No try with this URL can ever succeed; the message shows its scheme only."""

    def __init__(self, scheme: str, *, known: bool, why: str = "") -> None:
        if known:
            message = f"not a usable {scheme}:// URL" + (f": {why}" if why else "")
        elif scheme.startswith("http"):
            message = f"not a known {scheme}:// service; a plain webhook is written json(s)://"
        else:
            message = f"Apprise knows no service {scheme}://" if scheme else "not a URL"
        super().__init__(message)


class _Complaints(logging.Handler):
    """What Apprise logged: its warnings, and the causes of its socket errors."""

    def __init__(self, url: str) -> None:
        super().__init__(logging.DEBUG)
        self._secrets = secrets_of(url)
        self.warnings: list[str] = []
        self.causes: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.levelno >= logging.WARNING:
            self.warnings.append(text)
        elif text.startswith("Socket Exception"):
            self.causes += [words for sign, words in _CAUSES if re.search(sign, text)][:1]

    @property
    def permanent(self) -> bool:
        """Whether every refusal was one that another try cannot change."""
        codes = {code for text in self.warnings for code in _STATUS.findall(text)}
        if codes:
            return codes <= _REFUSED and not self.causes
        return any(_NO_TARGET.search(text) for text in self.warnings)

    def about_the_url(self) -> str:
        """The plugin's own complaint about a URL; the lines that repeat the URL are left out."""
        plain = [text for text in self.warnings if not text.startswith(_REPEATS_URL)]
        return self.masked(plain[0]) if plain else ""

    def sentence(self) -> str:
        """The first two different warnings, and why the connection failed."""
        said = "; ".join(list(dict.fromkeys(self.warnings))[:2]).rstrip(".") or "not accepted"
        return self.masked(said) + (f" ({self.causes[-1]})" if self.causes else "")

    def masked(self, text: str) -> str:
        """`text` without any piece of the URL."""
        return defang(mask_secrets(text, self._secrets))


def _load(job: Job, said: _Complaints) -> tuple[Any, bool]:
    """The Apprise service for the job, as loud as the job, and whether its text must fit.

    Options that the user wrote in the URL stay. Raises _UnusableUrlError.
    """
    from apprise import Apprise, AppriseAsset
    from apprise.manager_plugins import NotificationManager
    from apprise.plugins import url_to_dict

    known = NotificationManager()  # type: ignore[no-untyped-call] # half of Apprise is untyped
    scheme = scheme_of(job.url)
    arguments = url_to_dict(job.url)  # type: ignore[no-untyped-call] # half of Apprise is untyped
    if not arguments:
        raise _UnusableUrlError(scheme, known=scheme in known)
    plugin = known[arguments["schema"]]
    written = arguments.get("qsd") or {}
    loud = _LOUDNESS.get(job.severity, _LOUDNESS["warning"]).get(str(plugin.service_name), {})
    for option, value in {**_ALWAYS, **loud}.items():
        argument = plugin.template_args.get(option)
        if argument is not None and option not in written:
            arguments[argument.get("map_to", option)] = value
    asset = AppriseAsset(
        app_id="Overnight",
        app_desc="Overnight, a watchdog for training runs",
        app_url="",
        image_url_mask="",
        image_url_logo="",
        # Followed, the redirect to a hotel's login page would count as a delivery. Who needs it
        # can say redirect=yes in the URL.
        http_redirects=False,
    )
    service = Apprise.instantiate(arguments, asset=asset)
    if service is None:
        raise _UnusableUrlError(scheme, known=True, why=said.about_the_url())
    return service, "overflow" not in written


def _ntfy_size(text: str) -> int:
    """Bytes as ntfy counts them; the JSON form, with its escapes, may be twice as long."""
    return max(len(text.encode()), len(json.dumps(text)) // 2)


def compose(service: Any, job: Job, *, fit: bool) -> tuple[str, str]:
    """Title and body as people will see them: harmless, with the alert's id, cut to fit.

    The id lets people see that a message which came twice is one alert.
    """
    title = one_line(defang(job.title), limit=TITLE_CHARS) or "Overnight"
    mark = f"\n\nalert {one_line(defang(job.alert_id), limit=40)}"
    body = shorten(defang(job.body).strip(), BODY_CHARS)
    if fit:
        # The title may count as well, and so does the number on each part of a split message.
        room = max(int(service.body_maxlen), MIN_ROOM_CHARS) - len(title + mark) - 16
        body = shorten(body, room)
    if fit and service.service_name == "ntfy":
        body = shorten(body, NTFY_BYTES - _ntfy_size(title + mark), size=_ntfy_size)
    return title, (body + mark).strip()


def _send(job: Job, said: _Complaints) -> Answer:
    """Load the service and notify it once. Raises _UnusableUrlError, and whatever plugins raise."""
    from apprise import Apprise, NotifyFormat, NotifyType

    service, fit = _load(job, said)
    if job.severity == CHECK:
        return Answer(ok=True, permanent=False, error="")
    title, body = compose(service, job, fit=fit)
    kind = {
        "info": NotifyType.INFO,
        "critical": NotifyType.FAILURE,
        "resolved": NotifyType.SUCCESS,
    }.get(job.severity, NotifyType.WARNING)
    outgoing = Apprise()
    outgoing.add(service)
    results = outgoing.notify(
        body, title, notify_type=kind, body_format=NotifyFormat.TEXT, timeout=TIMEOUT_S
    )
    # The last attempt, not the result: `optional=yes` in a URL calls every failure a success.
    attempts = [attempt for result in results for attempt in result.attempts]
    if attempts and attempts[-1]:
        return Answer(ok=True, permanent=False, error="")
    return Answer(ok=False, permanent=said.permanent, error=said.sentence())


def deliver(job: Job) -> Answer:
    """Send one alert; never raises, and the error never shows more of the URL than its label."""
    started = time.monotonic()
    said = _Complaints(job.url)
    logger = logging.getLogger("apprise")
    logger.addHandler(said)
    logger.propagate = False
    logger.setLevel(logging.DEBUG)  # where Apprise tells why a connection failed
    try:
        answer = _send(job, said)
    except _UnusableUrlError as error:
        answer = Answer(ok=False, permanent=True, error=str(error))
    except Exception as error:  # noqa: BLE001 - the last line before the answer: plugins raise anything
        answer = Answer(ok=False, permanent=False, error=said.masked(repr(error)))
    if answer.error:
        sentence = one_line(f"{label_of(job.url)}: {answer.error}", limit=ERROR_CHARS)
        answer = replace(answer, error=sentence)
    return replace(answer, elapsed_s=round(time.monotonic() - started, 3))


def main() -> None:
    """The child's whole life."""
    try:
        with contextlib.redirect_stdout(sys.stderr):  # stdout carries the answer, nothing else
            answer = deliver(Job.parse(sys.stdin.buffer.read()))
    except ValueError as error:
        answer = Answer(ok=False, permanent=True, error=str(error))
    try:
        print(json.dumps(asdict(answer)), flush=True)
    finally:
        # Apprise leaves timed-out threads behind, and a normal exit would wait for them.
        os._exit(0 if answer.ok else 1)


if __name__ == "__main__":
    main()
