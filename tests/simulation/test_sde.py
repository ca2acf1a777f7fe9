import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, stats

import jaxgrpo as jg
from jaxgrpo.simulation.sde import needed_substeps
from jaxgrpo.theory.groups import half_normal_nodes, normal_nodes

KEY = jax.random.key(4)
REGIMES = {
    "overdamped": (1.0, 1.0, 0.1),
    "critical": (1.0, 0.6, 0.09),
    "underdamped": (1.0, 0.2, 0.25),
    "first order": (0.0, 1.0, 0.1),
}


def oscillator(mass, damping, stiffness, noise=0.1, **other):
    numbers = (jnp.asarray(x, float) for x in (mass, damping, stiffness))
    fields = {"plateau": 0.8, "initial_reward": 0.2, "noise": noise} | other
    return jg.Oscillator(*numbers, **{name: jnp.asarray(x, float) for name, x in fields.items()})


@pytest.mark.parametrize("regime", REGIMES)
def test_stationary_mean_and_covariance_are_those_of_the_closed_form(regime):
    own = oscillator(*REGIMES[regime])
    n = 8192
    sde = jg.OscillatorSDE(own)
    state = sde.solve(90, paths=n, key=KEY, substeps=8, saveat=diffrax.SaveAt(t1=True)).ys
    r, variance = np.asarray(state.position[0, 0], float), float(own.stationary_variance)
    assert abs(r.mean() - 0.8) < 3 * np.sqrt(variance / n)
    assert abs(r.var() / variance - 1) < 3 * np.sqrt(2 / n)
    if regime != "first order":
        v, kinetic = np.asarray(state.velocity[0, 0], float), float(own.temperature / own.mass)
        assert abs(v.mean()) < 3 * np.sqrt(kinetic / n) and abs(v.var() / kinetic - 1) < 3 * np.sqrt(2 / n)
        assert abs(np.corrcoef(r, v)[0, 1]) < 3 / np.sqrt(n)


def test_without_damping_and_with_negative_damping_the_moments_are_those_of_the_closed_form():
    for damping in (0.0, -0.05):
        own, n = oscillator(1.0, damping, 0.09), 8192
        rewards = np.asarray(jg.OscillatorSDE(own).solve(30, paths=n, key=KEY, substeps=2).ys, float)
        for step in (10, 30):
            variance = float(own.variance(float(step)))
            assert abs(rewards[step].mean() - float(own.mean(float(step)))) < 3 * np.sqrt(variance / n)
            assert abs(rewards[step].var() / variance - 1) < 3 * np.sqrt(2 / n)


def slope(steps, errors):
    return np.polyfit(np.log(steps), np.log(errors), 1)[0]


def test_orders_of_convergence_against_a_fine_reference(x64):
    """Nonlinear force; strong order by paths of one Brownian motion, weak order by the same in the mean."""
    force = jg.KLAnchored(jg.Softmax("mean"), 0.5)
    sde = jg.OscillatorSDE(oscillator(1.0, 0.6, 0.2, noise=0.5, plateau=1.0, initial_reward=0.3), force)
    n, end = 400, 4.0

    @eqx.filter_jit
    def solve(solver, key, step):
        tree = diffrax.VirtualBrownianTree(0.0, end, 1e-3, (1, n), key, levy_area=diffrax.SpaceTimeLevyArea)
        return diffrax.diffeqsolve(
            sde.terms(tree), solver, 0.0, end, step, sde.initial_state((n,)), max_steps=2048
        ).ys.position[0, 0]

    steps = np.array([1.0, 0.5, 0.25, 0.125])
    fine = solve(diffrax.ShARK(), KEY, jnp.asarray(1 / 64))
    expected = {diffrax.ShARK(): (1.5, 2.0), diffrax.Euler(): (1.0, 1.0)}
    for solver, (strong, weak) in expected.items():
        found = [solve(solver, KEY, jnp.asarray(step)) for step in steps]
        assert slope(steps, [jnp.sqrt(jnp.mean((x - fine) ** 2)) for x in found]) > strong - 0.15
        # Paired differences of the mean: the common motion takes most of the noise away.
        errors = [abs(float(jnp.mean(x - fine))) for x in found]
        assert slope(steps, errors) > weak - 0.35


