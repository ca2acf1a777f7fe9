"""Forecasts against dense Gaussian algebra, against draws of their own law, and at the edges."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import jaxgrpo as jg
from jaxgrpo.errors import ForecastError
from jaxgrpo.inference import forecast as module


def a_run(rewards, steps=None, **channels):
    steps = np.arange(float(len(rewards))) if steps is None else np.asarray(steps, float)
    return jg.Run(steps, steps, np.asarray(rewards, float), channels=channels)


def rising(n=60, total=100, seed=0, noise=0.05):
    generator = np.random.default_rng(seed)
    steps = np.arange(float(n))
    return a_run(0.3 + 0.5 * (1 - np.exp(-steps / (0.3 * total))) + noise * generator.standard_normal(n))


def shape(index, u):
    if index < len(module._EXPONENTIAL):
        return 1 - np.exp(-u / module._EXPONENTIAL[index])
    return 1 - 1 / np.sqrt(1 + u / module._ALGEBRAIC[index - len(module._EXPONENTIAL)])


def dense(rewards, u, ahead, unit):
    """Weights, means and variances of every component by dense Gaussian conditioning."""
    y = (rewards - rewards[0]) / unit
    everywhere = np.concatenate([u, [ahead]])
    rows = everywhere / np.diff(u).mean()
    log_weight, means, variances = [], [], []
    for drift, share in zip(module._DRIFT, module._DRIFT_PRIOR, strict=True):
        level = module._FREE_LEVEL + drift * np.minimum.outer(rows, rows)
        for sigma in module._NOISE:
            options = [(None, 0.0, 0.0, module._LEVEL_ONLY)]
            count = module._SHAPES * len(module._GAIN) * len(module._UPWARDS)
            options += [
                (i, size, up * size, (1 - module._LEVEL_ONLY) / count)
                for i in range(module._SHAPES)
                for size in module._GAIN
                for up in module._UPWARDS
            ]
            for i, size, centre, prior in options:
                phi = np.zeros(len(everywhere)) if i is None else shape(i, everywhere)
                covariance = sigma**2 * (level + size**2 * np.outer(phi, phi))
                expected = sigma * centre * phi
                seen = covariance[:-1, :-1] + sigma**2 * np.eye(len(u))
                across = covariance[-1, :-1]
                solved = np.linalg.solve(seen, np.stack([y - expected[:-1], across], axis=1))
                likelihood = stats.multivariate_normal(expected[:-1], seen).logpdf(y)
                spread = -0.5 * (np.log(sigma) / module._NOISE_SPREAD) ** 2
                variance = covariance[-1, -1] - across @ solved[:, 1]
                for factor, chance in zip(module._CHANGE, module._CHANGE_PRIOR, strict=True):
                    means.append(expected[-1] + across @ solved[:, 0])
                    variances.append(variance + (factor - 1) * sigma**2 * drift * (rows[-1] - rows[-2]))
                    log_weight.append(likelihood + np.log(share) + spread + np.log(prior * chance))
    weight = np.exp(np.array(log_weight) - np.max(log_weight))
    return weight / weight.sum(), np.array(means), np.array(variances)


def test_mixture_is_that_of_dense_gaussian_algebra():
    run = rising(n=9, total=20)
    ahead = jg.forecast(run, [19.0], bounds=None)
    weight, mean, variance = dense(run.reward, run.steps / 19.0, 1.0, ahead._unit)
    centre = weight @ mean
    std = np.sqrt(weight @ (variance + (mean - centre) ** 2))
    assert ahead.mean[0] == pytest.approx(run.reward[0] + ahead._unit * centre, abs=2e-3 * ahead._unit * std)
    assert ahead.std[0] == pytest.approx(ahead._unit * std, rel=5e-3)
    for q in (0.05, 0.3, 0.5, 0.9):
        value = (ahead.quantile(q)[0] - run.reward[0]) / ahead._unit
        below = weight @ stats.norm.cdf((value - mean) / np.sqrt(variance))
        assert below == pytest.approx(q, abs=2e-3)


def test_padding_changes_nothing():
    runs = [rising(n=n, seed=n) for n in (8, 60, 23)]
    together = jg.forecast_each(runs, [70.0, 120.0])
    for run, one in zip(runs, together, strict=True):
        alone = jg.forecast(run, [70.0, 120.0])
        np.testing.assert_allclose(one.quantile(0.2), alone.quantile(0.2), rtol=1e-12)


@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(6, 40),
    noise=st.sampled_from([0.0, 1e-9, 0.01, 0.3]),
    slope=st.floats(-1.0, 1.0),
)
def test_quantiles_are_ordered_finite_and_inside_the_bounds(seed, n, noise, slope):
    generator = np.random.default_rng(seed)
    rewards = np.clip(0.5 + slope * np.arange(n) / n + noise * generator.standard_normal(n), 0, 1)
    ahead = jg.forecast(a_run(rewards), [n + 1.0, 1.5 * n, 2.0 * n])
    quantiles = np.array([ahead.quantile(q) for q in (0.01, 0.25, 0.5, 0.75, 0.99)])
    assert np.all(np.isfinite(quantiles)) and np.all(np.diff(quantiles, axis=0) >= 0)
    assert quantiles.min() >= 0.0 and quantiles.max() <= 1.0
    assert np.all(np.isfinite(ahead.mean)) and np.all(np.isfinite(ahead.std))
    assert ahead.plateau.lower <= ahead.plateau.value <= ahead.plateau.upper


def test_samples_have_the_moments_of_the_law():
    ahead = jg.forecast(rising(), [60.0, 80.0, 140.0])
    drawn = ahead.sample(jax.random.key(3), 20_000)
    assert drawn.shape == (20_000, 3)
    np.testing.assert_allclose(drawn.mean(axis=0), ahead.mean, atol=4 * ahead.std.max() / np.sqrt(20_000))
    np.testing.assert_allclose(drawn.std(axis=0), ahead.std, rtol=0.05)
    np.testing.assert_array_equal(drawn, ahead.sample(jax.random.key(3), 20_000))


def test_intervals_cover_what_the_prior_itself_draws():
    """300 runs drawn from the model: coverage of the expected reward at the end of the plan."""
    generator = np.random.default_rng(5)
    runs, truth = [], []
    for _ in range(300):
        u = np.arange(100.0) / 99.0
        size = generator.choice(module._GAIN)
        gain = size * (generator.choice(module._UPWARDS) + generator.standard_normal())
        gain = 0.0 if generator.random() < module._LEVEL_ONLY else gain
        drift = np.full(100, generator.choice(module._DRIFT, p=module._DRIFT_PRIOR))
        drift[50:] *= generator.choice(module._CHANGE, p=module._CHANGE_PRIOR)
        course = gain * shape(generator.integers(module._SHAPES), u)
        course += np.cumsum(np.sqrt(drift) * generator.standard_normal(100))
        runs.append(a_run((course + generator.standard_normal(100))[:50]))
        truth.append(course[-1])
    forecasts = jg.forecast_each(runs, [99.0], bounds=None)
    for level in (0.5, 0.9):
        ends = np.array([f.interval(level) for f in forecasts])[..., 0]
        covered = np.mean((ends[:, 0] <= truth) & (truth <= ends[:, 1]))
        assert covered == pytest.approx(level, abs=3.5 * np.sqrt(level * (1 - level) / 300))


def test_a_decay_of_the_learning_rate_ends_the_rise():
    """With the rate going straight to zero by step 80 nothing is to be expected of steps 80 to 200."""
    steps = np.arange(60.0)
    rate = 1e-6 * (1 - steps / 80)
    run = a_run(rising().reward, learning_rate=rate)
    ahead = jg.forecast(run, [80.0, 200.0])
    np.testing.assert_allclose(ahead.quantile(0.9)[0], ahead.quantile(0.9)[1], rtol=1e-3)
    assert any("step 80" in note for note in ahead.assumptions)
    constant = jg.forecast(rising(), [80.0, 200.0])
    assert constant.std[1] > 1.2 * constant.std[0]


def test_learning_that_is_over_is_told_to_stop_and_a_rise_to_go_on():
    flat = a_run(0.8 + 0.02 * np.random.default_rng(1).standard_normal(400))
    over = jg.forecast(flat, horizon=600.0).stop(gain=0.03, within=100, chance=0.05)
    assert over.stop and over.probability < 0.05 and "below 5%" in over.reason
    assert not jg.forecast(rising(noise=0.01), horizon=100.0).stop(gain=0.01, within=20).stop


def test_a_plateau_owns_up_to_the_drift_until_the_horizon():
    """Of what drifts the settled level is no better known than the level at the horizon."""
    walk = 0.5 + 0.02 * np.cumsum(np.random.default_rng(9).standard_normal(120))
    ahead = jg.forecast(a_run(walk + 0.01), horizon=480.0, bounds=None)
    low, high = ahead.interval(0.9)
    assert ahead.plateau.upper - ahead.plateau.lower > 0.95 * (high[-1] - low[-1])
    assert not ahead.plateau.identified


def test_steps_to_and_exceeding_agree_with_a_clear_course():
    steps = np.arange(60.0)
    noise = 1e-3 * np.random.default_rng(2).standard_normal(60)
    ahead = jg.forecast(a_run(0.2 + 0.6 * (1 - np.exp(-steps / 30.0)) + noise), horizon=150.0)
    full = 1 - np.exp(-150.0 / 30.0)
    expected = -30.0 * np.log(1 - 0.95 * full)
    when = ahead.steps_to(0.95)
    assert when.identified and when.value == pytest.approx(expected, rel=0.08)
    assert when.lower <= when.value <= when.upper
    assert ahead.probability_of_exceeding(0.7, 150.0) > 0.95
    assert ahead.probability_of_exceeding(0.9, 150.0) < 0.05


@pytest.mark.parametrize(
    ("rewards", "arguments", "words"),
    [
        ([0.1, 0.2, 0.3], {}, "too few"),
        ([0.1, 0.2, np.nan, 0.3, 0.2, 0.4, 0.5], {}, "finite"),
        (np.linspace(0, 0.5, 9), {"steps": [3.0]}, "before the last step"),
        (np.linspace(0, 0.5, 9), {"horizon": 2.0}, "before the last step"),
        (np.linspace(0, 0.5, 9), {"bounds": (1.0, 0.0)}, "bounds"),
    ],
)
def test_what_cannot_be_forecast_is_refused(rewards, arguments, words):
    with pytest.raises(ForecastError, match=words):
        jg.forecast(a_run(rewards), **arguments)


def test_bounds_are_those_given_or_those_the_rewards_show():
    generator = np.random.default_rng(4)
    assert jg.forecast(rising(), horizon=90.0).bounds == (0.0, 1.0)
    normal = generator.standard_normal(80)
    assert jg.forecast(a_run(normal), horizon=90.0).bounds is None
    floored = jg.forecast(a_run(np.maximum(normal, -1.0)), horizon=90.0)
    assert floored.bounds == (-1.0, np.inf)
    assert floored.quantile(0.001).min() >= -1.0
    assert jg.forecast(a_run(normal), horizon=90.0, bounds=(-5.0, 5.0)).bounds == (-5, 5)


def test_patience_wants_the_rule_to_hold_for_long():
    """After a rise that has just ended the rule holds at the last row, but did not long before."""
    steps = np.arange(160.0)
    noise = 0.005 * np.random.default_rng(6).standard_normal(160)
    run = a_run(0.2 + 0.6 * np.minimum(steps / 60.0, 1.0) + noise)
    rule = dict(gain=0.05, within=30, chance=0.1, horizon=200.0)
    assert jg.stop_rule(run, **rule).stop
    patient = jg.stop_rule(run, patience=120, **rule)
    assert not patient.stop and "of the last 120 rows" in patient.reason
    with pytest.raises(ForecastError, match="patience"):
        jg.stop_rule(run, patience=0)
