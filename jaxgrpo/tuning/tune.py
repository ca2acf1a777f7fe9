"""From a calibration run to the next run's settings, with the reason, the uncertainty and the margin."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxgrpo.errors import TuneError
from jaxgrpo.inference.fit import Fit, Outlook
from jaxgrpo.inference.problem import smooth
from jaxgrpo.inference.verdicts import SUPPORT
from jaxgrpo.theory.forces import Harmonic, MixedCurvature
from jaxgrpo.theory.hyperparameters import Hyperparameters
from jaxgrpo.theory.task import Task
from jaxgrpo.tuning.constraints import (
    Constraints,
    Limits,
    binding,
    largest_rate,
    make_limits,
    margin,
    stable_share,
)
from jaxgrpo.tuning.cost import Prices, prices_from_run
from jaxgrpo.tuning.frontier import Frontier, nudged, trade_offs
from jaxgrpo.tuning.objective import (
    CostToReach,
    Design,
    Ensemble,
    Objective,
    costs_to_reach,
    counted_reward,
    design_of,
    evaluate,
    final_reward,
    prepare,
    stack_tasks,
)
from jaxgrpo.tuning.search import COORDINATES, WHOLE, Found, Problem, find, grid_values

_SEARCH_DRAWS, _SHOWN_DRAWS, _STABILITY_DRAWS = 12, 64, 512
_NODES = 31
_LEVEL = 0.9
# Settings that are looked at in one call of the compiled program.
_LOOKS = 32
# Ties are broken towards the run's settings at this price, in units of the way from start to plateau.
_TIE = 2e-4
# A gain that a person would not change settings for, in the same units (for the cost, in parts of it).
_LEAST_GAIN = 5e-3
# Ranges about a run's settings within which a recommendation stays where none are given, as factors.
_AROUND = {"group_size": (0.5, 2.0), "refresh_interval": (0.25, 4.0), "prompts_per_step": (0.5, 2.0)}
_SPACE_NAMES = (
    "learning_rate",
    "momentum",
    "group_size",
    "prompts_per_step",
    "refresh_interval",
    "epochs_per_rollout",
    "warmup",
    "final_rate",
)

SpaceInput = Mapping[str, Any]


@dataclass(frozen=True)
class NextRun:
    """A change of settings that would teach the most about the task.

    Attributes:
        change: Name of the setting and its new value.
        gain: Expected information in nats.
        alternatives: Other single changes with theirs, the best first.
    """

    change: tuple[str, float]
    gain: float
    alternatives: tuple[tuple[str, float, float], ...]


@dataclass(frozen=True)
class Side:
    """What is predicted under one set of settings; intervals hold 90 % of the posterior.

    Attributes:
        hyperparameters: The settings.
        steps: Optimizer steps that the budget pays for.
        reward: Expected reward at the end of the budget, and its interval; a swing beyond the plateau counts as below it.
        cost: Expected cost to reach the target and its interval, where there is a target.
        stable: Share of the posterior under which the run is stable.
        margin: Margin to instability: median and lowest twentieth.
    """

    hyperparameters: Hyperparameters
    steps: float
    reward: tuple[float, float, float]
    cost: tuple[float, float, float] | None
    stable: float
    margin: tuple[float, float]


@dataclass(frozen=True, eq=False)
class Recommendation:
    """Settings for the next run.

    Attributes:
        supported: Whether the data support advice; if not, `hyperparameters` are those of the run and `refusal` says why.
        hyperparameters: The settings.
        warmup: Share of the run that is warm-up.
        final_rate: Learning rate at the end over its peak.
        predicted: Expected reward under them along the budget, with its band.
        predicted_current: The same for the settings that were run.
        recommended: Figures under them.
        current: Figures under the settings that were run.
        margin: Margin to instability (median over the posterior).
        frontier: Trade-offs, or nothing if not asked for.
        sensitivities: Setting to the change of the outcome when it grows by a factor of e, all else equal: of the reward in
            parts of the way from start to plateau, of the cost in parts of itself.
        reasons: Why these settings.
        caveats: What would have to be true for the advice to fail, and what was assumed.
        refusal: Why there is no advice, or empty.
        next_run: The most informative next run, where the source is a fit.
        prices: What the parts of a run cost.
        budget: What may be spent, in the prices' unit.
        target: Reward to reach, or nothing.
        found: Diagnostics of the search.
        gain: What the recommendation gains over the settings that were run: of the reward in parts of the way from start to
            plateau, of the cost in its logarithm.
        goal: `"reward"`, `"cost"` or `"custom"`.
        problem: The search, for a closer look.
        ranges: Ranges of its coordinates.
        notes: Where prices, budget and target come from.
        certificate: Objective of the best point of an exhaustive grid less the recommendation's, if it was asked for.
    """

    supported: bool
    hyperparameters: Hyperparameters
    warmup: float
    final_rate: float
    predicted: Outlook
    predicted_current: Outlook
    recommended: Side
    current: Side
    margin: float
    frontier: Frontier | None
    sensitivities: dict[str, float]
    reasons: list[str]
    caveats: list[str]
    refusal: str
    next_run: NextRun | None
    prices: Prices
    budget: float
    target: float | None
    found: Found | None
    certificate: float | None = None
    gain: float = 0.0
    goal: str = "reward"
    problem: Problem | None = None
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def to_framework(self, name: str) -> dict[str, Any]:
        """The settings as a training framework has them.

        Args:
            name: `"trl"`, `"verl"`, `"openrlhf"`, `"nemo-rl"`, `"prime-rl"`...

        Returns:
            The framework's option names with their values.

        Raises:
            TuneError: If there is no advice.
        """
        if not self.supported:
            raise TuneError(f"there is no advice to write as settings: {self.refusal}")
        settings = self.hyperparameters.to_framework(name)
        steps, interval = self.recommended.steps, float(self.hyperparameters.refresh_interval)
        if name == "trl":
            settings["max_steps"] = max(round(steps), 1)
            if self.warmup > 0:
                settings["warmup_ratio"] = self.warmup
            if self.final_rate > 0.9:
                settings["lr_scheduler_type"] = "constant_with_warmup" if self.warmup > 0 else "constant"
        elif name == "verl":
            settings["trainer.total_training_steps"] = max(round(steps / interval), 1)
            if self.warmup > 0:
                settings["actor_rollout_ref.actor.optim.lr_warmup_steps_ratio"] = self.warmup
        return settings

    def as_dict(self) -> dict[str, Any]:
        """The recommendation as plain numbers and strings, for JSON."""
        side = lambda s: {
            **{f.name: getattr(s, f.name) for f in dataclasses.fields(s) if f.name != "hyperparameters"},
            "hyperparameters": _plain_settings(s.hyperparameters),
        }
        return {
            "supported": self.supported,
            "refusal": self.refusal,
            "hyperparameters": _plain_settings(self.hyperparameters),
            "warmup": self.warmup,
            "final_rate": self.final_rate,
            "recommended": side(self.recommended),
            "current": side(self.current),
            "predicted": vars(self.predicted),
            "predicted_current": vars(self.predicted_current),
            "margin": self.margin,
            "frontier": None if self.frontier is None else vars(self.frontier),
            "sensitivities": self.sensitivities,
            "reasons": self.reasons,
            "caveats": self.caveats,
            "next_run": None if self.next_run is None else vars(self.next_run),
            "prices": {n: float(getattr(self.prices, n)) for n in ("rollout", "update", "synchronisation")},
            "unit": self.prices.unit,
            "budget": self.budget,
            "target": self.target,
            "converged": self.found is not None and self.found.converged,
            "certificate": self.certificate,
            "notes": self.notes,
        }


def _plain_settings(h: Hyperparameters) -> dict[str, Any]:
    names = [f.name for f in dataclasses.fields(h) if f.name != "convention"]
    return {**{name: float(str(np.asarray(getattr(h, name)))) for name in names}, "convention": h.convention}


def tune(
    source: Fit | Task,
    space: SpaceInput | None = None,
    budget: float | int | None = None,
    *,
    current: Hyperparameters | None = None,
    objective: Objective | str = "reward",
    target: float | int | None = None,
    prices: Prices | None = None,
    constraints: Constraints | None = None,
    hold: str = "prompts_per_step",
    sharpness: float | int | None = None,
    learning_rate_exponent: float | int | None = None,
    frontier: bool = True,
    certify: int = 0,
    iterations: int = 60,
) -> Recommendation:
    r"""Choose the settings of the next run on a task, by gradients through its predicted course.

    The course is that of the exact map; the outcome is averaged over the posterior of a fit, so that a gain that hangs on
    what is not known counts for less. Constraints hold for every point of the search.

    Args:
        source: A fit, or a task that is known.
        space: Setting to its range `(low, high)` or to one value, which fixes it; those left out keep to ranges about the
            run's (learning rate, momentum, group size, refresh interval) or to its values (`prompts_per_step`,
            `epochs_per_rollout`, `warmup`, `final_rate`). The schedule is a linear rise over the share `warmup` of the run
            and a linear fall to `final_rate` times the peak.
        budget: What may be spent, in the unit of the prices; by default what the fitted run has cost.
        current: The settings to be compared with; those of the fitted run with the best end by default.
        objective: `"reward"` at the end of the budget, `"cost"` to reach `target`, or a JAX function of a
            `jaxgrpo.tuning.objective.Course` that is to be large.
        target: Reward to reach; 95 % of the way to the plateau by default.
        prices: What the parts of a run cost; from the log's timings by default.
        constraints: Limits on what may be recommended.
        hold: What stays when the group size changes: `"prompts_per_step"`, or `"rollouts_per_step"` (the batch).
        sharpness: Measured top curvature, which then decides stability.
        learning_rate_exponent: How the force grows with the learning rate, if it is known (1 for plain momentum without
            clipping); otherwise its posterior is averaged over, which is wide where one rate was run.
        frontier: Whether to search the trade-offs as well.
        certify: Points along each coordinate of an exhaustive grid to compare with; 0 for none.
        iterations: Steps of the search.

    Returns:
        The recommendation; with `supported` false and the most informative next run where the data do not support advice.

    Raises:
        TuneError: If something asked for is out of range, unknown or cannot be met.

    Example:
        >>> import jaxgrpo as jg
        >>> task = jg.Task(curvature=2e4, plateau=0.9, initial_reward=0.2)
        >>> settings = jg.Hyperparameters(1e-6, group_size=8, prompts_per_step=16)
        >>> space = {"learning_rate": (1e-7, 1e-4), "momentum": 0.9, "group_size": 8, "refresh_interval": 1}
        >>> advice = jg.tune(task, space, budget=12_000, current=settings, frontier=False)
        >>> float(advice.hyperparameters.learning_rate) > 1e-6, advice.margin > 0
        (True, True)
    """
    with jax.enable_x64(True):
        return _tune(
            source, dict(space or {}), budget, current, objective, target, prices,
            constraints or Constraints(), hold, sharpness, learning_rate_exponent, frontier, certify, iterations,
        )  # fmt: skip


def _tune(
    source, space, budget, current, objective, target, prices, constraints, hold, sharpness, exponent,
    with_frontier, certify, iterations,
) -> Recommendation:  # fmt: skip
    notes: list[str] = []
    fit = source if isinstance(source, Fit) else None
    runs = list(fit.hyperparameters) if fit is not None else []
    index = _best_run(fit) if fit is not None else 0
    if current is None:
        if fit is None:
            raise TuneError("a task alone has no settings to start from: give current=Hyperparameters(...)")
        current = fit.hyperparameters[index]
    current = _double(current)
    if not float(current.learning_rate) > 0:
        raise TuneError("the learning rate of the current settings must be known and above 0 to be tuned")
    runs = [_double(h) for h in runs] or [current]
    if prices is None:
        prices = Prices()
        if fit is not None:
            prices, origin = prices_from_run(fit.runs[index], current)
            notes += origin
    prices = _double(prices)
    if budget is None:
        if fit is None:
            raise TuneError("a task alone has no cost yet: give budget=, in the unit of the prices")
        run = fit.runs[index]
        budget = float(prices.per_step(current)) * (float(run.steps[-1]) + run.steps_per_row)
        notes.append("the budget is what the run has cost")
    budget = float(budget)
    if not (math.isfinite(budget) and budget > 0):
        raise TuneError(f"budget must be a finite number above 0, got {budget:g}")
    warmup, final_rate = _schedule_shape(fit, index)
    if (warmup, final_rate) != (0.0, 1.0):
        notes.append(
            f"the run's learning-rate schedule is kept as a linear one: warm-up {warmup:.0%}, end at {final_rate:.0%} of "
            "the peak"
        )
    base = _double(design_of(current, warmup, final_rate))
    inertia = fit.inertial_time if fit is not None else None
    refusal = _refusal(fit) if fit is not None else ""

    if fit is None:
        mode = stack_tasks(_double(source))
        searched = shown = tested = mode
    else:
        mode = stack_tasks(_double(fit.task))
        searched, shown, tested = (
            _double(fit.draw(n, seed))
            for n, seed in ((_SEARCH_DRAWS, 1), (_SHOWN_DRAWS, 2), (_STABILITY_DRAWS, 3))
        )
    if exponent is not None:
        if not exponent > 0:
            raise TuneError(f"learning_rate_exponent must be above 0, got {exponent}")
        searched, shown, tested = (
            _with_exponent(t, float(exponent), current) for t in (searched, shown, tested)
        )
    if sharpness is not None and not sharpness > 0:
        raise TuneError(f"sharpness must be above 0, got {sharpness}")
    limits = make_limits(tested, runs, constraints, None if sharpness is None else float(sharpness), inertia)
    plateau, initial = float(jnp.median(shown.plateau)), float(jnp.median(shown.initial_reward))
    way = plateau - initial
    if objective == "cost" and target is None:
        target = initial + 0.95 * way
        notes.append(f"the target is 95 % of the way from {initial:.3g} to the plateau {plateau:.3g}")
    target = None if target is None else float(target)
    scale = 1.0
    if isinstance(objective, str):
        if objective not in ("reward", "cost"):
            raise TuneError(
                f"objective must be 'reward', 'cost' or a function of a Course, got {objective!r}"
            )
        scale = max(abs(way), 1e-9) if objective == "reward" else 1.0
    goal: Objective = final_reward if isinstance(objective, str) else objective
    if objective == "cost":
        goal = CostToReach(jnp.asarray(target))
    ranges, fixed, admissible, largest_interval = _ranges(
        space, base, current, constraints, limits, hold, shown, notes
    )
    base_values = {name: float(getattr(base, name)) for name in COORDINATES} | fixed
    if hold == "rollouts_per_step" and "group_size" not in ranges:
        base_values["prompts_per_step"] = float(current.rollouts_per_step) / base_values["group_size"]
    linear = isinstance(shown.force, Harmonic | MixedCurvature)
    # A fit's plateau already has what noise took from it, and its noise is bounded by assumption: it is not averaged over.
    noise = isinstance(source, Task) and not linear and bool(jnp.any(source.rollout_noise > 0))
    tie = jnp.asarray(_TIE if fit is not None else 0.0)
    problem = Problem(
        ensemble=prepare(searched, current, inertia),
        limits=limits,
        prices=prices,
        base=_double(Design(**base_values)),  # pyright: ignore[reportArgumentType]
        objective=goal,
        scale=jnp.asarray(scale),
        total_batch=jnp.asarray(float(current.rollouts_per_step)),
        largest_interval=jnp.asarray(float(largest_interval)),
        tie=tie,
        free=tuple(name for name in COORDINATES if name in ranges),
        hold_batch=hold == "rollouts_per_step" and "group_size" in ranges,
        noise=noise,
    )
    found, trade, certificate = None, None, None
    values = dict(base_values)
    if not refusal and ranges:
        start = {name: base_values[name] for name in problem.free}
        found = find(problem, ranges, budget, admissible=admissible, iterations=iterations, start=start)
        values = _rounded(found.values, base_values, problem, ranges)
        if certify:
            certificate = _certificate(problem, ranges, admissible, budget, certify, values)
        if with_frontier:
            trade = trade_offs(problem, found.position, found.lower, found.upper, budget)
    if found is not None and found.violation > 1e-6:
        raise TuneError(
            "no settings in the given space meet the constraints: the learning rate would have to be lower by a factor of "
            f"{math.exp(found.violation):.3g}; widen its range or relax the constraints"
        )

    # Current, recommended, the neighbours of the recommendation, and single changes of the current settings.
    base_current = {name: float(getattr(base, name)) for name in COORDINATES}
    knobs = ("learning_rate", "momentum", "group_size", "prompts_per_step", *WHOLE[2:])
    changes = _single_changes(base_current) if fit is not None else []
    looks = [base_current, values, *nudged(values, knobs), *(c for _, _, c in changes)]
    courses = _look(looks, prepare(_joined(mode, shown), current, inertia, _NODES), prices, budget, noise)
    gain = (float(goal(_one(courses, 1))) - float(goal(_one(courses, 0)))) / scale
    if not refusal and found is not None and gain < _LEAST_GAIN and _allowed(problem, base_current, ranges):
        # The courses are those of the settings that were run from here on.
        values, kept = base_current, True
        courses = jax.tree.map(lambda x: x.copy(), courses)
        for leaf in jax.tree.leaves(courses):
            leaf[1] = leaf[0]
        looks[1] = base_current
    else:
        kept = False
    bounds = None if fit is None else fit.problem.bounds
    predicted_current, predicted = (_outlook(courses, i, bounds) for i in (0, 1))
    sides = [_side(courses, i, looks[i], current, limits, budget, target) for i in (0, 1)]
    sensitivities = _sensitivities(courses, knobs, goal, scale, objective)
    next_run = None if fit is None else _next_run(fit, index, courses, changes, 2 + 2 * len(knobs))
    hyperparameters = sides[1].hyperparameters
    reasons, caveats = [], []
    if refusal:
        reasons.append(refusal)
    elif found is not None:
        if kept:
            reasons.append(
                f"the settings that were run are as good as any found (a gain of {max(gain, 0.0):.1%}): keep them"
                + (", or ask for the least cost instead" if objective == "reward" else "")
            )
        reasons += _reasons(sides, hyperparameters, current, limits, sensitivities, found, target)
    caveats += _caveats(
        fit, hyperparameters, current, limits, constraints, sharpness, inertia, ranges, linear
    )
    return Recommendation(
        supported=not refusal,
        hyperparameters=hyperparameters if not refusal else current,
        warmup=values["warmup"],
        final_rate=values["final_rate"],
        predicted=predicted if not refusal else predicted_current,
        predicted_current=predicted_current,
        recommended=sides[1] if not refusal else sides[0],
        current=sides[0],
        margin=sides[1].margin[0] if not refusal else sides[0].margin[0],
        frontier=trade,
        sensitivities=sensitivities,
        reasons=reasons,
        caveats=caveats,
        refusal=refusal,
        next_run=next_run,
        prices=prices,
        budget=budget,
        target=target,
        found=found,
        certificate=certificate,
        gain=gain,
        goal=objective if isinstance(objective, str) else "custom",
        problem=problem,
        ranges=ranges,
        notes=notes,
    )


def _double(tree):
    """Every number in double precision, without the noise that single precision adds to what a person typed."""

    def leaf(x):
        if not eqx.is_array(x) or not jnp.issubdtype(x.dtype, jnp.inexact):
            return x
        if x.ndim == 0 and x.dtype != jnp.float64:
            return jnp.asarray(float(str(np.asarray(x))))
        return jnp.asarray(x, jnp.float64)

    return jax.tree.map(leaf, tree)


def _with_exponent(tasks: Task, exponent: float, current: Hyperparameters) -> Task:
    """The draws with a known exponent of the learning rate, about the rate at which they were measured."""
    draws = tasks.curvature.shape[0]
    reference = tasks.reference_learning_rate
    if reference is None:
        reference = jnp.full(draws, float(current.learning_rate))
    return eqx.tree_at(
        lambda t: (t.learning_rate_exponent, t.reference_learning_rate),
        tasks,
        (jnp.full(draws, exponent), reference),
        is_leaf=lambda x: x is None,
    )


def _best_run(fit: Fit) -> int:
    """The run that ended best in the direction of the plateau."""
    ends = [float(np.mean(run.reward[-max(1, len(run) // 10) :])) for run in fit.runs]
    rising = fit.parameters["plateau"].value >= fit.parameters["initial_reward"].value
    return int(np.argmax(ends) if rising else np.argmin(ends))


def _schedule_shape(fit: Fit | None, index: int) -> tuple[float, float]:
    """Warm-up and end of a linear schedule that is like the log's."""
    schedule = None if fit is None else fit.schedules[index]
    if fit is None or schedule is None:
        return 0.0, 1.0
    last = float(fit.runs[index].steps[-1])
    factors = np.asarray(schedule(np.linspace(0.0, last, 201)), float)
    peak = int(np.argmax(factors >= 0.98 * factors.max()))
    after = factors[peak:]
    if len(after) < 5:
        return 0.0, 1.0
    # The mean of a linear fall is half way: what matters is the learning-rate time that it leaves.
    final = float(np.clip(2.0 * after.mean() / factors.max() - 1.0, 0.0, 1.0))
    return round(peak / 200.0, 3), round(final, 3)


