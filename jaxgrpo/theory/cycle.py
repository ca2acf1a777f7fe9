"""The exact linear map of one refresh cycle: stability, thresholds and stationary covariance.

Within a cycle of $K$ optimizer steps the force is evaluated at the policy that made the rollouts, so that the state
$(e, u)$ (error and last update) at one refresh is a linear function of that at the refresh before.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float

from jaxgrpo.theory.hyperparameters import is_concrete
from jaxgrpo.theory.numerics import momentum_power, safe_sqrt

Scalar = Float[Array, ""] | Float[np.ndarray, ""] | float | int
Scalars = Float[Array, "..."] | Float[np.ndarray, "..."] | float | int

# Longest refresh interval for which powers of the step matrix are formed: 2^_POWERS - 1.
_POWERS = 17


def _is_one(value) -> bool:
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


def _fresh_map(momentum, stiffness, refresh_interval):
    c, a = momentum_sums(momentum, refresh_interval)
    top = jnp.stack([1.0 - stiffness * a, momentum * c], axis=-1)
    bottom = jnp.stack([-stiffness * c, momentum_power(momentum, refresh_interval)], axis=-1)
    return jnp.stack([top, bottom], axis=-2)


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


def _held_force_map(momentum, stiffness, refresh_interval, staleness):
    """`B^K` and its response to a unit force held over the cycle, for a whole and interpolated for a real K."""
    current = stiffness * (1.0 - staleness)
    one, zero = jnp.ones_like(current), jnp.zeros_like(current)
    # State (e, u, f): f is the held part of the force, which enters e and u alike.
    step = jnp.stack(
        [
            jnp.stack([one - current, momentum * one, one], axis=-1),
            jnp.stack([-current, momentum * one, one], axis=-1),
            jnp.stack([zero, zero, one], axis=-1),
        ],
        axis=-2,
    )
    whole = jnp.floor(refresh_interval)
    part = (refresh_interval - whole)[..., None, None]
    low = _integer_power(step, whole.astype(jnp.int32))
    power = low + part * (step @ low - low)
    return power[..., :2, :2], power[..., :2, 2]


def _cycle_parts(momentum, stiffness, refresh_interval, staleness):
    """The part of the cycle map due to the current state, and its response to the stale error."""
    uncorrected = _is_one(staleness)
    momentum, stiffness, refresh_interval, staleness = jnp.broadcast_arrays(
        *_as_floats(momentum, stiffness, refresh_interval, staleness)
    )
    c, a = momentum_sums(momentum, refresh_interval)
    zero, one = jnp.zeros_like(c), jnp.ones_like(c)
    free = jnp.stack(
        [
            jnp.stack([one, momentum * c], axis=-1),
            jnp.stack([zero, momentum_power(momentum, refresh_interval)], axis=-1),
        ],
        axis=-2,
    )
    response = jnp.stack([a, c], axis=-1)
    scale = (stiffness * staleness)[..., None]
    if uncorrected:
        return free, -scale * response
    # Powers of the step matrix add what the uncorrected part leaves out; at staleness 1 the two powers cancel and
    # the closed form, smooth in K, remains.
    general_free, general_response = _held_force_map(momentum, stiffness, refresh_interval, staleness)
    stale_free, stale_response = _held_force_map(
        momentum, stiffness, refresh_interval, jnp.ones_like(staleness)
    )
    return (
        free + general_free - stale_free,
        -scale * (response + general_response - stale_response),
    )


def cycle_map(
    momentum: Scalars, stiffness: Scalars, refresh_interval: Scalars, staleness: Scalars = 1.0
) -> Float[Array, "... 2 2"]:
    r"""Map of the state $(e, u)$ over one refresh cycle of a synchronous run.

    For staleness 1 it is $M_K = [1 - hA, \mu C; -hC, \mu^K]$, smooth in real $K$. Otherwise, with
    $B = [1-h', \mu; -h', \mu]$ and $h' = h(1-\rho)$, it is $B^K$ less $h\rho \sum_{i<K} B^i (1,1)^T$ in the
    first column, interpolated linearly between whole $K$.

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


def companion_map(
    momentum: Scalars,
    stiffness: Scalars,
    refresh_interval: Scalars,
    staleness: Scalars = 1.0,
    async_lag: int = 0,
) -> Float[Array, "... n n"]:
    r"""Map over one refresh cycle when the sampler trails by `async_lag` rollout sets.

    The state is $(e_n, u_n, e_{n-1}, \dots, e_{n-d})$, the errors at the last $d$ refreshes included.

    Args:
        momentum: $\mu$.
        stiffness: $h$.
        refresh_interval: $K$.
        staleness: $\rho$.
        async_lag: $d$, a Python integer (it sets the size of the state).

    Returns:
        The $(2+d) \times (2+d)$ map.
    """
    free, stale = _cycle_parts(momentum, stiffness, refresh_interval, staleness)
    if async_lag == 0:
        return free + jnp.stack([stale, jnp.zeros_like(stale)], axis=-1)
    size = 2 + async_lag
    batch = free.shape[:-2]
    result = jnp.zeros((*batch, size, size), free.dtype)
    result = result.at[..., :2, :2].set(free).at[..., :2, size - 1].set(stale)
    result = result.at[..., 2, 0].set(1.0)
    for i in range(3, size):
        result = result.at[..., i, i - 1].set(1.0)
    return result


