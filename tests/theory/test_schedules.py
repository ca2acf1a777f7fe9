"""Learning-rate schedules against plain formulas, and the learning-rate time."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import theory_reference as reference

from jaxgrpo.theory.hyperparameters import Hyperparameters
from jaxgrpo.theory.schedules import constant, cosine, from_name, learning_rate_time, linear, tabulated
from jaxgrpo.theory.task import Task
from jaxgrpo.theory.trajectory import mean_field


def plain_linear(t, peak, total, warmup=0, end=0.0):
    """Up a ramp from zero over the warm-up, then down a line that reaches the end value at `total`."""
    if t < warmup:
        return peak * t / warmup
    return end + (peak - end) * max(0.0, (total - t) / max(1, total - warmup))


def plain_cosine(t, peak, total, warmup=0, end=0.0):
    if t < warmup:
        return peak * t / warmup
    progress = min(1.0, (t - warmup) / max(1, total - warmup))
    return end + (peak - end) * 0.5 * (1.0 + math.cos(math.pi * progress))


@pytest.mark.parametrize(("name", "plain"), [("linear", plain_linear), ("cosine", plain_cosine)])
@pytest.mark.parametrize(
    ("total", "warmup", "end"), [(100, 0, 0.0), (100, 10, 0.0), (80, 7, 1e-7), (50, 49, 0.0)]
)
def test_linear_and_cosine(precision, name, plain, total, warmup, end):
    schedule = {"linear": linear, "cosine": cosine}[name](2e-6, total, warmup_steps=warmup, end=end)
    steps = jnp.arange(total + 20)
    values = np.asarray(schedule(steps))
    expected = [plain(t, 2e-6, total, warmup, end) for t in range(total + 20)]
    np.testing.assert_allclose(values, expected, atol=2e-6 * (1e-6 if precision == "float32" else 1e-12))
    np.testing.assert_allclose(float(schedule(jnp.asarray(warmup))), 2e-6, rtol=1e-6)


def test_constant(precision):
    schedule = constant(3e-6)
    for t in (0, 1, 10_000):
        assert float(schedule(jnp.asarray(t))) == pytest.approx(3e-6, rel=1e-6)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("linear", lambda t: plain_linear(t, 1e-6, 60, 6)),
        ("cosine", lambda t: plain_cosine(t, 1e-6, 60, 6)),
        ("constant_with_warmup", lambda t: 1e-6 * min(1.0, t / 6)),
    ],
)
def test_by_the_names_of_transformers(x64, name, expected):
    schedule = from_name(name, 1e-6, 60, 6)
    got = [float(schedule(jnp.asarray(t))) for t in range(66)]
    np.testing.assert_allclose(got, [expected(t) for t in range(66)], atol=1e-18)


def test_the_name_constant_has_no_warm_up(x64):
    """transformers' `constant` ignores the warm-up."""
    schedule = from_name("constant", 1e-6, 60, 6)
    assert [float(schedule(jnp.asarray(t))) for t in (0, 3, 100)] == pytest.approx([1e-6] * 3)


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="linear"):
        from_name("liner", 1e-6, 60, 6)


def test_tabulated(precision):
    steps, values = np.asarray([0.0, 10.0, 20.0]), np.asarray([1e-6, 3e-6, 2e-6])
    schedule = tabulated(steps, values)
    got = [float(schedule(jnp.asarray(t))) for t in (0, 10, 20)]
    assert got == pytest.approx([1e-6, 3e-6, 2e-6], rel=1e-5)
    assert 1e-6 * 0.999 <= float(schedule(jnp.asarray(5))) <= 3e-6 * 1.001
    assert float(schedule(jnp.asarray(500))) == pytest.approx(2e-6, rel=1e-5)


@pytest.mark.parametrize("name", ["linear", "cosine", "constant_with_warmup"])
def test_learning_rate_time_is_the_sum_of_the_rates_so_far(x64, name):
    schedule = from_name(name, 1e-2, 50, 5)
    rates = [float(schedule(jnp.asarray(t))) for t in range(70)]
    steps = np.asarray([0, 1, 2, 5, 17, 50, 69])
    got = learning_rate_time(schedule, steps)
    np.testing.assert_allclose(got, [sum(rates[: int(t)]) for t in steps], rtol=1e-10, atol=1e-15)


def test_only_the_learning_rate_time_matters_in_the_overdamped_limit(x64):
    """R = R* - (R* - R0) exp(-kappa s(t)): the error falls with order one in the rate."""
    task = Task(curvature=1.0, plateau=0.9, initial_reward=0.1)
    errors, peaks = [], [0.04, 0.02, 0.01]
    for peak in peaks:
        total = int(round(4.0 / peak))
        schedule = linear(1.0, total, warmup_steps=total // 10)
        steps = jnp.arange(0.0, total + 1, total // 20)
        got = mean_field(Hyperparameters(learning_rate=peak, momentum=0.0), task, steps, schedule)
        limit = 0.9 - 0.8 * jnp.exp(-peak * learning_rate_time(schedule, steps))
        errors.append(float(jnp.abs(got - limit).max()))
    assert reference.slope(peaks, errors) == pytest.approx(1.0, abs=0.1)


def test_a_linear_decay_makes_a_plateau_of_its_own(x64):
    """After the decay has ended the reward stands still below its plateau."""
    task = Task(curvature=1.0, plateau=0.9, initial_reward=0.1)
    schedule = linear(1.0, 100)
    got = mean_field(
        Hyperparameters(learning_rate=0.01, momentum=0.0), task, jnp.asarray([100.0, 200.0]), schedule
    )
    assert float(got[0]) == pytest.approx(float(got[1]), abs=1e-12)
    assert float(got[0]) < 0.5


def test_differentiable_in_the_peak(x64):
    task = Task(curvature=1.0, plateau=0.9, initial_reward=0.1)

    def reward(peak):
        schedule = cosine(1.0, 60, warmup_steps=6)
        hyperparameters = Hyperparameters(learning_rate=peak, momentum=0.8)
        return mean_field(hyperparameters, task, jnp.asarray([50.0]), schedule)[0]

    numeric = reference.central_difference(lambda x: float(reward(jnp.asarray(x))), 0.03, 3e-5)
    assert float(jax.grad(reward)(jnp.asarray(0.03))) == pytest.approx(numeric, rel=1e-6)


@pytest.mark.parametrize("total", [0, -5])
def test_total_steps_are_refused_by_name(total):
    for make in (linear, cosine):
        with pytest.raises(ValueError, match="total_steps"):
            make(1e-6, total)
