"""Where a run will end: a calibrated distribution of its expected reward at steps that are still to come.

A fit that is good in sample is not a forecast. This is an exact Bayesian average instead: over the timescale of what is
still to be learnt, over its size, over the drift of the level and over the noise, each conditionally linear and Gaussian.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from statistics import NormalDist

import jax
import numpy as np

from jaxgrpo.errors import ForecastError
from jaxgrpo.inference.fit import Estimate
from jaxgrpo.inference.problem import noise_std, smooth
from jaxgrpo.logs.run import Run

LEVEL = 0.9
FEWEST_POINTS = 6

# Relaxation times of the shapes in units of the planned learning-rate time of the whole run: 1 - exp(-u/t), and
# 1 - (1 + u/t)^(-1/2) for tails longer than exponential.
_EXPONENTIAL = np.array([0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.5])
_ALGEBRAIC = np.array([0.02, 0.08, 0.3, 1.0])
_SHAPES = _EXPONENTIAL.size + _ALGEBRAIC.size
# Variance of the level's random walk per row, and that of its prior, in units of the noise variance of a row.
_DRIFT = np.array([0.0, 1e-4, 1e-3, 1e-2, 0.05, 0.2])
_DRIFT_PRIOR = np.array([1.0, 1.0, 1.0, 1.0, 0.8, 0.4]) / 5.2
# What is to come may drift otherwise than what was seen: factors on the walk's variance, and their probabilities.
_CHANGE = np.array([0.1, 1.0, 10.0])
_CHANGE_PRIOR = np.array([0.25, 0.5, 0.25])
_FREE_LEVEL = 1e4
# Noise of a row over that of the rewards' second differences, and the spread of its prior in logarithm.
_NOISE = np.array([0.6, 0.75, 0.9, 1.05, 1.25, 1.5, 1.9])
_NOISE_SPREAD = 0.35
# The gain of a shape is N(m A, A^2) in units of the noise: either sign alike, or upwards.
_GAIN = np.array([0.7, 2.0, 6.0, 20.0])
_UPWARDS = np.array([0.0, 1.0])
# Prior probability that nothing but the drift moves the level.
_LEVEL_ONLY = 0.3
# Components with less than this share of the largest weight are left out, and so are the lightest with this share in all.
_NEGLIGIBLE = 1e-3
# Share of rows at an extreme value from which on it is taken for a bound.
_ATOM = 0.05
_KNOTS = 48
_GRID = 256

_TABLE = np.linspace(-8.0, 8.0, 16001)
_CUMULATIVE = np.array([NormalDist().cdf(x) for x in _TABLE])


def _normal_cdf(x: np.ndarray) -> np.ndarray:
    """By linear interpolation of a table, to 1e-7; its regular grid makes this several times faster than `np.interp`."""
    place = np.clip((np.asarray(x) + 8.0) * 1000.0, 0.0, 15999.999)
    index = place.astype(np.int32)
    low = _CUMULATIVE[index]
    return low + (place - index) * (_CUMULATIVE[index + 1] - low)


def _shapes(u: np.ndarray) -> np.ndarray:
    """The shapes at learning-rate times (fractions of the plan), on a last axis."""
    u = np.asarray(u, float)[..., None]
    return np.concatenate([-np.expm1(-u / _EXPONENTIAL), 1.0 - (1.0 + u / _ALGEBRAIC) ** -0.5], axis=-1)


@dataclass(frozen=True, eq=False)
class _Mixture:
    """Gaussian components, in units of the noise and relative to the first reward.

    Each has a level and a gain whose errors are independent once the gain acts through `reached`, the filtered shape.
    """

    weight: np.ndarray
    sigma: np.ndarray
    level: np.ndarray
    level_variance: np.ndarray
    drift: np.ndarray
    gain: np.ndarray
    gain_variance: np.ndarray
    reached: np.ndarray
    shape: np.ndarray

    def with_changed_drift(self) -> "_Mixture":
        """Every component that drifts once for each factor on the drift to come."""
        parts = {f.name: np.tile(getattr(self, f.name), _CHANGE.size) for f in fields(self)}
        still = np.tile(self.drift == 0, _CHANGE.size)
        first = np.arange(still.size) < self.weight.size
        weight = np.outer(_CHANGE_PRIOR, self.weight).ravel()
        parts["weight"] = np.where(still, np.where(first, parts["weight"], 0.0), weight)
        parts["drift"] = np.outer(_CHANGE, self.drift).ravel()
        # The lightest of the many components, a thousandth together, cost the most time.
        order = np.argsort(parts["weight"])[::-1]
        kept = order[: 1 + np.searchsorted(np.cumsum(parts["weight"][order]), 1.0 - _NEGLIGIBLE)]
        parts = {name: part[kept] for name, part in parts.items()}
        parts["weight"] = parts["weight"] / parts["weight"].sum()
        return _Mixture(**parts)


def _filter(values: list[np.ndarray], times: list[np.ndarray]):
    """Level filters over padded runs: sufficient statistics of the rewards and of all shapes, for each drift."""
    longest = max(len(v) for v in values)
    runs, drifts = len(values), _DRIFT.size
    columns = np.zeros((longest, runs, 1, 1 + _SHAPES))
    there = np.zeros((longest, runs, 1), bool)
    moved = np.zeros((longest, runs, 1))
    for i, (y, u) in enumerate(zip(values, times, strict=True)):
        n = len(y)
        columns[:n, i, 0, 0] = y
        columns[:n, i, 0, 1:] = _shapes(u)
        there[:n, i] = True
        step = np.diff(u)
        mean = step.mean()
        # The level drifts by learning, not by the clock; a row of average progress is the unit.
        moved[: n - 1, i, 0] = step / mean if mean > 0 else 1.0
    variance = np.full((runs, drifts), _FREE_LEVEL)
    level = np.zeros((runs, drifts, 1 + _SHAPES))
    log_variance = np.zeros((runs, drifts))
    own = np.zeros((runs, drifts))
    cross = np.zeros((runs, drifts, _SHAPES))
    square = np.zeros((runs, drifts, _SHAPES))
    for column, here, progress in zip(columns, there, moved, strict=True):
        total = variance + 1.0
        innovation = np.where(here[..., None], column - level, 0.0)
        scaled = innovation / total[..., None]
        own += innovation[..., 0] * scaled[..., 0]
        cross += innovation[..., :1] * scaled[..., 1:]
        square += innovation[..., 1:] * scaled[..., 1:]
        log_variance += np.where(here, np.log(total), 0.0)
        level += variance[..., None] * scaled
        variance = np.where(here, variance / total, variance) + _DRIFT * progress
    return level, variance, log_variance, own, cross, square


def _mixtures(values: list[np.ndarray], times: list[np.ndarray]) -> list[_Mixture]:
    level, variance, log_variance, own, cross, square = _filter(values, times)
    counts = np.array([len(v) for v in values], float).reshape(-1, 1, 1, 1, 1, 1)
    # Axes: runs, drift, noise, shape, size of the gain, its direction.
    sigma = _NOISE.reshape(1, 1, -1, 1, 1, 1)
    size = _GAIN.reshape(1, 1, 1, 1, -1, 1)
    centre = _UPWARDS.reshape(1, 1, 1, 1, 1, -1) * size * sigma
    put = lambda a: a[:, :, None, ..., None, None]
    precision = 1.0 / size**2 + put(square)
    linear = centre / size**2 + put(cross)
    gain = linear / precision
    squares = own[:, :, None, None, None, None] + centre**2 / size**2 - linear**2 / precision
    prior_drift = np.log(_DRIFT_PRIOR).reshape(1, -1, 1, 1, 1, 1)
    prior_noise = -0.5 * (np.log(sigma) / _NOISE_SPREAD) ** 2
    common = prior_drift + prior_noise - counts * np.log(sigma) - 0.5 * put(log_variance[..., None])
    options = _SHAPES * _GAIN.size * _UPWARDS.size
    rising = (
        common
        - 0.5 * (squares / sigma**2 + np.log(precision * size**2))
        + np.log((1 - _LEVEL_ONLY) / options)
    )
    still = common - 0.5 * own[:, :, None, None, None, None] / sigma**2 + np.log(_LEVEL_ONLY)
    result = []
    for i in range(len(values)):
        evidence = np.concatenate([rising[i].ravel(), still[i].ravel()])
        weight = np.exp(evidence - evidence.max())
        kept = np.flatnonzero(weight > _NEGLIGIBLE)
        d, s, f, a, _ = np.unravel_index(np.minimum(kept, rising[i].size - 1), rising[i].shape)
        alone = kept >= rising[i].size
        d_still, s_still = np.unravel_index(np.maximum(kept - rising[i].size, 0), still[i].shape[:2])
        d, s = np.where(alone, d_still, d), np.where(alone, s_still, s)
        chosen = np.broadcast_to(gain[i], rising[i].shape).ravel()[np.minimum(kept, rising[i].size - 1)]
        narrow = (
            1.0 / np.broadcast_to(precision[i], rising[i].shape).ravel()[np.minimum(kept, rising[i].size - 1)]
        )
        weight = weight[kept]
        result.append(
            _Mixture(
                weight / weight.sum(),
                _NOISE[s],
                level[i, d, 0],
                variance[i, d],
                _DRIFT[d],
                np.where(alone, 0.0, chosen),
                np.where(alone, 0.0, narrow),
                level[i, d, 1 + f],
                f,
            ).with_changed_drift()
        )
    return result


@dataclass(frozen=True, eq=False)
class Decision:
    """Whether to stop, under a rule that the user states.

    Attributes:
        stop: Whether the rule says to stop.
        probability: Chance of the stated gain within the stated steps.
        expected_gain: Expected gain over these steps.
        reason: The rule and what it found, in a sentence.
    """

    stop: bool
    probability: float
    expected_gain: float
    reason: str


@dataclass(frozen=True, eq=False)
class Forecast:
    """Distribution of the expected reward of a run at steps to come.

    Attributes:
        run: The run that was seen.
        steps: Optimizer steps of the forecast.
        horizon: Optimizer step at which the run is planned to end.
        bounds: Lowest and highest possible reward, or nothing.
        assumptions: What was assumed, in sentences.
    """

    run: Run
    steps: np.ndarray
    horizon: float
    bounds: tuple[float, float] | None
    assumptions: list[str]
    _mixture: _Mixture
    _unit: float
    _time: Callable[[np.ndarray], np.ndarray]
    _laws: dict[bool, tuple[np.ndarray, np.ndarray, np.ndarray]] = field(default_factory=dict)

    @property
    def now(self) -> float:
        """Last optimizer step that was seen."""
        return float(self.run.steps[-1])

    def _rows(self, steps: np.ndarray) -> np.ndarray:
        """Rows of average progress from the last step seen to others: the unit of the drift."""
        start, end = self._time(np.array([self.run.steps[0], self.run.steps[-1]]))
        row = (end - start) / max(len(self.run) - 1, 1)
        beyond = np.maximum(self._time(steps) - end, 0.0)
        return beyond / row if row > 0 else np.zeros_like(beyond)

    def _components(self, steps: np.ndarray, noise: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Means and standard deviations of all components at steps, components on the first axis."""
        mix = self._mixture
        gap = _shapes(self._time(steps)).T[mix.shape] - mix.reached[:, None]
        mean = mix.level[:, None] + mix.gain[:, None] * gap
        variance = mix.level_variance[:, None] + mix.drift[:, None] * self._rows(steps)
        variance = variance + mix.gain_variance[:, None] * gap**2 + float(noise)
        return (
            float(self.run.reward[0]) + self._unit * mean,
            self._unit * mix.sigma[:, None] * np.sqrt(variance),
        )

    def _clip(self, values):
        return values if self.bounds is None else np.clip(values, *self.bounds)

    def _law(self, noise: bool = False) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Steps (knots between which the rest is interpolated), grids of rewards and cumulative probabilities on them."""
        if noise in self._laws:
            return self._laws[noise]
        steps = self.steps
        if steps.size > _KNOTS:
            steps = np.linspace(steps.min(), steps.max(), _KNOTS)
        mean, std = self._components(steps, noise)
        weight = self._mixture.weight
        centre = weight @ mean
        spread = np.sqrt(np.maximum(weight @ (std**2 + (mean - centre) ** 2), 1e-300))
        low = np.maximum((mean - 6.0 * std).min(axis=0), centre - 12.0 * spread)
        high = np.minimum((mean + 6.0 * std).max(axis=0), centre + 12.0 * spread)
        grid = np.linspace(low, high, _GRID)
        probability = np.empty_like(grid)
        for j in range(steps.size):
            probability[:, j] = _normal_cdf((grid[:, j, None] - mean[:, j]) / std[:, j]) @ weight
        self._laws[noise] = steps, grid, probability
        return self._laws[noise]

    def _at_steps(self, knots: np.ndarray, values: np.ndarray) -> np.ndarray:
        return values if self.steps.size <= _KNOTS else np.interp(self.steps, knots, values)

    def _moment(self, power: int) -> np.ndarray:
        knots, grid, probability = self._law()
        mass = np.diff(probability, axis=0, prepend=0.0)
        mass[-1] += 1.0 - probability[-1]
        middle = np.concatenate([grid[:1], 0.5 * (grid[1:] + grid[:-1])])
        return self._at_steps(knots, np.sum(mass * self._clip(middle) ** power, axis=0))

    @property
    def mean(self) -> np.ndarray:
        """Expectation of the expected reward at `steps`."""
        return self._moment(1)

    @property
    def std(self) -> np.ndarray:
        """Standard deviation of the expected reward at `steps`."""
        return np.sqrt(np.maximum(self._moment(2) - self._moment(1) ** 2, 0.0))

    def quantile(self, q: float, logged: bool = False) -> np.ndarray:
        """Quantile of the expected reward at `steps`.

        Args:
            q: Probability, in (0, 1).
            logged: Whether of the reward that a row of the log would show instead, noise of its batch included.

        Returns:
            The quantile, one value a step.

        Raises:
            ValueError: If q is not a probability.
        """
        if not 0.0 < q < 1.0:
            raise ValueError(f"q must lie between 0 and 1, got {q:g}")

        knots, grid, probability = self._law(logged)
        values = [np.interp(q, probability[:, j], grid[:, j]) for j in range(knots.size)]
        return self._clip(self._at_steps(knots, np.array(values)))

    def interval(self, level: float = LEVEL, logged: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Central interval of the expected reward at `steps`.

        Args:
            level: Probability that it holds, in (0, 1).
            logged: Whether for the reward that a row of the log would show.

        Returns:
            Lower and upper bound.
        """
        return self.quantile(0.5 - level / 2.0, logged), self.quantile(0.5 + level / 2.0, logged)

    def sample(self, key, n: int, steps: np.ndarray | None = None) -> np.ndarray:
        """Courses of the expected reward, drawn jointly over the steps.

        Args:
            key: JAX random key.
            n: Number of courses.
            steps: Optimizer steps, ascending; those of the forecast by default.

        Returns:
            Rewards, n x steps.
        """
        steps = self.steps if steps is None else np.asarray(steps, float)
        seed = np.asarray(jax.random.bits(key, (4,), "uint32"))
        generator = np.random.default_rng([int(word) for word in seed])
        mix = self._mixture
        i = generator.choice(mix.weight.size, size=n, p=mix.weight)
        order = np.argsort(steps)
        u, rows = self._time(steps[order]), self._rows(steps[order])
        walk = np.cumsum(
            np.sqrt(mix.drift[i, None] * np.diff(rows, prepend=0.0))
            * generator.standard_normal((n, steps.size)),
            axis=1,
        )
        gap = _shapes(u).T[mix.shape[i]] - mix.reached[i, None]
        level = mix.level[i] + mix.sigma[i] * np.sqrt(mix.level_variance[i]) * generator.standard_normal(n)
        gain = mix.gain[i] + mix.sigma[i] * np.sqrt(mix.gain_variance[i]) * generator.standard_normal(n)
        course = level[:, None] + gain[:, None] * gap + mix.sigma[i, None] * walk
        result = np.empty((n, steps.size))
        result[:, order] = self._clip(float(self.run.reward[0]) + self._unit * course)
        return result

    @property
    def plateau(self) -> Estimate:
        """Where the expected reward would settle with all learnt that is to be learnt.

        The level's drift up to the horizon is part of its interval. Not identified (the interval is then little but the
        prior) where it is wider than all that the run has risen.
        """
        mix = self._mixture
        gap = 1.0 - mix.reached
        moving = mix.gain_variance > 0
        mean = mix.level + np.where(moving, mix.gain * gap, 0.0)
        drifted = mix.drift * float(self._rows(np.array([self.horizon]))[0])
        std = mix.sigma * np.sqrt(mix.level_variance + drifted + mix.gain_variance * gap**2)
        grid = np.linspace((mean - 6 * std).min(), (mean + 6 * std).max(), 4 * _GRID)
        probability = _normal_cdf((grid[:, None] - mean) / std) @ mix.weight
        low, middle, high = (
            float(self._clip(float(self.run.reward[0]) + self._unit * np.interp(q, probability, grid)))
            for q in (0.5 - LEVEL / 2, 0.5, 0.5 + LEVEL / 2)
        )
        known = high - low <= float(np.ptp(smooth(self.run.reward)))
        note = "" if known else "not identified: the run has not bent enough to show it"
        return Estimate(middle, low, high, known, "reward", note)

    def _courses(self, to: float) -> tuple[np.ndarray, np.ndarray]:
        steps = np.linspace(self.now, max(to, self.now), 129)
        return steps, self.sample(jax.random.key(0), 2000, steps)

    def steps_to(self, fraction: float | int) -> Estimate:
        """Optimizer step at which a fraction of the way from the first reward to the horizon's is gone.

        Args:
            fraction: Part of the way, in (0, 1].

        Returns:
            Median with 90 % interval over drawn courses; a bound is the last step seen if the way is already gone by it,
            and not identified where more than a twentieth of the courses go no way at all.

        Raises:
            ValueError: If the fraction is not in (0, 1].
        """
        if not 0.0 < fraction <= 1.0:
            raise ValueError(f"fraction must lie in (0, 1], got {fraction:g}")
        steps, courses = self._courses(self.horizon)
        first = float(smooth(self.run.reward)[0])
        way = courses[:, -1:] - first
        gone = (courses - first) * np.sign(way) >= fraction * np.abs(way)
        when = steps[np.argmax(gone, axis=1)]
        low, middle, high = np.quantile(when, [0.5 - LEVEL / 2, 0.5, 0.5 + LEVEL / 2])
        noise = self._unit / np.sqrt(max(len(self.run) / 10.0, 1.0))
        moves = float(np.mean(np.abs(way) > noise))
        return Estimate(float(middle), float(low), float(high), moves >= 0.95, "optimizer steps")

    def probability_of_exceeding(self, value: float | int, by_step: float | int) -> float:
        """Probability that the expected reward exceeds a value at some step from now on, up to a step.

        Args:
            value: Reward.
            by_step: Optimizer step.

        Returns:
            The probability, over 2000 drawn courses.
        """
        return float(np.mean(self._courses(by_step)[1].max(axis=1) > value))

    def expected_gain(self, to_step: float | int) -> tuple[float, float]:
        """Expected gain in expected reward by going on to a step, and the same per optimizer step."""
        _, courses = self._courses(to_step)
        gain = float(np.mean(courses[:, -1] - courses[:, 0]))
        return gain, gain / max(to_step - self.now, 1e-12)

    def stop(self, gain: float = 0.01, within: float | int = 200, chance: float = 0.05) -> Decision:
        """Stop when the chance of standing so much higher after so many further steps is below a limit.

        Args:
            gain: Gain in expected reward that is worth going on.
            within: Optimizer steps to gain it in.
            chance: Least chance worth going on for.

        Returns:
            The decision, with its reason.
        """
        _, courses = self._courses(self.now + within)
        probability = float(np.mean(courses[:, -1] - courses[:, 0] >= gain))
        expected = float(np.mean(courses[:, -1] - courses[:, 0]))
        stop = probability < chance
        word, side = ("stop", "below") if stop else ("go on", "not below")
        reason = (
            f"{word}: the chance of standing another {gain:g} higher {within:g} steps from now is {probability:.0%}, "
            f"{side} {chance:.0%} (expected change {expected:+.3g})"
        )
        return Decision(stop, probability, expected, reason)

    def as_dict(self) -> dict:
        """The forecast as plain numbers and strings, for JSON."""
        low, high = self.interval(LEVEL)
        half_low, half_high = self.interval(0.5)
        return {
            "run": self.run.name,
            "now": self.now,
            "horizon": self.horizon,
            "steps": self.steps.tolist(),
            "mean": self.mean.tolist(),
            "median": self.quantile(0.5).tolist(),
            "std": self.std.tolist(),
            "interval_50": [half_low.tolist(), half_high.tolist()],
            "interval_90": [low.tolist(), high.tolist()],
            "plateau": vars(self.plateau),
            "assumptions": self.assumptions,
        }


