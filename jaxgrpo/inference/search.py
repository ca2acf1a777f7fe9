"""The search for the most probable parameters, from many starts, by damped Fisher scoring.

Noise levels cannot be found by least squares (squared errors shrink them to zero), so that the likelihood itself is climbed:
Gauss-Newton steps, damped as Levenberg and Marquardt do, with the expected information of the innovations
$\\tfrac12 \\sum \\log S_n + \\nu_n^2 / S_n$. All of it is batched over models, starts and problems, and compiled once per
length of the grid.
"""

from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxgrpo.inference.models import Specification
from jaxgrpo.inference.problem import Observations
from jaxgrpo.inference.state_space import course, innovations


class Mode(NamedTuple):
    """A local maximum of the posterior."""

    parameters: Float[Array, " parameters"]
    objective: Float[Array, ""]
    gradient: Float[Array, " parameters"]
    information: Float[Array, "parameters parameters"]
    reward: Float[Array, "runs cycles"]
    sensitivity: Float[Array, "runs cycles parameters"]
    steps: Int[Array, ""]
    converged: Bool[Array, ""]


def _prior_residual(parameters, specification):
    return jnp.where(specification.free, (parameters - specification.centre) / specification.spread, 0.0)


_AXES = Observations(0, 0, 0, 0, 0, 0, 0, 0, None)  # pyright: ignore[reportArgumentType]


def _objective(parameters, specification, observations, depth):
    """Innovations of all runs at given parameters."""
    parameters = jnp.where(specification.free, parameters, specification.centre)
    run = partial(innovations, parameters, specification, depth=depth)
    result = jax.vmap(lambda o: run(o), in_axes=(_AXES,))(observations)
    return result.error, result.variance, result.reward


def _evaluate(parameters, specification, observations, depth):
    function = partial(_objective, specification=specification, observations=observations, depth=depth)

    def doubled(p):
        out = function(p)
        return out, out

    tangents, (error, variance, reward) = jax.jacfwd(doubled, has_aux=True)(parameters)
    d_error, d_variance, d_reward = tangents
    residual = _prior_residual(parameters, specification)
    seen = observations.count > 0
    objective = 0.5 * jnp.sum(jnp.where(seen, jnp.log(variance) + error**2 / variance, 0.0)) + 0.5 * jnp.sum(residual**2)
    weight_error = jnp.where(seen, error / variance, 0.0)
    weight_variance = jnp.where(seen, 0.5 * (1.0 - error**2 / variance) / variance, 0.0)
    gradient = jnp.einsum("rn,rnp->p", weight_error, d_error) + jnp.einsum("rn,rnp->p", weight_variance, d_variance)
    scaled_error = d_error * jnp.where(seen, 1.0 / jnp.sqrt(variance), 0.0)[..., None]
    scaled_variance = d_variance * jnp.where(seen, 1.0 / variance, 0.0)[..., None]
    information = jnp.einsum("rnp,rnq->pq", scaled_error, scaled_error) + 0.5 * jnp.einsum(
        "rnp,rnq->pq", scaled_variance, scaled_variance
    )
    free = specification.free
    gradient = jnp.where(free, gradient + residual / specification.spread, 0.0)
    both = free[:, None] & free[None, :]
    information = jnp.where(both, information, 0.0) + jnp.diag(jnp.where(free, 1.0 / specification.spread**2, 1.0))
    objective = jnp.where(jnp.isfinite(objective), objective, jnp.inf)
    return objective, gradient, information, reward, d_reward


