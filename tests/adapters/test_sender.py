"""Delivery for real: the sender child, Apprise, and a phone that is a loopback web server."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from receivers import Answer, Recorder

TOKEN = "tk_V3ryS3cret"  # the tests look for this string where it must not be
SENDER = [sys.executable, "-m", "overnight.adapters.notify.sender"]

# Discord, Telegram and Pushover have no host in their URLs: their plugin's class attribute is
# pointed at the recorder, all else is the real child.
HOSTED = """
import sys
from apprise.plugins.{module} import {plugin}
{plugin}.notify_url = sys.argv[1]
from overnight.adapters.notify.sender import main
main()
"""


def deliver(url: str, *, argv: list[str] = SENDER, **fields: str) -> dict[str, Any]:
    """Run the real child on one job; its answer, after checking that no secret was printed."""
    job = {
        "url": url,
        "title": "[box] run: NaN at step 1900",
        "body": "loss is NaN since step 1890",
        "severity": "warning",
        "alert_id": "17",
    }
    done = subprocess.run(
        argv, input=json.dumps(job | fields).encode(), capture_output=True, timeout=30
    )
    assert TOKEN.encode() not in done.stdout + done.stderr
    (line,) = done.stdout.splitlines()
    answer: dict[str, Any] = json.loads(line)
    assert done.returncode == (0 if answer["ok"] else 1)
    return answer


def deliver_hosted(phone: Recorder, module: str, plugin: str, url: str, **fields: str) -> Any:
    """As `deliver`, with a plugin of a hosted service pointed at the recorder; the JSON it sent."""
    code = HOSTED.format(module=module, plugin=plugin)
    argv = [sys.executable, "-c", code, f"http://127.0.0.1:{phone.port}/bot"]
    assert deliver(url, argv=argv, **fields)["ok"]
    return [request.json for request in phone.wait(1, timeout_s=1)]


# --- what arrives --------------------------------------------------------------------------------


def test_json_receives_title_body_and_the_alert_id() -> None:
    """The plain webhook gets everything, under our own name."""
    with Recorder() as phone:
        answer = deliver(phone.url("json", TOKEN))
        (request,) = phone.wait(1, timeout_s=1)
    assert answer["ok"]
    assert (answer["permanent"], answer["error"]) == (False, "")
    assert 0 < answer["elapsed_s"] < 20
    assert request.path == f"/{TOKEN}"
    assert request.headers["user-agent"] == "Overnight"
    assert request.json["title"] == "[box] run: NaN at step 1900"
    assert request.json["message"] == "loss is NaN since step 1890\n\nalert 17"
    assert request.json["type"] == "warning"


@pytest.mark.parametrize(
    ("severity", "written", "priority"),
    [
        pytest.param("critical", "", "max", id="critical-wakes"),
        pytest.param("warning", "", "high", id="warning"),
        pytest.param("resolved", "", "low", id="resolved-is-quiet"),
        pytest.param("info", "", "low", id="info-is-quiet"),
        pytest.param("critical", "min", "min", id="the-user-wrote-min"),
    ],
)
def test_ntfy_is_as_loud_as_the_severity(severity: str, written: str, priority: str) -> None:
    """Unless the user wrote a priority in the URL; and no picture is fetched from anywhere."""
    options = {"priority": written} if written else {}
    with Recorder() as phone:
        assert deliver(phone.url("ntfy", TOKEN, **options), severity=severity)["ok"]
        (request,) = phone.wait(1, timeout_s=1)
    assert request.headers["x-priority"] == priority
    assert request.json["topic"] == TOKEN
    assert "x-icon" not in request.headers


def test_gotify_is_as_loud_as_the_severity() -> None:
    """Gotify's 8 makes an Android phone ring and vibrate."""
    with Recorder() as phone:
        assert deliver(phone.url("gotify", TOKEN), severity="critical")["ok"]
        (request,) = phone.wait(1, timeout_s=1)
    assert request.json["priority"] == 8
    assert request.headers["x-gotify-key"] == TOKEN


