"""From hyperparameters and task to the oscillator: leading order, and exactly matched."""

from typing import Literal

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxgrpo.theory.cycle import characteristic_at_one, cycle_map, noise_covariance
from jaxgrpo.theory.forces import KLAnchored
from jaxgrpo.theory.hyperparameters import Hyperparameters, is_concrete
from jaxgrpo.theory.numerics import safe_sqrt, squared_arccosine
from jaxgrpo.theory.oscillator import Oscillator
from jaxgrpo.theory.task import Task

Order = Literal["matched", "leading"]
Lag = Literal["mean", "interval"]

# An eigenvalue below this is a mode that is gone within one cycle.
_SMALLEST_EIGENVALUE = 1e-30


def learning_rate_gain(hyperparameters: Hyperparameters, task: Task) -> Float[Array, "..."]:
    r"""What multiplies the force in an update: $c\,\eta$, with Adam's gain and the learning-rate exponent.

    $c\,\eta_0 (\eta/\eta_0)^a / \sqrt{g^2 + s^2/BG}$, where the last factor is there only if the task knows it.
    """
    rate = hyperparameters.learning_rate
    if task.reference_learning_rate is not None:
        reference = task.reference_learning_rate
        positive = rate > 0
        ratio = jnp.where(positive, rate, reference) / reference
        scaled = reference * jnp.exp(task.learning_rate_exponent * jnp.log(ratio))
        rate = jnp.where(positive, scaled, 0.0)
    gain = hyperparameters.dampening * rate
    if task.adam is not None:
        gain = gain * task.adam.gain(hyperparameters.rollouts_per_step)
    return gain


def stiffness(
    hyperparameters: Hyperparameters, task: Task, *, curvature: Float[Array, "..."] | None = None
) -> Float[Array, "..."]:
    r"""Dimensionless stiffness per optimizer step, $h = c\,\eta\,\kappa$.

    Args:
        hyperparameters: The settings.
        task: The task.
        curvature: Curvature to use instead of the task's (its sharpness, say).

    Returns:
        $h$ of the linearised force. For the softmax forces, whose slope varies along the course, the slope is the
        largest one; for a KL-anchored force the larger of that at the balance and that of its base.
    """
    slope = task.force.peak_slope()
    if isinstance(task.force, KLAnchored):
        at_balance = task.force.slope_at_fixed_point(task.plateau, hyperparameters.group_size)
        slope = jnp.maximum(at_balance, 0.0)
    base = task.curvature * slope if curvature is None else curvature
    return learning_rate_gain(hyperparameters, task) * base


def step_noise(hyperparameters: Hyperparameters, task: Task) -> Float[Array, "..."]:
    r"""Standard deviation that one optimizer step adds to the velocity, $\sigma = c\,\eta\,s/\sqrt{BG}$."""
    gain = learning_rate_gain(hyperparameters, task)
    return gain * task.rollout_noise / jnp.sqrt(hyperparameters.rollouts_per_step)


