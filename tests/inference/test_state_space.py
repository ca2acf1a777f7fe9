"""Course and likelihood of the state-space model against step loops and dense matrices."""

import jax
import numpy as np
import pytest
from inference_reference import (
    coordinates,
    curvature_nodes,
    difficulty_nodes,
    fluctuation_covariance,
    log_normal_density,
    logit,
    row_run,
    sigmoid,
    softmax_force,
)
from scipy import integrate, stats

from jaxgrpo.inference import models as m
from jaxgrpo.inference.models import MODELS, specify
from jaxgrpo.inference.problem import make_problem
from jaxgrpo.inference.state_space import course, innovations
from jaxgrpo.logs.run import Run
from jaxgrpo.theory.hyperparameters import Hyperparameters

GRID = 32
# What the filter adds to every momentum, so that none is zero.
NUDGE = 1e-9
filter_run = jax.jit(innovations, static_argnames="depth")
mean_course = jax.jit(course, static_argnames="depth")


def one_run(observations, run):
    """The observations of one of the runs of a problem."""
    return type(observations)(
        *(values if name == "horizon" else values[run] for name, values in observations._asdict().items())
    )


def natural_to_theta(problem, specification, horizon, **natural):
    """Unconstrained coordinates of natural parameters."""
    theta = np.array(specification.centre)
    to_scaled, unit = problem.scale.to_scaled, problem.scale.unit
    theta[m.START] = natural["start"] if not specification.harmonic else to_scaled(natural["start"])
    theta[m.PLATEAU] = to_scaled(natural["plateau"])
    if specification.bounded:
        theta[m.PLATEAU] = logit(natural["plateau"])
    theta[m.FLOOR] = to_scaled(natural.get("floor", 0.0))
    theta[m.RATE] = np.log(natural["rate"] * horizon)
    theta[m.FORM] = natural.get("form", theta[m.FORM])
    theta[m.OBSERVATION] = np.log(natural.get("noise", 0.03) / unit)
    theta[m.PROCESS] = logit(natural.get("share", 0.5))
    theta[m.EXPONENT] = np.log(natural.get("exponent", 1.0))
    return theta


def uneven_run(seed, steps, hyperparameters, factor):
    """A run with a reward at given steps, under a schedule that is linear in the step."""
    rng = np.random.default_rng(seed)
    reward = 0.8 - 0.6 * np.exp(-steps / 30.0) + 0.05 * rng.standard_normal(len(steps))
    rate = float(hyperparameters.learning_rate) * factor(steps)
    return Run(steps, steps + 1.0, reward, {"learning_rate": rate}, hyperparameters=hyperparameters)


STEPS = {
    "one row a cycle": lambda k: np.arange(0.0, 30 * k, k),
    "every step": lambda k: np.arange(0.0, 30.0 * k),
    "gaps": lambda k: np.delete(np.arange(0.0, 30 * k, k), [1, 2, 11, 12, 13, 14, 25]),
    "gaps and several rows": lambda k: np.delete(np.arange(0.0, 30.0 * k), np.r_[2:9, 11, 20 : 20 + 3 * k]),
}