def _refusal(fit: Fit) -> str:
    """Why a fit cannot support advice; empty if it can."""
    if "constant" in fit.comparison:
        trend = fit.comparison[fit.model] - fit.comparison["constant"]
        if trend < SUPPORT:
            return f"no trend is told from noise (log evidence {trend:+.1f} against a constant): there is nothing to steer by"
    for run in fit.runs:
        curve = smooth(run.reward)
        top = int(np.argmax(curve))
        fall, rise = float(curve[top] - curve[-1]), float(curve[top] - curve[0])
        noise = float(np.std(np.diff(run.reward))) / math.sqrt(2.0)
        if len(run) >= 10 and fall > 0.5 * max(rise, 1e-12) and fall > 2.0 * noise and len(fit.runs) == 1:
            at = run.logged_steps[top]
            return (
                f"the reward falls from {curve[top]:.3g} (step {at:g}) to {curve[-1]:.3g}: a fit of the whole describes the "
                "fall, not the learning; look for what broke it, or tune from the part before"
            )
    plateau, initial = fit.parameters["plateau"].value, fit.parameters["initial_reward"].value
    if plateau <= initial and len(fit.runs) == 1:
        return "the expected reward falls along the run: more of the same, faster, is no advice"
    curvature = fit.parameters.get("curvature")
    if curvature is not None and not curvature.identified:
        return "neither the speed nor the end of the course is identified: any settings would do as well"
    if fit.r_squared_smoothed < 0.3:
        return (
            f"the fit explains {fit.r_squared_smoothed:.0%} of the smoothed rewards: too little to steer by"
        )
    if any("per unit of its own" in line or "learning rate is not known" in line for line in fit.warnings):
        return "the learning rate of the run is not known: give it, or the framework's configuration"
    return ""


