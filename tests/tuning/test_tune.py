import dataclasses

import jax
import numpy as np
import pytest

import jaxgrpo as jg
from jaxgrpo.errors import TuneError
from jaxgrpo.report import text, tuning
from jaxgrpo.tuning.search import WHOLE, Point, climb
from jaxgrpo.tuning.tune import _refusal

H = jg.Hyperparameters(1e-6, momentum=0.9, group_size=8, prompts_per_step=16, refresh_interval=2)


def _run(curvature=2.5e4, rows=30, noise=0.005, rate=1e-6, seed=0):
    """A run of a task that is known, as a log would have it."""
    h = dataclasses.replace(H, learning_rate=rate)
    steps = 2.0 * np.arange(rows)
    task = jg.Task(curvature, 0.8, 0.05)
    mean = np.asarray(jg.predict(h, task, steps).mean)
    reward = mean + noise * np.random.default_rng(seed).standard_normal(rows)
    return jg.Run(steps, steps, reward.astype(float), hyperparameters=h)


@pytest.fixture(scope="module")
def advice():
    fit = jg.fit(_run())
    return fit, jg.tune(fit)


def test_advice_gains_within_its_constraints(advice):
    fit, a = advice
    assert a.supported and a.found is not None and a.found.converged
    rate, own = float(a.hyperparameters.learning_rate), float(H.learning_rate)
    assert own < rate <= 3.0 * own * (1 + 1e-6)
    assert a.recommended.stable >= 0.99 and a.recommended.margin[1] > 0
    assert a.recommended.reward[0] > a.current.reward[0] + 0.005
    for name in ("group_size", "refresh_interval", "prompts_per_step"):
        assert float(getattr(a.hyperparameters, name)) == round(float(getattr(a.hyperparameters, name)))
    # The budget is kept: what the steps cost, counted from the settings.
    spent = a.recommended.steps * float(a.prices.per_step(a.hyperparameters))
    np.testing.assert_allclose(spent, a.budget, rtol=1e-6)


def test_no_point_of_a_grid_is_better(advice):
    _, a = advice
    problem = a.problem
    axes = [
        np.arange(a.ranges[name][0], a.ranges[name][1] + 1)
        if name in WHOLE
        else np.linspace(*a.ranges[name], 14)
        for name in problem.free
    ]
    grid = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, len(axes))
    n = len(grid)
    with jax.enable_x64(True):
        # Ranges of no width put each point where it is.
        outcome = climb(Point(np.zeros(grid.shape), grid, grid, np.full(n, a.budget), np.ones(n)), problem, 1)
    best = np.max(np.where(outcome.violation > 0, -np.inf, outcome.value))
    assert n > 500 and best - a.found.value < 1e-3 * float(problem.scale)


def test_predicted_course_is_that_of_predict(advice):
    fit, a = advice
    # The update rule a step at a time, with the inertia that was fitted.
    inertia = fit.inertial_time
    assert inertia is not None
    mu, eta, z, u, trace = inertia / (1 + inertia), 1e-6, float(fit.task.initial_reward), 0.0, []
    for t in range(61):
        trace.append(z)
        seen = z if t % 2 == 0 else seen  # noqa: F821
        u = mu * u + (1 - mu) * eta * float(fit.task.curvature) * (float(fit.task.plateau) - seen)
        z += u
    expected = np.interp(a.predicted_current.steps, np.arange(61.0), trace)
    np.testing.assert_allclose(a.predicted_current.mean, expected, atol=1e-4)
    assert np.all(a.predicted.lower <= a.predicted.mean) and np.all(a.predicted.mean <= a.predicted.upper)


def test_frontier_rises_with_what_may_be_spent_and_used(advice):
    _, a = advice
    assert a.frontier is not None
    assert np.all(np.diff(a.frontier.outcome) > -1e-4)
    assert np.all(np.diff(a.frontier.outcome_by_headroom) > -1e-4)
    middle = int(np.argmin(np.abs(a.frontier.budget - a.budget)))
    assert a.frontier.outcome[middle] == pytest.approx(a.found.value, abs=2e-3)


