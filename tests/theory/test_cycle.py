"""The cycle map and its thresholds against matrices and growth from the update rule itself."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import theory_reference as reference
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import linalg

from jaxgrpo.theory import cycle

# Compiled once; the eager functions are tried in `test_maps_pass_through_jit_vmap_and_plain_numbers`.
cycle_map = jax.jit(cycle.cycle_map)
companion_map = jax.jit(cycle.companion_map, static_argnums=4)
spectral_radius = jax.jit(cycle.spectral_radius, static_argnums=4)
critical_stiffness = jax.jit(cycle.critical_stiffness, static_argnums=3)
leading_critical_stiffness = cycle.leading_critical_stiffness
critical_refresh_interval = jax.jit(cycle.critical_refresh_interval)
leading_critical_refresh_interval = jax.jit(cycle.leading_critical_refresh_interval)
oscillation_onset = jax.jit(cycle.oscillation_onset)
flip_stiffness = jax.jit(cycle.flip_stiffness)
neimark_sacker_stiffness = jax.jit(cycle.neimark_sacker_stiffness)

INTERVALS = (1, 2, 4, 8, 16)

# Critical stiffness as printed, and its leading order (None: infinite).
SYNCHRONOUS = {
    0.0: ("2.0000", "1.0000", "0.50000", "0.25000", "0.12500"),
    0.5: ("3.0000", "1.2500", "0.447368", "0.166235", "0.0714283"),
    0.9: ("3.8000", "0.211111", "0.0730614", "0.0338593", "0.0186539"),
    0.95: ("3.9000", "0.102632", "0.0348206", "0.0154728", "0.00778561"),
}
LEADING = {
    0.0: (None, "2.0", "0.6667", "0.2857", "0.1333"),
    0.5: (None, "1.0", "0.3333", "0.1429", "0.0667"),
    0.9: (None, "0.2", "0.0667", "0.02857", "0.01333"),
    0.95: (None, "0.1", "0.0333", "0.01429", "0.00667"),
}
ONE_SET_BEHIND = {
    0.0: ("1.0", "0.5", "0.25", "0.125", "0.0625"),
    0.9: ("0.1", "0.0416417", "0.0198958", "0.0102256", "0.00547209"),
    0.95: ("0.05", "0.0204154", "0.00953738", "0.00477135", "0.00250224"),
}
HALF_CORRECTED = {0.9: ("3.8", "0.422222", "0.157015", "0.0839696", "0.0437081")}

FIGURES = (
    [
        pytest.param(mu, k, 1.0, 0, text, id=f"mu={mu}-K={k}")
        for mu, row in SYNCHRONOUS.items()
        for k, text in zip(INTERVALS, row, strict=True)
    ]
    + [
        pytest.param(mu, k, 1.0, 1, text, id=f"mu={mu}-K={k}-d=1")
        for mu, row in ONE_SET_BEHIND.items()
        for k, text in zip(INTERVALS, row, strict=True)
    ]
    + [
        pytest.param(mu, k, 0.5, 0, text, id=f"mu={mu}-K={k}-rho=0.5")
        for mu, row in HALF_CORRECTED.items()
        for k, text in zip(INTERVALS, row, strict=True)
    ]
)


def f(value):
    return jnp.asarray(float(value))


# --- the maps ----------------------------------------------------------------------------------------------


@reference.PROPERTY
@given(
    momentum=st.sampled_from([0.0, 0.3, 0.9, 0.99]) | st.floats(0.0, 0.99),
    stiffness=st.floats(1e-4, 2.0),
    refresh_interval=st.integers(1, 20),
    staleness=st.sampled_from([1.0, 0.5, 0.0, -0.84, 2.33]),
    async_lag=st.integers(0, 3),
)
def test_companion_map_is_one_cycle_of_the_update(
    x64, momentum, stiffness, refresh_interval, staleness, async_lag
):
    expected = reference.cycle_matrix(momentum, stiffness, refresh_interval, staleness, async_lag)
    got = companion_map(f(momentum), f(stiffness), f(refresh_interval), f(staleness), async_lag)
    scale = np.abs(expected).max()
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-11 * scale)
    if async_lag == 0:
        got = cycle_map(f(momentum), f(stiffness), f(refresh_interval), f(staleness))
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-11 * scale)
    radius = float(spectral_radius(f(momentum), f(stiffness), f(refresh_interval), f(staleness), async_lag))
    # An eigenvalue of multiplicity m is known to the m-th root of the rounding only.
    expected_radius = reference.spectral_radius(momentum, stiffness, refresh_interval, staleness, async_lag)
    assert radius == pytest.approx(expected_radius, rel=2e-6, abs=1e-5)


@reference.PROPERTY
@given(
    momentum=st.floats(0.05, 0.98),
    stiffness=st.floats(1e-3, 1.0),
    first=st.floats(1.0, 6.0),
    staleness=st.sampled_from([1.0, 0.4]),
)
def test_continuous_interval_is_the_fractional_power_of_one_step(x64, momentum, stiffness, first, staleness):
    # B^K for real K by the matrix logarithm; exists while no eigenvalue of B is real and negative.
    reduced = stiffness * (1.0 - staleness)
    step = np.array([[1.0 - reduced, momentum], [-reduced, momentum]])
    eigenvalues = np.linalg.eigvals(step)
    assume(np.all((np.abs(eigenvalues.imag) > 1e-3) | (eigenvalues.real > 1e-3)))
    assume(abs(eigenvalues[0] - eigenvalues[1]) > 1e-2)
    power = linalg.expm(first * linalg.logm(step)).real
    # sum_{i<K} B^i w = (I - B^K)(I - B)^{-1} w; for full staleness I - B is singular, so shift it a little.
    if staleness == 1.0:
        c = (1 - momentum**first) / (1 - momentum)
        a = (first - momentum * c) / (1 - momentum)
        summed = np.array([a, c])
    else:
        summed = (np.eye(2) - power) @ np.linalg.solve(np.eye(2) - step, np.ones(2))
    expected = power - stiffness * staleness * np.outer(summed, [1.0, 0.0])
    got = cycle_map(f(momentum), f(stiffness), f(first), f(staleness))
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-9 * max(1.0, np.abs(expected).max()))


def test_maps_pass_through_jit_vmap_and_plain_numbers(precision):
    momenta = jnp.linspace(0.0, 0.95, 5)
    radii = jax.jit(jax.vmap(lambda mu: cycle.spectral_radius(mu, f(0.05), f(4.0))))(momenta)
    for mu, radius in zip(momenta, radii, strict=True):
        assert float(radius) == pytest.approx(
            reference.spectral_radius(float(mu), 0.05, 4), rel=2e-5 if precision == "float32" else 1e-12
        )
    assert radii.dtype == jnp.dtype(precision)
    assert float(cycle.spectral_radius(0.9, 0.05, 4.0)) == pytest.approx(
        reference.spectral_radius(0.9, 0.05, 4), rel=1e-5
    )
    assert cycle.cycle_map(0.9, 0.05, 4.0).shape == (2, 2)
    assert cycle.companion_map(0.9, 0.05, 4.0, 1.0, 3).shape == (5, 5)


# --- critical stiffness ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("momentum", "refresh_interval", "staleness", "async_lag", "text"), FIGURES)
def test_critical_stiffness_table(x64, momentum, refresh_interval, staleness, async_lag, text):
    got = float(critical_stiffness(f(momentum), f(refresh_interval), f(staleness), async_lag))
    assert reference.matches_print(got, text)
    expected = reference.critical_stiffness(momentum, refresh_interval, staleness, async_lag)
    assert got == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize(("momentum", "refresh_interval", "staleness", "async_lag", "text"), FIGURES)
def test_critical_stiffness_separates_decay_from_growth(
    x64, momentum, refresh_interval, staleness, async_lag, text
):
    got = float(critical_stiffness(f(momentum), f(refresh_interval), f(staleness), async_lag))
    cycles = 1200
    factors = np.array([0.99, 1.01])

    def push(errors):
        return -errors * factors

    errors, _ = reference.run_update(
        push,
        np.ones(2),
        momentum=momentum,
        step_size=got,
        refresh_interval=refresh_interval,
        steps=cycles * refresh_interval,
        staleness=staleness,
        async_lag=async_lag,
    )
    half = len(errors) // 2
    early = np.abs(errors[half // 2 : half]).max(axis=0)
    late = np.abs(errors[-half // 2 :]).max(axis=0)
    assert late[0] < early[0]
    assert late[1] > early[1]


def test_critical_stiffness_in_single_precision():
    for momentum, row in SYNCHRONOUS.items():
        for refresh_interval, text in zip(INTERVALS, row, strict=True):
            got = critical_stiffness(f(momentum), f(refresh_interval))
            assert got.dtype == jnp.float32
            assert float(got) == pytest.approx(float(text), rel=2e-4)


@pytest.mark.parametrize("staleness", [0.0, -0.84, 0.68, 2.33])
@pytest.mark.parametrize("refresh_interval", [1, 2, 4, 8])
@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_critical_stiffness_for_any_staleness(x64, momentum, refresh_interval, staleness):
    got = float(critical_stiffness(f(momentum), f(refresh_interval), f(staleness)))
    expected = reference.critical_stiffness(momentum, refresh_interval, staleness)
    assert got == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("staleness", "async_lag"), [(0.6, 1), (1.0, 2), (0.3, 3)])
@pytest.mark.parametrize("refresh_interval", [1, 3, 8])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_critical_stiffness_with_lag_and_staleness(x64, momentum, refresh_interval, staleness, async_lag):
    got = float(critical_stiffness(f(momentum), f(refresh_interval), f(staleness), async_lag))
    expected = reference.critical_stiffness(momentum, refresh_interval, staleness, async_lag)
    assert got == pytest.approx(expected, rel=1e-6)


@reference.PROPERTY
@given(
    momentum=st.just(0.0) | st.floats(0.0, 0.97),
    refresh_interval=st.integers(1, 24),
)
def test_flip_and_neimark_sacker_stiffness(x64, momentum, refresh_interval):
    """At a flip the cycle has the eigenvalue -1; at a Neimark-Sacker threshold its determinant is 1."""
    flip = float(flip_stiffness(f(momentum), f(refresh_interval)))
    swing = float(neimark_sacker_stiffness(f(momentum), f(refresh_interval)))
    matrix = reference.cycle_matrix(momentum, flip, refresh_interval)
    scale = max(1.0, np.abs(matrix).max()) ** 2
    if flip > 0 and np.isfinite(flip):
        assert abs(np.linalg.det(matrix + np.eye(2))) < 1e-9 * scale
    if np.isfinite(swing):
        assert swing > 0
        matrix = reference.cycle_matrix(momentum, swing, refresh_interval)
        assert np.linalg.det(matrix) == pytest.approx(1.0, abs=1e-9 * max(1.0, np.abs(matrix).max()) ** 2)
    else:
        # The determinant then never grows with the stiffness.
        low = np.linalg.det(reference.cycle_matrix(momentum, 0.1, refresh_interval))
        high = np.linalg.det(reference.cycle_matrix(momentum, 0.2, refresh_interval))
        assert high <= low + 1e-12
    expected = reference.critical_stiffness(momentum, refresh_interval)
    positive = flip if flip > 0 else np.inf
    assert min(positive, swing) == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9, 0.99])
def test_closed_forms_at_one_step_and_without_momentum(precision, momentum):
    tolerance = 1e-5 if precision == "float32" else 1e-12
    assert float(critical_stiffness(f(momentum), f(1.0))) == pytest.approx(2 * (1 + momentum), rel=tolerance)
    assert float(oscillation_onset(f(momentum), f(1.0))) == pytest.approx(
        (1 - np.sqrt(momentum)) ** 2, rel=100 * tolerance
    )
    for k in (1.0, 3.0, 7.0, 100.0):
        assert float(critical_stiffness(f(0.0), f(k))) == pytest.approx(2 / k, rel=tolerance)


# --- leading order -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("momentum", list(LEADING))
def test_leading_critical_stiffness_table(precision, momentum):
    for refresh_interval, text in zip(INTERVALS, LEADING[momentum], strict=True):
        got = float(leading_critical_stiffness(f(momentum), f(refresh_interval)))
        if text is None:
            assert got == np.inf
        else:
            assert reference.matches_print(got, text)
            lag = np.mean(np.arange(refresh_interval))
            assert got == pytest.approx((1 - momentum) / lag, rel=1e-5)


def test_leading_critical_stiffness_with_lag_and_staleness(x64):
    # tau counted step by step; the damping (1 - mu) - h tau vanishes at the threshold.
    for k, d, rho in [(4, 1, 1.0), (1, 2, 0.5), (16, 0, 0.25)]:
        lag = rho * np.mean([d * k + i for i in range(k)])
        assert float(leading_critical_stiffness(f(0.9), f(k), f(rho), d)) == pytest.approx(
            0.1 / lag, rel=1e-12
        )
    assert float(leading_critical_stiffness(f(0.9), f(8.0), f(0.0), 0)) == np.inf


def test_leading_threshold_becomes_exact_for_small_stiffness(x64):
    """With momentum close to one and K fixed, h_c tau / (1 - mu) -> 1 with order one in 1 - mu."""
    gaps, errors = [0.08, 0.04, 0.02, 0.01], []
    for gap in gaps:
        exact = float(critical_stiffness(f(1 - gap), f(3.0)))
        leading = float(leading_critical_stiffness(f(1 - gap), f(3.0)))
        errors.append(abs(leading / exact - 1.0))
    assert reference.slope(gaps, errors) == pytest.approx(1.0, abs=0.15)
    assert errors[-1] < 0.02


# --- oscillation onset -------------------------------------------------------------------------------------


@pytest.mark.parametrize("refresh_interval", [1, 2, 3, 4, 8, 16])
@pytest.mark.parametrize("momentum", [0.1, 0.5, 0.9, 0.95])
def test_oscillation_onset(x64, momentum, refresh_interval):
    got = float(oscillation_onset(f(momentum), f(refresh_interval)))
    assert got == pytest.approx(reference.oscillation_onset(momentum, refresh_interval), rel=1e-7)
    below = np.linalg.eigvals(reference.cycle_matrix(momentum, 0.999 * got, refresh_interval))
    above = np.linalg.eigvals(reference.cycle_matrix(momentum, 1.001 * got, refresh_interval))
    assert np.all(below.imag == 0) and np.all(above.imag != 0)


def test_oscillation_begins_far_below_instability(x64):
    # mu = 0.9, mean lag 1 (K = 3): about 0.0025 against 0.1.
    assert float(oscillation_onset(f(0.9), f(3.0))) == pytest.approx(0.0025, rel=0.1)
    assert float(critical_stiffness(f(0.9), f(3.0))) == pytest.approx(0.1, rel=0.1)


# --- critical refresh interval -----------------------------------------------------------------------------


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9, 0.95])
@pytest.mark.parametrize("target", [2.0, 3.5, 8.0, 12.25])
def test_critical_interval_inverts_critical_stiffness(x64, momentum, target):
    stiffness = critical_stiffness(f(momentum), f(target))
    got = float(critical_refresh_interval(f(momentum), stiffness))
    assert got == pytest.approx(target, rel=1e-6)


@reference.PROPERTY
@given(momentum=st.just(0.0) | st.floats(0.0, 0.97), fraction=st.floats(0.005, 0.9))
def test_critical_interval_separates_whole_intervals(x64, momentum, fraction):
    stiffness = fraction * 2 * (1 - momentum)
    got = float(critical_refresh_interval(f(momentum), f(stiffness)))
    assume(got < 400 and abs(got - round(got)) > 1e-3)
    for k in range(1, int(got) + 1):
        assert reference.spectral_radius(momentum, stiffness, k) < 1.0
    assert reference.spectral_radius(momentum, stiffness, int(got) + 1) > 1.0


@pytest.mark.parametrize(
    ("momentum", "stiffness", "staleness"), [(0.5, 0.2, 0.7), (0.9, 0.05, 0.5), (0.8, 0.1, 1.8)]
)
def test_critical_interval_with_partial_staleness(x64, momentum, stiffness, staleness):
    got = float(critical_refresh_interval(f(momentum), f(stiffness), f(staleness)))
    first_unstable = next(
        k for k in range(1, 1000) if reference.spectral_radius(momentum, stiffness, k, staleness) > 1.0
    )
    assert first_unstable - 1 < got < first_unstable


def test_critical_interval_is_infinite_where_no_lag_can_destabilise(precision):
    # Without momentum e after a long cycle is -rho/(1-rho) of e before it: below one for rho < 1/2.
    assert float(critical_refresh_interval(f(0.0), f(0.1), f(0.4))) == np.inf
    assert float(critical_refresh_interval(f(0.9), f(0.1), f(0.0))) == np.inf


def test_leading_critical_interval(precision):
    assert float(leading_critical_refresh_interval(f(0.9), f(0.02))) == pytest.approx(
        1 + 0.2 / 0.02, rel=1e-5
    )
    assert float(leading_critical_refresh_interval(f(0.9), f(0.02), f(0.5))) == pytest.approx(
        1 + 0.2 / 0.01, rel=1e-5
    )
    assert float(leading_critical_refresh_interval(f(0.9), f(0.02), f(0.0))) == np.inf
