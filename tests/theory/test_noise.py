"""Stationary covariance at refreshes: dense Lyapunov equations and long stochastic simulations."""

import jax.numpy as jnp
import numpy as np
import pytest
import theory_reference as reference
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxgrpo.theory.cycle import (
    critical_stiffness,
    noise_covariance,
    stationary_covariance,
    stationary_variance_single,
)


def f(value):
    return jnp.asarray(float(value))


@reference.PROPERTY
@given(
    momentum=st.just(0.0) | st.floats(0.0, 0.97),
    batches=st.integers(1, 6),
    epochs=st.integers(1, 4),
    staleness=st.sampled_from([1.0, 0.5, 0.0]),
    stiffness=st.floats(1e-3, 0.5),
    step_noise=st.floats(1e-3, 2.0),
)
def test_noise_of_one_cycle(x64, momentum, batches, epochs, staleness, stiffness, step_noise):
    refresh_interval = batches * epochs
    expected = reference.cycle_noise_covariance(
        momentum, stiffness, refresh_interval, step_noise, epochs, staleness
    )
    got = noise_covariance(
        f(momentum),
        float(refresh_interval),
        f(step_noise),
        float(epochs),
        stiffness=f(stiffness),
        staleness=staleness,
    )
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-11 * np.abs(expected).max())


@settings(reference.PROPERTY, max_examples=20)
@given(
    momentum=st.just(0.0) | st.floats(0.0, 0.97),
    batches=st.integers(1, 5),
    epochs=st.integers(1, 3),
    staleness=st.sampled_from([1.0, 0.5]),
    async_lag=st.integers(0, 2),
    fraction=st.floats(0.02, 0.9),
)
def test_stationary_covariance_solves_the_step_level_equations(
    x64, momentum, batches, epochs, staleness, async_lag, fraction
):
    refresh_interval = batches * epochs
    stiffness = fraction * reference.critical_stiffness(momentum, refresh_interval, staleness, async_lag)
    expected = reference.stationary_covariance(
        momentum, stiffness, refresh_interval, 0.3, epochs, staleness, async_lag
    )
    got = stationary_covariance(
        f(momentum), f(stiffness), float(refresh_interval), f(0.3), float(epochs), staleness, async_lag
    )
    assert got.shape == (2 + async_lag, 2 + async_lag)
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-8 * np.abs(expected).max())


@pytest.mark.parametrize(
    ("momentum", "stiffness", "refresh_interval", "epochs", "staleness", "async_lag"),
    [
        pytest.param(0.0, 0.5, 1, 1, 1.0, 0, id="K=1-no-momentum"),
        pytest.param(0.5, 0.3, 1, 1, 1.0, 0, id="K=1"),
        pytest.param(0.9, 0.05, 1, 1, 1.0, 0, id="K=1-underdamped"),
        pytest.param(0.5, 0.1, 4, 1, 1.0, 0, id="K=4-fresh"),
        pytest.param(0.8, 0.03, 8, 1, 1.0, 0, id="K=8-fresh"),
        pytest.param(0.5, 0.1, 4, 4, 1.0, 0, id="K=4-one-batch-reused"),
        pytest.param(0.8, 0.04, 6, 2, 1.0, 0, id="K=6-three-batches-twice"),
        pytest.param(0.5, 0.1, 4, 2, 0.5, 0, id="K=4-reused-half-corrected"),
        pytest.param(0.5, 0.08, 4, 2, 1.0, 1, id="K=4-reused-one-set-behind"),
    ],
)
def test_stationary_variance_of_a_long_simulation(
    x64, momentum, stiffness, refresh_interval, epochs, staleness, async_lag
):
    """Within 1 %; the sampling error of these path counts is about 0.2 %."""
    sampled = reference.sampled_refresh_moments(
        momentum,
        stiffness,
        refresh_interval,
        0.2,
        epochs=epochs,
        staleness=staleness,
        async_lag=async_lag,
        paths=20_000,
        cycles=300,
        burn_in=150,
        seed=20240611,
    )
    got = stationary_covariance(
        f(momentum), f(stiffness), float(refresh_interval), f(0.2), float(epochs), staleness, async_lag
    )
    assert float(got[0, 0]) == pytest.approx(sampled[0, 0], rel=0.01)
    assert float(got[1, 1]) == pytest.approx(sampled[1, 1], rel=0.01)


def test_reused_minibatches_matter():
    """Coherent noise is not fresh noise: a test that could not tell them apart would be worthless."""
    fresh = reference.stationary_covariance(0.5, 0.1, 4, 0.2)[0, 0]
    reused = reference.stationary_covariance(0.5, 0.1, 4, 0.2, epochs=4)[0, 0]
    assert reused > 2.5 * fresh


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("fraction", [1e-4, 0.1, 0.9])
def test_single_step_closed_form(precision, momentum, fraction):
    stiffness = fraction * 2 * (1 + momentum)
    expected = reference.stationary_covariance(momentum, stiffness, 1, 0.3)[0, 0]
    tolerance = 1e-4 if precision == "float32" else 1e-9
    got = stationary_variance_single(f(momentum), f(stiffness), f(0.3))
    assert float(got) == pytest.approx(expected, rel=tolerance)
    if precision == "float64":
        general = stationary_covariance(f(momentum), f(stiffness), 1.0, f(0.3))
        assert float(general[0, 0]) == pytest.approx(expected, rel=1e-8)


def test_variance_approaches_the_leading_order_with_order_one(x64):
    """Var[R] -> sigma^2 / (2 (1 - mu) h) for small h, for K = 1 and for a block refresh."""
    for refresh_interval in (1, 4):
        sizes, errors = [4e-3, 2e-3, 1e-3, 5e-4], []
        for stiffness in sizes:
            exact = stationary_covariance(f(0.7), f(stiffness), float(refresh_interval), f(1.0))[0, 0]
            errors.append(abs(float(exact) * 2 * 0.3 * stiffness - 1.0))
        assert reference.slope(sizes, errors) == pytest.approx(1.0, abs=0.1)


def test_variance_grows_without_bound_towards_the_threshold(x64):
    threshold = critical_stiffness(f(0.9), f(4.0))
    near = stationary_covariance(f(0.9), 0.9999 * threshold, 4.0, f(1.0))[0, 0]
    far = stationary_covariance(f(0.9), 0.5 * threshold, 4.0, f(1.0))[0, 0]
    assert float(near) > 100 * float(far) > 0
