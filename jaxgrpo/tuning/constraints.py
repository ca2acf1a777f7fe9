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

_MOMENTA = 1.0 - np.geomspace(1.0, 0.002, 13)
_INTERVALS = np.geomspace(1.0, 128.0, 15)


@dataclass(frozen=True)
class Constraints:
    """Limits on what may be recommended.

    Attributes:
        stability_probability: Least share of the posterior under which the run is stable.
        rate_extrapolation: Largest learning rate over the largest that was run stably; `None` for no limit.
        beyond_stable: Largest share of the stability limit over the largest that a run has shown to be stable. A curvature
            read off a reward curve bounds the stable range from above only, so that without a measured sharpness what runs
            have survived is the better witness. `None` for no limit.
        damping_ratio: Least damping ratio (to leading order); `None` for no limit.
        largest_batch: Most completions in one optimizer step; `None` for no limit.

    Raises:
        TuneError: If a value is out of range.
    """

    stability_probability: float = 0.99
    rate_extrapolation: float | int | None = 3.0
    beyond_stable: float | int | None = 3.0
    damping_ratio: float | int | None = None
    largest_batch: float | int | None = None

    def __post_init__(self):
        if not 0.5 <= self.stability_probability < 1.0:
            raise TuneError(
                f"stability_probability must lie in [0.5, 1), got {self.stability_probability}; 0.99 is usual"
            )
        for name in ("rate_extrapolation", "beyond_stable", "damping_ratio", "largest_batch"):
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
        damping_ratio: Least damping ratio, 0 for none.
        mean_lag_factor: Staleness, and async lag, for the leading-order damping.
        probability: Least share of draws that must be stable.
    """

    tasks: Task
    critical: Float[Array, "momenta intervals"]
    largest_rate: Float[Array, ""]
    shown: Float[Array, ""]
    damping_ratio: Float[Array, ""]
    probability: float = eqx.field(static=True)


def make_limits(
    tasks: Task,
    runs: list[Hyperparameters],
    constraints: Constraints,
    sharpness: float | None = None,
) -> Limits:
    """Prepare constraints.

    Args:
        tasks: Draws of the task, a leading axis on every leaf.
        runs: Settings of the runs that were stable.
        constraints: The constraints.
        sharpness: Measured top curvature, which then decides stability.

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
        grid = [np.asarray(critical_stiffness(m, _INTERVALS, rho, lag)) for m in _MOMENTA]
        table = np.log(np.minimum(np.stack(grid), 1e4))
    limits = Limits(
        flat,
        jnp.asarray(table, flat.curvature.dtype),
        jnp.asarray(np.inf),
        jnp.asarray(np.inf),
        jnp.asarray(float(constraints.damping_ratio or 0.0)),
        constraints.stability_probability,
    )
    known = [h for h in runs if float(h.learning_rate) > 0]
    largest, shown = np.inf, np.inf
    if constraints.rate_extrapolation is not None and known:
        largest = constraints.rate_extrapolation * max(float(h.learning_rate) for h in known)
    if constraints.beyond_stable is not None and sharpness is None and known:
        shown = constraints.beyond_stable * max(float(_share(h, limits)) for h in known)
    return eqx.tree_at(lambda x: (x.largest_rate, x.shown), limits, (jnp.asarray(largest), jnp.asarray(shown)))


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
    a, b = x - i, y - j
    low = table[i, j] + b * (table[i, j + 1] - table[i, j])
    high = table[i + 1, j] + b * (table[i + 1, j + 1] - table[i + 1, j])
    return low + a * (high - low)


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
    rates = _critical_log_rates(
        h, limits.tasks, jnp.minimum(critical, _log_damped(h, limits.damping_ratio))
    )
    count = rates.shape[0]
    index = int(np.floor((1.0 - limits.probability) * count + 1e-9))
    by_posterior = jnp.exp(jnp.sort(rates)[index])
    by_shown = limits.shown * jnp.exp(critical) / h.dampening
    return jnp.minimum(jnp.minimum(by_posterior, by_shown), limits.largest_rate)


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
    rates = _critical_log_rates(hyperparameters, limits.tasks, log_critical(hyperparameters, limits))
    return jnp.mean((jnp.log(hyperparameters.learning_rate) < rates).astype(rates.dtype))


def margin(hyperparameters: Hyperparameters, limits: Limits) -> Float[Array, " draws"]:
    """Margin to instability of each draw, 1 less the stiffness over the critical one.

    Args:
        hyperparameters: One configuration.
        limits: The limits.

    Returns:
        The margins.
    """
    critical = jnp.exp(log_critical(hyperparameters, limits))
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
    if rate >= 0.985 * float(largest_rate(h, limits)):
        asked = float(limits.damping_ratio) > 0
        return "the damping ratio asked for, or stability" if asked else "the probability of stability"
    return None
