"""Where alerts go: receiver specs read into receivers whose URL cannot be printed by accident.

A spec is an Apprise URL, `@FILE` (one URL a line) or `env:NAME`, and `tag,tag=URL` gives a URL
tags, as in Apprise's own text files. URLs are passwords: nothing here ever shows more of one
than its scheme and, where that is an address, its host.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

from overnight.core.text import MIN_SECRET_CHARS
from overnight.errors import UsageError

_HINT = "a receiver is an Apprise URL (ntfy://ntfy.sh/my-topic), @FILE or env:NAME"

_URL = re.compile(r"([a-z0-9][a-z0-9+.-]*)://(\S.*)", re.IGNORECASE | re.DOTALL)
_TAGGED = re.compile(rf"([\w-]+(?:[ ,]+[\w-]+)*)\s*=\s*({_URL.pattern})", _URL.flags)

_HOST_SCHEMES = frozenset(
    {"apprise", "form", "gotify", "hassio", "http", "json", "mailto", "mmost", "mqtt", "nctalk"}
    | {"ncloud", "rocket", "rsyslog", "signal", "synology", "xml", "xmpp"}
)
"""Schemes (a final s apart) whose first part is always an address; of all others it may be a
token, so it is hidden."""

_MAYBE_HOST_SCHEMES = frozenset({"ntfy", "matrix"})
"""Their first part is an address only if a path follows: `ntfy://my-topic` is a topic."""


class Secret:
    """A string that shows itself only when asked to; logs and tracebacks get asterisks."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """The string itself, for the child's stdin and nothing else."""
        return self._value

    def __repr__(self) -> str:
        return "Secret('***')"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash(self._value)


@dataclass(frozen=True, slots=True)
class Receiver:
    """One configured target. `name` is unique among those loaded together."""

    name: str
    url: Secret
    tags: frozenset[str] = frozenset()

    @property
    def key(self) -> str:
        """A stable short id for the outbox: the same URL has it after a restart as well."""
        return hashlib.sha256(self.url.reveal().encode()).hexdigest()[:12]

    @property
    def label(self) -> str:
        """What people may see of the URL: `ntfy://ntfy.sh/…`, `discord://…`."""
        return label_of(self.url.reveal())


def _split(url: str) -> tuple[str, str, str, str]:
    """Scheme, user info, host and the rest; the host is empty where it may be a secret."""
    match = _URL.fullmatch(url.strip())
    if match is None:
        return "", "", "", url
    scheme = match.group(1).lower()
    authority = re.split(r"[/?#]", match.group(2), maxsplit=1)[0]
    rest = match.group(2)[len(authority) :]
    user, _, host = authority.rpartition("@")
    kind = scheme.removesuffix("s")
    shown = kind in _HOST_SCHEMES or (
        kind in _MAYBE_HOST_SCHEMES
        and bool(rest.split("?")[0].strip("/"))
        and bool(re.search(r"[.:]|^localhost$", host))
    )
    # An @ behind the host means that a password with / or ? in it was cut in the wrong place.
    if not shown or "@" in rest:
        return scheme, user, "", host + rest
    return scheme, user, host, rest


def scheme_of(url: str) -> str:
    """The scheme in lower case; empty if this is no URL."""
    return _split(url)[0]


def label_of(url: str) -> str:
    """The part of a URL that people may see; everything behind the host becomes `…`."""
    scheme, _, host, rest = _split(url)
    if not scheme:
        return "…"
    return f"{scheme}://{host}{'' if host and not rest.strip('/') else '/…' if host else '…'}"


def secrets_of(url: str) -> frozenset[str]:
    """Every piece of a URL that must never be printed, in the spellings an error may use."""
    _, user, host, rest = _split(url)
    pieces = {url}
    for part in re.split(r"[/?&#]", f"{user}/{rest}"):
        value = part.partition("=")[2] or part
        pieces |= {part, value, *re.split(r"[:;,@\s+]", unquote(value))}
    pieces |= {unquote(piece) for piece in pieces}
    pieces |= {quote(piece, safe="") for piece in pieces}
    # A name that is part of the visible host would only mask the label.
    return frozenset(p for p in pieces if len(p) >= MIN_SECRET_CHARS and p not in host)


