"""One JSON document with many runs: campaigns, sweeps, ablations."""

from collections.abc import Mapping, Sequence
from typing import Any

from jaxgrpo.logs.columns import REWARD, normal
from jaxgrpo.logs.source import Source
from jaxgrpo.logs.table import Table, number, records

_TRACES = (
    "reward_trace reward_history rewards reward_curve train_rewards mean_rewards reward_log rewards_per_step "
    "reward_per_step reward_series"
).split()
_NAMES = ("tag", "run_name", "name", "label", "run_id", "id", "experiment", "config_name", "title")
_KNOWN = {
    "learning_rate": "learning_rate",
    "lr": "learning_rate",
    "group_size": "group_size",
    "num_generations": "group_size",
    "G": "group_size",
}
_MAX_NODES = 200_000


def _log_of(run: Mapping[str, Any]) -> Sequence[Mapping[str, Any]] | None:
    """The list of rows with a reward that an object holds."""
    for value in run.values():
        if isinstance(value, list) and len(value) > 1:
            rows = [row for row in value if isinstance(row, dict)]
            with_reward = [
                row
                for row in rows
                if any(normal(str(n)) in REWARD and number(v) is not None for n, v in row.items())
            ]
            if 2 * len(with_reward) > len(value):
                return rows
    return None


def _trace_of(run: Mapping[str, Any]) -> list[float] | None:
    """The bare list of rewards that an object holds."""
    for name, value in run.items():
        if normal(str(name)) in _TRACES and isinstance(value, list) and len(value) > 1:
            numbers = [number(item) for item in value if not isinstance(item, bool)]
            kept = [item for item in numbers if item is not None]
            if 2 * len(kept) > len(value):
                return kept
    return None


def is_run(value: Any) -> bool:
    """Whether an object holds a run's rewards as a list, or its rows."""
    return isinstance(value, dict) and (_trace_of(value) is not None or _log_of(value) is not None)


def read(document: Any, source: Source) -> list[Table]:
    """Find the runs in a nested document.

    Args:
        document: The parsed file.
        source: The log.

    Returns:
        One table for each run, none twice; empty if there are none.
    """
    tables: list[Table] = []
    seen: dict[tuple[float, ...], str] = {}
    copies = 0
    stack: list[tuple[Any, str]] = [(document, "")]
    visited = 0
    while stack and visited < _MAX_NODES:
        value, place = stack.pop()
        visited += 1
        if isinstance(value, dict):
            rows, trace = _log_of(value), _trace_of(value)
            if rows is not None or trace is not None:
                table = _table(value, rows, trace, _name(value, place, source), source)
                rewards = tuple(_rewards(table))
                if rewards in seen:
                    copies += 1
                else:
                    seen[rewards] = table.name
                    tables.append(table)
                continue
            stack += [(inner, _join(place, str(name))) for name, inner in reversed(list(value.items()))]
        elif isinstance(value, list):
            stack += [(inner, f"{place}[{index}]") for index, inner in reversed(list(enumerate(value)))]
    _distinguish(tables)
    if copies:
        for table in tables:
            table.notes.append(f"{copies} runs that stand in the file twice are read once")
    return tables


def _join(place: str, name: str) -> str:
    return f"{place}.{name[:60]}" if place else name[:60]


def _name(run: Mapping[str, Any], place: str, source: Source) -> str:
    own = next((run[name] for name in _NAMES if isinstance(run.get(name), str) and run[name]), None)
    return own[:200] if own else place[-200:] or source.name


def _table(
    run: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]] | None,
    trace: list[float] | None,
    name: str,
    source: Source,
) -> Table:
    table = Table(name, "json", "rollout")
    if rows is not None:
        records(rows, table)
    elif trace is not None:
        table.set_columns({"reward": trace})
    for key, field in _KNOWN.items():
        value = number(run.get(key)) if not isinstance(run.get(key), bool) else None
        if value is not None and value > 0 and field not in table.known:
            table.known[field] = value
    if table.known:
        known = ", ".join(f"{field} {value:g}" for field, value in table.known.items())
        table.notes.append(f"from the run's own record: {known}")
    return table


def _rewards(table: Table) -> list[float]:
    """The reward column, to tell copies by."""
    by_normal = {normal(name): name for name in table.names}
    name = next((by_normal[alias] for alias in REWARD if alias in by_normal), None)
    return [] if name is None else table.arrays()[name].tolist()


def _distinguish(tables: list[Table]) -> None:
    """Number runs of the same name."""
    names = [table.name for table in tables]
    count: dict[str, int] = {}
    for table in tables:
        if names.count(table.name) > 1:
            count[table.name] = count.get(table.name, 0) + 1
            table.name = f"{table.name} #{count[table.name]}"
