"""Alerts through the whole product: never lost, never the reason for anything."""

from __future__ import annotations

import pytest

from receivers import Answer, Recorder


@pytest.mark.slow
def test_a_receiver_that_is_down_gets_its_alert_at_the_next_start(box):
    """The run is healed all the same; the alert waits on disk and is sent later, once."""
    with Recorder() as phone:
        url = phone.url("json")
    command = box.command("--fault", "nan@230", "--steps", "260", "--save-every", "20")
    done = box.run(command, "--notify", url)  # the phone is off now
    assert done.status == 0, done.err
    assert box.status()["alerts"]["waiting"] == 1
    assert "1 alerts wait" in done.err or "1 alert waits" in done.err


def test_a_hanging_receiver_does_not_delay_the_kill(box):
    """Detection and recovery do not wait for anybody's phone."""
    with Recorder(Answer(hang=True), Answer(hang=True)) as phone:
        live = box.start(
            box.command("--fault", "one-nan@100", "--fault", "crash@230"),
            "--notify",
            phone.url("json"),
        )
        live.wait_for("critical: crash")
        live.wait_for("attempt 2 started", timeout_s=3)
        live.wait_for("healed", timeout_s=10)
        live.process.kill()


def test_each_receiver_gets_every_alert(box):
    """Two receivers, one of them broken: the other one is told all the same."""
    with Recorder() as good, Recorder(*[404] * 20) as broken:
        done = box.run(
            box.command("--fault", "nan@230"),
            "--notify",
            broken.url("json"),
            "--notify",
            good.url("json"),
        )
        good.wait(1, timeout_s=5)
    assert done.status == 0
    assert box.status()["alerts"]["failed"] == 1
    assert box.status()["alerts"]["waiting"] == 0


def test_alert_test_reports_each_receiver(box):
    """`overnight alert-test`: accepted or why not, exit 1 when one refuses, no secret shown."""
    with Recorder() as good, Recorder(*[404] * 5) as broken:
        done = box.overnight(
            "alert-test", "--notify", good.url("json"), "--notify", broken.url("json")
        )
    assert done.status == 1
    first, second = done.out.strip().splitlines()
    assert first.endswith("accepted")
    assert "404" in second


def test_alert_test_without_receivers_is_a_usage_error(box):
    """There is nothing to test."""
    assert box.overnight("alert-test").status == 2


def test_a_receiver_that_can_never_work_is_refused_before_the_start(box):
    """A mistyped scheme would cost a night of alerts: exit 2, nothing started, no token shown."""
    done = box.run(box.command(), "--notify", "nfty://user:s3cr3tt0ken@host/topic")
    assert done.status == 2
    assert "nfty" in done.err
    assert "s3cr3tt0ken" not in done.err
    assert box.starts() == []
