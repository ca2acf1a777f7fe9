"""Derivatives with respect to learning rate, momentum, G and K against finite differences."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import theory_reference as reference

from jaxgrpo.theory.cycle import critical_stiffness, oscillation_onset, spectral_radius
from jaxgrpo.theory.hyperparameters import Hyperparameters
from jaxgrpo.theory.oscillator import Oscillator
from jaxgrpo.theory.reduction import reduce
from jaxgrpo.theory.stability import stability
from jaxgrpo.theory.task import Task
from jaxgrpo.theory.trajectory import mean_field, predict

TASK = dict(curvature=20.0, plateau=0.8, initial_reward=0.2, rollout_noise=0.7)
NAMES = ("learning_rate", "momentum", "group_size", "refresh_interval")
STEPS = {1: (1, 3, 10, 40), 4: (4, 8, 20, 80), 5: (1, 7, 20, 43)}


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
    factor = {"over": 0.3, "just over": 1 - 1e-5, "critical": 1.0, "just under": 1 + 1e-5, "under": 2.5}[
        regime
    ]
    return at_stiffness(factor * onset, momentum, refresh_interval)


def check_gradient(function, settings, names=NAMES, tolerance=1e-6, forward=()):
    """Compare `jax.grad` of a scalar function of the settings with finite differences."""
    values = {name: jnp.asarray(value) for name, value in settings.items()}
    gradient = jax.jit(jax.grad(function))(values)
    evaluate = jax.jit(function)
    for name in names:

        def along(x, name=name):
            return float(evaluate({**values, name: jnp.asarray(x)}))

        x = settings[name]
        if name in forward:
            step = 2e-3
            numeric = reference.forward_difference(along, x, step)
        else:
            step = 1e-3 * (1 - x if name == "momentum" else x)
            if name == "momentum":
                step = min(step, x / 4) if x > 0 else step
            numeric = reference.central_difference(along, x, step)
        got = float(gradient[name])
        # Relative to the change that a change of the setting by its own size would bring.
        scale = max(abs(numeric), 1e-3 * abs(along(x)) / max(abs(x), 1e-3), 1e-12)
        assert np.isfinite(got), name
        assert abs(got - numeric) <= tolerance * scale, f"d/d {name}: {got} against {numeric}"


def heavy_ball(values):
    return Hyperparameters(convention="heavy_ball", prompts_per_step=2.0, **values)


def oscillator_quantity(values, order, quantity, t):
    subject = reduce(heavy_ball(values), Task(**TASK), order=order)
    if quantity == "stationary_variance":
        return subject.stationary_variance
    return getattr(subject, quantity)(jnp.asarray(float(t)))


REGIMES = ("over", "just over", "critical", "just under", "under")


@pytest.mark.parametrize("quantity", ["mean", "variance", "stationary_variance"])
@pytest.mark.parametrize("order", ["leading", "matched"])
@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("refresh_interval", [1, 4])
def test_oscillator(x64, regime, refresh_interval, order, quantity):
    settings = settings_for(regime, 0.8, refresh_interval)
    forward = ("refresh_interval",) if refresh_interval == 1 else ()
    for t in STEPS[refresh_interval][1:] if quantity != "stationary_variance" else (0,):
        check_gradient(
            functools.partial(oscillator_quantity, order=order, quantity=quantity, t=t),
            settings,
            forward=forward,
        )


@pytest.mark.parametrize("quantity", ["mean", "variance"])
@pytest.mark.parametrize("field", ["mass", "damping", "stiffness"])
@pytest.mark.parametrize("mass", [1.0, 1e-3, 0.37])
@pytest.mark.parametrize("ratio", [0.2, 1 - 1e-7, 1.0, 1 + 1e-7, 4.0])
def test_oscillator_fields_through_critical_damping(x64, ratio, mass, field, quantity):
    stiffness = 0.7
    base = dict(mass=mass, damping=2 * ratio * np.sqrt(mass * stiffness), stiffness=stiffness)
    period = np.sqrt(mass / stiffness)

    def function(x, t):
        values = {name: jnp.asarray(value) for name, value in base.items()} | {field: x}
        subject = Oscillator(
            **values, plateau=jnp.asarray(0.8), initial_reward=jnp.asarray(0.2), temperature=jnp.asarray(0.3)
        )
        return getattr(subject, quantity)(jnp.asarray(t))

    for t in (0.1 * period, period, 6 * period):
        got = float(jax.grad(function)(jnp.asarray(base[field]), t))
        numeric = reference.central_difference(
            lambda x, t=t: float(function(jnp.asarray(x), t)), base[field], 1e-3 * base[field]
        )
        scale = max(abs(numeric), 1e-2 / base[field])
        assert abs(got - numeric) <= 1e-6 * scale


@pytest.mark.parametrize("quantity", ["mean", "variance", "stationary_variance"])
@pytest.mark.parametrize("refresh_interval", [1, 4])
def test_leading_oscillator_without_momentum(x64, refresh_interval, quantity):
    settings = at_stiffness(0.04, 0.0, refresh_interval)
    forward = ("momentum", "refresh_interval") if refresh_interval == 1 else ("momentum",)
    for t in (20.0, 60.0):
        check_gradient(
            functools.partial(oscillator_quantity, order="leading", quantity=quantity, t=t),
            settings,
            forward=forward,
        )


@pytest.mark.parametrize("refresh_interval", [1, 4])
def test_matched_oscillator_without_momentum(x64, refresh_interval):
    """The rate's own momentum derivative is infinite there (mu^t); the others are not."""
    settings = at_stiffness(0.04, 0.0, refresh_interval)
    for quantity in ("mean", "variance", "stationary_variance"):
        check_gradient(
            functools.partial(oscillator_quantity, order="matched", quantity=quantity, t=24.0),
            settings,
            names=("learning_rate", "group_size", "refresh_interval"),
            forward=("refresh_interval",) if refresh_interval == 1 else (),
        )


