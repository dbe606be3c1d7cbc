"""The control socket: one JSON object a line from the command line to a running supervisor.

A Unix stream socket, 0600 in a 0700 directory, peer credentials checked. Its name is a hash of
the state path, because a socket path ends at 107 bytes and state paths do not.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import stat
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from overnight.core.events import Request
from overnight.errors import ControlError

MAX_REQUEST_BYTES = 1 << 16
REPLY_S = 5.0
"""How long a supervisor may think; its loop turns are milliseconds."""


def runtime_directory() -> Path:
    """Where sockets live: systemd's, the user's, else one of our own in /tmp."""
    given = os.environ.get("RUNTIME_DIRECTORY")
    if given:
        return Path(given.split(":")[0])
    session = os.environ.get("XDG_RUNTIME_DIR")
    if session and Path(session).is_dir():
        return Path(session) / "overnight"
    return Path(f"/tmp/overnight-{os.getuid()}")  # noqa: S108 - owner and mode are checked


def socket_path(state: Path) -> Path:
    """The socket of the run whose state directory this is."""
    digest = hashlib.sha256(os.fsencode(state.absolute())).hexdigest()[:12]
    return runtime_directory() / f"{digest}.sock"


def _own_directory(path: Path) -> None:
    """Create the directory 0700, or refuse one that is somebody else's. Raises OSError."""
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise PermissionError(f"{path} belongs to another user")
    if found.st_mode & 0o077:
        path.chmod(0o700)


class ControlServer:
    """Accepts one request a connection and hands it to the loop."""

    def __init__(
        self,
        state: Path,
        report: Callable[[Request], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Bind and listen. Raises OSError; a supervisor without a socket still watches."""
        self._report = report
        self._clock = clock
        self._closing = threading.Event()
        self._path = socket_path(state)
        _own_directory(self._path.parent)
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()  # ours: the lock on the state directory is held
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self._socket.bind(str(self._path))
        self._path.chmod(0o600)
        self._socket.listen(8)
        threading.Thread(target=self._accept, name="control", daemon=True).start()

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                connection, _ = self._socket.accept()
            except OSError:  # closed, or out of descriptors for a while
                self._closing.wait(1.0)
                continue
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.settimeout(REPLY_S)
            connection.sendall(json.dumps(self._answer(connection)).encode() + b"\n")

    def _answer(self, connection: socket.socket) -> dict[str, Any]:
        peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        _pid, uid, _gid = struct.unpack("iII", peer)
        if uid not in (os.getuid(), 0):
            return {"error": "not your run"}
        with connection.makefile("rb") as stream:
            line = stream.readline(MAX_REQUEST_BYTES)
        try:
            request = json.loads(line)
            op, args = str(request["op"]), dict(request.get("args", {}))
        except (ValueError, KeyError, TypeError, RecursionError):
            return {"error": "not a request: one JSON object with op and args"}
        answer: dict[str, Any] = {"error": "the supervisor is busy"}
        answered = threading.Event()

        def reply(value: dict[str, Any]) -> None:
            nonlocal answer
            answer = value
            answered.set()

        self._report(Request(self._clock(), op, args, reply))
        answered.wait(REPLY_S)
        return answer

    def close(self) -> None:
        """Stop listening and remove the socket."""
        self._closing.set()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        with contextlib.suppress(OSError):
            self._path.unlink()


def ask(state: Path, op: str, args: dict[str, Any] | None = None) -> dict[str, Any]:
    """Send one request to the supervisor of a run. Raises ControlError when none answers."""
    path = socket_path(state)
    try:
        owner = path.lstat().st_uid
        if owner not in (os.getuid(), 0):
            raise ControlError(f"{path} belongs to another user")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as link:
            link.settimeout(REPLY_S + 1)
            link.connect(str(path))
            link.sendall(json.dumps({"op": op, "args": args or {}}).encode() + b"\n")
            with link.makefile("rb") as stream:
                answer = json.loads(stream.readline(1 << 22))
    except (OSError, ValueError) as error:
        raise ControlError(f"no supervisor answers for {state.name}") from error
    if not isinstance(answer, dict):
        raise ControlError(f"the supervisor of {state.name} gave no sensible answer")
    return answer
