import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

import jaxgrpo as jg
from jaxgrpo.errors import TuneError
from jaxgrpo.tuning.constraints import binding, largest_rate, make_limits, margin, stable_share
from jaxgrpo.tuning.objective import stack_tasks

# Critical stiffness by simulation of the update rule.
BY_SIMULATION = {
    (0.0, 4, 0): 0.5,
    (0.5, 2, 0): 1.25,
    (0.9, 1, 0): 3.8,
    (0.9, 8, 0): 0.0338593,
    (0.95, 16, 0): 0.00778561,
    (0.9, 2, 1): 0.0416417,
}
FREE = jg.Constraints(rate_extrapolation=None, beyond_stable=None, beyond_noise=None)


def _tasks(curvature, exponent=None):
    tasks = stack_tasks(jg.Task(1.0, 0.9), len(curvature))
    tasks = eqx.tree_at(lambda t: t.curvature, tasks, jnp.asarray(curvature))
    if exponent is not None:
        tasks = eqx.tree_at(
            lambda t: (t.learning_rate_exponent, t.reference_learning_rate),
            tasks,
            (jnp.asarray(exponent), jnp.full(len(curvature), 1e-3)),
            is_leaf=lambda x: x is None,
        )
    return tasks


def _radius(momentum, h, interval):
    """Spectral radius of a cycle, from one multiplied step matrix at a time."""
    # State: error, velocity, error at the refresh.
    step = np.array([[1.0, momentum, -h], [0.0, momentum, -h], [0.0, 0.0, 1.0]])
    refresh = np.array([[1.0, 0, 0], [0, 1.0, 0], [1.0, 0, 0]])
    return np.abs(np.linalg.eigvals(np.linalg.matrix_power(step, interval) @ refresh)).max()


@pytest.mark.parametrize("case", BY_SIMULATION)
def test_largest_rate_is_the_simulated_threshold(case, x64):
    momentum, interval, lag = case
    h = jg.Hyperparameters(
        0.1, momentum=momentum, refresh_interval=interval, async_lag=lag, convention="heavy_ball"
    )
    limits = make_limits(_tasks(np.full(3, 2.0)), [h], FREE)
    # The table of a run with lag is interpolated; the closed form is exact.
    tolerance = 2e-6 if lag == 0 else 0.05
    np.testing.assert_allclose(float(largest_rate(h, limits)), 0.5 * BY_SIMULATION[case], rtol=tolerance)


def test_share_of_stable_draws_is_counted_draw_by_draw(x64):
    rng = np.random.default_rng(0)
    curvature, exponent = np.exp(rng.normal(0, 0.8, 400)), np.exp(rng.normal(0, 0.5, 400))
    h = jg.Hyperparameters(2e-3, momentum=0.9, refresh_interval=4, convention="heavy_ball")
    limits = make_limits(_tasks(30.0 * curvature, exponent), [h], FREE)
    stable = lambda rate: np.mean(
        [
            _radius(0.9, 1e-3 * (rate / 1e-3) ** a * 30.0 * k, 4) < 1
            for k, a in zip(curvature, exponent, strict=True)
        ]
    )
    assert 0.2 < float(stable_share(h, limits)) == stable(2e-3) < 0.99
    allowed = float(largest_rate(h, limits))
    assert stable(0.999 * allowed) >= 0.99 > stable(1.01 * allowed) - 2.0 / 400
    stiffness = 1e-3 * 2.0**exponent * 30.0 * curvature
    np.testing.assert_allclose(np.asarray(margin(h, limits)), 1 - stiffness / 0.0730614, atol=1e-4)


def test_what_runs_have_shown_and_a_measured_sharpness(x64):
    h = jg.Hyperparameters(1e-3, momentum=0.9, refresh_interval=4)
    limits = make_limits(_tasks(np.full(3, 1e-3)), [h], jg.Constraints())
    np.testing.assert_allclose(float(largest_rate(h, limits)), 3e-3, rtol=1e-6)
    longer = jg.Hyperparameters(1e-3, momentum=0.9, refresh_interval=8)
    shown = 3e-3 * BY_SIMULATION[0.9, 8, 0] / 0.0730614
    np.testing.assert_allclose(float(largest_rate(longer, limits)), shown, rtol=1e-5)
    assert binding(longer, limits) is None
    at = eqx.tree_at(lambda x: x.learning_rate, longer, jnp.asarray(shown))
    assert "shown to be stable" in (binding(at, limits) or "")
    small = jg.Hyperparameters(1e-3, momentum=0.9, group_size=2, refresh_interval=4)
    np.testing.assert_allclose(float(largest_rate(small, limits)), 3e-3 * 2 / 8, rtol=1e-6)
    sharp = make_limits(_tasks(np.full(3, 1e-3)), [h], FREE, sharpness=100.0)
    np.testing.assert_allclose(float(largest_rate(h, sharp)), 0.0730614 / 0.1 / 100.0, rtol=1e-5)


def test_damping_ratio_of_the_leading_order(x64):
    h = jg.Hyperparameters(1e-3, momentum=0.8, refresh_interval=3, convention="heavy_ball")
    for asked in (0.3, 1.0):
        constraints = jg.Constraints(
            rate_extrapolation=None, beyond_stable=None, beyond_noise=None, damping_ratio=asked
        )
        rate = float(largest_rate(h, make_limits(_tasks(np.full(2, 5.0)), [h], constraints)))
        at = jg.Hyperparameters(rate, momentum=0.8, refresh_interval=3, convention="heavy_ball")
        ratio = jg.reduce(at, jg.Task(5.0, 1.0), order="leading").damping_ratio
        np.testing.assert_allclose(float(ratio), asked, rtol=1e-5)


@pytest.mark.parametrize(
    "bad", [{"stability_probability": 1.0}, {"beyond_stable": 0.0}, {"largest_batch": -1}]
)
def test_bad_constraints_are_refused(bad):
    with pytest.raises(TuneError, match=next(iter(bad))):
        jg.Constraints(**bad)
