"""Fit the dynamics to a run, or to several runs of one task, and say what the data support."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxgrpo.errors import FitError
from jaxgrpo.inference import models as m
from jaxgrpo.inference.models import MODELS, Model, Specification, specify, starting_points
from jaxgrpo.inference.problem import Problem, make_problem, noise_std, smooth
from jaxgrpo.inference.search import Mode, find_modes
from jaxgrpo.inference.state_space import NODES
from jaxgrpo.inference.verdicts import DOUBT, verdicts
from jaxgrpo.logs.run import Run
from jaxgrpo.theory.forces import Harmonic, MixedCurvature, MixedDifficulty, Softmax
from jaxgrpo.theory.groups import normal_nodes
from jaxgrpo.theory.hyperparameters import Hyperparameters
from jaxgrpo.theory.schedules import Schedule, tabulated
from jaxgrpo.theory.task import Task
from jaxgrpo.theory.trajectory import predict

LEVEL = 0.9
# A posterior this wide relative to its prior says that the data did not speak.
_UNIDENTIFIED = 0.7
_DRAWS = 2000
# Parameters that mean the same in every model, whose intervals are averaged over the models where none was named.
_SHARED = ("plateau", "initial_reward")
# Models with less of the evidence than this do not enter the average.
_NEGLIGIBLE = 1e-3
# Problems of one shape that are fitted in one call of the compiled program.
_BATCH = 16

HyperparameterInput = Hyperparameters | Sequence[Hyperparameters] | None


@dataclass(frozen=True)
class Estimate:
    """A parameter with its 90 % interval.

    Attributes:
        value: Most probable value.
        lower: 5 % quantile of the posterior.
        upper: 95 % quantile.
        identified: Whether the data narrowed the prior; if not, the interval is the prior's.
        unit: Unit in words.
        note: What to know about it, or nothing.
    """

    value: float
    lower: float
    upper: float
    identified: bool = True
    unit: str = ""
    note: str = ""


@dataclass(frozen=True)
class ModelFit:
    """One model's fit, for comparison."""

    name: str
    title: str
    baseline: bool
    log_evidence: float
    r_squared: float
    r_squared_smoothed: float
    converged: bool
    parameters: dict[str, Estimate]


@dataclass(frozen=True, eq=False)
class _Posterior:
    """Gaussian approximation of one model's posterior, and its course on the grid."""

    model: Model
    specification: Specification
    mode: np.ndarray
    covariance: np.ndarray
    reward: np.ndarray
    sensitivity: np.ndarray
    log_evidence: float
    converged: bool


@dataclass(frozen=True, eq=False)
class Outlook:
    """A prediction under given settings.

    Attributes:
        steps: Optimizer steps.
        mean: Expected reward at the most probable parameters.
        lower: Lower end of the band of the expected reward.
        upper: Upper end.
    """

    steps: np.ndarray
    mean: np.ndarray
    lower: np.ndarray
    upper: np.ndarray