def _ranges(space, base: Design, current, constraints, limits: Limits, hold, tasks, notes):
    """Ranges of the coordinates, fixed values, admissible whole numbers, and the largest refresh interval."""
    if hold not in ("prompts_per_step", "rollouts_per_step"):
        raise TuneError(f"hold must be 'prompts_per_step' or 'rollouts_per_step', got {hold!r}")
    unknown = sorted(set(space) - set(_SPACE_NAMES))
    if unknown:
        raise TuneError(f"{unknown[0]!r} cannot be tuned; there are: {', '.join(_SPACE_NAMES)}")
    linear = isinstance(tasks.force, Harmonic | MixedCurvature)
    given: dict[str, tuple[float, float]] = {name: _range(name, value) for name, value in space.items()}
    rate, group = float(current.learning_rate), float(current.group_size)
    interval = float(current.refresh_interval)
    if "learning_rate" not in given:
        top = float(limits.largest_rate)
        given["learning_rate"] = (rate / 30.0, min(30.0 * rate, top) if math.isfinite(top) else 30.0 * rate)
    if "momentum" not in given:
        held = float(current.momentum)
        given["momentum"] = (min(held, 0.5), max(held, 0.95))
    if "group_size" not in given:
        low, high = _AROUND["group_size"]
        given["group_size"] = (max(2.0, math.ceil(low * group)), max(2.0, math.floor(high * group)))
        if linear:
            given["group_size"] = (group, group)
            notes.append("a linear force does not depend on the group size: it is left as it was")
    if "refresh_interval" not in given:
        low, high = _AROUND["refresh_interval"]
        given["refresh_interval"] = (
            max(1.0, math.ceil(low * interval)),
            max(1.0, math.floor(high * interval)),
        )
    passes = given.pop("epochs_per_rollout", (float(base.epochs_per_rollout), float(base.epochs_per_rollout)))
    low, high = (float(v) for v in given.pop("refresh_interval"))
    given["epochs_per_rollout"] = passes
    given["minibatches_per_rollout"] = (
        max(1.0, math.ceil(low / passes[1] - 1e-9)),
        max(1.0, math.floor(high / passes[0] + 1e-9)),
    )
    if low == high and low % passes[0]:
        raise TuneError(f"refresh_interval {low:g} is no whole multiple of epochs_per_rollout {passes[0]:g}")
    if hold == "rollouts_per_step" and "prompts_per_step" in given:
        raise TuneError(
            "prompts_per_step follows from the group size where the batch is held: leave it out of the space"
        )
    admissible: dict[str, np.ndarray] = {}
    total = float(current.rollouts_per_step)
    if hold == "rollouts_per_step":
        low_g, high_g = given["group_size"]
        sizes = np.arange(math.ceil(low_g), math.floor(min(high_g, total)) + 1.0)
        sizes = sizes[np.isclose(total / sizes, np.round(total / sizes))]
        if not len(sizes):
            raise TuneError(
                f"no group size from {low_g:g} to {high_g:g} divides the batch of {total:g} completions"
            )
        admissible["group_size"] = sizes
        given["group_size"] = (float(sizes[0]), float(sizes[-1]))
    elif constraints.largest_batch is not None:
        prompts = given.get("prompts_per_step", (float(base.prompts_per_step),) * 2)[0]
        most = math.floor(float(constraints.largest_batch) / prompts)
        if most < given["group_size"][0]:
            raise TuneError(
                f"largest_batch {constraints.largest_batch:g} leaves no room for {given['group_size'][0]:g} completions of "
                f"{prompts:g} prompts"
            )
        given["group_size"] = (given["group_size"][0], min(given["group_size"][1], float(most)))
    ranges = {name: pair for name, pair in given.items() if pair[1] > pair[0]}
    fixed = {name: pair[0] for name, pair in given.items() if pair[1] == pair[0]}
    return ranges, fixed, admissible, high


