"""The search against an objective that is written out with dense matrices, and its program's reuse."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from inference_reference import (
    central_difference,
    coordinates,
    difficulty_nodes,
    fluctuation_covariance,
    harmonic_run,
    log_normal_density,
    sigmoid,
    softmax_force,
    softmax_run,
)
from scipy.optimize import minimize

from jaxgrpo.inference import models as m
from jaxgrpo.inference.fit import fit
from jaxgrpo.inference.models import MODELS, specify, starting_points
from jaxgrpo.inference.problem import make_problem
from jaxgrpo.inference.search import climb, find_modes
from jaxgrpo.theory.hyperparameters import Hyperparameters

ROWS = 60
# Problems in one call, as many as `fit_each` takes, so that the program is compiled once for both.
BATCH = 16
RINGING = Hyperparameters(1e-6, momentum=0.9)
SECOND_ORDER = [m.START, m.PLATEAU, m.RATE, m.FORM, m.OBSERVATION, m.PROCESS]
TRUTH = dict(start=0.1, plateau=0.6, timescale=8.0, noise=0.04, share=0.5)


def stack(items):
    return type(items[0])(*(np.stack(values) for values in zip(*items, strict=True)))


class Search:
    """Problems of one model in one shape, and the search's answers to them."""

    def __init__(self, name, problems):
        self.problems = problems
        self.specifications = [specify(MODELS[name], problem) for problem in problems]
        self.stacked = stack([stack([s]) for s in self.specifications])
        self.observations = stack([p.observations for p in problems])

    def evaluate(self, theta, reward=None):
        """Objective, gradient and information at one point for all problems: a search of one evaluation."""
        observations = self.observations if reward is None else self.observations._replace(reward=reward)
        starts = np.broadcast_to(theta, (len(self.problems), 1, len(m.PARAMETERS)))
        return climb(starts, self.stacked, observations, 0, 1)

    def modes(self):
        starts = np.stack([starting_points(s)[None] for s in self.specifications])
        return find_modes(starts, self.stacked, self.observations, 0)


def unpack_second_order(theta):
    rate = np.exp(theta[m.RATE]) / ROWS
    # The filter adds 1e-9 to every momentum, so that none is zero.
    return theta[m.START], theta[m.PLATEAU], rate, sigmoid(theta[m.FORM]) + 1e-9, np.exp(theta[m.OBSERVATION])


def dense_moments(theta):
    """Mean and covariance of the scaled rewards of the second-order model, K = 1."""
    start, plateau, rate, momentum, noise = unpack_second_order(theta)
    rates = np.full(ROWS, rate)
    path = coordinates([start], lambda z: plateau - z, momentum, rates, 1, 0, ROWS - 1)[:, 0]
    sd = (1 - momentum) * rates * sigmoid(theta[m.PROCESS]) * noise
    return path, fluctuation_covariance(momentum, rates, sd, 1, ROWS) + noise**2 * np.eye(ROWS)


def prior(theta, specification):
    off = (theta - specification.centre) / specification.spread
    return 0.5 * np.sum(off[specification.free] ** 2)


def dense_objective(theta, specification, reward):
    """Negative log posterior but for a constant."""
    mean, covariance = dense_moments(theta)
    constant = 0.5 * len(reward) * np.log(2 * np.pi)
    return prior(theta, specification) - log_normal_density(reward, mean, covariance) - constant


def with_free(theta, free, values):
    full = np.array(theta, float)
    full[free] = values
    return full


@pytest.fixture(scope="module")
def ringing():
    """Runs of the second-order model, and the true parameters of the first."""
    runs = [
        harmonic_run(
            seed,
            RINGING,
            TRUTH["timescale"],
            rows=ROWS,
            start=TRUTH["start"],
            plateau=TRUTH["plateau"],
            noise=TRUTH["noise"],
            force_noise=TRUTH["share"],
        )
        for seed in range(BATCH)
    ]
    return Search("second_order", [make_problem((run,), (RINGING,), None) for run in runs])


@pytest.fixture(scope="module")
def modes(ringing):
    with jax.enable_x64(True):
        return ringing.modes()


