"""The exact linear map of one refresh cycle: stability, thresholds and stationary covariance.

Within a cycle of $K$ optimizer steps the force is evaluated at the policy that made the rollouts, so that the state
$(e, u)$ (error and last update) at one refresh is a linear function of that at the refresh before.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, Int

from jaxgrpo.theory.hyperparameters import is_concrete
from jaxgrpo.theory.numerics import (
    bounded_exp,
    decay_integral,
    momentum_power,
    safe_sqrt,
    sine_like,
    squared_arccosine,
)

Scalar = Float[Array, ""] | Float[np.ndarray, ""] | float | int
Scalars = Float[Array, "..."] | Float[np.ndarray, "..."] | float | int

Lag = Float[Array, ""] | Int[Array, ""] | Float[np.ndarray, ""] | float | int

# Deepest async lag where its value is not known, inside a transformation.
DEEPEST_TRACED_LAG = 8
# Longest refresh interval for which powers of the step matrix are formed: 2^_POWERS - 1.
_POWERS = 17
# Below this the eigenvalues of one step are too far apart to be treated together.
_SMALLEST_MOMENTUM = 1e-12


def is_known_one(value: Scalars) -> bool:
    """Whether a number is known to be 1 (a traced one is not)."""
    if isinstance(value, jax.Array):
        return is_concrete(value) and bool(np.all(np.asarray(value) == 1))
    return bool(np.all(np.asarray(value) == 1))


def _as_floats(*values: Scalars) -> list[Float[Array, "..."]]:
    arrays = [jnp.asarray(value) for value in values]
    dtype = jnp.result_type(float, *(a for a in arrays if jnp.issubdtype(a.dtype, jnp.inexact)))
    explicit = [a.dtype for a in arrays if jnp.issubdtype(a.dtype, jnp.inexact) and not a.weak_type]
    if explicit:
        dtype = jnp.result_type(*explicit)
    return [a.astype(dtype) for a in arrays]


def momentum_sums(momentum: Scalars, n: Scalars) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    r"""Sums of momentum over $n$ steps: $C = (1-\mu^n)/(1-\mu)$ and $A = (n - \mu C)/(1-\mu)$.

    $C$ is the displacement after $n$ steps of a unit update, $A$ that of a unit force held for $n$ steps.
    """
    momentum, n = _as_floats(momentum, n)
    c = (1.0 - momentum_power(momentum, n)) / (1.0 - momentum)
    return c, (n - momentum * c) / (1.0 - momentum)


def _integer_power(matrix, n):
    """Power of a square matrix to a traced integer, by repeated squaring."""
    result = jnp.broadcast_to(jnp.eye(matrix.shape[-1], dtype=matrix.dtype), matrix.shape)

    def body(carry, bit):
        result, square = carry
        take = ((n >> bit) & 1).astype(bool)
        result = jnp.where(take[..., None, None], result @ square, result)
        # Squares beyond the highest set bit are not used but may overflow: bound them.
        return (result, jnp.clip(square @ square, -1e18, 1e18)), None

    (result, _), _ = jax.lax.scan(body, (result, matrix), jnp.arange(_POWERS, dtype=n.dtype))
    return result


def _whole_responses(momentum, reduced, refresh_interval):
    """Responses for a whole interval by repeated squaring of one step, interpolated linearly between whole ones."""
    one, zero = jnp.ones_like(reduced), jnp.zeros_like(reduced)
    # State (e, u, f): f is the held part of the force, which enters e and u alike.
    step = jnp.stack(
        [
            jnp.stack([one - reduced, momentum * one, one], axis=-1),
            jnp.stack([-reduced, momentum * one, one], axis=-1),
            jnp.stack([zero, zero, one], axis=-1),
        ],
        axis=-2,
    )
    whole = jnp.floor(refresh_interval)
    part = (refresh_interval - whole)[..., None, None]
    low = _integer_power(step, whole.astype(jnp.int32))
    power = low + part * (step @ low - low)
    return power[..., 0, 2], power[..., 1, 2], power[..., 1, 1]


def _responses(momentum, reduced, refresh_interval):
    r"""What a unit force held over the cycle does to $e$ and $u$, and what is left of $u$ in $u$.

    With $B = [1-h', \mu; -h', \mu]$, $\det B = \mu$ and $\operatorname{tr} B = 1 - h' + \mu$, so that
    $B^K = U_K B - \mu U_{K-1}$ with $U_K = (\lambda_+^K - \lambda_-^K)/(\lambda_+ - \lambda_-)$, defined for real $K$ where
    the eigenvalues are not negative. The responses are $U_K + \sum_{j<K} U_j$ and $U_K$, the first column of
    $I - B^K$ over $h'$; at $h' = 0$ they are $A$ and $C$.
    """
    k = refresh_interval
    sum_half = 0.5 * (1.0 - reduced + momentum)
    discriminant = 0.25 * ((1.0 - momentum) ** 2 - 2.0 * reduced * (1.0 + momentum) + reduced**2)

    # Real positive eigenvalues, each by itself. (1 - slow)(1 - fast) = h'.
    real = (discriminant > 0) & (sum_half > 0)
    h = jnp.where(real, reduced, 0.0)
    root = jnp.sqrt(jnp.where(real, discriminant, 0.25 * (1.0 - momentum) ** 2))
    slow = 0.5 * (1.0 - h + momentum) + root
    fast = momentum / slow
    fast_gap = 0.5 * (1.0 - momentum + h) + root
    slow_gap = h / fast_gap
    decay = jnp.where(jnp.abs(slow_gap) < 1e-3, 0.0, slow_gap)
    series = 1.0 + slow_gap * (0.5 + slow_gap * (1.0 / 3.0 + slow_gap * (0.25 + slow_gap * 0.2)))
    rate_over_gap = jnp.where(decay == 0, series, -jnp.log1p(-decay) / jnp.where(decay == 0, 1.0, decay))
    rate = slow_gap * rate_over_gap
    slow_power, fast_power = bounded_exp(-k * rate), momentum_power(fast, k)
    held_far = (slow_power - fast_power) / (2.0 * root)
    before_far = (fast * slow_power - slow * fast_power) / (2.0 * root)
    sum_far = (decay_integral(rate, k) * rate_over_gap - (1.0 - fast_power) / fast_gap) / (2.0 * root)

    # Near and beyond critical damping of one step: functions of both eigenvalues that are smooth where they meet.
    moving = momentum > _SMALLEST_MOMENTUM
    mu = jnp.where(moving, momentum, 0.5)
    ratio = sum_half / jnp.sqrt(mu)
    meets = moving & (ratio > -0.99) & (ratio < 2.0)
    angle = -squared_arccosine(jnp.where(meets, ratio, 1.0))
    near = meets & (k**2 * angle <= 1.0)
    angle = jnp.where(near, angle, 0.0)
    half_power = jnp.exp(0.5 * k * jnp.log(mu))
    unit = sine_like(angle)
    held_near = half_power / jnp.sqrt(mu) * k * sine_like(k**2 * angle) / unit
    before_near = half_power * (k - 1.0) * sine_like((k - 1.0) ** 2 * angle) / unit

    held = jnp.where(near, held_near, held_far)
    before = jnp.where(near, before_near, before_far)
    apart = real & (root > 0.05 * (1.0 - momentum))
    total = jnp.where(apart, sum_far, (1.0 - held + before) / jnp.where(apart, 1.0, reduced))
    closed = (held + total, held, momentum * held - before)
    whole = _whole_responses(momentum, reduced, k)
    return tuple(jnp.where(near | real, a, b) for a, b in zip(closed, whole, strict=True))


def _unit_responses(momentum, stiffness, refresh_interval, staleness):
    """The responses of `_responses` at the part of the stiffness that the current policy feels, and that part."""
    reduced = stiffness * (1.0 - staleness)
    if is_known_one(staleness):
        held, moved = momentum_sums(momentum, refresh_interval)
        return moved, held, momentum_power(momentum, refresh_interval), jnp.zeros_like(reduced)
    return *_responses(momentum, reduced, refresh_interval), reduced


def cycle_responses(
    momentum: Scalars, stiffness: Scalars, refresh_interval: Scalars, staleness: Scalars = 1.0
) -> tuple[Float[Array, "..."], ...]:
    r"""What one refresh cycle does to error and velocity, in parts.

    With $B = [1-h', \mu; -h', \mu]$, $h' = h(1-\rho)$: the responses $a_e, a_u$ of $(e, u)$ to a unit force held over the
    cycle, $B^K_{uu}$, and $h'$; $B^K = [1 - h' a_e, \mu a_u; -h' a_u, B^K_{uu}]$.

    Args:
        momentum: $\mu$.
        stiffness: $h$ per step.
        refresh_interval: $K$.
        staleness: $\rho$.

    Returns:
        $a_e$, $a_u$, $B^K_{uu}$ and $h'$.
    """
    whole = is_known_one(staleness)
    momentum, stiffness, refresh_interval, staleness = jnp.broadcast_arrays(
        *_as_floats(momentum, stiffness, refresh_interval, staleness)
    )
    return _unit_responses(momentum, stiffness, refresh_interval, 1.0 if whole else staleness)


def characteristic_at_one(
    momentum: Scalars, stiffness: Scalars, refresh_interval: Scalars, staleness: Scalars = 1.0
) -> Float[Array, "..."]:
    r"""$\det(I - M)$ of the synchronous cycle map, the product of what its eigenvalues lack to 1, without cancellation.

    Args:
        momentum: $\mu$.
        stiffness: $h$ per step.
        refresh_interval: $K$.
        staleness: $\rho$.

    Returns:
        $h [a_e (1 - B^K_{uu}) + \mu a_u^2]$ with $(a_e, a_u)$ the responses to a unit force held over the cycle;
        $h K C$ for staleness 1.
    """
    whole = is_known_one(staleness)
    momentum, stiffness, refresh_interval, staleness = jnp.broadcast_arrays(
        *_as_floats(momentum, stiffness, refresh_interval, staleness)
    )
    moved, held, left, _ = _unit_responses(momentum, stiffness, refresh_interval, 1.0 if whole else staleness)
    return stiffness * (moved * (1.0 - left) + momentum * held**2)


def _cycle_parts(momentum, stiffness, refresh_interval, staleness):
    """The part of the cycle map due to the current state, and its response to the stale error."""
    whole = is_known_one(staleness)
    momentum, stiffness, refresh_interval, staleness = jnp.broadcast_arrays(
        *_as_floats(momentum, stiffness, refresh_interval, 1.0 if whole else staleness)
    )
    moved, held, left, reduced = _unit_responses(
        momentum, stiffness, refresh_interval, 1.0 if whole else staleness
    )
    free = jnp.stack(
        [
            jnp.stack([1.0 - reduced * moved, momentum * held], axis=-1),
            jnp.stack([-reduced * held, left], axis=-1),
        ],
        axis=-2,
    )
    return free, -(stiffness * staleness)[..., None] * jnp.stack([moved, held], axis=-1)


def cycle_map(
    momentum: Scalars, stiffness: Scalars, refresh_interval: Scalars, staleness: Scalars = 1.0
) -> Float[Array, "... 2 2"]:
    r"""Map of the state $(e, u)$ over one refresh cycle of a synchronous run.

    For staleness 1 it is $M_K = [1 - hA, \mu C; -hC, \mu^K]$. Otherwise, with $B = [1-h', \mu; -h', \mu]$ and
    $h' = h(1-\rho)$, it is $B^K$ less $h\rho \sum_{i<K} B^i (1,1)^T$ in the first column. Smooth in real $K$, save
    where an eigenvalue of $B$ is negative ($h' \ge (1+\sqrt\mu)^2$): there it is interpolated between whole $K$.

    Args:
        momentum: $\mu \in [0, 1)$.
        stiffness: $h = c\,\eta\,\kappa$ per step.
        refresh_interval: $K \ge 0$ (0 gives the identity).
        staleness: $\rho$, the uncorrected part of the lag.

    Returns:
        The 2 x 2 map.
    """
    free, stale = _cycle_parts(momentum, stiffness, refresh_interval, staleness)
    return free + jnp.stack([stale, jnp.zeros_like(stale)], axis=-1)


def lag_selector(async_lag: Float[Array, ""], depth: int) -> Float[Array, " refreshes"]:
    """Weights over the last `depth + 1` refreshes that pick, or interpolate, the one that made the rollouts."""
    return jnp.maximum(0.0, 1.0 - jnp.abs(jnp.arange(depth + 1, dtype=async_lag.dtype) - async_lag))


def companion_map(
    momentum: Scalars,
    stiffness: Scalars,
    refresh_interval: Scalars,
    staleness: Scalars = 1.0,
    async_lag: Lag = 0,
) -> Float[Array, "... n n"]:
    r"""Map over one refresh cycle when the sampler trails by `async_lag` rollout sets.

    The state is $(e_n, u_n, e_{n-1}, \dots, e_{n-d})$, the errors at the last $d$ refreshes included.

    Args:
        momentum: $\mu$.
        stiffness: $h$.
        refresh_interval: $K$.
        staleness: $\rho$.
        async_lag: $d$, which sets the size of the state; a traced one is a scalar of at most 8.

    Returns:
        The $(2+d) \times (2+d)$ map ($10 \times 10$ for a traced lag, with eigenvalues 0 added).
    """
    free, stale = _cycle_parts(momentum, stiffness, refresh_interval, staleness)
    lag, depth = _lag_and_depth(async_lag)
    if depth == 0:
        return free + jnp.stack([stale, jnp.zeros_like(stale)], axis=-1)
    size = 2 + depth
    batch = free.shape[:-2]
    result = jnp.zeros((*batch, size, size), free.dtype)
    columns = jnp.array([0, *range(2, size)])
    selector = lag_selector(jnp.asarray(lag, free.dtype), depth).reshape((1,) * (stale.ndim) + (-1,))
    result = result.at[..., :2, :2].set(free)
    result = result.at[..., :2, columns].add(stale[..., :, None] * selector)
    result = result.at[..., 2, 0].set(1.0)
    for i in range(3, size):
        result = result.at[..., i, i - 1].set(1.0)
    return result


def _lag_and_depth(async_lag) -> tuple[Array | int, int]:
    """Async lag and the number of earlier refreshes that the state has to carry for it."""
    if isinstance(async_lag, Tracer):
        if async_lag.shape != ():
            raise ValueError("a traced async_lag must be a scalar: map over it, or give a whole number")
        return async_lag, DEEPEST_TRACED_LAG
    lag = float(np.max(np.asarray(async_lag)))
    if lag != round(lag) or lag < 0:
        raise ValueError(f"async_lag must be a whole number of rollout sets here, got {lag:g}")
    return int(lag), int(lag)


def is_known_synchronous(async_lag: Lag) -> bool:
    """Whether the async lag is known to be 0 (a traced one is not)."""
    return _lag_and_depth(async_lag)[1] == 0


def _dominant_modulus(matrix):
    """Largest modulus of the eigenvalues, with derivatives that need no other eigenvalue to be simple."""
    fixed = jax.lax.stop_gradient(matrix)
    values, vectors = jnp.linalg.eig(fixed)
    place = jnp.argmax(jnp.abs(values), axis=-1)[..., None]
    value = jnp.take_along_axis(values, place, axis=-1)[..., 0]
    right = jnp.take_along_axis(vectors, place[..., None], axis=-1)[..., 0]
    left_values, left_vectors = jnp.linalg.eig(jnp.swapaxes(fixed, -1, -2))
    nearest = jnp.argmin(jnp.abs(left_values - value[..., None]), axis=-1)[..., None]
    left = jnp.take_along_axis(left_vectors, nearest[..., None], axis=-1)[..., 0]
    overlap = jnp.sum(left * right, axis=-1)
    size = jnp.abs(value)
    # d|lambda| = Re(conj(lambda)/|lambda| (y^T dM x)/(y^T x)); none is given at a defective or zero eigenvalue.
    simple = (jnp.abs(overlap) > 1e-12) & (size > 0)
    weight = jnp.conj(value) / jnp.where(simple, size.astype(overlap.dtype) * overlap, 1.0)
    sensitivity = jnp.real(weight[..., None, None] * left[..., :, None] * right[..., None, :])
    sensitivity = jnp.where(simple[..., None, None], sensitivity, 0.0)
    sensitivity, size = jax.lax.stop_gradient((sensitivity, size))
    return size + jnp.sum(sensitivity * (matrix - fixed), axis=(-2, -1))


def spectral_radius(
    momentum: Scalars,
    stiffness: Scalars,
    refresh_interval: Scalars,
    staleness: Scalars = 1.0,
    async_lag: Lag = 0,
) -> Float[Array, "..."]:
    r"""Largest modulus of the eigenvalues of the cycle map; the run is stable where it is below 1.

    Args:
        momentum: $\mu$.
        stiffness: $h$ per step.
        refresh_interval: $K$.
        staleness: $\rho$.
        async_lag: $d$, a whole number; a traced one is a scalar of at most 8.

    Returns:
        The growth of the slowest mode per refresh cycle.
    """
    matrix = companion_map(momentum, stiffness, refresh_interval, staleness, async_lag)
    if matrix.shape[-1] > 2:
        return _dominant_modulus(matrix)
    half_trace = 0.5 * (matrix[..., 0, 0] + matrix[..., 1, 1])
    det = matrix[..., 0, 0] * matrix[..., 1, 1] - matrix[..., 0, 1] * matrix[..., 1, 0]
    discriminant = half_trace**2 - det
    real = jnp.abs(half_trace) + safe_sqrt(discriminant)
    return jnp.where(discriminant >= 0, real, safe_sqrt(det))


def flip_stiffness(momentum: Scalars, refresh_interval: Scalars) -> Float[Array, "..."]:
    r"""Stiffness at which a zig-zag of period $2K$ neither grows nor decays (staleness 1, synchronous).

    $h = 2(1+\mu^K) / (A(1+\mu^K) - \mu C^2)$.
    """
    momentum, refresh_interval = _as_floats(momentum, refresh_interval)
    c, a = momentum_sums(momentum, refresh_interval)
    power = momentum_power(momentum, refresh_interval)
    return 2.0 * (1.0 + power) / (a * (1.0 + power) - momentum * c**2)


def neimark_sacker_stiffness(momentum: Scalars, refresh_interval: Scalars) -> Float[Array, "..."]:
    r"""Stiffness at which a swing neither grows nor decays (staleness 1, synchronous); infinite if none.

    $h = (1-\mu^K) / (\mu C^2 - A\mu^K)$ where the denominator is positive.
    """
    momentum, refresh_interval = _as_floats(momentum, refresh_interval)
    c, a = momentum_sums(momentum, refresh_interval)
    power = momentum_power(momentum, refresh_interval)
    denominator = momentum * c**2 - a * power
    # At K = 1 the denominator is zero but for rounding.
    positive = denominator > 32.0 * jnp.finfo(denominator.dtype).eps * jnp.maximum(a * power, 1e-30) / (
        1.0 - momentum
    )
    return jnp.where(positive, (1.0 - power) / jnp.where(positive, denominator, 1.0), jnp.inf)


def _first_crossing(excess, low, high, points=400, iterations=60):
    """Smallest root of a function that starts negative, on a logarithmic grid and by bisection; inf if none."""
    grid = jnp.exp(jnp.linspace(jnp.log(low), jnp.log(high), points))
    values = jax.vmap(excess)(grid)
    crossed = (values[1:] >= 0) & (values[:-1] < 0)
    first = jnp.argmax(crossed)
    lower, upper = grid[first], grid[first + 1]

    def bisect(_, bounds):
        lower, upper = bounds
        middle = 0.5 * (lower + upper)
        above = excess(middle) >= 0
        return jnp.where(above, lower, middle), jnp.where(above, middle, upper)

    lower, upper = jax.lax.fori_loop(0, iterations, bisect, (lower, upper))
    return jnp.where(jnp.any(crossed), 0.5 * (lower + upper), jnp.inf)


def _implicit_root(function, root, *parameters):
    """Give a root found without derivatives the derivatives of the implicit function theorem."""
    root = jax.lax.stop_gradient(root)
    finite = jnp.isfinite(root)
    at = jnp.where(finite, root, 1.0)
    slope = jax.grad(lambda x: function(x, *map(jax.lax.stop_gradient, parameters)))(at)
    value = function(at, *parameters)
    step = (value - jax.lax.stop_gradient(value)) / jnp.where(slope == 0, 1.0, jax.lax.stop_gradient(slope))
    return jnp.where(finite, at - jnp.where(finite, step, 0.0), jnp.inf)


def critical_stiffness(
    momentum: Scalars, refresh_interval: Scalars, staleness: Scalars = 1.0, async_lag: Lag = 0
) -> Float[Array, "..."]:
    r"""Smallest stiffness $h > 0$ at which the cycle map's spectral radius reaches 1 (exact).

    The smaller of `flip_stiffness` and `neimark_sacker_stiffness` where they apply; otherwise by bisection on the
    spectral radius, with derivatives by the implicit function theorem.

    Args:
        momentum: $\mu$.
        refresh_interval: $K$.
        staleness: $\rho$; values outside [0, 1] are allowed.
        async_lag: $d$, a whole number; a traced one is a scalar of at most 8.

    Returns:
        $h_{crit}$; infinite if there is none below $10^4$.
    """
    synchronous = is_known_synchronous(async_lag)
    uncorrected = is_known_one(staleness)
    lag = jax.lax.stop_gradient(async_lag) if isinstance(async_lag, Tracer) else async_lag
    momentum, refresh_interval, staleness = jnp.broadcast_arrays(
        *_as_floats(momentum, refresh_interval, staleness)
    )
    if synchronous and uncorrected:
        return jnp.minimum(
            flip_stiffness(momentum, refresh_interval), neimark_sacker_stiffness(momentum, refresh_interval)
        )

    def single(momentum, refresh_interval, staleness):
        def excess(h, momentum, refresh_interval, staleness):
            return spectral_radius(momentum, h, refresh_interval, staleness, lag) - 1.0

        fixed = [jax.lax.stop_gradient(x) for x in (momentum, refresh_interval, staleness)]
        # Below a stiffness of 1e-4 of the scale (1 - mu)/K^2 nothing is lost to lag yet.
        low = 1e-4 * (1.0 - fixed[0]) / (fixed[1] * (1 + lag)) ** 2
        root = _first_crossing(lambda h: excess(h, *fixed), low, jnp.asarray(1e4, low.dtype))
        return _implicit_root(excess, root, momentum, refresh_interval, staleness)

    return jnp.vectorize(single)(momentum, refresh_interval, staleness)


def leading_critical_stiffness(
    momentum: Scalars, refresh_interval: Scalars, staleness: Scalars = 1.0, async_lag: Scalars = 0.0
) -> Float[Array, "..."]:
    r"""Stiffness at which the leading-order damping vanishes, $h = (1-\mu)/\tau$; infinite for $\tau \le 0$.

    Here $\tau = \rho[(K-1)/2 + dK]$.
    """
    momentum, refresh_interval, staleness, async_lag = _as_floats(
        momentum, refresh_interval, staleness, async_lag
    )
    lag = staleness * (0.5 * (refresh_interval - 1.0) + async_lag * refresh_interval)
    positive = lag > 0
    return jnp.where(positive, (1.0 - momentum) / jnp.where(positive, lag, 1.0), jnp.inf)


def oscillation_onset(momentum: Scalars, refresh_interval: Scalars) -> Float[Array, "..."]:
    r"""Stiffness at which the eigenvalues of the cycle map turn complex (staleness 1, synchronous).

    The smaller root of $(\operatorname{tr} M)^2 = 4 \det M$; $(1-\sqrt\mu)^2$ at $K = 1$.
    """
    momentum, refresh_interval = _as_floats(momentum, refresh_interval)
    c, a = momentum_sums(momentum, refresh_interval)
    power = momentum_power(momentum, refresh_interval)
    # (1 + p - h a)^2 = 4 (p + h q) with q = mu c^2 - a p, divided through by the constant term.
    q = momentum * c**2 - a * power
    half = a * (1.0 + power) + 2.0 * q
    constant = (1.0 - power) ** 2
    return constant / (half + safe_sqrt(half**2 - a**2 * constant))


def leading_oscillation_onset(momentum: Scalars, mean_lag: Scalars) -> Float[Array, "..."]:
    r"""Stiffness at which ringing begins to leading order: the smallest $h$ with $((1-\mu) - h\tau)^2 = 4\mu h$.

    Args:
        momentum: $\mu$.
        mean_lag: $\tau$ in optimizer steps.

    Returns:
        The stiffness; infinite where none rings.
    """
    momentum, mean_lag = _as_floats(momentum, mean_lag)
    rest = 1.0 - momentum
    half = rest * mean_lag + 2.0 * momentum
    root = jnp.sqrt(jnp.maximum(half**2 - (rest * mean_lag) ** 2, 0.0))
    total = half + root
    positive = total > 0
    return jnp.where(positive, rest**2 / jnp.where(positive, total, 1.0), jnp.inf)


def critical_refresh_interval(
    momentum: Scalars, stiffness: Scalars, staleness: Scalars = 1.0, async_lag: Lag = 0
) -> Float[Array, "..."]:
    r"""Real refresh interval at which the spectral radius first reaches 1 (exact).

    Args:
        momentum: $\mu$.
        stiffness: $h$ per step.
        staleness: $\rho$.
        async_lag: $d$, a whole number; a traced one is a scalar of at most 8.

    Returns:
        $K_c$; 1 where even fresh rollouts are unstable, infinite where no interval below $10^5$ is.
    """
    fresh = is_known_one(staleness) and is_known_synchronous(async_lag)
    lag = jax.lax.stop_gradient(async_lag) if isinstance(async_lag, Tracer) else async_lag
    momentum, stiffness, staleness = jnp.broadcast_arrays(*_as_floats(momentum, stiffness, staleness))

    def single(momentum, stiffness, staleness):
        def excess(k, momentum, stiffness, staleness):
            if fresh:
                return jnp.log(stiffness / critical_stiffness(momentum, k))
            return spectral_radius(momentum, stiffness, k, staleness, lag) - 1.0

        fixed = [jax.lax.stop_gradient(x) for x in (momentum, stiffness, staleness)]
        one = jnp.ones_like(momentum)
        root = _first_crossing(lambda k: excess(k, *fixed), one, 1e5 * one)
        root = jnp.where(excess(one, *fixed) >= 0, 1.0, root)
        return jnp.where(root > 1, _implicit_root(excess, root, momentum, stiffness, staleness), root)

    return jnp.vectorize(single)(momentum, stiffness, staleness)


def leading_critical_refresh_interval(
    momentum: Scalars, stiffness: Scalars, staleness: Scalars = 1.0, async_lag: Scalars = 0.0
) -> Float[Array, "..."]:
    r"""Refresh interval at which the leading-order damping vanishes.

    $K_c = 1 + 2(1-\mu)/(\rho h)$ for a synchronous run, in general from $\rho[(K-1)/2 + dK] = (1-\mu)/h$.
    """
    momentum, stiffness, staleness, async_lag = _as_floats(momentum, stiffness, staleness, async_lag)
    product = staleness * stiffness
    positive = product > 0
    lag = (1.0 - momentum) / jnp.where(positive, product, 1.0)
    return jnp.where(positive, (0.5 + lag) / (0.5 + async_lag), jnp.inf)


def noise_covariance(
    momentum: Scalars,
    refresh_interval: Scalars,
    step_noise: Scalars,
    epochs_per_rollout: Scalars = 1.0,
    stiffness: Scalars = 0.0,
    staleness: Scalars = 1.0,
) -> Float[Array, "... 2 2"]:
    r"""Covariance that the gradient noise of one refresh cycle adds to $(e, u)$.

    Fresh mini-batches add up independently, $Q = \sigma^2 \sum_{j<K} B^j w w^T B^{jT}$ with $w = (1,1)^T$.
    With $I$ passes over $S = K/I$ mini-batches the noise of each repeats with period $S$ and adds up coherently,
    $Q = \sigma^2 \sum_{i<S} W_i W_i^T$, $W_i = \sum_{p<I} B^{K-1-i-pS} w$.

    Args:
        momentum: $\mu$.
        refresh_interval: $K$; smooth in real $K$ for staleness 1, a concrete whole number otherwise.
        step_noise: $\sigma$, standard deviation added to the velocity per step.
        epochs_per_rollout: $I$.
        stiffness: $h$; matters only where the staleness is not 1.
        staleness: $\rho$.

    Returns:
        $Q$, 2 x 2.

    Raises:
        ValueError: If the staleness is not 1 and $K$ or $I$ is traced or not whole.
    """
    uncorrected = is_known_one(staleness)
    momentum, k, noise, passes, stiffness, staleness = jnp.broadcast_arrays(
        *_as_floats(momentum, refresh_interval, step_noise, epochs_per_rollout, stiffness, staleness)
    )
    if not uncorrected:
        return _general_noise_covariance(momentum, k, noise, passes, stiffness, staleness)
    batches = k / passes
    c1 = momentum_sums(momentum, batches)[0]
    c2 = momentum_sums(momentum**2, batches)[0]
    power_k = momentum_power(momentum, k)
    power_s = momentum_power(momentum, batches)
    some = power_s < 1
    gain = jnp.where(some, (1.0 - power_k) / jnp.where(some, 1.0 - power_s, 1.0), passes)
    rest = 1.0 - momentum
    q_ee = (k * passes - 2.0 * passes * gain * momentum * c1 + gain**2 * momentum**2 * c2) / rest**2
    q_eu = (passes * gain * c1 - gain**2 * momentum * c2) / rest
    q_uu = gain**2 * c2
    rows = jnp.stack([jnp.stack([q_ee, q_eu], axis=-1), jnp.stack([q_eu, q_uu], axis=-1)], axis=-2)
    return (noise**2)[..., None, None] * rows


def _general_noise_covariance(momentum, k, noise, passes, stiffness, staleness):
    if not (is_concrete(k) and is_concrete(passes)):
        raise ValueError("with staleness other than 1, refresh_interval must be concrete here")
    steps, epochs = float(np.max(np.asarray(k))), float(np.max(np.asarray(passes)))
    if steps != round(steps) or epochs != round(epochs) or (steps / epochs) % 1 or np.ptp(np.asarray(k)) > 0:
        raise ValueError(
            "with staleness other than 1, refresh_interval must be one whole multiple of epochs_per_rollout"
        )
    period = int(steps / epochs)
    current = stiffness * (1.0 - staleness)
    one = jnp.ones_like(current)
    step = jnp.stack(
        [
            jnp.stack([one - current, momentum * one], axis=-1),
            jnp.stack([-current, momentum * one], axis=-1),
        ],
        axis=-2,
    )
    start = jnp.stack([one, one], axis=-1)

    def advance(vector, _):
        return (step @ vector[..., None])[..., 0], vector

    _, responses = jax.lax.scan(advance, start, None, length=int(steps))
    summed = jnp.sum(responses.reshape(int(epochs), period, *start.shape), axis=0)
    return (noise**2)[..., None, None] * jnp.sum(summed[..., :, None] * summed[..., None, :], axis=0)


def stationary_covariance(
    momentum: Scalar,
    stiffness: Scalar,
    refresh_interval: Scalar,
    step_noise: Scalar,
    epochs_per_rollout: Scalar = 1.0,
    staleness: Scalar = 1.0,
    async_lag: Lag = 0,
) -> Float[Array, "n n"]:
    r"""Covariance of the state at refreshes in the long run: the solution of $P = M P M^T + Q$.

    Args:
        momentum: $\mu$.
        stiffness: $h$ per step.
        refresh_interval: $K$.
        step_noise: $\sigma$ per step.
        epochs_per_rollout: $I$.
        staleness: $\rho$.
        async_lag: $d$, a whole number; a traced one is a scalar of at most 8.

    Returns:
        $P$ of the state $(e_n, u_n, e_{n-1}, \dots)$; infinite where the map is unstable.
    """
    matrix = companion_map(momentum, stiffness, refresh_interval, staleness, async_lag)
    noise = noise_covariance(
        momentum, refresh_interval, step_noise, epochs_per_rollout, stiffness, staleness
    ).astype(matrix.dtype)
    size = matrix.shape[-1]
    padded = jnp.zeros((size, size), matrix.dtype).at[:2, :2].set(noise)
    stable = spectral_radius(momentum, stiffness, refresh_interval, staleness, async_lag) < 1
    safe = jnp.where(stable, matrix, jnp.zeros_like(matrix))
    system = jnp.eye(size * size, dtype=matrix.dtype) - jnp.kron(safe, safe)
    solution = jnp.linalg.solve(system, padded.reshape(-1)).reshape(size, size)
    return jnp.where(stable, 0.5 * (solution + solution.T), jnp.inf)


def stationary_variance_single(
    momentum: Scalars, stiffness: Scalars, step_noise: Scalars
) -> Float[Array, "..."]:
    r"""Stationary variance of the reward for $K = 1$.

    $\operatorname{Var} R = \sigma^2 (1+\mu) / ((1-\mu) h (2(1+\mu) - h))$; infinite where unstable.
    """
    momentum, stiffness, noise = _as_floats(momentum, stiffness, step_noise)
    room = stiffness * (2.0 * (1.0 + momentum) - stiffness)
    stable = room > 0
    value = noise**2 * (1.0 + momentum) / ((1.0 - momentum) * jnp.where(stable, room, 1.0))
    return jnp.where(stable, value, jnp.inf)