_BOUNDS = {
    "learning_rate": (0.0, math.inf),
    "momentum": (0.0, 0.9999),
    "group_size": (2.0, 1024.0),
    "prompts_per_step": (1.0, math.inf),
    "refresh_interval": (1.0, 1024.0),
    "epochs_per_rollout": (1.0, 64.0),
    "warmup": (0.0, 0.9),
    "final_rate": (0.0, 1.0),
}


def _range(name: str, value: Any) -> tuple[float, float]:
    """A range from what the user gave, checked."""
    pair = (value, value) if np.ndim(value) == 0 else tuple(value)
    try:
        low, high = (float(v) for v in pair)
    except (TypeError, ValueError):
        raise TuneError(f"{name}: give a number, or a range (low, high); got {value!r}") from None
    least, most = _BOUNDS[name]
    if not (math.isfinite(low) and math.isfinite(high) and low <= high):
        raise TuneError(f"{name}: the range must be finite and rising, got {low:g} to {high:g}")
    if low < least or high > most or (name == "learning_rate" and low <= 0):
        raise TuneError(f"{name} must lie within {least:g} and {most:g}, got {low:g} to {high:g}")
    if name in ("group_size", "prompts_per_step", "refresh_interval", "epochs_per_rollout"):
        if low == high and low != round(low):
            raise TuneError(f"{name} must be a whole number, got {low:g}")
        low, high = float(math.ceil(low)), float(math.floor(high))
        if low > high:
            raise TuneError(f"{name}: the range holds no whole number")
    return low, high


