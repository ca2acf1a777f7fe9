"""Runs as arrays on the grid of refresh cycles: scaled, padded and masked, ready for one compiled program."""

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import jax
import numpy as np

from jaxgrpo.errors import FitError
from jaxgrpo.logs.run import Run
from jaxgrpo.theory.groups import expected_std
from jaxgrpo.theory.hyperparameters import Hyperparameters

# Grids are padded to one of these lengths; a longer run is summarised on a coarser grid.
GRID_LENGTHS = (32, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
# Range and size of the table of softmax forces: linear interpolation is good to 1e-5 of their peak.
FORCE_REACH, FORCE_POINTS = 16.0, 1025
# With fewer points than this a fit says nothing.
FEWEST_POINTS = 5


class Observations(NamedTuple):
    """What the fit sees of `runs` runs on a grid of `cycles` refresh cycles (leading axes: runs, cycles)."""

    reward: np.ndarray
    """Mean reward of the rows of each cycle, scaled; 0 where there is none."""
    count: np.ndarray
    """Number of rows of each cycle; 0 where there is none."""
    log_rate: np.ndarray
    """Logarithm of the learning rate during each cycle, relative to the first run's largest."""
    interval: np.ndarray
    """Optimizer steps per cycle of the grid, per run."""
    momentum: np.ndarray
    """The optimizer's momentum, per run."""
    noise_scale: np.ndarray
    """Step noise relative to the first run's, from the number of rollouts, per run."""
    lag: np.ndarray
    """Async lag in cycles of the grid, per run."""
    force: np.ndarray
    """Softmax forces on the grid of logits, std-normalised and mean-only, finite group included, per run."""
    horizon: np.ndarray
    """Learning-rate time of the first run, in steps at its largest rate (a scalar)."""


@dataclass(frozen=True)
class Scale:
    """Linear scale of rewards: scaled = (reward - start) / unit."""

    start: float
    unit: float

    def to_scaled(self, reward):
        """Reward to scaled units."""
        return (np.asarray(reward, float) - self.start) / self.unit

    def to_reward(self, scaled):
        """Scaled units to reward."""
        return np.asarray(scaled) * self.unit + self.start


@dataclass(frozen=True)
class Problem:
    """One fit: one run, or several runs of one task."""

    runs: tuple[Run, ...]
    hyperparameters: tuple[Hyperparameters, ...]
    observations: Observations
    scale: Scale
    start_level: float
    end_level: float
    noise: float
    bounds: tuple[float, float] | None
    coarsening: tuple[int, ...]
    assumptions: tuple[str, ...]

    @property
    def points(self) -> int:
        """Number of rewards."""
        return sum(len(run.reward) for run in self.runs)

    @property
    def observed_cycles(self) -> int:
        """Number of cycles of the grid that hold a reward."""
        return int((self.observations.count > 0).sum())


def force_grid() -> np.ndarray:
    """Logits on which the softmax forces are tabulated."""
    return np.linspace(-FORCE_REACH, FORCE_REACH, FORCE_POINTS)


@cache
def force_table(group_size: float) -> np.ndarray:
    """The two softmax forces of a group of a given size on `force_grid`: rows std-normalised, mean-only."""
    z = force_grid()
    p, q = 1.0 / (1.0 + np.exp(-z)), 1.0 / (1.0 + np.exp(z))
    if np.isinf(group_size):
        return np.stack([np.sqrt(p * q), p * q])
    n = int(group_size)
    if n != group_size:
        with jax.enable_x64(True):
            return np.stack([np.asarray(expected_std(p, group_size)), p * q * (1.0 - 1.0 / group_size)])
    # The sum of theory.groups.expected_std at a whole group size, without anything to compile.
    k = np.arange(1.0, n)
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1.0, n + 1.0)))])
    log_choose = log_factorial[n] - log_factorial[1:n] - log_factorial[n - 1 : 0 : -1]
    log_p, log_q = -np.logaddexp(0.0, -z), -np.logaddexp(0.0, z)
    weights = np.exp(log_choose + log_p[:, None] * k + log_q[:, None] * (n - k))
    return np.stack([weights @ (np.sqrt(k * (n - k)) / n), p * q * (1.0 - 1.0 / n)])


