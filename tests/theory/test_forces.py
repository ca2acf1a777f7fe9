"""Restoring forces: their values, fixed points and curvatures, and curves against SciPy's integrators."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import theory_reference as reference
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, optimize

from jaxgrpo.theory.cycle import critical_stiffness
from jaxgrpo.theory.forces import Harmonic, KLAnchored, MixedDifficulty, Softmax, drive
from jaxgrpo.theory.hyperparameters import Hyperparameters
from jaxgrpo.theory.task import Task
from jaxgrpo.theory.trajectory import mean_field


def f(value):
    return jnp.asarray(float(value))


def softmax_push(z, normalisation, group_size):
    """The force on a logit, over the curvature, by enumeration over the group's successes."""
    z = np.atleast_1d(z)
    p = reference.sigmoid(z)
    if not np.isfinite(group_size):
        return np.sqrt(p * (1 - p)) if normalisation == "std" else p * (1 - p)
    if normalisation == "mean":
        return p * (1 - p) * (1 - 1 / group_size)
    return np.array([reference.expected_std(x, int(group_size)) for x in p])


# --- harmonic ----------------------------------------------------------------------------------------------


def test_harmonic(precision):
    force = Harmonic()
    state = force.initial_state(f(0.2), f(0.8))
    assert state.shape == (1,)
    assert float(force.reward(state, f(0.8))) == pytest.approx(0.2)
    np.testing.assert_allclose(drive(force, state, f(0.8)), [0.6], rtol=1e-6)
    np.testing.assert_allclose(drive(force, state, f(0.8), f(4.0)), [0.6], rtol=1e-6)


# --- softmax -----------------------------------------------------------------------------------------------


@settings(reference.PROPERTY, max_examples=10)
@given(
    share=st.floats(0.01, 0.97),
    floor=st.sampled_from([0.0, 0.1, -1.0]),
    height=st.floats(0.2, 2.0),
    normalisation=st.sampled_from(["std", "mean"]),
    group_size=st.sampled_from([2, 4, 8, 16, np.inf]),
)
def test_softmax(x64, share, floor, height, normalisation, group_size):
    force = Softmax(normalisation=normalisation, floor=floor)
    ceiling, start = floor + height, floor + height * share
    state = force.initial_state(f(start), f(ceiling))
    assert state.shape == (1,)
    assert float(state[0]) == pytest.approx(np.log(share / (1 - share)), abs=1e-8)
    assert float(force.reward(state, f(ceiling))) == pytest.approx(start, abs=1e-12)
    np.testing.assert_allclose(
        drive(force, state, f(ceiling), f(group_size)),
        softmax_push(float(state[0]), normalisation, group_size),
        rtol=5e-6,  # the expected spread may be tabulated
    )


@pytest.mark.parametrize("normalisation", ["std", "mean"])
@pytest.mark.parametrize("momentum", [0.7])
def test_softmax_curve_is_the_differential_equation_for_small_steps(x64, normalisation, momentum):
    """dz/ds = kappa x drive in learning-rate time, approached with order one in the rate."""
    task = Task(
        curvature=2.0, plateau=0.9, initial_reward=0.1, force=Softmax(normalisation=normalisation, floor=0.05)
    )
    start = np.log((0.1 - 0.05) / (0.9 - 0.1))
    ends = np.linspace(0.5, 4.0, 8)
    solution = integrate.solve_ivp(
        lambda s, z: 2.0 * softmax_push(z, normalisation, 8),
        (0.0, 4.0),
        [start],
        t_eval=ends,
        rtol=1e-10,
        atol=1e-12,
    )
    expected = 0.05 + 0.85 * reference.sigmoid(solution.y[0])
    rates, errors = [0.02, 0.01, 0.005], []
    for rate in rates:
        got = mean_field(
            Hyperparameters(learning_rate=rate, momentum=momentum, refresh_interval=2),
            task,
            jnp.asarray(np.round(ends / rate)),
        )
        errors.append(float(np.abs(np.asarray(got) - expected).max()))
    assert reference.slope(rates, errors) == pytest.approx(1.0, abs=0.1)
    assert errors[-1] < 0.01


@pytest.mark.parametrize("normalisation", ["std", "mean"])
def test_softmax_tail_is_algebraic(x64, normalisation):
    """The gap to the ceiling falls as 1/t, not exponentially.

    Also std-normalised: close to the ceiling a finite group's expected spread is proportional to the gap.
    """
    task = Task(curvature=1.0, plateau=1.0, initial_reward=0.5, force=Softmax(normalisation))
    steps = jnp.asarray([4000.0, 8000.0])
    got = mean_field(Hyperparameters(learning_rate=0.2, momentum=0.0), task, steps)
    assert reference.slope(np.asarray(steps), 1.0 - np.asarray(got)) == pytest.approx(-1.0, abs=0.05)


