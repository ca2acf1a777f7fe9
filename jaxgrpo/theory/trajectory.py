"""The predicted course of a run by the exact update rule: mean field, and fluctuations about it.

For staleness 1 the force is constant within a refresh cycle, so that one step of the scan is one whole cycle, smooth in the
refresh interval; otherwise one step of the scan is one optimizer step.
"""

import math
from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxgrpo.theory.cycle import DEEPEST_TRACED_LAG, lag_selector, momentum_sums, noise_covariance
from jaxgrpo.theory.forces import check_start
from jaxgrpo.theory.hyperparameters import Hyperparameters, is_concrete
from jaxgrpo.theory.numerics import momentum_power, precision, safe_sqrt
from jaxgrpo.theory.reduction import learning_rate_gain, step_noise
from jaxgrpo.theory.schedules import Schedule
from jaxgrpo.theory.task import Task

# Steps per cycle that are summed where the interval is traced.
_LONGEST_CYCLE = 128

Steps = Float[Array, " steps"] | np.ndarray | Sequence[float | int]


class Prediction(eqx.Module):
    """Predicted course of a run.

    Attributes:
        steps: Optimizer steps.
        mean: Expected reward at these steps.
        std: Standard deviation of the expected reward about it, from gradient noise (no evaluation noise).
    """

    steps: Float[Array, " steps"]
    mean: Float[Array, " steps"]
    std: Float[Array, " steps"]


def held_force_sums(
    momentum: Float[Array, ""],
    start: Float[Array, " n"],
    length: Float[Array, " n"],
    schedule: Schedule | None,
    exponent: Float[Array, ""],
    longest: int,
) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
    r"""Displacement and velocity that a unit force held from `start` for `length` steps leaves behind.

    $\sum_i f_i C_{L-i}$ and $\sum_i f_i \mu^{L-1-i}$ with $f_i$ the schedule's factor at step `start + i` to the
    learning-rate exponent; the closed forms $A$ and $C$ without a schedule.

    Args:
        momentum: $\mu$.
        start: First steps.
        length: Numbers of steps, real.
        schedule: Factor on the learning rate as a function of the step.
        exponent: Learning-rate exponent.
        longest: Largest number of steps, static.

    Returns:
        The two sums.
    """
    if schedule is None:
        c, a = momentum_sums(momentum, length)
        return a, c
    i = jnp.arange(longest, dtype=length.dtype)
    factor = schedule_factor(schedule, start[:, None] + i[None, :], exponent)
    left = length[:, None] - i[None, :]
    now = momentum_sums(momentum, jnp.maximum(left, 0.0))[0]
    before = momentum_sums(momentum, jnp.maximum(left - 1.0, 0.0))[0]
    return jnp.sum(factor * now, axis=1), jnp.sum(factor * (now - before), axis=1)


def held_noise_sums(
    momentum: Float[Array, ""],
    start: Float[Array, " n"],
    length: Float[Array, " n"],
    schedule: Schedule | None,
    exponent: Float[Array, ""],
    longest: int,
    batches: Float[Array, ""] | None,
) -> Float[Array, "n 2 2"]:
    r"""Covariance of $(e, u)$ from unit noise in each step since `start`, equal wherever a mini-batch comes again.

    $\sum_b W_b W_b^T$ with $W_b = \sum_{i \equiv b} f_i (C_{L-i}, \mu^{L-1-i})$ over the mini-batches $b$ of the cycle.

    Args:
        momentum: $\mu$.
        start: First steps.
        length: Numbers of steps $L$, real.
        schedule: Factor on the learning rate as a function of the step.
        exponent: Learning-rate exponent.
        longest: Largest number of steps, static.
        batches: Mini-batches $S = K/I$ after which the noise repeats, rounded; none if it never does.

    Returns:
        The covariances.
    """
    i = jnp.arange(longest, dtype=length.dtype)
    left = length[:, None] - i[None, :]
    now = momentum_sums(momentum, jnp.maximum(left, 0.0))[0]
    before = momentum_sums(momentum, jnp.maximum(left - 1.0, 0.0))[0]
    responses = jnp.stack([now, now - before], axis=-1)
    if schedule is not None:
        factor = schedule_factor(schedule, start[:, None] + i[None, :], exponent)
        responses = responses * factor[..., None]
    if batches is not None:
        batch = jnp.mod(i, jnp.maximum(jnp.round(batches), 1.0))
        same = (batch[None, :] == i[:, None]).astype(length.dtype)
        responses = jnp.einsum("bi,nic->nbc", same, responses)
    return jnp.einsum("nic,nid->ncd", responses, responses)


