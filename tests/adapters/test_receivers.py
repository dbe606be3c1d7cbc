"""Receiver specs: what is accepted, what is refused, and that no URL ever shows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

import pytest

from overnight.adapters.notify.receivers import (
    Receiver,
    Secret,
    label_of,
    load_receivers,
    secrets_of,
)
from overnight.errors import UsageError

TOKEN = "tk_V3ryS3cret"  # the tests look for this string where it must not be
URL = f"ntfy://:{TOKEN}@ntfy.example.org/{TOKEN}-topic?priority=min"


def private_file(tmp_path: Path, text: str, *, mode: int = 0o600) -> Path:
    """A receiver file with the given text and mode."""
    path = tmp_path / "phone"
    path.write_text(text)
    path.chmod(mode)
    return path


@pytest.mark.parametrize(
    ("url", "label"),
    [
        (URL, "ntfy://ntfy.example.org/…"),
        ("ntfy://ntfy.sh/topic", "ntfy://ntfy.sh/…"),
        ("ntfy://my-secret-topic", "ntfy://…"),
        ("ntfy://topic-one/topic-two", "ntfy://…"),
        ("NTFYS://ntfy.sh:8443/topic", "ntfys://ntfy.sh:8443/…"),
        ("ntfy://localhost/topic", "ntfy://localhost/…"),
        ("json://127.0.0.1:8080", "json://127.0.0.1:8080"),
        ("json://127.0.0.1:8080/", "json://127.0.0.1:8080"),
        ("json://user:pass@host:8080/hook", "json://host:8080/…"),
        ("json://[::1]:80/hook", "json://[::1]:80/…"),
        ("discord://12345/token", "discord://…"),
        ("tgram://123:ABC/42", "tgram://…"),
        ("slack://T1/B2/C3/#ops", "slack://…"),
        ("mailto://me:pass@example.org", "mailto://example.org"),
        ("mailto://me:pa/ss@example.org", "mailto://…"),
        ("mailto://me:pa?ss@example.org", "mailto://…"),
        ("https://discord.com/api/webhooks/1/abc", "https://discord.com/…"),
        ("somethingnew://host.example/token", "somethingnew://…"),
        ("no url at all", "…"),
    ],
)
def test_a_label_shows_the_scheme_and_at_most_an_address(url: str, label: str) -> None:
    """Where the first part may be a token or a topic, or was cut wrongly, it is hidden."""
    assert label_of(url) == label


def test_a_receiver_never_prints_its_url() -> None:
    """repr, str and format of receiver and secret are safe for logs and tracebacks."""
    receiver = Receiver("phone", Secret(URL), frozenset({"night"}))
    shown = f"{receiver} {receiver!r} {receiver.url} {receiver.url!r} {receiver.label}"
    assert TOKEN not in shown
    assert receiver.url.reveal() == URL
    assert receiver.url == Secret(URL) != Secret("other")


def test_a_key_is_short_stable_and_one_for_each_url() -> None:
    """The outbox finds its receiver again after a restart, without storing the URL."""
    one, same, other = (Receiver("n", Secret(u)) for u in (URL, URL, URL + "x"))
    assert one.key == same.key != other.key
    assert len(one.key) == 12
    assert int(one.key, 16) >= 0


@pytest.mark.parametrize("piece", ["pa:ss", "s3cr3t", "topic/one", "Bearer abc def", "välue"])
def test_every_spelling_of_a_secret_is_known(piece: str) -> None:
    """A piece is a secret as it stands in the URL, decoded, and encoded again."""
    encoded = quote(piece, safe="")
    secrets = secrets_of(f"json://user:{encoded}@host/{encoded}?+Authorization={encoded}")
    assert {piece, encoded} <= secrets
    assert "host" not in secrets


def test_urls_files_and_variables_give_receivers_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All three kinds of spec; comments, blank lines and a repeated URL are passed over."""
    text = "\ufeff# phone\n\nntfy://a.example/one\n  json://b.example/two  \nntfy://a.example/one\n"
    path = private_file(tmp_path, text)
    monkeypatch.setenv("HOOKS", "discord://1/abc\nntfy://a.example/three")
    receivers = load_receivers(["ntfy://a.example/zero", f"@{path}", "env:HOOKS"])
    assert [(r.name, r.url.reveal()) for r in receivers] == [
        ("ntfy", "ntfy://a.example/zero"),
        ("ntfy-2", "ntfy://a.example/one"),
        ("json", "json://b.example/two"),
        ("discord", "discord://1/abc"),
        ("ntfy-3", "ntfy://a.example/three"),
    ]