def _learning_rate_time(run: Run, horizon: float, schedule: Callable | None, notes: list[str]):
    """Learning-rate time as a function of the step: 0 at the run's start and 1 at the horizon."""
    first, last = float(run.steps[0]), float(run.steps[-1])
    grid = np.linspace(first, max(horizon, last), 2049)
    rate = np.ones_like(grid)
    logged = run.channels.get("learning_rate")
    if schedule is not None:
        rate = np.array([float(schedule(step)) for step in grid])
        notes.append("learning rate: the planned schedule")
    elif logged is not None and np.isfinite(logged).all() and (logged >= 0).all() and logged.max() > 0:
        factor = logged / logged.max()
        rate = np.interp(grid, run.steps, factor)
        if horizon > last:
            tail = max(3, len(run) // 3)
            slope, offset = np.polyfit(run.steps[-tail:] - last, factor[-tail:], 1)
            line = offset + slope * (run.steps[-tail:] - last)
            straight = np.abs(line - factor[-tail:]).max() < 1e-3 and slope * (last - first) < -1e-3
            beyond = grid > last
            if straight:
                rate[beyond] = np.maximum(offset + slope * (grid[beyond] - last), 0.0)
                notes.append(
                    f"learning rate: its straight decay goes on, to zero at step {last - offset / slope:.0f}"
                )
            else:
                notes.append("learning rate: the last one logged is kept")
    else:
        notes.append("learning rate: none is logged; taken as constant")
    rate = np.maximum(np.where(np.isfinite(rate), rate, 0.0), 0.0)
    time = np.concatenate([[0.0], np.cumsum(0.5 * (rate[1:] + rate[:-1]))])
    total = time[-1] if time[-1] > 0 else 1.0
    return lambda steps: np.interp(np.asarray(steps, float), grid, time / total)


def _bounds(run: Run, bounds, notes: list[str]) -> tuple[float, float] | None:
    """The bounds that were given or, for `"auto"`, those that the rewards show."""
    if not isinstance(bounds, str):
        return bounds
    low, high = float(run.reward.min()), float(run.reward.max())
    if low >= 0.0 and high <= 1.0:
        notes.append("bounds: rewards between 0 and 1, as all that were seen")
        return 0.0, 1.0
    # Whole rows at one extreme value are a bound; an extreme of something unbounded is met once.
    share = max(3.0, _ATOM * len(run))
    low = low if low < high and np.sum(run.reward == low) >= share else -np.inf
    high = high if low < high and np.sum(run.reward == high) >= share else np.inf
    if np.isinf(low) and np.isinf(high):
        return None
    words = " and ".join(
        f"{word} {value:g}" for word, value in (("not below", low), ("not above", high)) if np.isfinite(value)
    )
    notes.append(f"bounds: {words}, where many rows lie")
    return low, high


def forecast(
    run: Run,
    steps: Sequence[float] | np.ndarray | None = None,
    *,
    horizon: float | int | None = None,
    schedule: Callable | None = None,
    bounds: tuple[float, float] | str | None = "auto",
) -> Forecast:
    r"""Forecast the expected reward of a run that is still going on.

    With $u$ the learning-rate time as a fraction of the plan, $y_t = l_t + b\,\varphi(u_t) + e_t$: a level that drifts as a
    random walk, a shape with gain $b$ and noise. Given the shape, the drift, the noise and the prior of the gain all is
    linear and Gaussian; over these (12 shapes and none, 6 drifts, 7 noises, 8 priors of the gain) it is averaged by evidence.
    The drift to come may be a tenth or ten times that seen (one chance in four each). The law is clipped at the bounds of the
    reward.

    Args:
        run: The run so far.
        steps: Optimizer steps to forecast; 32 up to the horizon by default.
        horizon: Optimizer step at which the run is planned to end; the last of `steps` by default, or else half as long again
            as was seen. The prior of the timescales is in units of it.
        schedule: Factor on the learning rate as a function of the optimizer step, for the whole plan. By default that of the
            log, whose last rate or straight decay is taken to go on.
        bounds: Lowest and highest possible reward; `"auto"` takes (0, 1) where all rewards lie within, or else an extreme
            value at which one row in twenty lies; `None` none.

    Returns:
        The forecast.

    Raises:
        ForecastError: If there are fewer than 6 points, a reward is not finite, or the steps are not ones.

    Example:
        >>> import jax, jaxgrpo as jg, numpy as np
        >>> steps = np.arange(80.0)
        >>> rewards = 0.8 - 0.6 * np.exp(-steps / 30.0) + 0.03 * np.sin(7.0 * steps**2)
        >>> ahead = jg.forecast(jg.Run(steps, steps, rewards), [120.0, 160.0])
        >>> low, high = ahead.interval(0.9)
        >>> bool(low[-1] < 0.797 < high[-1])
        True
    """
    return forecast_each([run], steps, horizon=horizon, schedule=schedule, bounds=bounds)[0]


def forecast_each(
    runs: Sequence[Run],
    steps: Sequence[float] | np.ndarray | None = None,
    *,
    horizon: float | int | None = None,
    schedule: Callable | None = None,
    bounds: tuple[float, float] | str | None = "auto",
) -> list[Forecast]:
    """Forecast many runs at once; see `forecast`.

    Args:
        runs: The runs.
        steps: As for `forecast`, the same for all runs.
        horizon: As for `forecast`.
        schedule: As for `forecast`.
        bounds: As for `forecast`.

    Returns:
        One forecast a run, in order.

    Raises:
        ForecastError: As `forecast`, for the first run that cannot be forecast.
    """
    prepared = [_prepare(run, steps, horizon, schedule, bounds) for run in runs]
    if not prepared:
        return []
    values = [
        (run.reward - run.reward[0]) / unit for run, (_, _, _, _, unit, _) in zip(runs, prepared, strict=True)
    ]
    times = [p[3](run.steps) for run, p in zip(runs, prepared, strict=True)]
    return [
        Forecast(run, at, end, limits, notes, mixture, unit, time)
        for run, (at, end, limits, time, unit, notes), mixture in zip(
            runs, prepared, _mixtures(values, times), strict=True
        )
    ]


def _prepare(run: Run, steps, horizon, schedule, bounds):
    if len(run) < FEWEST_POINTS:
        raise ForecastError(
            f"{run.name}: {len(run)} points are too few to forecast from; at least {FEWEST_POINTS} are needed"
        )
    if not np.isfinite(run.reward).all():
        raise ForecastError(f"{run.name}: rewards that are not finite; drop these rows first")
    first, last = float(run.steps[0]), float(run.steps[-1])
    notes: list[str] = []
    if steps is None:
        end = last + 0.5 * (last - first) if horizon is None else float(horizon)
        at = np.linspace(last, end, 33)[1:]
        if horizon is None:
            notes.append(f"horizon: none was given; half as long again as was seen, step {end:.0f}")
    else:
        at = np.atleast_1d(np.asarray(steps, float))
        if at.ndim != 1 or at.size == 0 or not np.isfinite(at).all():
            raise ForecastError(f"{run.name}: steps must be finite numbers in one dimension")
        end = max(float(at.max()), last) if horizon is None else float(horizon)
    if not np.isfinite(end) or end < last:
        raise ForecastError(f"{run.name}: the horizon {end:g} lies before the last step seen, {last:g}")
    if at.min() < last:
        raise ForecastError(f"{run.name}: step {at.min():g} lies before the last step seen, {last:g}")
    limits = _bounds(run, bounds, notes)
    if limits is not None and not limits[0] < limits[1]:
        raise ForecastError(f"{run.name}: bounds must be a lower and a higher number, got {limits}")
    time = _learning_rate_time(run, end, schedule, notes)
    scatter = float(np.ptp(run.reward))
    # A log that stands still says that noise is small, not that there is none.
    smallest = (
        1e-2 * (limits[1] - limits[0]) if limits is not None else 1e-2 * max(abs(float(run.reward[0])), 1e-6)
    )
    unit = max(float(noise_std(run.reward)), 1e-3 * scatter, smallest if scatter == 0 else 0.0)
    return at, end, limits, time, unit, notes


def stop_rule(
    run: Run,
    *,
    gain: float | int = 0.01,
    within: float | int = 200,
    chance: float = 0.05,
    patience: int = 1,
    horizon: float | int | None = None,
    schedule: Callable | None = None,
    bounds: tuple[float, float] | str | None = "auto",
) -> Decision:
    """Whether to stop a run now: only if the rule of `Forecast.stop` said so at each of the last rows.

    Args:
        run: The run so far.
        gain: Gain in expected reward that is worth going on.
        within: Optimizer steps to gain it in.
        chance: Least chance worth going on for.
        patience: Rows in succession, up to the last, at which the rule must have held with what was seen by then.
        horizon: As for `forecast`.
        schedule: As for `forecast`.
        bounds: As for `forecast`.

    Returns:
        The decision by all that was seen, with how long the rule has held in its reason.

    Raises:
        ForecastError: As `forecast`, or if the patience is not at least 1.
    """
    if patience < 1:
        raise ForecastError(f"{run.name}: patience must be at least 1 row, got {patience}")
    n = len(run)
    counts = range(n, max(n - patience, FEWEST_POINTS - 1), -1)
    heads = [run if count == n else run.head(count / n) for count in counts]
    forecasts = forecast_each(heads, horizon=horizon, schedule=schedule, bounds=bounds)
    decisions = [ahead.stop(gain, within, chance) for ahead in forecasts]
    held = next((i for i, decision in enumerate(decisions) if not decision.stop), len(decisions))
    latest = decisions[0]
    if patience == 1:
        return latest
    stop = held >= patience
    reason = f"{latest.reason}; the rule has held for {held} of the last {patience} rows"
    reason = reason if stop or not latest.stop else "go on for now" + reason.removeprefix("stop")
    return Decision(stop, latest.probability, latest.expected_gain, reason)
