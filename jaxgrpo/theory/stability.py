"""How far a run is from instability, exactly and to leading order side by side."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxgrpo.theory import cycle
from jaxgrpo.theory.hyperparameters import Hyperparameters
from jaxgrpo.theory.reduction import learning_rate_gain, stiffness
from jaxgrpo.theory.task import Task


class Stability(eqx.Module):
    r"""Stability of a run.

    Attributes:
        stiffness: $h$ per step, from the sharpness where the task has one.
        spectral_radius: Growth of the slowest mode per refresh cycle, exact; below 1 is stable.
        margin: $1 - h/h_{crit}$; 0 at the threshold, negative beyond it.
        critical_refresh_interval: $K$ at which the run turns unstable, all else equal.
        critical_learning_rate: Learning rate at which it does.
        oscillation_onset: Learning rate at which it begins to ring (exact for staleness 1 without async lag, to
            leading order otherwise).
        leading_margin: The same to leading order, as the next two.
        leading_critical_refresh_interval: $1 + 2(1-\mu)/(\rho h)$ for a synchronous run.
        leading_critical_learning_rate: From $\gamma = 0$.
        leading_oscillation_onset: From $\gamma^2 = 4 m k$.
        is_upper_bound: Whether the thresholds are upper bounds, for want of a measured sharpness.
    """

    stiffness: Float[Array, ""]
    spectral_radius: Float[Array, ""]
    margin: Float[Array, ""]
    critical_refresh_interval: Float[Array, ""]
    critical_learning_rate: Float[Array, ""]
    oscillation_onset: Float[Array, ""]
    leading_margin: Float[Array, ""]
    leading_critical_refresh_interval: Float[Array, ""]
    leading_critical_learning_rate: Float[Array, ""]
    leading_oscillation_onset: Float[Array, ""]
    is_upper_bound: bool = eqx.field(static=True)


def _rate_at(hyperparameters, task, h, target):
    r"""Learning rate at which the stiffness is `target`, from $h \propto \eta^a$."""
    positive = h > 0
    ratio = target / jnp.where(positive, h, 1.0)
    finite = jnp.isfinite(ratio) & positive
    exponent = task.learning_rate_exponent if task.reference_learning_rate is not None else 1.0
    grown = jnp.where(finite, ratio, 1.0) ** (1.0 / exponent)
    return jnp.where(finite, hyperparameters.learning_rate * grown, jnp.inf)


def stability(hyperparameters: Hyperparameters, task: Task) -> Stability:
    r"""Stability of one configuration on a task.

    The stiffness is that of the task's sharpness where it was measured; a curvature that was fitted to a reward curve can
    be much smaller than the sharpness, so that without one every threshold is an upper bound (`is_upper_bound`).

    Args:
        hyperparameters: One configuration; the async lag must be a whole number, at most 8 where it is traced.
        task: The task.

    Returns:
        Exact and leading-order thresholds.

    Raises:
        ValueError: If the async lag is not whole.

    Example:
        >>> import jaxgrpo as jg
        >>> task = jg.Task(curvature=1.0, plateau=0.9)
        >>> report = jg.stability(jg.Hyperparameters(0.01, momentum=0.0, refresh_interval=4), task)
        >>> print(round(float(report.critical_learning_rate), 6))
        0.5
    """
    h = stiffness(hyperparameters, task)
    if task.sharpness is not None:
        h = learning_rate_gain(hyperparameters, task) * task.sharpness
    momentum, k = hyperparameters.momentum, hyperparameters.refresh_interval
    rho, lag = hyperparameters.staleness, hyperparameters.async_lag
    critical = cycle.critical_stiffness(momentum, k, rho, lag)
    leading = cycle.leading_critical_stiffness(momentum, k, rho, lag)
    onset_leading = cycle.leading_oscillation_onset(momentum, hyperparameters.mean_lag)
    exact_onset = cycle.is_known_one(rho) and cycle.is_known_synchronous(lag)
    onset = cycle.oscillation_onset(momentum, k) if exact_onset else onset_leading
    return Stability(
        stiffness=h,
        spectral_radius=cycle.spectral_radius(momentum, h, k, rho, lag),
        margin=1.0 - h / critical,
        critical_refresh_interval=cycle.critical_refresh_interval(momentum, h, rho, lag),
        critical_learning_rate=_rate_at(hyperparameters, task, h, critical),
        oscillation_onset=_rate_at(hyperparameters, task, h, onset),
        leading_margin=1.0 - h / leading,
        leading_critical_refresh_interval=cycle.leading_critical_refresh_interval(momentum, h, rho, lag),
        leading_critical_learning_rate=_rate_at(hyperparameters, task, h, leading),
        leading_oscillation_onset=_rate_at(hyperparameters, task, h, onset_leading),
        is_upper_bound=task.sharpness is None,
    )