def test_tags_stand_before_the_url(tmp_path: Path) -> None:
    """`tag,tag=URL` as in Apprise's own files; an = inside a URL makes no tag."""
    path = private_file(tmp_path, "night, wake-me = ntfy://a.example/t?priority=max\n")
    tagged, plain = load_receivers([f"@{path}", "json://b.example/?to=json://x"])
    assert tagged.tags == {"night", "wake-me"}
    assert tagged.url.reveal() == "ntfy://a.example/t?priority=max"
    assert plain.tags == frozenset()


def test_a_root_owned_credential_with_mode_0400_is_taken(tmp_path: Path) -> None:
    """The way systemd hands over credentials."""
    path = private_file(tmp_path, URL, mode=0o400)
    assert load_receivers([f"@{path}"])[0].url.reveal() == URL


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660, 0o700])
def test_a_file_that_others_could_use_is_refused(tmp_path: Path, mode: int) -> None:
    """The hint is the command that mends it; the URL is not in the message."""
    path = private_file(tmp_path, URL, mode=mode)
    with pytest.raises(UsageError, match=f"has mode {mode:04o}") as caught:
        load_receivers([f"@{path}"])
    assert caught.value.hint == f"chmod 600 {path}"
    assert TOKEN not in str(caught.value)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_is_refused(tmp_path: Path) -> None:
    """Its owner could redirect our alerts."""
    path = private_file(tmp_path, URL)
    os.chown(path, 65534, 65534)
    with pytest.raises(UsageError, match="belongs to another user"):
        load_receivers([f"@{path}"])


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        pytest.param(TOKEN, "receiver 1 is not an Apprise URL", id="no-scheme"),
        pytest.param("", "receiver 1 is not an Apprise URL", id="empty"),
        pytest.param(f"ntfy:/{TOKEN}", "receiver 1 is not", id="one-slash"),
        pytest.param(f"json://h/\x1b{TOKEN}", "receiver 1 is not", id="control-character"),
        pytest.param("env:OVERNIGHT_TEST_UNSET", "UNSET is not set, or empty", id="unset"),
        pytest.param("@{tmp}/missing", "cannot read .*No such file", id="missing-file"),
        pytest.param("@{tmp}", "is not a file", id="directory"),
        pytest.param("@{tmp}/fifo", "is not a file", id="fifo"),
        pytest.param("@{tmp}/empty", "names no receiver", id="only-comments"),
        pytest.param("@{tmp}/wrong", "line 2 of .*wrong is not an Apprise URL", id="bad-line"),
        pytest.param("@{tmp}/binary", "is not text in UTF-8", id="binary"),
    ],
)
def test_a_wrong_spec_is_one_sentence_with_a_hint(tmp_path: Path, spec: str, says: str) -> None:
    """It names the place, never the text: a mistyped receiver is still a token."""
    os.mkfifo(tmp_path / "fifo", 0o600)
    contents = {"empty": b"# none\n\n", "wrong": f"#\n{TOKEN}\n".encode(), "binary": b"\xff\xfe\0"}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
        (tmp_path / name).chmod(0o600)
    with pytest.raises(UsageError, match=says) as caught:
        load_receivers([spec.format(tmp=tmp_path)])
    assert caught.value.hint
    assert "\n" not in str(caught.value)
    assert TOKEN not in str(caught.value) + caught.value.hint


def test_the_supervisor_side_never_imports_apprise() -> None:
    """Loading receivers and dispatching must not bring Apprise's 19 MiB into the supervisor."""
    code = (
        "import json, sys, overnight.adapters.notify.dispatch, overnight.adapters.notify.receivers;"
        "print(json.dumps(sorted({m.split('.')[0] for m in sys.modules})))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert not {"apprise", "requests", "pydantic"} & set(json.loads(done.stdout))
