"""The peers of the forecast: curves against curves that they must find, laws against what they state."""

import numpy as np
import pytest
from scipy.optimize import least_squares

from jaxgrpo.inference.baselines import carry_forward, entropy_law, fitted_curve

X = np.arange(80.0)
AHEAD = np.array([100.0, 200.0])
CURVES = {
    "exponential": lambda x, t, s: -np.expm1(-x / t),
    "sigmoid": lambda x, t, s: 1.0 / (1.0 + (t / np.maximum(x, 1e-12)) ** s),
    "power_law": lambda x, t, s: 1.0 - (1.0 + x / t) ** -s,
    "logistic": lambda x, t, s: 1.0 / (1.0 + np.exp(s - x / t)),
}


@pytest.mark.parametrize(
    ("curve", "t", "s"),
    [("exponential", 25, 1), ("sigmoid", 30, 2), ("power_law", 20, 1), ("logistic", 10, 3)],
)
def test_a_curve_finds_itself(curve, t, s):
    law = CURVES[curve]
    found = fitted_curve(0.2 + 0.6 * law(X, t, s), X, AHEAD, curve)
    np.testing.assert_allclose(found, 0.2 + 0.6 * law(AHEAD, t, s), atol=0.02)


@pytest.mark.parametrize("curve", CURVES)
def test_no_iterative_search_finds_a_much_better_curve(curve):
    rewards = 0.3 + 0.4 * np.tanh(X / 30) + 0.05 * np.random.default_rng(0).standard_normal(X.size)
    law = CURVES[curve]
    model = lambda q: q[0] + q[1] * law(X, np.exp(q[2]), np.exp(q[3]))
    best = min(
        2 * least_squares(lambda q: model(q) - rewards, [0.3, 0.4, np.log(t), 0.3], max_nfev=400).cost
        for t in (5, 20, 60)
    )
    own = np.sum((fitted_curve(rewards, X, X, curve) - rewards) ** 2)
    assert own < 1.03 * best


@pytest.mark.parametrize("curve", CURVES)
def test_constant_rewards_stay(curve):
    np.testing.assert_allclose(fitted_curve(np.full(80, 0.4), X, AHEAD, curve), 0.4, atol=1e-9)


def test_carrying_forward_is_the_mean_of_the_last_fifth_and_widens_with_the_way():
    rewards = np.cumsum(np.random.default_rng(1).standard_normal(100))
    near, far = (carry_forward(rewards, rows, mixture=True) for rows in (1, 100))
    np.testing.assert_allclose(near.mean, rewards[-20:].mean())
    assert np.all(far.std > near.std) and near.weight.sum() == pytest.approx(1.0)


def test_the_entropy_law_is_found_and_followed():
    entropy = 0.2 + 1.5 * np.exp(-X / 40)
    rewards = 0.9 - 0.1 * np.exp(entropy)
    expected = 0.9 - 0.1 * np.exp(0.2 + 1.5 * np.exp(-AHEAD / 40))
    np.testing.assert_allclose(entropy_law(rewards, entropy, X, AHEAD), expected, atol=2e-3)
    np.testing.assert_allclose(entropy_law(rewards, np.full(80, 0.5), X, AHEAD), rewards.mean())
