"""A Brownian path for steps of fixed length: cheap, and the same whichever way a derivative is taken."""

import math
from typing import ClassVar

import diffrax
import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, UInt32

from jaxgrpo.simulation.noise import Words, node_words, normal_pair

# Beyond this many steps their number is no longer exact in single precision.
_MOST_SINGLE = 2**22


class StepBrownianPath(diffrax.AbstractBrownianPath):
    r"""Brownian motion of many paths, on the grid of a solver of fixed step.

    The increment over step $n$, with its space-time Lévy area $H \sim N(0, \Delta t/12)$, is a function of key, number of
    the path and $n$ alone. Unlike `diffrax.UnsafeBrownianPath` it does not hang on the bits of the time, so that it
    neither repeats itself nor changes with the precision, and `diffrax.RecursiveCheckpointAdjoint` can go back
    through it. Unlike `diffrax.VirtualBrownianTree` it costs two normals a step; it is of no use to adaptive steps.

    Attributes:
        words: Key material.
        paths: Numbers of the paths.
        start: First time.
        step: Length of a step.
        nodes: Number of independent motions of each path, on an axis before that of the paths; 1 is shared by all
            nodes.
    """

    words: Words
    paths: UInt32[Array, " paths"]
    start: Float[Array, ""]
    step: Float[Array, ""]
    nodes: int = eqx.field(static=True, default=1)
    levy_area: ClassVar[type[diffrax.SpaceTimeLevyArea]] = diffrax.SpaceTimeLevyArea  # pyright: ignore

    @property
    def t0(self):
        """First time at which the path is defined."""
        return self.start

    @property
    def t1(self):
        """No last time."""
        return math.inf

    def evaluate(self, t0, t1=None, left=True, use_levy=False):
        """Increment over the step from `t0` to `t1`.

        Args:
            t0: Begin of the step.
            t1: Its end.
            left: Of no meaning here.
            use_levy: Whether the space-time Lévy area is wanted too.

        Returns:
            The increment, `(nodes, paths)`.

        Raises:
            ValueError: If a single time is given: there is no value of the path, only its steps.
        """
        del left
        if t1 is None:
            raise ValueError("this Brownian path knows increments over its steps only")
        dtype = self.step.dtype
        length = jnp.asarray(t1 - t0, dtype)
        number = jnp.round((jnp.asarray(t0, dtype) - self.start) / self.step).astype(jnp.int32)
        if dtype == jnp.float32:
            number = eqx.error_if(
                number, number > _MOST_SINGLE, "too many steps for single precision: use double precision"
            )
        pairs = [
            normal_pair(node_words(self.words, node), self.paths, number, dtype) for node in range(self.nodes)
        ]
        first, second = (jnp.stack([pair[i] for pair in pairs]) for i in (0, 1))
        root = jnp.sqrt(length)
        increment = root * first
        if not use_levy:
            return increment
        return diffrax.SpaceTimeLevyArea(
            dt=length, W=increment, H=root * second * np.sqrt(1 / 12).astype(dtype)
        )
