"""What a reader hands on: named columns of numbers, before anything is known of their meaning."""

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

MAX_COLUMNS = 4000
"""A log with more columns than this is not a training log; further ones are counted and left out."""


def number(value: Any) -> float | None:
    """Turn a logged value into a float.

    Args:
        value: A number, or text such as `"0.35"`, `"nan"` or `"np.float64(0.1)"`.

    Returns:
        The number, or `None` if the value is none.
    """
    if isinstance(value, float):
        return value
    if isinstance(value, bool):
        return float(value)
    if isinstance(value, int):
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf
    if isinstance(value, str):
        text = value.strip()
        if len(text) > 100:
            return None
        if text.endswith(")"):
            # Values printed by repr: np.float64(0.1), tensor(0.1, device='cuda:0').
            text = text[text.find("(") + 1 : -1].split(",", 1)[0]
        try:
            return float(text)
        except ValueError:
            return None
    return None


class Table:
    """Columns of numbers of one run, row by row.

    Rows are kept by layout, that is by the names they have, since nearly all rows of a log have the same: a
    row costs no more than its numbers.

    Args:
        name: Name of the run.
        framework: Name of the training framework or of the format.
        counts: What the step column counts: `"optimizer"` steps, or `"rollout"` batches.
    """

    def __init__(self, name: str, framework: str, counts: str = "rollout"):
        self.name = " ".join(name.split())[:200] or "run"
        self.framework = framework
        self.counts = counts
        self.rows = 0
        self.breaks: list[int] = []
        self.settings: dict[str, Any] = {}
        self.known: dict[str, float] = {}
        self.notes: list[str] = []
        self._layouts: dict[tuple[str, ...], tuple[array, array]] = {}
        self._last_names: tuple[str, ...] | None = None
        self._last = (array("q"), array("d"))
        self._whole: dict[str, np.ndarray] = {}

    def add(self, row: Mapping[str, float]) -> None:
        """Append a row; names it lacks are NaN."""
        self.add_values(tuple(row), row.values())

    def add_values(self, names: tuple[str, ...], values: Iterable[float]) -> None:
        """Append a row given by its names and as many numbers."""
        if names != self._last_names:
            self._last_names = names
            self._last = self._layouts.setdefault(names, (array("q"), array("d")))
        self._last[0].append(self.rows)
        self._last[1].extend(values)
        self.rows += 1

    def break_here(self) -> None:
        """Note that what follows belongs to another session of training."""
        if self.rows and (not self.breaks or self.breaks[-1] != self.rows):
            self.breaks.append(self.rows)

    def set_columns(self, columns: Mapping[str, Sequence[float] | np.ndarray]) -> None:
        """Put whole columns, all of one length, in place of what there is under their names."""
        for name, values in columns.items():
            self._whole[name] = np.asarray(values, dtype=np.float64)
            self.rows = len(self._whole[name])

    @property
    def names(self) -> list[str]:
        """Names of the columns, in the order in which they came."""
        names = dict.fromkeys(name for layout in self._layouts for name in layout)
        return list(names | dict.fromkeys(self._whole))

    def arrays(self) -> dict[str, np.ndarray]:
        """The columns as float64 arrays of equal length."""
        names = self.names
        if len(names) > MAX_COLUMNS:
            self.notes.append(
                f"columns after the first {MAX_COLUMNS} are left out: {len(names) - MAX_COLUMNS}"
            )
        result = {name: np.full(self.rows, np.nan) for name in names[:MAX_COLUMNS]}
        for layout, (rows, values) in self._layouts.items():
            if layout:
                block = np.frombuffer(values, dtype=np.float64).reshape(len(rows), len(layout))
                index = np.frombuffer(rows, dtype=np.int64)
                for position, name in enumerate(layout):
                    if name in result:
                        result[name][index] = block[:, position]
        return result | {name: self._whole[name] for name in self._whole if name in result}


def records(rows: Iterable[Mapping[str, Any]], table: Table) -> Table:
    """Fill a table from dictionaries; nested dictionaries give names joined by a slash.

    Args:
        rows: One dictionary per logged row.
        table: Where to put them.

    Returns:
        The table.
    """
    for row in rows:
        table.add(flatten(row))
    return table


def flatten(row: Mapping[str, Any], depth: int = 4) -> dict[str, float]:
    """Numbers of a dictionary and of the dictionaries within it, by names joined by a slash."""
    result: dict[str, float] = {}
    for name, value in row.items():
        if isinstance(value, Mapping):
            if depth > 0:
                for inner, item in flatten(value, depth - 1).items():
                    result.setdefault(f"{name}/{inner}", item)
            continue
        as_number = number(value)
        if as_number is not None:
            result[str(name)] = as_number
    return result
