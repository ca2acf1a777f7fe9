"""Logs with one JSON object a line: tinker-cookbook, ROLL, event streams and home-made loops."""

import json
from collections.abc import Iterable
from typing import Any

from jaxgrpo.errors import ReadError
from jaxgrpo.logs import event_stream
from jaxgrpo.logs.records import framework_of, read_records
from jaxgrpo.logs.source import Source
from jaxgrpo.logs.table import Table


def read(source: Source) -> list[Table]:
    """Read a log of JSON lines.

    Args:
        source: The log.

    Returns:
        One table for each run.

    Raises:
        ReadError: If no line is a JSON object.
    """
    rows: list[dict[str, Any]] = []
    bad: list[tuple[int, str]] = []
    number = 0
    for number, line in enumerate(source.lines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except RecursionError:
            bad.append((number, "is nested too deeply"))
            continue
        except ValueError as error:
            column = getattr(error, "colno", 1)
            bad.append((number, f"is no JSON from column {column} on"))
            continue
        if isinstance(row, dict):
            rows.append(row)
        else:
            bad.append((number, "is no JSON object"))
    if not rows or len(bad) > len(rows):
        line, reason = bad[0] if bad else (1, "is empty")
        raise ReadError(f"{source.label}: is of no format of training logs: line {line} {reason}")
    notes = []
    if bad:
        line, reason = bad[0]
        last = " (the last one: cut off while it was written)" if line == number else ""
        more = f", and {len(bad) - 1} lines after it" if len(bad) > 1 else ""
        notes.append(f"line {line} {reason}{last} and is left out{more}")
    if event_stream.looks_like(rows):
        tables = event_stream.read(rows, source)
    else:
        tables = read_records(rows, source.name, framework_of(_keys(rows)) or "jsonl")
    for table in tables:
        table.notes += notes
    return tables


def _keys(rows: Iterable[dict[str, Any]]) -> set[str]:
    """Names used in the first rows."""
    keys: set[str] = set()
    for count, row in enumerate(rows):
        if count > 200:
            break
        keys.update(row)
    return keys
