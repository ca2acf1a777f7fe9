"""The stability report against thresholds of the simulated update."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import theory_reference as reference

from jaxgrpo.theory.adam import AdamNormalisation
from jaxgrpo.theory.hyperparameters import Hyperparameters
from jaxgrpo.theory.stability import stability
from jaxgrpo.theory.task import Task


def f(value):
    return jnp.asarray(float(value))


@pytest.mark.parametrize(
    ("momentum", "refresh_interval", "staleness", "async_lag", "convention"),
    [
        (0.9, 4, 1.0, 0, "ema"),
        (0.9, 4, 1.0, 0, "heavy_ball"),
        (0.0, 8, 1.0, 0, "ema"),
        (0.9, 8, 0.5, 0, "ema"),
        (0.9, 4, 1.0, 1, "heavy_ball"),
    ],
)
def test_exact_side(x64, momentum, refresh_interval, staleness, async_lag, convention):
    dampening = 1 - momentum if convention == "ema" else 1.0
    threshold = reference.critical_stiffness(momentum, refresh_interval, staleness, async_lag)
    rate = 0.4 * threshold / dampening / 7.0
    hyperparameters = Hyperparameters(
        learning_rate=rate,
        momentum=momentum,
        refresh_interval=refresh_interval,
        staleness=staleness,
        async_lag=async_lag,
        convention=convention,
    )
    report = stability(hyperparameters, Task(curvature=7.0, plateau=0.8))
    assert float(report.spectral_radius) == pytest.approx(
        reference.spectral_radius(momentum, 0.4 * threshold, refresh_interval, staleness, async_lag), rel=1e-6
    )
    assert float(report.margin) == pytest.approx(0.6, rel=1e-6)
    assert float(report.critical_learning_rate) == pytest.approx(rate / 0.4, rel=1e-6)


@pytest.mark.parametrize("convention", ["ema", "heavy_ball"])
def test_interval_and_onset(x64, convention):
    dampening = 0.1 if convention == "ema" else 1.0
    hyperparameters = Hyperparameters(learning_rate=0.02 / dampening, momentum=0.9, convention=convention)
    report = stability(hyperparameters, Task(curvature=1.0, plateau=0.8))
    first_unstable = next(k for k in range(1, 100) if reference.spectral_radius(0.9, 0.02, k) > 1)
    assert first_unstable - 1 < float(report.critical_refresh_interval) <= first_unstable
    assert float(report.oscillation_onset) == pytest.approx((1 - np.sqrt(0.9)) ** 2 / dampening, rel=1e-9)


@pytest.mark.parametrize("convention", ["ema", "heavy_ball"])
def test_leading_side(x64, convention):
    dampening = 0.1 if convention == "ema" else 1.0
    hyperparameters = Hyperparameters(
        learning_rate=0.002 / dampening, momentum=0.9, refresh_interval=3, convention=convention
    )
    report = stability(hyperparameters, Task(curvature=1.0, plateau=0.8))
    assert float(report.leading_critical_refresh_interval) == pytest.approx(1 + 0.2 / 0.002, rel=1e-10)
    assert float(report.leading_critical_learning_rate) == pytest.approx(0.1 / dampening, rel=1e-10)
    # gamma^2 = 4 m k with gamma = 0.1 - h and m = 0.9: a quadratic in h.
    onset = np.min(np.roots([1.0, -0.2 - 3.6, 0.01]))
    assert float(report.leading_oscillation_onset) == pytest.approx(onset / dampening, rel=1e-9)


def test_leading_threshold_of_adam_does_not_depend_on_beta1(x64):
    """With the EMA convention the leading-order threshold is eta kappa tau < 1, whatever beta1."""
    for beta1 in (0.5, 0.9, 0.99):
        report = stability(
            Hyperparameters(learning_rate=1e-3, momentum=beta1, refresh_interval=5),
            Task(curvature=10.0, plateau=0.8),
        )
        assert float(report.leading_critical_learning_rate) == pytest.approx(1 / (10.0 * 2.0), rel=1e-10)


def test_sharpness_decides_where_it_is_known(x64):
    hyperparameters = Hyperparameters(learning_rate=1e-3, momentum=0.9, refresh_interval=4)
    bound = stability(hyperparameters, Task(curvature=2.0, plateau=0.8))
    exact = stability(hyperparameters, Task(curvature=2.0, plateau=0.8, sharpness=50.0))
    assert bool(bound.is_upper_bound) and not bool(exact.is_upper_bound)
    assert float(bound.critical_learning_rate / exact.critical_learning_rate) == pytest.approx(25.0, rel=1e-9)
    assert float(exact.spectral_radius) == pytest.approx(
        reference.spectral_radius(0.9, 0.1 * 1e-3 * 50.0, 4), rel=1e-9
    )
    assert float(exact.margin) < float(bound.margin)


@pytest.mark.parametrize(
    ("momentum", "figures"),
    [
        (0.0, ("8.571", "4.286", "2.143", "1.071", "0.5357")),
        (0.5, ("12.86", "5.357", "1.917", "0.7124", "0.3061")),
        (0.9, ("16.29", "0.9047", "0.3131", "0.1451", "0.07994")),
    ],
)
def test_measured_critical_rates_of_a_neural_policy(x64, momentum, figures):
    """Critical learning rates (heavy ball) of modular addition, whose top curvature is 0.23334."""
    for refresh_interval, text in zip((1, 2, 4, 8, 16), figures, strict=True):
        report = stability(
            Hyperparameters(
                learning_rate=0.01,
                momentum=momentum,
                refresh_interval=refresh_interval,
                convention="heavy_ball",
            ),
            Task(curvature=0.0425, plateau=1.0, sharpness=0.23334),
        )
        assert reference.matches_print(float(report.critical_learning_rate), text)


def test_learning_rate_exponent_bends_the_critical_rate(x64):
    """At the critical rate the report itself must say so."""
    task = Task(curvature=200.0, plateau=0.8, learning_rate_exponent=2.5, reference_learning_rate=1e-3)
    rate = stability(Hyperparameters(learning_rate=2e-3, refresh_interval=4), task).critical_learning_rate
    report = stability(Hyperparameters(learning_rate=rate, refresh_interval=4), task)
    assert float(report.margin) == pytest.approx(0.0, abs=1e-6)
    assert float(report.spectral_radius) == pytest.approx(1.0, abs=1e-6)


def test_adam_normalisation_enters(x64):
    adam = AdamNormalisation(f(0.0), f(2.0))
    small, large = (
        stability(
            Hyperparameters(learning_rate=1e-3, group_size=g, refresh_interval=4),
            Task(curvature=10.0, plateau=0.8, adam=adam),
        )
        for g in (4, 64)
    )
    assert float(small.critical_learning_rate / large.critical_learning_rate) == pytest.approx(4.0, rel=1e-9)


def test_past_the_threshold(x64):
    hyperparameters = Hyperparameters(
        learning_rate=1.0, momentum=0.9, refresh_interval=8, convention="heavy_ball"
    )
    report = stability(hyperparameters, Task(curvature=1.0, plateau=0.8))
    assert float(report.margin) < 0
    assert float(report.spectral_radius) > 1


def margin(rate):
    hyperparameters = Hyperparameters(learning_rate=rate, refresh_interval=4)
    return stability(hyperparameters, Task(curvature=1.0, plateau=0.8)).margin


def test_passes_through_grad_and_vmap(x64):
    threshold = reference.critical_stiffness(0.9, 4)
    assert float(jax.grad(margin)(jnp.asarray(0.3))) == pytest.approx(-0.1 / threshold, rel=1e-8)
    rates = jnp.asarray([0.3, 0.5])
    np.testing.assert_allclose(jax.vmap(margin)(rates), 1 - 0.1 * np.asarray(rates) / threshold, rtol=1e-8)


def test_passes_through_jit(x64):
    """With the settings made inside, and with the settings as an argument."""
    rate = jnp.asarray(0.3)
    expected = 1 - 0.03 / reference.critical_stiffness(0.9, 4)
    assert float(jax.jit(margin)(rate)) == pytest.approx(expected, rel=1e-8)
    report = jax.jit(stability)(
        Hyperparameters(learning_rate=rate, refresh_interval=4), Task(curvature=1.0, plateau=0.8)
    )
    assert float(report.margin) == pytest.approx(expected, rel=1e-8)
