"""A receiver on loopback that shows each alert as a phone would: for the demo."""

from __future__ import annotations

import json
import textwrap
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

CARD_CHARS = 64


def card(title: str, body: str) -> str:
    """An alert as a notification on a lock screen."""
    inner = CARD_CHARS - 4
    lines = [title[:inner]]
    for paragraph in body.splitlines():
        lines += textwrap.wrap(paragraph, inner) or [""]
    edge = "─" * (CARD_CHARS - 2)
    rows = [f"│ {line.ljust(inner)} │" for line in lines]
    return "\n".join([f"╭{edge}╮", *rows, f"╰{edge}╯"])


class Phone:
    """Accepts Apprise's json:// messages on 127.0.0.1 and hands each to `show`."""

    def __init__(self, show: Callable[[str], None]) -> None:
        self.messages: list[dict[str, Any]] = []
        phone = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = int(self.headers.get("Content-Length", "0"))
                message = json.loads(self.rfile.read(length))
                self.send_response(200)
                self.end_headers()
                phone.messages.append(message)
                show(card(str(message.get("title")), str(message.get("message"))))

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, name="phone", daemon=True).start()

    @property
    def url(self) -> str:
        """The Apprise URL of this phone."""
        return f"json://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        """Switch it off."""
        self._server.shutdown()
        self._server.server_close()
