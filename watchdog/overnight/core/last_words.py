"""What the last lines of a log say of its end: errors and completions, each with its place.

A traceback is read as one thing, rank by rank: its frames are source code and say nothing, its
last line names the exception. What the script went on after is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from overnight.core.cause_words import RULES, Rule, Tier
from overnight.core.log_lines import HEAD_CHARS, Line, clean_line

WENT_ON = 3
"""Other processes of a dying run may print so many records after its last words."""

HANDLED_WITHIN = 2
"""So many lines after an error the script says what it does about it."""

MESSAGE_LINES = 8
"""So much of an exception's message is looked at for what its first line does not say."""

_WARNS = re.compile(r"\w+Warning\b|^\s*[Ww]arning\b|^wandb: (?!ERROR)")
_TRACEBACK = re.compile(r"Traceback \(most recent call last\)")
_BESIDE = re.compile(
    r"^(?:Exception ignored|Exception in thread|Error in atexit|Error in sys\.|--- Logging error)"
)
_CHAIN = re.compile(r"^(During handling of|The above exception was the direct)")
_FRAME = re.compile(r"^(?:\s|[│╭╰╮╯|+]|Original Traceback|\"{3}|$)")
_EXCEPTION = re.compile(
    r"^((?:[A-Za-z_]\w*\.)*)([A-Z_]\w*)(\([\w.]+\))?(?:: ?(.*)|$)",
    re.DOTALL,
)
_ENDING = re.compile(
    r"(?:Error|Exception|Interrupt|Exit|Failed|Failure|Timeout|Invalid|Unavailable|Mismatch|Abort"
    r"|NotFound|OutOfResources|Detected|Diverged|Warning|StopIteration|KilledWorker)\w{0,12}$"
)
_ERROR_NAME = re.compile(r"(?:Error|Exception|Interrupt|Exit|Mismatch|Failed|OutOfResources)$")
_HANDLED = re.compile(
    r"using CPU|[Ff]all(?:ing|s)? ?back|\b[Rr]etry(?:ing)?\b|will be skipped|[Ii]gnor(?:ing|ed)"
    r"|[Ss]kipp(?:ed|ing)|\b[Cc]ontinuing\b|[Rr]educ(?:ed|ing|e) (?:the )?(?:micro[- ]?)?batch"
    r"|\b[Rr]ecover(?:ed|ing)\b|\b[Hh]andled\b|[Tt]ry(?:ing)? (?:again|batch|smaller|a smaller"
    r"|with a sm)"
    r"|[Hh]alv(?:ing|ed)|using defaults?\b|[Cc]reating (?:it|a new)"
    r"|[Ss]tarting from scratch|attempt(?:ing)? to recover|[Rr]esum(?:ed|ing) (?:from|train)"
    r"|batch size (?:\d+ )?(?:failed|too large)|disabl(?:ed|ing)|[Nn]on-fatal|harmless|not fatal"
)
_LOSS = re.compile(
    r"[Ll]oss\w{0,12}['\"]?[\s:=|]{1,12}['\"]?[+-]?\d|\d ?(?:it/s|s/it|ms/step|s/step)\b"
)
_NOT_NUMBER = re.compile(r"[Ll]oss\w{0,12}['\"]?[\s:=|]{1,12}['\"]?-?(?:nan|inf)\b", re.IGNORECASE)
_DONE = re.compile(
    r"\b(?:[Tt]raining|TRAINING|[Tt]rain|[Ff]ine-?tuning|[Pp]re-?training|[Oo]ptimization|[Rr]un"
    r"|[Jj]ob"
    r"|[Ee]xperiment)(?: (?:loop|run|job|process|is|has|was|now|been|successfully|fully)){0,3}"
    r" (?:[Cc]omplete[d]?|COMPLETE[D]?|[Ff]inished|[Dd]one|DONE|[Ee]nded|[Ss]ucceeded)\b"
    r"|\b(?:[Ff]inished|[Cc]ompleted|[Dd]one(?: with)?) (?:the )?(?:training|fine-?tuning)"
    r"|`?(?:Trainer\.)?fit`? stopped: `?max_(?:epochs|steps)|train_runtime|train metrics \*{3}"
    r"|(?:[Ss]av(?:ed|ing)|[Ww]rote) (?:the )?final (?:model|checkpoint|weights)"
    r"|[Ff]inal (?:model|checkpoint|weights) (?:was |were )?(?:saved|written)"
    r"|^\s*(?:[Aa]ll )?[Dd]one[.!]*$"
    r"|\d epochs completed in|after training is done|[Tt]otal training time"
    r"|[Rr]eached max(?:imum)?[_ ](?:steps|epochs|iterations)|max_steps reached"
    r"|All epochs (?:done|comp)"
    r"|[Ff]inal (?:test|eval|val|validation|train)\w*[ /_-](?:\w+[ :=]){0,2}|[Ee]xited successfully"
    r"|^[Ff]inal (?:results|metrics|score|loss|accuracy|perplexity)"
    r"|[Ee]arly stopping.{0,40}(?:stop|"
    r"trigger|patience|epoch)|EarlyStopping.{0,80}[Ss]top|Best (?:val\w*|epoch|score"
    r"|acc\w*).{0,60}at ep"
)
_NOT_DONE = re.compile(
    r"\b(?:not|never|before|until|when|after|if|will|once|un)\b.{0,20}(?:complet|finish|done|sav)"
    r"|\b(?:[Ee]poch|[Ff]old|[Ss]tage|[Pp]hase|[Rr]ound|[Tt]rial|[Ww]arm\w*|[Tt]okenizer"
    r"|[Ee]val\w*)"
    r"\b[ #:\[]*\d*\]?[ :,-]*(?:\w+ )?(?:[Tt]rain\w*|[Cc]omplet\w+|[Ff]inish\w+|[Dd]one)\b"
    r"|\bfor (?:epoch|fold|stage|phase)\b|\d+/\d+ (?:done|complete)|[Nn]ot saving"
    r"| on hooks\)$"  # detectron2, also after an exception
)
_STOPS = re.compile(r"(?i)stop|terminat|abort|exit|halt|diverg|invalid in this epoch|kill")
_ERROR = re.compile(
    r"(?i)\berror\b|\bfatal|\bfail|cannot|can't|couldn't|could not|\babort|not found|denied|"
    r"^\S+: .{0,200}: |exit(?:ing|ed)?\b|unable|assert|floating point"
)
_LOUD = re.compile(r"(?:\S{1,40} )?(?:ERROR|Error|FATAL|Fatal|error:|fatal:)")
_SOFT = frozenset(
    {"missing-file", "permission", "assertion", "missing-module", "division-by-zero"}
    | {"disk-full", "usage"}
)
"""Causes whose words are in harmless lines too: outside a traceback they need to be an error."""

