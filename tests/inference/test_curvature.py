"""The matrix-free curvature against dense matrices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxgrpo as jg
from jaxgrpo.inference.curvature import arnoldi, cycle_eigenvalues


def symmetric(n, seed=0):
    a = np.random.default_rng(seed).standard_normal((n, n))
    return a @ a.T / n


@pytest.mark.parametrize("n", [3, 60])
def test_sharpness_mode_and_rayleigh_quotient_are_those_of_the_dense_matrix(x64, n):
    matrix = jnp.asarray(symmetric(n))
    tilt = jnp.asarray(np.random.default_rng(1).standard_normal(n))
    force = lambda p: {"w": -(matrix @ p["w"])}
    reward = lambda p: 0.3 + 0.01 * tilt @ p["w"]
    measured = jg.measure_curvature(force, {"w": jnp.zeros(n)}, reward=reward, iterations=60)
    values, vectors = np.linalg.eigh(np.asarray(matrix))
    assert measured.sharpness == pytest.approx(values[-1], rel=1e-9)
    assert abs(vectors[:, -1] @ np.asarray(measured.mode["w"])) == pytest.approx(1.0, abs=1e-6)
    assert measured.along_reward == pytest.approx(float(tilt @ matrix @ tilt / (tilt @ tilt)), rel=1e-9)
    assert measured.logit_slope == pytest.approx(1e-4 * float(tilt @ tilt) / 0.21**2, rel=1e-9)
    assert measured.residual < 1e-6 and np.isnan(measured.staleness)


def test_staleness_is_the_share_of_the_policy_that_sampled(x64):
    matrix = jnp.asarray(symmetric(20))
    force = lambda now, old: -(matrix @ (1.4 * now - 0.4 * old))
    measured = jg.measure_curvature(force, jnp.zeros(20))
    assert measured.staleness == pytest.approx(-0.4, rel=1e-6)
    assert measured.sharpness == pytest.approx(np.linalg.eigvalsh(np.asarray(matrix))[-1], rel=1e-8)


def test_a_sampled_force_comes_with_its_standard_error(x64):
    matrix = jnp.asarray(symmetric(10))

    def force(p, *, key):
        return -(matrix * (1.0 + 0.2 * jax.random.normal(key))) @ p

    measured = jg.measure_curvature(force, jnp.ones(10), key=jax.random.key(5), samples=400)
    truth = np.linalg.eigvalsh(np.asarray(matrix))[-1]
    assert measured.error == pytest.approx(0.2 * truth / 20.0, rel=0.15)
    assert abs(measured.sharpness - truth) < 4 * measured.error


def test_arnoldi_projects_a_matrix_that_is_not_symmetric(x64):
    matrix = np.random.default_rng(3).standard_normal((8, 8))
    basis, projection = arnoldi(lambda v: jnp.asarray(matrix) @ v, jnp.ones(8), 8)
    np.testing.assert_allclose(basis @ basis.T, np.eye(8), atol=1e-12)
    np.testing.assert_allclose(
        np.sort_complex(np.linalg.eigvals(projection)), np.sort_complex(np.linalg.eigvals(matrix)), atol=1e-9
    )


def test_eigenvalues_of_a_cycle_leave_out_the_flat_directions(x64):
    stiffness = jnp.asarray([0.3, 0.1, 0.0, 0.0])

    def cycle(state, momentum):
        x, u = state
        u = momentum * u - stiffness * x
        return x + u, u

    found = cycle_eigenvalues(cycle, (jnp.zeros(4), jnp.zeros(4)), 0.5)
    expected = np.concatenate([np.linalg.eigvals([[1 - h, 0.5], [-h, 0.5]]) for h in (0.3, 0.1)])
    np.testing.assert_allclose(np.abs(found[:4]), np.sort(np.abs(expected))[::-1], atol=1e-7)


def test_a_mistake_inside_a_force_of_two_arguments_is_shown_as_it_is():
    with pytest.raises(TypeError, match="unsupported operand"):
        jg.measure_curvature(lambda now, old: now + "x", jnp.ones(3))


def test_a_force_of_another_shape_is_refused():
    with pytest.raises(ValueError, match="like the parameters"):
        jg.measure_curvature(lambda p: p[:2], jnp.ones(3))
