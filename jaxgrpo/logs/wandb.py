"""What Weights & Biases exports as CSV: long histories, charts, and tables of runs (which hold no curve)."""

from collections.abc import Iterable, Sequence

from jaxgrpo.errors import ReadError
from jaxgrpo.logs.columns import normal
from jaxgrpo.logs.source import Source
from jaxgrpo.logs.table import MAX_COLUMNS, Table, number

_RUN = ("run_name", "run", "run_id", "name")
_METRIC = ("metric", "key", "metric_name", "tag", "variable")
_STEP = ("step", "_step", "global_step", "iteration")
_VALUE = ("value", "metric_value")
_RUNS_TABLE = {"name", "state", "notes", "user", "tags", "created", "runtime", "sweep"}


def is_runs_table(header: Sequence[str]) -> bool:
    """Whether a header is that of a table of runs: one row a run, configuration and last values."""
    names = {normal(name) for name in header}
    return len(names & _RUNS_TABLE) >= 5 and not names & {"step", "_step", "global_step"}


def _find(header: Sequence[str], names: Iterable[str]) -> int | None:
    keys = [name.strip().lower() for name in header]
    return next((keys.index(name) for name in names if name in keys), None)


def is_long(header: Sequence[str]) -> bool:
    """Whether a header is that of a long history: a row for each metric and step."""
    return len(header) <= 8 and all(_find(header, names) is not None for names in (_METRIC, _STEP, _VALUE))


def read_long(header: Sequence[str], rows: Iterable[Sequence[str]], source: Source) -> list[Table]:
    """Read a history with one row for each run, metric and step.

    A metric that repeats a step (once an optimizer update, say) gives as many rows of that step.

    Args:
        header: Names of the columns.
        rows: The cells below it.
        source: The log.

    Returns:
        One table for each run.

    Raises:
        ReadError: If no row has a step and a value.
    """
    metric, step, value = (_find(header, names) for names in (_METRIC, _STEP, _VALUE))
    run = _find(header, _RUN)
    assert metric is not None and step is not None and value is not None
    runs: dict[str, dict[float, dict[str, list[float]]]] = {}
    names: dict[str, set[str]] = {}
    bad = 0
    for row in rows:
        try:
            at, what, one = number(row[step]), row[metric].strip(), number(row[value])
        except IndexError:
            bad += 1
            continue
        if at is None or at != at or one is None or not what:
            bad += 1
            continue
        name = row[run].strip()[:200] if run is not None and run < len(row) else source.name
        known = names.setdefault(name, set())
        if what not in known and len(known) >= MAX_COLUMNS:
            bad += 1
            continue
        known.add(what)
        runs.setdefault(name, {}).setdefault(at, {}).setdefault(what, []).append(one)
    if not runs:
        raise ReadError(f"{source.label}: is a long table of metrics, but no row has a step and a value")
    tables = []
    for name, steps in runs.items():
        table = Table(name or source.name, "wandb", "rollout")
        for at in sorted(steps):
            values = steps[at]
            for index in range(max(len(each) for each in values.values())):
                table.add(
                    {what: each[index] for what, each in values.items() if index < len(each)} | {"step": at}
                )
        if bad:
            table.notes.append(f"{bad} rows of the table have no step or value and are left out")
        tables.append(table)
    return tables


def split_chart(table: Table) -> list[Table]:
    """Split the CSV of a chart, whose columns are `run - metric`, into one table for each run.

    Args:
        table: The columns as they are.

    Returns:
        One table for each run; empty if the table is no chart.
    """
    step = next((name for name in table.names if normal(name) in ("step", "_step", "global_step")), None)
    charts: dict[str, dict[str, str]] = {}
    for column in table.names:
        name, separator, metric = column.partition(" - ")
        if separator and not metric.endswith(("__MIN", "__MAX")) and metric != "_step":
            charts.setdefault(name, {})[metric] = column
    others = [
        c for c in table.names if " - " not in c and c != step and normal(c) not in ("_runtime", "_timestamp")
    ]
    if step is None or not charts or others:
        return []
    arrays = table.arrays()
    tables = []
    for name, metrics in charts.items():
        one = Table(name, "wandb", "rollout")
        columns = {metric: arrays[column] for metric, column in metrics.items()}
        one.set_columns({"step": arrays[step], **columns})
        tables.append(one)
    return tables