def schedule_factor(
    schedule: Schedule, steps: Float[Array, "..."], exponent: Float[Array, ""]
) -> Float[Array, "..."]:
    """The schedule's factor on the force at given steps, to the learning-rate exponent."""
    factor = jnp.asarray(schedule(steps)).astype(steps.dtype)
    positive = factor > 0
    return jnp.where(positive, jnp.where(positive, factor, 1.0) ** exponent, 0.0)


def _cast(tree, dtype):
    return jax.tree.map(lambda x: x.astype(dtype) if eqx.is_inexact_array(x) else x, tree)


def _slope_and_readout(drive, task, state):
    """Restoring slope felt by a common shift of the coordinates, and what the reward makes of such a shift."""
    ones = jnp.ones_like(state)
    slopes = -jax.jvp(drive, (state,), (ones,))[1]
    weights = jax.grad(lambda z: task.force.reward(z, task.plateau))(state)
    readout = jnp.sum(weights)
    size = jnp.sum(jnp.abs(weights))
    share = jnp.abs(weights) / jnp.where(size > 0, size, 1.0)
    return jnp.sum(share * slopes), readout


def _depth(async_lag) -> int:
    return int(math.ceil(float(jnp.max(async_lag)))) if is_concrete(async_lag) else DEEPEST_TRACED_LAG