# --- prompts of mixed difficulty ---------------------------------------------------------------------------


@pytest.mark.parametrize("nodes", [21, 7])
@pytest.mark.parametrize("spread", [0.0, 0.5, 1.5, 3.0])
def test_mixed_difficulty_starts_at_the_initial_reward(x64, spread, nodes):
    force = MixedDifficulty(spread=spread, floor=0.1, nodes=nodes)
    state = force.initial_state(f(0.35), f(0.95))
    assert state.shape == (nodes,)
    assert float(force.reward(state, f(0.95))) == pytest.approx(0.35, abs=1e-9)


@pytest.mark.parametrize("spread", [0.5, 1.5])
def test_mixed_difficulty_reads_out_the_population_average(x64, spread):
    """The mean logit is that of the initial reward, and shifting all logits shifts the population."""
    force = MixedDifficulty(spread=spread, floor=0.1)
    state = force.initial_state(f(0.35), f(0.95))
    location = optimize.brentq(
        lambda z: reference.logit_normal_average(reference.sigmoid, z, spread) - 0.25 / 0.85, -10, 10
    )
    for shift in (-2.0, 0.0, 1.0, 4.0):
        average = reference.logit_normal_average(reference.sigmoid, location + shift, spread)
        assert float(force.reward(state + shift, f(0.95))) == pytest.approx(0.1 + 0.85 * average, abs=5e-4)


def test_mixed_difficulty_drives_each_prompt_by_its_own_force(x64):
    for normalisation in ("std", "mean"):
        force = MixedDifficulty(spread=1.2, normalisation=normalisation)
        state = force.initial_state(f(0.3), f(0.9))
        for group_size in (4, np.inf):
            np.testing.assert_allclose(
                drive(force, state, f(0.9), f(group_size)),
                softmax_push(np.asarray(state), normalisation, group_size),
                rtol=5e-6,  # the expected spread may be tabulated
            )


@pytest.mark.parametrize("normalisation", ["std", "mean"])
@pytest.mark.parametrize(
    ("spread", "refresh_interval", "async_lag"),
    [(0.6, 1, 0), (1.0, 4, 0), (1.0, 4, 1), (1.5, 4, 0), (2.5, 4, 0)],
)
def test_mixed_difficulty_against_a_population_of_prompts(
    x64, normalisation, spread, refresh_interval, async_lag
):
    """Brute force: 1001 prompts at equally probable difficulties, each updated by the same optimizer.

    The default nodes must do: an error of 0.005 in the reward is small against the noise of a run.
    """
    floor, ceiling, start, group_size = 0.05, 0.9, 0.25, 8
    quantiles = reference.normal_nodes(1001)

    def reward(z):
        return floor + (ceiling - floor) * np.mean(reference.sigmoid(z), axis=-1)

    location = optimize.brentq(lambda z: reward(z + spread * quantiles) - start, -20, 20)
    table = np.linspace(-25, 25, 20001)
    pushes = np.array([softmax_push(x, normalisation, group_size)[0] for x in table[::20]])

    states, _ = reference.run_update(
        lambda z: np.interp(z, table[::20], pushes),
        location + spread * quantiles,
        momentum=0.9,
        step_size=0.1 * 0.02 * 5.0,
        refresh_interval=refresh_interval,
        steps=600,
        async_lag=async_lag,
    )
    task = Task(
        curvature=5.0,
        plateau=ceiling,
        initial_reward=start,
        force=MixedDifficulty(spread=spread, normalisation=normalisation, floor=floor),
    )
    hyperparameters = Hyperparameters(
        learning_rate=0.02,
        momentum=0.9,
        group_size=group_size,
        refresh_interval=refresh_interval,
        async_lag=async_lag,
    )
    steps = np.arange(0, 601, 12)
    got = mean_field(hyperparameters, task, jnp.asarray(steps, dtype=float))
    expected = reward(states)[steps]
    assert expected[-1] - expected[0] > 0.2
    np.testing.assert_allclose(got, expected, atol=5e-3)


