"""Derivatives with respect to learning rate, momentum, G and K against finite differences."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import theory_reference as reference

from jaxgrpo.theory.cycle import critical_stiffness, oscillation_onset, spectral_radius
from jaxgrpo.theory.forces import KLAnchored, MixedDifficulty
from jaxgrpo.theory.hyperparameters import Hyperparameters
from jaxgrpo.theory.oscillator import Oscillator
from jaxgrpo.theory.reduction import reduce
from jaxgrpo.theory.stability import stability
from jaxgrpo.theory.task import Task
from jaxgrpo.theory.trajectory import mean_field, predict

TASK = dict(curvature=20.0, plateau=0.8, initial_reward=0.2, rollout_noise=0.7)
NAMES = ("learning_rate", "momentum", "group_size", "refresh_interval")
TIMES = {1: (3.0, 10.0, 40.0), 4: (8.0, 20.0, 80.0)}
REGIMES = {"over": 0.3, "just over": 1 - 1e-5, "critical": 1.0, "just under": 1 + 1e-5, "under": 2.5}


def at_stiffness(h, momentum, refresh_interval, group_size=8.0):
    """Settings of a heavy ball with stiffness h."""
    return dict(
        learning_rate=h / TASK["curvature"],
        momentum=momentum,
        group_size=group_size,
        refresh_interval=float(refresh_interval),
    )


def settings_for(regime, momentum, refresh_interval):
    onset = reference.oscillation_onset(momentum, refresh_interval)
    return at_stiffness(REGIMES[regime] * onset, momentum, refresh_interval)


def edges(settings):
    """Fields at the lower end of their range, where differences are one-sided."""
    return tuple(
        name for name, edge in (("momentum", 0.0), ("refresh_interval", 1.0)) if settings.get(name) == edge
    )


@functools.cache
def compiled(function):
    return jax.jit(function), jax.jit(jax.jacrev(function))


def check_derivatives(function, settings, fixed=None, names=NAMES, tolerance=1e-6):
    """Compare reverse-mode derivatives of a vector function of the settings with finite differences."""
    evaluate, jacobian = compiled(function)
    values = {name: jnp.asarray(float(value)) for name, value in settings.items()}
    derivatives = jacobian(values, fixed)
    size = np.abs(np.asarray(evaluate(values, fixed)))
    for name in names:

        def along(x, name=name):
            return np.asarray(evaluate({**values, name: jnp.asarray(float(x))}, fixed))

        x = settings[name]
        if name in edges(settings):
            numeric = reference.forward_difference(along, x, 2e-3)
        else:
            step = 1e-3 * x if name != "momentum" else min(1e-3 * (1 - x), x / 50)
            numeric = reference.central_difference(along, x, step)
        got = np.asarray(derivatives[name])
        # Relative to the derivative, or to a thousandth of the change that would double the setting.
        scale = np.maximum(np.abs(numeric), 1e-3 * size / max(abs(x), 1e-3))
        scale = np.maximum(scale, 1e-12)
        worst = int(np.argmax(np.abs(got - numeric) / scale))
        assert np.all(np.isfinite(got)), f"d/d {name}: {got}"
        assert np.all(np.abs(got - numeric) <= tolerance * scale), (
            f"d/d {name}, entry {worst}: {got.flat[worst]} against {numeric.flat[worst]}"
        )


def heavy_ball(values):
    return Hyperparameters(convention="heavy_ball", prompts_per_step=2.0, **values)


def oscillator_moments(values, times, order):
    subject = reduce(heavy_ball(values), Task(**TASK), order=order)
    return jnp.concatenate([subject.mean(times), subject.variance(times), subject.stationary_variance[None]])


def leading_moments(values, times):
    return oscillator_moments(values, times, "leading")


def matched_moments(values, times):
    return oscillator_moments(values, times, "matched")


MOMENTS = {"leading": leading_moments, "matched": matched_moments}


@pytest.mark.parametrize("order", list(MOMENTS))
@pytest.mark.parametrize("regime", list(REGIMES))
@pytest.mark.parametrize("refresh_interval", [1, 4])
def test_oscillator(x64, regime, refresh_interval, order):
    times = jnp.asarray(TIMES[refresh_interval])
    check_derivatives(MOMENTS[order], settings_for(regime, 0.8, refresh_interval), times)


def fields_moments(fields, times):
    subject = Oscillator(
        **fields, plateau=jnp.asarray(0.8), initial_reward=jnp.asarray(0.2), noise=jnp.asarray(0.3)
    )
    return jnp.concatenate([subject.mean(times), subject.variance(times)])


@pytest.mark.parametrize("mass", [1.0, 1e-3, 0.37])
@pytest.mark.parametrize("ratio", [0.2, 1 - 1e-7, 1.0, 1 + 1e-7, 4.0])
def test_oscillator_fields_through_critical_damping(x64, ratio, mass):
    stiffness = 0.7
    fields = dict(mass=mass, damping=2 * ratio * np.sqrt(mass * stiffness), stiffness=stiffness)
    times = np.sqrt(mass / stiffness) * jnp.asarray([0.1, 1.0, 6.0])
    check_derivatives(fields_moments, fields, times, names=tuple(fields))


@pytest.mark.parametrize("refresh_interval", [1, 4])
def test_leading_oscillator_without_momentum(x64, refresh_interval):
    check_derivatives(
        leading_moments, at_stiffness(0.04, 0.0, refresh_interval), jnp.asarray([12.0, 20.0, 60.0])
    )


@pytest.mark.parametrize("refresh_interval", [1, 4])
def test_matched_oscillator_without_momentum(x64, refresh_interval):
    """The derivative of the matched mass by momentum is infinite there (mu^t); the others are not."""
    names = ("learning_rate", "group_size", "refresh_interval")
    settings = at_stiffness(0.04, 0.0, refresh_interval)
    check_derivatives(matched_moments, settings, jnp.asarray([12.0, 24.0, 60.0]), names=names)


@pytest.mark.parametrize("refresh_interval", [1, 4])
@pytest.mark.parametrize("momentum", [1e-6, 1e-3])
def test_matched_oscillator_with_little_momentum(x64, momentum, refresh_interval):
    settings = at_stiffness(0.04, momentum, refresh_interval)
    check_derivatives(matched_moments, settings, jnp.asarray([12.0, 24.0, 60.0]), tolerance=5e-6)


# --- the cycle ---------------------------------------------------------------------------------------------


@functools.cache
def cycle_function(function, async_lag):
    if function is spectral_radius:
        return lambda values, _: spectral_radius(
            values["momentum"], values["h"], values["refresh_interval"], values["staleness"], async_lag
        )
    return lambda values, _: critical_stiffness(
        values["momentum"], values["refresh_interval"], values["staleness"], async_lag
    )


def spectral_radius_synchronous(values, _):
    return spectral_radius(values["momentum"], values["h"], values["refresh_interval"])


def critical_stiffness_synchronous(values, _):
    return critical_stiffness(values["momentum"], values["refresh_interval"])


@pytest.mark.parametrize(
    ("momentum", "stiffness", "refresh_interval"),
    [
        (0.9, 0.001, 4),
        (0.9, 0.05, 4),
        (0.9, 0.08, 4),
        (0.5, 0.4, 4),
        (0.9, 1.0, 1),
        (0.0, 0.1, 4),
        (0.0, 0.3, 1),
    ],
)
def test_spectral_radius(x64, momentum, stiffness, refresh_interval):
    """Away from defective points, on both sides of the onset of oscillation and of the threshold."""
    eigenvalues = np.linalg.eigvals(reference.cycle_matrix(momentum, stiffness, refresh_interval))
    assert abs(eigenvalues[0] - eigenvalues[1]) > 1e-3
    values = dict(momentum=momentum, h=stiffness, refresh_interval=float(refresh_interval))
    check_derivatives(spectral_radius_synchronous, values, names=tuple(values))


@pytest.mark.parametrize(
    ("momentum", "stiffness", "refresh_interval", "staleness", "async_lag"),
    [(0.9, 0.02, 8, 1.0, 1), (0.0, 0.1, 4, 1.0, 1), (0.9, 0.05, 4, 0.5, 0), (0.5, 0.1, 4, 0.5, 0)],
)
def test_spectral_radius_with_lag_or_staleness(
    x64, momentum, stiffness, refresh_interval, staleness, async_lag
):
    matrix = reference.cycle_matrix(momentum, stiffness, refresh_interval, staleness, async_lag)
    eigenvalues = np.linalg.eigvals(matrix)
    dominant = eigenvalues[np.argmax(np.abs(eigenvalues))]
    assert np.sort(np.abs(eigenvalues - dominant))[1] > 1e-3
    values = dict(
        momentum=momentum, h=stiffness, refresh_interval=float(refresh_interval), staleness=staleness
    )
    check_derivatives(cycle_function(spectral_radius, async_lag), values, names=tuple(values))


@pytest.mark.parametrize(
    ("momentum", "refresh_interval"), [(0.9, 4), (0.5, 2), (0.95, 16), (0.0, 4), (0.0, 1), (0.9, 1)]
)
def test_critical_stiffness(x64, momentum, refresh_interval):
    values = dict(momentum=momentum, refresh_interval=float(refresh_interval))
    # At K = 1 with momentum the threshold drops from 2 (1 + mu) within a fraction of a step.
    names = ("momentum",) if (momentum, refresh_interval) == (0.9, 1) else tuple(values)
    check_derivatives(critical_stiffness_synchronous, values, names=names)


@pytest.mark.parametrize(
    ("momentum", "refresh_interval", "staleness", "async_lag"),
    [(0.9, 4, 0.5, 0), (0.9, 4, 1.0, 1), (0.5, 8, 0.7, 1)],
)
def test_critical_stiffness_with_lag_or_staleness(x64, momentum, refresh_interval, staleness, async_lag):
    values = dict(momentum=momentum, refresh_interval=float(refresh_interval), staleness=staleness)
    check_derivatives(cycle_function(critical_stiffness, async_lag), values, names=tuple(values))


def onset(values, _):
    return oscillation_onset(values["momentum"], values["refresh_interval"])


@pytest.mark.parametrize("refresh_interval", [2, 4])
@pytest.mark.parametrize("momentum", [0.5, 0.9])
def test_oscillation_onset(x64, momentum, refresh_interval):
    values = dict(momentum=momentum, refresh_interval=float(refresh_interval))
    check_derivatives(onset, values, names=tuple(values))


@pytest.mark.parametrize(("momentum", "refresh_interval"), [(0.0, 4), (0.9, 4), (0.5, 1)])
def test_margin(x64, momentum, refresh_interval):
    """Against the chain rule on brute-force thresholds."""

    def margin(rate):
        settings = {**at_stiffness(0.03, momentum, refresh_interval), "learning_rate": rate}
        return stability(heavy_ball(settings), Task(**TASK)).margin

    threshold = reference.critical_stiffness(momentum, refresh_interval)
    got = float(jax.grad(margin)(jnp.asarray(0.03 / TASK["curvature"])))
    assert got == pytest.approx(-TASK["curvature"] / threshold, rel=1e-6)


# --- trajectories ------------------------------------------------------------------------------------------

STEPS = np.asarray([1.0, 4.0, 7.0, 20.0, 43.0, 80.0])


def predicted_every_step(values, _):
    prediction = predict(heavy_ball({**values, "refresh_interval": 1.0}), Task(**TASK), STEPS)
    return jnp.concatenate([prediction.mean, prediction.std])


def predicted_every_fourth_step(values, _):
    prediction = predict(heavy_ball({**values, "refresh_interval": 4.0}), Task(**TASK), STEPS)
    return jnp.concatenate([prediction.mean, prediction.std])


@pytest.mark.parametrize("refresh_interval", [1, 4])
@pytest.mark.parametrize("regime", [*REGIMES, "no momentum"])
def test_predict(x64, regime, refresh_interval):
    if regime == "no momentum":
        settings = at_stiffness(0.04, 0.0, refresh_interval)
    else:
        settings = settings_for(regime, 0.8, refresh_interval)
    del settings["refresh_interval"]
    function = predicted_every_step if refresh_interval == 1 else predicted_every_fourth_step
    check_derivatives(function, settings, names=("learning_rate", "momentum", "group_size"))


@pytest.mark.parametrize(("momentum", "refresh_interval"), [(0.0, 1.0), (0.8, 1.0), (0.8, 4.0), (0.8, 4.5)])
def test_predict_with_respect_to_the_interval(x64, momentum, refresh_interval):
    """Away from refreshes, where the sampler's policy jumps (one-sided at K = 1)."""
    settings = at_stiffness(0.02, momentum, refresh_interval)
    steps = np.asarray([2.3, 7.3, 30.7]) * refresh_interval

    def function(values, _):
        prediction = predict(heavy_ball(values), Task(**TASK), steps)
        return jnp.concatenate([prediction.mean, prediction.std])

    # Eager, so that the number of cycles may follow from the interval.
    values = {name: jnp.asarray(value) for name, value in settings.items()}
    jacobian = jax.jacrev(lambda k: function({**values, "refresh_interval": k}, None))
    got = np.asarray(jacobian(values["refresh_interval"]))

    def along(k):
        return np.asarray(function({**values, "refresh_interval": jnp.asarray(k)}, None))

    if refresh_interval == 1.0:
        numeric = reference.forward_difference(along, 1.0, 1e-3)
    else:
        numeric = reference.central_difference(along, refresh_interval, 1e-3)
    np.testing.assert_allclose(got, numeric, rtol=1e-6, atol=1e-9)


FORCES = {
    "anchored mixture": KLAnchored(MixedDifficulty(spread=1.3), beta=0.3, reference=0.0),
}


@functools.cache
def course(force):
    def function(values, _):
        task = Task(force=FORCES[force], **TASK)
        return mean_field(heavy_ball({**values, "refresh_interval": 4.0}), task, STEPS)

    return function


@pytest.mark.parametrize("force", list(FORCES))
def test_mean_field_of_other_forces(x64, force):
    settings = at_stiffness(0.1, 0.6, 4, group_size=8.5)
    del settings["refresh_interval"]
    check_derivatives(course(force), settings, names=("learning_rate", "momentum", "group_size"))
