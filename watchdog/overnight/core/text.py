"""Text that leaves the machine: made harmless, cut to size, free of secrets.

Alerts quote log lines, and a log line is written by anybody: it may carry terminal escapes, or
words that a chat service turns into a ping of everybody in the channel.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

ZERO_WIDTH_SPACE = "\u200b"
"""Breaks a mention for every chat service and is drawn by none of them."""

MASK = "***"

MIN_SECRET_CHARS = 3
"""Shorter pieces of a URL guard nothing, and masking them would make any sentence unreadable."""

_ESCAPES = re.compile(
    r"\x1b\][^\x07\x1b\n]*(?:\x07|\x1b\\)?"  # OSC: window titles, hyperlinks
    r"|\x1b[PX^_][^\x1b\n]*(?:\x1b\\)?"  # DCS, SOS, PM, APC strings
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"  # CSI: colours, cursor
    r"|\x1b[ -/]*[0-~]?"  # two-byte escapes
)
_LINE_BREAKS = re.compile("\r\n?|[\u0085\u2028\u2029]")
# Control characters except tab and newline; the second row reorders text (a spoofing trick).
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_LONE_SURROGATES = re.compile("[\ud800-\udfff]")
_MENTIONS = re.compile(
    r"<(?=[@#!]|users/)"  # Discord and Slack ids, Slack <!channel>, Google Chat <users/all>
    # Discord finds these inside words as well.
    r"|@(?=everyone|here|channel|all|room)"
    # Telegram, Mattermost, Zulip @**name**; the look-behind leaves e-mail addresses whole.
    r"|(?<!\w)@(?=[\w*])",
    re.IGNORECASE,
)


def defang(text: str) -> str:
    """`text` without terminal escapes and control characters, unable to ping anybody.

    Line breaks of every kind become newlines (a progress bar's carriage returns too). Doing it
    twice changes nothing.
    """
    text = _ESCAPES.sub("", text)
    text = _LINE_BREAKS.sub("\n", text)
    text = _CONTROLS.sub("", text)
    text = _LONE_SURROGATES.sub("\ufffd", text)  # no encoder would take them
    return _MENTIONS.sub(lambda match: match.group() + ZERO_WIDTH_SPACE, text)


def one_line(text: str, *, limit: int) -> str:
    """`text` on one line of at most `limit` characters: a title, or an error for a table."""
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def shorten(text: str, limit: int, *, size: Callable[[str], int] = len) -> str:
    """`text` with its middle left out so that `size(result) <= limit`.

    The ends stay: an alert begins with what happened and ends with what to do. `size` may
    measure something else than characters (a service's limit is often in bytes).
    """
    if size(text) <= limit:
        return text

    def keep(count: int) -> str:
        head = count * 2 // 3
        gap = f"\n… {len(text) - count} characters left out …\n"
        return text[:head].rstrip() + gap + text[len(text) - (count - head) :].lstrip()

    low, high = 0, len(text) - 1
    while low < high:
        middle = (low + high + 1) // 2
        if size(keep(middle)) <= limit:
            low = middle
        else:
            high = middle - 1
    shortened = keep(low)
    return shortened if size(shortened) <= limit else ""


def mask_secrets(text: str, secrets: Iterable[str]) -> str:
    """`text` with every secret replaced by `***`, whatever its case, the longest first."""
    known = sorted({s for s in secrets if len(s) >= MIN_SECRET_CHARS}, key=len, reverse=True)
    if not known:
        return text
    return re.sub("|".join(map(re.escape, known)), MASK, text, flags=re.IGNORECASE)
