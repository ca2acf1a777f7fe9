import dataclasses
import math

import numpy as np
import pytest

import jaxgrpo as jg
from jaxgrpo.report.assessment import assess
from jaxgrpo.theory.cycle import critical_refresh_interval

pytestmark = pytest.mark.usefixtures("x64")


def cycle_matrix(momentum, h, k):
    """Map of (error, update) over a refresh cycle, by carrying out its steps on two basis states."""
    columns = []
    for error, update in ((1.0, 0.0), (0.0, 1.0)):
        stale = error
        for _ in range(k):
            update = momentum * update - h * stale
            error = error + update
        columns.append((error, update))
    return np.array(columns).T


@pytest.mark.parametrize("k", [1, 4])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_figures_are_those_of_the_brute_force_map(momentum, k):
    h = jg.Hyperparameters(1e-3, momentum=momentum, refresh_interval=k, convention="heavy_ball")
    found = assess(h, jg.Task(curvature=2.0, plateau=0.9))
    radius = lambda stiffness: max(abs(np.linalg.eigvals(cycle_matrix(momentum, stiffness, k))))
    assert found.stiffness == pytest.approx(2e-3)
    assert found.spectral_radius == pytest.approx(radius(2e-3), rel=1e-9)
    critical = found.stiffness / (1.0 - found.margin)
    assert radius(critical * 0.999) < 1.0 < radius(critical * 1.001)
    assert found.critical_learning_rate == pytest.approx(critical / 2.0, rel=1e-9)
    assert found.is_upper_bound and found.matched and not found.saturates


@pytest.mark.parametrize("k", [1, 4])
@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("rate", [1e-5, 1e-3, 1e-2])
def test_the_critical_interval_is_where_the_brute_force_map_turns(momentum, rate, k):
    h = jg.Hyperparameters(rate, momentum=momentum, refresh_interval=k, convention="heavy_ball")
    task = jg.Task(curvature=2.0, plateau=0.9)
    found = assess(h, task).critical_refresh_interval
    assert found == pytest.approx(float(critical_refresh_interval(momentum, 2.0 * rate)), rel=1e-9)
    if found < 300:
        radius = lambda interval: max(abs(np.linalg.eigvals(cycle_matrix(momentum, 2.0 * rate, interval))))
        assert radius(math.floor(found)) < 1.0 + 1e-9
        assert radius(math.floor(found) + 1) > 1.0


def test_a_run_that_even_fresh_rollouts_do_not_save_and_one_that_nothing_harms():
    task = jg.Task(curvature=2.0, plateau=0.9)
    assert assess(jg.Hyperparameters(5.0, convention="heavy_ball"), task).critical_refresh_interval == 1.0
    assert math.isinf(assess(jg.Hyperparameters(0.0), task).critical_refresh_interval)


def test_a_softmax_force_is_that_of_its_stiffest_part():
    h = jg.Hyperparameters(1e-3)
    soft = assess(h, jg.Task(curvature=16.0, plateau=0.9, initial_reward=0.2, force=jg.Softmax()))
    hard = assess(h, jg.Task(curvature=2.0, plateau=0.9))
    # The slope of sqrt(p (1 - p)) against the logit is at most 1/8 towards saturation.
    assert soft == dataclasses.replace(hard, saturates=True)


def test_a_measured_sharpness_decides():
    h = jg.Hyperparameters(1e-3, refresh_interval=4)
    task = jg.Task(curvature=1.0, plateau=0.9)
    assert assess(h, task).regime == "overdamped"
    sharp = assess(h, dataclasses.replace(task, sharpness=1e5))
    assert sharp.regime == "unstable" and sharp.margin < 0 and not sharp.is_upper_bound


def test_an_async_lag_is_to_leading_order():
    task = jg.Task(curvature=1.0, plateau=0.9)
    late = assess(jg.Hyperparameters(1e-3, refresh_interval=4, async_lag=1), task)
    assert not late.matched
    assert late.margin < assess(jg.Hyperparameters(1e-3, refresh_interval=4), task).margin
    with pytest.raises(ValueError, match="whole number"):
        assess(jg.Hyperparameters(1e-3, async_lag=0.5), task)


def test_regimes():
    task = jg.Task(curvature=1.0, plateau=0.9)
    slow = assess(jg.Hyperparameters(1e-3, convention="heavy_ball"), task)
    ringing = assess(jg.Hyperparameters(0.05, convention="heavy_ball"), task)
    wild = assess(jg.Hyperparameters(5.0, convention="heavy_ball"), task)
    assert (slow.regime, ringing.regime, wild.regime) == ("overdamped", "underdamped", "unstable")
    assert slow.damping_ratio > 1 > ringing.damping_ratio > 0
    assert math.isinf(slow.period) and 0 < ringing.period < 100