def reduce(
    hyperparameters: Hyperparameters,
    task: Task,
    order: Order = "matched",
    lag: Lag = "mean",
    throw: bool = True,
) -> Oscillator:
    r"""Reduce a run to its damped oscillator.

    To leading order $m = \mu$, $\gamma = (1-\mu) - h\tau$, $k = h$ with the mean lag $\tau = \rho[(K-1)/2 + dK]$ (or, with
    `lag="interval"`, $\tau = \rho K(1 + d)$, the stricter condition in use elsewhere). The matched oscillator passes
    through the true trajectory at every refresh: with $z_\pm$ the eigenvalues of the cycle map and
    $s_\pm = \log(z_\pm)/K$, $k/m = s_+ s_-$ and $\gamma/m = -(s_+ + s_-)$, scaled so that $k = h$.

    Args:
        hyperparameters: The settings.
        task: The task; forces other than the harmonic one are linearised where they are stiffest.
        order: `"matched"` or `"leading"`.
        lag: `"mean"` or `"interval"`; concerns the leading order only.
        throw: Whether to raise where no matched oscillator exists; otherwise the leading order is returned there.

    Returns:
        The oscillator. At $\mu = 0$ the matched mass is 0 and its derivative by $\mu$, which is unbounded, is given as 0.

    Raises:
        ValueError: If an option is unknown, or the matched order is asked for with an async lag.
        RuntimeError: If `throw` and the cycle map has an eigenvalue that is real and negative (a zig-zag).

    Example:
        >>> import jaxgrpo as jg
        >>> task = jg.Task(curvature=1.0, plateau=0.9)
        >>> settings = jg.Hyperparameters(0.01, momentum=0.9, refresh_interval=4, convention="heavy_ball")
        >>> oscillator = jg.reduce(settings, task, order="leading")
        >>> print(round(float(oscillator.damping), 3))
        0.085
    """
    if order not in ("matched", "leading"):
        raise ValueError(f"order must be 'matched' or 'leading', got {order!r}")
    if lag not in ("mean", "interval"):
        raise ValueError(f"lag must be 'mean' or 'interval', got {lag!r}")
    h = stiffness(hyperparameters, task)
    sigma = step_noise(hyperparameters, task)
    plateau = task.plateau
    if isinstance(task.force, KLAnchored):
        plateau = task.force.fixed_point(task.plateau, hyperparameters.group_size)
    leading = _leading(hyperparameters, h, sigma, plateau, task.initial_reward, lag)
    if order == "leading":
        return leading
    if is_concrete(hyperparameters.async_lag) and bool(jnp.any(hyperparameters.async_lag > 0)):
        raise ValueError(
            "with an async lag the cycle map has more than two eigenvalues and no matched oscillator: "
            "use order='leading', or predict for the exact trajectory"
        )
    return _matched(hyperparameters, h, sigma, plateau, task.initial_reward, leading, throw)


def _leading(hyperparameters, h, sigma, plateau, initial_reward, lag):
    mean_lag = hyperparameters.mean_lag
    if lag == "interval":
        k = hyperparameters.refresh_interval
        mean_lag = hyperparameters.staleness * k * (1.0 + hyperparameters.async_lag)
    momentum = hyperparameters.momentum
    damping = (1.0 - momentum) - h * mean_lag
    mass, damping, h = jnp.broadcast_arrays(momentum, damping, h)
    return Oscillator(mass, damping, h, plateau, initial_reward, sigma)