def _rounded(values, base, problem: Problem, ranges) -> dict[str, float]:
    """Settings as a person would type them: two digits of the rate, never beyond what is allowed."""
    values = dict(values)
    if "momentum" in problem.free:
        moved = round(values["momentum"], 2)
        values["momentum"] = (
            base["momentum"] if abs(moved - base["momentum"]) < 0.02 else min(moved, ranges["momentum"][1])
        )
    for name in ("warmup", "final_rate"):
        if name in problem.free:
            values[name] = round(values[name], 2)
    if "learning_rate" in problem.free:
        h = problem.ensemble.hyperparameters(Design(**values))  # pyright: ignore[reportArgumentType]
        allowed = min(float(largest_rate(h, problem.limits)), ranges["learning_rate"][1])
        rate = values["learning_rate"]
        unit = 10.0 ** (math.floor(math.log10(rate)) - 1)
        typed = float(f"{round(rate / unit) * unit:.3g}")
        if typed > allowed * (1.0 + 1e-9):
            typed = float(f"{math.floor(rate / unit) * unit:.3g}")
        values["learning_rate"] = typed if typed >= ranges["learning_rate"][0] else rate
    return values


def _joined(mode: Task, draws: Task) -> Task:
    """The most probable task before the draws."""
    known = draws.reference_learning_rate
    if known is not None and mode.reference_learning_rate is None:
        mode = eqx.tree_at(
            lambda t: (t.learning_rate_exponent, t.reference_learning_rate),
            mode,
            (jnp.ones(1), known[:1]),
            is_leaf=lambda x: x is None,
        )
    return jax.tree.map(
        lambda a, b: jnp.concatenate([a, jnp.broadcast_to(b, (len(b), *a.shape[1:]))]), mode, draws
    )