@eqx.filter_jit
def _by_cycles(hyperparameters, task, steps, schedule, cycles, longest, depth, reused):
    h = hyperparameters
    momentum, k = h.momentum, h.refresh_interval
    gain = learning_rate_gain(h, task) * task.curvature
    sigma = step_noise(h, task)
    drive = task.force.bind(task.plateau, h.group_size, steps.dtype)
    starts = k * jnp.arange(cycles, dtype=steps.dtype)
    exponent = task.learning_rate_exponent
    move, push = held_force_sums(
        momentum, starts, jnp.broadcast_to(k, starts.shape), schedule, exponent, longest
    )
    move, push = jnp.broadcast_to(move, starts.shape), jnp.broadcast_to(push, starts.shape)
    carry_move = momentum * momentum_sums(momentum, k)[0]
    carry_push = momentum_power(momentum, k)
    batches = k / h.epochs_per_rollout if reused else None
    if schedule is None:
        noise = noise_covariance(momentum, k, sigma, h.epochs_per_rollout).astype(steps.dtype)
        noise = jnp.broadcast_to(noise, (cycles, 2, 2))
    else:
        noise = sigma**2 * held_noise_sums(
            momentum, starts, jnp.broadcast_to(k, starts.shape), schedule, exponent, longest, batches
        )
    selector = lag_selector(h.async_lag, depth)
    size = 2 + depth

    def cycle(carry, inputs):
        z, u, history, covariance = carry
        move_n, push_n, noise_n = inputs
        acting = jnp.tensordot(selector, history, axes=1)
        force = gain * drive(acting)
        slope, readout = _slope_and_readout(drive, task, z)
        out = (z, u, force, slope, readout, covariance)
        z_next = z + carry_move * u + move_n * force
        u_next = carry_push * u + push_n * force
        history_next = jnp.concatenate([z_next[None], history[:-1]], axis=0)

        matrix = jnp.zeros((size, size), z.dtype)
        matrix = matrix.at[0, 0].set(1.0).at[0, 1].set(carry_move).at[1, 1].set(carry_push)
        columns = jnp.array([0, *range(2, size)])
        matrix = matrix.at[0, columns].add(-gain * slope * move_n * selector)
        matrix = matrix.at[1, columns].add(-gain * slope * push_n * selector)
        if depth > 0:
            matrix = matrix.at[2, 0].set(1.0)
        for i in range(3, size):
            matrix = matrix.at[i, i - 1].set(1.0)
        spread = matrix @ covariance @ matrix.T
        spread = spread.at[:2, :2].add(noise_n)
        return (z_next, u_next, history_next, spread), out

    z0 = task.force.initial_state(task.initial_reward, task.plateau)
    z0 = jnp.broadcast_to(z0, z0.shape).astype(steps.dtype)
    start = (
        z0,
        jnp.zeros_like(z0),
        jnp.broadcast_to(z0, (depth + 1, z0.size)),
        jnp.zeros((size, size), z0.dtype),
    )
    _, (z, u, force, slope, _, covariance) = jax.lax.scan(jax.checkpoint(cycle), start, (move, push, noise))

    # Within a cycle: the same closed form over the steps taken since the refresh.
    tolerance = 1e-5 if steps.dtype == jnp.float32 else 1e-9
    n = jnp.clip(jnp.floor(steps / k + tolerance).astype(jnp.int32), 0, cycles - 1)
    # Never negative but for rounding; a clamp that is differentiated would halve the derivative at every refresh.
    since = steps - starts[n]
    since = since + jax.lax.stop_gradient(jnp.maximum(since, 0.0) - since)
    move_j, push_j = held_force_sums(momentum, starts[n], since, schedule, exponent, longest)
    carry_j = momentum * momentum_sums(momentum, since)[0]
    state = z[n] + carry_j[:, None] * u[n] + move_j[:, None] * force[n]
    mean = jax.vmap(lambda s: task.force.reward(s, task.plateau))(state)
    readout = jax.vmap(lambda s: _slope_and_readout(drive, task, s)[1])(state)

    columns = jnp.array([0, *range(2, size)])
    row = jnp.zeros((steps.size, size), steps.dtype)
    row = row.at[:, 0].add(1.0).at[:, 1].add(carry_j)
    row = row.at[:, columns].add(-(gain * slope[n] * move_j)[:, None] * selector[None, :])
    if schedule is None and not reused:
        added = noise_covariance(momentum, since, sigma, 1.0).astype(steps.dtype)
    else:
        added = sigma**2 * held_noise_sums(momentum, starts[n], since, schedule, exponent, longest, batches)
    variance = jnp.einsum("ti,tij,tj->t", row, covariance[n], row) + added[:, 0, 0]
    return mean, jnp.abs(readout) * safe_sqrt(variance)


