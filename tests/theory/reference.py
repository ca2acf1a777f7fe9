"""Plain references for the theory: the update rule itself, step by step, in NumPy.

Nothing here uses a formula of the cycle map; everything is a loop over optimizer steps, an enumeration over
outcomes, or a general-purpose routine of SciPy.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
from hypothesis import HealthCheck, settings
from scipy import integrate, linalg, special, stats

PROPERTY = settings(
    max_examples=30,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.filter_too_much],
)


# --- the update rule ---------------------------------------------------------------------------------------


def run_update(
    force: Callable[[np.ndarray], np.ndarray],
    start: np.ndarray,
    *,
    momentum: float,
    step_size: Callable[[int], float] | float,
    refresh_interval: int,
    steps: int,
    staleness: float = 1.0,
    async_lag: int = 0,
    noise: np.ndarray | Callable[[int], np.ndarray] | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """States and velocities after 0, 1, ..., steps optimizer steps of the rule, with any force.

    The velocity survives a refresh; before the start the sampler holds the initial policy.
    """
    state = np.array(start, dtype=float)
    velocity = np.zeros_like(state)
    rollout_states: list[np.ndarray] = []
    states, velocities = [state.copy()], [velocity.copy()]
    for t in range(steps):
        if t % refresh_interval == 0:
            rollout_states.append(state.copy())
        stale = rollout_states[max(len(rollout_states) - 1 - async_lag, 0)]
        size = step_size(t) if callable(step_size) else step_size
        push = staleness * force(stale)
        if staleness != 1.0:
            push = push + (1.0 - staleness) * force(state)
        velocity = momentum * velocity + size * push
        if noise is not None:
            velocity = velocity + (noise(t) if callable(noise) else noise[t])
        state = state + velocity
        states.append(state.copy())
        velocities.append(velocity.copy())
    return np.array(states), np.array(velocities)


def run_linear(momentum, stiffness, refresh_interval, steps, *, start=1.0, **options):
    """Errors e_0, ..., e_steps of the harmonic rule, starting at rest."""
    errors, _ = run_update(
        lambda e: -e,
        np.asarray(start),
        momentum=momentum,
        step_size=stiffness,
        refresh_interval=refresh_interval,
        steps=steps,
        **options,
    )
    return errors


# --- one refresh cycle as a matrix, built by pushing unit vectors through the steps -----------------------


def _advance_cycle(state, momentum, stiffness, refresh_interval, staleness, async_lag, noise=None):
    """Push states (e, u, e one refresh ago, ..., e async_lag refreshes ago) through one cycle.

    `state` has the components on its first axis; further axes broadcast with `stiffness`.
    """
    error, velocity = state[0], state[1]
    stale = state[1 + async_lag] if async_lag > 0 else state[0]
    past = [state[0], *state[2:]][:async_lag]
    for t in range(refresh_interval):
        velocity = momentum * velocity - stiffness * ((1.0 - staleness) * error + staleness * stale)
        if noise is not None:
            velocity = velocity + noise[t]
        error = error + velocity
    return np.array([error, velocity, *past])


def cycle_matrix(momentum, stiffness, refresh_interval, staleness=1.0, async_lag=0):
    """The cycle's matrix; with an array of stiffnesses, a stack of matrices (leading axis)."""
    size = 2 + async_lag
    stiffness = np.asarray(stiffness, dtype=float)
    units = np.broadcast_to(
        np.eye(size).reshape((size, size) + (1,) * stiffness.ndim), (size, size, *stiffness.shape)
    )
    pushed = _advance_cycle(units, momentum, stiffness, refresh_interval, staleness, async_lag)
    return np.moveaxis(pushed, (0, 1), (-2, -1))


def spectral_radius(momentum, stiffness, refresh_interval, staleness=1.0, async_lag=0):
    matrix = cycle_matrix(momentum, stiffness, refresh_interval, staleness, async_lag)
    return np.max(np.abs(np.linalg.eigvals(matrix)), axis=-1)


def bisect(predicate: Callable[[float], bool], low: float, high: float, iterations: int = 100) -> float:
    """The point where `predicate` turns from false (at low) to true (at high)."""
    assert not predicate(low) and predicate(high)
    for _ in range(iterations):
        middle = 0.5 * (low + high)
        if predicate(middle):
            high = middle
        else:
            low = middle
    return 0.5 * (low + high)