def score(start, specification, observations, depth, max_steps, tolerance=2e-3):
    """Climb the posterior from a start by damped Fisher scoring."""

    def evaluate(parameters):
        return _evaluate(parameters, specification, observations, depth)

    # The candidate is evaluated at the head of the loop, so that the program holds one evaluation.
    def proceed(state):
        return ~state.done & (state.count < max_steps)

    def step(state):
        proposed = evaluate(state.candidate)
        better = proposed[0] < state.current[0]
        keep = lambda new, old: jnp.where(better, new, old)
        current = jax.tree.map(keep, proposed, state.current)
        parameters = keep(state.candidate, state.parameters)
        damping = keep(jnp.maximum(state.damping * 0.2, 1e-9), state.damping * 6.0 + 1e-6)
        _, gradient, information, _, _ = current
        move = jnp.linalg.solve(information + damping * jnp.diag(jnp.diagonal(information)), gradient)
        move = jnp.where(jnp.isfinite(move), move, 0.0)
        expected = jnp.sum(move * gradient)
        # A step of more than two prior standard deviations trusts the local model too far.
        longest = jnp.max(jnp.abs(move) / specification.spread)
        move = move * jnp.minimum(1.0, 2.0 / jnp.maximum(longest, 1e-12))
        # Converged where expected or actual gains are negligible against the data's own uncertainty.
        gained = state.current[0] - proposed[0]
        done = (better & ((expected < tolerance) | (gained < tolerance))) | (damping > 1e8)
        return _Climb(parameters, parameters - move, current, damping, state.count + 1, done)

    shape = jax.eval_shape(evaluate, start)
    nothing = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shape)
    nothing = (jnp.full_like(nothing[0], jnp.inf), *nothing[1:])
    initial = _Climb(start, start, nothing, jnp.asarray(1e-2, start.dtype), jnp.asarray(0), jnp.asarray(False))
    final = jax.lax.while_loop(proceed, step, initial)
    objective, gradient, information, reward, sensitivity = final.current
    return Mode(
        jnp.where(specification.free, final.parameters, specification.centre),
        objective,
        gradient,
        information,
        reward,
        sensitivity,
        final.count,
        final.done,
    )


class _Climb(NamedTuple):
    parameters: Array
    candidate: Array
    current: tuple
    damping: Array
    count: Array
    done: Array


@eqx.filter_jit
def climb(
    starts: Float[Array, "problems models parameters"],
    specifications: Specification,
    observations: Observations,
    depth: int,
    max_steps: Int[Array, ""],
) -> Mode:
    """Climb the posterior of several problems of one shape, from one start for every model.

    Args:
        starts: Where the searches start.
        specifications: Leading axes problems and models.
        observations: Leading axis problems (before that of the runs).
        depth: Largest async lag in cycles, static.
        max_steps: Most evaluations of a search; traced, so that short and long searches are one program.

    Returns:
        Where each search ended, leading axes problems and models.
    """
    single = lambda start, specification, data: score(start, specification, data, depth, max_steps)
    return jax.vmap(jax.vmap(single, in_axes=(0, 0, None)))(starts, specifications, observations)


def find_modes(
    starts: Float[np.ndarray, "problems models starts parameters"],
    specifications: Specification,
    observations: Observations,
    depth: int,
    short: int = 8,
    long: int = 60,
) -> Mode:
    """The posterior's modes: short searches from every start, a long one from where the best of them ended.

    Args:
        starts: Where the searches start.
        specifications: Leading axes problems and models.
        observations: Leading axis problems (before that of the runs).
        depth: Largest async lag in cycles.
        short: Evaluations of each short search.
        long: Most evaluations of the long one.

    Returns:
        One mode for every problem and model, as NumPy arrays.
    """
    steps = jnp.asarray(short)
    tried = [climb(starts[:, :, i], specifications, observations, depth, steps) for i in range(starts.shape[2])]
    objective = np.stack([np.asarray(mode.objective) for mode in tried])
    parameters = np.stack([np.asarray(mode.parameters) for mode in tried])
    best = np.argmin(objective, axis=0)
    start = np.take_along_axis(parameters, best[None, :, :, None], axis=0)[0]
    mode = climb(start, specifications, observations, depth, jnp.asarray(long))
    return jax.tree.map(np.asarray, mode)