_PLAIN = frozenset(
    {"ValueError", "KeyError", "TypeError", "AttributeError", "IndexError", "NameError"}
    | {"NotImplementedError", "SyntaxError", "StopIteration", "RecursionError", "LookupError"}
)
"""Exceptions of no kind of their own, whatever files and modules their message names."""

_BY_CLASS = {
    "ModuleNotFoundError": "missing-module",
    "ImportError": "missing-module",
    "FileNotFoundError": "missing-file",
    "PermissionError": "permission",
    "ZeroDivisionError": "division-by-zero",
    "FloatingPointError": "numeric",
    "MemoryError": "host-memory",
    "KeyboardInterrupt": "killed",
}
_CHECKS = re.compile(
    r"\b(?:assert|raise)\b.{0,80}(?:isnan|isfinite|isinf|is_nan|== ?\w+\b.{0,9}nan)|not finite"
)
_CODE = re.compile(r"\w")
_CLEARING = re.compile(
    r"destroy_process_group|atexit|_exit_function|wandb\.finish|__del__|\.shutdown\(|\.barrier\("
    r"|\.close\("
)


@dataclass(frozen=True, slots=True)
class Sign:
    """One thing that speaks for a cause: `at` is its place among the lines, 0 the first.

    `raised`: an exception; `stops`: it says that the script ends; `leaving`: raised while
    clearing away; `certain`: a launcher's report on a signal; `harmless`: such words are no death
    where the status is good; `own`: of the log, not the kernel.
    """

    cause: str
    tier: Tier
    at: int
    text: str
    more: tuple[str, ...] = ()
    raised: bool = False
    stops: bool = False
    leaving: bool = False
    certain: bool = False
    harmless: bool = False
    own: bool = True


@dataclass(slots=True)
class LastWords:
    """All signs of a tail that the script did not go on after, and where it said it was done."""

    signs: list[Sign] = field(default_factory=list)
    done_at: int = -1
    progress: list[int] = field(default_factory=list)

    @property
    def done(self) -> bool:
        """Whether the training was said to be over."""
        return self.done_at >= 0

    def progress_after(self, at: int) -> int:
        """How many records came after this line."""
        return sum(place > at for place in self.progress)


@dataclass(slots=True)
class _Open:
    """A traceback that is being read, from line `at` on. `chain`: how it hangs on the one before;
    `source`: the code of its last frame; `beside`: of a thread or a destructor."""

    at: int
    beside: bool
    chain: str
    source: str = ""
    clearing: bool = False


