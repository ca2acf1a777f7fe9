"""Reading training logs: the two functions that users call."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxgrpo.errors import ReadError
from jaxgrpo.logs.assemble import Options, assemble
from jaxgrpo.logs.columns import listing, near
from jaxgrpo.logs.run import Run
from jaxgrpo.logs.source import Readable, Source
from jaxgrpo.logs.table import Table
from jaxgrpo.theory.hyperparameters import Hyperparameters

MAX_FILES = 2000
"""A folder with more files than this is not searched."""


def read_run(
    path: str | Path | Readable,
    hyperparameters: Hyperparameters | Mapping[str, Any] | None = None,
    *,
    framework: str | None = None,
    columns: Mapping[str, str] | None = None,
    reward: str | None = None,
    segment: str | int = "longest",
    run: str | None = None,
    config: str | Path | None = None,
    steps_per_row: float | int | None = None,
) -> Run:
    """Read one training run.

    The format is recognised by its content, never by its name: TRL (JSON, console, TensorBoard), notebooks,
    verl (console, TensorBoard, CSV), NeMo-RL, tinker-cookbook, ROLL, Weights & Biases exports, event streams,
    plain CSV, JSON and JSON lines, and consoles that print a reward on each line.

    Args:
        path: A file, a folder that holds one run, a gzip of a file, `"-"` for standard input, or an open
            file.
        hyperparameters: What the caller knows; overrides what the log says. A mapping of some fields of
            `Hyperparameters` overrides those alone.
        framework: The framework that wrote the log, or the format (`"csv"`, `"jsonl"`...), where it is not
            recognised.
        columns: Which column plays which part: `{"reward": "my_score", "step": "iteration", "kl": "my_kl"}`.
        reward: Short for `columns={"reward": reward}`.
        segment: Which of several sessions of training in one file: `"longest"`, `"first"`, `"last"`, or its
            number from 1.
        run: Name of one of several runs in a file or folder.
        config: The framework's configuration file, for the hyperparameters.
        steps_per_row: Optimizer steps per unit of the log's step, where it is known better.

    Returns:
        The run; `.warnings` tells each decision that was taken.

    Raises:
        ReadError: If the log cannot be read, has no reward, or holds several runs and none was chosen.
    """
    if segment == "all":
        raise ReadError("segment='all' gives several runs; call read_runs")
    options = _options(hyperparameters, framework, columns, reward, segment, run, config, steps_per_row)
    runs = _read(path, options)
    if len(runs) > 1:
        label = path if isinstance(path, str | Path) else "the log"
        names = listing([one.name for one in runs])
        raise ReadError(
            f"{label}: holds {len(runs)} runs; choose one with run=NAME or call read_runs; there are: {names}"
        )
    return runs[0]


def read_runs(
    paths: str | Path | Readable | Sequence[str | Path | Readable],
    hyperparameters: Hyperparameters | Mapping[str, Any] | None = None,
    *,
    framework: str | None = None,
    columns: Mapping[str, str] | None = None,
    reward: str | None = None,
    segment: str | int = "all",
    run: str | None = None,
    config: str | Path | None = None,
    steps_per_row: float | int | None = None,
) -> list[Run]:
    """Read every training run in files or folders.

    Args:
        paths: One path or several, as for `read_run`.
        hyperparameters: As for `read_run`.
        framework: As for `read_run`.
        columns: As for `read_run`.
        reward: As for `read_run`.
        segment: As for `read_run`; `"all"` gives each session of training as a run of its own.
        run: As for `read_run`.
        config: As for `read_run`.
        steps_per_row: As for `read_run`.

    Returns:
        The runs, in the order of the files.

    Raises:
        ReadError: If a log cannot be read or has no reward.
    """
    options = _options(hyperparameters, framework, columns, reward, segment, run, config, steps_per_row)
    several = list(paths) if isinstance(paths, Sequence) and not isinstance(paths, str) else [paths]
    if not several:
        raise ReadError("there is no log to read: the list of paths is empty")
    return [one for path in several for one in _read(path, options)]  # pyright: ignore[reportArgumentType]


def _options(
    hyperparameters: Hyperparameters | Mapping[str, Any] | None,
    framework: str | None,
    columns: Mapping[str, str] | None,
    reward: str | None,
    segment: str | int,
    run: str | None,
    config: str | Path | None,
    steps_per_row: float | int | None,
) -> Options:
    chosen = dict(columns or {})
    if reward is not None:
        if chosen.get("reward", reward) != reward:
            raise ReadError(f"reward is {reward!r}, but columns say {chosen['reward']!r}; give one of them")
        chosen["reward"] = reward
    return Options(hyperparameters, framework, chosen, segment, run, config, steps_per_row)


def _read(path: str | Path | Readable, options: Options) -> list[Run]:
    """Read a file or folder."""
    if isinstance(path, str | Path) and str(path) != "-":
        try:
            is_folder = Path(path).is_dir()
        except (OSError, ValueError) as error:
            raise ReadError(f"{str(path)[:200]!r}: is no path ({' '.join(str(error).split())})") from error
        if is_folder:
            return _read_folder(Path(path), options)
    source = Source(path)
    return _read_tables(read_tables(source, options.framework), source, options)


def _read_tables(tables: list[Table], source: Source, options: Options) -> list[Run]:
    """Assemble the runs of one file, one table each."""
    if options.run is not None:
        tables = _pick(tables, options.run, source.label)
    if len(tables) == 1:
        return assemble(tables[0], source.label, source.path, options)
    runs, reasons = [], []
    for table in tables:
        try:
            runs += assemble(table, f"{source.label} ({table.name})", source.path, options)
        except ReadError as error:
            reasons.append(error)
    if not runs:
        raise reasons[0]
    return runs


def _pick(tables: list[Table], name: str, label: str) -> list[Table]:
    """The table of the run that was asked for."""
    names = [table.name for table in tables]
    if name in names:
        return [tables[names.index(name)]]
    raise ReadError(f"{label}: there is no run {name!r}; {near(name, names)}")


def read_tables(source: Source, framework: str | None = None) -> list[Table]:
    """Recognise the format of a log and take its columns, one table for each run in it.

    Args:
        source: The log.
        framework: Framework or format, where the caller knows better.

    Returns:
        The tables; at least one.

    Raises:
        ReadError: If the log is of no known format.
    """
    from jaxgrpo.logs.detection import read_any

    try:
        tables = read_any(source, framework)
    except RecursionError as error:
        raise ReadError(f"{source.label}: is nested too deeply to be a training log") from error
    except MemoryError as error:
        raise ReadError(f"{source.label}: is too large to be read into memory") from error
    return tables


def _read_folder(folder: Path, options: Options) -> list[Run]:
    """Read every log in a folder and the folders below it."""
    found = []
    for number, path in enumerate(sorted(folder.rglob("*"))):
        if number > 10 * MAX_FILES:
            raise ReadError(f"{folder}: holds too many files to search; name the log itself")
        relative = path.relative_to(folder)
        if path.is_file() and not any(part.startswith(".") for part in relative.parts):
            found.append(path)
    if len(found) > MAX_FILES:
        raise ReadError(f"{folder}: holds {len(found)} files; name the log itself")
    runs: list[Run] = []
    skipped: list[tuple[Path, ReadError]] = []
    without_run = Options(**{**vars(options), "run": None})
    for paths in _groups(found):
        try:
            source = Source(paths[0])
            tables = read_tables(source, options.framework)
            for more in paths[1:]:
                _append(tables[0], read_tables(Source(more), options.framework)[0])
            runs += _read_tables(tables, source, without_run)
        except ReadError as error:
            skipped.append((paths[0], error))
    if not runs:
        if not found:
            raise ReadError(f"{folder}: the folder is empty")
        if len(skipped) == 1:
            raise skipped[0][1]
        telling = [error for _, error in skipped if "is of no format" not in str(error)] or [skipped[0][1]]
        raise ReadError(
            f"{folder}: none of its {len(found)} files is a training log that can be read; {telling[0]}"
        )
    runs = _without_prefixes(runs)
    names = [run.name for run in runs]
    if options.run is not None:
        if options.run not in names:
            raise ReadError(f"{folder}: there is no run {options.run!r}; {near(options.run, names)}")
        runs = [runs[names.index(options.run)]]
    if skipped:
        others = listing([path.name for path, _ in skipped], 6)
        note = f"files of the folder that are no training logs are skipped: {others}"
        runs = [_with_note(run, note) for run in runs]
    return runs


def _groups(paths: list[Path]) -> list[list[Path]]:
    """Files to be read as one: the event files that a trainer left in one folder, oldest first."""
    groups: dict[Path, list[Path]] = {}
    for path in paths:
        groups.setdefault(path.parent if "tfevents" in path.name else path, []).append(path)
    return [sorted(group, key=lambda path: path.name) for group in groups.values()]


def _append(table: Table, other: Table) -> None:
    """Put the rows of a later file after those of an earlier one."""
    offset = table.rows
    columns = other.arrays()
    for row in range(other.rows):
        table.add({name: float(values[row]) for name, values in columns.items() if not np.isnan(values[row])})
    table.breaks += [offset + b for b in other.breaks]
    table.settings = table.settings or other.settings
    table.notes += other.notes


def _without_prefixes(runs: list[Run]) -> list[Run]:
    """Leave out runs that are the beginning of another: every checkpoint keeps the log up to its step."""
    kept = []
    for index, run in enumerate(runs):
        count = len(run)
        whole = [
            other
            for position, other in enumerate(runs)
            if other.path != run.path
            and (len(other) > count or (len(other) == count and position < index))
            and np.array_equal(other.reward[:count], run.reward)
            and np.array_equal(other.logged_steps[:count], run.logged_steps)
        ]
        if not whole:
            kept.append(run)
    dropped = len(runs) - len(kept)
    if dropped:
        note = f"{dropped} logs of the folder that only hold the beginning of another, or a copy, are skipped"
        kept = [_with_note(run, note) for run in kept]
    return kept


def _with_note(run: Run, note: str) -> Run:
    from dataclasses import replace

    return replace(run, warnings=(*run.warnings, note))
