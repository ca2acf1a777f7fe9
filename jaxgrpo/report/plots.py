"""Pictures of runs, fits and predictions; each function returns a matplotlib `Figure`.

The figures are made without pyplot, so that nothing global is touched: no backend is chosen, no window opens.
"""

import math
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from jaxgrpo.inference.problem import smooth
from jaxgrpo.report.numbers import interval, number, setting
from jaxgrpo.report.tables import SETTINGS, distinct_names, varied_settings
from jaxgrpo.report.text import clean

if TYPE_CHECKING:
    from jaxgrpo.inference.fit import Fit
    from jaxgrpo.inference.forecast import Forecast
    from jaxgrpo.logs.run import Run
    from jaxgrpo.report.scenarios import Scenario
    from jaxgrpo.simulation.simulate import Ensemble
    from jaxgrpo.theory.hyperparameters import Hyperparameters
    from jaxgrpo.theory.task import Task
    from jaxgrpo.tuning.tune import Recommendation

# Okabe and Ito's palette, which all kinds of colour vision tell apart.
_DATA, _SMOOTHED, _FIT, _PLATEAU, _RATE = "#8a8a8a", "#222222", "#0072B2", "#D55E00", "#009E73"
MOST_PANELS = 24
# Bands of more predictions than this would hide one another.
_MOST_BANDS = 4
_CHANNELS = (
    "reward_std",
    "zero_spread",
    "kl",
    "entropy",
    "length",
    "grad_norm",
    "learning_rate",
    "eval_reward",
)


