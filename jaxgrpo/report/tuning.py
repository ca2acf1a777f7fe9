"""Reports and pictures of recommendations."""

from typing import TYPE_CHECKING, Any

import numpy as np

from jaxgrpo.logs.run import Run
from jaxgrpo.report import tables
from jaxgrpo.report.blocks import Block, Bullets, Column, Heading, Pairs, Paragraph, Table, Title
from jaxgrpo.report.numbers import interval, number, setting
from jaxgrpo.tuning.search import COORDINATES
from jaxgrpo.tuning.tune import Recommendation, Side

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from jaxgrpo.theory.hyperparameters import Hyperparameters

_TITLES = {
    "trl": "TRL (GRPOConfig)",
    "verl": "verl (overrides)",
    "openrlhf": "OpenRLHF",
    "nemo-rl": "NeMo-RL",
}
_ASSUMED = "Intervals hold 90 % of what the fit leaves open; they do not hold what the model leaves out."


def _share(value: float) -> str:
    return f"{100.0 * value:.0f} %"


def _with_interval(values: tuple[float, float, float]) -> str:
    return f"{number(values[0])} {interval(values[1], values[2])}"


def _same(a: "Hyperparameters", b: "Hyperparameters", name: str) -> bool:
    return bool(np.isclose(float(getattr(a, name)), float(getattr(b, name)), rtol=1e-6))


def _settings(a: Recommendation) -> Table:
    """Settings as they were run beside the recommended ones."""
    rows, marks = [], set()
    for name, title in tables.SETTINGS.items():
        values = [tables.setting_of(side.hyperparameters, name) for side in (a.current, a.recommended)]
        neutral = name in ("epochs_per_rollout", "async_lag", "staleness")
        changed = not _same(a.current.hyperparameters, a.recommended.hyperparameters, name)
        if neutral and not changed and values[0] in ("0", "1"):
            continue
        if changed:
            marks.add(len(rows))
        rows.append([title, *values])
    if (a.warmup, a.final_rate) != (0.0, 1.0):
        rows.append(["warm-up, share of the run", "", _share(a.warmup)])
        rows.append(["rate at the end over its peak", "", _share(a.final_rate)])
    return Table([Column("setting", "left"), Column("as run"), Column("recommended")], rows, frozenset(marks))


def _outcomes(a: Recommendation) -> Table:
    """What is predicted of both."""
    sides = (a.current, a.recommended)
    rows = [
        ["expected reward at the end of the budget", *(_with_interval(s.reward) for s in sides)],
        ["optimizer steps that the budget pays for", *(setting(round(s.steps, 1)) for s in sides)],
    ]
    if a.target is not None:
        reach = [_with_interval(s.cost) if s.cost is not None else "" for s in sides]
        rows.append([f"cost to reach {number(a.target)} ({a.prices.unit})", *reach])
    rows.append(["stable under this share of the posterior", *(_share(s.stable) for s in sides)])
    rows.append(["margin to instability (at worst 1 in 20)", *(_margin(s) for s in sides)])
    return Table([Column("outcome", "left", wraps=True), Column("as run"), Column("recommended")], rows)


def _margin(side: Side) -> str:
    return f"{_share(side.margin[0])} ({_share(side.margin[1])})"


def _frontier(a: Recommendation) -> list[Block]:
    f = a.frontier
    if f is None or not a.supported:
        return []
    place = COORDINATES.index
    outcome = "expected\nreward" if a.goal == "reward" else "cost" if a.goal == "cost" else "objective"
    shown = (lambda v: number(float(np.exp(-v)))) if a.goal == "cost" else (lambda v: number(float(v)))
    rows = [
        [
            f"{b / a.budget:g} x",
            shown(v),
            number(float(s[place("learning_rate")]), 2),
            setting(round(float(s[place("group_size")]), 1)),
            setting(round(float(s[place("minibatches_per_rollout")] * s[place("epochs_per_rollout")]), 1)),
        ]
        for b, v, s in zip(f.budget, f.outcome, f.settings, strict=True)
    ]
    by_rate = [
        [f"{100 * h:.0f} %", shown(v), number(float(s[place("learning_rate")]), 2)]
        for h, v, s in zip(f.headroom, f.outcome_by_headroom, f.settings_by_headroom, strict=True)
    ]
    return [
        Heading("What more or less would buy"),
        Table([Column("budget"), Column(outcome), Column("learning\nrate"), Column("G"), Column("K")], rows),
        Table([Column("of the allowed\nlearning rate"), Column(outcome), Column("learning\nrate")], by_rate),
    ]


