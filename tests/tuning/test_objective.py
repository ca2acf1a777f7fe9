import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxgrpo as jg
from jaxgrpo.tuning.objective import (
    CostToReach,
    Course,
    course,
    design_of,
    final_reward,
    prepare,
    schedule_factor,
    stack_tasks,
)


def by_hand(task, h, steps, force, z, noise=0.0, warmup=0.0, final_rate=1.0):
    """The update rule as it is written, a step at a time, and the variance of its linearisation (harmonic only)."""
    eta, mu = float(h.learning_rate), float(h.momentum)
    k, lag = int(h.refresh_interval), int(h.async_lag)
    gain = (1 - mu) * eta * float(task.curvature)
    sigma = (1 - mu) * eta * noise / math.sqrt(float(h.rollouts_per_step))
    u, seen, trace = np.zeros_like(z), [z] * (lag + 1), [z]
    size = 2 + lag + 1
    covariance = np.zeros((size, size))
    for t in range(steps):
        if t % k == 0:
            seen = [z, *seen[:-1]]
            shift = np.zeros((size, size))
            shift[0, 0] = shift[1, 1] = shift[2, 0] = 1.0
            for i in range(3, size):
                shift[i, i - 1] = 1.0
            covariance = shift @ covariance @ shift.T
            middle = (t + 0.5 * k) / steps
        factor = float(schedule_factor(jnp.asarray(middle), jnp.asarray(warmup), jnp.asarray(final_rate)))
        u = mu * u + gain * factor * force(seen[-1])
        z = z + u
        matrix = np.eye(size)
        matrix[1] = 0.0
        matrix[1, 1], matrix[1, -1] = mu, -gain
        matrix[0] = matrix[1] + np.eye(size)[0]
        covariance = matrix @ covariance @ matrix.T
        covariance[:2, :2] += sigma**2
        trace.append(z)
    return np.array(trace), math.sqrt(covariance[0, 0])


@pytest.fixture(scope="module")
def harmonic():
    """A harmonic run with lag, noise and a schedule: far more cycles than strides, and the run by hand."""
    with jax.enable_x64(True):
        task = jg.Task(0.4, 0.9, 0.2, rollout_noise=0.5)
        h = jg.Hyperparameters(
            0.02, momentum=0.8, refresh_interval=3, prompts_per_step=4, group_size=2, async_lag=1
        )
        ensemble = prepare(stack_tasks(task, 2), h)
        follow = jax.jit(
            lambda total, warmup, final: course(design_of(h, warmup, final), ensemble, total, 24)
        )
        yield task, h, follow


def test_linear_force_is_followed_exactly_in_long_strides(harmonic, x64):
    task, h, follow = harmonic
    steps, curves, ends, stds = follow(jnp.asarray(300.0), jnp.asarray(0.0), jnp.asarray(1.0))
    trace, std = by_hand(task, h, 300, lambda z: 0.9 - z, np.array(0.2), noise=0.5)
    at = np.round(np.asarray(steps)).astype(int)
    np.testing.assert_allclose(np.asarray(curves[0]), trace[at], atol=1e-12)
    np.testing.assert_allclose(float(ends[1]), trace[-1], atol=1e-12)
    np.testing.assert_allclose(float(stds[0]), std, rtol=1e-9)


def test_schedule_is_followed(harmonic, x64):
    task, h, follow = harmonic
    # One cycle a stride: the factor is that of the middle of each cycle.
    steps, curves, _, _ = follow(jnp.asarray(60.0), jnp.asarray(0.2), jnp.asarray(0.1))
    trace, _ = by_hand(task, h, 60, lambda z: 0.9 - z, np.array(0.2), warmup=0.2, final_rate=0.1)
    at = np.round(np.asarray(steps)).astype(int)
    np.testing.assert_allclose(np.asarray(curves[0]), trace[at], atol=1e-12)
    assert float(schedule_factor(jnp.asarray(1.0), jnp.asarray(0.2), jnp.asarray(0.1))) == pytest.approx(0.1)


def test_softmax_force_converges_at_second_order(x64):
    group = 5
    task = jg.Task(3.0, 0.9, 0.2, force=jg.Softmax("std"))
    h = jg.Hyperparameters(0.02, momentum=0.8, refresh_interval=2, group_size=group)

    def force(z):
        p = 1.0 / (1.0 + np.exp(-z))
        spread = [math.comb(group, k) * math.sqrt(k / group * (1 - k / group)) for k in range(group + 1)]
        return sum(s * p**k * (1 - p) ** (group - k) for k, s in enumerate(spread))

    trace, _ = by_hand(task, h, 240, force, np.array(math.log(2 / 7)))
    reward = 0.9 / (1.0 + np.exp(-trace))
    ensemble = prepare(stack_tasks(task), h)
    errors = {}
    for strides in (24, 48):
        follow = jax.jit(lambda total, n=strides: course(design_of(h), ensemble, total, n, noise=False)[:2])
        for total in (20.0, 240.0):
            steps, curves = follow(jnp.asarray(total))
            at = np.round(np.asarray(steps)).astype(int)
            errors[strides, total] = np.abs(np.asarray(curves[0]) - reward[at]).max()
    # Ten cycles fit into one stride each: exact but for the table of the force.
    assert errors[24, 20.0] < 1e-5
    assert errors[48, 240.0] < 2e-3
    # At least second order: a dozen strides are set aside, so that twice as many are more than twice as fine.
    assert errors[24, 240.0] / errors[48, 240.0] > 4.0


def _course(reward, cost, plateau=1.0):
    reward = jnp.asarray(reward)
    n = reward.shape[0]
    return Course(
        jnp.asarray(cost), jnp.asarray(cost), reward, reward[:, -1], jnp.zeros(n), jnp.asarray(1.0),
        jnp.full(n, plateau), jnp.ones(n), jg.Hyperparameters(1.0),
    )  # fmt: skip


def test_objectives_on_curves_whose_answers_are_plain(x64):
    one = _course([[0.0, 0.5, 1.0], [0.0, 0.2, 0.4]], [0.0, 10.0, 20.0])
    assert float(final_reward(one)) == pytest.approx(0.7)
    # The first reaches 0.6 at 12; the second lacks a third of its way at 20.
    assert float(CostToReach(0.6)(one)) == pytest.approx(-math.log((12.0 + 20.0 * (1 + 1 / 3)) / 2))
    # Ending on a swing beyond the plateau is no gain.
    assert float(final_reward(_course([[0.0, 1.3]], [0.0, 1.0]))) == pytest.approx(0.7)