def _matched(hyperparameters, h, sigma, plateau, initial_reward, leading, throw):
    momentum, k, staleness = (
        hyperparameters.momentum,
        hyperparameters.refresh_interval,
        hyperparameters.staleness,
    )
    matrix = cycle_map(momentum, h, k, staleness)
    half_trace = 0.5 * (matrix[..., 0, 0] + matrix[..., 1, 1])
    det = matrix[..., 0, 0] * matrix[..., 1, 1] - matrix[..., 0, 1] * matrix[..., 1, 0]
    discriminant = half_trace**2 - det
    one_root = (det <= 0) & (jnp.abs(det) <= 1e-12) & (half_trace > 0)
    exists = one_root | ((det > 0) & ((discriminant < 0) | (half_trace > 0)))

    # Near and beyond critical damping: symmetric functions of the eigenvalues, smooth through it.
    safe_det = jnp.where(exists & (det > _SMALLEST_EIGENVALUE), det, 1.0)
    ratio = jnp.where(exists, half_trace, 1.0) / jnp.sqrt(safe_det)
    near = exists & (det > _SMALLEST_EIGENVALUE) & (ratio < 2.0)
    half_log = 0.5 * jnp.log(safe_det)
    product_near = half_log**2 + squared_arccosine(jnp.where(near, ratio, 1.0))
    sum_near = 2.0 * half_log

    # Far apart: each eigenvalue by itself.
    slow = jnp.where(exists & ~near, half_trace + safe_sqrt(discriminant), 0.5)
    fast = jnp.maximum(jnp.where(exists & ~near, det, 0.25) / slow, _SMALLEST_EIGENVALUE)
    # (1 - slow)(1 - fast) = det(I - M), whose terms are positive: exact where 1 - slow is below the rounding of slow.
    gap = characteristic_at_one(momentum, h, k, staleness) / (1.0 - fast)
    slow_close = exists & ~near & (gap < 0.5)
    log_slow = jnp.where(slow_close, jnp.log1p(-jnp.where(slow_close, gap, 0.0)), jnp.log(slow))
    log_fast = jnp.log(fast)
    product = jnp.where(near, product_near, log_slow * log_fast) / k**2
    total = jnp.where(near, sum_near, log_slow + log_fast) / k

    safe_product = jnp.where(product > 0, product, 1.0)
    mass = jnp.where(momentum > 0, h / safe_product, 0.0)
    damping = jnp.where(momentum > 0, -h * total / safe_product, -h * k / log_slow)
    exists = exists & ((product > 0) | (momentum == 0)) & (h > 0)
    mass = jnp.where(exists, mass, leading.mass)
    damping = jnp.where(exists, damping, leading.damping)
    stiffness_ = jnp.broadcast_to(h, mass.shape)

    at_rest = Oscillator(mass, damping, stiffness_, jnp.zeros_like(mass), jnp.ones_like(mass))
    displacement, velocity = at_rest._responses(jnp.broadcast_to(k, mass.shape))
    start = initial_reward - plateau
    usable = exists & (jnp.abs(velocity) > 1e-12)
    needed = (matrix[..., 0, 0] - displacement) / jnp.where(usable, velocity, 1.0)
    initial_velocity = jnp.where(usable, start * needed, 0.0)

    # The noise that gives the exact stationary variance at refreshes.
    noise = _matched_noise(hyperparameters, matrix, sigma, damping, stiffness_, leading.noise)
    if throw:
        mass = eqx.error_if(
            mass,
            ~exists,
            "no matched oscillator: the cycle map has a real negative eigenvalue (zig-zag); "
            "use order='leading', throw=False, or a smaller learning rate",
        )
    return Oscillator(mass, damping, stiffness_, plateau, initial_reward, noise, initial_velocity)


def _matched_noise(hyperparameters, matrix, sigma, damping, h, fallback):
    """Noise whose temperature reproduces the exact stationary variance of the cycle map."""
    if not is_concrete(hyperparameters.staleness) or bool(jnp.any(hyperparameters.staleness != 1)):
        return fallback
    q = noise_covariance(
        hyperparameters.momentum, hyperparameters.refresh_interval, 1.0, hyperparameters.epochs_per_rollout
    )
    a, b, c, d = matrix[..., 0, 0], matrix[..., 0, 1], matrix[..., 1, 0], matrix[..., 1, 1]
    q = q.astype(a.dtype)
    zero = jnp.zeros_like(a)
    system = jnp.stack(
        [
            jnp.stack([1.0 - a * a, -2.0 * a * b, -b * b], axis=-1),
            jnp.stack([-a * c, 1.0 - a * d - b * c, -b * d], axis=-1),
            jnp.stack([-c * c, -2.0 * c * d, 1.0 - d * d], axis=-1),
        ],
        axis=-2,
    )
    right = jnp.stack([q[..., 0, 0] + zero, q[..., 0, 1] + zero, q[..., 1, 1] + zero], axis=-1)
    half_trace, det = 0.5 * (a + d), a * d - b * c
    stable = (jnp.abs(det) < 1) & (jnp.abs(2.0 * half_trace) < 1.0 + det) & (damping > 0)
    safe = jnp.where(stable[..., None, None], system, jnp.eye(3, dtype=system.dtype))
    variance = jnp.linalg.solve(safe, right[..., None])[..., 0, 0]
    factor = safe_sqrt(2.0 * damping * h * jnp.where(stable, variance, 0.0))
    return jnp.where(stable, sigma * factor, fallback)
