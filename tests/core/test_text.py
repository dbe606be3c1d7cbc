"""Text for alerts: nothing in it pings, escapes, overflows or leaks."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from overnight.core.text import ZERO_WIDTH_SPACE, defang, mask_secrets, one_line, shorten

PINGS = re.compile(
    r"@(?:everyone|here|channel|all|room)|<[@#!]|<users/|(?<!\w)@[\w*]", re.IGNORECASE
)
UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


@pytest.mark.parametrize(
    "mention",
    [
        pytest.param("@everyone", id="discord-everyone"),
        pytest.param("loss@everyone", id="discord-inside-a-word"),
        pytest.param("@HERE", id="upper-case"),
        pytest.param("<@123456789012345678>", id="discord-user"),
        pytest.param("<@!1234>", id="discord-nickname"),
        pytest.param("<@&1234>", id="discord-role"),
        pytest.param("<#1234>", id="discord-channel"),
        pytest.param("<!channel>", id="slack-channel"),
        pytest.param("<!subteam^S1|ops>", id="slack-group"),
        pytest.param("<users/all>", id="google-chat"),
        pytest.param("@**all**", id="zulip"),
        pytest.param("@alice_bot", id="telegram"),
        pytest.param("@room", id="matrix"),
        pytest.param("<@<@1>", id="nested"),
        pytest.param("@\x00everyone", id="split-by-a-control-character"),
        pytest.param("@\x1b[0meveryone", id="split-by-an-escape"),
        pytest.param("@\u202eeveryone", id="split-by-a-direction-mark"),
    ],
)
def test_a_log_line_cannot_ping_anybody(mention: str) -> None:
    """Every known mention is broken, and the eye sees the same text."""
    safe = defang(f"step 1900: {mention} said the dataset")
    assert not PINGS.search(safe)
    seen = safe.replace(ZERO_WIDTH_SPACE, "")
    assert seen == f"step 1900: {UNSAFE.sub('', mention).replace('[0m', '')} said the dataset"


@pytest.mark.parametrize(
    "text",
    [
        "loss=nan at step 1900\n\tgrad_norm 12.5 → ∞ 🔥",
        "mail ops.team+gpu@example.org",
        "a < b, x <= y, <1%> and 5 @ 3",
        "https://example.org/a?b=<c>",
    ],
)
def test_ordinary_text_stays_as_it_is(text: str) -> None:
    """Numbers, comparisons, addresses, tabs, newlines and emoji pass unchanged."""
    assert defang(text) == text


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        pytest.param("\x1b[1;31mERROR\x1b[0m boom", "ERROR boom", id="colours"),
        pytest.param("\x1b]0;title\x07x\x1b]8;;http://a\x1b\\y", "xy", id="titles-and-links"),
        pytest.param("\x1b]0;never closed\nkept", "\nkept", id="open-string-ends-at-its-line"),
        pytest.param("\x1bPq#0\x1b\\image", "image", id="sixel"),
        pytest.param("\x9b31mred", "red", id="eight-bit"),
        pytest.param("a\x1b(Bb\x1bMc\x1b", "abc", id="short-escapes"),
        pytest.param("10%\r20%\r\n30%", "10%\n20%\n30%", id="progress-bar"),
        pytest.param("a\x00b\x07c\x7fd\x08", "abcd", id="control-characters"),
        pytest.param("gpj\u202eexe\u2066", "gpjexe", id="reordering"),
        pytest.param("one\u2028two\u0085three", "one\ntwo\nthree", id="unicode-line-breaks"),
        pytest.param("bad \ud800 byte", "bad \ufffd byte", id="lone-surrogate"),
    ],
)
def test_escapes_and_control_characters_go(text: str, plain: str) -> None:
    """What a terminal would obey is gone; what a person would read stays."""
    assert defang(text) == plain


@given(st.text(alphabet=st.one_of(st.characters(), st.sampled_from("@<!#&\x1b[]m;\r\nhereal"))))
@example("<@!@everyone\x1b[31m@here")
def test_defanged_text_is_safe_whatever_it_was(text: str) -> None:
    """Safe, encodable, and the same when defanged again."""
    safe = defang(text)
    assert not PINGS.search(safe)
    assert not UNSAFE.search(safe)
    safe.encode()
    assert defang(safe) == safe


def test_one_line_joins_and_cuts() -> None:
    """A title has no line break and says when it was cut."""
    assert one_line(" NaN \n at\tstep 1 ", limit=40) == "NaN at step 1"
    assert one_line("abcdef", limit=4) == "abc…"


def test_shortening_keeps_both_ends_and_says_how_much_is_gone() -> None:
    """What happened stands first, what to do stands last; both survive."""
    text = "NaN at step 1900\n" + "x" * 5000 + "\nrun: overnight resume"
    short = shorten(text, 300)
    assert len(short) <= 300
    assert short.startswith("NaN at step 1900\n")
    assert short.endswith("run: overnight resume")
    left_out = int(re.findall(r"… (\d+) characters left out …", short)[0])
    assert len(text) - 300 < left_out < len(text)


@given(st.text(max_size=150), st.integers(50, 120))
def test_shortened_text_fits_by_any_measure(text: str, limit: int) -> None:
    """The limit holds in characters and in JSON bytes; text that fits is not touched."""
    text = defang(text)
    for size in (len, lambda s: len(json.dumps(s))):
        short = shorten(text, limit, size=size)
        assert size(short) <= limit
        assert short == text or size(text) > limit


def test_secrets_are_masked_whatever_their_case() -> None:
    """The longest secret wins; the pieces of it that are secrets too leave no trace."""
    secrets = ["tk_abc", "tk_abc/long-tail", "a"]
    masked = mask_secrets("POST TK_ABC/Long-Tail and tk_abc, a word", secrets)
    assert masked == "POST *** and ***, a word"
    assert mask_secrets("nothing to hide", []) == "nothing to hide"


@given(
    st.text(alphabet="abcAB12/ .", max_size=80), st.lists(st.text(alphabet="abcAB12", max_size=6))
)
def test_no_secret_survives_masking(text: str, secrets: list[str]) -> None:
    """No secret of three characters or more is left in any spelling of its letters."""
    masked = mask_secrets(text, secrets).lower()
    assert not [s for s in secrets if len(s) >= 3 and s.lower() in masked]