def last_words(lines: Sequence[str]) -> LastWords:
    """What these lines, oldest first and none of them empty, say of the end."""
    said = LastWords()
    clean = [clean_line(line) for line in lines]
    signs = _signs(clean, said)
    said.signs = [
        replace(sign, text=lines[sign.at])
        for sign in signs
        if not _went_on(sign, said) and not _dealt_with(sign, clean)
    ]
    asked = any(sign.cause == "killed" and sign.at <= said.done_at for sign in said.signs)
    if asked or said.progress_after(said.done_at) > WENT_ON:
        said.done_at = -1  # a script that was told to end says that it is done as well
    return said


def kernel_signs(kernel: Sequence[str], *, oom_kills: int) -> list[Sign]:
    """What the kernel says, the root first; an OOM kill may have been of a neighbor."""
    found = []
    for text in kernel:
        rule = next(
            (r for r in RULES if not r.raised and r.pattern.search(text[:HEAD_CHARS])), None
        )
        if rule and rule.tier is not Tier.FAINT:
            found.append(Sign(rule.cause, rule.tier, 0, text, own=False))
    if oom_kills > 0:
        text = f"memory.events: oom_kill {oom_kills}"
        found.append(Sign("host-oom", Tier.SPECIFIC, 0, text, own=False))
    return sorted(found, key=lambda sign: (sign.tier, sign.cause != "host-oom"))


def _signs(clean: Sequence[Line], said: LastWords) -> list[Sign]:
    """Every sign, handled or not, in their order; notes progress and completion on the way."""
    signs: list[Sign] = []
    reading: dict[str, _Open] = {}
    chain: dict[str, str] = {}
    latest: dict[str, int] = {}
    for at, line in enumerate(clean):
        if _TRACEBACK.search(line.text):
            before = clean[at - 1].text if at else ""
            beside = bool(_BESIDE.match(before)) or bool(_BESIDE.match(line.text))
            reading[line.rank] = _Open(at, beside, chain.pop(line.rank, ""))
            continue
        trace = reading.get(line.rank)
        if trace is not None:
            if _FRAME.match(line.text):
                if _CODE.search(line.text):  # the marks under a line of code say nothing
                    trace.source = line.text
                trace.clearing = trace.clearing or bool(_CLEARING.search(line.text))
                continue
            if (parts := _exception(line.text)) is not None:
                del reading[line.rank]
                sign = _raised(parts, at, clean, trace)
                _add(signs, sign, latest, line.rank, trace.chain)
                continue
        if match := _CHAIN.match(line.text):
            chain[line.rank] = match[1]
            continue
        _note(line, at, said)
        if (words := _spoken(line, at, len(clean))) is not None:
            signs.append(words)
    # What is still open was cut off, or ended by words that are no exception's.
    cut = [trace.at for trace in reading.values() if not trace.beside]
    return [*signs, *(Sign("traceback", Tier.GENERIC, at, "", raised=True) for at in cut)]


def _add(signs: list[Sign], sign: Sign, latest: dict[str, int], rank: str, chain: str) -> None:
    """Put an exception down; of two in a chain only the one nearer the root stays."""
    before = latest.get(rank)
    if not chain or before is None:
        latest[rank] = len(signs)
        signs.append(sign)
        return
    old = signs[before]
    if old.cause in ("killed", "disk-full"):
        return  # what is cleaned up afterwards can only fail of it
    cause_first = chain.startswith("The above")
    newer = sign.tier < old.tier or (
        not cause_first
        and sign.tier <= Tier.DRAGGED
        and (old.tier in (sign.tier, Tier.GENERIC))
        and not (old.tier is Tier.SPECIFIC and old.cause not in _SOFT)
    )
    kept = replace(sign, more=(old.text,)) if newer else old
    signs[before] = replace(kept, at=sign.at if newer else old.at)


def _raised(parts: tuple[str, str], at: int, clean: Sequence[Line], trace: _Open) -> Sign:
    """The sign of an exception; `parts` are its class without modules, and its whole line."""
    name, text = parts
    cause, tier = _of_exception(name, text)
    if tier is Tier.GENERIC:
        for more in _message(clean, at):
            rule = _rule_of(more, raised=False)
            if rule and rule.tier <= Tier.SPECIFIC and not (rule.cause in _SOFT and name in _PLAIN):
                cause, tier = rule.cause, rule.tier
                break
    if cause in ("assertion", "traceback", "runtime-error") and _CHECKS.search(trace.source):
        cause, tier = "numeric", Tier.SPECIFIC
    if trace.beside:
        tier = Tier.FAINT
    return Sign(cause, tier, at, text, raised=True, stops=True, leaving=trace.clearing)


