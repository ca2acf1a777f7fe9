"""The closed-form oscillator against matrix exponentials, in every regime and across critical damping."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import theory_reference as reference
from hypothesis import assume, given
from hypothesis import strategies as st

from jaxgrpo.theory.oscillator import Oscillator


def f(value):
    return jnp.asarray(float(value))


def oscillator(mass, damping, stiffness, plateau=0.8, initial_reward=0.2, temperature=0.0, velocity=0.0):
    """The oscillator whose noise makes the given temperature, T = sigma^2 / (2 gamma)."""
    noise = np.sqrt(2.0 * damping * temperature)
    return Oscillator(f(mass), f(damping), f(stiffness), f(plateau), f(initial_reward), f(noise), f(velocity))


mean = jax.jit(lambda subject, t: subject.mean(t))
variance = jax.jit(lambda subject, t: subject.variance(t))


CASES = [
    pytest.param(1.0, 3.0, 1.0, id="overdamped"),
    pytest.param(0.5, 30.0, 0.1, id="far-overdamped"),
    pytest.param(1.0, 2.0, 1.0, id="critical"),
    pytest.param(1.0, 2.0 + 1e-9, 1.0, id="just-over-critical"),
    pytest.param(1.0, 2.0 - 1e-9, 1.0, id="just-under-critical"),
    pytest.param(1.0, 0.3, 1.0, id="underdamped"),
    pytest.param(1.0, -0.05, 1.0, id="growing"),
    pytest.param(0.0, 0.5, 0.25, id="massless"),
    pytest.param(1e-9, 0.5, 0.25, id="nearly-massless"),
]


@pytest.mark.parametrize(("mass", "damping", "stiffness"), CASES)
@pytest.mark.parametrize("velocity", [0.0, 0.07])
def test_mean_and_variance(x64, mass, damping, stiffness, velocity):
    if mass < 1e-6:
        velocity = 0.0  # a massless point forgets its velocity at once
    temperature = 0.02 * np.sign(damping)
    subject = oscillator(mass, damping, stiffness, temperature=temperature, velocity=velocity)
    for t in (0.0, 0.3, 1.0, 4.0, 15.0):
        error, spread = reference.oscillator_moments(
            mass if mass > 1e-6 else 0.0, damping, stiffness, temperature, -0.6, velocity, t
        )
        tolerance = 1e-10 if mass > 1e-6 else 1e-9 if mass == 0.0 else 1e-7
        assert float(mean(subject, f(t))) == pytest.approx(0.8 + error, abs=tolerance)
        assert float(variance(subject, f(t))) == pytest.approx(spread, abs=tolerance * 0.1)


@reference.PROPERTY
@given(
    mass=st.floats(0.01, 10.0),
    ratio=st.floats(0.02, 5.0) | st.sampled_from([1.0, 1.0 - 1e-7, 1.0 + 1e-7]),
    stiffness=st.floats(0.01, 10.0),
    time=st.floats(0.0, 10.0),
)
def test_mean_and_variance_for_any_damping_ratio(x64, mass, ratio, stiffness, time):
    damping = 2 * ratio * np.sqrt(mass * stiffness)
    t = time * np.sqrt(mass / stiffness)
    subject = oscillator(mass, damping, stiffness, temperature=0.05)
    error, spread = reference.oscillator_moments(mass, damping, stiffness, 0.05, -0.6, 0.0, t)
    assert float(mean(subject, f(t))) == pytest.approx(0.8 + error, abs=1e-9)
    assert float(variance(subject, f(t))) == pytest.approx(spread, abs=1e-9 * max(1.0, 0.05 / stiffness))
    assert float(subject.damping_ratio) == pytest.approx(ratio, rel=1e-9)


def test_any_shape_of_times(precision):
    subject = oscillator(1.0, 0.3, 1.0, temperature=0.1)
    times = jnp.linspace(0.0, 10.0, 12).reshape(3, 4)
    for quantity in (mean, variance):
        values = quantity(subject, times)
        assert values.shape == (3, 4)
        np.testing.assert_allclose(
            values,
            [[quantity(subject, t) for t in row] for row in times],
            rtol=1e-5 if precision == "float32" else 1e-12,
        )
        assert values.dtype == jnp.dtype(precision)


@pytest.mark.parametrize("ratio", [0.3, 1.0, 3.0])
def test_variance_is_positive_at_short_times_and_settles(precision, ratio):
    """From a sharp start the variance begins as sigma^2 t^3 / (3 m^2), with no digits lost."""
    subject = oscillator(1.0, 2 * ratio, 1.0, temperature=0.5)
    for t in (1e-3, 1e-2, 0.05):
        leading = 2 * 2 * ratio * 0.5 * t**3 / 3
        value = float(variance(subject, f(t)))
        assert value == pytest.approx(leading, rel=0.3 if t > 0.02 else 0.1)
        if precision == "float64":
            _, exact = reference.oscillator_moments(1.0, 2 * ratio, 1.0, 0.5, 0.0, 0.0, t)
            assert value == pytest.approx(exact, rel=1e-6)
    assert float(subject.variance(f(0.0))) == 0.0
    assert float(subject.variance(f(200.0))) == pytest.approx(0.5, rel=1e-5)
    assert float(subject.stationary_variance) == pytest.approx(0.5, rel=1e-6)


@pytest.mark.parametrize(
    ("mass", "damping", "name"),
    [
        (1.0, 3.0, "overdamped"),
        (0.0, 0.1, "overdamped"),
        (1.0, 2.0, "critical"),
        (1.0, 1.0, "underdamped"),
        (1.0, -0.1, "unstable"),
    ],
)
def test_regime(precision, mass, damping, name):
    subject = oscillator(mass, damping, 1.0)
    assert subject.regime_name == name
    assert jnp.issubdtype(jnp.asarray(subject.regime).dtype, jnp.integer)


def test_regime_codes_under_vmap(x64):
    dampings = jnp.array([3.0, 2.0, 1.0, -0.1])
    codes = jax.vmap(lambda g: Oscillator(f(1.0), g, f(1.0), f(0.8), f(0.2)).regime)(dampings)
    assert len({int(c) for c in codes}) == 4


@pytest.mark.parametrize(
    ("mass", "damping", "stiffness"), [(1.0, 3.0, 1.0), (1.0, 2.0, 1.0), (2.0, 0.4, 1.0), (0.0, 0.5, 0.1)]
)
def test_timescale_is_the_slowest_rate_of_decay(x64, mass, damping, stiffness):
    if mass == 0.0:
        expected = damping / stiffness
    else:
        expected = -1.0 / np.max(np.linalg.eigvals([[0.0, 1.0], [-stiffness / mass, -damping / mass]]).real)
    got = float(oscillator(mass, damping, stiffness).timescale)
    assert got == pytest.approx(expected, rel=1e-6)


def test_period(x64):
    subject = oscillator(2.0, 0.4, 1.0)
    expected = 2 * np.pi / np.max(np.linalg.eigvals([[0.0, 1.0], [-0.5, -0.2]]).imag)
    assert float(subject.period) == pytest.approx(expected, rel=1e-12)
    # Two upward crossings of the plateau are one period apart.
    times = np.linspace(0.0, 60.0, 60001)
    above = np.asarray(subject.mean(jnp.asarray(times))) > 0.8
    crossings = times[1:][above[1:] & ~above[:-1]]
    assert np.diff(crossings)[0] == pytest.approx(expected, abs=2e-3)
    assert float(oscillator(2.0, 5.0, 1.0).period) == np.inf
    assert float(oscillator(0.0, 0.5, 1.0).period) == np.inf


def test_without_damping_there_is_no_stationary_variance(precision):
    for damping in (-0.1, 0.0):
        subject = Oscillator(f(1.0), f(damping), f(1.0), f(0.8), f(0.2), f(0.3))
        assert float(subject.temperature) == np.inf
        assert float(subject.stationary_variance) == np.inf


def test_overdamped_limit_is_the_single_exponential(x64):
    """R = R* - (R* - R0) exp(-k t / gamma), approached with order one in m k / gamma^2."""
    masses, errors = [4e-3, 2e-3, 1e-3], []
    times = jnp.linspace(0.5, 20.0, 40)
    for mass in masses:
        exact = mean(oscillator(mass, 1.0, 0.2), times)
        errors.append(float(jnp.abs(exact - (0.8 - 0.6 * jnp.exp(-0.2 * times))).max()))
    assert reference.slope(masses, errors) == pytest.approx(1.0, abs=0.05)


@reference.PROPERTY
@given(
    mass=st.floats(0.05, 5.0),
    damping=st.floats(0.05, 5.0),
    stiffness=st.floats(0.05, 5.0),
    shift=st.floats(-2.0, 2.0),
    scale=st.floats(0.1, 3.0),
)
def test_linear_in_the_distance_and_indifferent_to_the_mass_scale(
    x64, mass, damping, stiffness, shift, scale
):
    assume(abs(damping**2 - 4 * mass * stiffness) > 1e-3)
    times = jnp.linspace(0.0, 8.0, 9)
    base = mean(oscillator(mass, damping, stiffness), times)
    moved = mean(oscillator(mass, damping, stiffness, plateau=0.8 + shift, initial_reward=0.2 + shift), times)
    np.testing.assert_allclose(moved, base + shift, atol=1e-9)
    scaled = mean(oscillator(scale * mass, scale * damping, scale * stiffness), times)
    np.testing.assert_allclose(scaled, base, atol=1e-9)
