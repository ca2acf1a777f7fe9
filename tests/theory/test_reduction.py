"""From hyperparameters to the oscillator: leading order, and matched to the simulated update."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import theory_reference as reference
from hypothesis import assume, given
from hypothesis import strategies as st

from jaxgrpo.theory.hyperparameters import Hyperparameters
from jaxgrpo.theory.reduction import reduce, step_noise, stiffness
from jaxgrpo.theory.task import Task


def heavy_ball(h, momentum, refresh_interval, **options):
    """Hyperparameters whose stiffness is h for a curvature of one."""
    return Hyperparameters(
        learning_rate=h,
        momentum=momentum,
        refresh_interval=refresh_interval,
        convention="heavy_ball",
        **options,
    )


TASK = dict(curvature=1.0, plateau=0.8, initial_reward=0.2)


@functools.partial(jax.jit, static_argnames="order")
def reduced_curve(hyperparameters, task, times, order="matched"):
    """The oscillator and its mean, compiled once."""
    subject = reduce(hyperparameters, task, order=order)
    return subject, subject.mean(times)


def exists(momentum, h, refresh_interval, staleness=1.0, margin=1e-6):
    """Whether no eigenvalue of the simulated cycle is real and negative (with some room)."""
    eigenvalues = np.linalg.eigvals(reference.cycle_matrix(momentum, h, refresh_interval, staleness))
    return bool(np.all((np.abs(eigenvalues.imag) > margin) | (eigenvalues.real > margin)))


# --- stiffness and noise -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("convention", "dampening"), [("ema", 0.25), ("heavy_ball", 1.0)])
def test_stiffness_and_step_noise(precision, convention, dampening):
    hyperparameters = Hyperparameters(
        learning_rate=2e-3, momentum=0.75, group_size=16, prompts_per_step=4, convention=convention
    )
    task = Task(curvature=30.0, rollout_noise=5.0, **{k: v for k, v in TASK.items() if k != "curvature"})
    assert float(stiffness(hyperparameters, task)) == pytest.approx(dampening * 2e-3 * 30.0, rel=1e-6)
    assert float(stiffness(hyperparameters, task, curvature=jnp.asarray(60.0))) == pytest.approx(
        dampening * 2e-3 * 60.0, rel=1e-6
    )
    # sigma^2 = (c eta)^2 s^2 / (B G)
    assert float(step_noise(hyperparameters, task)) == pytest.approx(
        dampening * 2e-3 * 5.0 / np.sqrt(64.0), rel=1e-6
    )


def test_learning_rate_exponent(x64):
    """h is proportional to eta^a about the reference rate, where it equals the plain stiffness."""
    task = Task(learning_rate_exponent=1.7, reference_learning_rate=1e-5, **{**TASK, "curvature": 1e4})
    plain = Task(**{**TASK, "curvature": 1e4})
    values = [float(stiffness(Hyperparameters(learning_rate=rate), task)) for rate in (1e-5, 3e-5)]
    assert values[0] == pytest.approx(float(stiffness(Hyperparameters(learning_rate=1e-5), plain)), rel=1e-10)
    assert values[1] / values[0] == pytest.approx(3.0**1.7, rel=1e-10)


# --- leading order -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("momentum", "refresh_interval", "async_lag", "staleness"),
    [(0.9, 1, 0, 1.0), (0.9, 4, 0, 1.0), (0.5, 4, 1, 1.0), (0.0, 8, 0, 0.5), (0.95, 2, 2, 0.3)],
)
def test_leading_order_constants(precision, momentum, refresh_interval, async_lag, staleness):
    h = 0.01
    hyperparameters = heavy_ball(
        h,
        momentum,
        refresh_interval,
        async_lag=async_lag,
        staleness=staleness,
        group_size=4,
        prompts_per_step=2,
    )
    subject = reduce(hyperparameters, Task(rollout_noise=3.0, **TASK), order="leading")
    lag = staleness * np.mean([async_lag * refresh_interval + i for i in range(refresh_interval)])
    damping = (1 - momentum) - h * lag
    variance = (h * 3.0) ** 2 / 8 / (2 * damping * h)
    tolerance = 1e-4 if precision == "float32" else 1e-11
    assert float(subject.mass) == pytest.approx(momentum, rel=tolerance)
    assert float(subject.damping) == pytest.approx(damping, rel=tolerance)
    assert float(subject.stiffness) == pytest.approx(h, rel=tolerance)
    assert float(subject.temperature) == pytest.approx(variance * h, rel=tolerance)
    assert float(subject.stationary_variance) == pytest.approx(variance, rel=tolerance)
    assert float(subject.plateau) == pytest.approx(0.8)
    assert float(subject.mean(jnp.asarray(0.0))) == pytest.approx(0.2)


def test_interval_lag_takes_the_whole_interval_for_the_lag(x64):
    subject = reduce(heavy_ball(0.01, 0.9, 4), Task(**TASK), order="leading", lag="interval")
    assert float(subject.damping) == pytest.approx(0.1 - 0.01 * 4, rel=1e-12)


def test_massless_without_momentum(x64):
    subject = reduce(heavy_ball(0.01, 0.0, 1), Task(**TASK), order="leading")
    assert float(subject.mass) == 0.0
    times = jnp.arange(0.0, 500.0, 7.0)
    np.testing.assert_allclose(subject.mean(times), 0.8 - 0.6 * np.exp(-0.01 * times), atol=1e-12)


@pytest.mark.parametrize("order", ["leading", "matched"])
def test_group_size_moves_nothing_but_the_temperature(x64, order):
    task = Task(rollout_noise=2.0, **TASK)
    small, large = (reduce(heavy_ball(0.02, 0.8, 4, group_size=g), task, order=order) for g in (4, 32))
    for name in ("mass", "damping", "stiffness", "plateau", "damping_ratio", "timescale", "period"):
        assert float(getattr(small, name)) == float(getattr(large, name)), name
    assert float(small.temperature) / float(large.temperature) == pytest.approx(8.0, rel=1e-12)


@pytest.mark.parametrize("refresh_interval", [1, 4])
@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.8])
def test_leading_order_becomes_exact_with_order_one(x64, momentum, refresh_interval):
    """At fixed h t the leading-order curve departs from the simulated one in proportion to h."""
    sizes, errors = [8e-3, 4e-3, 2e-3, 1e-3], []
    for h in sizes:
        steps = int(round(4.0 * (1 - momentum) / h / refresh_interval)) * refresh_interval
        simulated = 0.8 + reference.run_linear(momentum, h, refresh_interval, steps, start=-0.6)
        first = int(0.1 * steps)
        times = np.linspace(first, steps, 60).astype(int) // refresh_interval * refresh_interval
        _, curve = reduced_curve(
            heavy_ball(h, momentum, refresh_interval),
            Task(**TASK),
            jnp.asarray(times, dtype=float),
            order="leading",
        )
        errors.append(np.abs(np.asarray(curve) - simulated[times]).max())
    assert reference.slope(sizes, errors) == pytest.approx(1.0, abs=0.15)


# --- matched -----------------------------------------------------------------------------------------------


def assert_matched(momentum, h, refresh_interval, staleness=1.0, refreshes=40, tolerance=1e-10):
    steps = refreshes * refresh_interval
    simulated = reference.run_linear(momentum, h, refresh_interval, steps, start=-0.6, staleness=staleness)
    at = np.arange(0, steps + 1, refresh_interval)
    expected = 0.8 + simulated[at]
    subject, got = reduced_curve(
        heavy_ball(h, momentum, refresh_interval, staleness=staleness),
        Task(**TASK),
        jnp.asarray(at, dtype=float),
    )
    scale = np.maximum.accumulate(np.maximum(np.abs(simulated[at]), 1.0))
    assert np.abs((np.asarray(got) - expected) / scale).max() < tolerance
    return subject


@reference.PROPERTY
@given(
    momentum=st.floats(1e-3, 0.98) | st.sampled_from([0.5, 0.9, 0.95]),
    refresh_interval=st.integers(1, 16),
    fraction=st.floats(1e-3, 1.05),
    staleness=st.sampled_from([1.0, 1.0, 0.5, 0.0, -0.84]),
)
def test_matched_oscillator_passes_through_every_refresh(
    x64, momentum, refresh_interval, fraction, staleness
):
    h = fraction * min(reference.critical_stiffness(momentum, refresh_interval, staleness), 1.0)
    assume(exists(momentum, h, refresh_interval, staleness))
    subject = assert_matched(momentum, h, refresh_interval, staleness)
    # Eigenvalues of the simulated cycle fix k/m and gamma/m; the mass is scaled so that k = h.
    logs = np.log(
        np.linalg.eigvals(reference.cycle_matrix(momentum, h, refresh_interval, staleness)).astype(complex)
    )
    rates = logs / refresh_interval
    assert float(subject.stiffness) == pytest.approx(h, rel=1e-12)
    assert float(subject.stiffness / subject.mass) == pytest.approx(np.prod(rates).real, rel=1e-5)
    assert float(subject.damping / subject.mass) == pytest.approx(-np.sum(rates).real, rel=1e-5)


@pytest.mark.parametrize("refresh_interval", [1, 2, 4, 8])
@pytest.mark.parametrize("h_times_k", [1e-3, 0.1, 0.9])
def test_matched_oscillator_without_momentum(x64, refresh_interval, h_times_k):
    subject = assert_matched(0.0, h_times_k / refresh_interval, refresh_interval)
    assert float(subject.mass) == pytest.approx(0.0, abs=1e-12)
    assert subject.regime_name == "overdamped"


@pytest.mark.parametrize("shift", [-1e-6, -1e-12, 0.0, 1e-12, 1e-6])
@pytest.mark.parametrize("refresh_interval", [1, 4])
@pytest.mark.parametrize("momentum", [0.3, 0.9])
def test_matched_oscillator_at_critical_damping(x64, momentum, refresh_interval, shift):
    onset = reference.oscillation_onset(momentum, refresh_interval)
    assert_matched(momentum, onset * (1 + shift), refresh_interval)


@pytest.mark.parametrize(
    ("momentum", "h", "refresh_interval"), [(0.5, 2.95, 1), (0.0, 1.5, 1), (0.0, 0.4, 4), (0.5, 1.24, 4)]
)
def test_no_matched_oscillator_for_a_zig_zag(x64, momentum, h, refresh_interval):
    assert not exists(momentum, h, refresh_interval)
    hyperparameters = heavy_ball(h, momentum, refresh_interval)
    with pytest.raises(Exception, match="(?i)matched|zig|leading"):
        jax.block_until_ready(reduce(hyperparameters, Task(**TASK)).mass)
    reduce(hyperparameters, Task(**TASK), throw=False)
    reduce(hyperparameters, Task(**TASK), order="leading")


def test_no_matched_oscillator_raises_under_jit(x64):
    hyperparameters = heavy_ball(1.5, 0.0, 1)
    reducer = jax.jit(lambda hp, task: reduce(hp, task).mean(jnp.asarray(3.0)))
    with pytest.raises(Exception, match="(?i)matched|zig|leading"):
        jax.block_until_ready(reducer(hyperparameters, Task(**TASK)))


@pytest.mark.parametrize("refresh_interval", [1, 4])
def test_matched_and_leading_agree_for_small_stiffness(x64, refresh_interval):
    """The slow rate k/gamma, and the stationary variance, agree with order one in h."""
    sizes, rates, variances = [4e-3, 2e-3, 1e-3], [], []
    for h in sizes:
        hyperparameters = heavy_ball(h, 0.6, refresh_interval)
        task = Task(rollout_noise=1.0, **TASK)
        leading, matched = (reduce(hyperparameters, task, order=order) for order in ("leading", "matched"))
        rates.append(abs(float(matched.timescale / leading.timescale) - 1.0))
        exact = reference.stationary_covariance(0.6, h, refresh_interval, h / np.sqrt(8.0))[0, 0]
        variances.append(abs(float(matched.stationary_variance) / exact - 1.0))
    # Faster than order one is welcome: the matched temperature may carry the exact variance.
    assert reference.slope(sizes, rates) > 0.8
    assert variances[-1] < 0.02


def test_unknown_order_and_lag_are_refused_by_name(x64):
    with pytest.raises(Exception, match="order"):
        reduce(heavy_ball(0.01, 0.9, 1), Task(**TASK), order="second")
    with pytest.raises(Exception, match="lag"):
        reduce(heavy_ball(0.01, 0.9, 1), Task(**TASK), order="leading", lag="half")


def test_no_matched_oscillator_with_an_asynchronous_lag(x64):
    """With d > 0 the cycle has more than two modes; no oscillator passes through all of them."""
    with pytest.raises(Exception, match="(?i)async|lag|matched"):
        jax.block_until_ready(reduce(heavy_ball(0.01, 0.9, 4, async_lag=1), Task(**TASK)).mass)
