"""Mean and spread of the reward's course against the update rule, step by step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import theory_reference as reference
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import interpolate, special

from jaxgrpo.theory.forces import Harmonic, KLAnchored, MixedDifficulty, Softmax
from jaxgrpo.theory.hyperparameters import Hyperparameters
from jaxgrpo.theory.schedules import cosine, linear
from jaxgrpo.theory.task import Task
from jaxgrpo.theory.trajectory import mean_field, predict

STEPS = np.array([0, 1, 2, 3, 7, 8, 20, 41, 42, 100])


def f(value):
    return jnp.asarray(float(value))


@settings(reference.PROPERTY, max_examples=10)
@given(
    momentum=st.just(0.0) | st.floats(0.0, 0.97),
    refresh_interval=st.sampled_from([1, 2, 5, 9]),
    async_lag=st.sampled_from([0, 1, 3]),
    staleness=st.sampled_from([1.0, 1.0, 0.5, 0.0, -0.84, 2.33]),
    stiffness=st.floats(1e-4, 0.3),
    convention=st.sampled_from(["ema", "heavy_ball"]),
)
def test_harmonic_mean(x64, momentum, refresh_interval, async_lag, staleness, stiffness, convention):
    dampening = 1 - momentum if convention == "ema" else 1.0
    hyperparameters = Hyperparameters(
        learning_rate=stiffness / dampening / 3.0,
        momentum=momentum,
        refresh_interval=refresh_interval,
        async_lag=async_lag,
        staleness=staleness,
        convention=convention,
    )
    task = Task(curvature=3.0, plateau=0.8, initial_reward=0.2)
    errors = reference.run_linear(
        momentum,
        stiffness,
        refresh_interval,
        int(STEPS[-1]),
        start=-0.6,
        staleness=staleness,
        async_lag=async_lag,
    )[STEPS]
    scale = np.maximum.accumulate(np.maximum(np.abs(errors), 1.0))
    for got in (
        mean_field(hyperparameters, task, jnp.asarray(STEPS, dtype=float)),
        predict(hyperparameters, task, jnp.asarray(STEPS, dtype=float)).mean,
    ):
        np.testing.assert_allclose((np.asarray(got) - 0.8) / scale, errors / scale, atol=1e-10)


@settings(reference.PROPERTY, max_examples=8)
@given(
    momentum=st.just(0.0) | st.floats(0.0, 0.97),
    batches=st.sampled_from([1, 2, 5]),
    async_lag=st.integers(0, 2),
    staleness=st.sampled_from([1.0, 1.0, 0.5, 0.0]),
    stiffness=st.floats(1e-4, 0.1),
)
def test_harmonic_spread(x64, momentum, batches, async_lag, staleness, stiffness):
    """At every step, within a cycle too."""
    check_harmonic_spread(momentum, batches, 1, async_lag, staleness, stiffness)


@pytest.mark.parametrize("staleness", [1.0, 0.5])
@pytest.mark.parametrize(("batches", "epochs", "async_lag"), [(2, 2, 0), (1, 3, 1)])
def test_harmonic_spread_with_reused_minibatches(x64, batches, epochs, async_lag, staleness):
    """The noise of a reused mini-batch repeats, within the cycle as well."""
    check_harmonic_spread(0.8, batches, epochs, async_lag, staleness, 0.05)


def check_harmonic_spread(momentum, batches, epochs, async_lag, staleness, stiffness):
    hyperparameters = Hyperparameters(
        learning_rate=stiffness,
        momentum=momentum,
        group_size=4,
        prompts_per_step=3,
        refresh_interval=batches * epochs,
        epochs_per_rollout=epochs,
        async_lag=async_lag,
        staleness=staleness,
        convention="heavy_ball",
    )
    task = Task(curvature=1.0, plateau=0.8, initial_reward=0.2, rollout_noise=2.0)
    expected = np.sqrt(
        reference.transient_variance(
            momentum,
            stiffness,
            batches * epochs,
            stiffness * 2.0 / np.sqrt(12.0),
            int(STEPS[-1]),
            epochs,
            staleness,
            async_lag,
        )
    )[STEPS]
    got = predict(hyperparameters, task, jnp.asarray(STEPS, dtype=float)).std
    np.testing.assert_allclose(got, expected, atol=1e-9 * expected.max())


def test_spread_settles_at_the_stationary_variance(x64):
    for refresh_interval, epochs in ((1, 1), (4, 1), (6, 3)):
        hyperparameters = Hyperparameters(
            learning_rate=0.05,
            momentum=0.8,
            refresh_interval=refresh_interval,
            epochs_per_rollout=epochs,
            convention="heavy_ball",
        )
        task = Task(curvature=1.0, plateau=0.8, rollout_noise=2.0)
        noise = 0.05 * 2.0 / np.sqrt(8.0)
        expected = reference.stationary_covariance(0.8, 0.05, refresh_interval, noise, epochs)[0, 0]
        got = predict(hyperparameters, task, jnp.asarray([float(500 * refresh_interval)])).std
        assert float(got[0]) ** 2 == pytest.approx(expected, rel=1e-8)


SCHEDULES = {
    "linear": lambda: linear(1.0, 90, warmup_steps=10),
    "cosine": lambda: cosine(1.0, 120, warmup_steps=5, end=0.1),
}


@pytest.mark.parametrize(
    ("momentum", "refresh_interval", "epochs", "async_lag", "schedule"),
    [(0.9, 1, 1, 0, "linear"), (0.9, 4, 1, 0, "cosine"), (0.0, 4, 1, 0, "linear"), (0.9, 4, 2, 1, "cosine")],
)
def test_schedule_is_a_product_of_changing_maps(x64, momentum, refresh_interval, epochs, async_lag, schedule):
    rates = SCHEDULES[schedule]()
    plain = [0.05 * float(rates(jnp.asarray(float(t)))) for t in range(101)]
    dampening = 1 - momentum
    hyperparameters = Hyperparameters(
        learning_rate=0.05,
        momentum=momentum,
        group_size=4,
        refresh_interval=refresh_interval,
        epochs_per_rollout=epochs,
        async_lag=async_lag,
    )
    task = Task(curvature=0.8, plateau=0.8, initial_reward=0.2, rollout_noise=1.5)
    errors = reference.run_linear(
        momentum,
        lambda t: dampening * plain[t] * 0.8,
        refresh_interval,
        100,
        start=-0.6,
        async_lag=async_lag,
    )
    variance = reference.transient_variance(
        momentum,
        lambda t: dampening * plain[t] * 0.8,
        refresh_interval,
        lambda t: dampening * plain[t] * 1.5 / 2.0,
        100,
        epochs,
        async_lag=async_lag,
    )
    steps = jnp.asarray(STEPS, dtype=float)
    np.testing.assert_allclose(
        mean_field(hyperparameters, task, steps, rates), 0.8 + errors[STEPS], atol=1e-11
    )
    prediction = predict(hyperparameters, task, steps, rates)
    np.testing.assert_allclose(prediction.mean, 0.8 + errors[STEPS], atol=1e-11)
    np.testing.assert_allclose(prediction.std, np.sqrt(variance[STEPS]), atol=1e-10)


def push_of(normalisation, group_size, beta=0.0):
    """Plain force on logits over the curvature, with a KL anchor at the logit -0.5."""
    grid = np.linspace(-30, 30, 60001)
    p = reference.sigmoid(grid)
    if normalisation == "mean":
        table = p * (1 - p) * (1 - 1 / group_size)
    else:
        share = np.arange(group_size + 1) / group_size
        weights = np.array([special.comb(group_size, k) for k in range(group_size + 1)])
        probabilities = (
            weights * p[:, None] ** (share * group_size) * (1 - p[:, None]) ** ((1 - share) * group_size)
        )
        table = probabilities @ np.sqrt(share * (1 - share))
    table = table - beta * (grid + 0.5) * p * (1 - p)
    return interpolate.CubicSpline(grid, table)


@pytest.mark.parametrize(
    ("kind", "normalisation", "momentum", "refresh_interval", "async_lag", "staleness", "scheduled"),
    [
        ("softmax", "mean", 0.0, 1, 0, 1.0, False),
        ("softmax", "std", 0.9, 4, 0, 1.0, True),
        ("mixed", "std", 0.9, 4, 2, 1.0, True),
        ("mixed", "mean", 0.6, 5, 1, 0.5, False),
        ("anchored", "std", 0.9, 4, 1, 0.0, False),
        ("anchored mixed", "mean", 0.9, 4, 1, 1.0, True),
        ("anchored mixed", "std", 0.6, 5, 0, -0.84, False),
    ],
)
def test_every_force_follows_the_rule(
    x64, kind, normalisation, momentum, refresh_interval, async_lag, staleness, scheduled
):
    group_size, floor, ceiling, start = 4, 0.05, 0.95, 0.3
    base = (
        MixedDifficulty(spread=1.2, normalisation=normalisation, floor=floor, nodes=9)
        if "mixed" in kind
        else Softmax(normalisation=normalisation, floor=floor)
    )
    force = KLAnchored(base, beta=0.4, reference=-0.5) if "anchored" in kind else base
    rates = linear(1.0, 80, warmup_steps=9) if scheduled else None
    plain = [0.2 * (float(rates(jnp.asarray(float(t)))) if rates is not None else 1.0) for t in range(100)]
    states, _ = reference.run_update(
        push_of(normalisation, group_size, 0.4 if "anchored" in kind else 0.0),
        np.asarray(force.initial_state(f(start), f(ceiling))),
        momentum=momentum,
        step_size=lambda t: (1 - momentum) * plain[t],
        refresh_interval=refresh_interval,
        steps=100,
        staleness=staleness,
        async_lag=async_lag,
    )
    hyperparameters = Hyperparameters(
        learning_rate=0.2,
        momentum=momentum,
        group_size=group_size,
        refresh_interval=refresh_interval,
        async_lag=async_lag,
        staleness=staleness,
    )
    task = Task(curvature=1.0, plateau=ceiling, initial_reward=start, force=force, rollout_noise=0.5)
    expected = np.array([float(force.reward(jnp.asarray(z), f(ceiling))) for z in states[STEPS]])
    assert np.ptp(expected) > 0.05
    steps = jnp.asarray(STEPS, dtype=float)
    # The expected spread may be tabulated to a few parts in a million.
    tolerance = 1e-10 if normalisation == "mean" else 2e-6
    np.testing.assert_allclose(mean_field(hyperparameters, task, steps, rates), expected, atol=tolerance)
    prediction = predict(hyperparameters, task, steps, rates)
    np.testing.assert_allclose(prediction.mean, expected, atol=tolerance)
    assert np.all(np.isfinite(prediction.std)) and np.all(np.asarray(prediction.std) >= 0)
    assert float(prediction.std[0]) == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("normalisation", ["std", "mean"])
def test_spread_of_a_softmax_run_for_weak_noise(x64, normalisation):
    """Weak noise on the logit, by sampling the rule; the reward's spread follows to first order."""
    generator = np.random.default_rng(5)
    noise, rate, runs = 0.3, 0.1, 20_000
    grid = np.linspace(-6, 10, 4001)
    table = push_of(normalisation, 4)(grid)
    states, _ = reference.run_update(
        lambda z: np.interp(z, grid, table),
        np.full(runs, np.log(0.3 / 0.7)),
        momentum=0.5,
        step_size=0.5 * rate,
        refresh_interval=2,
        steps=60,
        noise=lambda t: 0.5 * rate * noise / 2.0 * generator.standard_normal(runs),
    )
    task = Task(
        curvature=1.0, plateau=1.0, initial_reward=0.3, rollout_noise=noise, force=Softmax(normalisation)
    )
    hyperparameters = Hyperparameters(learning_rate=rate, momentum=0.5, group_size=4, refresh_interval=2)
    steps = np.array([1, 2, 10, 31, 60])
    got = predict(hyperparameters, task, jnp.asarray(steps, dtype=float)).std
    np.testing.assert_allclose(got, reference.sigmoid(states[steps]).std(axis=1), rtol=0.03)