def true_theta(problem, specification):
    theta = np.array(specification.centre)
    theta[m.START] = problem.scale.to_scaled(TRUTH["start"])
    theta[m.PLATEAU] = problem.scale.to_scaled(TRUTH["plateau"])
    theta[m.RATE] = np.log(ROWS / TRUTH["timescale"])
    theta[m.FORM] = np.log(9.0)
    theta[m.OBSERVATION] = np.log(TRUTH["noise"] / problem.scale.unit)
    theta[m.PROCESS] = 0.0
    return theta


def test_objective_and_gradient_are_those_of_the_dense_posterior(x64, ringing):
    theta = true_theta(ringing.problems[0], ringing.specifications[0])
    theta[SECOND_ORDER] += [0.1, -0.2, 0.3, -0.4, 0.2, 0.5]
    got = ringing.evaluate(theta)
    for i in (0, 7):
        specification, reward = ringing.specifications[i], ringing.problems[i].observations.reward[0, :ROWS]
        expected = dense_objective(theta, specification, reward)
        np.testing.assert_allclose(float(got.objective[i, 0]), expected, rtol=1e-8)
        gradient = central_difference(
            lambda v: dense_objective(with_free(theta, SECOND_ORDER, v), specification, reward),  # noqa: B023
            theta[SECOND_ORDER],
        )
        np.testing.assert_allclose(
            np.asarray(got.gradient)[i, 0, SECOND_ORDER], gradient, rtol=1e-4, atol=1e-3
        )


def test_information_is_that_of_the_dense_normal_on_average(x64, ringing):
    """The information of the innovations depends on the data; its expectation is Fisher's."""
    problem, specification = ringing.problems[0], ringing.specifications[0]
    theta = true_theta(problem, specification)
    theta[m.PROCESS] = 3.0
    mean, covariance = dense_moments(theta)
    moments = lambda v: dense_moments(with_free(theta, SECOND_ORDER, v))
    d_mean = central_difference(lambda v: moments(v)[0], theta[SECOND_ORDER])
    d_covariance = central_difference(lambda v: moments(v)[1], theta[SECOND_ORDER])
    solved = np.stack([np.linalg.solve(covariance, d_covariance[..., i]) for i in range(len(SECOND_ORDER))])
    fisher = d_mean.T @ np.linalg.solve(covariance, d_mean) + 0.5 * np.einsum("aij,bji->ab", solved, solved)
    fisher += np.diag(1.0 / specification.spread[SECOND_ORDER] ** 2)

    rng = np.random.default_rng(0)
    root = np.linalg.cholesky(covariance)
    # The prior's spread is that of each problem; they are made alike.
    same = Search("second_order", [problem] * BATCH)
    total, count = np.zeros_like(fisher), 0
    for _ in range(25):
        reward = np.zeros((BATCH, *problem.observations.reward.shape))
        reward[:, 0, :ROWS] = mean + rng.standard_normal((BATCH, ROWS)) @ root.T
        information = np.asarray(same.evaluate(theta, reward).information)[:, 0]
        total += information[:, SECOND_ORDER][:, :, SECOND_ORDER].sum(axis=0)
        count += BATCH
    inverse = np.linalg.inv(np.linalg.cholesky(fisher))
    whitened = inverse @ (total / count) @ inverse.T
    np.testing.assert_allclose(whitened, np.eye(len(SECOND_ORDER)), atol=0.03)


def test_at_the_mode_the_gradient_vanishes(x64, ringing, modes):
    """Measured by how much the posterior could still gain: in nats, g' I^-1 g / 2."""
    assert np.all(modes.converged)
    for i in range(0, BATCH, 3):
        specification, reward = ringing.specifications[i], ringing.problems[i].observations.reward[0, :ROWS]
        theta = np.asarray(modes.parameters[i, 0])
        gradient = central_difference(
            lambda v: dense_objective(with_free(theta, SECOND_ORDER, v), specification, reward),  # noqa: B023
            theta[SECOND_ORDER],
        )
        information = np.asarray(modes.information)[i, 0][np.ix_(SECOND_ORDER, SECOND_ORDER)]
        assert 0.5 * gradient @ np.linalg.solve(information, gradient) < 5e-3


