"""Stability over a fine grid of two hyperparameters, for the map."""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from jaxgrpo.theory import cycle
from jaxgrpo.theory.hyperparameters import Hyperparameters
from jaxgrpo.theory.reduction import learning_rate_gain, stiffness
from jaxgrpo.theory.task import Task

Map = Float[np.ndarray, "y x"]


class Margins(NamedTuple):
    """What is left to each boundary, as a part of the stiffness there; zero on it.

    Attributes:
        margin: To instability, exact.
        leading_margin: To leading order.
        ringing: To ringing, exact where the rollouts are fresh or held without importance weights.
        leading_ringing: To leading order.
        exact_ringing: Whether `ringing` is exact.
    """

    margin: Map
    leading_margin: Map
    ringing: Map
    leading_ringing: Map
    exact_ringing: bool


def margins(
    base: Hyperparameters,
    task: Task,
    names: Sequence[str],
    x: Float[np.ndarray, " x"],
    y: Float[np.ndarray, " y"],
) -> Margins:
    """Margins to instability and to ringing.

    Args:
        base: All other settings.
        task: The task.
        names: The two settings of the axes.
        x: Values of the first.
        y: Values of the second.

    Returns:
        Margins on the grid.
    """
    one: Any = dict(zip(names, np.meshgrid(x, y), strict=True))
    shape = (len(y), len(x))
    full = {
        field.name: jnp.asarray(
            np.broadcast_to(one.get(field.name, np.asarray(getattr(base, field.name))), shape), float
        )
        for field in dataclasses.fields(base)
        if field.name != "convention"
    }
    h = Hyperparameters(**full, convention=base.convention)
    stiff = stiffness(h, task) if task.sharpness is None else learning_rate_gain(h, task) * task.sharpness
    mu, k, rho = h.momentum, h.refresh_interval, h.staleness
    lag = np.asarray(h.async_lag)
    plain = bool(np.all(lag == 0) and np.all(np.asarray(rho) == 1))
    # The exact boundary hangs on momentum, interval, staleness and lag alone: found once for each that occurs.
    keys = np.stack([np.asarray(v, float).reshape(-1) for v in (mu, k, rho, lag)], axis=1)
    unique, back = np.unique(keys, axis=0, return_inverse=True)
    critical = np.concatenate(
        [
            np.atleast_1d(_critical(unique[unique[:, 3] == depth], int(depth), plain))
            for depth in np.unique(unique[:, 3])
        ]
    )
    order = np.concatenate([np.flatnonzero(unique[:, 3] == depth) for depth in np.unique(unique[:, 3])])
    exact = np.empty(len(unique))
    exact[order] = critical
    leading = cycle.leading_critical_stiffness(mu, k, rho, jnp.asarray(lag))
    onset_leading = cycle.leading_oscillation_onset(mu, h.mean_lag)
    onset = cycle.oscillation_onset(mu, k) if plain else onset_leading
    stiff = np.asarray(stiff, float)

    def left(limit):
        return 1.0 - stiff / np.asarray(limit, float).reshape(shape)

    with np.errstate(divide="ignore", invalid="ignore"):
        return Margins(left(exact[back.reshape(-1)]), left(leading), left(onset), left(onset_leading), plain)


def _critical(keys: np.ndarray, depth: int, plain: bool) -> np.ndarray:
    mu, k, rho = (jnp.asarray(keys[:, i]) for i in range(3))
    if plain:
        return np.asarray(cycle.critical_stiffness(mu, k))
    return np.asarray(jax.jit(lambda a, b, c: cycle.critical_stiffness(a, b, c, depth))(mu, k, rho))