@dataclass(frozen=True, eq=False)
class Fit:
    """What a run says about its task.

    Attributes:
        runs: The runs, with the times at which their policies acted under `hyperparameters`.
        hyperparameters: Settings of each run.
        model: Name of the chosen model: the most probable one that has dynamics or, of those that the evidence does not
            tell apart, the one with the largest R^2.
        title: The same in words.
        task: The task, ready for `jaxgrpo.predict`, `reduce`, `stability`.
        schedules: Factor on the learning rate of each run as a function of the optimizer step; `None` where constant.
        parameters: Name to estimate, with 90 % intervals; those of plateau and initial reward are averaged over all models
            with dynamics by their evidence, unless one was named (`models` holds the intervals of each by itself).
        comparison: Model to log evidence, the most probable first.
        models: All models' fits.
        r_squared: Share of the rewards' variance that the expected reward explains.
        r_squared_smoothed: The same for centred moving means of both over max(5, n/20) points.
        explained_ceiling: What a perfect smooth curve would explain, from the noise's second differences.
        correlation: Lag-one autocorrelation of the residuals.
        verdicts: Sentences on what the data support.
        warnings: Assumptions, and what did not converge or is not identified.
        parts: Fits of the reward's parts, if they were asked for.
        offset: Constant part of the reward, if it was fitted part by part.
    """

    runs: tuple[Run, ...]
    hyperparameters: tuple[Hyperparameters, ...]
    model: str
    title: str
    task: Task
    schedules: tuple[Schedule | None, ...]
    parameters: dict[str, Estimate]
    comparison: dict[str, float]
    models: dict[str, ModelFit]
    r_squared: float
    r_squared_smoothed: float
    r_squared_per_run: tuple[float, ...]
    explained_ceiling: float
    correlation: float
    verdicts: list[str]
    warnings: list[str]
    problem: Problem
    posterior: _Posterior
    parts: dict[str, "Fit"] = field(default_factory=dict)
    offset: float = 0.0

    @property
    def run(self) -> Run:
        """The first run."""
        return self.runs[0]

    @property
    def schedule(self) -> Schedule | None:
        """Factor on the learning rate of the first run."""
        return self.schedules[0]

    @property
    def residuals(self) -> np.ndarray:
        """Rewards of the first run less their expectation."""
        return self.run.reward - self.mean(self.run.steps)

    def _on_grid(self, values: np.ndarray, steps, run: int) -> np.ndarray:
        interval = float(self.problem.observations.interval[run])
        return np.interp(np.asarray(steps, float), interval * np.arange(values.size), values)

    def _reach(self, run: int) -> float:
        return float(self.problem.observations.interval[run]) * (self.posterior.reward.shape[1] - 1)

    def mean(self, steps, run: int = 0) -> np.ndarray:
        """Expected reward.

        Args:
            steps: Optimizer steps since the log's start; beyond the log the schedule's last rate is kept.
            run: Which of the runs.

        Returns:
            The expected reward at these steps.
        """
        steps = np.atleast_1d(np.asarray(steps, float))
        if self.parts:
            return self.offset + np.sum([part.mean(steps, run) for part in self.parts.values()], axis=0)
        inside = steps <= self._reach(run)
        result = self._on_grid(self.problem.scale.to_reward(self.posterior.reward[run]), steps, run)
        if not inside.all():
            with jax.enable_x64(True):
                beyond = predict(self._acting(run), self.task, steps[~inside], self.schedules[run]).mean
            result[~inside] = np.asarray(beyond)
        return result

    def _acting(self, run: int) -> Hyperparameters:
        """Hyperparameters of a run whose momentum is the fitted one where the model has its own."""
        return _with_own_momentum(self.hyperparameters[run], _own_momentum(self.posterior))

    def predict(
        self,
        hyperparameters: Hyperparameters,
        steps,
        *,
        level: float = LEVEL,
        schedule: Schedule | None = None,
        draws: int = 128,
    ) -> "Outlook":
        """What the task would do under other settings, with the uncertainty of its parameters.

        At a learning rate that was not run, the exponent of the learning rate is drawn from its posterior, which is its
        prior (1, sd 0.5 in log) where only one rate was run. The model is taken as given, and so is the momentum of a
        model that has its own (first and second order).

        Args:
            hyperparameters: One configuration.
            steps: Optimizer steps.
            level: Probability that the band holds.
            schedule: Factor on the learning rate; constant by default.
            draws: Draws from the posterior.

        Returns:
            Expected reward and its band.
        """
        steps = np.atleast_1d(np.asarray(steps, float))
        theta = _draw(self.posterior, draws, seed=1, given_form=_own_momentum(self.posterior) is not None)
        known = float(self.hyperparameters[0].learning_rate)
        with jax.enable_x64(True):
            acting = _with_own_momentum(hyperparameters, _own_momentum(self.posterior))
            mode = np.asarray(predict(acting, self.task, steps, schedule).mean)
            tasks = _task(self.problem, self.posterior, theta)
            if not self.posterior.specification.free[m.EXPONENT]:
                exponent = np.exp(0.5 * np.random.default_rng(2).standard_normal(draws))
                tasks = _with_exponent(tasks, exponent, known)
            curves = np.asarray(eqx.filter_vmap(lambda t: predict(acting, t, steps, schedule).mean)(tasks))
        curves = np.where(np.isfinite(curves), curves, np.nan)
        tail = 0.5 * (1.0 - level)
        lower, upper = np.nanquantile(curves, [tail, 1.0 - tail], axis=0)
        return Outlook(steps, mode, lower, upper)

    @property
    def inertial_time(self) -> float | None:
        """Inertial time of a model that has its own instead of the optimizer's, in optimizer steps."""
        momentum = _own_momentum(self.posterior)
        return None if momentum is None else momentum / (1.0 - momentum)

    def draw(self, count: int, seed: int = 0) -> Task:
        """Tasks from the posterior, spread evenly (a Latin hypercube), so that few of them represent it.

        At rates that were not run they differ in the exponent of the learning rate as `predict` has it. The inertia of a
        model that has its own is held at its most probable value.

        Args:
            count: Number of draws.
            seed: Which of the hypercubes.

        Returns:
            The task with a leading axis of draws on every leaf.
        """
        from statistics import NormalDist

        rng = np.random.default_rng(seed)
        strata = np.stack([rng.permutation(count) for _ in range(len(m.PARAMETERS) + 1)], axis=1)
        normal = np.vectorize(NormalDist().inv_cdf)((strata + 0.5) / count)
        given = _own_momentum(self.posterior) is not None
        theta = _draw(self.posterior, count, seed, given_form=given, noise=normal[:, :-1])
        with jax.enable_x64(True):
            tasks = _task(self.problem, self.posterior, theta)
            if not self.posterior.specification.free[m.EXPONENT]:
                known = float(self.hyperparameters[0].learning_rate)
                tasks = _with_exponent(tasks, np.exp(0.5 * normal[:, -1]), known)
        return tasks

    def band(self, steps, level: float = LEVEL, run: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Interval of the expected reward, from the uncertainty of the parameters.

        Args:
            steps: Optimizer steps; beyond the grid of the fit the band keeps its last width.
            level: Probability that it holds.
            run: Which of the runs.

        Returns:
            Lower and upper bound.
        """
        from statistics import NormalDist

        steps = np.atleast_1d(np.asarray(steps, float))
        width = NormalDist().inv_cdf(0.5 + level / 2.0) * self._standard_error(steps, run)
        mean = self.mean(steps, run)
        return mean - width, mean + width

    def _standard_error(self, steps: np.ndarray, run: int) -> np.ndarray:
        if self.parts:
            return np.sqrt(np.sum([p._standard_error(steps, run) ** 2 for p in self.parts.values()], axis=0))
        slope = self.posterior.sensitivity[run]
        variance = np.einsum("np,pq,nq->n", slope, self.posterior.covariance, slope)
        return self._on_grid(self.problem.scale.unit * np.sqrt(np.maximum(variance, 0.0)), steps, run)

    def summary(self) -> str:
        """The fit as a plain table."""
        lines = [f"{self.run.name}: {self.title}", ""]
        for name, e in self.parameters.items():
            known = f"{e.lower:.4g} to {e.upper:.4g}" if e.identified else "not identified"
            lines.append(f"  {name.replace('_', ' '):<24} {e.value:>12.4g}   {known:<26} {e.unit}".rstrip())
        lines += ["", f"  R^2 {self.r_squared:.4f}, smoothed {self.r_squared_smoothed:.4f}"]
        lines[-1] += f", noise ceiling {self.explained_ceiling:.4f}"
        lines += [""] + [f"  {sentence}" for sentence in self.verdicts]
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """The fit as plain numbers and strings, for JSON."""
        return {
            "runs": [run.name for run in self.runs],
            "model": self.model,
            "title": self.title,
            "parameters": {name: vars(e) for name, e in self.parameters.items()},
            "comparison": self.comparison,
            "models": {
                name: {
                    "title": f.title,
                    "baseline": f.baseline,
                    "log_evidence": f.log_evidence,
                    "r_squared": f.r_squared,
                    "r_squared_smoothed": f.r_squared_smoothed,
                    "converged": f.converged,
                }
                for name, f in self.models.items()
            },
            "r_squared": self.r_squared,
            "r_squared_smoothed": self.r_squared_smoothed,
            "r_squared_per_run": list(self.r_squared_per_run),
            "explained_ceiling": self.explained_ceiling,
            "residual_correlation": self.correlation,
            "verdicts": self.verdicts,
            "warnings": self.warnings,
            "parts": {name: part.as_dict() for name, part in self.parts.items()},
        }


def fit(
    run: Run | Sequence[Run],
    hyperparameters: HyperparameterInput = None,
    *,
    model: str = "auto",
    bounds: tuple[float, float] | str | None = "auto",
    parts: bool = False,
) -> Fit:
    """Fit the dynamics to a run, or to several runs of one task jointly.

    Each model is fitted by maximum a posteriori as a state-space model on the grid of refresh cycles, from several starts.
    Intervals and evidence are Laplace approximations whose likelihood is tempered by the residuals' autocorrelation, since
    the difficulty of batches and what a model leaves out are not white noise. Runs fitted jointly share curvature,
    initial reward, plateau and noise, and, where their learning rates differ, one learning-rate exponent.

    Args:
        run: A run, or several.
        hyperparameters: Settings, for all runs or one for each; overrides what the logs say.
        model: `"auto"` for the most probable one, or a name: `first_order`, `second_order`, `mixed_curvature`,
            `softmax_std`, `softmax_mean`, `mixed_std`, `mixed_mean`.
        bounds: Lowest and highest possible reward; `"auto"` takes (0, 1) where all rewards lie within, `None` none.
        parts: Whether to fit the reward's parts one by one and sum them.

    Returns:
        The fit.

    Raises:
        FitError: If there are too few points, the rewards are constant, the model is unknown, or there are no parts.

    Example:
        >>> import jaxgrpo as jg, numpy as np
        >>> steps = np.arange(60.0)
        >>> noise = 0.02 * np.sin(7.0 * steps**2)
        >>> run = jg.Run(steps, steps, 0.8 - 0.6 * np.exp(-steps / 12.0) + noise)
        >>> result = jg.fit(run, jg.Hyperparameters(1e-6), model="first_order", bounds=None)
        >>> abs(result.parameters["plateau"].value - 0.8) < 0.02
        True
    """
    runs = (run,) if isinstance(run, Run) else tuple(run)
    if not runs:
        raise FitError("no runs to fit")
    names = _model_names(model)
    settings, notes = _settings(runs, hyperparameters)
    runs = tuple(_acting_run(r, h) for r, h in zip(runs, settings, strict=True))
    if parts:
        return _fit_parts(runs, settings, model, bounds, notes)
    return _fit_problems([make_problem(runs, settings, bounds)], names, model, [notes])[0]


def fit_each(
    runs: Sequence[Run],
    hyperparameters: HyperparameterInput = None,
    *,
    model: str = "auto",
    bounds: tuple[float, float] | str | None = "auto",
) -> list[Fit]:
    """Fit many runs, each on its own, in one compiled program per length of the grid.

    Args:
        runs: The runs.
        hyperparameters: As for `fit`.
        model: As for `fit`.
        bounds: As for `fit`.

    Returns:
        One fit a run, in order.

    Raises:
        FitError: As `fit`, for the first run that cannot be fitted.
    """
    names = _model_names(model)
    settings, notes = _settings(tuple(runs), hyperparameters)
    problems = [make_problem((_acting_run(r, h),), (h,), bounds) for r, h in zip(runs, settings, strict=True)]
    return _fit_problems(problems, names, model, [notes] * len(problems))


def _model_names(model: str) -> list[str]:
    dynamic = [name for name, entry in MODELS.items() if not entry.baseline]
    if model == "auto":
        return list(MODELS)
    if model not in dynamic:
        raise FitError(f"unknown model {model!r}; known are auto, {', '.join(dynamic)}")
    return [model]


def _settings(runs, hyperparameters) -> tuple[tuple[Hyperparameters, ...], list[str]]:
    if isinstance(hyperparameters, Hyperparameters):
        return (hyperparameters,) * len(runs), []
    if hyperparameters is not None:
        given = tuple(hyperparameters)
        if len(given) != len(runs):
            raise FitError(
                f"{len(given)} hyperparameters for {len(runs)} runs: give one for all, or one for each"
            )
        return given, []
    notes = []
    found = []
    for run in runs:
        h = run.hyperparameters
        if h is None:
            notes.append(
                f"{run.name}: no hyperparameters are known; the curvature is per unit of its own learning rate"
            )
            h = Hyperparameters(learning_rate=1.0)
        elif not float(h.learning_rate) > 0:
            notes.append(f"{run.name}: the learning rate is not known; the curvature is per unit of its own")
            h = eqx.tree_at(lambda x: x.learning_rate, h, jnp.asarray(1.0))
        found.append(h)
    return tuple(found), notes


def _acting_run(run: Run, h: Hyperparameters) -> Run:
    """The run as its times are under given hyperparameters; as it is where they are its own."""
    return run if run.hyperparameters is h else run.acting_under(h)


def _fit_parts(runs, settings, model, bounds, notes) -> Fit:
    if len(runs) > 1:
        raise FitError("several runs cannot be fitted part by part at once; fit them one by one")
    run = runs[0]
    usable = {
        name: values for name, values in run.parts.items() if np.isfinite(values).all() and np.ptp(values) > 0
    }
    if not usable:
        raise FitError(f"{run.name}: the log has no parts of the reward that vary")
    constant = [np.mean(v) for n, v in run.parts.items() if n not in usable and np.isfinite(v).all()]
    rest = run.reward - np.sum(list(usable.values()), axis=0) - np.sum(constant)
    if np.std(rest) > 0.05 * np.std(run.reward):
        raise FitError(
            f"{run.name}: the parts do not add up to the reward (weights, or parts that are not logged)"
        )
    names = _model_names(model)
    whole = _fit_problems([make_problem(runs, settings, bounds)], names, model, [notes])[0]
    problems = [make_problem((replace(run, reward=values),), settings, bounds) for values in usable.values()]
    fits = dict(zip(usable, _fit_problems(problems, names, model, [[]] * len(problems)), strict=True))
    offset = float(np.mean(rest)) + float(np.sum(constant))
    mean = offset + np.sum([part.mean(run.steps) for part in fits.values()], axis=0)
    raw, smoothed = _explained(run.reward, mean)
    return replace(
        whole,
        parts=fits,
        offset=offset,
        r_squared=raw,
        r_squared_smoothed=smoothed,
        r_squared_per_run=(raw,),
        warnings=[
            *whole.warnings,
            "task and parameters are those of the whole reward; mean and R^2 those of the parts' sum",
        ],
    )


def _explained(reward: np.ndarray, mean: np.ndarray) -> tuple[float, float]:
    def share(y, f):
        total = np.sum((y - y.mean()) ** 2)
        return float(1.0 - np.sum((y - f) ** 2) / total) if total > 0 else float("nan")

    return share(reward, mean), share(smooth(reward), smooth(mean))


def _stack(items):
    return type(items[0])(*(np.stack(values) for values in zip(*items, strict=True)))


def _fit_problems(problems: list[Problem], names: list[str], model: str, notes: list[list[str]]) -> list[Fit]:
    """Fit problems in batches of one shape."""
    groups: dict[tuple, list[int]] = {}
    depths = []
    for i, problem in enumerate(problems):
        depth = int(np.ceil(problem.observations.lag.max()))
        depths.append(depth)
        groups.setdefault((problem.observations.reward.shape, depth), []).append(i)
    results: list[Fit | None] = [None] * len(problems)
    for (_, depth), members in groups.items():
        size = 1 if len(members) == 1 else _BATCH
        for first in range(0, len(members), size):
            chosen = members[first : first + size]
            padded = chosen + [chosen[0]] * (size - len(chosen))
            specifications = [[specify(MODELS[name], problems[i]) for name in names] for i in padded]
            starts = np.stack([np.stack([starting_points(s) for s in row]) for row in specifications])
            stacked = _stack([_stack(row) for row in specifications])
            observations = _stack([problems[i].observations for i in padded])
            with jax.enable_x64(True):
                modes = find_modes(starts, stacked, observations, depth)
            for position, i in enumerate(chosen):
                mode = Mode(*(leaf[position] for leaf in modes))
                results[i] = _conclude(problems[i], specifications[position], mode, names, model, notes[i])
    return [result for result in results if result is not None]


def _row_means(problem: Problem, reward: np.ndarray) -> list[np.ndarray]:
    """Expected reward of every row of every run."""
    means = []
    for run, course, interval in zip(problem.runs, reward, problem.observations.interval, strict=True):
        cycle = np.floor(run.steps / interval + 1e-6).astype(int)
        means.append(problem.scale.to_reward(course[cycle]))
    return means


def _lag_one(residuals: list[np.ndarray]) -> float:
    """Lag-one autocorrelation of residuals."""
    pairs = [(r[:-1] * r[1:]).sum() for r in residuals]
    total = sum((r**2).sum() for r in residuals)
    return float(sum(pairs) / total) if total > 0 else 0.0


def _conclude(problem, specifications, mode, names, model, notes) -> Fit:
    """From modes to a fit: evidence, choice, intervals, words."""
    rows = [_row_means(problem, mode.reward[i]) for i in range(len(names))]
    rewards = [run.reward for run in problem.runs]
    residuals = [[y - f for y, f in zip(rewards, row, strict=True)] for row in rows]
    dynamic = [i for i, name in enumerate(names) if not MODELS[name].baseline]

    # Correlated residuals carry less information than their number: temper the likelihood by their correlation time,
    # as the model that leaves the least of it finds.
    correlation = min(_lag_one(r) for r in residuals)
    correlation = float(np.clip(correlation, 0.0, 0.9))
    temper = (1.0 - correlation) / (1.0 + correlation)
    posteriors = [
        _posterior(problem, MODELS[name], specifications[i], mode, i, temper) for i, name in enumerate(names)
    ]
    if not any(np.isfinite(posteriors[i].log_evidence) for i in dynamic):
        raise FitError(
            f"{problem.runs[0].name}: no model could be fitted; look at the rewards for values out of range"
        )
    model_fits = {}
    for i in sorted(range(len(names)), key=lambda i: -posteriors[i].log_evidence):
        joined, f = np.concatenate(rewards), np.concatenate(rows[i])
        raw, smoothed = _explained(joined, f) if len(rewards) == 1 else _pooled(rewards, rows[i])
        model_fits[names[i]] = ModelFit(
            names[i],
            MODELS[names[i]].title,
            MODELS[names[i]].baseline,
            posteriors[i].log_evidence,
            raw,
            smoothed,
            posteriors[i].converged,
            _estimates(problem, posteriors[i]),
        )
    # Of models that the evidence does not tell apart, the one that leaves least unexplained.
    top = max(posteriors[i].log_evidence for i in dynamic)
    close = [i for i in dynamic if posteriors[i].log_evidence > top - DOUBT]
    best = max(close, key=lambda i: model_fits[names[i]].r_squared)
    chosen = posteriors[best]
    entry = model_fits[names[best]]
    per_run = tuple(_explained(y, f)[0] for y, f in zip(rewards, rows[best], strict=True))
    spread = np.concatenate([y - y.mean() for y in rewards])
    noise = np.sqrt(np.mean([noise_std(y) ** 2 for y in rewards]))
    warnings = [*notes, *problem.assumptions]
    if not chosen.converged:
        warnings.append("the search for the chosen model did not converge: read its numbers as a sketch")
    unknown = [n.replace("_", " ") for n, e in entry.parameters.items() if not e.identified]
    if unknown:
        warnings.append(f"not identified by this log (the interval is the prior's): {', '.join(unknown)}")
    comparison = {name: f.log_evidence for name, f in model_fits.items()}
    parameters = entry.parameters
    if model == "auto":
        parameters = {
            **parameters,
            **_averaged(problem, chosen, [posteriors[i] for i in dynamic], parameters),
        }
    return Fit(
        runs=problem.runs,
        hyperparameters=problem.hyperparameters,
        model=entry.name,
        title=entry.title,
        task=_task(problem, chosen),
        schedules=tuple(_schedule(r, h) for r, h in zip(problem.runs, problem.hyperparameters, strict=True)),
        parameters=parameters,
        comparison=comparison,
        models=model_fits,
        r_squared=entry.r_squared,
        r_squared_smoothed=entry.r_squared_smoothed,
        r_squared_per_run=per_run,
        explained_ceiling=float(1.0 - noise**2 / np.mean(spread**2)),
        correlation=_lag_one(residuals[best]),
        verdicts=verdicts(model_fits, names[best], problem) if model == "auto" else [],
        warnings=warnings,
        problem=problem,
        posterior=chosen,
    )


def _pooled(rewards, means) -> tuple[float, float]:
    """R^2 of several runs about their common mean."""
    raw = np.concatenate(rewards), np.concatenate(means)
    soft = np.concatenate([smooth(y) for y in rewards]), np.concatenate([smooth(f) for f in means])
    return tuple(  # pyright: ignore[reportReturnType]
        float(1.0 - np.sum((y - f) ** 2) / np.sum((y - y.mean()) ** 2)) for y, f in (raw, soft)
    )


def _posterior(problem, model, specification, mode: Mode, index: int, temper: float) -> _Posterior:
    parameters = mode.parameters[index]
    free = specification.free
    precision = np.where(free, 1.0 / specification.spread**2, 1.0)
    data = mode.information[index] - np.diag(precision)
    information = temper * np.where(np.isfinite(data), data, 0.0) + np.diag(precision)
    offset = np.where(free, (parameters - specification.centre) / specification.spread, 0.0)
    prior = 0.5 * float(np.sum(offset**2))
    likelihood = -(float(mode.objective[index]) - prior)
    n = problem.observed_cycles
    likelihood -= 0.5 * n * np.log(2.0 * np.pi) + n * np.log(problem.scale.unit)
    sign, log_det = np.linalg.slogdet(information)
    evidence = temper * likelihood - prior - float(np.log(specification.spread[free]).sum()) - 0.5 * log_det
    usable = bool(sign > 0 and np.isfinite(evidence) and np.isfinite(mode.objective[index]))
    covariance = np.linalg.inv(information) if usable else np.diag(1.0 / precision)
    covariance = np.where(free[:, None] & free[None, :], covariance, 0.0)
    return _Posterior(
        model,
        specification,
        parameters,
        covariance,
        mode.reward[index],
        np.where(np.isfinite(mode.sensitivity[index]), mode.sensitivity[index], 0.0),
        float(evidence) if usable else -np.inf,
        bool(mode.converged[index]) and usable,
    )


def _sigmoid(x):
    return 1.0 / (1.0 + np.exp(-np.clip(x, -700.0, 700.0)))


def _natural(problem: Problem, posterior: _Posterior, theta: np.ndarray) -> dict[str, tuple[Any, int, str]]:
    """Natural parameters: name to values, the coordinate they rest on, and unit."""
    model, spec = posterior.model, posterior.specification
    scale, h = problem.scale, problem.hyperparameters[0]
    plateau = theta[..., m.PLATEAU]
    if spec.bounded:
        plateau = spec.lower + (spec.upper - spec.lower) * _sigmoid(plateau)
    out = {"plateau": (scale.to_reward(plateau), m.PLATEAU, "reward")}
    if model.curve == m.CONSTANT:
        out["observation_noise"] = (
            scale.unit * np.exp(theta[..., m.OBSERVATION]),
            m.OBSERVATION,
            "reward, one row",
        )
        return out
    initial = theta[..., m.START]
    if not model.harmonic:
        floor = theta[..., m.FLOOR]
        nodes, weights = normal_nodes(NODES)
        spread = np.exp(theta[..., m.FORM]) if model.mixed else np.zeros_like(initial)
        share = _sigmoid(initial[..., None] + spread[..., None] * nodes) @ weights
        initial = floor + (plateau - floor) * share
    out["initial_reward"] = (scale.to_reward(initial), m.START, "reward")
    rate = np.exp(theta[..., m.RATE]) / float(problem.observations.horizon)
    momentum, eta = float(h.momentum), float(h.learning_rate)
    if model.curve == m.DYNAMIC:
        curvature = rate * (1.0 - momentum) / (float(h.dampening) * eta)
        out["curvature"] = (curvature, m.RATE, "per unit of learning rate")
    if model.harmonic and (model.curve == m.DYNAMIC or model.name == "exponential"):
        lag = float(h.mean_lag) if model.curve == m.DYNAMIC else 0.0
        out["timescale"] = (np.maximum(1.0 / rate - lag, 0.0), m.RATE, "optimizer steps")
    if model.momentum == m.FREE_MOMENTUM:
        out["inertial_time"] = (np.exp(theta[..., m.FORM]), m.FORM, "optimizer steps")
    if model.mixed and model.harmonic:
        out["curvature_spread"] = (np.exp(theta[..., m.FORM]), m.FORM, "in logarithm")
    elif model.mixed:
        out["spread"] = (np.exp(theta[..., m.FORM]), m.FORM, "logits")
    if not model.harmonic and spec.free[m.FLOOR]:
        out["floor"] = (scale.to_reward(theta[..., m.FLOOR]), m.FLOOR, "reward")
    if model.curve in (m.SIGMOID, m.POWER) and m.FORM in model.free:
        out["exponent"] = (np.exp(theta[..., m.FORM]), m.FORM, "")
    if spec.free[m.EXPONENT]:
        out["learning_rate_exponent"] = (np.exp(theta[..., m.EXPONENT]), m.EXPONENT, "")
    out["observation_noise"] = (
        scale.unit * np.exp(theta[..., m.OBSERVATION]),
        m.OBSERVATION,
        "reward, one row",
    )
    return out


def _draw(
    posterior: _Posterior, draws: int, seed: int, given_form: bool = False, noise: np.ndarray | None = None
) -> np.ndarray:
    """Draws from the Gaussian approximation of the posterior, in unconstrained coordinates.

    With `given_form` the form parameter (the inertia of a model that has its own) stays at the mode; `noise` are the standard
    normal numbers to make them from.
    """
    covariance = posterior.covariance
    if given_form and covariance[m.FORM, m.FORM] > 0:
        column = covariance[:, m.FORM]
        covariance = covariance - np.outer(column, column) / column[m.FORM]
    if noise is None:
        noise = np.random.default_rng(seed).standard_normal((draws, len(m.PARAMETERS)))
    values, vectors = np.linalg.eigh(covariance)
    return posterior.mode + noise @ (vectors * np.sqrt(np.maximum(values, 0.0))).T


def _estimates(problem: Problem, posterior: _Posterior) -> dict[str, Estimate]:
    spec = posterior.specification
    draws = _draw(posterior, _DRAWS, seed=0)
    at_mode = _natural(problem, posterior, posterior.mode)
    sampled = _natural(problem, posterior, draws)
    estimates = {}
    tail = 0.5 * (1.0 - LEVEL)
    for name, (value, index, unit) in at_mode.items():
        lower, upper = np.quantile(sampled[name][0], [tail, 1.0 - tail])
        width = np.sqrt(posterior.covariance[index, index]) / spec.spread[index]
        known = bool(width < _UNIDENTIFIED) or name == "observation_noise"
        estimates[name] = Estimate(float(value), float(lower), float(upper), known, unit)
    return estimates


def _averaged(
    problem: Problem, chosen: _Posterior, posteriors: list[_Posterior], estimates: dict[str, Estimate]
) -> dict[str, Estimate]:
    """Intervals of the shared parameters over all models, each weighted by its evidence."""
    evidence = np.array([p.log_evidence for p in posteriors])
    weights = np.exp(evidence - evidence.max())
    weights /= weights.sum()
    entering = [(p, w) for p, w in zip(posteriors, weights, strict=True) if w > _NEGLIGIBLE or p is chosen]
    drawn = [_natural(problem, p, _draw(p, _DRAWS, seed=0)) for p, _ in entering]
    each = np.repeat([w for _, w in entering], _DRAWS)
    tail = 0.5 * (1.0 - LEVEL)
    result = {}
    for name in _SHARED:
        values = np.concatenate([np.broadcast_to(d[name][0], _DRAWS) for d in drawn])
        lower, upper = np.quantile(values, [tail, 1.0 - tail], weights=each, method="inverted_cdf")
        estimate = estimates[name]
        # The most probable value is that of the chosen model and may lie outside the others'.
        result[name] = replace(
            estimate, lower=min(float(lower), estimate.value), upper=max(float(upper), estimate.value)
        )
    return result


def _own_momentum(posterior: _Posterior) -> float | None:
    """Momentum of a model that does not take the optimizer's."""
    if posterior.model.momentum == m.OPTIMIZER_MOMENTUM:
        return None
    if posterior.model.momentum == m.NO_MOMENTUM:
        return 0.0
    inertia = float(np.exp(posterior.mode[m.FORM]))
    return inertia / (1.0 + inertia)


def _with_own_momentum(h: Hyperparameters, momentum: float | None) -> Hyperparameters:
    """Hyperparameters with another momentum, at the learning rate that keeps the rate of relaxation."""
    if momentum is None:
        return h
    return Hyperparameters(
        learning_rate=float(h.learning_rate * h.dampening / (1.0 - h.momentum)),
        momentum=momentum,
        group_size=h.group_size,
        refresh_interval=h.refresh_interval,
        prompts_per_step=h.prompts_per_step,
        epochs_per_rollout=h.epochs_per_rollout,
        async_lag=h.async_lag,
        staleness=h.staleness,
        convention="ema",
    )


def _task(problem: Problem, posterior: _Posterior, theta: np.ndarray | None = None) -> Task:
    """The task of a dynamic model at its mode, or at other parameters (leading axes are several tasks)."""
    theta = posterior.mode if theta is None else theta
    natural = {name: value for name, (value, _, _) in _natural(problem, posterior, theta).items()}
    model, h, scale = posterior.model, problem.hyperparameters[0], problem.scale
    leaf = lambda value: jnp.asarray(value) if np.ndim(value) else float(value)
    force: Any = Harmonic()
    peak = 1.0
    if model.harmonic and model.mixed:
        force = MixedCurvature(leaf(natural["curvature_spread"]))
    if not model.harmonic:
        floor = scale.to_reward(theta[..., m.FLOOR])
        height = np.abs(natural["plateau"] - floor)
        peak = (0.5 if model.normalisation == "std" else 0.384) / np.maximum(height, 1e-9)
        if model.mixed:
            force = MixedDifficulty(leaf(natural["spread"]), model.normalisation, leaf(floor))
        else:
            force = Softmax(model.normalisation, leaf(floor))
    # The force of one rollout scatters as the reward of one does, times the curvature.
    part = _sigmoid(theta[..., m.PROCESS])
    rollouts = np.sqrt(float(h.rollouts_per_step))
    noise = part * natural["observation_noise"] * peak * natural["curvature"] * rollouts
    several = bool(posterior.specification.free[m.EXPONENT])
    exponent = natural["learning_rate_exponent"] if several else np.ones_like(theta[..., 0])
    reference = np.full_like(theta[..., 0], float(h.learning_rate)) if several else None
    return Task(
        curvature=leaf(natural["curvature"]),
        plateau=leaf(natural["plateau"]),
        initial_reward=leaf(natural["initial_reward"]),
        rollout_noise=leaf(noise),
        force=force,
        learning_rate_exponent=leaf(exponent),
        reference_learning_rate=None if reference is None else leaf(reference),
    )


def _with_exponent(tasks: Task, exponent: np.ndarray, reference: float) -> Task:
    """Tasks that differ in how the force grows with the learning rate, measured at a given one."""
    return eqx.tree_at(
        lambda t: (t.learning_rate_exponent, t.reference_learning_rate),
        tasks,
        (jnp.asarray(exponent), jnp.full(exponent.shape, reference)),
        is_leaf=lambda x: x is None,
    )


def _schedule(run: Run, h: Hyperparameters) -> Schedule | None:
    """Factor on the learning rate from the log's own column, if it varies."""
    del h
    logged = run.channels.get("learning_rate")
    if logged is None:
        return None
    known = np.isfinite(logged) & (logged >= 0)
    if known.sum() < 2 or not logged[known].max() > 0:
        return None
    values = logged[known] / logged[known].max()
    if np.ptp(values) < 1e-3:
        return None
    return tabulated(run.steps[known], values)