@pytest.mark.parametrize(
    ("severity", "options", "flags"),
    [("critical", "", None), ("resolved", "", 4096), ("info", "?flags=4", 4)],
)
def test_discord_gets_one_message_that_fits(severity: str, options: str, flags: int | None) -> None:
    """A long body is cut in the middle to Discord's 2000 characters; good news makes no sound."""
    body = "first line\n" + "word " * 4000 + "\nrun: overnight resume @everyone"
    with Recorder() as phone:
        url = f"discord://123456/{TOKEN}{options}"
        (sent,) = deliver_hosted(
            phone, "discord", "NotifyDiscord", url, body=body, severity=severity
        )
        assert phone.requests[0].path == f"/bot/123456/{TOKEN}"
    content = sent["content"]
    assert 1900 < len(content) <= 2000
    assert content.startswith("[box] run: NaN at step 1900\r\nfirst line\n")
    assert content.endswith("run: overnight resume @\u200beveryone\n\nalert 17")
    assert "characters left out" in content
    assert sent.get("flags") == flags
    assert "avatar_url" not in sent


def test_discord_splits_if_the_user_says_so() -> None:
    """`overflow=split` in the URL gets the whole text, in messages that each fit."""
    body = "first line\n" + "word " * 900 + "\nlast line"
    with Recorder() as phone:
        url = f"discord://123456/{TOKEN}?overflow=split"
        sent = deliver_hosted(phone, "discord", "NotifyDiscord", url, body=body)
    assert len(sent) >= 3
    assert all(len(message["content"]) <= 2000 for message in sent)
    assert "".join(message["content"] for message in sent).count("word") == 900
    assert sent[-1]["content"].endswith("last line\n\nalert 17")


@pytest.mark.parametrize(("severity", "silent"), [("critical", False), ("resolved", True)])
def test_telegram_is_silent_only_for_good_news(severity: str, silent: bool) -> None:
    """And a log line with markup arrives as the text it was."""
    with Recorder() as phone:
        (sent,) = deliver_hosted(
            phone,
            "telegram",
            "NotifyTelegram",
            f"tgram://123456789:{TOKEN}xxxxxxxxxxxxxxxxxxxxxxx/42",
            body="loss <b>1 & 2</b>",
            severity=severity,
        )
    assert sent["disable_notification"] is silent
    assert "loss &lt;b&gt;1 &amp; 2&lt;/b&gt;" in sent["text"].replace("&nbsp;", " ")


def test_pushover_rings_until_somebody_confirms() -> None:
    """A critical alert is an emergency there, with an interval and an end."""
    with Recorder() as phone:
        deliver_hosted(
            phone,
            "pushover",
            "NotifyPushover",
            f"pover://{'u' * 30}@{'a' * 30}",
            severity="critical",
        )
        form = phone.requests[0].text
    assert "priority=2" in form
    assert "retry=300" in form
    assert "expire=3600" in form


@pytest.mark.parametrize("body", ["损失是" * 3000, "🔥" * 3000, "plain " * 3000])
def test_long_text_in_any_script_stays_a_message_on_ntfy(body: str) -> None:
    """ntfy makes an attachment of more than 4096 bytes, and a letter can take twelve."""
    with Recorder() as phone:
        assert deliver(phone.url("ntfy", TOKEN), title="步骤 1900 🔥", body=body)["ok"]
        (request,) = phone.wait(1, timeout_s=1)
    message = request.json["message"]
    assert len(message.encode()) <= 4096
    assert len(request.body) <= 8000
    assert message.startswith(body[:300])
    assert message.endswith("\n\nalert 17")
    assert request.json["title"] == "步骤 1900 🔥"


def test_what_arrives_is_defanged() -> None:
    """A log line in title or body pings nobody and carries no colours."""
    with Recorder() as phone:
        body = "\x1b[31mERROR\x1b[0m <@123> <!channel>\rbell\x07"
        assert deliver(phone.url("json"), title="@everyone\nNaN", body=body)["ok"]
        (request,) = phone.wait(1, timeout_s=1)
    assert request.json["title"] == "@\u200beveryone NaN"
    assert request.json["message"] == (
        "ERROR <\u200b@\u200b123> <\u200b!channel>\nbell\n\nalert 17"
    )