def test_stationary_density_of_a_kl_anchored_force_is_boltzmann_s():
    force, beta, k, damping, noise = jg.KLAnchored(jg.Softmax("mean"), 1.0), 1.0, 0.5, 1.0, 0.4
    own = oscillator(1.0, damping, k, noise=noise, plateau=1.0, initial_reward=0.7)
    sde = jg.OscillatorSDE(own, force)
    state = sde.solve(40, paths=100_000, key=KEY, substeps=4, saveat=diffrax.SaveAt(t1=True)).ys
    z = np.asarray(state.position[0, 0], float)
    # The potential by quadrature of the force, written here anew; slope 1 / (6 sqrt 3) at the steepest.
    gain, temperature = k * 6.0 * np.sqrt(3.0), noise**2 / (2.0 * damping)
    grid = np.linspace(z.min() - 3.0, z.max() + 3.0, 20001)
    p = 1.0 / (1.0 + np.exp(-grid))
    potential = -integrate.cumulative_simpson(gain * p * (1 - p) * (1.0 - beta * grid), x=grid, initial=0.0)
    density = np.exp(-(potential - potential.min()) / temperature)
    cumulative = integrate.cumulative_simpson(density, x=grid, initial=0.0)
    cumulative /= cumulative[-1]
    assert stats.kstest(z, lambda x: np.interp(x, grid, cumulative)).pvalue > 0.01


def test_binary_noise_without_momentum_is_ito_s():
    """A Jacobi process: dR = a (R* - R) dt + c sqrt(R (1-R)) dW in Ito's sense, whose stationary law is a Beta."""
    own, n = oscillator(0.0, 1.0, 0.1, noise=0.1, plateau=0.7, initial_reward=0.7), 8192
    sde = jg.OscillatorSDE(own, noise_shape="binary")
    assert isinstance(sde.default_solver(), diffrax.Euler) and not sde.additive
    r = np.asarray(sde.solve(60, paths=n, key=KEY, substeps=10).ys[-1], float)
    c = 2.0 * 0.1
    law = stats.beta(2 * 0.1 * 0.7 / c**2, 2 * 0.1 * 0.3 / c**2)
    assert abs(r.mean() - 0.7) < 3 * law.std() / np.sqrt(n)
    # A Stratonovich reading would move the mean by c^2 (1 - 2 R*) / (4 a), far outside.
    assert abs(c**2 * (1 - 1.4) / (4 * 0.1)) > 5 * 3 * law.std() / np.sqrt(n)
    assert abs(r.var() / law.var() - 1) < 0.05


def test_binary_noise_with_momentum_reads_the_same_either_way():
    own = oscillator(1.0, 0.6, 0.1, noise=0.05, plateau=0.8, initial_reward=0.4)
    sde = jg.OscillatorSDE(own, noise_shape="binary")
    stratonovich, ito = (
        sde.solve(20, paths=500, key=KEY, substeps=16, solver=solver).ys[-1]
        for solver in (diffrax.Heun(), diffrax.Euler())
    )
    assert np.max(np.abs(stratonovich - ito)) < 0.15 * np.std(ito)
    assert abs(np.mean(stratonovich - ito)) < 0.02 * np.std(ito)