def load_receivers(specs: Sequence[str]) -> tuple[Receiver, ...]:
    """The receivers that `specs` name, each URL once, in order.

    Raises UsageError with one sentence that never repeats a URL: a mistyped receiver is still
    somebody's token.
    """
    found: dict[str, Receiver] = {}
    for number, spec in enumerate(specs, start=1):
        for where, line in _lines(spec.strip(), number):
            tags, url = _parse(line, where)
            receiver = Receiver(_name(url, {r.name for r in found.values()}), Secret(url), tags)
            found.setdefault(receiver.key, receiver)
    return tuple(found.values())


def _lines(spec: str, number: int) -> Iterator[tuple[str, str]]:
    """(where it stands, URL) for each URL of a spec."""
    if spec.startswith("@"):
        path = Path(spec[1:]).expanduser()
        where, text = str(path), _read_private(path)
    elif spec.lower().startswith("env:"):
        where = f"the environment variable {spec[4:]}"
        text = os.environ.get(spec[4:], "")
        if not text.strip():
            raise UsageError(f"{where} is not set, or empty", hint=_HINT)
    else:
        yield f"receiver {number}", spec
        return
    lines = [(at, line.strip()) for at, line in enumerate(text.splitlines(), start=1)]
    lines = [(at, line) for at, line in lines if line and not line.startswith("#")]
    if not lines:
        raise UsageError(f"{where} names no receiver", hint="write one Apprise URL a line")
    for at, line in lines:
        yield f"line {at} of {where}", line


def _read_private(path: Path) -> str:
    """The text of a file that only its owner can read. Raises UsageError."""
    try:
        # Non-blocking, so that a FIFO is refused below instead of waited for.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        problem = f"cannot read the receiver file {path}: {error.strerror}"
        raise UsageError(problem, hint=_HINT) from None
    try:
        _refuse_unsafe(path, os.fstat(descriptor))
        with open(descriptor, "rb", closefd=False) as file:
            return file.read().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not text in UTF-8", hint=_HINT) from None
    finally:
        os.close(descriptor)


def _refuse_unsafe(path: Path, about: os.stat_result) -> None:
    """Raises UsageError for a file that somebody else could read or write."""
    if not stat.S_ISREG(about.st_mode):
        raise UsageError(f"{path} is not a file", hint=_HINT)
    if about.st_uid not in (os.geteuid(), 0):
        problem = f"{path} belongs to another user, who could change where alerts go"
        raise UsageError(problem, hint="copy it to a file of your own, then chmod 600 the copy")
    mode = stat.S_IMODE(about.st_mode)
    if mode not in (0o600, 0o400):
        problem = f"{path} has mode {mode:04o}; receiver URLs are passwords"
        raise UsageError(problem, hint=f"chmod 600 {path}")


def _parse(line: str, where: str) -> tuple[frozenset[str], str]:
    """(tags, URL) of one line. Raises UsageError."""
    tagged = _TAGGED.fullmatch(line)
    names, url = tagged.group(1, 2) if tagged else ("", line)
    if not _URL.fullmatch(url) or not url.isprintable():
        raise UsageError(f"{where} is not an Apprise URL", hint=_HINT)
    return frozenset(re.findall(r"[\w-]+", names)), url


def _name(url: str, taken: set[str]) -> str:
    """`ntfy`, `ntfy-2`, …: short, unique, and free of secrets."""
    scheme = scheme_of(url)
    names = (scheme if n == 1 else f"{scheme}-{n}" for n in range(1, len(taken) + 2))
    return next(name for name in names if name not in taken)