def test_mixed_difficulty_without_spread_is_the_single_softmax(x64):
    hyperparameters = Hyperparameters(learning_rate=0.05, momentum=0.8, refresh_interval=3)
    steps = jnp.arange(0.0, 200.0, 10.0)
    single, mixed = (
        mean_field(hyperparameters, Task(curvature=2.0, plateau=0.9, initial_reward=0.2, force=force), steps)
        for force in (Softmax(), MixedDifficulty(spread=0.0))
    )
    np.testing.assert_allclose(mixed, single, atol=1e-9)


def test_easy_prompts_saturate_first(x64):
    """The same start and the same speed: the mixture's tail is the longer one."""
    hyperparameters = Hyperparameters(learning_rate=0.05, momentum=0.0)
    steps = jnp.asarray([1.0, 150.0])
    single, mixed = (
        np.asarray(
            mean_field(
                hyperparameters, Task(curvature=2.0, plateau=0.9, initial_reward=0.45, force=force), steps
            )
        )
        for force in (Softmax(), MixedDifficulty(spread=2.5))
    )
    assert mixed[1] < single[1]


# --- KL anchor and the two-arm bandit ----------------------------------------------------------------------


@pytest.mark.parametrize("group_size", [4, 8, 16, 32, np.inf])
def test_fixed_point_of_the_anchored_bandit(x64, group_size):
    """Mean-only advantage: theta* = (1 - 1/G) / beta. At beta = 0.5: 1.5, 1.75, 1.875, 1.9375, 2."""
    force = KLAnchored(Softmax(normalisation="mean"), beta=0.5, reference=0.0)
    theta = {4: 1.5, 8: 1.75, 16: 1.875, 32: 1.9375, np.inf: 2.0}[group_size]
    got = float(force.fixed_point(f(1.0), f(group_size)))
    tolerance = 1e-9
    assert got == pytest.approx(float(reference.sigmoid(theta)), rel=tolerance)
    if group_size == np.inf:
        assert got == pytest.approx(0.880797, abs=1e-6)
    state = force.initial_state(f(reference.sigmoid(theta)), f(1.0))
    np.testing.assert_allclose(drive(force, state, f(1.0), f(group_size)), [0.0], atol=tolerance)


def test_curvature_at_the_fixed_point(x64):
    force = KLAnchored(Softmax(normalisation="mean"), beta=0.5, reference=0.0)
    slope = jax.jacobian(lambda z: drive(force, z, f(1.0)))(jnp.asarray([2.0]))
    assert -float(slope[0, 0]) == pytest.approx(0.0524968, abs=5e-8)


def test_anchor_is_added_to_the_force(x64):
    for base in (Softmax(), Softmax(normalisation="mean"), MixedDifficulty(spread=1.0)):
        force = KLAnchored(base, beta=0.3, reference=-0.4)
        state = base.initial_state(f(0.3), f(1.0))
        np.testing.assert_allclose(force.initial_state(f(0.3), f(1.0)), state, atol=1e-12)
        p = reference.sigmoid(np.asarray(state))
        expected = np.asarray(drive(base, state, f(1.0), f(8))) - 0.3 * (np.asarray(state) + 0.4) * p * (
            1 - p
        )
        np.testing.assert_allclose(drive(force, state, f(1.0), f(8)), expected, atol=1e-12)


@pytest.mark.parametrize("curvature", [1.0, 4.0])
@pytest.mark.parametrize(("normalisation", "beta"), [("mean", 0.5), ("std", 2.0)])
def test_trajectories_end_at_the_fixed_point(x64, normalisation, beta, curvature):
    force = KLAnchored(Softmax(normalisation=normalisation), beta=beta, reference=0.0)
    task = Task(curvature=curvature, plateau=1.0, initial_reward=0.5, force=force)
    hyperparameters = Hyperparameters(learning_rate=0.5 / curvature, momentum=0.5, group_size=8)
    end = mean_field(hyperparameters, task, jnp.asarray([6000.0]))[0]
    assert float(force.fixed_point(f(1.0), f(8))) == pytest.approx(float(end), abs=1e-8)


def bandit_cycle(z, u, momentum, rate, refresh_interval, beta=0.5):
    """One refresh cycle of the deterministic two-arm bandit: gradient pi_old A_old and a stale anchor."""
    p = 1 / (1 + np.exp(-z))
    stale = p * (1 - p) - beta * z * p * (1 - p)
    for _ in range(refresh_interval):
        u = momentum * u + rate * stale
        z = z + u
    return z, u