@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize("refresh_interval", [1, 3])
@pytest.mark.parametrize("name, momentum", [("first_order", NUDGE), ("second_order", 0.85)])
@pytest.mark.parametrize("decay", [0.0, 0.8], ids=["constant rate", "linear decay"])
def test_kalman_likelihood_is_that_of_the_dense_normal(x64, name, momentum, refresh_interval, steps, decay):
    k = refresh_interval
    steps = steps(k)
    factor = lambda t: 1.0 - decay * t / (30.0 * k)
    h = Hyperparameters(2e-6, refresh_interval=k)
    problem = make_problem((uneven_run(3, steps, h, factor),), (h,), None, GRID)
    specification = specify(MODELS[name], problem)
    used = int(steps.max() // k) + 1
    # The learning rate of a cycle is that of its middle.
    per_cycle = factor((np.arange(GRID) + 0.5) * k - 0.5)
    # The log's last rate holds beyond its end.
    per_cycle = np.maximum(per_cycle, factor(steps.max()))
    horizon = k * per_cycle[:used].sum()
    rate, noise, share = 0.06, 0.04, 0.8
    natural = dict(start=0.15, plateau=0.75, rate=rate, noise=noise, share=share)
    if name == "second_order":
        natural["form"] = logit(momentum - NUDGE)
    theta = natural_to_theta(problem, specification, horizon, **natural)
    got = filter_run(theta, specification, one_run(problem.observations, 0), depth=0)

    per_step = rate * np.repeat(per_cycle, k)
    path = coordinates([0.15], lambda z: 0.75 - z, momentum, per_step, k, 0, GRID * k)[:-1:k, 0]
    sd = (1 - momentum) * per_step * share * noise
    covariance = fluctuation_covariance(momentum, per_step, sd, k, GRID * k)
    cycle = (steps // k).astype(int)
    seen = np.unique(cycle)
    rewards = np.array([problem.runs[0].reward[cycle == n].mean() for n in seen])
    count = np.array([(cycle == n).sum() for n in seen])
    dense = covariance[np.ix_(seen, seen)] + np.diag(noise**2 / count)
    expected = log_normal_density(rewards, path[seen], dense)
    # The fluctuations must matter, or the comparison says nothing about them.
    assert abs(expected - log_normal_density(rewards, path[seen], np.diag(noise**2 / count))) > 1e-3

    error, variance = np.asarray(got.error)[seen], np.asarray(got.variance)[seen]
    value = -0.5 * np.sum(error**2 / variance + np.log(2 * np.pi * variance)) - len(seen) * np.log(
        problem.scale.unit
    )
    np.testing.assert_allclose(value, expected, rtol=0, atol=1e-8)


def test_kalman_likelihood_of_a_run_with_settings_of_its_own(x64):
    """In a joint fit the second run differs in rate, interval and batch, and the first sets the units."""
    first = Hyperparameters(1e-6, group_size=8, prompts_per_step=4, refresh_interval=2)
    second = Hyperparameters(3e-6, group_size=16, prompts_per_step=8, refresh_interval=3)
    rng = np.random.default_rng(5)
    runs = tuple(row_run(0.3 + 0.02 * rng.standard_normal(28).cumsum(), h) for h in (first, second))
    problem = make_problem(runs, (first, second), None, GRID)
    specification = specify(MODELS["second_order"], problem)
    rate, momentum, noise, share, exponent = 0.02, 0.7, 0.06, 0.6, 1.4
    natural = dict(start=0.3, plateau=0.5, rate=rate, noise=noise, share=share, exponent=exponent)
    theta = natural_to_theta(problem, specification, 28 * 2.0, form=logit(momentum - NUDGE), **natural)
    got = filter_run(theta, specification, one_run(problem.observations, 1), depth=0)

    per_step = np.full(GRID * 3, rate * 3.0**exponent)
    path = coordinates([0.3], lambda z: 0.5 - z, momentum, per_step, 3, 0, GRID * 3)[: 28 * 3 : 3, 0]
    # Four times the rollouts average the noise of the force to half.
    sd = (1 - momentum) * per_step * share * noise / 2.0
    covariance = fluctuation_covariance(momentum, per_step, sd, 3, GRID * 3)[:28, :28]
    expected = log_normal_density(runs[1].reward, path, covariance + noise**2 * np.eye(28))
    error, variance = np.asarray(got.error)[:28], np.asarray(got.variance)[:28]
    value = -0.5 * np.sum(error**2 / variance + np.log(2 * np.pi * variance)) - 28 * np.log(
        problem.scale.unit
    )
    np.testing.assert_allclose(value, expected, rtol=0, atol=1e-8)


SETTINGS = [
    dict(momentum=0.9, refresh_interval=1, async_lag=0, group_size=8, decay=0.0),
    dict(momentum=0.0, refresh_interval=4, async_lag=0, group_size=5, decay=0.0),
    dict(momentum=0.95, refresh_interval=3, async_lag=1, group_size=16, decay=0.0),
    dict(momentum=0.5, refresh_interval=2, async_lag=2, group_size=2, decay=0.0),
    dict(momentum=0.8, refresh_interval=1, async_lag=1, group_size=64, decay=0.9),
    dict(momentum=0.9, refresh_interval=4, async_lag=0, group_size=4, decay=0.9),
]
DYNAMIC = [name for name, model in MODELS.items() if not model.baseline]


@pytest.mark.parametrize("case", SETTINGS, ids=lambda c: " ".join(f"{v:g}" for v in c.values()))
@pytest.mark.parametrize("bounds", [None, (0.0, 1.0)], ids=["free", "bounded"])
@pytest.mark.parametrize("name", DYNAMIC)
def test_course_is_that_of_the_update_rule(x64, name, bounds, case):
    case = dict(case)
    decay = case.pop("decay")
    h = Hyperparameters(1e-6, **case)
    k, lag = case["refresh_interval"], case["async_lag"]
    factor = lambda t: 1.0 - decay * t / (GRID * k)
    run = row_run(np.linspace(0.2, 0.8, GRID), h)
    if decay:
        run = row_run(run.reward, h, channels={"learning_rate": 1e-6 * factor(run.steps)})
    problem = make_problem((run,), (h,), bounds, GRID)
    specification, model = specify(MODELS[name], problem), MODELS[name]
    at = np.minimum((np.arange(GRID) + 0.5) * k - 0.5, run.steps.max())
    per_cycle = factor(at) / factor(run.steps).max()
    used = int(run.steps.max() // k) + 1

    momentum = {m.NO_MOMENTUM: 0.0, m.FREE_MOMENTUM: 0.75, m.OPTIMIZER_MOMENTUM: case["momentum"]}[
        model.momentum
    ]
    form, spread = 0.0, 0.0
    if model.momentum == m.FREE_MOMENTUM:
        form = np.log(0.75 / 0.25)
    elif model.mixed:
        spread = 0.7 if model.harmonic else 1.3
        form = np.log(spread)
    floor, plateau = (0.0 if bounds else 0.1), 0.85
    rate = (0.05 if model.harmonic else 0.4) / k
    natural = dict(start=0.2 if model.harmonic else -1.5, plateau=plateau, floor=floor, rate=rate, form=form)
    theta = natural_to_theta(problem, specification, k * per_cycle[:used].sum(), **natural)
    got = mean_course(theta, specification, one_run(problem.observations, 0), depth=lag).reward

    per_step = rate * np.repeat(per_cycle, k)
    x, weights = curvature_nodes() if model.harmonic else difficulty_nodes()
    if model.harmonic:
        # Directions whose curvature falls short of the largest by the modulus of a normal variable, in logarithm.
        force, start, tolerance = (lambda z: np.exp(-spread * x) * (plateau - z)), np.full(x.shape, 0.2), 1e-6
    else:
        force, tolerance = softmax_force(model.normalisation, case["group_size"]), 1e-4
        start = -1.5 + spread * x
    z = coordinates(start, force, momentum, per_step, k, lag, GRID * k)[:-1:k]
    expected = z @ weights if model.harmonic else floor + (plateau - floor) * sigmoid(z) @ weights
    assert np.ptp(expected) > 0.1
    np.testing.assert_allclose(problem.scale.to_reward(np.asarray(got)), expected, rtol=0, atol=tolerance)


def test_spread_of_curvature_is_half_normal():
    """What is left after many small steps, averaged over the distribution itself, against the nodes."""
    y, weights = curvature_nodes()
    left = lambda v, spread, time: np.exp(-time * np.exp(-spread * v))
    density = lambda v, spread, time: left(v, spread, time) * stats.halfnorm.pdf(v)
    for case in ((0.5, 1.0), (1.5, 3.0), (3.0, 10.0)):
        exact = integrate.quad(density, 0, 12, args=case)[0]
        assert abs(left(y, *case) @ weights - exact) < 2e-3


@pytest.mark.parametrize("schedule", ["constant", "warm-up", "decay"])
@pytest.mark.parametrize("name", ["exponential", "power_law", "sigmoid", "constant"])
def test_baselines_are_curves_in_learning_rate_time(x64, name, schedule):
    h = Hyperparameters(1e-6, refresh_interval=2)
    t = np.arange(0.0, 2 * GRID, 2)
    factor = {"constant": 0 * t + 1, "warm-up": np.minimum(t / 20.0, 1.0), "decay": 1.0 - t / 80.0}[schedule]
    run = row_run(np.linspace(0.2, 0.8, GRID), h, channels={"learning_rate": 1e-6 * factor})
    problem = make_problem((run,), (h,), None, GRID)
    specification = specify(MODELS[name], problem)
    # Rate in the middle of each cycle of two steps, by the log's straight lines.
    middle = np.interp(t + 0.5, t, factor) / factor.max()
    form = {"exponential": float(specification.centre[m.FORM]), "constant": 0.0}.get(name, np.log(1.7))
    natural = dict(start=0.2, plateau=0.8, rate=0.08, form=form)
    theta = natural_to_theta(problem, specification, 2 * middle.sum(), **natural)
    got = problem.scale.to_reward(
        np.asarray(mean_course(theta, specification, one_run(problem.observations, 0), depth=0).reward)
    )
    # Learning-rate time has passed in the cycles before, not in the one that begins.
    time = 0.08 * 2 * np.concatenate([[0.0], np.cumsum(middle)[:-1]])
    left = {
        "exponential": np.exp(-time),
        "power_law": (1 + time / 1.7) ** -1.7,
        "sigmoid": 1 / (1 + time**1.7),
        "constant": 0 * time,
    }[name]
    tolerance = 1e-4 if name == "exponential" else 1e-6
    np.testing.assert_allclose(got, 0.8 - 0.6 * left, rtol=0, atol=tolerance)
