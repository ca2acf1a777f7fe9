r"""The curvature of a real policy's own force field, without ever forming a matrix.

A force is a function from parameters to the direction in which the optimizer pushes them. Its Jacobian along vectors comes
from `jax.jvp`; everything here is built on that alone, so that it serves any policy written in JAX.
"""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

Vector = Float[Array, " n"]
Tree = Any


class Curvature(NamedTuple):
    r"""Curvatures of a force field at one point.

    Attributes:
        sharpness: Largest real part among the eigenvalues of minus the Jacobian: it decides stability and ringing.
        mode: Direction that belongs to it, a pytree like the parameters, of unit length.
        staleness: $\rho$ along that mode: share of its curvature that is due to the policy that sampled; NaN where the
            force was given as a function of one set of parameters.
        along_reward: Rayleigh quotient of minus the Jacobian along the gradient of the reward: it decides the variance of the
            reward; NaN without a reward.
        logit_slope: $|\nabla \operatorname{logit} R|^2$: it decides the course of the reward; NaN without a reward.
        residual: $|-J v - \lambda v| / \lambda$ for the sharpness and its mode: how far the iteration is from done.
        error: Standard error of the sharpness where the force is sampled; NaN otherwise.
    """

    sharpness: float
    mode: Tree
    staleness: float
    along_reward: float
    logit_slope: float
    residual: float
    error: float


def arnoldi(
    product: Callable[[Vector], Vector], start: Vector, iterations: int
) -> tuple[np.ndarray, np.ndarray]:
    """Krylov basis of a linear map and its projection on it, by Arnoldi's iteration with reorthogonalisation.

    For a symmetric map the projection is tridiagonal and this is Lanczos' iteration.

    Args:
        product: The map.
        start: First vector.
        iterations: Vectors of the basis, at most; fewer if the basis closes before.

    Returns:
        The basis, iterations x n, and the projection, iterations x iterations.
    """
    size = min(iterations, start.size)
    basis = np.zeros((size + 1, start.size))
    projection = np.zeros((size + 1, size))
    basis[0] = np.asarray(start, float) / np.linalg.norm(np.asarray(start, float))
    for j in range(size):
        w = np.asarray(product(jnp.asarray(basis[j], start.dtype)), float)
        scale = np.linalg.norm(w)
        for _ in range(2):
            overlap = basis[: j + 1] @ w
            projection[: j + 1, j] += overlap
            w = w - overlap @ basis[: j + 1]
        projection[j + 1, j] = np.linalg.norm(w)
        if projection[j + 1, j] <= 1e-10 * max(scale, 1e-300):
            return basis[: j + 1], projection[: j + 1, : j + 1]
        basis[j + 1] = w / projection[j + 1, j]
    return basis[:size], projection[:size, :size]


def _takes_two(force: Callable) -> bool:
    """Whether a force distinguishes the current parameters from those that sampled."""
    places = [
        p
        for p in inspect.signature(force).parameters.values()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty and p.name != "key"
    ]
    return len(places) > 1