@pytest.mark.parametrize("refresh_interval", [1, 4])
@pytest.mark.parametrize("momentum", [1e-6, 1e-3])
def test_matched_oscillator_with_little_momentum(x64, momentum, refresh_interval):
    settings = at_stiffness(0.04, momentum, refresh_interval)
    check_gradient(
        functools.partial(oscillator_quantity, order="matched", quantity="mean", t=24.0),
        settings,
        forward=("refresh_interval",) if refresh_interval == 1 else (),
        tolerance=3e-6,
    )


# --- the cycle ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("momentum", "stiffness", "refresh_interval", "async_lag"),
    [
        (0.9, 0.001, 4, 0),
        (0.9, 0.05, 4, 0),
        (0.9, 0.08, 4, 0),
        (0.5, 0.4, 4, 0),
        (0.9, 1.0, 1, 0),
        (0.9, 0.02, 8, 1),
        (0.5, 0.05, 3, 2),
        (0.0, 0.1, 4, 0),
        (0.0, 0.3, 1, 0),
    ],
)
def test_spectral_radius(x64, momentum, stiffness, refresh_interval, async_lag):
    """Away from defective points, on both sides of the onset of oscillation and of the threshold."""
    eigenvalues = np.linalg.eigvals(
        reference.cycle_matrix(momentum, stiffness, refresh_interval, 1.0, async_lag)
    )
    gaps = np.abs(eigenvalues[:, None] - eigenvalues)[~np.eye(len(eigenvalues), dtype=bool)]
    assert gaps.min() > 1e-3

    def function(values):
        return spectral_radius(
            values["momentum"], values["h"], values["refresh_interval"], values["staleness"], async_lag
        )

    values = dict(momentum=momentum, h=stiffness, refresh_interval=float(refresh_interval), staleness=1.0)
    forward = tuple(
        name
        for name, edge in (("momentum", momentum == 0.0), ("refresh_interval", refresh_interval == 1))
        if edge
    )
    check_gradient(function, values, names=tuple(values), forward=forward)


