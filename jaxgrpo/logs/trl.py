"""TRL, and what builds on it (Unsloth, ms-swift): trainer state, and dictionaries printed to the console."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxgrpo.errors import ReadError
from jaxgrpo.logs.columns import normal
from jaxgrpo.logs.records import framework_of, read_records
from jaxgrpo.logs.source import Source
from jaxgrpo.logs.table import Table, number

_DICT = re.compile(r"\{[^{}]*\}")
_PAIR = re.compile(
    r"""(?P<quote>['"])(?P<name>[^'"]{1,200})(?P=quote)\s*:\s*(?:'(?P<single>[^']*)'|"(?P<double>[^"]*)"|(?P<bare>[^,}\s]+))"""
)
# A dictionary with a reward is a training row only beside one of these: environments print rewards as well.
_MARKS = ("reward_std", "loss", "grad_norm", "learning_rate", "kl", "completion_length", "num_tokens")
_BANNER = (
    ("per_device_train_batch_size", re.compile(r"[Bb]atch size per device = ([\d,]+)")),
    ("gradient_accumulation_steps", re.compile(r"Gradient [Aa]ccumulation steps = ([\d,]+)")),
    ("max_steps", re.compile(r"Total (?:optimization )?steps = ([\d,]+)")),
    ("num_generations", re.compile(r"batch size of \d+ to the `num_generations` of (\d+)")),
)
_FLAGS = re.compile(
    r"--(learning[-_]rate|num[-_]generations|gradient[-_]accumulation[-_]steps|per[-_]device[-_]train[-_]batch[-_]size|"
    r"num[-_]iterations|steps[-_]per[-_]generation|adam[-_]beta1|beta)[ =]+([-+.\deE]+)"
)
_ROUND = (1, 2, 5, 10, 20, 25, 50, 100, 200, 250, 500, 1000)
# Bars over optimizer steps count in iterations; those over data sets in examples.
_BAR = re.compile(r"(\d{1,9})/(\d{1,9}) \[[\d:?]{1,12}<[^\]]{0,30}(?:it/s|s/it)")


def read_state(document: Mapping[str, Any], source: Source) -> list[Table]:
    """Read a `trainer_state.json`.

    Args:
        document: The parsed file.
        source: The log.

    Returns:
        One table.

    Raises:
        ReadError: If the history holds no rows.
    """
    rows = [row for row in document["log_history"] if isinstance(row, dict)]
    if not rows:
        raise ReadError(f"{source.label}: its log_history is empty; nothing was logged before it was saved")
    names: set[str] = set()
    for row in rows[:200]:
        names.update(row)
    tables = read_records(rows, source.name, framework_of(names) or "trl")
    for table in tables:
        table.counts = "optimizer"
    mark_sessions(rows, tables)
    return tables


def mark_sessions(rows: Sequence[Mapping[str, Any]], tables: list[Table]) -> None:
    """Note where a trainer's closing summary ends a session, for rows that have no step."""
    if len(tables) != 1 or any("step" in row for row in rows):
        return
    for index, row in enumerate(rows):
        if "train_runtime" in row and index + 1 < len(rows):
            tables[0].breaks.append(index + 1)


def parse_dicts(line: str) -> list[dict[str, float]]:
    """The flat dictionaries of numbers printed within a line; parsed, never evaluated.

    Args:
        line: A line of console output, progress bars and all.

    Returns:
        One dictionary of names and numbers for each that is found.
    """
    found = []
    for text in _DICT.findall(line):
        row = {}
        for match in _PAIR.finditer(text):
            value = number(match["single"] or match["double"] or match["bare"] or "")
            if value is not None:
                row[match["name"]] = value
        if row:
            found.append(row)
    return found


class ConsoleReader:
    """Collects TRL's rows, settings and progress from console output, line by line."""

    def __init__(self, name: str):
        self.table = Table(name, "trl", "optimizer")
        self.trained = 0
        self._rows_here = 0
        self._last_is_rest = False
        self._bars: dict[int, int] = {}
        self._strides: list[tuple[int, int, dict[int, int]]] = []

    def feed(self, line: str) -> bool:
        """Take a line; tell whether it held a row."""
        if "/" in line and "<" in line:
            for match in _BAR.finditer(line):
                done, total = int(match[1]), int(match[2])
                self._bars[total] = max(done, self._bars.get(total, 0))
        if "= " in line or "--" in line or "num_generations" in line:
            self._settings(line)
        if "{" not in line:
            return False
        found = False
        for row in parse_dicts(line):
            plain = {normal(name).removeprefix("train_") for name in row}
            if "reward" in plain and any(mark in plain for mark in _MARKS):
                self.table.add(row)
                self.trained += 1
                found = True
                if "train_runtime" in row:
                    # What was left over since the last row is logged with the closing summary.
                    self._last_is_rest = True
                    self._end_session()
                else:
                    self._rows_here += 1
            elif "train_runtime" in row:
                self._end_session()
                found = True
            elif any(name.startswith("eval_") for name in row):
                self.table.add(row)
                found = True
        return found

    def _settings(self, line: str) -> None:
        """Settings printed by Unsloth's banner or given on a command line."""
        for name, pattern in _BANNER:
            match = pattern.search(line)
            if match:
                self.table.settings[name] = int(match[1].replace(",", "")[:12] or 0)
        for match in _FLAGS.finditer(line):
            value = number(match[2])
            if value is not None:
                name = match[1].replace("-", "_")
                self.table.settings[name] = int(value) if value.is_integer() and name != "beta" else value

    def _end_session(self) -> None:
        self._strides.append((self.table.rows, self._rows_here, self._bars))
        self.table.break_here()
        self._rows_here, self._bars = 0, {}

    @property
    def has_rows(self) -> bool:
        """Whether a training row has been found."""
        return self.trained > 0

    def finish(self) -> list[Table]:
        """The table of what was collected; empty if there was no training row."""
        if self.trained == 0:
            return []
        if self._rows_here:
            self._strides.append((self.table.rows, self._rows_here, self._bars))
        while self.table.breaks and self.table.breaks[-1] >= self.table.rows:
            self.table.breaks.pop()
        names = {normal(name) for name in self.table.names}
        if not names & {"step", "global_step"} and len([s for s in self._strides if s[1]]) == 1:
            self._steps_from_bars()
        max_steps = self.table.settings.pop("max_steps", None)
        if self.table.settings and max_steps is not None:
            self.table.settings["max_steps"] = max_steps
        return [self.table]

    def _steps_from_bars(self) -> None:
        """Give rows the steps that the progress bar implies, where only one stride agrees with it."""
        _, rows, bars = next(stride for stride in self._strides if stride[1])
        totals = [total for total, done in bars.items() if done >= rows]
        planned = int(self.table.settings.get("max_steps", 0))
        if totals:
            done = bars[planned if planned in totals else max(totals, key=lambda total: (bars[total], total))]
        else:
            done = planned
        strides = [s for s in range(max(done // (rows + 1), 1), done // rows + 1) if done // s == rows]
        # A few rows leave several strides possible, of which a round one was chosen.
        strides = strides if len(strides) == 1 else [stride for stride in strides if stride in _ROUND]
        if done < rows or len(strides) != 1:
            return
        stride = strides[0]
        reward = next(n for n in self.table.names if normal(n) in ("reward", "train_reward"))
        count = np.cumsum(~np.isnan(self.table.arrays()[reward]))
        steps = np.maximum(count, 1.0) * stride
        if self._last_is_rest and count[-1] > rows:
            steps[-1] = done
        self.table.set_columns({"step": steps})
        self.table.notes.append(
            f"the rows have no step: the progress bar shows {done} optimizer steps for {rows} rows, "
            f"so {stride} a row"
        )