def measure_curvature(
    force: Callable,
    parameters: Tree,
    *,
    reward: Callable[[Tree], Array] | None = None,
    iterations: int = 40,
    key: Array | None = None,
    samples: int = 0,
) -> Curvature:
    r"""Curvatures of a policy's force field at given parameters, usually at its plateau.

    The top eigenvalue of $-J$, with $J$ the Jacobian of the force when the policy that samples moves along, comes from
    Arnoldi's iteration on `jax.jvp` (Lanczos' where $J$ is symmetric), its left and right parts from the two arguments apart.

    For a Flax or an Equinox language model: write `force(parameters, old)` as the gradient of the loss of one large, fixed set
    of rollouts, with the sign that ascends, e.g. `jax.grad(lambda p: -loss(p, rollouts_of(old)))(parameters)`, where the
    rollouts are reweighted by the ratio of `old` to the policy that made them; pass the trained leaves alone (Equinox:
    `eqx.partition(model, eqx.is_inexact_array)`; Flax: `state.params`).

    Args:
        force: `force(parameters)` or `force(parameters, old_parameters)`, a pytree like the parameters; with `samples`, it
            takes one more argument, `key`, by name.
        parameters: Pytree of floating-point arrays.
        reward: Expected reward as a function of the parameters, if it is to be looked at.
        iterations: Size of the Krylov space.
        key: JAX random key for the start of the iteration (and for the samples).
        samples: Number of independent evaluations of a sampled force that are averaged; 0 if the force is exact.

    Returns:
        The curvatures. With a sampled force `error` is the standard error over the samples, the mode held fixed.

    Raises:
        ValueError: If the force is not like the parameters or the result is not finite.

    Example:
        >>> import jax.numpy as jnp, jaxgrpo as jg
        >>> pull = jnp.array([3.0, 1.0, 0.5])
        >>> measured = jg.measure_curvature(lambda x: pull * (1.0 - x), jnp.ones(3))
        >>> print(round(measured.sharpness, 4))
        3.0
    """
    key = jax.random.key(0) if key is None else key
    flat, unravel = ravel_pytree(parameters)
    sampled = samples > 0
    keys = jax.random.split(jax.random.fold_in(key, 1), max(samples, 1))
    both = _takes_two(force)

    def vector(now, old, one):
        given = {"key": one} if sampled else {}
        arguments = (unravel(now), unravel(old)) if both else (unravel(now),)
        return ravel_pytree(force(*arguments, **given))[0]

    if jax.eval_shape(vector, flat, flat, keys[0]).shape != flat.shape:
        raise ValueError("force must return a pytree like the parameters")

    def along(v, moves_now, moves_old, one):
        tangent = (moves_now * v, moves_old * v)
        return -jax.jvp(lambda a, b: vector(a, b, one), (flat, flat), tangent)[1]

    def average(v, moves_now=1.0, moves_old=1.0):
        if not sampled:
            return along(v, moves_now, moves_old, keys[0])
        return jnp.mean(jax.lax.map(lambda one: along(v, moves_now, moves_old, one), keys), axis=0)

    start = jax.random.normal(key, flat.shape, flat.dtype)
    basis, projection = arnoldi(jax.jit(average), start, iterations)
    values, vectors = np.linalg.eig(projection)
    top = int(np.argmax(np.real(values)))
    sharpness = float(np.real(values[top]))
    mode = np.real(vectors[:, top]) @ basis
    mode = mode / np.linalg.norm(mode)
    unit = jnp.asarray(mode, flat.dtype)
    image = np.asarray(average(unit), float)
    residual = float(np.linalg.norm(image - sharpness * mode) / max(abs(sharpness), 1e-300))
    if not np.isfinite(sharpness):
        raise ValueError("the force has no finite derivative at these parameters")
    staleness = np.nan
    if both:
        stale = float(mode @ np.asarray(average(unit, 0.0, 1.0), float))
        staleness = stale / float(mode @ image)
    error = np.nan
    if sampled and samples > 1:
        each = jax.lax.map(lambda one: unit @ along(unit, 1.0, 1.0, one), keys)
        error = float(np.std(np.asarray(each), ddof=1) / np.sqrt(samples))
    rayleigh = slope = np.nan
    if reward is not None:
        value, gradient = jax.value_and_grad(lambda x: reward(unravel(x)))(flat)
        square = float(gradient @ gradient)
        rayleigh = float(gradient @ average(gradient)) / square if square > 0 else np.nan
        p = float(value)
        slope = square / (p * (1.0 - p)) ** 2 if 0.0 < p < 1.0 else np.nan
    return Curvature(sharpness, unravel(unit), staleness, rayleigh, slope, residual, error)


@eqx.filter_jit
def _cycle_product(cycle, arguments, state, v):
    vector, unravel = ravel_pytree(state)
    return jax.jvp(lambda x: ravel_pytree(cycle(unravel(x), *arguments))[0], (vector,), (v,))[1]


def cycle_eigenvalues(
    cycle: Callable[..., Tree],
    state: Tree,
    *arguments: Any,
    iterations: int = 60,
    flat: float = 1e-6,
    key: Array | None = None,
) -> np.ndarray:
    """Leading eigenvalues of the map of a whole refresh cycle, at a fixed point of it.

    Args:
        cycle: One cycle: from the optimizer's whole state (parameters, momentum, older parameters) to the next. It is compiled
            once for each function, whatever the arguments.
        state: The fixed point.
        *arguments: Further arguments of the cycle (the learning rate, say).
        iterations: Size of the Krylov space.
        flat: Eigenvalues this close to 1 belong to directions that the force does not feel, and are left out.
        key: JAX random key.

    Returns:
        Eigenvalues (complex), largest modulus first.
    """
    key = jax.random.key(0) if key is None else key
    vector = ravel_pytree(state)[0]
    arguments = jax.tree.map(jnp.asarray, arguments)
    product = lambda v: _cycle_product(cycle, arguments, state, v)
    # One application brings the start closer to the range of the map.
    start = product(jax.random.normal(key, vector.shape, vector.dtype))
    _, projection = arnoldi(product, start, iterations)
    values = np.linalg.eigvals(projection)
    values = values[np.abs(values - 1.0) > flat]
    return values[np.argsort(-np.abs(values))]