def _sensitivities(a: Recommendation) -> list[Block]:
    if not a.sensitivities or not a.supported:
        return []
    words = {
        "minibatches_per_rollout": "mini-batches per set of rollouts",
        "epochs_per_rollout": "passes over them",
    }
    what = (
        "cost"
        if a.goal == "cost"
        else "reward, of the way from start to plateau"
        if a.goal == "reward"
        else "objective"
    )
    ranked = sorted(a.sensitivities.items(), key=lambda item: -abs(item[1]))
    rows = [(words.get(n, n.replace("_", " ")), f"{100 * 0.0953 * v:+.2f} %") for n, v in ranked]
    return [Heading(f"One setting a tenth larger, all else equal: change of the {what}"), Pairs(rows)]


def tune_report(a: Recommendation, run: Run, framework: str | None) -> list[Block]:
    """A recommendation as a report.

    Args:
        a: The recommendation.
        run: The run that it starts from.
        framework: Training framework to write the settings for.

    Returns:
        The blocks.
    """
    budget = f"{number(a.budget)} {a.prices.unit}"
    if not a.supported:
        blocks: list[Block] = [
            Title(run.name, "no recommendation"),
            Paragraph(f"This log does not support advice: {a.refusal}."),
        ]
        return [*blocks, *_next(a), *tables.notes([*a.notes, *run.warnings])]
    blocks = [
        Title(run.name, f"settings for the next run, budget {budget}"),
        _settings(a),
        _outcomes(a),
        Paragraph(_ASSUMED),
    ]
    blocks += [Heading("Why"), Bullets(a.reasons)] if a.reasons else []
    blocks += [Heading("The advice fails if there is"), Bullets(a.caveats)] if a.caveats else []
    blocks += [*_sensitivities(a), *_frontier(a)]
    if framework is not None:
        values = a.to_framework(framework)
        rows = [(name, value if isinstance(value, str) else _typed(value)) for name, value in values.items()]
        blocks += [Heading(f"Settings for {_TITLES.get(framework, framework)}"), Pairs(rows)]
    return [*blocks, *_next(a), *tables.notes([*a.notes, *run.warnings])]


def _typed(value: Any) -> str:
    return str(value) if isinstance(value, bool | int | list | dict | None) else setting(float(value))


def _next(a: Recommendation) -> list[Block]:
    if a.next_run is None:
        return []
    every = [(*a.next_run.change, a.next_run.gain), *a.next_run.alternatives]
    rows = [
        [n.replace("_", " "), "" if n.startswith("the same") else setting(float(f"{v:.3g}")), number(g, 2)]
        for n, v, g in every[:5]
    ]
    words = (
        "Single changes of the settings that were run, by how much their outcome would tell about the task "
        "(expected information in nats, over as long a run)."
    )
    table = Table([Column("change", "left"), Column("to"), Column("information")], rows)
    return [Heading("What to run to learn more"), Paragraph(words), table]


def of_recommendation(a: Recommendation, framework: str | None) -> dict[str, Any]:
    """A recommendation as plain numbers, for JSON."""
    settings = a.to_framework(framework) if framework is not None and a.supported else None
    return {**a.as_dict(), "framework": framework, "settings": settings}


def picture(a: Recommendation, run: Run | None = None) -> "Figure":
    """Predicted courses of both settings, and what more or less would buy.

    Args:
        a: The recommendation.
        run: The run that it starts from, whose rewards are drawn.

    Returns:
        The figure.
    """
    from jaxgrpo.report import plots

    return plots.tuning(a, run)
