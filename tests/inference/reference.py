"""Plain NumPy references: the update rule step by step, the dense likelihood, and simulated runs.

Nothing here is taken from the code under test but `Run` and `Hyperparameters`, which carry a simulated run.
"""

from math import comb

import numpy as np
from scipy import special, stats

from jaxgrpo.logs.run import Run


def sigmoid(z):
    return 1.0 / (1.0 + np.exp(-np.asarray(z, float)))


def logit(p):
    return np.log(p) - np.log1p(-p)


def expected_std(p, group_size):
    """Expected biased standard deviation of a group of binary rewards, by enumeration."""
    return sum(
        comb(group_size, k)
        * p**k
        * (1 - p) ** (group_size - k)
        * np.sqrt(k / group_size * (1 - k / group_size))
        for k in range(group_size + 1)
    )


def softmax_force(normalisation, group_size):
    if normalisation == "mean":
        return lambda z: sigmoid(z) * sigmoid(-z) * (1.0 - 1.0 / group_size)
    return lambda z: expected_std(sigmoid(z), group_size)


def difficulty_nodes():
    """Gauss-Legendre nodes in the quantile of a standard normal variable, and their weights."""
    u, weights = special.roots_legendre(31)
    return stats.norm.ppf(0.5 * (1.0 + u)), 0.5 * weights


def curvature_nodes():
    """Moduli of a standard normal variable out to 3.5, and their weights by the trapezoidal rule."""
    y = np.linspace(0.0, 3.5, 31)
    weights = np.exp(-(y**2) / 2.0) * np.where((y == 0.0), 0.5, 1.0)
    return y, weights / weights.sum()


def coordinates(start, force, momentum, rates, refresh_interval, async_lag, steps):
    """Coordinates at steps 0, 1, ..., `steps` of the update rule without noise.

    Args:
        start: Initial coordinates, an array.
        force: Force as a function of the coordinates.
        momentum: Of the moving average that the optimizer steps along.
        rates: What multiplies the averaged force, per step.
        refresh_interval: Steps taken with the force of one set of rollouts.
        async_lag: Sets of rollouts by which the sampler trails.
        steps: Number of steps.

    Returns:
        Array of shape (steps + 1, coordinates).
    """
    z = np.atleast_1d(np.asarray(start, float))
    u = np.zeros_like(z)
    path, sampled = [z], []
    for t in range(steps):
        if t % refresh_interval == 0:
            sampled.append(z)
            acting = sampled[max(len(sampled) - 1 - async_lag, 0)]
        u = momentum * u + (1.0 - momentum) * rates[t] * force(acting)
        z = z + u
        path.append(z)
    return np.asarray(path)


def fluctuation_covariance(momentum, rates, step_sd, refresh_interval, steps):
    """Covariance of the coordinate at the refreshes, assembled from its response to the noise of every step.

    Args:
        momentum: As above.
        rates: As above, for a harmonic force of slope one.
        step_sd: Standard deviation that each step adds to the velocity.
        refresh_interval: As above.
        steps: Number of steps.

    Returns:
        Covariance of the coordinates at steps 0, K, 2K, ...
    """
    e = np.zeros(steps)
    u = np.zeros(steps)
    responses = []
    held = e
    for t in range(steps):
        if t % refresh_interval == 0:
            responses.append(e)
            held = e
        u = momentum * u - (1.0 - momentum) * rates[t] * held
        u = u + (np.arange(steps) == t)
        e = e + u
    response = np.asarray(responses)
    return response @ np.diag(np.asarray(step_sd) ** 2) @ response.T


def log_normal_density(values, mean, covariance):
    """Logarithm of the multivariate normal density."""
    sign, log_det = np.linalg.slogdet(covariance)
    assert sign > 0
    off = values - mean
    return -0.5 * (off @ np.linalg.solve(covariance, off) + log_det + len(off) * np.log(2.0 * np.pi))


def central_difference(function, at, step=1e-5):
    """Gradient, or Jacobian with the parameter as the last axis, by fourth-order central differences."""
    at = np.asarray(at, float)
    columns = []
    for i in range(at.size):
        d = np.zeros_like(at)
        d[i] = step
        near = np.asarray(function(at + d)) - np.asarray(function(at - d))
        far = np.asarray(function(at + 2 * d)) - np.asarray(function(at - 2 * d))
        columns.append((8.0 * near - far) / (12.0 * step))
    return np.stack(columns, axis=-1)


def harmonic_run(
    seed,
    hyperparameters,
    timescale,
    *,
    rows=60,
    start=0.1,
    plateau=0.8,
    noise=0.03,
    force_noise=0.5,
    exponent=1.0,
    reference_rate=None,
):
    """A run of the harmonic force, one row a set of rollouts.

    Args:
        seed: Of the noise.
        hyperparameters: Settings; the momentum is that of a moving average.
        timescale: Optimizer steps, 1 / (learning rate x curvature), at the reference learning rate.
        rows: Number of rows.
        start: Initial reward.
        plateau: Final reward.
        noise: Standard deviation of one row about the expected reward.
        force_noise: Noise of the force, in units of curvature times `noise`.
        exponent: Of the learning rate.
        reference_rate: Learning rate of the given timescale; the run's own by default.

    Returns:
        The run.
    """
    rng = np.random.default_rng(seed)
    h = hyperparameters
    momentum, k = float(h.momentum), int(h.refresh_interval)
    ratio = 1.0 if reference_rate is None else float(h.learning_rate) / reference_rate
    rate = ratio**exponent / timescale
    reward, u, path = start, 0.0, []
    for t in range(rows * k):
        if t % k == 0:
            path.append(reward)
            acting = reward
        push = plateau - acting + force_noise * noise * rng.standard_normal()
        u = momentum * u + (1.0 - momentum) * rate * push
        reward += u
    return row_run(np.asarray(path) + noise * rng.standard_normal(rows), h)


def softmax_run(seed, hyperparameters, rate, *, rows=60, start=-2.0, spread=0.0, noise=0.02, ceiling=1.0):
    """A run of the std-normalised softmax force from given logits, one row a set of rollouts."""
    rng = np.random.default_rng(seed)
    h = hyperparameters
    k = int(h.refresh_interval)
    x, weights = difficulty_nodes()
    force = softmax_force("std", int(h.group_size))
    z = coordinates(start + spread * x, force, float(h.momentum), np.full(rows * k, rate), k, 0, rows * k - 1)
    return row_run(ceiling * sigmoid(z[::k]) @ weights + noise * rng.standard_normal(rows), h)


def row_run(reward, hyperparameters, **fields):
    """A run with one row a set of rollouts, numbered from 1."""
    rows = np.arange(1.0, len(reward) + 1.0)
    k = float(hyperparameters.refresh_interval)
    steps = np.maximum((rows - 1.0 - float(hyperparameters.async_lag)) * k, 0.0)
    return Run(
        steps,
        rows,
        np.asarray(reward, float),
        hyperparameters=hyperparameters,
        steps_per_row=k,
        row_is_rollout=True,
        **fields,
    )