@eqx.filter_jit
def _follow(rows, ensemble: Ensemble, prices: Prices, budget, noise: bool):
    def single(row):
        design = Design(**{name: row[i] for i, name in enumerate(COORDINATES)})
        return evaluate(design, ensemble, prices, budget, noise=noise)

    return jax.lax.map(single, rows)


def _look(looks: Sequence[Mapping[str, float]], ensemble, prices, budget: float, noise: bool):
    """Courses of a list of settings, padded to one length so that they are compiled once."""
    if len(looks) > _LOOKS:
        raise AssertionError
    padded = [*looks, *(looks[0],) * (_LOOKS - len(looks))]
    rows = np.array([[values[name] for name in COORDINATES] for values in padded])
    courses = _follow(jnp.asarray(rows), ensemble, prices, jnp.asarray(budget), noise)
    return jax.tree.map(np.asarray, courses)


def _one(courses, i: int, first: int = 1):
    """The course of one of the settings, without the most probable task at the front."""
    each = jax.tree.map(lambda x: jnp.asarray(x[i]), courses)
    keep = lambda x: x[first:]
    return each._replace(
        reward=keep(each.reward),
        end_reward=keep(each.end_reward),
        end_std=keep(each.end_std),
        plateau=keep(each.plateau),
        sign=keep(each.sign),
    )