def critical_stiffness(momentum, refresh_interval, staleness=1.0, async_lag=0):
    """The smallest stiffness at which a disturbance stops decaying, by scan and bisection."""
    arguments = (refresh_interval, staleness, async_lag)
    grid = np.geomspace(1e-6, 20.0, 5001)
    unstable = spectral_radius(momentum, grid, *arguments) > 1.0
    assert unstable.any() and not unstable[0]
    first = int(np.argmax(unstable))
    return bisect(
        lambda h: bool(spectral_radius(momentum, h, *arguments) > 1.0), grid[first - 1], grid[first]
    )


def oscillation_onset(momentum, refresh_interval):
    """The smallest stiffness at which the cycle's eigenvalues leave the real line, by scan and bisection."""

    def is_complex(h):
        matrix = cycle_matrix(momentum, h, refresh_interval)
        trace = matrix[..., 0, 0] + matrix[..., 1, 1]
        determinant = matrix[..., 0, 0] * matrix[..., 1, 1] - matrix[..., 0, 1] * matrix[..., 1, 0]
        return 0.25 * trace**2 < determinant

    grid = np.geomspace(1e-8, 10.0, 40001)
    first = int(np.argmax(is_complex(grid)))
    assert first > 0
    return bisect(lambda h: bool(is_complex(h)), grid[first - 1], grid[first])


# --- noise --------------------------------------------------------------------------------------------------


def cycle_noise_covariance(
    momentum, stiffness, refresh_interval, step_noise, epochs=1, staleness=1.0, async_lag=0
):
    """Covariance that one cycle's noise adds, from the response to each mini-batch's noise."""
    batches = refresh_interval // epochs
    assert batches * epochs == refresh_interval
    covariance = np.zeros((2 + async_lag, 2 + async_lag))
    for batch in range(batches):
        noise = [step_noise if t % batches == batch else 0.0 for t in range(refresh_interval)]
        response = _advance_cycle(
            np.zeros(2 + async_lag), momentum, stiffness, refresh_interval, staleness, async_lag, noise
        )
        covariance += np.outer(response, response)
    return covariance


def stationary_covariance(
    momentum, stiffness, refresh_interval, step_noise, epochs=1, staleness=1.0, async_lag=0
):
    matrix = cycle_matrix(momentum, stiffness, refresh_interval, staleness, async_lag)
    noise = cycle_noise_covariance(
        momentum, stiffness, refresh_interval, step_noise, epochs, staleness, async_lag
    )
    return linalg.solve_discrete_lyapunov(matrix, noise)


