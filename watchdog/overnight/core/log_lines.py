"""A line of a log without what stands before its words: rank, time, logger and level."""

from __future__ import annotations

import re
from dataclasses import dataclass

HEAD_CHARS, END_CHARS = 1500, 500
"""What is looked at of a longer line: its head, and its end (messages are glued behind bars)."""

_ESCAPE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b.|[\x00-\x08\x0b\x0c\x0e-\x1f]")
# [rank3]: | [1,2]<stderr>: | (RayTrainWorker pid=9, ip=10.0.0.1) | 3: | trainer-0  | | node1:
_RANK = re.compile(
    r"\[?(?:rank|default|RANK|Rank)[ :=]?\d+\]?:? ?|\[\d+(?:,\d+)?\](?:<std\w+>)?:? ?"
    r"|\(\w[^()]{0,60}pid=\d+[^()]{0,60}\) ?|[\w-]{1,40}-\d+ +\| ?|\d{1,4}: (?=\S| {2})"
)
_STAMP = re.compile(
    r"[\[(]?\d{2,4}[-/]\d\d(?:[-/]\d\d(?:\d\d)?)?[T _,-]+\d\d:\d\d:\d\d(?:[.,:]\d+)?(?:Z"
    r"|[+-]\d\d:?\d\d)?"
    r"[\])]? ?:?|\[?\d\d:\d\d:\d\d(?:[.,]\d+)?\]? ?|[A-Z][a-z]{2} +\d{1,2} \d\d:\d\d:\d\d \S+ "
    r"|\[ *\d+\.\d{6}\] |std(?:out|err) [FP] "
)
_LEVEL = re.compile(
    r"(?:[ \t:|-]*\[?(?:[\w./-]{1,60}(?::\d+)?[\] :|-]{1,4}){0,3}\[?)?"
    r"(DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL|EXCEPTION)\b[\])]?[ \t:|-]*(?:[\w.]{1,60} - "
    r"|\w{1,30}:(?=[^ ]))?"
    r"|([IWEF])\d{4} \d\d:\d\d:\d\d\.\d+ [^\]]{0,80}\] ?|:? ?([IWEF]) \w\S{1,80}\] ?"
)
# [177/train/578 (pid 28936)] [09c561ee] behind a time stamp
_TAG = re.compile(r"\[(?=[^\[\]]*\d)[^\[\]]{1,60}\] ?")
# [W ProcessGroupNCCL.cpp:1168] Warning: ...
_GLOG_WARNS = re.compile(r"\[[IW][ \d]")
_QUIET = frozenset({"DEBUG", "INFO", "WARNING", "WARN", "I", "W"})


@dataclass(frozen=True, slots=True)
class Line:
    """`rank`: whose line it is; `quiet`: it calls itself information or a warning; `error`: it
    calls itself an error."""

    rank: str
    text: str
    quiet: bool
    error: bool


def clean_line(line: str) -> Line:
    """A line without colours, rank, time stamp and logger, all of which are kept apart."""
    text = (
        line if len(line) <= HEAD_CHARS + END_CHARS else line[:HEAD_CHARS] + " " + line[-END_CHARS:]
    )
    text = _ESCAPE.sub("", text).rstrip().rsplit("\r", 1)[-1]
    rank, level, stamped = "", "", False
    for _ in range(6):
        before = text
        if match := _RANK.match(text):
            rank += match[0].strip()
            text = text[match.end() :]
        if match := _STAMP.match(text):
            text, stamped = text[match.end() :], True
            text = text[1:] if text.startswith(" ") and not text.startswith("  ") else text
        if not level and (match := _LEVEL.match(text)):
            level = next(group for group in match.groups() if group)
            text = text[match.end() :]
        if text == before and stamped and (match := _TAG.match(text)):
            text = text[match.end() :]
        if text == before:
            break
    quiet = level in _QUIET or bool(_GLOG_WARNS.match(text))
    return Line(rank, text, quiet, bool(level) and level not in _QUIET)
