"""Several configurations as plain arrays: what the simulated rules need to know of hyperparameters and task."""

import math
from typing import Literal, NamedTuple, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float

from jaxgrpo.theory.cycle import DEEPEST_TRACED_LAG
from jaxgrpo.theory.forces import check_start
from jaxgrpo.theory.hyperparameters import Hyperparameters
from jaxgrpo.theory.numerics import precision
from jaxgrpo.theory.reduction import learning_rate_gain, step_noise
from jaxgrpo.theory.task import Task

NoiseShape = Literal["constant", "binary"]

_SETTINGS = (
    "learning_rate",
    "momentum",
    "group_size",
    "refresh_interval",
    "prompts_per_step",
    "epochs_per_rollout",
    "async_lag",
    "staleness",
)
_OF_TASK = (
    "curvature",
    "plateau",
    "initial_reward",
    "rollout_noise",
    "learning_rate_exponent",
    "reference_learning_rate",
)


class Configurations(eqx.Module):
    r"""Numbers of each configuration; all fields have the shape of the batch.

    Attributes:
        momentum: $\mu$.
        gain: What multiplies the force in an update, $c\,\eta\,\kappa$; without Adam's normalisation where the second
            moment is simulated.
        noise: $\sigma$ per step, likewise.
        staleness: $\rho$.
        refresh_interval: $K$.
        async_lag: $d$.
        epochs_per_rollout: $I$.
        group_size: $G$.
        plateau: $R^*$.
        initial_reward: $R_0$.
        exponent: Learning-rate exponent, for the schedule.
        signal: Square of the root-mean-square mean gradient per parameter at the start, for Adam.
        batch_noise: Variance of a batch's gradient per parameter, for Adam.
        target: Reward whose first passage is recorded.
        bound: Distance from the plateau beyond which a path has diverged.
    """

    momentum: Float[Array, "..."]
    gain: Float[Array, "..."]
    noise: Float[Array, "..."]
    staleness: Float[Array, "..."]
    refresh_interval: Float[Array, "..."]
    async_lag: Float[Array, "..."]
    epochs_per_rollout: Float[Array, "..."]
    group_size: Float[Array, "..."]
    plateau: Float[Array, "..."]
    initial_reward: Float[Array, "..."]
    exponent: Float[Array, "..."]
    signal: Float[Array, "..."]
    batch_noise: Float[Array, "..."]
    target: Float[Array, "..."]
    bound: Float[Array, "..."]


def known(value) -> bool:
    """Whether the values of an array or number are known now."""
    return not isinstance(value, Tracer)


class Structure(NamedTuple):
    """What of the rule some configurations need at all, as far as it is known when a program is compiled.

    Attributes:
        depth: Deepest async lag.
        stale: Whether rollouts are ever older than the policy.
        uncorrected: Whether all of the lag is left uncorrected, in every configuration.
        reused: Whether mini-batches are ever used more than once.
        first_order: Whether no configuration has momentum.
    """

    depth: int
    stale: bool
    uncorrected: bool
    reused: bool
    first_order: bool


def structure(hyperparameters: Hyperparameters) -> Structure:
    """Find out what the settings need, before anything is done to them: inside a transformation, operations hide values.

    Args:
        hyperparameters: The settings as the user gave them.

    Returns:
        The structure; a field that is traced is taken to need all.
    """
    h = hyperparameters
    lag, k, rho, passes = h.async_lag, h.refresh_interval, h.staleness, h.epochs_per_rollout
    depth = math.ceil(float(np.max(np.asarray(lag)))) if known(lag) else DEEPEST_TRACED_LAG
    none_stale = known(rho) and bool(np.all(np.asarray(rho) == 0))
    fresh = known(k) and known(lag) and bool(np.all(np.asarray(k) == 1) and np.all(np.asarray(lag) == 0))
    return Structure(
        depth=0 if none_stale or fresh else depth,
        stale=not (none_stale or fresh),
        uncorrected=known(rho) and bool(np.all(np.asarray(rho) == 1)),
        reused=not (known(passes) and bool(np.all(np.asarray(passes) == 1))),
        first_order=known(h.momentum) and bool(np.all(np.asarray(h.momentum) == 0)),
    )