def _interval(values) -> tuple[float, float, float]:
    values = np.asarray(values, float)
    tail = 0.5 * (1.0 - _LEVEL)
    lower, upper = np.quantile(values, [tail, 1.0 - tail])
    return float(np.mean(values)), float(lower), float(upper)


def _outlook(courses, i: int, bounds: tuple[float, float] | None) -> Outlook:
    """Expected reward along the budget with its band."""
    steps, keep = np.unique(courses.steps[i], return_index=True)
    curves = courses.reward[i][:, keep]
    mean = curves[0]
    draws = curves[1:] if len(curves) > 1 else curves
    tail = 0.5 * (1.0 - _LEVEL)
    lower, upper = np.quantile(draws, [tail, 1.0 - tail], axis=0)
    lower, upper = np.minimum(lower, mean), np.maximum(upper, mean)
    if bounds is not None:
        mean, lower, upper = (np.clip(values, *bounds) for values in (mean, lower, upper))
    return Outlook(steps, mean, lower, upper)


def _side(courses, i, values, current, limits, budget, target) -> Side:
    h = Design(**values).hyperparameters(
        float(current.async_lag), float(current.staleness), current.convention
    )
    one = _one(courses, i)
    cost = None if target is None else _interval(costs_to_reach(one, target))
    margins = np.asarray(margin(h, limits))
    return Side(
        hyperparameters=_single_precision_free(h),
        steps=float(one.total_steps),
        reward=_interval(counted_reward(one)),
        cost=cost,
        stable=float(stable_share(h, limits)),
        margin=(float(np.median(margins)), float(np.quantile(margins, 0.05))),
    )


def _single_precision_free(h: Hyperparameters) -> Hyperparameters:
    return _double(h)


def _sensitivities(courses, knobs, goal, scale, objective) -> dict[str, float]:
    """Change of the outcome per factor of e in a setting, by central differences."""
    found = {}
    for k, name in enumerate(knobs):
        up, down = (2 + 2 * k + j for j in (0, 1))
        values = [float(goal(_one(courses, i))) for i in (up, down)]
        h = [jax.tree.map(lambda x, i=i: x[i], courses.hyperparameters) for i in (up, down)]
        if name == "momentum":
            ends = [float(x.momentum) / (1.0 - float(x.momentum)) for x in h]
        elif name == "minibatches_per_rollout":
            ends = [float(x.refresh_interval / x.epochs_per_rollout) for x in h]
        else:
            ends = [float(getattr(x, name)) for x in h]
        reach = math.log(ends[0] / ends[1]) if min(ends) > 0 else 0.0
        if reach > 0:
            sign = -1.0 if objective == "cost" else 1.0
            found[name] = sign * (values[0] - values[1]) / reach / scale
    return found


def _allowed(problem: Problem, values: Mapping[str, float], ranges) -> bool:
    """Whether settings lie in the space and meet the constraints."""
    inside = all(
        low * (1 - 1e-9) <= values[name] <= high * (1 + 1e-9) for name, (low, high) in ranges.items()
    )
    fixed = all(
        math.isclose(values[name], float(getattr(problem.base, name)), rel_tol=1e-9, abs_tol=1e-12)
        for name in COORDINATES
        if name not in ranges
    )
    h = problem.ensemble.hyperparameters(Design(**values))  # pyright: ignore[reportArgumentType]
    return inside and fixed and values["learning_rate"] <= float(largest_rate(h, problem.limits)) * (1 + 1e-9)


def _single_changes(base: Mapping[str, float]) -> list[tuple[str, float, dict[str, float]]]:
    """Runs that differ from the current one in one setting."""
    changes = []
    for factor in (3.0, 2.0, 0.5, 1.0 / 3.0):
        changes.append(("learning_rate", base["learning_rate"] * factor))
    for factor in (2.0, 0.5):
        group = base["group_size"] * factor
        if group >= 2 and group == round(group):
            changes.append(("group_size", group))
    for factor in (2.0, 4.0):
        changes.append(("minibatches_per_rollout", base["minibatches_per_rollout"] * factor))
    changes.append(("prompts_per_step", base["prompts_per_step"] * 2.0))
    changes.append(("budget", 1.0))
    return [(n, v, {**base, **({n: v} if n != "budget" else {})}) for n, v in changes]


