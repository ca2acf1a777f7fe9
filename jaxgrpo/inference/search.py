r"""The search for the most probable parameters, from many starts, by damped Fisher scoring.

Noise levels cannot be found by least squares (squared errors shrink them to zero), so that the likelihood itself is climbed:
Gauss-Newton steps, damped as Levenberg and Marquardt do, with the expected information of the innovations
$\tfrac12 \sum \log S_n + \nu_n^2 / S_n$.

What is compiled is the Kalman filter alone, batched over problems, models and points in parameter space. Its derivatives by the
few parameters are differences in double precision, good to six digits: differentiating the program would make it several
times as large, and compiling it is what a user waits for who fits one log.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float

from jaxgrpo.inference.models import Specification
from jaxgrpo.inference.problem import Observations
from jaxgrpo.inference.state_space import Innovations, innovations

# Step of the differences, in prior standard deviations.
_DIFFERENCE = 1e-6
# A step of more prior standard deviations than this trusts the local model too far.
_LONGEST_STEP = 2.0
# A search has converged where a step gains less than this in log posterior.
_TOLERANCE = 1e-3


class Mode(NamedTuple):
    """Where a search ended; leading axes problems and models, NumPy arrays."""

    parameters: np.ndarray
    objective: np.ndarray
    gradient: np.ndarray
    information: np.ndarray
    reward: np.ndarray
    sensitivity: np.ndarray
    converged: np.ndarray


@eqx.filter_jit
def filter_each(
    points: Float[Array, "batch parameters"],
    specifications: Specification,
    observations: Observations,
    depth: int,
) -> Innovations:
    """Kalman filter of a batch of points in parameter space, each with its own model and run.

    Args:
        points: Points in unconstrained coordinates.
        specifications: The model of each.
        observations: The run of each.
        depth: Largest async lag in cycles, static.

    Returns:
        The innovations of each.
    """
    single = lambda point, specification, run: innovations(point, specification, run, depth)
    return jax.vmap(single)(points, specifications, observations)


def filter_points(
    points: np.ndarray, specifications: Specification, observations: Observations, depth: int
) -> tuple[np.ndarray, ...]:
    """Kalman filter of every run at many points in parameter space.

    The axes are flattened into one, since each level of batching is paid for when the program is traced.

    Args:
        points: Axes problems, models, points, parameters.
        specifications: Leading axes problems and models.
        observations: Leading axes problems and runs.
        depth: Largest async lag in cycles.

    Returns:
        Errors, variances and expected rewards, leading axes problems, models, points, runs.
    """
    problems, models, count, _ = points.shape
    runs = observations.reward.shape[1]
    shape = (problems, models, count, runs)

    def flat(values: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
        """Repeat along the axes that the values lack, then flatten the leading four."""
        rest = values.shape[len(axes) :]
        full = np.expand_dims(values, tuple(i for i in range(4) if i not in axes))
        return np.broadcast_to(full, (*shape, *rest)).reshape(-1, *rest)

    result = filter_each(
        flat(points, (0, 1, 2)),  # pyright: ignore[reportArgumentType]
        Specification(*(flat(v, (0, 1)) for v in specifications)),
        Observations(*(flat(v, (0, 3)) for v in _with_horizon(observations))),
        depth,
    )
    return tuple(np.asarray(leaf).reshape(*shape, -1) for leaf in result)


def _with_horizon(observations: Observations) -> Observations:
    """Observations whose horizon, one number a problem, has an axis of runs like the rest."""
    runs = observations.reward.shape[1]
    return observations._replace(horizon=np.repeat(observations.horizon[:, None], runs, axis=1))


def _evaluate(parameters, specifications, observations, depth) -> Mode:
    """Objective, gradient, expected information and course at given parameters."""
    size = parameters.shape[-1]
    step = _DIFFERENCE * specifications.spread
    # Parameters that no model of the batch estimates need no point of their own.
    active = np.flatnonzero(specifications.free.any((0, 1)))
    moves = np.concatenate([np.zeros((1, size)), np.eye(size)[active]])
    points = parameters[..., None, :] + moves * np.where(specifications.free, step, 0.0)[..., None, :]
    at = filter_points(points, specifications, observations, depth)
    error, variance, reward = at
    with np.errstate(all="ignore"):

        def slope(values):
            """Derivative with the parameter as the last axis."""
            result = np.zeros((*values.shape[:2], *values.shape[3:], size))
            change = values[:, :, 1:] - values[:, :, :1]
            result[..., active] = np.moveaxis(change / step[..., active, None, None], 2, -1)
            return result

        seen = (observations.count > 0)[:, None]
        nu, s = error[:, :, 0], variance[:, :, 0]
        offset = np.where(
            specifications.free, (parameters - specifications.centre) / specifications.spread, 0.0
        )
        terms = np.where(seen, np.log(s) + nu**2 / s, 0.0)
        objective = 0.5 * terms.sum((-1, -2)) + 0.5 * (offset**2).sum(-1)
        d_nu = slope(error) * np.where(seen, 1.0 / np.sqrt(s), 0.0)[..., None]
        d_s = slope(variance) * np.where(seen, 1.0 / s, 0.0)[..., None]
        scaled = np.where(seen, nu / np.sqrt(s), 0.0)
        flat = (*parameters.shape[:2], -1, size)
        d_nu, d_s = d_nu.reshape(flat), d_s.reshape(flat)
        scaled = scaled.reshape(*parameters.shape[:2], -1)
        gradient = np.einsum("bmnp,bmn->bmp", d_nu, scaled)
        gradient += np.einsum(
            "bmnp,bmn->bmp", d_s, 0.5 * (np.where(seen, 1.0, 0.0).reshape(scaled.shape[0], 1, -1) - scaled**2)
        )
        information = np.swapaxes(d_nu, -1, -2) @ d_nu + 0.5 * (np.swapaxes(d_s, -1, -2) @ d_s)
        free = specifications.free
        gradient = np.where(free, gradient + offset / specifications.spread, 0.0)
        information = np.where(free[..., :, None] & free[..., None, :], information, 0.0)
        precision = np.where(free, 1.0 / specifications.spread**2, 1.0)
        information = information + precision[..., None] * np.eye(size)
        sensitivity = slope(reward)
    sound = np.isfinite(objective) & np.isfinite(gradient).all(-1) & np.isfinite(information).all((-1, -2))
    objective = np.where(sound, objective, np.inf)
    return Mode(parameters, objective, gradient, information, reward[:, :, 0], sensitivity, sound)


def _choose(better: np.ndarray, new: np.ndarray, old: np.ndarray) -> np.ndarray:
    """New values where better, old ones elsewhere; the mask covers the leading axes."""
    return np.where(better.reshape(better.shape + (1,) * (new.ndim - better.ndim)), new, old)


def climb(
    starts: np.ndarray, specifications: Specification, observations: Observations, depth: int, max_steps: int
) -> Mode:
    """Climb the posterior of several problems of one shape, from one start for every model.

    Args:
        starts: Where the searches start; axes problems, models, parameters.
        specifications: Leading axes problems and models.
        observations: Leading axes problems and runs.
        depth: Largest async lag in cycles.
        max_steps: Most evaluations.

    Returns:
        Where each search ended.
    """
    spread, size = specifications.spread, starts.shape[-1]
    current = _evaluate(starts, specifications, observations, depth)
    damping = np.full(starts.shape[:2], 1e-2)
    done = np.zeros(starts.shape[:2], bool)
    for _ in range(max_steps - 1):
        sound = np.isfinite(current.objective)
        information = np.where(sound[..., None, None], current.information, np.eye(size))
        gradient = np.where(sound[..., None], current.gradient, 0.0)
        diagonal = np.einsum("bmpp->bmp", information)
        damped = information + (damping[..., None] * diagonal)[..., None] * np.eye(size)
        move = np.linalg.solve(damped, gradient[..., None])[..., 0]
        expected = (move * gradient).sum(-1)
        longest = np.abs(move / spread).max(-1)
        move *= np.minimum(1.0, _LONGEST_STEP / np.maximum(longest, 1e-12))[..., None]
        done |= (expected < _TOLERANCE) & sound
        if done.all():
            break
        candidate = np.where(done[..., None], current.parameters, current.parameters - move)
        proposed = _evaluate(candidate, specifications, observations, depth)
        better = (proposed.objective < current.objective) & ~done
        # Both may be infinite where a start is out of reach; that is no gain.
        with np.errstate(invalid="ignore"):
            gained = np.where(better, current.objective - proposed.objective, 0.0)
        done |= (better & (gained < _TOLERANCE)) | (damping > 1e8)
        current = Mode(*(_choose(better, new, old) for new, old in zip(proposed, current, strict=True)))
        damping = np.where(better, np.maximum(damping * 0.2, 1e-9), damping * 6.0 + 1e-6)
    return current._replace(converged=done & np.isfinite(current.objective))


def find_modes(
    starts: np.ndarray,
    specifications: Specification,
    observations: Observations,
    depth: int,
    short: int = 8,
    long: int = 60,
) -> Mode:
    """The posterior's modes: short searches from every start, a long one from where the best of them ended.

    Args:
        starts: Where the searches start; axes problems, models, starts, parameters.
        specifications: Leading axes problems and models.
        observations: Leading axes problems and runs.
        depth: Largest async lag in cycles.
        short: Evaluations of each short search.
        long: Most evaluations of the long one.

    Returns:
        One mode for every problem and model.
    """
    tried = [
        climb(starts[:, :, i], specifications, observations, depth, short) for i in range(starts.shape[2])
    ]
    objective = np.stack([mode.objective for mode in tried])
    parameters = np.stack([mode.parameters for mode in tried])
    best = np.argmin(objective, axis=0)
    start = np.take_along_axis(parameters, best[None, :, :, None], axis=0)[0]
    return climb(start, specifications, observations, depth, long)
