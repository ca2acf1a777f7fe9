"""What a finite group does, by enumeration over the number of successes, and by sampling."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import theory_reference as reference
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from jaxgrpo.theory.groups import (
    beta_expected_biased_variance,
    beta_zero_spread_probability,
    expected_biased_variance,
    expected_std,
    force_factor,
    group_force_variance,
    mixture_expected_std,
    mixture_zero_spread_probability,
    zero_spread_probability,
)


def f(value):
    return jnp.asarray(float(value))


PROBABILITY = st.floats(0.001, 0.999) | st.sampled_from([0.5, 0.0, 1.0])
GROUP = st.integers(2, 64)


@reference.PROPERTY
@given(p=PROBABILITY, group_size=GROUP)
def test_against_enumeration(x64, p, group_size):
    n = group_size
    spread = reference.group_average(lambda k: (k == 0) | (k == n), p, n)
    assert float(zero_spread_probability(f(p), f(n))) == pytest.approx(spread, abs=1e-12)
    variance = reference.group_average(lambda k: k / n * (1 - k / n), p, n)
    assert float(expected_biased_variance(f(p), f(n))) == pytest.approx(variance, abs=1e-13)
    for unbiased in (False, True):
        expected = reference.expected_std(p, n, unbiased)
        assert float(expected_std(f(p), f(n), unbiased)) == pytest.approx(expected, abs=1e-10)
    if 0 < p < 1:
        expected = reference.expected_std(p, n) / np.sqrt(p * (1 - p))
        assert float(force_factor(f(p), f(n), "std")) == pytest.approx(expected, rel=1e-8)
        assert float(force_factor(f(p), f(n), "mean")) == pytest.approx(variance / (p * (1 - p)), rel=1e-10)


@reference.PROPERTY
@given(p=PROBABILITY, group_size=GROUP)
def test_variance_of_the_group_force_against_enumeration(x64, p, group_size):
    """The force of one group is (1/G) sum (r - mean r)(a - p), with reward r = a."""
    n = group_size

    def force(k):
        return ((1 - k / n) * (1 - p) * k + (0 - k / n) * (0 - p) * (n - k)) / n

    mean = reference.group_average(force, p, n)
    variance = reference.group_average(lambda k: (force(k) - mean) ** 2, p, n)
    assert float(group_force_variance(f(p), f(n), unbiased=False)) == pytest.approx(variance, abs=1e-12)
    unbiased = variance * (n / (n - 1)) ** 2
    assert float(group_force_variance(f(p), f(n), unbiased=True)) == pytest.approx(unbiased, abs=1e-12)


@pytest.mark.parametrize(("p", "group_size"), [(0.5, 4), (0.8, 8), (0.2, 2), (0.9, 16)])
def test_variance_of_the_group_force_by_sampling(precision, p, group_size):
    generator = np.random.default_rng(7)
    actions = (generator.random((400_000, group_size)) < p).astype(float)
    centred = actions - actions.mean(axis=1, keepdims=True)
    forces = (centred * (actions - p)).mean(axis=1) * group_size / (group_size - 1)
    got = float(group_force_variance(f(p), f(group_size)))
    assert got == pytest.approx(forces.var(), rel=0.01)


def test_temperature_falls_faster_than_1_over_g_at_even_odds(x64):
    sizes = [8.0, 16.0, 32.0, 64.0]
    even = [float(group_force_variance(f(0.5), f(g))) for g in sizes]
    biased = [float(group_force_variance(f(0.8), f(g))) for g in sizes]
    assert reference.slope(sizes, even) == pytest.approx(-2.0, abs=0.1)
    assert reference.slope(sizes, biased) == pytest.approx(-1.0, abs=0.05)


@reference.PROPERTY
@given(a=st.floats(0.05, 20.0), b=st.floats(0.05, 20.0), group_size=GROUP)
def test_mixed_difficulty_against_the_beta_binomial(x64, a, b, group_size):
    n = group_size
    mass = stats.betabinom.pmf(np.arange(n + 1), n, a, b)
    assert float(beta_zero_spread_probability(f(a), f(b), f(n))) == pytest.approx(
        mass[0] + mass[-1], rel=1e-9
    )
    share = np.arange(n + 1) / n
    expected = float(np.sum(mass * share * (1 - share)))
    assert float(beta_expected_biased_variance(f(a), f(b), f(n))) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("location", [-2.0, 0.0, 1.5])
@pytest.mark.parametrize("spread", [0.5, 1.5])
@pytest.mark.parametrize("group_size", [2, 8, 16])
def test_logit_normal_mixture(x64, location, spread, group_size):
    n = group_size

    def zero(z):
        p = reference.sigmoid(z)
        return p**n + (1 - p) ** n

    expected = reference.logit_normal_average(zero, location, spread)
    got = [
        float(mixture_zero_spread_probability(f(location), f(spread), f(n), nodes=nodes))
        for nodes in (21, 101)
    ]
    assert got[0] == pytest.approx(expected, abs=2e-3)
    assert got[1] == pytest.approx(expected, abs=2e-5)
    expected = reference.logit_normal_average(
        lambda z: reference.expected_std(float(reference.sigmoid(z)), n), location, spread
    )
    got = [float(mixture_expected_std(f(location), f(spread), f(n), nodes=nodes)) for nodes in (21, 101)]
    assert got[0] == pytest.approx(expected, abs=2e-3)
    assert got[1] == pytest.approx(expected, abs=2e-5)


def test_mixture_without_spread_is_one_prompt(precision):
    tolerance = 1e-5 if precision == "float32" else 1e-12
    p = float(reference.sigmoid(0.7))
    assert float(mixture_zero_spread_probability(f(0.7), f(0.0), f(8))) == pytest.approx(
        p**8 + (1 - p) ** 8, rel=tolerance
    )
    assert float(mixture_expected_std(f(0.7), f(0.0), f(8))) == pytest.approx(
        reference.expected_std(p, 8), rel=10 * tolerance
    )


@pytest.mark.parametrize("p", [0.1, 0.5, 0.8])
@pytest.mark.parametrize("group_size", [2.0, 4.0, 7.5, 8.0, 33.0])
def test_smooth_in_the_group_size(x64, p, group_size):
    functions = [
        lambda g: zero_spread_probability(f(p), g),
        lambda g: expected_biased_variance(f(p), g),
        lambda g: expected_std(f(p), g),
        lambda g: force_factor(f(p), g, "std"),
        lambda g: force_factor(f(p), g, "mean"),
        lambda g: group_force_variance(f(p), g),
        lambda g: beta_zero_spread_probability(f(2.0), f(1.5), g),
        lambda g: beta_expected_biased_variance(f(2.0), f(1.5), g),
        lambda g: mixture_zero_spread_probability(f(0.3), f(1.2), g),
        lambda g: mixture_expected_std(f(0.3), f(1.2), g),
    ]
    for index, function in enumerate(functions):
        got = float(jax.grad(function)(f(group_size)))
        numeric = reference.central_difference(lambda g, fn=function: float(fn(f(g))), group_size, 1e-3)
        assert got == pytest.approx(numeric, rel=1e-5, abs=1e-9), index
    # Between whole group sizes the expected spread stays between its neighbours.
    low, middle, high = (float(expected_std(f(p), f(g))) for g in (7, 7.5, 8))
    assert low < middle < high


def test_large_groups_have_no_bias(precision):
    for p in (0.2, 0.5, 0.97):
        assert float(force_factor(f(p), f(4096), "std")) == pytest.approx(1.0, abs=4e-3)
        assert float(force_factor(f(p), f(4096), "mean")) == pytest.approx(1.0, abs=4e-4)


def test_normalisation_is_refused_by_name(x64):
    with pytest.raises(Exception, match="normalisation"):
        force_factor(f(0.5), f(8), "median")