def _whole_lag(async_lag) -> int:
    """Async lag as a Python integer, or an error that says why."""
    if isinstance(async_lag, Tracer):
        raise ValueError("async_lag sets the size of the state: give a concrete whole number here")
    lag = float(np.max(np.asarray(async_lag)))
    if lag != round(lag) or lag < 0:
        raise ValueError(f"async_lag must be a whole number of rollout sets here, got {lag:g}")
    return int(lag)


def spectral_radius(
    momentum: Scalars,
    stiffness: Scalars,
    refresh_interval: Scalars,
    staleness: Scalars = 1.0,
    async_lag: int = 0,
) -> Float[Array, "..."]:
    r"""Largest modulus of the eigenvalues of the cycle map; the run is stable where it is below 1.

    Args:
        momentum: $\mu$.
        stiffness: $h$ per step.
        refresh_interval: $K$.
        staleness: $\rho$.
        async_lag: $d$, a whole number.

    Returns:
        The growth of the slowest mode per refresh cycle.
    """
    matrix = companion_map(momentum, stiffness, refresh_interval, staleness, _whole_lag(async_lag))
    if matrix.shape[-1] > 2:
        eigenvalues = jnp.linalg.eigvals(matrix)
        squared = jnp.real(eigenvalues) ** 2 + jnp.imag(eigenvalues) ** 2
        return safe_sqrt(jnp.max(squared, axis=-1))
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
    momentum: Scalars, refresh_interval: Scalars, staleness: Scalars = 1.0, async_lag: int = 0
) -> Float[Array, "..."]:
    r"""Smallest stiffness $h > 0$ at which the cycle map's spectral radius reaches 1 (exact).

    The smaller of `flip_stiffness` and `neimark_sacker_stiffness` where they apply; otherwise by bisection on the
    spectral radius, with derivatives by the implicit function theorem.

    Args:
        momentum: $\mu$.
        refresh_interval: $K$.
        staleness: $\rho$; values outside [0, 1] are allowed.
        async_lag: $d$, a whole number.

    Returns:
        $h_{crit}$; infinite if there is none below $10^4$.
    """
    lag = _whole_lag(async_lag)
    uncorrected = _is_one(staleness)
    momentum, refresh_interval, staleness = jnp.broadcast_arrays(
        *_as_floats(momentum, refresh_interval, staleness)
    )
    if lag == 0 and uncorrected:
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


def critical_refresh_interval(
    momentum: Scalars, stiffness: Scalars, staleness: Scalars = 1.0, async_lag: int = 0
) -> Float[Array, "..."]:
    r"""Real refresh interval at which the spectral radius first reaches 1 (exact).

    Args:
        momentum: $\mu$.
        stiffness: $h$ per step.
        staleness: $\rho$.
        async_lag: $d$, a whole number.

    Returns:
        $K_c$; 1 where even fresh rollouts are unstable, infinite where no interval below $10^5$ is.
    """
    lag = _whole_lag(async_lag)
    fresh = _is_one(staleness) and lag == 0
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
    uncorrected = _is_one(staleness)
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
    async_lag: int = 0,
) -> Float[Array, "n n"]:
    r"""Covariance of the state at refreshes in the long run: the solution of $P = M P M^T + Q$.

    Args:
        momentum: $\mu$.
        stiffness: $h$ per step.
        refresh_interval: $K$.
        step_noise: $\sigma$ per step.
        epochs_per_rollout: $I$.
        staleness: $\rho$.
        async_lag: $d$, a whole number.

    Returns:
        $P$ of the state $(e_n, u_n, e_{n-1}, \dots)$; infinite where the map is unstable.
    """
    lag = _whole_lag(async_lag)
    matrix = companion_map(momentum, stiffness, refresh_interval, staleness, lag)
    noise = noise_covariance(
        momentum, refresh_interval, step_noise, epochs_per_rollout, stiffness, staleness
    ).astype(matrix.dtype)
    size = matrix.shape[-1]
    padded = jnp.zeros((size, size), matrix.dtype).at[:2, :2].set(noise)
    stable = spectral_radius(momentum, stiffness, refresh_interval, staleness, lag) < 1
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
