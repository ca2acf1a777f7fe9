"""What a finite group does, by enumeration over the number of successes, and by sampling."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import theory_reference as reference
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from jaxgrpo.theory import groups

# Compiled once.
zero_spread_probability = jax.jit(groups.zero_spread_probability)
expected_biased_variance = jax.jit(groups.expected_biased_variance)
expected_std = jax.jit(groups.expected_std, static_argnames="unbiased")
force_factor = jax.jit(groups.force_factor, static_argnums=2)
group_force_variance = jax.jit(groups.group_force_variance, static_argnames="unbiased")
beta_zero_spread_probability = jax.jit(groups.beta_zero_spread_probability)
beta_expected_biased_variance = jax.jit(groups.beta_expected_biased_variance)
mixture_zero_spread_probability = jax.jit(groups.mixture_zero_spread_probability, static_argnames="nodes")
mixture_expected_std = jax.jit(groups.mixture_expected_std, static_argnames="nodes")


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
        assert float(expected_std(f(p), f(n), unbiased=unbiased)) == pytest.approx(expected, abs=1e-10)
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
    assert got[1] == pytest.approx(expected, abs=1e-3)
    expected = reference.logit_normal_average(
        lambda z: reference.expected_std(float(reference.sigmoid(z)), n), location, spread
    )
    got = [float(mixture_expected_std(f(location), f(spread), f(n), nodes=nodes)) for nodes in (21, 101)]
    assert got[0] == pytest.approx(expected, abs=2e-3)
    assert got[1] == pytest.approx(expected, abs=1e-3)


def test_mixture_without_spread_is_one_prompt(precision):
    tolerance = 1e-5 if precision == "float32" else 1e-12
    p = float(reference.sigmoid(0.7))
    assert float(mixture_zero_spread_probability(f(0.7), f(0.0), f(8))) == pytest.approx(
        p**8 + (1 - p) ** 8, rel=tolerance
    )
    assert float(mixture_expected_std(f(0.7), f(0.0), f(8))) == pytest.approx(
        reference.expected_std(p, 8), rel=10 * tolerance
    )


SMOOTH = {
    "zero_spread_probability": zero_spread_probability,
    "expected_biased_variance": expected_biased_variance,
    "expected_std": expected_std,
    "force_factor, std": lambda p, g: force_factor(p, g, "std"),
    "force_factor, mean": lambda p, g: force_factor(p, g, "mean"),
    "group_force_variance": group_force_variance,
    "beta_zero_spread_probability": lambda p, g: beta_zero_spread_probability(4 * p, 1.5 + p, g),
    "beta_expected_biased_variance": lambda p, g: beta_expected_biased_variance(4 * p, 1.5 + p, g),
    "mixture_zero_spread_probability": lambda p, g: mixture_zero_spread_probability(2 * p - 1, 1.0 + p, g),
    "mixture_expected_std": lambda p, g: mixture_expected_std(2 * p - 1, 1.0 + p, g),
}


@pytest.mark.parametrize("name", list(SMOOTH))
def test_smooth_in_the_group_size(x64, name):
    """Differentiable at whole group sizes as between them; the small step bears a jump of the curvature."""
    function = jax.jit(SMOOTH[name])
    slope = jax.jit(jax.grad(SMOOTH[name], argnums=1))
    for p in (0.1, 0.5, 0.8):
        for group_size in (2.0, 4.0, 7.5, 8.0, 33.0):
            step = 1e-6 * group_size
            above, below = (float(function(f(p), f(group_size + shift))) for shift in (step, -step))
            got = float(slope(f(p), f(group_size)))
            assert got == pytest.approx((above - below) / (2 * step), rel=1e-5, abs=1e-9), (p, group_size)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.8])
def test_spread_between_whole_group_sizes_lies_between_its_neighbours(x64, p):
    for group_size in (2, 3, 7, 20):
        low, middle, high = (float(expected_std(f(p), f(group_size + share))) for share in (0.0, 0.5, 1.0))
        assert low < middle < high


@pytest.mark.parametrize("p", [0.03, 0.2, 0.5, 0.97])
def test_an_infinite_group_has_no_bias(precision, p):
    for normalisation in ("std", "mean"):
        assert float(force_factor(f(p), f(np.inf), normalisation)) == pytest.approx(1.0, abs=1e-6)
    spread = np.sqrt(p * (1 - p))
    assert float(expected_std(f(p), f(np.inf))) == pytest.approx(spread, rel=1e-6)
    assert float(expected_biased_variance(f(p), f(np.inf))) == pytest.approx(spread**2, rel=1e-6)
    assert float(zero_spread_probability(f(p), f(np.inf))) == 0.0


@pytest.mark.parametrize("group_size", [200, 512, 2000])
def test_large_groups_against_enumeration(x64, group_size):
    for p in (0.03, 0.5, 0.9):
        expected = reference.expected_std(p, group_size)
        assert float(expected_std(f(p), f(group_size))) == pytest.approx(expected, rel=1e-5)


def test_normalisation_is_refused_by_name(x64):
    with pytest.raises(Exception, match="normalisation"):
        force_factor(f(0.5), f(8), "median")
