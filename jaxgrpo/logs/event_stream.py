"""Event streams: one JSON object per event, several events per optimizer step, numbers in `metrics`."""

from collections.abc import Mapping, Sequence
from typing import Any

from jaxgrpo.errors import ReadError
from jaxgrpo.logs.columns import REWARD, normal
from jaxgrpo.logs.source import Source
from jaxgrpo.logs.table import Table, flatten

_STEPS = ("optimizer_step", "global_step", "step", "iters", "iteration")


def looks_like(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether most objects are events with metrics."""
    first = rows[:50]
    events = sum(isinstance(row.get("event"), str) and isinstance(row.get("metrics"), dict) for row in first)
    return 2 * events > len(first)


def read(rows: Sequence[Mapping[str, Any]], source: Source) -> list[Table]:
    """Gather the events of each training step.

    The event that carries the reward makes the row; the events that led to it, those of the same partition
    where there are partitions, give their means under names such as
    `advantage_done/zero_advantage_group_ratio`.

    Args:
        rows: The events.
        source: The log.

    Returns:
        One table.

    Raises:
        ReadError: If no event carries a reward.
    """
    table = Table(source.name, "event-stream", "rollout")
    pending: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        event, metrics = row.get("event"), row.get("metrics")
        if not isinstance(event, str) or not isinstance(metrics, Mapping):
            continue
        numbers = flatten(metrics)
        partition = str(row.get("partition_id"))
        if numbers.get("num_generations", 0.0) >= 1.0:
            table.known.setdefault("group_size", numbers["num_generations"])
        if any(normal(name) in REWARD for name in numbers):
            result = dict(numbers)
            for name, values in pending.pop(partition, {}).items():
                result.setdefault(name, sum(values) / len(values))
            step = next((numbers[name] for name in _STEPS if name in numbers), None)
            if step is not None:
                result["step"] = step
            version = flatten({"policy_version": row.get("policy_version")})
            table.add(result | version)
        else:
            gathered = pending.setdefault(partition, {})
            for name, value in numbers.items():
                gathered.setdefault(f"{event}/{name}", []).append(value)
    if table.rows == 0:
        raise ReadError(f"{source.label}: is a stream of events, but none of them carries a reward")
    table.notes.append(f"{len(rows)} events make {table.rows} rows, one for each event with a reward")
    return [table]
