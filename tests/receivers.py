"""A loopback recorder: a web server on 127.0.0.1 that plays the part of somebody's phone.

    with Recorder(500, 200) as phone:            # fails once, then takes everything
        ... send to phone.url("ntfy", "topic") ...
        first, second = phone.wait(2, timeout_s=10)

For tests and benchmarks. Nothing in here sleeps or polls.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain, repeat
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote, urlencode


@dataclass(frozen=True, slots=True)
class Answer:
    """How one request is answered; `hang` never answers, `cut` closes in the middle of the body."""

    status: int = 200
    body: bytes = b"{}"
    headers: tuple[tuple[str, str], ...] = ()
    delay_s: float = 0.0
    hang: bool = False
    cut: bool = False


@dataclass(frozen=True, slots=True)
class Recorded:
    """One request as it arrived, `at` by the monotonic clock; header names are in lower case."""

    at: float
    method: str
    path: str
    headers: dict[str, str] = field(repr=False)
    body: bytes

    @property
    def json(self) -> Any:
        """The body as JSON, or None."""
        try:
            return json.loads(self.body)
        except ValueError:
            return None

    @property
    def text(self) -> str:
        """The body as text."""
        return self.body.decode(errors="replace")


class Recorder:
    """Records every request and answers by script; after the script, 200 for ever.

    An answer may be given as its status alone.
    """

    def __init__(self, *answers: int | Answer) -> None:
        self.requests: list[Recorded] = []
        self._changed = threading.Condition()
        self._closing = threading.Event()
        script = (a if isinstance(a, Answer) else Answer(a) for a in answers)
        self._script: Iterator[Answer] = chain(script, repeat(Answer()))
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True

    def __enter__(self) -> Self:
        threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        ).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._closing.set()  # lets hanging and delayed answers go
        self._server.shutdown()
        self._server.server_close()

    @property
    def port(self) -> int:
        """The port on 127.0.0.1."""
        return int(self._server.server_address[1])

    def url(self, scheme: str, *path: str, user: str = "", **options: str) -> str:
        """The Apprise URL of this recorder: `url("ntfy", "topic", priority="min")`."""
        login = f"{user}@" if user else ""
        where = "/".join(quote(part, safe="") for part in path)
        asked = f"?{urlencode(options)}" if options else ""
        return f"{scheme}://{login}127.0.0.1:{self.port}/{where}{asked}"

    def wait(self, count: int, *, timeout_s: float) -> list[Recorded]:
        """The requests, as soon as there are `count`. Raises TimeoutError."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self.requests) >= count, timeout_s):
                raise TimeoutError(f"{len(self.requests)} of {count} requests in {timeout_s} s")
            return list(self.requests)

    def _record(self, request: Recorded) -> Answer:
        with self._changed:
            self.requests.append(request)
            self._changed.notify_all()
            return next(self._script)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        recorder = self

        class Handler(BaseHTTPRequestHandler):
            """Takes any method and path."""

            def answer(self) -> None:
                """Read the request, record it, answer by the script."""
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                headers = {name.lower(): value for name, value in self.headers.items()}
                answer = recorder._record(
                    Recorded(time.monotonic(), self.command, self.path, headers, body)
                )
                self.close_connection = True
                wait_s = None if answer.hang else answer.delay_s
                if wait_s != 0 and recorder._closing.wait(wait_s):
                    return
                self.send_response(answer.status)
                for name, value in answer.headers:
                    self.send_header(name, value)
                promised = len(answer.body) + (100 if answer.cut else 0)
                self.send_header("Content-Length", str(promised))
                with contextlib.suppress(OSError):  # the sender may have gone meanwhile
                    self.end_headers()
                    self.wfile.write(answer.body)

            # http.server finds its methods by these names.
            do_GET = do_POST = do_PUT = answer  # noqa: N815

            def log_message(self, *_: object) -> None:
                """Keep test output clean."""

        return Handler
