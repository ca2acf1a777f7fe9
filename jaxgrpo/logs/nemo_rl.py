"""NeMo-RL's metrics: `{metric: {step: value}}`."""

from collections.abc import Mapping
from typing import Any

from jaxgrpo.logs.columns import REWARD, listing, normal
from jaxgrpo.logs.records import framework_of
from jaxgrpo.logs.source import Source
from jaxgrpo.logs.table import Table, number


def looks_like(document: Mapping[str, Any]) -> bool:
    """Whether most entries map steps to numbers."""
    values = list(document.values())[:200]
    by_step = sum(_is_by_step(value) for value in values)
    return by_step >= 2 and 2 * by_step > len(values)


def _is_by_step(value: Any) -> bool:
    if not isinstance(value, dict) or not value:
        return False
    return all(_step(name) is not None for name in list(value)[:20])


def _step(name: Any) -> float | None:
    text = str(name)
    return float(text) if len(text) < 16 and text.isdecimal() and text.isascii() else None


def read(document: Mapping[str, Any], source: Source) -> list[Table]:
    """Read NeMo-RL's metrics.

    Metrics whose steps are not those of training (the hardware monitor counts seconds) are left out.

    Args:
        document: The parsed file.
        source: The log.

    Returns:
        One table.
    """
    series: dict[str, dict[float, float]] = {}
    for name, values in document.items():
        if not _is_by_step(values):
            continue
        points = {}
        for key, value in values.items():
            step, as_number = _step(key), number(value)
            if step is not None and as_number is not None:
                points[step] = as_number
        if points:
            series[str(name)] = points
    by_normal = {normal(name): name for name in series}
    reward = next((by_normal[alias] for alias in REWARD if alias in by_normal), None)
    table = Table(source.name, framework_of(series) or "json", "rollout")
    kept = series
    if reward is not None:
        own = set(series[reward])
        kept = {n: p for n, p in series.items() if own.issuperset(p) or n.startswith(("validation/", "val/"))}
        others = [name for name in series if name not in kept]
        if others:
            table.notes.append(f"metrics on a step of their own are left out: {listing(others, 4)}")
    steps = sorted({step for points in kept.values() for step in points})
    for step in steps:
        row = {name: points[step] for name, points in kept.items() if step in points}
        table.add(row | {"step": step})
    return [table]
