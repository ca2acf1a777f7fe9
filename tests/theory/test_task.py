"""The task: what is measured of a model, and errors that name the field."""

import jax
import jax.numpy as jnp
import pytest

from jaxgrpo.theory.task import Task


def test_fields_and_defaults(precision):
    task = Task(curvature=3.0, plateau=0.7)
    assert float(task.curvature) == 3.0
    assert float(task.plateau) == pytest.approx(0.7)
    assert float(task.initial_reward) == 0.0
    assert float(task.rollout_noise) == 0.0
    assert float(task.learning_rate_exponent) == 1.0
    assert task.sharpness is None and task.reference_learning_rate is None and task.adam is None
    assert type(task.force).__name__ == "Harmonic"


def test_differentiable(x64):
    gradient = jax.grad(lambda task: task.curvature * task.plateau)(Task(curvature=3.0, plateau=0.7))
    assert float(gradient.curvature) == pytest.approx(0.7)
    assert float(gradient.plateau) == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("curvature", float("nan")),
        ("plateau", float("inf")),
        ("initial_reward", float("nan")),
        ("rollout_noise", -0.1),
        ("sharpness", float("nan")),
        ("reference_learning_rate", -1.0),
        ("learning_rate_exponent", float("nan")),
    ],
)
def test_an_invalid_value_is_refused_by_name(precision, field, value):
    with pytest.raises(ValueError, match=field):
        Task(**{"curvature": 1.0, "plateau": 0.8, field: jnp.asarray(value)})