def test_gradient_of_the_search_is_that_of_differences(advice):
    problem, found = advice[1].problem, advice[1].found
    with jax.enable_x64(True):
        free = len(problem.free)
        position = np.full((1, free), 0.3)
        step = 1e-5
        moves = np.concatenate(
            [position, *(position + step * s * np.eye(free)[[i]] for i in range(free) for s in (1, -1))]
        )
        tile = lambda row: np.tile(row, (len(moves), 1))
        lower = np.array([advice[1].ranges[name][0] for name in problem.free])
        upper = np.array([advice[1].ranges[name][1] for name in problem.free])
        n = len(moves)
        outcome = climb(
            Point(moves, tile(lower), tile(upper), np.full(n, advice[1].budget), np.ones(n)), problem, 1
        )
        differences = (outcome.value[1::2] - outcome.value[2::2]) / (2 * step) / float(problem.scale)
    np.testing.assert_allclose(outcome.gradient[0], differences, rtol=2e-4, atol=1e-6)
    assert found is not None and np.abs(outcome.gradient[0]).max() > 1e-3


def test_as_settings_of_a_framework(advice):
    _, a = advice
    trl = a.to_framework("trl")
    assert trl["learning_rate"] == pytest.approx(float(a.hyperparameters.learning_rate))
    assert trl["num_generations"] == int(a.hyperparameters.group_size)
    assert a.as_dict()["supported"] is True


def test_report_and_picture_say_it_all(advice):
    fit, a = advice
    shown = text.render(tuning.tune_report(a, fit.run, "verl"), 100)
    for words in (
        "as run",
        "The advice fails if",
        "What more or less would buy",
        "Settings for verl",
        "ppo_mini_batch",
    ):
        assert words in shown
    assert max(len(line) for line in shown.splitlines()) <= 100
    figure = jg.plot.tuning(a, fit.run)
    assert len(figure.axes) == 2 and all(axes.get_title(loc="left") for axes in figure.axes)


def test_information_is_greatest_where_draws_disagree(advice):
    _, a = advice
    assert a.next_run is not None
    gains = {(name, value): gain for name, value, gain in a.next_run.alternatives}
    gains[a.next_run.change] = a.next_run.gain
    again = gains[("the same settings again", 1.0)]
    # One rate was run, so that another one teaches more than the same once more.
    assert a.next_run.gain > again > 0
    assert a.next_run.change[0] == "learning_rate"


def test_no_advice_from_what_does_not_support_it(advice):
    fit, _ = advice
    noise = np.random.default_rng(3).standard_normal(30)
    flat = jg.fit(dataclasses.replace(_run(), reward=0.3 + 0.05 * noise))
    assert "no trend" in _refusal(flat)
    falling = jg.fit(dataclasses.replace(_run(), reward=_run().reward[::-1].copy()))
    assert "falls" in _refusal(falling)
    fallen = np.concatenate([np.linspace(0.2, 0.8, 15), np.full(15, 0.05)]) + 0.01 * noise
    collapsed = dataclasses.replace(fit, runs=(dataclasses.replace(fit.run, reward=fallen),))
    a = jg.tune(collapsed, frontier=False)
    assert not a.supported and a.found is None and "falls from" in a.refusal
    assert a.next_run is not None and a.next_run.gain > 0
    with pytest.raises(TuneError, match="no advice"):
        a.to_framework("trl")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"space": {"temperature": 1.0}}, "cannot be tuned"),
        ({"space": {"group_size": (8.2, 8.7)}}, "no whole number"),
        ({"space": {"group_size": 1}}, "must lie within"),
        ({"space": {"learning_rate": "fast"}}, "give a number"),
        ({"budget": -1.0}, "budget must be"),
        ({"hold": "nothing"}, "hold must be"),
        ({"objective": "best"}, "objective must be"),
        ({"space": {"group_size": 7}, "hold": "rollouts_per_step"}, "divides the batch"),
        ({"constraints": jg.Constraints(largest_batch=16)}, "leaves no room"),
        ({"current": None}, "no settings to start from"),
        ({"budget": None}, "no cost yet"),
    ],
)
def test_bad_input_is_named(options, message):
    task = jg.Task(2e4, 0.8, 0.2, force=jg.Softmax("std"))
    with pytest.raises(TuneError, match=message):
        jg.tune(task, **{"current": H, "budget": 100.0, **options})
