"""Hyperparameters: conventions, derived quantities, and errors that name the field."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgrpo.theory.hyperparameters import Hyperparameters


def test_dampening_follows_the_convention(precision):
    ema = Hyperparameters(learning_rate=1e-6, momentum=0.9)
    heavy_ball = Hyperparameters(learning_rate=1e-6, momentum=0.9, convention="heavy_ball")
    assert float(ema.dampening) == pytest.approx(0.1, rel=1e-6)
    assert float(heavy_ball.dampening) == 1.0


@pytest.mark.parametrize(
    ("refresh_interval", "async_lag", "staleness"),
    [(1, 0, 1.0), (4, 0, 1.0), (4, 1, 1.0), (16, 2, 0.5), (3, 0, 0.0), (5, 1, -0.84), (5, 0, 2.33)],
)
def test_mean_lag_is_the_average_age_of_the_policy_behind_the_force(
    x64, refresh_interval, async_lag, staleness
):
    # The age of the rollouts at each step of a cycle, counted one by one.
    ages = [async_lag * refresh_interval + i for i in range(refresh_interval)]
    hyperparameters = Hyperparameters(
        learning_rate=1e-6, refresh_interval=refresh_interval, async_lag=async_lag, staleness=staleness
    )
    assert float(hyperparameters.mean_lag) == pytest.approx(staleness * float(np.mean(ages)), rel=1e-12)


def test_minibatches_and_rollouts(x64):
    hyperparameters = Hyperparameters(
        learning_rate=1e-6, group_size=16, prompts_per_step=32, refresh_interval=12, epochs_per_rollout=3
    )
    assert float(hyperparameters.minibatches_per_rollout) == 4.0
    assert float(hyperparameters.rollouts_per_step) == 512.0


def test_numeric_fields_are_differentiable_leaves(x64):
    hyperparameters = Hyperparameters(learning_rate=1e-6)
    numeric = [f.name for f in dataclasses.fields(hyperparameters) if f.name != "convention"]
    assert len(jax.tree.leaves(hyperparameters)) == len(numeric) == 8
    gradient = jax.grad(lambda hp: hp.mean_lag * hp.dampening)(
        Hyperparameters(learning_rate=1e-6, momentum=0.75, refresh_interval=5)
    )
    assert float(gradient.momentum) == pytest.approx(-2.0)
    assert float(gradient.refresh_interval) == pytest.approx(0.125)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("learning_rate", -1e-6),
        ("learning_rate", float("nan")),
        ("momentum", 1.0),
        ("momentum", -0.1),
        ("group_size", 0),
        ("refresh_interval", 0),
        ("refresh_interval", float("inf")),
        ("prompts_per_step", -1),
        ("prompts_per_step", 0),
        ("epochs_per_rollout", 0),
        ("async_lag", -1),
        ("staleness", float("nan")),
        ("convention", "adamw"),
    ],
)
def test_an_invalid_value_is_refused_by_name(precision, field, value):
    # A wrong word is caught by the type checker first where that is on.
    with pytest.raises((ValueError, TypeError), match=field) as error:
        Hyperparameters(**{"learning_rate": 1e-6, field: value})
    assert field == "convention" or "\n" not in str(error.value)


@pytest.mark.parametrize("staleness", [-0.84, 2.33])
def test_staleness_is_not_confined_to_the_unit_interval(precision, staleness):
    assert float(Hyperparameters(learning_rate=1e-6, staleness=staleness).staleness) == pytest.approx(
        staleness
    )


def test_one_bad_configuration_among_several_is_refused():
    with pytest.raises(ValueError, match="momentum"):
        Hyperparameters(learning_rate=1e-6, momentum=jnp.array([0.5, 1.5]))


def test_may_be_made_inside_a_compiled_function(x64):
    """From traced values, plain numbers and arrays of the surroundings alike."""
    lag = jnp.asarray(2.0)

    def mean_lag(refresh_interval):
        hyperparameters = Hyperparameters(1e-6, refresh_interval=refresh_interval, async_lag=lag)
        return hyperparameters.mean_lag

    assert float(jax.jit(mean_lag)(jnp.asarray(3.0))) == pytest.approx(7.0)
