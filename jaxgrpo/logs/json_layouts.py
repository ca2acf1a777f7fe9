"""Logs that are one JSON document: trainer states, lists of rows, columns of metrics, campaigns."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from jaxgrpo.errors import ReadError
from jaxgrpo.logs import campaign, json_lines, nemo_rl, notebook, trl
from jaxgrpo.logs.columns import listing, normal
from jaxgrpo.logs.records import framework_of, read_records
from jaxgrpo.logs.source import Source
from jaxgrpo.logs.table import Table, number

_LISTS = (
    "log_history",
    "history",
    "metrics",
    "steps",
    "logs",
    "log",
    "records",
    "rows",
    "data",
    "training_history",
)


class _ExtraData(ReadError):
    """A document is followed by another."""


def load(source: Source) -> Any:
    """Parse the document, or say where it is damaged."""
    text = source.text()
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ReadError(f"{source.label}: is nested too deeply to be a training log") from error
    except json.JSONDecodeError as error:
        if error.msg == "Extra data":
            raise _ExtraData(
                f"{source.label}: the JSON goes on after its end at line {error.lineno}"
            ) from error
        place = f"line {error.lineno}, column {error.colno}"
        rest = text[error.pos :].strip()
        if not rest or error.msg.startswith("Unterminated"):
            raise ReadError(f"{source.label}: the JSON is cut off at {place}; copy the whole file") from error
        raise ReadError(f"{source.label}: the JSON is damaged at {place} ({error.msg})") from error
    except ValueError as error:
        raise ReadError(
            f"{source.label}: the JSON cannot be read ({' '.join(str(error).split())[:120]})"
        ) from error


def read(source: Source) -> list[Table]:
    """Read a log that is one JSON document.

    Args:
        source: The log.

    Returns:
        One table for each run.

    Raises:
        ReadError: If the document is damaged or has no layout of a training log.
    """
    try:
        document = load(source)
    except _ExtraData:
        # The first line was too long to be seen whole: an object a line after all.
        return json_lines.read(source)
    if isinstance(document, dict):
        if isinstance(document.get("cells"), list):
            return notebook.read(document, source)
        if isinstance(document.get("log_history"), list):
            return trl.read_state(document, source)
        if nemo_rl.looks_like(document):
            return nemo_rl.read(document, source)
    rows = _rows(document)
    if rows:
        names: set[str] = set()
        for row in rows[:200]:
            names.update(row)
        framework = framework_of(names) or "json"
        tables = read_records(rows, source.name, framework)
        if framework == "trl":
            trl.mark_sessions(rows, tables)
        return tables
    tables = campaign.read(document, source)
    if tables:
        return tables
    if isinstance(document, dict):
        table = _columnar(document, source)
        if table is not None:
            return [table]
        raise ReadError(
            f"{source.label}: is of no format of training logs (a JSON object with "
            f"{listing(list(map(str, document)), 6)})"
        )
    raise ReadError(
        f"{source.label}: is of no format of training logs (JSON, but neither rows nor columns of metrics)"
    )


def _rows(document: Any) -> Sequence[Mapping[str, Any]]:
    """The rows of a document that is a list of them, or holds one under a usual name."""
    candidates = [document] if isinstance(document, list) else []
    if isinstance(document, dict):
        candidates = [document[name] for name in _LISTS if isinstance(document.get(name), list)]
    for candidate in candidates:
        rows = [row for row in candidate if isinstance(row, dict)]
        flat = [row for row in rows if any(number(value) is not None for value in row.values())]
        if rows and 2 * len(flat) >= len(candidate) and not any(campaign.is_run(row) for row in rows[:50]):
            return rows
    return []


def _columnar(document: Mapping[str, Any], source: Source) -> Table | None:
    """A table from `{metric: [values]}`, where at least two metrics are lists of the same length."""
    columns: dict[str, list[float]] = {}
    for name, values in document.items():
        if isinstance(values, list) and len(values) > 1:
            numbers = [number(value) for value in values]
            if any(value is not None for value in numbers):
                columns[str(name)] = [float("nan") if value is None else value for value in numbers]
    if not columns:
        return None
    lengths = [len(values) for values in columns.values()]
    usual = max(set(lengths), key=lambda length: (lengths.count(length), length))
    for name in columns:
        if "reward" in normal(name) and not normal(name).endswith(("std", "max", "min")):
            usual = len(columns[name])
            break
    table = Table(source.name, framework_of(columns) or "json", "rollout")
    if table.framework == "trl":
        table.counts = "optimizer"
    other = [name for name, values in columns.items() if len(values) != usual]
    if other:
        table.notes.append(
            f"columns of another length than {usual} cannot be aligned and are left out: {listing(other, 6)}"
        )
    table.set_columns({name: values for name, values in columns.items() if len(values) == usual})
    return table
