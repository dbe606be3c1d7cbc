"""Records that a script prints as a dictionary over several lines (`pprint`, `json.dumps(indent)`).

Put together they are one line like any other; apart, a step behind the loss would be taken for
that of the next record.
"""

from __future__ import annotations

MAX_LINES, MAX_CHARS = 100, 8192
"""A longer dictionary is a configuration: its lines are read one by one."""


class Joiner:
    """Lines in, lines with dictionaries in one piece out."""

    def __init__(self) -> None:
        self._held: list[str] = []
        self._chars = 0

    def feed(self, line: str) -> tuple[str, ...]:
        """What can be read now: nothing inside a dictionary, all of it at its end."""
        if not self._held:
            if line[:1] != "{" or "}" in line or line[1:2] not in ("", "'", '"'):
                return (line,)
            self._held, self._chars = [line], len(line)
            return ()
        if line[:1] not in (" ", "\t", "}", "'", '"'):
            return (*self.end(), line)  # something else has been printed in between
        self._held.append(line)
        self._chars += len(line)
        if line.rstrip().endswith("}") and not line.startswith("  "):
            whole, self._held = " ".join(part.strip() for part in self._held), []
            return (whole.replace("{ ", "{", 1),)
        if len(self._held) > MAX_LINES or self._chars > MAX_CHARS:
            return self.end()
        return ()

    def end(self) -> tuple[str, ...]:
        """A dictionary without an end, line by line."""
        held, self._held = tuple(self._held), []
        return held