@pytest.mark.parametrize("refresh_interval", [2, 4, 8, 16])
@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9, 0.95])
def test_critical_rate_of_the_deterministic_bandit(x64, momentum, refresh_interval):
    """The rate at which the bandit's own cycle (differentiated by complex steps) loses stability."""

    def radius(rate):
        columns = []
        for dz, du in ((1e-30j, 0), (0, 1e-30j)):
            z, u = bandit_cycle(2.0 + dz, 0.0 + du, momentum, rate, refresh_interval)
            columns.append([z.imag / 1e-30, u.imag / 1e-30])
        return np.abs(np.linalg.eigvals(np.array(columns).T)).max()

    kappa = 0.5 * reference.sigmoid(2.0) * (1 - reference.sigmoid(2.0))
    assert kappa == pytest.approx(0.0524968, abs=5e-8)
    low, high = 1e-3, 1e-3
    while radius(high) <= 1.0:
        low, high = high, high * 1.02
    rate = reference.bisect(lambda x: radius(x) > 1.0, low, high)
    assert rate * kappa == pytest.approx(
        float(critical_stiffness(f(momentum), f(refresh_interval))), rel=1e-7
    )


@pytest.mark.parametrize("refresh_interval", [2, 8])
@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_mean_field_of_the_bandit_turns_unstable_there(x64, momentum, refresh_interval):
    force = KLAnchored(Softmax(normalisation="mean"), beta=0.5, reference=0.0)
    plateau = float(reference.sigmoid(1.75))  # groups of 8
    kappa = 0.5 * plateau * (1 - plateau)
    threshold = reference.critical_stiffness(momentum, refresh_interval) / kappa
    task = Task(curvature=1.0, plateau=1.0, initial_reward=plateau + 1e-6, force=force)
    cycles = np.arange(0, 400)
    departures = []
    for factor in (0.97, 1.03):
        hyperparameters = Hyperparameters(
            learning_rate=factor * threshold,
            momentum=momentum,
            refresh_interval=refresh_interval,
            convention="heavy_ball",
        )
        got = mean_field(hyperparameters, task, jnp.asarray(cycles * refresh_interval, dtype=float))
        departures.append(np.abs(np.asarray(got)[200:] - plateau).max())
    assert departures[0] < 1e-6 < departures[1] / 2


@pytest.mark.parametrize("group_size", [4, 8, 16, 32])
def test_sampled_bandit_settles_where_predicted(group_size):
    """A sampled two-arm bandit (mean-only advantage, beta = eta = mu = 0.5, B = 4), many runs at once."""
    generator = np.random.default_rng(11)
    runs, steps, burn_in = 3000, 1200, 400
    z, u = np.full(runs, 1.5), np.zeros(runs)
    total = 0.0
    for t in range(steps):
        p = reference.sigmoid(z)
        share = generator.binomial(group_size, p, size=(4, runs)) / group_size
        push = (share * (1 - share)).mean(axis=0) - 0.5 * z * p * (1 - p)
        u = 0.5 * u + 0.5 * push
        z = z + u
        total += z.mean() * (t >= burn_in)
    settled = total / (steps - burn_in)
    predicted = KLAnchored(Softmax(normalisation="mean"), beta=0.5, reference=0.0).fixed_point(
        f(1.0), f(group_size)
    )
    logit = np.log(float(predicted) / (1 - float(predicted)))
    # The sampled noise shifts the mean logit a little above the mean-field value.
    assert settled == pytest.approx({4: 1.512, 8: 1.759, 16: 1.881, 32: 1.941}[group_size], abs=5e-3)
    assert settled == pytest.approx(logit, abs=0.02)


# --- invalid values ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "make"),
    [
        ("normalisation", lambda: Softmax(normalisation="median")),
        ("normalisation", lambda: MixedDifficulty(spread=1.0, normalisation="median")),
        ("spread", lambda: MixedDifficulty(spread=-1.0)),
        ("nodes", lambda: MixedDifficulty(spread=1.0, nodes=0)),
        ("beta", lambda: KLAnchored(Softmax(), beta=-0.1, reference=0.0)),
    ],
)
def test_invalid_values_are_refused_by_name(x64, field, make):
    # A wrong word is caught by the type checker first where that is on.
    with pytest.raises((ValueError, TypeError), match=field):
        make()


@pytest.mark.parametrize("initial_reward", [0.95, -0.1])
def test_a_start_outside_the_softmax_range_is_refused_by_name(x64, initial_reward):
    """No logit has a reward above the ceiling or below the floor."""
    task = Task(curvature=1.0, plateau=0.9, initial_reward=initial_reward, force=Softmax())
    with pytest.raises(Exception, match="initial_reward"):
        jax.block_until_ready(mean_field(Hyperparameters(learning_rate=0.01), task, jnp.asarray([3.0])))