def test_sampled_runs_scatter_as_predicted(x64):
    """A harmonic run with reused mini-batches, sampled: mean and spread at every kind of step."""
    generator = np.random.default_rng(17)
    runs, batches = 20_000, 2
    draws = generator.standard_normal((30, batches, runs))
    errors = reference.run_linear(
        0.7,
        0.06,
        4,
        100,
        start=np.full(runs, -0.6),
        noise=lambda t: 0.02 * draws[t // 4, (t % 4) % batches],
    )
    hyperparameters = Hyperparameters(
        learning_rate=0.06,
        momentum=0.7,
        group_size=4,
        refresh_interval=4,
        epochs_per_rollout=2,
        convention="heavy_ball",
    )
    task = Task(curvature=1.0, plateau=0.8, initial_reward=0.2, rollout_noise=0.04 / 0.06)
    prediction = predict(hyperparameters, task, jnp.asarray(STEPS, dtype=float))
    np.testing.assert_allclose(prediction.mean, 0.8 + errors[STEPS].mean(axis=1), atol=5e-3)
    np.testing.assert_allclose(prediction.std, errors[STEPS].std(axis=1), rtol=0.02, atol=1e-12)


def test_steps_are_kept_and_may_be_any_selection(precision):
    hyperparameters = Hyperparameters(learning_rate=0.05, refresh_interval=4)
    task = Task(curvature=1.0, plateau=0.8, initial_reward=0.2, rollout_noise=1.0)
    prediction = predict(hyperparameters, task, np.asarray([0, 5, 17]))
    assert [int(s) for s in prediction.steps] == [0, 5, 17]
    assert prediction.mean.shape == prediction.std.shape == (3,)
    assert prediction.mean.dtype == prediction.std.dtype == jnp.dtype(precision)
    whole = predict(hyperparameters, task, np.arange(18))
    tolerance = 1e-5 if precision == "float32" else 1e-12
    np.testing.assert_allclose(prediction.mean, whole.mean[jnp.asarray([0, 5, 17])], rtol=tolerance)
    np.testing.assert_allclose(prediction.std, whole.std[jnp.asarray([0, 5, 17])], rtol=tolerance, atol=1e-9)


def test_unsorted_and_repeated_steps(x64):
    hyperparameters = Hyperparameters(learning_rate=0.05, refresh_interval=4)
    task = Task(curvature=1.0, plateau=0.8, initial_reward=0.2, rollout_noise=1.0)
    shuffled = predict(hyperparameters, task, jnp.asarray([17.0, 0.0, 5.0, 5.0]))
    ordered = predict(hyperparameters, task, jnp.asarray([0.0, 5.0, 17.0]))
    np.testing.assert_allclose(shuffled.mean, ordered.mean[jnp.asarray([2, 0, 1, 1])], rtol=1e-12)
    np.testing.assert_allclose(shuffled.std, ordered.std[jnp.asarray([2, 0, 1, 1])], rtol=1e-12)


@pytest.mark.parametrize("force", [Harmonic(), MixedDifficulty(spread=1.0)])
def test_passes_through_jit_and_vmap(x64, force):
    task = Task(curvature=1.0, plateau=0.8, initial_reward=0.2, rollout_noise=1.0, force=force)
    steps = jnp.asarray([0.0, 4.0, 21.0])

    def course(rate):
        hyperparameters = Hyperparameters(learning_rate=rate, refresh_interval=4)
        return predict(hyperparameters, task, steps).mean

    rates = jnp.asarray([0.01, 0.05])
    together = jax.jit(jax.vmap(course))(rates)
    np.testing.assert_allclose(together, [course(rate) for rate in rates], rtol=1e-12)


@pytest.mark.parametrize("steps", [[-1.0, 2.0], [float("nan"), 1.0], [[1.0, 2.0]]])
@pytest.mark.parametrize("function", [mean_field, predict])
def test_impossible_steps_are_refused(x64, function, steps):
    hyperparameters = Hyperparameters(learning_rate=0.05)
    task = Task(curvature=1.0, plateau=0.8)
    with pytest.raises(Exception, match="steps"):
        function(hyperparameters, task, jnp.asarray(steps))
