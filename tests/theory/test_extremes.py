"""Single precision at the edges of the range: no NaN, and infinity only where the value is infinite."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import theory_reference as reference

from jaxgrpo.theory import cycle
from jaxgrpo.theory.groups import (
    beta_expected_biased_variance,
    beta_zero_spread_probability,
    expected_biased_variance,
    expected_std,
    force_factor,
    group_force_variance,
    zero_spread_probability,
)
from jaxgrpo.theory.hyperparameters import Hyperparameters
from jaxgrpo.theory.oscillator import Oscillator
from jaxgrpo.theory.reduction import reduce
from jaxgrpo.theory.stability import stability
from jaxgrpo.theory.task import Task
from jaxgrpo.theory.trajectory import mean_field, predict

MOMENTA = (0.0, 1e-6, 0.5, 0.9, 0.999)
STIFFNESSES = (1e-10, 1e-5, 1e-2, 0.5, 30.0)
INTERVALS = (1.0, 2.0, 10.0, 1000.0)
GROUP_SIZES = (2.0, 8.0, 4096.0)
TIMES = (0.0, 1.0, 100.0, 1e5)
GRID = np.array(list(itertools.product(MOMENTA, STIFFNESSES, INTERVALS)), dtype=np.float32)


def worst(bad, points):
    return f"{points[np.argmax(bad) // (bad.size // len(points))]} and {bad.sum() - 1} other entries"


def assert_no_nan(values, points, what):
    bad = np.isnan(np.asarray(values))
    assert not bad.any(), f"{what} is NaN at {worst(bad, points)}"


def assert_finite(values, points, what):
    bad = ~np.isfinite(np.asarray(values))
    assert not bad.any(), f"{what} is not finite at {worst(bad, points)}"


def leading(point, t, group_size, quantity):
    hyperparameters = Hyperparameters(
        learning_rate=point[1],
        momentum=point[0],
        refresh_interval=point[2],
        group_size=group_size,
        convention="heavy_ball",
    )
    task = Task(curvature=1.0, plateau=0.8, initial_reward=0.2, rollout_noise=0.5)
    return getattr(reduce(hyperparameters, task, order="leading"), quantity)(t)


@functools.cache
def leading_values_and_slopes(quantity):
    function = functools.partial(leading, quantity=quantity)
    return jax.jit(jax.vmap(jax.value_and_grad(function), in_axes=(0, None, None)))


def log_growth(points, t):
    """Exponent that the leading-order solution has grown to at time t, in double precision."""
    growth = []
    for momentum, h, interval in np.asarray(points, dtype=float):
        damping = (1 - momentum) - h * (interval - 1) / 2
        # Without mass a negative damping means immediate divergence.
        roots = np.roots([max(momentum, 1e-9), damping, h])
        growth.append(roots.real.max() * t)
    return np.array(growth)


@pytest.mark.parametrize("quantity", ["mean", "variance"])
@pytest.mark.parametrize("t", TIMES)
@pytest.mark.parametrize("group_size", GROUP_SIZES)
def test_leading_oscillator(quantity, t, group_size):
    values, slopes = leading_values_and_slopes(quantity)(
        jnp.asarray(GRID), jnp.float32(t), jnp.float32(group_size)
    )
    values, slopes = np.asarray(values), np.asarray(slopes)
    assert values.dtype == np.float32
    assert_no_nan(values, GRID, quantity)
    tame = log_growth(GRID, t) < 5.0
    assert_finite(values[tame], GRID[tame], quantity)
    # The momentum derivative at mu = 0 jumps at t = 0; an unstable massless point has no solution.
    damped = (1 - GRID[:, 0]) - GRID[:, 1] * (GRID[:, 2] - 1) / 2 > 1e-4
    kept = tame & damped
    assert_finite(slopes[kept], GRID[kept], f"gradient of the {quantity}")
    assert_no_nan(slopes[tame], GRID[tame], f"gradient of the {quantity}")


@pytest.mark.parametrize("damping", [0.0, -1e-6, -0.01, -1.0])
@pytest.mark.parametrize("mass", [1e-3, 0.5, 1.0])
def test_oscillator_without_damping(damping, mass):
    """gamma <= 0 is a regime like the others at finite times."""

    def value(fields, t, quantity):
        m, g, k = fields
        subject = Oscillator(m, g, k, jnp.float32(0.8), jnp.float32(0.2), jnp.float32(0.1))
        return getattr(subject, quantity)(t)

    fields = (jnp.float32(mass), jnp.float32(damping), jnp.float32(0.3))
    for t in (0.0, 1.0, 20.0):
        if -damping / mass * t > 25:
            continue
        error, _ = reference.oscillator_moments(mass, damping, 0.3, 0.0, -0.6, 0.0, t)
        variance = reference.growing_variance(mass, damping, 0.3, 0.1, t) if t > 0 else 0.0
        # The phase of the oscillation is known to a few units of the last place times the phase itself.
        phase = 1.0 + t * np.sqrt(0.3 / mass)
        assert float(value(fields, jnp.float32(t), "mean")) == pytest.approx(
            0.8 + error, rel=2e-3, abs=2e-6 * phase
        )
        assert float(value(fields, jnp.float32(t), "variance")) == pytest.approx(variance, rel=5e-3, abs=1e-6)
        for quantity in ("mean", "variance"):
            slopes = jax.tree.leaves(jax.grad(value)(fields, jnp.float32(t), quantity))
            assert all(np.isfinite(slopes)), (t, quantity)


def test_leading_order_at_exactly_no_damping():
    """h tau = 1 - mu: the temperature is infinite, the variance at a finite time is not."""
    hyperparameters = Hyperparameters(
        learning_rate=0.25, momentum=0.5, refresh_interval=5.0, convention="heavy_ball"
    )
    task = Task(curvature=1.0, plateau=0.8, initial_reward=0.2, rollout_noise=0.5)
    subject = reduce(hyperparameters, task, order="leading")
    assert float(subject.damping) == 0.0
    assert float(subject.stationary_variance) == np.inf
    assert np.isfinite(float(subject.mean(jnp.float32(7.0))))
    assert not np.isnan(float(subject.variance(jnp.float32(7.0))))


@pytest.mark.parametrize("t", TIMES)
def test_matched_oscillator(t):
    def matched(point, quantity):
        hyperparameters = Hyperparameters(
            learning_rate=point[1], momentum=point[0], refresh_interval=point[2], convention="heavy_ball"
        )
        task = Task(curvature=1.0, plateau=0.8, initial_reward=0.2, rollout_noise=0.5)
        subject = reduce(hyperparameters, task, order="matched", throw=False)
        return getattr(subject, quantity)(jnp.float32(t))

    # Where it exists with room to spare, and the motion does not grow.
    eigenvalues = np.array(
        [np.linalg.eigvals(reference.cycle_matrix(p[0], p[1], int(p[2]))) for p in GRID.astype(float)]
    )
    positive = np.where(np.abs(eigenvalues.imag) > 1e-6, 1.0, eigenvalues.real).min(axis=1) >= -1e-12
    # Without momentum one eigenvalue is zero: the massless oscillator. A second zero (h K = 1) is excluded.
    points = GRID[
        positive & (np.abs(eigenvalues).max(axis=1) < 1.0 + 1e-6) & (np.abs(eigenvalues).max(axis=1) > 1e-3)
    ]
    assert len(points) > 15
    for quantity in ("mean", "variance"):
        values = jax.vmap(lambda p, q=quantity: matched(p, q))(jnp.asarray(points))
        assert_finite(values, points, quantity)
        slopes = jax.vmap(jax.grad(lambda p, q=quantity: matched(p, q)))(jnp.asarray(points))
        moving = points[:, 0] > 0.0
        assert_finite(slopes[moving], points[moving], f"gradient of the {quantity}")
        assert_finite(slopes[:, 1:], points, f"gradient of the {quantity} without momentum")


def test_cycle_quantities():
    points = jnp.asarray(GRID)
    functions = {
        "cycle_map": lambda p: cycle.cycle_map(p[0], p[1], p[2]).sum(),
        "cycle_map, partial staleness": lambda p: cycle.cycle_map(p[0], p[1], p[2], jnp.float32(0.5)).sum(),
        "flip_stiffness": lambda p: cycle.flip_stiffness(p[0], p[2]),
        "critical_stiffness": lambda p: cycle.critical_stiffness(p[0], p[2]),
        "oscillation_onset": lambda p: cycle.oscillation_onset(p[0], p[2]),
    }
    for name, function in functions.items():
        values = np.asarray(jax.vmap(function)(points))
        # |1 - h|^1000 with h' = 15 is beyond any floating-point number.
        kept = (
            (GRID[:, 1] < 1.0) | (GRID[:, 2] < 11.0) if "partial" in name else np.ones(len(GRID), dtype=bool)
        )
        assert_finite(values[kept], GRID[kept], name)
        assert_no_nan(values[kept], GRID[kept], name)
    for name, function in functions.items():
        slopes = np.asarray(jax.vmap(jax.grad(function))(points))
        kept = GRID[:, 0] > 0.0 if name == "oscillation_onset" else np.ones(len(GRID), dtype=bool)
        if "partial" in name:
            kept = kept & ((GRID[:, 1] < 1.0) | (GRID[:, 2] < 11.0))
        assert_finite(slopes[kept], GRID[kept], f"gradient of {name}")
    for name in ("neimark_sacker_stiffness", "leading_critical_stiffness"):
        assert_no_nan(jax.vmap(lambda p, n=name: getattr(cycle, n)(p[0], p[2]))(points), GRID, name)
        assert_no_nan(
            jax.vmap(jax.grad(lambda p, n=name: getattr(cycle, n)(p[0], p[2])))(points),
            GRID,
            f"gradient of {name}",
        )


@pytest.mark.parametrize("async_lag", [0, 2])
def test_spectral_radius(async_lag):
    points = jnp.asarray(GRID)
    values = np.asarray(
        jax.vmap(lambda p: cycle.spectral_radius(p[0], p[1], p[2], jnp.float32(1.0), async_lag))(points)
    )
    assert_finite(values, GRID, "spectral radius")
    expected = np.array(
        [reference.spectral_radius(p[0], p[1], int(p[2]), 1.0, async_lag) for p in GRID.astype(float)]
    )
    np.testing.assert_allclose(values, expected, rtol=5e-3, atol=5e-3)
    slopes = jax.vmap(
        jax.grad(lambda p: cycle.spectral_radius(p[0], p[1], p[2], jnp.float32(1.0), async_lag))
    )(points)
    assert_no_nan(slopes, GRID, "gradient of the spectral radius")


def test_critical_stiffness_in_single_precision_is_right():
    points = np.array(list(itertools.product(MOMENTA, (1.0, 2.0, 10.0, 1000.0))), dtype=np.float32)
    values = np.asarray(jax.vmap(lambda p: cycle.critical_stiffness(p[0], p[1]))(jnp.asarray(points)))
    expected = []
    for momentum, k in points.astype(float):
        grid = np.geomspace(1e-6, 20.0, 3001)
        unstable = reference.spectral_radius(momentum, grid, int(k)) > 1.0 + 1e-12
        first = int(np.argmax(unstable))
        expected.append(
            reference.bisect(
                lambda h, mu=momentum, k=k: bool(reference.spectral_radius(mu, h, int(k)) > 1.0 + 1e-12),
                grid[first - 1],
                grid[first],
                40,
            )
        )
    # Close to mu = 1 three digits cancel in the thresholds' formulas.
    near = points[:, 0] > 0.99
    np.testing.assert_allclose(values[~near], np.array(expected)[~near], rtol=1e-4)
    np.testing.assert_allclose(values[near], np.array(expected)[near], rtol=2e-2)


def test_stability():
    def report(point):
        hyperparameters = Hyperparameters(
            learning_rate=point[1], momentum=point[0], refresh_interval=point[2], convention="heavy_ball"
        )
        subject = stability(hyperparameters, Task(curvature=1.0, plateau=0.8))
        return jnp.stack([subject.spectral_radius, subject.margin, subject.critical_learning_rate])

    assert_finite(jax.vmap(report)(jnp.asarray(GRID)), GRID, "stability")


def test_critical_refresh_interval():
    points = GRID[GRID[:, 2] == 1.0]
    values = jax.vmap(lambda p: cycle.critical_refresh_interval(p[0], p[1]))(jnp.asarray(points))
    assert_no_nan(values, points, "critical refresh interval")
    values = jax.vmap(lambda p: cycle.leading_critical_refresh_interval(p[0], p[1]))(jnp.asarray(points))
    assert_no_nan(values, points, "leading critical refresh interval")


@pytest.mark.parametrize("momentum", [0.0, 0.999])
@pytest.mark.parametrize("refresh_interval", [1, 50])
@pytest.mark.parametrize("fraction", [1e-6, 0.5])
def test_trajectories(momentum, refresh_interval, fraction):
    stiffness = fraction * reference.critical_stiffness(momentum, refresh_interval)
    steps = jnp.asarray([0.0, 1.0, 49.0, 50.0, 2000.0])
    task = Task(curvature=1.0, plateau=0.8, initial_reward=0.2, rollout_noise=0.5)

    def settings(values):
        return Hyperparameters(
            learning_rate=values[0],
            momentum=values[1],
            group_size=values[2],
            refresh_interval=refresh_interval,
            convention="heavy_ball",
        )

    values = jnp.asarray([stiffness, momentum, 2.0], dtype=jnp.float32)
    prediction = predict(settings(values), task, steps)
    assert_finite(prediction.mean, np.asarray(steps), "mean")
    assert_finite(prediction.std, np.asarray(steps), "standard deviation")
    expected = 0.8 + reference.run_linear(momentum, stiffness, refresh_interval, 2000, start=-0.6)
    np.testing.assert_allclose(prediction.mean, expected[np.asarray(steps, dtype=int)], atol=2e-4)
    slopes = jax.grad(lambda v: predict(settings(v), task, steps).mean.sum())(values)
    assert_finite(slopes, np.asarray(values), "gradient of the mean")
    slopes = jax.grad(lambda v: predict(settings(v), task, steps).std.sum())(values)
    assert_finite(slopes, np.asarray(values), "gradient of the standard deviation")
    assert_finite(mean_field(settings(values), task, steps), np.asarray(steps), "mean field")


def test_no_noise_has_a_gradient_too():
    """A standard deviation of zero must not turn the gradient into NaN."""
    task = Task(curvature=1.0, plateau=0.8, initial_reward=0.2, rollout_noise=0.0)

    def spread(rate):
        hyperparameters = Hyperparameters(learning_rate=rate, convention="heavy_ball")
        return predict(hyperparameters, task, jnp.asarray([0.0, 5.0, 50.0])).std.sum()

    assert float(spread(jnp.float32(0.01))) == 0.0
    assert np.isfinite(float(jax.grad(spread)(jnp.float32(0.01))))


def test_groups():
    probabilities = (0.0, 1e-6, 0.1, 0.5, 0.9, 1.0 - 1e-6, 1.0)
    points = np.array(list(itertools.product(probabilities, (2.0, 3.0, 8.0, 64.0, 1024.0))), dtype=np.float32)
    functions = {
        "zero_spread_probability": zero_spread_probability,
        "expected_biased_variance": expected_biased_variance,
        "expected_std": expected_std,
        "force_factor": force_factor,
        "group_force_variance": group_force_variance,
    }
    for name, function in functions.items():
        values = jax.vmap(lambda q, g, fn=function: fn(q, g))(points[:, 0], points[:, 1])
        assert_finite(values, points, name)
        slopes = jax.vmap(jax.grad(lambda q, g, fn=function: fn(q, g), argnums=(0, 1)))(
            points[:, 0], points[:, 1]
        )
        for slope, label in zip(slopes, ("p", "G"), strict=True):
            inside = (points[:, 0] > 0) & (points[:, 0] < 1)
            assert_finite(slope[inside], points[inside], f"derivative of {name} in {label}")
            assert_no_nan(slope, points, f"derivative of {name} in {label}")
    shapes = np.array(
        list(itertools.product((1e-2, 1.0, 50.0), (1e-2, 1.0, 50.0), (2.0, 1024.0))), dtype=np.float32
    )
    for name, function in {
        "beta_zero_spread_probability": beta_zero_spread_probability,
        "beta_expected_biased_variance": beta_expected_biased_variance,
    }.items():
        values = jax.vmap(function)(*jnp.asarray(shapes).T)
        assert_finite(values, shapes, name)
        for slope in jax.vmap(jax.grad(function, argnums=(0, 1, 2)))(*jnp.asarray(shapes).T):
            assert_finite(slope, shapes, f"gradient of {name}")