def smoothing_window(n: int) -> int:
    """Points in the centred moving mean that smoothed figures use: max(5, n/20), made odd."""
    return int(max(5, n // 20)) | 1


def smooth(values: np.ndarray, window: int | None = None) -> np.ndarray:
    """Centred moving mean over a window that shrinks at the ends."""
    values = np.asarray(values, float)
    n = len(values)
    half = (window or smoothing_window(n)) // 2
    total = np.concatenate([[0.0], np.cumsum(values)])
    index = np.arange(n)
    low, high = np.maximum(index - half, 0), np.minimum(index + half + 1, n)
    return (total[high] - total[low]) / (high - low)


def noise_std(values: np.ndarray) -> float:
    """Standard deviation of what is not a smooth curve, from second differences (Gasser, Sroka, Jennen-Steinmetz)."""
    values = np.asarray(values, float)
    if len(values) < 3:
        return 0.0
    second = values[1:-1] - 0.5 * (values[:-2] + values[2:])
    return float(np.sqrt(np.mean(second**2) * 2.0 / 3.0))


def _rate_factors(run: Run, hyperparameters: Hyperparameters, steps: np.ndarray, peak: float):
    """Learning rate along the grid relative to `peak`, from the log where it has one."""
    logged = run.channels.get("learning_rate")
    base = float(hyperparameters.learning_rate) / peak if peak > 0 else 1.0
    if logged is None:
        return np.full(len(steps), base), None
    known = np.isfinite(logged) & (logged >= 0)
    if known.sum() < 2 or not np.any(logged[known] > 0):
        return np.full(len(steps), base), "the logged learning rate is not usable: taken as constant"
    order = np.argsort(run.steps[known], kind="stable")
    at, values = run.steps[known][order], logged[known][order]
    factors = np.interp(steps, at, values) / values.max()
    note = None
    if values.max() - values.min() > 1e-3 * values.max():
        note = "the learning-rate schedule is the logged one"
    return factors * base, note


def make_problem(
    runs: tuple[Run, ...],
    hyperparameters: tuple[Hyperparameters, ...],
    bounds: tuple[float, float] | str | None = "auto",
    grid: int | None = None,
) -> Problem:
    """Put runs on the grid of refresh cycles.

    Args:
        runs: Runs of one task.
        hyperparameters: Settings of each.
        bounds: Lowest and highest possible reward; `"auto"` takes (0, 1) where all rewards lie within; `None` for none.
        grid: Length of the padded grid; the shortest sufficient one by default.

    Returns:
        The problem.

    Raises:
        FitError: If there are too few points, or the rewards are constant.
    """
    assumptions: list[str] = []
    rewards = np.concatenate([run.reward for run in runs])
    for run in runs:
        if len(run) < FEWEST_POINTS:
            raise FitError(f"{run.name}: {len(run)} points; a fit needs at least {FEWEST_POINTS}")
    if np.ptp(rewards) <= 1e-12 * max(1.0, float(np.abs(rewards).max())):
        raise FitError(
            f"{runs[0].name}: the reward is {rewards[0]:g} at every one of {len(rewards)} points; a constant has no dynamics"
        )
    if bounds == "auto":
        inside = rewards.min() >= -1e-9 and rewards.max() <= 1.0 + 1e-9 and np.ptp(rewards) > 0.01
        bounds = (0.0, 1.0) if inside else None
        # Rewards that hardly use the range say nothing of where it ends.
        if inside:
            assumptions.append("rewards are taken to be bounded by 0 and 1, as all logged ones are")
    noise = float(np.sqrt(np.mean([noise_std(run.reward) ** 2 for run in runs])))
    curves = [smooth(run.reward) for run in runs]
    edge = [max(3, len(c) // 20) for c in curves]
    start = float(np.mean([np.mean(run.reward[: max(3, e // 2)]) for run, e in zip(runs, edge, strict=True)]))
    end = float(np.mean([np.mean(c[-e:]) for c, e in zip(curves, edge, strict=True)]))
    unit = max(max(float(np.ptp(c)) for c in curves), noise, 1e-9)
    scale = Scale(start, unit)

    peaks = []
    for h in hyperparameters:
        peaks.append(float(h.learning_rate))
    reference = peaks[0] if peaks[0] > 0 else 1.0
    rows, coarsening = [], []
    for run, h in zip(runs, hyperparameters, strict=True):
        k = float(h.refresh_interval)
        cycle = np.floor(run.steps / k + 1e-6).astype(int)
        longest = GRID_LENGTHS[-1] if grid is None else grid
        merge = -(-(int(cycle.max()) + 1) // longest)
        coarsening.append(merge)
        if merge > 1:
            assumptions.append(
                f"{run.name}: {int(cycle.max()) + 1} refresh cycles are summarised on a grid of {merge} each; "
                "faster dynamics than that are not resolved"
            )
        rows.append((cycle // merge, k * merge))
    needed = max(int(c.max()) + 1 for c, _ in rows)
    length = grid or next(g for g in GRID_LENGTHS if g >= needed)

    fields = {name: [] for name in Observations._fields}
    for (cycle, interval), run, h, merge in zip(rows, runs, hyperparameters, coarsening, strict=True):
        count = np.bincount(cycle, minlength=length).astype(float)
        total = np.bincount(cycle, weights=scale.to_scaled(run.reward), minlength=length)
        factors, note = _rate_factors(run, h, (np.arange(length) + 0.5) * interval - 0.5, reference)
        if note:
            assumptions.append(note)
        group = float(h.group_size)
        if group <= 1:
            assumptions.append(
                f"{run.name}: group size 1 has no group advantage; its effect on the force is left out"
            )
            group = np.inf
        fields["reward"].append(np.where(count > 0, total / np.maximum(count, 1), 0.0))
        fields["count"].append(count)
        fields["log_rate"].append(np.log(np.maximum(factors, 1e-12)))
        fields["interval"].append(interval)
        fields["momentum"].append(float(h.momentum))
        fields["force"].append(force_table(group))
        fields["noise_scale"].append(
            np.sqrt(float(hyperparameters[0].rollouts_per_step) / max(float(h.rollouts_per_step), 1e-9))
        )
        fields["lag"].append(float(h.async_lag) / merge)
    used = int(rows[0][0].max()) + 1
    horizon = float(np.sum(np.exp(fields["log_rate"][0][:used])) * rows[0][1])
    arrays = {name: np.asarray(values) for name, values in fields.items() if name != "horizon"}
    observations = Observations(**arrays, horizon=np.asarray(max(horizon, 1e-9)))
    return Problem(
        runs=tuple(runs),
        hyperparameters=tuple(hyperparameters),
        observations=observations,
        scale=scale,
        start_level=0.0,
        end_level=float(scale.to_scaled(end)),
        noise=max(noise / unit, 1e-3),
        bounds=bounds,  # pyright: ignore[reportArgumentType]
        coarsening=tuple(coarsening),
        assumptions=tuple(dict.fromkeys(assumptions)),
    )
