"""CSV: verl's metrics with underscores, home-made tables, and what Weights & Biases exports."""

import csv
import math
from collections.abc import Iterator

from jaxgrpo.errors import ReadError
from jaxgrpo.logs import wandb
from jaxgrpo.logs.records import framework_of
from jaxgrpo.logs.source import Source
from jaxgrpo.logs.table import MAX_COLUMNS, Table, number

_DELIMITERS = (",", "\t", ";")
_EMPTY = ("", "na", "n/a", "none", "null", "-")


def _delimiter(line: str) -> str:
    return max(_DELIMITERS, key=line.count)


def _is_empty(cell: str) -> bool:
    return cell.strip().lower() in _EMPTY


def looks_like(text: str) -> bool:
    """Whether text begins with a header and rows of as many cells, a good part of them numbers."""
    lines = [line for line in text.replace("\r\n", "\n").replace("\r", "\n").split("\n") if line.strip()][:21]
    if len(lines) < 2:
        return False
    delimiter = _delimiter(lines[0])
    try:
        rows = list(csv.reader(lines, delimiter=delimiter))
    except csv.Error:
        return False
    header, body = rows[0], rows[1:]
    if len(header) < 2 or any(len(name) > 200 for name in header):
        return False
    named = [name for name in header if name.strip()]
    if (
        not named
        or sum(number(name) is not None for name in named) > len(named) / 4
        or len(named) < len(header) - 1
    ):
        return False
    # The last line may be cut off where the text was.
    whole = body[:-1] if len(body) > 1 else body
    if sum(len(row) == len(header) for row in whole) < 0.8 * len(whole):
        return False
    cells = [cell for row in whole for cell in row]
    return sum(_is_empty(cell) or number(cell) is not None for cell in cells) >= 0.25 * len(cells)


def read(source: Source) -> list[Table]:
    """Read a table of comma-, tab- or semicolon-separated values.

    Args:
        source: The log.

    Returns:
        One table for each run.

    Raises:
        ReadError: If it is no table, or one without a curve in it.
    """
    rows = _rows(source)
    try:
        header = next(rows)
    except StopIteration:
        raise ReadError(f"{source.label}: there is nothing in it") from None
    header = _unique(header)
    if len(header) > MAX_COLUMNS:
        raise ReadError(
            f"{source.label}: has {len(header)} columns; a training log has no more than {MAX_COLUMNS}"
        )
    if wandb.is_runs_table(header):
        raise ReadError(
            f"{source.label}: is a Weights & Biases table of runs, one row a run without steps: there is no "
            f"curve in it; export the run's history (run.history() or the chart's CSV) instead"
        )
    if wandb.is_long(header):
        return wandb.read_long(header, rows, source)
    table = Table(source.name, framework_of(header) or "csv", "rollout")
    ragged = 0
    for row in rows:
        ragged += len(row) != len(header)
        values = {name: _value(cell) for name, cell in zip(header, row, strict=False)}
        table.add({name: value for name, value in values.items() if value is not None})
    if table.rows == 0:
        raise ReadError(f"{source.label}: holds a header but no row")
    if ragged:
        table.notes.append(f"{ragged} rows have more or fewer cells than the header")
    if table.framework == "trl":
        table.counts = "optimizer"
    return wandb.split_chart(table) or [table]


def _value(cell: str) -> float | None:
    value = number(cell)
    return None if value is not None and math.isnan(value) and _is_empty(cell) else value


def _rows(source: Source) -> Iterator[list[str]]:
    """Cells of each row that is not blank."""
    lines = source.lines()
    first = next((line for line in lines if line.strip()), "")

    def all_lines() -> Iterator[str]:
        # A file with carriage returns alone is one line to Python.
        for line in (first, *()):
            yield from line.replace("\r\n", "\n").replace("\r", "\n").splitlines(keepends=True)
        for line in lines:
            yield from line.replace("\r\n", "\n").replace("\r", "\n").splitlines(keepends=True)

    reader = csv.reader(all_lines(), delimiter=_delimiter(first))
    try:
        for row in reader:
            if any(cell.strip() for cell in row):
                yield row
    except csv.Error as error:
        raise ReadError(f"{source.label}: line {reader.line_num} is no row of a table ({error})") from error


def _unique(header: list[str]) -> list[str]:
    """Names of columns, those that repeat numbered."""
    seen: dict[str, int] = {}
    names = []
    for index, name in enumerate(header):
        name = name.strip() or f"column {index + 1}"
        seen[name] = seen.get(name, 0) + 1
        names.append(name if seen[name] == 1 else f"{name}.{seen[name]}")
    return names