@pytest.mark.parametrize(
    ("momentum", "refresh_interval", "staleness", "async_lag"),
    [
        (0.9, 1, 1.0, 0),
        (0.9, 4, 1.0, 0),
        (0.5, 2, 1.0, 0),
        (0.95, 16, 1.0, 0),
        (0.0, 4, 1.0, 0),
        (0.0, 1, 1.0, 0),
        (0.9, 4, 0.5, 0),
        (0.9, 4, 1.0, 1),
        (0.5, 8, 0.7, 2),
    ],
)
def test_critical_stiffness(x64, momentum, refresh_interval, staleness, async_lag):
    def function(values):
        return critical_stiffness(
            values["momentum"], values["refresh_interval"], values["staleness"], async_lag
        )

    values = dict(momentum=momentum, refresh_interval=float(refresh_interval), staleness=staleness)
    # At K = 1 and full staleness the derivative in K is the one towards larger K.
    forward = tuple(
        name
        for name, edge in (("momentum", momentum == 0.0), ("refresh_interval", refresh_interval == 1))
        if edge
    )
    names = ("momentum", "refresh_interval", "staleness")
    if (momentum, refresh_interval) == (0.9, 1):
        names = ("momentum",)  # the threshold drops from 3.8 within a small fraction of a step
    check_gradient(function, values, names=names, forward=forward)


@pytest.mark.parametrize("refresh_interval", [2, 4])
@pytest.mark.parametrize("momentum", [0.5, 0.9])
def test_oscillation_onset(x64, momentum, refresh_interval):
    check_gradient(
        lambda values: oscillation_onset(values["momentum"], values["refresh_interval"]),
        dict(momentum=momentum, refresh_interval=float(refresh_interval)),
        names=("momentum", "refresh_interval"),
    )


@pytest.mark.parametrize("refresh_interval", [1, 4])
@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_margin(x64, momentum, refresh_interval):
    def function(values):
        return stability(heavy_ball(values), Task(**TASK)).margin

    forward = tuple(
        name
        for name, edge in (("momentum", momentum == 0.0), ("refresh_interval", refresh_interval == 1))
        if edge
    )
    names = ("learning_rate", "momentum") + (("refresh_interval",) if refresh_interval > 1 else ())
    check_gradient(function, at_stiffness(0.03, momentum, refresh_interval), names=names, forward=forward)


# --- trajectories ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("quantity", ["mean", "std"])
@pytest.mark.parametrize("refresh_interval", [1, 4])
@pytest.mark.parametrize("regime", [*REGIMES, "no momentum"])
def test_predict(x64, regime, refresh_interval, quantity):
    if regime == "no momentum":
        settings = at_stiffness(0.04, 0.0, refresh_interval)
    else:
        settings = settings_for(regime, 0.8, refresh_interval)
    forward = ("momentum",) if regime == "no momentum" else ()
    steps = jnp.asarray(STEPS[refresh_interval], dtype=float)

    def function(values):
        return getattr(predict(heavy_ball(values), Task(**TASK), steps), quantity).sum()

    check_gradient(function, settings, names=("learning_rate", "momentum", "group_size"), forward=forward)


@pytest.mark.parametrize("quantity", ["mean", "std"])
@pytest.mark.parametrize("refresh_interval", [1.0, 4.0, 4.5])
@pytest.mark.parametrize("momentum", [0.0, 0.8])
def test_predict_with_respect_to_the_interval(x64, momentum, refresh_interval, quantity):
    """At refreshes, where the curve is smooth in K (one-sided at K = 1)."""
    steps = jnp.asarray([8.0 * refresh_interval, 20.0 * refresh_interval])

    def function(values):
        return getattr(predict(heavy_ball(values), Task(**TASK), steps), quantity).sum()

    check_gradient(
        function,
        at_stiffness(0.02, momentum, refresh_interval),
        names=("refresh_interval",),
        forward=("refresh_interval",) if refresh_interval == 1.0 else (),
    )


@pytest.mark.parametrize("force", ["softmax", "mixed", "anchored"])
def test_mean_field_of_other_forces(x64, force):
    from jaxgrpo.theory.forces import KLAnchored, MixedDifficulty, Softmax

    forces = {
        "softmax": Softmax(),
        "mixed": MixedDifficulty(spread=jnp.asarray(1.3)),
        "anchored": KLAnchored(
            Softmax(normalisation="mean"), beta=jnp.asarray(0.3), reference=jnp.asarray(0.0)
        ),
    }
    steps = jnp.asarray([4.0, 12.0, 40.0])

    def function(values):
        task = Task(force=forces[force], **TASK)
        return mean_field(heavy_ball(values), task, steps).sum()

    check_gradient(function, at_stiffness(0.1, 0.6, 4), names=("learning_rate", "momentum", "group_size"))