def test_noise_free_courses_solve_the_differential_equation(x64):
    """Schedule, mixed force, finite groups and a lagged force, against SciPy and a force written anew."""
    weights = normal_nodes(5)[1]
    force = jg.MixedDifficulty(jnp.float64(1.0), "mean", nodes=5)
    settings = jg.Hyperparameters(jnp.float64(0.05), momentum=0.8, group_size=4, refresh_interval=5)
    task = jg.Task(jnp.float64(20.0), 0.9, 0.3, force=force)
    sde = jg.OscillatorSDE.from_task(settings, task, lambda t: jnp.exp(-t / 30.0))
    rewards = sde.solve(40, key=KEY, substeps=10).ys[:, 0]
    gain, lag = 0.2 * 0.05 * 20.0, 2.0

    def rates(t, y):
        z, v = y[:5], y[5:]
        p = 1.0 / (1.0 + np.exp(-z))
        force = 0.75 * (p * (1 - p) - lag * p * (1 - p) * (1 - 2 * p) * v)
        return np.concatenate([v, (gain * np.exp(-t / 30.0) * force - 0.2 * v) / 0.8])

    start = np.concatenate([np.asarray(sde.initial_state().position), np.zeros(5)])
    solved = integrate.solve_ivp(rates, (0, 40), start, t_eval=[10, 40], rtol=1e-9, atol=1e-10).y[:5]
    expected = 0.9 * weights @ (1.0 / (1.0 + np.exp(-solved)))
    np.testing.assert_allclose(rewards[jnp.array([10, 40])], expected, rtol=2e-4)


def test_nodes_may_have_common_or_independent_noise():
    force = jg.MixedCurvature(jnp.float32(0.0), nodes=4)
    own, n = oscillator(1.0, 0.8, 0.2), 8192
    variances = {}
    for kind in ("common", "independent"):
        sde = jg.OscillatorSDE(own, force, node_noise=kind)
        variances[kind] = float(jnp.var(sde.solve(60, paths=n, key=KEY, saveat=None).ys[-1]))
    share = float(np.sum(half_normal_nodes(4)[1] ** 2))
    assert abs(variances["common"] / float(own.stationary_variance) - 1) < 3 * np.sqrt(2 / n)
    assert abs(variances["independent"] / (share * float(own.stationary_variance)) - 1) < 3 * np.sqrt(2 / n)


def test_derivatives_with_common_random_numbers_are_those_of_the_closed_form():
    task = jg.Task(curvature=1.0, plateau=0.8, initial_reward=0.2, rollout_noise=0.01)
    point = jnp.array([0.5, 0.9, 8.0, 3.0])

    def settings(x):
        return jg.Hyperparameters(x[0], momentum=x[1], group_size=x[2], refresh_interval=x[3])

    def sampled(x):
        sde = jg.OscillatorSDE.from_task(settings(x), task)
        end = sde.solve(8, paths=4096, key=KEY, substeps=4, adjoint=diffrax.ForwardMode()).ys[-1]
        return jnp.stack([end.mean(), end.std()])

    def closed(x):
        own = jg.reduce(settings(x), task, order="leading")
        return jnp.stack([own.mean(8.0), jnp.sqrt(own.variance(8.0))])

    ours, exact = jax.jit(jax.jacfwd(sampled))(point), jax.jit(jax.jacfwd(closed))(point)
    # The mean does not hang on the group size; the standard deviation does, as G^(-1/2).
    np.testing.assert_allclose(ours[0, jnp.array([0, 1, 3])], exact[0, jnp.array([0, 1, 3])], rtol=0.01)
    assert exact[0, 2] == 0 and abs(ours[0, 2]) < 3 * float(closed(point)[1]) / 16.0 / np.sqrt(4096)
    assert abs(ours[1, 2] / exact[1, 2] - 1) < 3 / np.sqrt(2 * 4096)


