"""`overnight demo`: what it checks, what it shows, and that it really runs."""

from __future__ import annotations

import copy
import json
import urllib.request

import pytest

from overnight.cli.demo import STORIES, check
from overnight.cli.phone import Phone, card
from overnight_box import OVERNIGHT

STORY = STORIES["nan"]
INCIDENT = {
    "fault": "loss-nonfinite",
    "action": "rollback",
    "onset_step": 260,
    "detected_step": 262,
    "checkpoint": {"path": "/x/step_150", "step": 150},
    "lr_scale_after": 0.5,
    "lr_proof": "proved",
}
STATE = {"state": "completed", "step": 400, "lr_scale": 0.5}


def held(*, status=0, incidents=None, state=None, messages=1) -> list[str]:
    """The points of the check list that did not hold."""
    found = [copy.deepcopy(INCIDENT)] if incidents is None else incidents
    points = check(STORY, status, found, {**STATE, **(state or {})}, [{}] * messages)
    return [text for text, good in points if not good]


def test_the_check_list_holds_for_the_real_story():
    """All points, when all happened."""
    assert held() == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"status": 1},
        {"state": {"state": "halted"}},
        {"state": {"step": 262}},
        {"state": {"lr_scale": 1.0}},
        {"incidents": []},
        {"incidents": [INCIDENT, INCIDENT]},
        {"incidents": [{**INCIDENT, "fault": "crash"}]},
        {"incidents": [{**INCIDENT, "action": "restart"}]},
        {"incidents": [{**INCIDENT, "checkpoint": None}]},
        {"incidents": [{**INCIDENT, "checkpoint": {"path": "x", "step": 261}}]},
        {"incidents": [{**INCIDENT, "lr_proof": "unproven"}]},
        {"messages": 0},
        {"messages": 2},
    ],
    ids=str,
)
def test_the_check_list_fails_when_one_thing_did_not_happen(wrong):
    """Exit 0 is only for a story that really took place."""
    assert held(**wrong) != []


def test_a_card_is_as_wide_as_a_phone():
    """Every row has the same width, whatever the words."""
    rows = card("a title " * 20, "a body of many words " * 30 + "\n\nend").splitlines()
    assert {len(row) for row in rows} == {64}


def test_the_phone_shows_what_it_is_sent():
    """A JSON message over HTTP becomes a card."""
    shown = []
    phone = Phone(shown.append)
    try:
        body = json.dumps({"title": "hello", "message": "world"}).encode()
        url = phone.url.replace("json://", "http://")
        with urllib.request.urlopen(urllib.request.Request(url, body), timeout=5) as answer:
            assert answer.status == 200
    finally:
        phone.close()
    assert "hello" in shown[0]
    assert "world" in shown[0]


def test_without_torch_one_line_says_what_to_do(box):
    """An interpreter that has no torch: exit 2, the hint names the way."""
    box.env["TORCH_PYTHON"] = "/nonexistent/python"
    done = box.call([*OVERNIGHT, "demo"])
    assert done.status == 2
    assert "cannot import torch" in done.err
    assert "TORCH_PYTHON" in done.err
    assert "Traceback" not in done.err


@pytest.mark.slow
@pytest.mark.parametrize("fault", sorted(STORIES))
def test_every_story_of_the_demo_really_happens(box, fault):
    """Exit 0 means that each point of its own check list held."""
    done = box.call([*OVERNIGHT, "demo", "--fault", fault, "--dir", "demo"], timeout_s=110)
    assert done.status == 0, done.out[-2000:] + done.err[-2000:]
    assert "FAIL" not in done.out
    assert "Your phone:" in done.out