def new_figure(width: float | int, height: float | int) -> Figure:
    """A figure that belongs to nobody, of a size in inches."""
    figure = Figure(figsize=(width, height), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _escape(text: str) -> str:
    """Keep matplotlib from reading a name as mathematics."""
    return clean(text).replace("$", r"\$")


def _short(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def _tidy(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8, color="#999999")
    axes.spines[["left", "bottom"]].set_color("#999999")


def _caption(figure: Figure, text: str, width: int) -> None:
    lines = "\n".join(_escape(line) for line in textwrap.wrap(text, width))
    figure.supxlabel(lines, x=0.01, ha="left", fontsize=7.5, color="#555555")


def _step_label(run: "Run") -> str:
    if run.steps_per_row == 1.0:
        return "step of the log"
    return f"step of the log ({setting(run.steps_per_row)} optimizer steps each)"


def to_optimizer_steps(run: "Run", logged: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """Optimizer steps at which the policy of a step of the log acted, between and beyond the logged ones too.

    Args:
        run: The run.
        logged: Steps as the log counts them.

    Returns:
        Optimizer steps.
    """
    beyond = np.maximum(logged - run.logged_steps[-1], 0.0) * run.steps_per_row
    return np.interp(logged, run.logged_steps, run.steps) + beyond


def _grid(run: "Run", points: int = 400) -> np.ndarray:
    return np.linspace(run.logged_steps[0], run.logged_steps[-1], points)


def _limits(axes: Axes, values: np.ndarray, extra: Sequence[float] = ()) -> None:
    """Show the data with some room, and what else lies within one range of it."""
    low, high = float(np.min(values)), float(np.max(values))
    reach = (high - low) or max(abs(high), 1.0)
    for value in extra:
        if math.isfinite(value):
            low, high = min(low, max(value, low - reach)), max(high, min(value, high + reach))
    room = 0.05 * (high - low or 1.0)
    axes.set_ylim(low - room, high + room)


def _draw_data(axes: Axes, run: "Run", small: bool = False) -> None:
    size = 7.0 if len(run) < 200 else 4.5 if len(run) < 1000 else 3.0
    axes.plot(
        run.logged_steps,
        run.reward,
        ".",
        color=_DATA,
        alpha=0.5,
        markersize=(0.6 * size if small else size),
        markeredgewidth=0,
        label="reward as logged",
    )
    axes.plot(run.logged_steps, smooth(run.reward), color=_SMOOTHED, linewidth=1.0, label="moving mean")


def _draw_fit(axes: Axes, fit: "Fit", index: int) -> None:
    run = fit.runs[index]
    x = _grid(run)
    steps = to_optimizer_steps(run, x)
    lower, upper = fit.band(steps, run=index)
    axes.fill_between(x, lower, upper, color=_FIT, alpha=0.25, linewidth=0)
    axes.plot(x, fit.mean(steps, run=index), color=_FIT, linewidth=2.0, label="expected reward, 90 % band")


def _draw_plateau(axes: Axes, fit: "Fit") -> list[float]:
    """The plateau with its interval, where the data tell it; returns what the picture should hold."""
    plateau = fit.parameters.get("plateau")
    if plateau is None or not plateau.identified:
        return []
    axes.axhspan(plateau.lower, plateau.upper, color=_PLATEAU, alpha=0.12, linewidth=0)
    label = f"plateau {number(plateau.value)} {interval(plateau.lower, plateau.upper)}"
    axes.axhline(plateau.value, color=_PLATEAU, linewidth=1.2, linestyle="--", label=label)
    return [plateau.lower, plateau.upper]


def title(axes: Axes, name: str, small: bool = False) -> None:
    """Title of a panel."""
    axes.set_title(_escape(_short(name, 40 if small else 90)), fontsize=9 if small else 11, loc="left")


def fan(
    axes: Axes, forecast: "Forecast", logged: Float[np.ndarray, " n"], whole: "Run", small: bool = False
) -> None:
    """Draw what was seen, the forecast as a fan of intervals and, where it is known, what then happened.

    Args:
        axes: Where to draw.
        forecast: The forecast.
        logged: Its steps as the log counts them.
        whole: The run with what happened later.
        small: Whether the panel is one of many.
    """
    run = forecast.run
    _draw_data(axes, run, small)
    later = whole.logged_steps > run.logged_steps[-1]
    if later.any():
        size = 4.0 if small else 6.0
        axes.plot(
            whole.logged_steps[later],
            whole.reward[later],
            ".",
            color=_PLATEAU,
            alpha=0.35,
            markersize=size,
            markeredgewidth=0,
            label="what then happened",
        )
    ends = []
    for level, shade in ((0.9, 0.15), (0.5, 0.3)):
        lower, upper = forecast.interval(level)
        axes.fill_between(
            logged, lower, upper, color=_FIT, alpha=shade, linewidth=0, label=f"{level:.0%} interval"
        )
        ends += [float(lower.min()), float(upper.max())]
    axes.plot(logged, forecast.quantile(0.5), color=_FIT, linewidth=2.0, label="expected reward (median)")
    axes.axvline(run.logged_steps[-1], color="#999999", linewidth=0.8, linestyle=":")
    _limits(axes, whole.reward, ends)
    axes.set_xlabel(_step_label(whole), fontsize=8 if small else 9)
    axes.set_ylabel("reward", fontsize=8 if small else 9)
    _tidy(axes)


def forecast(forecast: "Forecast") -> Figure:
    """A forecast as a fan chart; its steps are optimizer steps, shown as the log counts them.

    Args:
        forecast: The forecast.

    Returns:
        The figure.
    """
    run = forecast.run
    figure = new_figure(9.0, 4.8)
    axes = figure.add_subplot()
    order = np.argsort(forecast.steps)
    if np.any(np.diff(order) < 0):
        raise ValueError("the steps of a forecast must ascend to be drawn")
    beyond = np.maximum(forecast.steps - run.steps[-1], 0.0) / run.steps_per_row
    fan(axes, forecast, run.logged_steps[-1] + beyond, run)
    title(axes, run.name)
    axes.legend(fontsize=8, frameon=False, loc="best")
    return figure


def _scheduled_rate(run: "Run") -> tuple[np.ndarray, np.ndarray] | None:
    logged = run.channels.get("learning_rate")
    if logged is None:
        return None
    known = np.isfinite(logged)
    return (run.logged_steps[known], logged[known]) if known.sum() > 1 else None


def fit(fit: "Fit") -> Figure:
    """A fit: rewards, moving mean, expected reward with its band, plateau, residuals and learning rate.

    Args:
        fit: What `jaxgrpo.fit` returned; a joint fit is shown run by run.

    Returns:
        The figure.
    """
    if len(fit.runs) > 1:
        return fits([fit])
    run = fit.run
    rate = _scheduled_rate(run)
    heights = [5.0, 1.3] + ([0.9] if rate is not None else [])
    figure = new_figure(8.0, 5.4 + (0.6 if rate is not None else 0.0))
    panels = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights, squeeze=False)[:, 0]
    main, below = panels[0], panels[1]
    _draw_data(main, run)
    _draw_fit(main, fit, 0)
    held = _draw_plateau(main, fit)
    _limits(main, run.reward, held)
    main.set_ylabel("reward")
    main.legend(frameon=False, fontsize=8, loc="best")
    main.set_title(f"{_escape(_short(run.name, 60))}: {_escape(fit.title)}", fontsize=11, loc="left")

    residuals = run.reward - fit.mean(run.steps)
    below.axhline(0.0, color=_FIT, linewidth=1.0)
    below.plot(run.logged_steps, residuals, ".", color=_DATA, alpha=0.5, markersize=3.5, markeredgewidth=0)
    below.plot(run.logged_steps, smooth(residuals), color=_SMOOTHED, linewidth=1.0)
    below.set_ylabel("residual", fontsize=9)
    if rate is not None:
        panels[2].plot(*rate, color=_RATE, linewidth=1.5)
        panels[2].set_ylim(0.0, 1.15 * max(float(rate[1].max()), 1e-30))
        panels[2].set_ylabel("learning\nrate", fontsize=9)
        panels[2].ticklabel_format(axis="y", style="sci", scilimits=(0, 0))
        panels[2].yaxis.get_offset_text().set_fontsize(8)
    panels[-1].set_xlabel(_step_label(run))
    for axes in panels:
        _tidy(axes)
    figure.align_ylabels(panels)
    caption = (
        f"R² {fit.r_squared:.3f}; of the moving mean {fit.r_squared_smoothed:.3f}; a perfect curve would "
        f"reach {fit.explained_ceiling:.3f}. Blue band: where the expected reward lies with 90 % "
        "probability, from the uncertainty of the parameters; single rewards scatter about it."
    )
    _caption(figure, caption, 118)
    return figure


def fits(fits: Sequence["Fit"]) -> Figure:
    """Several fits, or a joint one, as small pictures of one kind.

    Args:
        fits: The fits; the first 24 runs are shown.

    Returns:
        The figure.
    """
    pairs = [(one, index) for one in fits for index in range(len(one.runs))]
    shown = pairs[:MOST_PANELS]
    columns = min(len(shown), 2 if len(shown) <= 4 else 3 if len(shown) <= 9 else 4)
    rows = -(-len(shown) // columns)
    figure = new_figure(max(3.4 * columns, 6.0), 2.5 * rows + 0.7)
    panels = figure.subplots(rows, columns, squeeze=False)
    for axes in panels.flat[len(shown) :]:
        axes.set_visible(False)
    names = distinct_names([one.runs[index] for one, index in shown])
    for axes, (one, index), name in zip(panels.flat, shown, names, strict=False):
        run = one.runs[index]
        _draw_data(axes, run, small=True)
        _draw_fit(axes, one, index)
        held = _draw_plateau(axes, one)
        _limits(axes, run.reward, held)
        r_squared = one.r_squared_per_run[index]
        axes.set_title(
            f"{_escape(_short(name, 40))}\n{_escape(one.title)}, R² {r_squared:.3f}",
            fontsize=8,
            loc="left",
        )
        _tidy(axes)
    figure.supylabel("reward", fontsize=9)
    caption = (
        "Against the step of each log. Dots: rewards as logged; black: moving mean; blue: expected reward "
        "with its 90 % band; orange: plateau with its 90 % interval."
    )
    if len(pairs) > len(shown):
        caption += f" The first {len(shown)} of {len(pairs)} runs."
    _caption(figure, caption, 60 * columns)
    return figure


def _styles(scenarios: Sequence["Scenario"]) -> list[tuple[Any, str]]:
    """Colour by the first setting in which predictions differ, kind of line by all others together."""
    varied = varied_settings(scenarios)
    values = [[float(getattr(one.hyperparameters, name)) for name in varied] or [0.0] for one in scenarios]
    first = sorted({own[0] for own in values})
    others = sorted({tuple(own[1:]) for own in values})
    colours = colormaps["viridis"](np.linspace(0.0, 0.85, len(first)))
    kinds = ("-", "--", "-.", ":")
    return [
        (colours[first.index(own[0])], kinds[others.index(tuple(own[1:])) % len(kinds)]) for own in values
    ]


def _window(scenario: "Scenario") -> tuple[float, float]:
    """Rewards worth showing: between start and plateau, and once that range beyond either."""
    ends = sorted((float(scenario.mean[0]), scenario.plateau))
    reach = (ends[1] - ends[0]) or max(abs(ends[0]), 1.0)
    return ends[0] - reach, ends[1] + reach


def _length_within(scenario: "Scenario") -> int:
    """Number of points until a course leaves three times its range for good: all of them, if it does not."""
    low, high = _window(scenario)
    reach = high - low
    with np.errstate(invalid="ignore"):
        away = ~((scenario.mean > low - reach) & (scenario.mean < high + reach))
    return int(np.argmax(away)) if away[-1] else len(away)


def prediction(
    scenarios: Sequence["Scenario"], run: "Run | None" = None, title: str = "Predicted runs"
) -> Figure:
    """Predicted runs with their bands, on the rewards of the run that they were predicted from.

    Args:
        scenarios: The predicted runs.
        run: The run whose task was fitted, if there is one.
        title: Title of the picture.

    Returns:
        The figure.
    """
    figure = new_figure(8.0, 5.0)
    axes = figure.subplots()
    seen = []
    if run is not None:
        _draw_data(axes, run)
        seen.append(run.reward)
    shown = scenarios[:MOST_PANELS]
    banded = len(shown) <= _MOST_BANDS
    for one, (colour, style) in zip(shown, _styles(shown), strict=True):
        x = one.steps if run is None else run.logged_steps[0] + one.steps / run.steps_per_row
        width = 2.8 if one.is_own else 1.6
        label = _escape(one.label) + (" (as run)" if one.is_own and len(scenarios) > 1 else "")
        # A run that diverges is drawn until it leaves the picture, lest it squeeze the others into a line.
        last = max(_length_within(one), 2)
        if last < len(x):
            label += " (diverges)"
        if banded:
            axes.fill_between(
                x[:last], one.lower[:last], one.upper[:last], color=colour, alpha=0.15, linewidth=0
            )
        axes.plot(x[:last], one.mean[:last], color=colour, linestyle=style, linewidth=width, label=label)
        low, high = _window(one)
        seen.append(np.clip(one.mean[:last], low, high))
        if banded:
            seen += [np.clip(one.lower[:last], low, high), np.clip(one.upper[:last], low, high)]
    _limits(axes, np.concatenate(seen))
    axes.set_xlabel("optimizer step" if run is None else _step_label(run))
    axes.set_ylabel("reward")
    axes.set_title(_escape(_short(title, 80)), fontsize=11, loc="left")
    outside = len(shown) > 6
    axes.legend(
        frameon=False,
        fontsize=8,
        loc="upper left" if outside else "best",
        bbox_to_anchor=(1.0, 1.0) if outside else None,
    )
    _tidy(axes)
    if not any(np.any(one.upper > one.lower) for one in shown):
        caption = "Expected rewards."
    elif banded:
        what = "its gradient noise" if run is None else "what the fit leaves open"
        level = 100 * scenarios[0].level
        caption = (
            f"Band: where the expected reward of such a run lies with {level:.0f} % probability ({what})."
        )
    else:
        caption = "Expected rewards; the table gives their bands at the end."
    if len(scenarios) > len(shown):
        caption += f" The first {len(shown)} of {len(scenarios)} predictions."
    _caption(figure, caption, 118)
    return figure


def tuning(recommendation: "Recommendation", run: "Run | None" = None) -> Figure:
    """Predicted courses of the recommended settings and of those that were run, and what more or less would buy.

    Args:
        recommendation: The recommendation.
        run: The run that it starts from, whose rewards are drawn.

    Returns:
        The figure.
    """
    a = recommendation
    several = a.supported and a.frontier is not None
    figure = new_figure(11.0 if several else 8.0, 4.8)
    axes = figure.add_subplot(1, 2, 1) if several else figure.subplots()
    unit = a.prices.unit
    seen: list[np.ndarray] = []
    if run is not None:
        price = float(a.prices.per_step(a.current.hyperparameters))
        spent = run.steps * price
        keep = spent <= 1.05 * a.budget
        axes.plot(
            spent[keep],
            run.reward[keep],
            ".",
            color=_DATA,
            markersize=3,
            alpha=0.6,
            label="rewards as logged",
        )
        seen.append(run.reward[keep])
    sides = [(a.predicted_current, a.current, "as run", _SMOOTHED)]
    if a.supported:
        sides.append((a.predicted, a.recommended, "recommended", _FIT))
    for outlook, side, label, colour in sides:
        x = outlook.steps * float(a.prices.per_step(side.hyperparameters))
        axes.fill_between(x, outlook.lower, outlook.upper, color=colour, alpha=0.15, linewidth=0)
        axes.plot(x, outlook.mean, color=colour, linewidth=1.8, label=label)
        seen += [outlook.lower, outlook.upper]
    if a.target is not None:
        axes.axhline(a.target, color=_PLATEAU, linewidth=1.0, linestyle="--", label="target")
    _limits(axes, np.concatenate(seen))
    axes.set_xlabel(f"spent ({unit})")
    axes.set_ylabel("reward")
    axes.legend(frameon=False, fontsize=8, loc="best")
    title(axes, "no recommendation" if not a.supported else "predicted courses", small=False)
    _tidy(axes)
    if several and a.frontier is not None:
        other = figure.add_subplot(1, 2, 2)
        f = a.frontier
        outcome = np.exp(-f.outcome) if a.goal == "cost" else f.outcome
        other.plot(f.budget, outcome, "o-", color=_FIT, markersize=4, linewidth=1.6)
        own = int(np.argmin(np.abs(f.budget - a.budget)))
        other.plot(f.budget[own], outcome[own], "o", color=_PLATEAU, markersize=8, label="recommended")
        if a.goal == "reward":
            other.plot(a.budget, a.current.reward[0], "s", color=_SMOOTHED, markersize=6, label="as run")
        other.set_xscale("log")
        ticks = [float(b) for b in f.budget]
        other.set_xticks(ticks, [number(b) for b in ticks], fontsize=8, rotation=30)
        other.minorticks_off()
        other.set_xlabel(f"budget ({unit})")
        label = (
            f"cost to reach {number(a.target)} ({unit})"
            if a.goal == "cost"
            else "reward at the end of the budget"
        )
        other.set_ylabel(label if a.goal in ("cost", "reward") else "objective")
        other.legend(frameon=False, fontsize=8, loc="best")
        title(other, "what more or less would buy", small=False)
        _tidy(other)
    _caption(
        figure,
        "Bands: where the expected reward lies with 90 % probability, as far as the fit leaves it open."
        + (f" No advice: {a.refusal}." if not a.supported else ""),
        150 if several else 110,
    )
    return figure


def run(run: "Run") -> Figure:
    """A run as it was read: its reward, and the other channels that dynamics show in.

    Args:
        run: The run.

    Returns:
        The figure.
    """
    present = [
        name for name in _CHANNELS if np.isfinite(run.channels.get(name, np.array([np.nan]))).sum() > 1
    ]
    rows = -(-len(present) // 2)
    figure = new_figure(8.0, 3.2 + 1.3 * rows)
    layout = [["reward", "reward"]]
    layout += [[present[2 * i], present[2 * i + 1] if 2 * i + 1 < len(present) else "."] for i in range(rows)]
    panels = figure.subplot_mosaic(layout, height_ratios=[2.4] + [1.0] * rows, sharex=True)  # pyright: ignore
    _draw_data(panels["reward"], run)
    panels["reward"].set_ylabel("reward")
    panels["reward"].legend(frameon=False, fontsize=8, loc="best")
    panels["reward"].set_title(_escape(_short(run.name, 80)), fontsize=11, loc="left")
    for name in present:
        values = run.channels[name]
        known = np.isfinite(values)
        panels[name].plot(run.logged_steps[known], values[known], color=_FIT, linewidth=0.9)
        panels[name].set_ylabel(name.replace("_", "\n", 1), fontsize=8)
    for axes in panels.values():
        _tidy(axes)
        axes.tick_params(labelbottom=True)
    _caption(figure, f"{run.framework}, {len(run)} points, against the {_step_label(run)}.", 118)
    return figure


def runs(runs: Sequence["Run"]) -> Figure:
    """The rewards of several runs as small pictures of one kind.

    Args:
        runs: The runs; the first 24 are shown.

    Returns:
        The figure.
    """
    shown = runs[:MOST_PANELS]
    columns = min(len(shown), 2 if len(shown) <= 4 else 3 if len(shown) <= 9 else 4)
    rows = -(-len(shown) // columns)
    figure = new_figure(max(3.4 * columns, 6.0), 2.3 * rows + 0.7)
    panels = figure.subplots(rows, columns, squeeze=False)
    for axes in panels.flat[len(shown) :]:
        axes.set_visible(False)
    for axes, one, name in zip(panels.flat, shown, distinct_names(shown), strict=False):
        _draw_data(axes, one, small=True)
        axes.set_title(_escape(_short(name, 44)), fontsize=8, loc="left")
        _tidy(axes)
    figure.supylabel("reward", fontsize=9)
    caption = "Against the step of each log. Dots: rewards as logged; black: moving mean."
    if len(runs) > len(shown):
        caption += f" The first {len(shown)} of {len(runs)} runs."
    _caption(figure, caption, 60 * columns)
    return figure


def ensemble(runs: "Ensemble", labels: Sequence[str] = (), title: str = "Simulated runs") -> Figure:
    """Simulated runs as fans of their quantiles, a panel for each configuration.

    Args:
        runs: What `jaxgrpo.simulate` returned, with one axis of configurations or none.
        labels: Names of the configurations.
        title: Title of the picture.

    Returns:
        The figure; the first 24 configurations are shown.
    """
    steps, records = runs.steps, len(runs.steps)
    mean = np.asarray(runs.mean, float).reshape(-1, records)
    quantiles = np.asarray(runs.quantiles, float).reshape(len(mean), records, -1)
    diverged = np.asarray(runs.diverged, float).reshape(-1, records)
    shown = min(len(mean), MOST_PANELS)
    columns = min(shown, 1 if shown == 1 else 2 if shown <= 4 else 3 if shown <= 9 else 4)
    rows = -(-shown // columns)
    figure = new_figure(max(3.4 * columns, 7.0), max(2.3 * rows, 3.6) + 1.0)
    panels = figure.subplots(rows, columns, squeeze=False, sharex=True)
    for axes in panels.flat[shown:]:
        axes.set_visible(False)
    levels = sorted(runs.levels)
    pairs = [(low, 1.0 - low) for low in levels if low < 0.5 and any(abs(1 - low - x) < 1e-9 for x in levels)]
    for i, axes in enumerate(panels.flat[:shown]):
        kept = diverged[i] < 0.5
        last = max(records if kept.all() else int(np.argmin(kept)), 2)
        seen = [mean[i, :last]]
        for depth, (low, high) in enumerate(pairs):
            ends = [
                quantiles[i, :last, int(np.argmin(np.abs(np.array(runs.levels) - x)))] for x in (low, high)
            ]
            axes.fill_between(
                steps[:last],
                *ends,
                color=_FIT,
                alpha=0.15 + 0.15 * depth,
                linewidth=0,
                label=f"{high - low:.0%} of the runs",
            )
            seen += ends
        axes.plot(steps[:last], mean[i, :last], color=_FIT, linewidth=1.8, label="mean")
        target = float(np.asarray(runs.target, float).reshape(-1)[min(i, np.size(runs.target) - 1)])
        axes.axhline(target, color=_PLATEAU, linewidth=1.0, linestyle="--", label="target")
        name = labels[i] if i < len(labels) and labels[i] else ""
        if diverged[i, -1] > 0:
            name += f"{': ' if name else ''}{diverged[i, -1]:.0%} diverge"
        _limits(axes, np.concatenate(seen), [target])
        axes.set_title(_escape(_short(name, 90 if columns == 1 else 44)), fontsize=9, loc="left")
        _tidy(axes)
    panels.flat[0].legend(frameon=False, fontsize=8, loc="best")
    figure.supylabel("expected reward", fontsize=9)
    figure.suptitle(_escape(_short(title, 80)), fontsize=11, x=0.01, ha="left")
    caption = f"Against the optimizer step; {runs.paths} runs each, method {runs.method}."
    if len(mean) > shown:
        caption += f" The first {shown} of {len(mean)} settings."
    _caption(figure, caption, 70 * columns)
    return figure


def _axis(values: np.ndarray, points: int, whole: bool) -> tuple[np.ndarray, bool]:
    """Fine grid over the range of some values, and whether it is logarithmic."""
    low, high = float(values.min()), float(values.max())
    if whole:
        return np.arange(round(low), round(high) + 1.0), False
    if low > 0 and high / low >= 8.0:
        return np.geomspace(low, high, points), True
    return np.linspace(low, high, points), False


def stability_map(
    settings: Sequence["Hyperparameters"],
    task: "Task",
    names: Sequence[str],
    runs: "Ensemble | None" = None,
    title: str = "Stability",
) -> Figure:
    """Margin to instability over two hyperparameters, with its boundary and that of ringing.

    Args:
        settings: Configurations; their values of the two settings span the map, the rest is that of the first.
        task: The task.
        names: Names of the two settings, such as `("learning_rate", "refresh_interval")`.
        runs: Simulations of these configurations, to be marked by the share that diverged.
        title: Title of the picture.

    Returns:
        The figure. Boundaries are from the exact map and, dashed, from the leading order.

    Raises:
        ValueError: If not two settings are named, or one of them does not vary.
    """
    from jaxgrpo.report.grid import margins

    if len(names) != 2:
        raise ValueError(f"a map has two axes, got {len(names)} settings")
    values = [np.array([float(getattr(one, name)) for one in settings]) for name in names]
    if any(np.ptp(own) == 0 for own in values):
        raise ValueError("a setting that spans the map must have more than one value")
    (x, x_log), (y, y_log) = (
        _axis(own, 60, name == "async_lag") for own, name in zip(values, names, strict=True)
    )
    grid = margins(settings[0], task, names, x, y)
    figure = new_figure(8.0, 5.4)
    axes = figure.subplots()
    shade = axes.pcolormesh(
        x, y, np.clip(grid.margin, -1.0, 1.0), cmap="RdBu", vmin=-1, vmax=1, shading="nearest", alpha=0.75
    )
    bar = figure.colorbar(shade, ax=axes, pad=0.02)
    bar.set_label("margin to instability, exact (-1: twice the critical rate)", fontsize=8)
    bar.ax.tick_params(labelsize=8)
    lines = (
        (grid.margin, "-", "#222222", 2.0, "unstable beyond: exact"),
        (grid.leading_margin, "--", "#222222", 1.4, "unstable beyond: leading order"),
        (
            grid.ringing,
            "-",
            _RATE,
            1.6,
            "rings beyond: exact" if grid.exact_ringing else "rings beyond: leading order",
        ),
        (grid.leading_ringing, "--", _RATE, 1.2, "rings beyond: leading order"),
    )
    for level, style, colour, width, label in lines:
        if np.nanmin(level) < 0 < np.nanmax(level) and label not in [
            h for h in axes.get_legend_handles_labels()[1]
        ]:
            axes.contour(x, y, level, levels=[0.0], colors=[colour], linestyles=[style], linewidths=[width])
            axes.plot([], [], color=colour, linestyle=style, linewidth=width, label=label)
    if runs is not None:
        lost = np.asarray(runs.diverged, float).reshape(len(settings), -1)[:, -1]
        for chosen, face, label in (
            (lost < 0.5, "white", "simulated, fewer than half diverge"),
            (lost >= 0.5, "#222222", "simulated, half and more diverge"),
        ):
            if chosen.any():
                axes.plot(
                    values[0][chosen],
                    values[1][chosen],
                    "o",
                    markersize=4.5,
                    markerfacecolor=face,
                    markeredgecolor="#222222",
                    markeredgewidth=0.7,
                    linestyle="none",
                    label=label,
                )
    if x_log:
        axes.set_xscale("log")
    if y_log:
        axes.set_yscale("log")
    axes.set_xlabel(SETTINGS[names[0]])
    axes.set_ylabel(SETTINGS[names[1]])
    axes.set_title(_escape(_short(title, 80)), fontsize=11, loc="left")
    axes.legend(frameon=True, fontsize=7.5, loc="best", framealpha=0.9)
    _tidy(axes)
    caption = "For the curvature of the task."
    if task.sharpness is None:
        caption = "Upper bounds: no sharpness was measured, and the true limits may be much lower."
    _caption(figure, caption, 110)
    return figure