@pytest.mark.parametrize("solver", [diffrax.Euler(), diffrax.ShARK()])
def test_reverse_and_forward_mode_agree_and_stay_finite_at_the_edges(solver, x64):
    def end(numbers, adjoint):
        own = jg.Oscillator(numbers[0], numbers[1], numbers[2], 0.8, 0.2, numbers[3])
        rewards = jg.OscillatorSDE(own).solve(
            10, paths=16, key=KEY, substeps=2, solver=solver, adjoint=adjoint, saveat=diffrax.SaveAt(t1=True)
        )
        return jnp.mean(rewards.ys.position)

    forward = jax.jit(jax.jacfwd(lambda x: end(x, diffrax.ForwardMode())))
    reverse = jax.jit(jax.grad(lambda x: end(x, None)))
    # Undamped, critically damped, growing, without noise.
    for numbers in ([1.0, 0.0, 0.1, 0.1], [1.0, 0.6, 0.09, 0.1], [1.0, -0.1, 0.1, 0.1], [1.0, 0.6, 0.1, 0.0]):
        x = jnp.array(numbers)
        one, other = forward(x), reverse(x)
        assert np.all(np.isfinite(one))
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-12)
        if numbers[3] == 0.0 and isinstance(solver, diffrax.ShARK):
            exact = jax.grad(lambda x: jg.Oscillator(x[0], x[1], x[2], 0.8, 0.2).mean(10.0))(x)
            np.testing.assert_allclose(one[:3], exact[:3], rtol=0.03)


def test_an_ensemble_of_the_equation_is_its_solution_path_by_path():
    task = jg.Task(curvature=1.0, plateau=0.8, initial_reward=0.2, rollout_noise=0.4)
    momentum = jnp.array([0.9, 0.0, 0.5])
    settings = jg.Hyperparameters(0.05, momentum=momentum, refresh_interval=3)
    runs = jg.simulate(
        settings, task, steps=12, paths=32, key=KEY, method="sde", substeps=4, record=3, quantiles=()
    )
    for i in range(3):
        sde = jg.OscillatorSDE.from_task(
            jg.Hyperparameters(0.05, momentum=float(momentum[i]), refresh_interval=3), task
        )
        rewards = np.asarray(sde.solve(12, paths=32, key=KEY, substeps=4).ys, float)[[0, 4, 8, 12]]
        np.testing.assert_allclose(runs.mean[i], rewards.mean(1), rtol=1e-5)
        np.testing.assert_allclose(runs.variance[i, 1:], rewards[1:].var(1, ddof=1), rtol=1e-3)


def test_adaptive_steps_and_a_solver_of_one_s_own_give_the_same_moments():
    own, n = oscillator(1.0, 0.6, 0.2), 500
    sde = jg.OscillatorSDE(own)
    rewards = sde.solve(10, paths=n, key=KEY, tolerance=0.02).ys[-1]
    assert abs(float(rewards.mean()) - float(own.mean(10.0))) < 4 * float(own.variance(10.0) / n) ** 0.5
    assert abs(float(rewards.var() / own.variance(10.0)) - 1) < 4 * np.sqrt(2 / n)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: jg.OscillatorSDE(oscillator([1.0, 1.0], 1.0, 1.0)), "one configuration"),
        (lambda: jg.OscillatorSDE(oscillator(-1.0, 1.0, 1.0)), "mass must not be negative"),
        (lambda: jg.OscillatorSDE(oscillator(0.0, 0.0, 1.0)), "damping must be positive"),
        (lambda: jg.OscillatorSDE(oscillator(0.0, 1.0, 1.0), jg.Softmax(), lag=1.0), "method='exact'"),
        (lambda: jg.OscillatorSDE(oscillator(1e-6, 1.0, 1.0)).solve(3, key=KEY), "first-order equation"),
    ],
)
def test_what_does_not_exist_is_told(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_the_step_resolves_the_fastest_rate():
    assert needed_substeps(0.9, 0.1, 0.01) == 1
    assert needed_substeps(np.array([0.9, 0.05]), np.array([0.1, 0.95]), np.array([0.01, 0.01])) == 38
    assert needed_substeps(0.0, 1.0, 0.1) == 1