def broadcast(hyperparameters: Hyperparameters, task: Task) -> tuple[Hyperparameters, Task, tuple[int, ...]]:
    """Bring all numbers of the settings and of the task to one flat axis of configurations, and one precision.

    Args:
        hyperparameters: Settings whose fields broadcast against each other.
        task: The task; its own fields may have the axes of the settings too, those of its force may not.

    Returns:
        Settings and task with fields of shape `(configurations,)` in one precision, and the shape before.

    Raises:
        ValueError: If the fields do not broadcast.
    """
    dtype = precision(hyperparameters, task)
    holders = [(hyperparameters, name) for name in _SETTINGS] + [(task, name) for name in _OF_TASK]
    if task.adam is not None:
        holders += [(task.adam, "signal"), (task.adam, "noise")]
    named = [(owner, name, getattr(owner, name)) for owner, name in holders]
    shapes = {name: jnp.shape(value) for _, name, value in named if value is not None}
    try:
        shape = np.broadcast_shapes(*shapes.values())
    except ValueError as error:
        several = ", ".join(f"{name} {own}" for name, own in shapes.items() if own)
        raise ValueError(f"the shapes of these fields do not fit together: {several}") from error
    for leaf in jax.tree.leaves(task.force):
        if jnp.ndim(leaf) > 0 and jnp.size(leaf) == math.prod(shape) > 1:
            raise ValueError(
                "fields of the force are shared by all configurations: simulate them one by one instead"
            )

    def flat(value):
        if value is None:
            return None
        return jnp.broadcast_to(jnp.asarray(value).astype(dtype), shape).reshape(-1)

    hyperparameters = eqx.tree_at(
        lambda h: [getattr(h, name) for name in _SETTINGS],
        hyperparameters,
        [flat(getattr(hyperparameters, name)) for name in _SETTINGS],
    )
    present = [name for name in _OF_TASK if getattr(task, name) is not None]
    task = eqx.tree_at(
        lambda t: [getattr(t, name) for name in present],
        task,
        [flat(getattr(task, name)) for name in present],
    )
    if task.adam is not None:
        adam = (flat(task.adam.signal), flat(task.adam.noise))
        task = eqx.tree_at(lambda t: (t.adam.signal, t.adam.noise), task, adam)
    force = jax.tree.map(lambda x: x.astype(dtype) if eqx.is_inexact_array(x) else x, task.force)
    return hyperparameters, eqx.tree_at(lambda t: t.force, task, force), shape


def configurations(
    hyperparameters: Hyperparameters,
    task: Task,
    target: float | int | None,
    bound: float | int | None,
    simulated_adam: bool,
) -> Configurations:
    """Numbers of each configuration, from settings and a task that `broadcast` has prepared.

    Args:
        hyperparameters: The settings, one axis.
        task: The task, one axis.
        target: Reward whose first passage is recorded; the plateau if not given.
        bound: Distance from the plateau at which a path has diverged; three times that of the start if not given.
        simulated_adam: Whether the second moment is simulated, so that the gain leaves it out.

    Returns:
        The configurations.
    """
    check_start(task.force, task.initial_reward, task.plateau)
    adam = task.adam
    plain = eqx.tree_at(lambda t: t.adam, task, None, is_leaf=lambda x: x is None) if simulated_adam else task
    one = jnp.ones_like(hyperparameters.learning_rate)
    start = jnp.abs(task.initial_reward - task.plateau)
    return Configurations(
        momentum=hyperparameters.momentum,
        gain=learning_rate_gain(hyperparameters, plain) * task.curvature,
        noise=step_noise(hyperparameters, plain),
        staleness=hyperparameters.staleness,
        refresh_interval=hyperparameters.refresh_interval,
        async_lag=hyperparameters.async_lag,
        epochs_per_rollout=hyperparameters.epochs_per_rollout,
        group_size=hyperparameters.group_size,
        plateau=task.plateau,
        initial_reward=task.initial_reward,
        exponent=task.learning_rate_exponent,
        signal=one if adam is None else adam.signal**2,
        batch_noise=0 * one if adam is None else adam.noise**2 / hyperparameters.rollouts_per_step,
        target=task.plateau if target is None else target * one,
        bound=3.0 * jnp.where(start > 0, start, 1.0) if bound is None else bound * one,
    )


def check_noise_shape(noise_shape: str) -> None:
    """Refuse an unknown shape of the noise."""
    if noise_shape not in get_args(NoiseShape):
        raise ValueError(f"noise_shape must be one of {get_args(NoiseShape)}, got {noise_shape!r}")