# --- what goes wrong -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "permanent", "says"),
    [
        pytest.param(500, False, "error=500", id="server-error"),
        pytest.param(429, False, "error=429", id="rate-limit"),
        pytest.param(401, True, "error=401", id="unauthorized"),
        pytest.param(403, True, "error=403", id="forbidden"),
        pytest.param(404, True, "error=404", id="not-found"),
        pytest.param(
            Answer(403, json.dumps({"code": 40301, "error": f"forbidden {TOKEN}"}).encode()),
            True,
            "error=40301",
            id="ntfy-own-code",
        ),
        pytest.param(
            Answer(302, headers=(("Location", "/login"),)), False, "error=302", id="login-page"
        ),
        pytest.param(Answer(cut=True), False, "the connection broke off", id="cut-mid-body"),
    ],
)
def test_a_refusal_is_told_and_judged(answer: int | Answer, permanent: bool, says: str) -> None:
    """Only what another try cannot change is permanent; the topic is masked."""
    with Recorder(answer) as phone:
        got = deliver(phone.url("ntfy", TOKEN))
        assert len(phone.requests) == 1
    assert (got["ok"], got["permanent"]) == (False, permanent)
    assert says in got["error"]
    assert got["error"].startswith(f"ntfy://127.0.0.1:{phone.port}/…: ")


def test_a_refused_connection_may_work_later() -> None:
    """Nobody listens: not delivered, not permanent, and the reason is Apprise's debug line."""
    with Recorder() as phone:
        url = phone.url("json", TOKEN)
    got = deliver(url)
    assert (got["ok"], got["permanent"]) == (False, False)
    assert got["error"].endswith("(connection refused)")


def test_an_optional_receiver_that_fails_did_not_deliver() -> None:
    """Apprise calls a failure a success where the URL says optional=yes; the outbox must not."""
    with Recorder(500) as phone:
        assert not deliver(phone.url("json", TOKEN, optional="yes"))["ok"]


@pytest.mark.slow
def test_a_slow_server_is_waited_for() -> None:
    """Apprise's own 4 s would report failure for an alert that arrived, and send it twice."""
    with Recorder(Answer(delay_s=4.3)) as phone:
        assert deliver(phone.url("json"))["ok"]


def test_the_users_own_timeout_stays() -> None:
    """`rto` in the URL wins over ours."""
    with Recorder(Answer(hang=True)) as phone:
        got = deliver(phone.url("json", TOKEN, rto="0.2"))
    assert (got["ok"], got["permanent"]) == (False, False)
    assert got["error"].endswith("(no answer in time)")


@pytest.mark.parametrize(
    ("url", "says"),
    [
        (f"nosuch://{TOKEN}/x", "nosuch://…: Apprise knows no service nosuch://"),
        (f"https://example.org/{TOKEN}", "a plain webhook is written json(s)://"),
        (f"discord://{TOKEN}", "discord://…: not a usable discord:// URL"),
        (f"json://user:{TOKEN}@/x", "json://…: not a usable json:// URL"),
        (f"tgram://{TOKEN}/42", "tgram://…: not a usable tgram:// URL"),
        (TOKEN, "…: not a URL"),
        (f"ntfy://127.0.0.1:9/bad+{TOKEN}", "no ntfy topics to notify"),
    ],
)
def test_a_url_that_can_never_work_is_permanent(url: str, says: str) -> None:
    """The scheme is named and nothing else of the URL (`deliver` looks for the token)."""
    got = deliver(url)
    assert (got["ok"], got["permanent"]) == (False, True)
    assert says in got["error"]


@pytest.mark.parametrize("job", [b"", b"[]", b"{}", b'{"url": 1}', b"\xff"])
def test_a_broken_job_is_answered(job: bytes) -> None:
    """The child never leaves without its one line."""
    done = subprocess.run(SENDER, input=job, capture_output=True, timeout=30)
    assert json.loads(done.stdout)["error"] == "the job on stdin is not understood"
    assert done.returncode == 1


def test_the_child_leaves_though_a_thread_lives_on() -> None:
    """Apprise keeps timed-out threads; a normal exit would wait for them."""
    code = (
        "import threading; threading.Thread(target=threading.Event().wait).start();"
        "from overnight.adapters.notify.sender import main; main()"
    )
    with Recorder() as phone:
        assert deliver(phone.url("json"), argv=[sys.executable, "-c", code])["ok"]