@eqx.filter_jit
def _by_steps(hyperparameters, task, steps, schedule, total, depth, batches):
    h = hyperparameters
    momentum, k, rho = h.momentum, h.refresh_interval, h.staleness
    gain = learning_rate_gain(h, task) * task.curvature
    sigma = step_noise(h, task)
    drive = task.force.bind(task.plateau, h.group_size, steps.dtype)
    selector = lag_selector(h.async_lag, depth)
    # The state of the fluctuations: (e, u, errors at the last refreshes, noise of each mini-batch if it comes again).
    looks = 3 + depth
    size = looks + batches
    count = jnp.arange(total, dtype=steps.dtype)
    exponent = task.learning_rate_exponent
    factor = jnp.ones_like(count) if schedule is None else schedule_factor(schedule, count, exponent)
    tolerance = 1e-5 if steps.dtype == jnp.float32 else 1e-9
    refresh = jnp.floor(count / k + tolerance) > jnp.floor((count - 1.0) / k + tolerance)
    since = jnp.round(count - k * jnp.floor(count / k + tolerance)).astype(jnp.int32)
    batch = jnp.mod(since, max(batches, 1))

    def step(carry, inputs):
        z, u, history, covariance = carry
        factor_t, refresh_t, batch_t = inputs
        shift = jnp.zeros((size, size), z.dtype).at[0, 0].set(1.0).at[1, 1].set(1.0).at[2, 0].set(1.0)
        for i in range(3, looks):
            shift = shift.at[i, i - 1].set(1.0)
        renewed = jnp.zeros(size, z.dtype).at[looks:].set(1.0)
        shifted = jnp.concatenate([z[None], history[:-1]], axis=0)
        history = jnp.where(refresh_t, shifted, history)
        covariance = jnp.where(refresh_t, shift @ covariance @ shift.T + jnp.diag(renewed), covariance)
        slope, readout = _slope_and_readout(drive, task, z)
        out = (z, readout, covariance[0, 0])

        stale = jnp.tensordot(selector, history, axes=1)
        force = gain * factor_t * ((1.0 - rho) * drive(z) + rho * drive(stale))
        u_next = momentum * u + force
        stiffness = gain * factor_t * slope
        row = jnp.zeros(size, z.dtype).at[0].set(-stiffness * (1.0 - rho)).at[1].set(momentum)
        row = row.at[2:looks].add(-stiffness * rho * selector)
        if batches:
            row = row.at[looks + batch_t].add(factor_t * sigma)
        matrix = jnp.eye(size, dtype=z.dtype).at[1].set(row).at[0].add(row)
        spread = matrix @ covariance @ matrix.T
        if not batches:
            spread = spread.at[:2, :2].add((factor_t * sigma) ** 2)
        return (z + u_next, u_next, history, spread), out

    z0 = task.force.initial_state(task.initial_reward, task.plateau)
    z0 = jnp.broadcast_to(z0, z0.shape).astype(steps.dtype)
    start = (
        z0,
        jnp.zeros_like(z0),
        jnp.broadcast_to(z0, (depth + 1, z0.size)),
        jnp.zeros((size, size), z0.dtype),
    )
    _, (z, readout, variance) = jax.lax.scan(jax.checkpoint(step), start, (factor, refresh, batch))
    low = jnp.clip(jnp.floor(steps).astype(jnp.int32), 0, total - 1)
    high = jnp.minimum(low + 1, total - 1)
    part = steps - low.astype(steps.dtype)
    state = z[low] + part[:, None] * (z[high] - z[low])
    mean = jax.vmap(lambda s: task.force.reward(s, task.plateau))(state)
    std = jnp.abs(readout) * safe_sqrt(variance)
    return mean, std[low] + part * (std[high] - std[low])


