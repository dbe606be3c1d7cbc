"""The control socket: one question, one answer, and nobody else's questions."""

from __future__ import annotations

import json
import os
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from overnight.adapters.control import (
    MAX_REQUEST_BYTES,
    ControlServer,
    ask,
    runtime_directory,
    socket_path,
)
from overnight.core.events import Request
from overnight.errors import ControlError


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A runtime directory of the test's own."""
    monkeypatch.delenv("RUNTIME_DIRECTORY", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path / "overnight"


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """The state directory of a run."""
    return tmp_path / "state" / "nano"


@pytest.fixture
def server(state: Path) -> Iterator[ControlServer]:
    """A supervisor that answers with what it was asked."""

    def answer(request: Request) -> None:
        request.reply({"op": request.op, "args": dict(request.args), "at": request.at})

    server = ControlServer(state, answer, clock=lambda: 7.0)
    yield server
    server.close()


def send(state: Path, data: bytes) -> bytes:
    """What the server answers to these bytes."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
        link.settimeout(20)
        link.connect(str(socket_path(state)))
        link.sendall(data)
        link.shutdown(socket.SHUT_WR)
        return link.makefile("rb").read()


def test_a_request_is_answered(server: ControlServer, state: Path) -> None:
    """With the arguments, and the time of its arrival."""
    assert ask(state, "silence", {"s": 7200}) == {"op": "silence", "args": {"s": 7200}, "at": 7.0}
    assert ask(state, "status") == {"op": "status", "args": {}, "at": 7.0}


def test_nobody_there_is_an_error_that_names_the_run(state: Path) -> None:
    """No socket, and a socket whose supervisor was killed."""
    with pytest.raises(ControlError, match="no supervisor answers for nano"):
        ask(state, "status")
    socket_path(state).parent.mkdir()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(socket_path(state)))
    with pytest.raises(ControlError, match="no supervisor answers for nano"):
        ask(state, "status")


def test_a_dead_supervisors_socket_is_replaced(state: Path) -> None:
    """The lock says that it is dead."""
    socket_path(state).parent.mkdir()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(socket_path(state)))
    server = ControlServer(state, lambda request: request.reply({"ok": True}))
    assert ask(state, "status") == {"ok": True}
    server.close()
    assert not socket_path(state).exists()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n",
        b"hello\n",
        b"\xff\xfe\n",
        b"[]\n",
        b"7\n",
        b"null\n",
        b'"op"\n',
        b"{}\n",
        b'{"op": "x", "args": 5}\n',
        b'{"op": "x", "args": "ab"}\n',
        b"[" * 60_000 + b"\n",
    ],
)
def test_junk_is_refused_and_harms_nothing(server: ControlServer, state: Path, data: bytes) -> None:
    """Each gets an answer, and the next request is served."""
    assert "not a request" in json.loads(send(state, data))["error"]
    assert ask(state, "status")["op"] == "status"


def test_a_request_that_is_too_long_is_refused(server: ControlServer, state: Path) -> None:
    """It is not read to its end; the memory of the supervisor is not the client's."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
        link.settimeout(20)
        link.connect(str(socket_path(state)))
        link.sendall(b"x" * (MAX_REQUEST_BYTES + 1))
        assert "not a request" in json.loads(link.recv(4096))["error"]
    assert ask(state, "status")["op"] == "status"


def test_two_clients_are_served_at_once(state: Path) -> None:
    """The first waits for its answer while the second gets its own."""
    held: list[Request] = []
    arrived = threading.Event()

    def report(request: Request) -> None:
        if request.op == "slow":
            held.append(request)
            arrived.set()
        else:
            request.reply({"op": request.op})

    server = ControlServer(state, report)
    answers: list[dict[str, Any]] = []
    slow = threading.Thread(target=lambda: answers.append(ask(state, "slow")))
    slow.start()
    assert arrived.wait(20)
    assert ask(state, "quick") == {"op": "quick"}
    held[0].reply({"op": "slow"})
    slow.join(20)
    assert answers == [{"op": "slow"}]
    server.close()


def test_a_client_that_says_nothing_keeps_nobody_waiting(
    server: ControlServer, state: Path
) -> None:
    """It holds a connection, not the server."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as mute:
        mute.connect(str(socket_path(state)))
        assert ask(state, "status")["op"] == "status"


def test_the_socket_is_the_owners_alone(server: ControlServer, state: Path, runtime: Path) -> None:
    """0600 in a 0700 directory; a directory that was open is closed."""
    assert stat.S_IMODE(socket_path(state).stat().st_mode) == 0o600
    assert stat.S_IMODE(runtime.stat().st_mode) == 0o700
    runtime.chmod(0o755)
    ControlServer(state.parent / "other", print).close()
    assert stat.S_IMODE(runtime.stat().st_mode) == 0o700


def test_a_directory_of_somebody_else_is_refused(state: Path, runtime: Path) -> None:
    """In /tmp anybody could have made it first: by owner, or as a link."""
    target = runtime.parent / "target"
    target.mkdir()
    runtime.symlink_to(target)
    with pytest.raises(PermissionError, match="another user"):
        ControlServer(state, print)
    runtime.unlink()
    if os.getuid() != 0:
        pytest.skip("only root can give a directory away")
    runtime.mkdir()
    os.chown(runtime, 12345, 12345)
    with pytest.raises(PermissionError, match="another user"):
        ControlServer(state, print)


def test_a_socket_of_somebody_else_is_not_asked(server: ControlServer, state: Path) -> None:
    """It could answer anything."""
    if os.getuid() != 0:
        pytest.skip("only root can give a socket away")
    os.chown(socket_path(state), 12345, 12345)
    with pytest.raises(ControlError, match="belongs to another user"):
        ask(state, "status")


def test_the_runtime_directory_is_systemds_then_the_users_then_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the path fits into a socket address, however long the state path is."""
    assert runtime_directory() == tmp_path / "overnight"
    monkeypatch.setenv("RUNTIME_DIRECTORY", "/run/overnight:/run/other")
    assert runtime_directory() == Path("/run/overnight")
    monkeypatch.delenv("RUNTIME_DIRECTORY")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "gone"))
    assert runtime_directory() == Path(f"/tmp/overnight-{os.getuid()}")
    long = Path("/srv") / ("x" * 200)
    assert len(os.fsencode(socket_path(long))) <= 107
    assert socket_path(long) != socket_path(long / "y")