def _of_exception(name: str, text: str) -> tuple[str, Tier]:
    if name in _BY_CLASS:
        rule = _rule_of(text, raised=True)
        if rule is not None and rule.cause in ("bus-error", "disk-full", "gpu-xid"):
            return rule.cause, rule.tier
        return _BY_CLASS[name], Tier.GENERIC if name == "KeyboardInterrupt" else Tier.SPECIFIC
    rule = _rule_of(text, raised=True, plain=name in _PLAIN)
    if name == "AssertionError" and (rule is None or rule.cause not in ("numeric", "cuda-error")):
        return "assertion", Tier.SPECIFIC
    if rule is not None:
        return rule.cause, rule.tier
    return "runtime-error" if name.endswith("RuntimeError") else "traceback", Tier.GENERIC


def _rule_of(text: str, *, raised: bool, plain: bool = False) -> Rule | None:
    for rule in RULES:
        if rule.raised and not raised:
            continue
        if plain and (rule.cause in _SOFT or rule.cause == "killed"):
            continue
        if rule.pattern.search(text):
            return rule
    return None


def _spoken(line: Line, at: int, count: int) -> Sign | None:
    """The sign of a line outside any traceback."""
    text = line.text
    parts = _exception(text) if not line.quiet else None
    if parts is not None and _ERROR_NAME.search(parts[0]):
        cause, tier = _of_exception(*parts)
        near = count - at <= MESSAGE_LINES * 2 or tier is not Tier.GENERIC
        return Sign(cause, tier if near else Tier.FAINT, at, text, raised=tier < Tier.GENERIC)
    rule = _rule_of(text, raised=False)
    if rule is None:
        return _cpp(text, at)
    if rule.cause in ("runtime-error", "traceback") and not _ERROR.search(text):
        return None
    tier = rule.tier
    quiet = line.quiet or bool(_WARNS.search(text))
    mild = rule.cause in _SOFT and not (_ERROR.search(text) or line.error)
    if mild or (quiet and not rule.loud):
        tier = Tier.FAINT
    stops = bool(_STOPS.search(text))
    harmless = rule.cause in _SOFT and not (stops or line.error or _LOUD.match(text))
    return Sign(
        rule.cause, tier, at, text, stops=stops, certain=tier is Tier.DRAGGED, harmless=harmless
    )


def _cpp(text: str, at: int) -> Sign | None:
    """terminate called after throwing an instance of 'std::runtime_error'"""
    if "terminate called after throwing" not in text:
        return None
    return Sign("runtime-error", Tier.DRAGGED, at, text, certain=True)


def _note(line: Line, at: int, said: LastWords) -> None:
    """Progress, and words of a training that is done."""
    text = line.text
    if text.startswith("wandb:"):
        return
    new = said.done_at < 0 or said.progress_after(said.done_at) > WENT_ON
    if new and _DONE.search(text) and not _NOT_DONE.search(text):
        said.done_at = at  # often with the last loss in the same line
    elif _LOSS.search(text) and not _NOT_NUMBER.search(text):
        said.progress.append(at)


def _message(clean: Sequence[Line], at: int) -> Iterator[str]:
    """The lines of an exception's message behind the first one."""
    for line in clean[at + 1 : at + 1 + MESSAGE_LINES]:
        if line.rank != clean[at].rank:
            continue
        if line.quiet or _TRACEBACK.search(line.text) or _CHAIN.match(line.text):
            return
        if _exception(line.text.strip()) and _ENDING.search(line.text.split(":")[0]):
            return
        yield line.text


def _exception(text: str) -> tuple[str, str] | None:
    """Class and line where a line names an exception."""
    match = _EXCEPTION.match(text)
    if match is None:
        return None
    if match[2] == "Error" or not (_ENDING.search(match[2]) or match[1]):
        return None
    return match[2], text


def _went_on(sign: Sign, said: LastWords) -> bool:
    return said.progress_after(sign.at) > WENT_ON


def _dealt_with(sign: Sign, clean: Sequence[Line]) -> bool:
    """Whether the script says, in this line or right behind it, what it does about it."""
    if sign.tier is Tier.MACHINE:
        return False
    if not sign.raised and _HANDLED.search(clean[sign.at].text):
        return True
    behind = clean[sign.at + 1 : sign.at + 1 + HANDLED_WITHIN]
    texts = [line.text for line in behind]
    speaks = [text for text in texts if not (_FRAME.match(text) or _BESIDE.match(text))]
    return any(_HANDLED.search(text) for text in speaks)
