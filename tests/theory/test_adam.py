"""Adam's division by the root of the second moment: two regimes of the group size."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxgrpo.theory.adam import AdamNormalisation
from jaxgrpo.theory.hyperparameters import Hyperparameters
from jaxgrpo.theory.reduction import step_noise, stiffness
from jaxgrpo.theory.task import Task


def f(value):
    return jnp.asarray(float(value))


def test_gain_is_the_inverse_root_of_the_second_moment(precision):
    """Against the second moment of sampled batch gradients."""
    generator = np.random.default_rng(3)
    gradients = 0.7 + 2.0 * generator.standard_normal((200_000, 12)).mean(axis=1)
    expected = 1 / np.sqrt(np.mean(gradients**2))
    assert float(AdamNormalisation(f(0.7), f(2.0)).gain(f(12.0))) == pytest.approx(expected, rel=0.01)
    assert float(AdamNormalisation(f(0.7), f(2.0)).gain(f(12.0))) == pytest.approx(
        (0.49 + 4.0 / 12.0) ** -0.5, rel=1e-6
    )


def settings(group_size):
    return Hyperparameters(learning_rate=1e-3, momentum=0.9, group_size=group_size, prompts_per_step=4)


@pytest.mark.parametrize(
    ("signal", "noise", "power"), [(1.0, 0.0, 0.0), (1.0, 1e-3, 0.0), (0.0, 1.0, 0.5), (1e-4, 1.0, 0.5)]
)
def test_two_regimes(precision, signal, noise, power):
    """Signal-dominated: the group size drops out. Noise-dominated: h grows as sqrt(B G)."""
    task = Task(curvature=5.0, plateau=0.8, adam=AdamNormalisation(f(signal), f(noise)))
    small, large = (float(stiffness(settings(g), task)) for g in (4, 64))
    assert large / small == pytest.approx(16.0**power, rel=1e-4)
    gain = 1 / np.sqrt(signal**2 + noise**2 / 16)
    assert small == pytest.approx(0.1 * 1e-3 * 5.0 * gain, rel=1e-5)


def test_noise_is_divided_as_the_force_is(x64):
    plain = Task(curvature=5.0, plateau=0.8, rollout_noise=2.0)
    adam = Task(curvature=5.0, plateau=0.8, rollout_noise=2.0, adam=AdamNormalisation(f(0.3), f(2.0)))
    ratio = float(stiffness(settings(8), adam) / stiffness(settings(8), plain))
    assert float(step_noise(settings(8), adam) / step_noise(settings(8), plain)) == pytest.approx(
        ratio, rel=1e-10
    )


@pytest.mark.parametrize(("field", "values"), [("signal", (-1.0, 1.0)), ("noise", (1.0, -1.0))])
def test_negative_moments_are_refused_by_name(x64, field, values):
    with pytest.raises(ValueError, match=field):
        AdamNormalisation(f(values[0]), f(values[1]))