def transient_variance(
    momentum, step_size, refresh_interval, step_noise, steps, epochs=1, staleness=1.0, async_lag=0
):
    """Variance of e_0, ..., e_steps from a sharp start: squared responses to every source of noise, summed.

    `step_size` and `step_noise` are numbers or functions of the step.
    """
    batches = refresh_interval // epochs
    sources = math.ceil(steps / refresh_interval) * batches

    def noise(t):
        row = np.zeros(sources)
        scale = step_noise(t) if callable(step_noise) else step_noise
        row[(t // refresh_interval) * batches + (t % refresh_interval) % batches] = scale
        return row

    responses, _ = run_update(
        lambda e: -e,
        np.zeros(sources),
        momentum=momentum,
        step_size=step_size,
        refresh_interval=refresh_interval,
        steps=steps,
        staleness=staleness,
        async_lag=async_lag,
        noise=noise,
    )
    return np.sum(responses**2, axis=1)


def sampled_refresh_moments(
    momentum,
    stiffness,
    refresh_interval,
    step_noise,
    *,
    epochs=1,
    staleness=1.0,
    async_lag=0,
    paths,
    cycles,
    burn_in,
    seed,
):
    """Second moments of (e, u) at refreshes of a long stochastic simulation of many paths."""
    generator = np.random.default_rng(seed)
    batches = refresh_interval // epochs
    error, velocity = np.zeros(paths), np.zeros(paths)
    past = [error.copy() for _ in range(async_lag + 1)]
    total, count = np.zeros((2, 2)), 0
    for cycle in range(burn_in + cycles):
        past = [error.copy(), *past][: async_lag + 1]
        stale = past[-1]
        draws = step_noise * generator.standard_normal((batches, paths))
        for t in range(refresh_interval):
            push = (1.0 - staleness) * error + staleness * stale
            velocity = momentum * velocity - stiffness * push + draws[t % batches]
            error = error + velocity
        if cycle >= burn_in:
            both = np.stack([error, velocity])
            total += both @ both.T / paths
            count += 1
    return total / count


# --- the continuous oscillator -----------------------------------------------------------------------------


def oscillator_moments(mass, damping, stiffness, temperature, error, velocity, t):
    """Mean and variance of m x'' + gamma x' + k x = sqrt(2 gamma T) xi from a sharp start.

    The matrix exponential A gives the mean; the variance is P - A P A^T with P = diag(T/k, T/m), which
    satisfies the Lyapunov equation for either sign of gamma (T is negative where gamma is).
    """
    if mass == 0.0:
        drift = np.array([[-stiffness / damping]])
        balance = np.array([[temperature / stiffness]])
        start = np.array([error])
    else:
        drift = np.array([[0.0, 1.0], [-stiffness / mass, -damping / mass]])
        balance = np.diag([temperature / stiffness, temperature / mass])
        start = np.array([error, velocity])
    transition = linalg.expm(drift * t)
    covariance = balance - transition @ balance @ transition.T
    return float((transition @ start)[0]), float(covariance[0, 0])


def growing_variance(mass, damping, stiffness, noise, t):
    """Variance from a sharp start for any sign of the damping: the squared response, integrated."""

    def slope(_, state):
        x, v, _ = state
        return [v, -(stiffness * x + damping * v) / mass, (noise / mass * x) ** 2]

    solution = integrate.solve_ivp(slope, (0.0, t), [0.0, 1.0, 0.0], method="DOP853", rtol=1e-9, atol=1e-14)
    return float(solution.y[2, -1])


# --- finite groups -----------------------------------------------------------------------------------------


def group_average(statistic: Callable[[np.ndarray], np.ndarray], p: float, group_size: int) -> float:
    """Mean of a statistic of the number of successes in a group, by enumeration."""
    successes = np.arange(group_size + 1)
    return float(np.sum(stats.binom.pmf(successes, group_size, p) * statistic(successes)))


def expected_std(p, group_size, unbiased=False):
    scale = math.sqrt(group_size / (group_size - 1)) if unbiased else 1.0
    return scale * group_average(lambda k: np.sqrt(k / group_size * (1.0 - k / group_size)), p, group_size)


def sigmoid(z):
    return special.expit(z)


def logit_normal_average(function: Callable[[float], float], location: float, spread: float) -> float:
    """E[function(z)] for z ~ N(location, spread^2), by adaptive quadrature."""
    value, _ = integrate.quad(
        lambda x: function(location + spread * x) * stats.norm.pdf(x),
        -12.0,
        12.0,
        epsabs=1e-13,
        epsrel=1e-12,
        limit=400,
        points=[float(np.clip(-location / spread, -11.9, 11.9))],
    )
    return value


def normal_nodes(count: int) -> np.ndarray:
    """Equally probable values of a standard normal: the plainest average over a population of prompts."""
    return stats.norm.ppf((np.arange(count) + 0.5) / count)


# --- derivatives -------------------------------------------------------------------------------------------


def central_difference(function: Callable, x: float, step: float):
    """Five-point central difference, error of order step^4."""
    return (
        function(x - 2 * step) - 8 * function(x - step) + 8 * function(x + step) - function(x + 2 * step)
    ) / (12 * step)


def forward_difference(function: Callable, x: float, step: float):
    """Seven-point one-sided difference, error of order step^6."""
    weights = [-49 / 20, 6.0, -15 / 2, 20 / 3, -15 / 4, 6 / 5, -1 / 6]
    return sum(w * function(x + i * step) for i, w in enumerate(weights)) / step


# --- printed figures ---------------------------------------------------------------------------------------


def matches_print(value: float, text: str) -> bool:
    """Whether a value rounds to a printed figure, give or take one unit in its last digit."""
    decimals = len(text.partition(".")[2])
    return abs(value - float(text)) <= 10.0**-decimals


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Slope of log y against log x: the measured order of convergence."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])
