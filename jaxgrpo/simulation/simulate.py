"""`jaxgrpo.simulate`: ensembles of runs, by the update rule itself or by its stochastic differential equation."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import Mesh, NamedSharding
from jaxtyping import Array, Float, PRNGKeyArray

from jaxgrpo.errors import SimulationError
from jaxgrpo.simulation.configurations import (
    Configurations,
    NoiseShape,
    broadcast,
    check_noise_shape,
    configurations,
    structure,
)
from jaxgrpo.simulation.ensemble import (
    Meter,
    Moments,
    Totals,
    make_plan,
    portions,
    traced_moments,
)
from jaxgrpo.simulation.lattice import Lattice
from jaxgrpo.simulation.noise import key_words
from jaxgrpo.simulation.rule import AbstractRule
from jaxgrpo.simulation.sde import sde_rule
from jaxgrpo.simulation.storage import Store
from jaxgrpo.theory.hyperparameters import Hyperparameters
from jaxgrpo.theory.schedules import Schedule
from jaxgrpo.theory.task import Task

Method = Literal["exact", "sde"]
Values = Float[Array, "..."] | Float[np.ndarray, "..."]

# Records of an ensemble unless told otherwise.
_RECORDS = 100
_MOST_PATHS = 2**32 - 2


class Ensemble(eqx.Module):
    r"""Statistics of an ensemble of runs; the axes are those of the configurations, then the recorded steps.

    Attributes:
        steps: Recorded optimizer steps.
        mean: Mean of the expected reward over the paths.
        variance: Its variance between paths (unbiased; not a number for a single path).
        reached: Share of paths that have reached the target by each step.
        diverged: Share of paths that have diverged by each step, further from the plateau than the bound. Coordinates
            stop growing at $10^{15}$ in single precision, so that moments of diverged paths are finite but mean nothing.
        levels: Levels of the quantiles.
        quantiles: Quantiles over the paths; the last axis are the levels.
        quantile_error: Their standard errors.
        paths: Number of paths of each configuration.
        target: Target of the first passage, by configuration.
        method: `"exact"` or `"sde"`.
    """

    steps: Float[np.ndarray, " steps"]
    mean: Values
    variance: Values
    reached: Values
    diverged: Values
    quantiles: Values
    quantile_error: Values
    target: Values
    levels: tuple[float, ...] = eqx.field(static=True)
    paths: int = eqx.field(static=True)
    method: Method = eqx.field(static=True)

    @property
    def std(self) -> Values:
        """Standard deviation between paths."""
        return self.variance**0.5

    @property
    def mean_error(self) -> Values:
        """Standard error of the mean."""
        return (self.variance / self.paths) ** 0.5

    def share_error(self, share: Values) -> Values:
        """Standard error of a share of paths, such as `reached` or `diverged`; never below that of one path in all.

        Args:
            share: The shares.

        Returns:
            Standard errors, by Wilson's centre so that a share of 0 or 1 has one too.
        """
        centre = (share * self.paths + 2.0) / (self.paths + 4.0)
        return (centre * (1.0 - centre) / (self.paths + 4.0)) ** 0.5

    def quantile(self, level: float) -> Values:
        """One of the recorded quantiles.

        Args:
            level: One of `levels`.

        Returns:
            The quantile at every recorded step.

        Raises:
            ValueError: If this level was not recorded.
        """
        if level not in self.levels:
            raise ValueError(
                f"level {level:g} was not recorded; there are: {', '.join(map(str, self.levels))}"
            )
        return self.quantiles[..., self.levels.index(level)]

    def first_passage(self, share: float = 0.5) -> Values:
        """First recorded step by which a share of the paths has reached the target.

        Args:
            share: Share of the paths.

        Returns:
            Steps, late by less than the distance between records; infinite where it is never seen.
        """
        there = np.asarray(self.reached) >= share
        return np.where(there.any(-1), self.steps[there.argmax(-1)], np.inf)


def recorded_steps(steps: int, record: int | Sequence[int | float] | np.ndarray | None) -> np.ndarray:
    """Whole steps at which statistics are taken.

    Args:
        steps: Optimizer steps to simulate.
        record: The steps, or how many intervals to make of the run; 100 if not given.

    Returns:
        Ascending steps.

    Raises:
        ValueError: If they are not whole, or lie outside the run.
    """
    if steps < 1 or steps != int(steps) or steps >= 2**30:
        raise ValueError(f"steps must be a whole number of optimizer steps from 1 to 2^30, got {steps}")
    if record is None or isinstance(record, int):
        count = _RECORDS if record is None else record
        if count < 1:
            raise ValueError(f"record must be at least 1, got {record}")
        stride = math.ceil(steps / min(count, steps))
        return np.unique(np.append(np.arange(0, steps, stride), steps))
    values = np.asarray(record, float)
    if values.ndim != 1 or values.size == 0 or np.any(values != np.round(values)):
        raise ValueError("record must be whole optimizer steps, or a number of intervals")
    if values.min() < 0 or values.max() > steps:
        raise ValueError(f"record must lie between 0 and steps = {steps}, got up to {values.max():g}")
    return np.unique(values.astype(int))


def simulate(
    hyperparameters: Hyperparameters,
    task: Task,
    *,
    steps: int,
    paths: int,
    key: PRNGKeyArray | Array,
    method: Method = "exact",
    record: int | Sequence[int | float] | np.ndarray | None = None,
    quantiles: Sequence[float] = (0.05, 0.25, 0.5, 0.75, 0.95),
    target: float | int | None = None,
    bound: float | int | None = None,
    schedule: Schedule | None = None,
    noise_shape: NoiseShape = "constant",
    adam_beta2: float | None = None,
    substeps: int | None = None,
    save: str | Path | None = None,
    save_format: Literal["numpy", "parquet"] = "numpy",
    memory: int = 512 * 2**20,
    sharding: NamedSharding | Mesh | None = None,
    progress: bool = False,
) -> Ensemble:
    r"""Simulate an ensemble of runs for one or many configurations.

    All configurations see the same noise on the path of the same number (common random numbers), so that differences
    between them are much sharper than the ensembles themselves. The numbers depend on `key` alone, not on
    memory, portions or devices.

    Args:
        hyperparameters: The settings; leading axes of their fields are configurations.
        task: The task; its own fields may have these axes too.
        steps: Optimizer steps.
        paths: Runs of each configuration.
        key: A JAX key.
        method: `"exact"` for the update rule itself, exact in distribution; `"sde"` for the oscillator of the leading
            order as a stochastic differential equation.
        record: Steps at which statistics are taken, or into how many intervals to cut the run (100).
        quantiles: Levels of the quantiles; each is the mean over blocks of at most 4096 paths of the blocks' own, with
            a bias of the order of one rank in a block. Sorting takes time: give `()` to do without.
        target: Reward whose first passage is recorded (the plateau).
        bound: Distance from the plateau beyond which a path has diverged (three times that of the start).
        schedule: Factor on the learning rate by step, 1 at the peak.
        noise_shape: `"constant"`, or `"binary"` for a variance in proportion to $R(1-R)$, as given at $R = 1/2$.
        adam_beta2: Decay of Adam's second moment, to simulate it with its bias correction instead of taking its
            size at the start (needs `task.adam`; `"exact"` only). The moment is one of many parameters, so that it
            follows the force without noise of its own.
        substeps: Steps of the solver to an optimizer step (`"sde"` only); as many as the fastest rate needs, if
            not given.
        save: Folder to store the rewards of all paths at the recorded steps in, one file a chunk.
        save_format: `"numpy"` or `"parquet"` (the latter needs pyarrow).
        memory: Bytes that results in progress may take.
        sharding: A mesh, or a sharding over one, whose devices share the work; all processes of
            `jax.distributed` call with the same mesh, and each gets all statistics.
        progress: Whether to show a progress bar with the time left.

    Returns:
        The statistics; differentiable in every field of `hyperparameters` and `task` that is traced.

    Raises:
        ValueError: If an argument is out of range.
        SimulationError: If statistics do not fit into `memory`, storing fails or a process is lost.

    Example:
        >>> import jax, jax.numpy as jnp, jaxgrpo as jg
        >>> task = jg.Task(curvature=1.0, plateau=0.8, initial_reward=0.2, rollout_noise=0.5)
        >>> settings = jg.Hyperparameters(learning_rate=jnp.array([0.02, 0.05]), refresh_interval=4)
        >>> runs = jg.simulate(settings, task, steps=200, paths=64, key=jax.random.key(0), record=4)
        >>> runs.mean.shape
        (2, 5)
    """
    if method not in get_args(Method):
        raise ValueError(f"method must be one of {get_args(Method)}, got {method!r}")
    check_noise_shape(noise_shape)
    if paths < 1 or paths > _MOST_PATHS:
        raise ValueError(f"paths must be a whole number from 1 to {_MOST_PATHS}, got {paths}")
    if any(not 0.0 < level < 1.0 for level in quantiles):
        raise ValueError(f"quantiles must lie between 0 and 1, got {tuple(quantiles)}")
    if adam_beta2 is not None:
        if method != "exact" or task.adam is None:
            raise ValueError("adam_beta2 needs method='exact' and a task with adam=AdamNormalisation(...)")
        if not 0.0 <= adam_beta2 < 1.0:
            raise ValueError(f"adam_beta2 must lie in [0, 1), got {adam_beta2}")
    if substeps is not None and (method != "sde" or substeps < 1):
        raise ValueError("substeps is a whole number above 0 and goes with method='sde'")
    at = recorded_steps(steps, record)
    needs = structure(hyperparameters)
    hyperparameters, task, shape = broadcast(hyperparameters, task)
    c = configurations(hyperparameters, task, target, bound, adam_beta2 is not None)
    words = key_words(key)
    options = _Options(at, tuple(quantiles), paths, save, save_format, memory, sharding, progress)

    def run(c: Configurations) -> Moments:
        if method == "exact":
            rule = Lattice(task.force, schedule, noise_shape, needs, adam_beta2)
        else:
            rule = sde_rule(c, needs, task.force, schedule, noise_shape, substeps)
        return _moments(rule, c, words, options)

    moments = run(c) if method == "exact" else _by_order(run, c, save)
    return _ensemble(moments, at, shape, c, tuple(quantiles), paths, method)


class _Options(NamedTuple):
    at: np.ndarray
    quantiles: tuple[float, ...]
    paths: int
    save: str | Path | None
    save_format: Literal["numpy", "parquet"]
    memory: int
    sharding: NamedSharding | Mesh | None
    progress: bool


def _by_order(run: Callable[[Configurations], Moments], c: Configurations, save) -> Moments:
    """Configurations with and without momentum apart: their equations differ in order."""
    if isinstance(c.momentum, Tracer):
        return run(c)
    without = np.asarray(c.momentum) == 0
    if not without.any() or without.all():
        return run(c)
    if save is not None:
        raise SimulationError(
            "save needs configurations that all have momentum, or all none: simulate them apart"
        )
    places = np.argsort(without, kind="stable")
    split = int((~without).sum())
    parts = [run(jax.tree.map(lambda x, p=p: x[p], c)) for p in (places[:split], places[split:])]
    back = np.argsort(places)
    numpy = all(isinstance(part.mean, np.ndarray) for part in parts)
    join = np.concatenate if numpy else jnp.concatenate
    return Moments(*(join(pair)[back] for pair in zip(*parts, strict=True)))


def _moments(rule: AbstractRule, c: Configurations, words, options: _Options) -> Moments:
    at = options.at
    bounds = np.stack([np.append(0, at[:-1]), at], axis=1) * rule.units()
    if bounds.max() >= 2**30:
        raise SimulationError(f"{bounds.max()} steps of the solver are more than 2^30: simulate fewer steps")
    plan = make_plan(
        c.gain.size, options.paths, bounds, rule.body(), options.quantiles, options.save is not None
    )
    if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves((rule, c, words))):
        if options.save is not None or options.sharding is not None:
            raise ValueError("save and sharding do not go with jax.jit, jax.grad or jax.vmap: leave them out")
        return traced_moments(rule, plan, c, words, bounds)
    return _gathered(rule, plan, c, words, bounds, options)


def _gathered(rule, plan, c: Configurations, words, bounds, options: _Options) -> Moments:
    records, size, memory = len(options.at), c.gain.size, options.memory
    needed = plan.blocks * plan.configurations * records * (5 + 2 * len(plan.quantiles)) * 8
    if needed > memory:
        raise SimulationError(
            f"statistics of {size} configurations at {records} steps take {needed / 2**20:.0f} MiB, more than "
            f"memory = {memory / 2**20:.0f} MiB: record fewer steps or quantiles, or allow more"
        )
    totals = Totals(plan, size, records)
    store = None
    if options.save is not None:
        store = Store(Path(options.save), options.save_format, plan, size, options.at)
    meter = Meter(plan.blocks * plan.path_blocks, options.progress)
    try:
        for everyone in portions(rule, plan, c, words, bounds, memory - needed, options.sharding):
            for portion in everyone:
                totals.add(portion)
                if store is not None and portion.rewards is not None:
                    store.add(portion)
                meter.add(len(portion.tiles))
    finally:
        meter.close()
    return totals.moments()


def _ensemble(moments: Moments, at, shape, c, levels, paths, method) -> Ensemble:
    def shaped(x):
        return x.reshape(*shape, *x.shape[1:])

    freedom = paths - 1 if paths > 1 else math.nan
    return Ensemble(
        steps=at.astype(float),
        mean=shaped(moments.mean),
        variance=shaped(moments.squares / freedom),
        reached=shaped(moments.reached / paths),
        diverged=shaped(moments.diverged / paths),
        quantiles=shaped(moments.quantiles),
        quantile_error=shaped(moments.quantile_variance**0.5),
        target=c.target.reshape(shape),
        levels=levels,
        paths=paths,
        method=method,
    )
