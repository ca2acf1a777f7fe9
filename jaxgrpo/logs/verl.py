"""verl's console: `step:N - metric:value - ...` on one line, and its configuration printed before step 1."""

import ast
import re
from typing import Any

from jaxgrpo.logs.table import Table, number

_ANSI = re.compile(r"\x1b\[[0-9;]{0,20}[A-Za-z]")
_PREFIX = re.compile(r"^\(([\w.:-]{1,60}) pid=\d+[^)]{0,60}\) ?")
# What printed configuration looks like: literals and brackets. Warnings of the same process come in between.
_LITERAL = re.compile(r"^\s*[\]\[{}(),:]*\s*(?:['\"]|[-\d]|None\b|True\b|False\b|$)")
_QUOTED = re.compile(r"'(?:[^'\\\n]|\\.)*'|\"(?:[^\"\\\n]|\\.)*\"")
_ROOTS = ("'actor_rollout_ref'", "'algorithm'", "'trainer'")
_MAX_CONFIG_LINES = 5000
_MAX_CONFIG_BYTES = 500_000
_MAX_DEPTH = 60


def parse_line(line: str) -> tuple[tuple[str, ...], list[float]] | None:
    """Numbers of one line of verl's console logger.

    Args:
        line: The line, with colours and process prefixes as they come.

    Returns:
        Names, the first of them `"step"`, and as many numbers; `None` if the line is no such line.
    """
    start = line.find("step:")
    if start < 0 or (start > 0 and line[start - 1].isalnum()) or line[start - 1 : start] in ("_", "/"):
        return None
    line = line[start:]
    if "\x1b" in line:
        line = _ANSI.sub("", line)
    if ":np.float64(" in line:
        line = line.replace(":np.float64(", ":").replace(") - ", " - ")
    line = line.rstrip(") \r\n\t")
    # Names and values take turns; where a name has a colon of its own, what stands for a value is no number.
    words = line.replace(" - ", ":").split(":")
    if len(words) < 4 or words[0] != "step" or not words[1].isdecimal():
        return None
    try:
        values = list(map(float, words[1::2]))
    except ValueError:
        return _parse_odd(line)
    return tuple(words[: 2 * len(values) : 2]), values


def _parse_odd(line: str) -> tuple[tuple[str, ...], list[float]] | None:
    """The numbers of a line with odd names, or with values such as `tensor(0.1, device='cuda:0')`."""
    row = {}
    for part in line.split(" - "):
        for name, _, value in (part.rpartition(":"), part.partition(":")):
            as_number = number(value)
            if as_number is not None:
                row[name] = as_number
                break
    return (tuple(row), list(row.values())) if "step" in row and len(row) > 1 else None


class ConsoleReader:
    """Collects verl's rows and configuration from console output, line by line."""

    def __init__(self, name: str):
        self.table = Table(name, "verl", "rollout")
        self.settings: dict[str, Any] = {}
        self._config: list[str] | None = None
        self._speaker = ""
        self._depth = 0

    def feed(self, line: str) -> bool:
        """Take a line; tell whether it was verl's."""
        if "step:" in line:
            row = parse_line(line)
            if row is not None:
                self.table.add_values(*row)
                return True
        if self._config is not None or (not self.settings and "{'" in line):
            return self._feed_config(line)
        return False

    def _feed_config(self, line: str) -> bool:
        text = _ANSI.sub("", line).rstrip("\r\n")
        match = _PREFIX.match(text)
        speaker = match[0] if match else ""
        text = text[len(speaker) :]
        if self._config is None:
            stripped = text.lstrip()
            if not stripped.startswith("{'") or not any(root in stripped for root in _ROOTS):
                return False
            self._config, self._speaker, self._depth = [], speaker, 0
        elif speaker != self._speaker or not _LITERAL.match(text):
            return False
        self._config.append(text)
        bare = _QUOTED.sub("", text)
        self._depth += sum(bare.count(c) for c in "{[(") - sum(bare.count(c) for c in "}])")
        if self._depth <= 0 or len(self._config) > _MAX_CONFIG_LINES:
            self.settings = _parse_config("\n".join(self._config))
            self._config = None
        return True

    @property
    def has_rows(self) -> bool:
        """Whether a row has been found."""
        return self.table.rows > 0

    def finish(self) -> list[Table]:
        """The table of what was collected; empty if there was no row with more than a step."""
        if self.table.rows == 0:
            return []
        self.table.settings = self.settings
        return [self.table]


def _parse_config(text: str) -> dict[str, Any]:
    """Parse a printed dictionary of literals; anything else, or anything too large or deep, gives nothing."""
    if len(text) > _MAX_CONFIG_BYTES:
        return {}
    depth = deepest = 0
    for character in text:
        depth += (character in "{[(") - (character in "}])")
        deepest = max(deepest, depth)
    if deepest > _MAX_DEPTH:
        return {}
    try:
        value = ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