def _next_run(fit: Fit, index: int, courses, changes, first: int) -> NextRun | None:
    r"""The single change whose course the posterior disagrees about the most, against the noise of the log.

    The expected information of a run is $\tfrac12 \log\det(1 + C/\sigma^2)$ with $C$ the posterior covariance of its course.
    """
    noise = fit.parameters["observation_noise"].value
    correlation = float(np.clip(fit.correlation, 0.0, 0.9))
    temper = (1.0 - correlation) / (1.0 + correlation)
    run = fit.runs[index]
    gains = []
    for j, (name, value, _) in enumerate(changes):
        steps = courses.steps[first + j]
        curves = courses.reward[first + j][1:]
        rows = np.diff(steps) / max(run.steps_per_row, 1e-9) * temper
        rows = rows * len(run) / max(float(run.logged_steps[-1] - run.logged_steps[0]) + 1.0, 1.0)
        middle = 0.5 * (curves[:, 1:] + curves[:, :-1])
        weighed = np.sqrt(rows) * (middle - middle.mean(axis=0)) / max(noise, 1e-9)
        weighed = np.where(np.isfinite(weighed), weighed, 0.0)
        gram = weighed @ weighed.T / max(len(curves) - 1, 1)
        gains.append((name, value, 0.5 * float(np.linalg.slogdet(np.eye(len(gram)) + gram)[1])))
    shown = [
        ("refresh_interval", v * float(fit.hyperparameters[index].epochs_per_rollout), g)
        if n == "minibatches_per_rollout"
        else ("the same settings again", v, g)
        if n == "budget"
        else (n, v, g)
        for n, v, g in gains
    ]
    shown.sort(key=lambda item: -item[2])
    name, value, gain = shown[0]
    return NextRun((name, value), gain, tuple(shown[1:]))


def _words(name: str) -> str:
    return {
        "minibatches_per_rollout": "mini-batches per set of rollouts",
        "epochs_per_rollout": "passes over the same rollouts",
    }.get(name, name.replace("_", " "))


def _reasons(sides, h, current, limits, sensitivities, found: Found, target) -> list[str]:
    """Why these settings, in sentences."""
    lines = []
    held = binding(h, limits)
    if held is not None:
        lines.append(f"the learning rate is held by {held}")
    ranked = sorted(sensitivities.items(), key=lambda item: -abs(item[1]))
    strong = [(n, s) for n, s in ranked if abs(s) >= 0.01]
    if strong:
        name, slope = strong[0]
        what = "cost" if target is not None and sides[1].cost is not None else "reward"
        lines.append(
            f"what matters most here is the {_words(name)}: growing it by a tenth changes the {what} by {0.0953 * slope:+.1%}"
            + (" of the way from start to plateau" if what == "reward" else "")
        )
    weak = [_words(n) for n, s in ranked if abs(s) < 0.01]
    if weak:
        lines.append(f"of little influence (below 0.1 % for a tenth): {', '.join(weak)}")
    if not found.converged:
        lines.append(
            "the search had not settled: look at the neighbouring settings as well, or give it more iterations"
        )
    return lines


def _caveats(fit, h, current, limits, constraints, sharpness, inertia, ranges, linear) -> list[str]:
    """What would have to be true for the advice to fail."""
    lines = []
    factor = float(h.learning_rate) / float(current.learning_rate)
    if sharpness is None:
        lines.append(
            "a direction much stiffer than the one in which the reward rises: the curvature of a reward curve bounds the "
            "stable range from above only"
            + (
                f"; the advice uses up to {constraints.beyond_stable:g} times the share of the limit that runs have survived"
                if constraints.beyond_stable is not None
                else ""
            )
        )
    if fit is not None and abs(math.log(factor)) > 0.05:
        several = len({float(x.learning_rate) for x in fit.hyperparameters}) > 1
        if several:
            lines.append(
                "a force that does not keep growing with the learning rate as it did between the rates that were run"
            )
        else:
            lines.append(
                "a force that does not grow with the learning rate as assumed (one rate was run; the recommended one is "
                f"{factor:.3g} times as large; the bands hold an exponent of 1, a factor of 1.6 either way)"
            )
    if inertia is not None and "momentum" in ranges:
        lines.append("the model has its own inertia: momentum changes the margin here, not the course")
    if linear:
        lines.append("prompts of which all or none are solved: a linear force knows no groups without spread")
    if fit is not None and len(fit.runs) == 1 and "plateau" in fit.parameters:
        plateau = fit.parameters["plateau"]
        if not plateau.identified or plateau.upper - plateau.lower > np.ptp(fit.runs[0].reward):
            lines.append(
                "a plateau that is not where it is taken to be: the run has not bent far enough to show it"
            )
    lines.append("reward hacking, entropy collapse, truncation or a bug: they are not in the model")
    return lines


def _certificate(problem: Problem, ranges, admissible, budget, points, values) -> float:
    """Objective of the best point of an exhaustive grid, less that of the recommendation."""
    axes = []
    for name in COORDINATES:
        if name not in problem.free:
            axes.append(np.array([float(getattr(problem.base, name))]))
            continue
        low, high = ranges[name]
        if name in WHOLE:
            whole = admissible.get(name, np.arange(low, high + 1))
            keep = np.unique(np.round(np.linspace(0, len(whole) - 1, min(points, len(whole)))).astype(int))
            axes.append(whole[keep])
        elif name == "momentum":
            axes.append(1.0 - np.geomspace(1.0 - low, 1.0 - high, points))
        elif name == "learning_rate":
            axes.append(np.geomspace(low, high, points))
        else:
            axes.append(np.linspace(low, high, points))
    grid = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, len(COORDINATES))
    own = np.array([[values[name] for name in COORDINATES]])
    if problem.hold_batch:
        column = COORDINATES.index("group_size")
        grid[:, COORDINATES.index("prompts_per_step")] = float(problem.total_batch) / grid[:, column]
    result = grid_values(np.concatenate([own, grid]), budget, problem)
    return float(result[1:].max() - result[0])