def test_the_mode_is_the_highest(x64, ringing, modes):
    """No worse than the truth, nor than where another optimizer gets from the truth."""
    for i in range(BATCH):
        theta = true_theta(ringing.problems[i], ringing.specifications[i])
        reward = ringing.problems[i].observations.reward[0, :ROWS]
        objective = lambda v: dense_objective(
            with_free(theta, SECOND_ORDER, v),  # noqa: B023
            ringing.specifications[i],  # noqa: B023
            reward,  # noqa: B023
        )
        found = float(modes.objective[i, 0])
        assert found < objective(theta[SECOND_ORDER]) + 1e-6
        if i < 3:
            other = minimize(objective, theta[SECOND_ORDER], method="BFGS", options={"gtol": 1e-3})
            assert found < other.fun + 0.01


def test_fixed_parameters_stay(x64, ringing, modes):
    fixed = ~ringing.specifications[0].free
    assert fixed.sum() == 2
    for i, specification in enumerate(ringing.specifications):
        np.testing.assert_array_equal(np.asarray(modes.parameters)[i, 0, fixed], specification.centre[fixed])
    assert np.all(np.asarray(modes.gradient)[:, 0, fixed] == 0)


@pytest.mark.parametrize("normalisation", ["std", "mean"])
def test_gradient_of_the_mixed_difficulty_model(x64, normalisation):
    """Without noise of the force the rewards are independent about the step loop's course."""
    h = Hyperparameters(1e-6, momentum=0.8)
    problem = make_problem((softmax_run(4, h, 0.3, rows=ROWS, spread=1.2),), (h,), (0.0, 1.0))
    search = Search(f"mixed_{normalisation}", [problem] * BATCH)
    specification, reward = search.specifications[0], problem.observations.reward[0, :ROWS]
    theta = np.array(specification.centre)
    free = [m.START, m.PLATEAU, m.RATE, m.FORM, m.OBSERVATION]
    theta[free] = [-1.2, 1.8, np.log(20.0), np.log(0.9), np.log(0.1)]
    theta[m.PROCESS] = -40.0
    x, weights = difficulty_nodes()
    force = softmax_force(normalisation, 8)

    def objective(values):
        full = with_free(theta, free, values)
        rates = np.full(ROWS, np.exp(full[m.RATE]) / ROWS)
        z = coordinates(full[m.START] + np.exp(full[m.FORM]) * x, force, 0.8, rates, 1, 0, ROWS - 1)
        height = sigmoid(full[m.PLATEAU])
        mean = problem.scale.to_scaled(height * sigmoid(z) @ weights)
        off = (reward - mean) / np.exp(full[m.OBSERVATION])
        return prior(full, specification) + 0.5 * np.sum(off**2) + ROWS * full[m.OBSERVATION]

    got = search.evaluate(theta)
    np.testing.assert_allclose(float(got.objective[0, 0]), objective(theta[free]), rtol=1e-4)
    gradient = central_difference(objective, theta[free])
    information = np.asarray(got.information)[0, 0][np.ix_(free, free)]
    # In units of the posterior's width: the tabulated force has a slope that is a staircase.
    error = (np.asarray(got.gradient)[0, 0, free] - gradient) / np.sqrt(np.diag(information))
    assert np.all(np.abs(gradient) / np.sqrt(np.diag(information)) > 0.3)
    np.testing.assert_allclose(error, 0.0, atol=0.05)


def test_runs_of_other_lengths_compile_nothing(caplog):
    """Lengths that share a grid share the program."""
    make = lambda rows: harmonic_run(rows, RINGING, 8.0, rows=rows, plateau=0.6)
    fit(make(60), model="second_order")
    with jax.log_compiles(), caplog.at_level("WARNING"):
        fit(make(61), model="second_order")
        fit(make(45), model="second_order")
        quiet = [record.getMessage() for record in caplog.records if "ompil" in record.getMessage()]
        jax.jit(lambda x: x + jnp.float32(3.0))(jnp.float32(4.0))
    assert any("ompil" in record.getMessage() for record in caplog.records), "the log would not have told"
    assert quiet == []
