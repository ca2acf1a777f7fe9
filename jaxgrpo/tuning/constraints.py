r"""What advice may not do: turn a run unstable, ring, or go further than what was measured reaches.

All constraints on the learning rate are upper bounds that follow from the other settings in closed form, so that the search
moves inside them by construction. Stability is that of the exact cycle map: a draw of the task is stable where its stiffness
$h = c\,\eta_0 (\eta/\eta_0)^a \kappa$ is below $h_{crit}(\mu, K)$.
"""

from dataclasses import dataclass

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxgrpo.errors import TuneError
from jaxgrpo.theory.cycle import critical_stiffness
from jaxgrpo.theory.forces import Harmonic, KLAnchored
from jaxgrpo.theory.hyperparameters import Hyperparameters
from jaxgrpo.theory.reduction import learning_rate_gain
from jaxgrpo.theory.task import Task

# Where the critical stiffness of runs with async lag, or with part of the lag corrected, is tabulated.
_MOMENTA = 1.0 - np.geomspace(1.0, 0.002, 13)
_INTERVALS = np.array([1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128])


@dataclass(frozen=True)
class Constraints:
    """Limits on what may be recommended.

    Attributes:
        stability_probability: Least share of the posterior under which the run is stable.
        rate_extrapolation: Largest learning rate over the largest that was run stably; `None` for no limit.
        beyond_stable: Largest share of the stability limit over the largest that a run has shown to be stable. A curvature
            read off a reward curve bounds the stable range from above only, so that without a measured sharpness what runs
            have survived is the better witness. `None` for no limit.
        beyond_noise: Largest gradient noise (learning rate over batch, the temperature's dependence on the settings) over the
            largest that was run. A reward curve does not tell gradient noise from that of the batches, so that what smaller
            batches do is known only as far as runs have gone. `None` for no limit.
        damping_ratio: Least damping ratio (to leading order); `None` for no limit.
        largest_batch: Most completions in one optimizer step; `None` for no limit.

    Raises:
        TuneError: If a value is out of range.
    """

    stability_probability: float = 0.99
    rate_extrapolation: float | int | None = 3.0
    beyond_stable: float | int | None = 3.0
    beyond_noise: float | int | None = 3.0
    damping_ratio: float | int | None = None
    largest_batch: float | int | None = None

    def __post_init__(self):
        if not 0.5 <= self.stability_probability < 1.0:
            raise TuneError(
                f"stability_probability must lie in [0.5, 1), got {self.stability_probability}; 0.99 is usual"
            )
        for name in ("rate_extrapolation", "beyond_stable", "beyond_noise", "damping_ratio", "largest_batch"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise TuneError(f"{name} must be above 0, or None for no limit; got {value}")


class Limits(eqx.Module):
    """The constraints on one task, prepared for many evaluations.

    Attributes:
        tasks: Draws of the task, harmonic with its steepest slope as the curvature.
        critical: Table of the log of the critical stiffness, momenta by intervals; empty where the closed form holds.
        largest_rate: Largest learning rate that the measurements reach.
        shown: Largest product of step factor and learning rate, over the critical stiffness, that may be used.
        noisiest: Largest learning rate over batch that may be used.
        damping_ratio: Least damping ratio, 0 for none.
        inertia: Inertial time of a model that has its own, whose course must not diverge either.
        probability: Least share of draws that must be stable.
    """

    tasks: Task
    critical: Float[Array, "momenta intervals"]
    largest_rate: Float[Array, ""]
    shown: Float[Array, ""]
    noisiest: Float[Array, ""]
    damping_ratio: Float[Array, ""]
    inertia: Float[Array, ""] | None
    probability: float = eqx.field(static=True)


def make_limits(
    tasks: Task,
    runs: list[Hyperparameters],
    constraints: Constraints,
    sharpness: float | None = None,
    inertia: float | None = None,
) -> Limits:
    """Prepare constraints.

    Args:
        tasks: Draws of the task, a leading axis on every leaf.
        runs: Settings of the runs that were stable.
        constraints: The constraints.
        sharpness: Measured top curvature, which then decides stability.
        inertia: Inertial time of a model that has its own instead of the optimizer's.

    Returns:
        The limits.
    """
    force = tasks.force.base if isinstance(tasks.force, KLAnchored) else tasks.force
    top = tasks.curvature * force.peak_slope()
    if sharpness is not None:
        top = jnp.full_like(tasks.curvature, sharpness)
    flat = Task(
        top,
        tasks.plateau,
        tasks.initial_reward,
        tasks.rollout_noise,
        force=Harmonic(),
        learning_rate_exponent=tasks.learning_rate_exponent,
        reference_learning_rate=tasks.reference_learning_rate,
        adam=tasks.adam,
    )
    one = runs[0]
    rho, lag = float(one.staleness), float(one.async_lag)
    table = np.zeros((0, 0))
    if rho != 1.0 or lag != 0.0:
        table = np.log(
            [[_critical_by_powers(m, int(k), rho, round(lag)) for k in _INTERVALS] for m in _MOMENTA]
        )
    limits = Limits(
        flat,
        jnp.asarray(table, flat.curvature.dtype),
        jnp.asarray(np.inf),
        jnp.asarray(np.inf),
        jnp.asarray(np.inf),
        jnp.asarray(float(constraints.damping_ratio or 0.0)),
        None if inertia is None else jnp.asarray(float(inertia)),
        constraints.stability_probability,
    )
    known = [h for h in runs if float(h.learning_rate) > 0]
    largest, shown, noisiest = np.inf, np.inf, np.inf
    if constraints.rate_extrapolation is not None and known:
        largest = constraints.rate_extrapolation * max(float(h.learning_rate) for h in known)
    if constraints.beyond_stable is not None and sharpness is None and known:
        shown = constraints.beyond_stable * max(float(_share(h, limits)) for h in known)
    if constraints.beyond_noise is not None and known:
        noisiest = constraints.beyond_noise * max(float(_temperature(h)) for h in known)
    found = tuple(jnp.asarray(value) for value in (largest, shown, noisiest))
    return eqx.tree_at(lambda x: (x.largest_rate, x.shown, x.noisiest), limits, found)


def _critical_by_powers(momentum: float, interval: int, staleness: float, lag: int) -> float:
    """Smallest stiffness at which a cycle with lag is unstable, from powers of the matrix of one step."""

    def radius(h):
        h = np.atleast_1d(h)
        step = np.zeros((len(h), 3, 3))
        step[:, 0] = np.stack(
            [1.0 - h * (1.0 - staleness), np.full_like(h, momentum), -h * staleness], axis=-1
        )
        step[:, 1] = step[:, 0] - np.array([1.0, 0.0, 0.0])
        step[:, 2, 2] = 1.0
        power = np.linalg.matrix_power(step, interval)
        size = 2 + lag
        cycle = np.zeros((len(h), size, size))
        cycle[:, :2, :2] = power[:, :2, :2]
        cycle[:, :2, 0 if lag == 0 else size - 1] += power[:, :2, 2]
        for i in range(2, size):
            cycle[:, i, 0 if i == 2 else i - 1] = 1.0
        return np.abs(np.linalg.eigvals(cycle)).max(axis=-1)

    low = 1e-3 * (1.0 - momentum) / (interval * (1 + lag)) ** 2
    grid = np.geomspace(low, 1e2, 300)
    with np.errstate(all="ignore"):
        values = radius(grid)
    unstable = np.flatnonzero(~(values < 1.0))
    if not len(unstable) or unstable[0] == 0:
        return 1e2 if not len(unstable) else low
    low, high = grid[unstable[0] - 1], grid[unstable[0]]
    for _ in range(30):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if radius(middle)[0] < 1.0 else (low, middle)
    return float(low)


def _temperature(h: Hyperparameters) -> Float[Array, ""]:
    r"""How the variance from gradient noise depends on the settings, $c\eta / ((1-\mu) B G)$ to leading order."""
    return h.dampening * h.learning_rate / ((1.0 - h.momentum) * h.rollouts_per_step)


def log_critical(hyperparameters: Hyperparameters, limits: Limits) -> Float[Array, ""]:
    """Logarithm of the critical stiffness: closed form for a synchronous run, interpolated in a table otherwise."""
    h = hyperparameters
    if not limits.critical.size:
        return jnp.log(critical_stiffness(h.momentum, h.refresh_interval))
    table = limits.critical
    x = jnp.interp(
        -jnp.log1p(-h.momentum),
        jnp.asarray(-np.log1p(-_MOMENTA), table.dtype),
        jnp.arange(len(_MOMENTA), dtype=table.dtype),
    )
    y = jnp.interp(
        jnp.log(h.refresh_interval),
        jnp.asarray(np.log(_INTERVALS), table.dtype),
        jnp.arange(len(_INTERVALS), dtype=table.dtype),
    )
    i = jnp.clip(jnp.floor(x).astype(jnp.int32), 0, len(_MOMENTA) - 2)
    j = jnp.clip(jnp.floor(y).astype(jnp.int32), 0, len(_INTERVALS) - 2)
    a, b = x - i.astype(x.dtype), y - j.astype(y.dtype)
    low = table[i, j] + b * (table[i, j + 1] - table[i, j])
    high = table[i + 1, j] + b * (table[i + 1, j + 1] - table[i + 1, j])
    return low + a * (high - low)


def _log_stable(h: Hyperparameters, limits: Limits) -> Float[Array, ""]:
    """Logarithm of the stiffness at which the run is unstable, or the course of a model with its own inertia diverges."""
    critical = log_critical(h, limits)
    if limits.inertia is None:
        return critical
    # The model's stiffness is h (1 - own momentum) / (1 - momentum): its speed is that of the run.
    own = limits.inertia / (1.0 + limits.inertia)
    same_speed = jnp.log1p(-h.momentum) - jnp.log1p(-own)
    diverges = log_critical(eqx.tree_at(lambda x: x.momentum, h, own), limits) + same_speed
    return jnp.minimum(critical, diverges)


def _share(h: Hyperparameters, limits: Limits) -> Float[Array, ""]:
    """Step factor times learning rate over the critical stiffness: the share of the limit, but for the sharpness."""
    return h.dampening * h.learning_rate / jnp.exp(log_critical(h, limits))


def _log_damped(h: Hyperparameters, damping_ratio) -> Float[Array, ""]:
    r"""Logarithm of the stiffness with $((1-\mu) - h\tau)^2 = 4\zeta^2\mu h$; infinite where no ratio is asked for."""
    rest, lag = 1.0 - h.momentum, h.mean_lag
    half = rest * lag + 2.0 * damping_ratio**2 * h.momentum
    asked = (damping_ratio > 0) & (half > 0)
    inside = jnp.maximum(half**2 - (rest * lag) ** 2, 0.0)
    root = jnp.where(inside > 0, jnp.sqrt(jnp.where(inside > 0, inside, 1.0)), 0.0)
    total = jnp.where(asked, half + root, 1.0)
    return jnp.where(asked, 2.0 * jnp.log(rest) - jnp.log(total), jnp.inf)


def largest_rate(hyperparameters: Hyperparameters, limits: Limits) -> Float[Array, ""]:
    """Largest learning rate that the constraints allow, whatever the rate that `hyperparameters` have.

    Args:
        hyperparameters: The other settings.
        limits: The limits.

    Returns:
        The rate, differentiable in the other settings.
    """
    h = eqx.tree_at(lambda x: x.learning_rate, hyperparameters, jnp.ones_like(hyperparameters.momentum))
    critical = log_critical(h, limits)
    rates = _critical_log_rates(h, limits.tasks, jnp.minimum(critical, _log_damped(h, limits.damping_ratio)))
    count = rates.shape[0]
    index = int(np.floor((1.0 - limits.probability) * count + 1e-9))
    by_posterior = jnp.exp(jnp.sort(rates)[index])
    by_shown = limits.shown * jnp.exp(critical) / h.dampening
    by_noise = limits.noisiest / _temperature(h)
    return jnp.minimum(jnp.minimum(by_posterior, by_shown), jnp.minimum(by_noise, limits.largest_rate))


def _critical_log_rates(h, tasks: Task, log_stiffness):
    """Logarithm of the rate at which each draw has a given stiffness."""

    def single(task: Task):
        reference = task.reference_learning_rate
        at = jnp.ones_like(h.momentum) if reference is None else reference
        known = eqx.tree_at(lambda x: x.learning_rate, h, at)
        exponent = task.learning_rate_exponent if reference is not None else jnp.ones_like(h.momentum)
        unit = jnp.log(jnp.maximum(jnp.abs(learning_rate_gain(known, task) * task.curvature), 1e-300))
        return jnp.log(at) + (log_stiffness - unit) / exponent

    return eqx.filter_vmap(single)(tasks)


def stable_share(hyperparameters: Hyperparameters, limits: Limits) -> Float[Array, ""]:
    """Share of the draws under which a configuration is stable.

    Args:
        hyperparameters: One configuration.
        limits: The limits.

    Returns:
        The share.
    """
    rates = _critical_log_rates(hyperparameters, limits.tasks, _log_stable(hyperparameters, limits))
    return jnp.mean((jnp.log(hyperparameters.learning_rate) < rates).astype(rates.dtype))


def margin(hyperparameters: Hyperparameters, limits: Limits) -> Float[Array, " draws"]:
    """Margin to instability of each draw, 1 less the stiffness over the critical one.

    Args:
        hyperparameters: One configuration.
        limits: The limits.

    Returns:
        The margins.
    """
    critical = jnp.exp(_log_stable(hyperparameters, limits))
    h = eqx.filter_vmap(lambda t: learning_rate_gain(hyperparameters, t) * t.curvature)(limits.tasks)
    return 1.0 - h / critical


def binding(hyperparameters: Hyperparameters, limits: Limits) -> str | None:
    """Which constraint holds the learning rate, in words; none if it is free.

    Args:
        hyperparameters: One configuration.
        limits: The limits.

    Returns:
        The constraint.
    """
    h = hyperparameters
    rate = float(h.learning_rate)
    if rate >= 0.985 * float(limits.largest_rate):
        return "the largest step beyond the learning rates that were run"
    if rate >= 0.985 * float(limits.shown * jnp.exp(log_critical(h, limits)) / h.dampening):
        return "the largest step beyond what runs have shown to be stable"
    if float(_temperature(h)) >= 0.985 * float(limits.noisiest):
        return "the most gradient noise (learning rate over batch) beyond what was run"
    if rate >= 0.985 * float(largest_rate(h, limits)):
        asked = float(limits.damping_ratio) > 0
        return "the damping ratio asked for, or stability" if asked else "the probability of stability"
    return None