def predict(
    hyperparameters: Hyperparameters,
    task: Task,
    steps: Steps,
    schedule: Schedule | None = None,
) -> Prediction:
    r"""Expected reward of a run and its standard deviation, by the exact update rule.

    The mean follows $u_{t+1} = \mu u_t + c\,\eta_t\,\kappa\,[(1-\rho) F(z_t) + \rho F(z_s)]$, $z_{t+1} = z_t + u_{t+1}$ from
    rest, for any force, lag and schedule. The standard deviation is that of the linearised fluctuations about it,
    driven by the task's rollout noise through the same cycles (exact for the harmonic force).

    Args:
        hyperparameters: One configuration (use `jax.vmap` or `equinox.filter_vmap` for several).
        task: The task.
        steps: Concrete non-negative optimizer steps, in any order, fractions allowed.
        schedule: Factor on the learning rate as a function of the optimizer step, 1 at the peak (an Optax schedule
            with peak value 1); constant if not given.

    Returns:
        The prediction, differentiable in every field of `hyperparameters` and `task`. Smooth in the refresh
        interval for staleness 1; for another staleness the derivative by it is zero.

    Raises:
        ValueError: If the steps are not finite, not one-dimensional or negative, if a softmax policy starts outside its
            range, or if mini-batches are reused at a staleness other than 1 and the refresh interval is not a whole
            multiple of the epochs per rollout.

    Example:
        >>> import jax, jaxgrpo as jg
        >>> task = jg.Task(curvature=3e4, plateau=0.9, initial_reward=0.2)
        >>> final = lambda h: jg.predict(h, task, [500.0]).mean[-1]
        >>> gradient = jax.grad(final)(jg.Hyperparameters(learning_rate=1e-7))
        >>> bool(gradient.learning_rate > 0)
        True
    """
    values = np.asarray(steps, float)
    if values.ndim != 1 or values.size == 0:
        raise ValueError(f"steps must be a one-dimensional, non-empty array, got shape {values.shape}")
    if not np.all(np.isfinite(values)) or values.min() < 0:
        raise ValueError("steps must be finite and not negative (optimizer steps since the start)")
    check_start(task.force, task.initial_reward, task.plateau)
    dtype = precision(hyperparameters, task)
    hyperparameters, task = _cast(hyperparameters, dtype), _cast(task, dtype)
    at = jnp.asarray(values, dtype)
    depth = _depth(hyperparameters.async_lag)
    k, rho = hyperparameters.refresh_interval, hyperparameters.staleness
    shortest = float(k) if is_concrete(k) else 1.0
    longest = math.ceil(shortest) if is_concrete(k) else _LONGEST_CYCLE
    cycles = _padded(int(math.floor(values.max() / shortest + 1e-9)) + 1)
    total = _padded(int(values.max()) + 2)
    passes = hyperparameters.epochs_per_rollout
    reused = not (is_concrete(passes) and bool(jnp.all(passes == 1)))
    if (schedule is not None or reused) and not is_concrete(k):
        k = eqx.error_if(
            k,
            k > _LONGEST_CYCLE,
            f"inside a transformation the refresh interval may be at most {_LONGEST_CYCLE} here: give it as a number",
        )
        hyperparameters = eqx.tree_at(lambda h: h.refresh_interval, hyperparameters, k)
    uncorrected = eqx.tree_at(lambda h: h.staleness, hyperparameters, jnp.ones((), dtype))
    if is_concrete(rho) and bool(jnp.all(rho == 1)):
        mean, std = _by_cycles(hyperparameters, task, at, schedule, cycles, longest, depth, reused)
        return Prediction(at, mean, std)
    batches = 0
    if is_concrete(passes) and reused:
        if not is_concrete(k) or _batches(k, passes) is None:
            raise ValueError(
                "with a staleness other than 1 and several epochs per rollout, refresh_interval must be "
                "a concrete, whole multiple of epochs_per_rollout"
            )
        batches = _batches(k, passes)
    elif reused:
        rho = eqx.error_if(
            rho,
            (passes != 1) & (rho != 1),
            "several epochs per rollout and a staleness other than 1 need concrete numbers: make the Hyperparameters "
            "inside the transformed function, from those fields alone that vary",
        )
        hyperparameters = eqx.tree_at(lambda h: h.staleness, hyperparameters, rho)
    mean, std = _by_steps(hyperparameters, task, at, schedule, total, depth, batches)
    if is_concrete(rho):
        return Prediction(at, mean, std)
    # Inside a transformation the value is not known. At staleness 1 the two courses by steps cancel, derivative by
    # staleness apart, and the course by cycles, smooth in the refresh interval, remains.
    mean_one, std_one = _by_steps(uncorrected, task, at, schedule, total, depth, batches)
    mean_cycles, std_cycles = _by_cycles(uncorrected, task, at, schedule, cycles, longest, depth, reused)
    return Prediction(at, mean_cycles + (mean - mean_one), std_cycles + (std - std_one))


def _batches(refresh_interval, epochs_per_rollout) -> int | None:
    """Mini-batches of a cycle, or nothing if they are not a whole number of steps."""
    k, passes = float(refresh_interval), float(epochs_per_rollout)
    whole = k == round(k) and passes == round(passes) and k % passes == 0
    return round(k / passes) if whole else None


def _padded(n: int) -> int:
    """Round a length up so that few lengths are ever compiled."""
    if n <= 16:
        return 16
    step = 1 << max((n - 1).bit_length() - 3, 0)
    return -(-n // step) * step


def mean_field(
    hyperparameters: Hyperparameters,
    task: Task,
    steps: Steps,
    schedule: Schedule | None = None,
) -> Float[Array, " steps"]:
    """Expected reward alone; see `predict`."""
    return predict(hyperparameters, task, steps, schedule).mean
