r"""Restoring forces: what pushes the expected reward, and where it stops.

A force acts on the coordinates $z$ of a run (the reward itself for the harmonic force, logits otherwise): an update moves
$z$ by $c\,\eta\,\kappa$ times `drive`, and the expected reward is `reward(z)`.
"""

import abc
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from jaxgrpo.theory.groups import Normalisation, force_factor, half_normal_nodes, normal_nodes
from jaxgrpo.theory.hyperparameters import as_float_leaf, is_concrete

Drive = Callable[[Float[Array, " nodes"]], Float[Array, " nodes"]]
Scalar = Float[Array, ""] | float
Scalars = Float[Array, "..."] | float

# Range and spacing of the table of finite-group factors in logits.
_TABLE_REACH, _TABLE_SPACING = 16.0, 0.125
# Largest slope of sqrt(p(1-p)) and of p(1-p) against the logit.
_PEAK_SLOPE = {"std": 0.125, "mean": 1.0 / (6.0 * np.sqrt(3.0))}


class AbstractForce(eqx.Module):
    """A mean-field force; concrete forces are final."""

    @abc.abstractmethod
    def initial_state(self, initial_reward: Scalar, plateau: Scalar) -> Float[Array, " nodes"]:
        """Coordinates at which the expected reward is `initial_reward`."""

    @abc.abstractmethod
    def reward(self, state: Float[Array, " nodes"], plateau: Scalar) -> Float[Array, ""]:
        """Expected reward at the coordinates."""

    @abc.abstractmethod
    def bind(self, plateau: Scalar, group_size: Scalar, dtype: DTypeLike) -> Drive:
        """The force per unit of curvature as a function of the coordinates, with what depends on G prepared."""

    @abc.abstractmethod
    def peak_slope(self) -> float:
        """Largest restoring slope of `drive`, per unit of curvature: the stiffest part of the course."""


def drive(
    force: AbstractForce, state: Float[Array, " nodes"], plateau: Scalar, group_size: Scalar = jnp.inf
) -> Float[Array, " nodes"]:
    """Force per unit of curvature at given coordinates.

    Args:
        force: Any force of this module.
        state: Coordinates $z$.
        plateau: Plateau of the task (the ceiling of the softmax forces).
        group_size: $G$; infinite by default.

    Returns:
        The force on each coordinate.
    """
    return force.bind(plateau, group_size, state.dtype)(state)


class Harmonic(AbstractForce):
    r"""$F(R) = \kappa (R^* - R)$: any plateau near its end."""

    def initial_state(self, initial_reward, plateau):
        """The reward is its own coordinate."""
        del plateau
        return jnp.asarray(initial_reward)[None]

    def reward(self, state, plateau):
        """The coordinate itself."""
        del plateau
        return state[0]

    def bind(self, plateau, group_size, dtype):
        """$R^* - R$, whatever the group size."""
        del group_size, dtype
        return lambda state: plateau - state

    def peak_slope(self):
        """The slope is 1 everywhere."""
        return 1.0


class MixedCurvature(AbstractForce):
    r"""Harmonic forces of many directions: $F_i = \kappa e^{-s y_i} (R^* - R_i)$, $y_i$ half-normal, $R$ their mean.

    A policy learns along many directions at once, and their curvatures differ by orders of magnitude: the course rises
    fast along the stiffest ones, whose curvature is $\kappa$, and has a long tail along the soft ones.

    Args:
        spread: $s$, how far the logarithm of the curvature falls below its largest value.
        nodes: Quadrature nodes.
    """

    spread: Float[Array, ""] = eqx.field(converter=as_float_leaf)
    nodes: int = eqx.field(static=True, default=31)

    def __check_init__(self):
        if is_concrete(self.spread) and bool(jnp.any(self.spread < 0)):
            raise ValueError(f"spread must not be negative, got {self.spread}")
        if self.nodes < 1:
            raise ValueError(f"nodes must be at least 1, got {self.nodes}")

    def initial_state(self, initial_reward, plateau):
        """All directions start alike."""
        del plateau
        return jnp.broadcast_to(jnp.asarray(initial_reward), (self.nodes,))

    def reward(self, state, plateau):
        """Mean over the directions."""
        del plateau
        return jnp.sum(jnp.asarray(half_normal_nodes(self.nodes)[1], state.dtype) * state)

    def bind(self, plateau, group_size, dtype):
        """Harmonic force along every direction, whatever the group size."""
        del group_size
        factor = jnp.exp(-self.spread * jnp.asarray(half_normal_nodes(self.nodes)[0], dtype))
        return lambda state: factor * (plateau - state)

    def peak_slope(self):
        """That of the stiffest direction."""
        return 1.0


def _logit(p: Float[Array, ""]) -> Float[Array, ""]:
    tiny = 1e-12 if p.dtype == jnp.float64 else 1e-7
    p = jnp.clip(p, tiny, 1.0 - tiny)
    return jnp.log(p) - jnp.log1p(-p)


def _infinite(group_size) -> bool:
    return not isinstance(group_size, Tracer) and bool(np.all(np.isinf(np.asarray(group_size))))


def _interpolate(table: Float[Array, " n"], z: Float[Array, " nodes"]) -> Float[Array, " nodes"]:
    """Cubic Lagrange interpolation of a table on the regular grid of logits."""
    x = jnp.clip((z + _TABLE_REACH) / _TABLE_SPACING, 1.0, table.size - 2.001)
    i = jnp.floor(x).astype(jnp.int32)
    f = x - i.astype(x.dtype)
    return (
        table[i - 1] * (-f * (f - 1.0) * (f - 2.0) / 6.0)
        + table[i] * ((f + 1.0) * (f - 1.0) * (f - 2.0) / 2.0)
        + table[i + 1] * (-(f + 1.0) * f * (f - 2.0) / 2.0)
        + table[i + 2] * ((f + 1.0) * f * (f - 1.0) / 6.0)
    )


def group_factor_table(group_size: Scalar, dtype: DTypeLike) -> Float[Array, " n"]:
    """Finite-group factor of the std-normalised force on the regular grid of logits."""
    z = jnp.arange(-_TABLE_REACH, _TABLE_REACH + _TABLE_SPACING / 2, _TABLE_SPACING, dtype=dtype)
    return force_factor(jax.nn.sigmoid(z), jnp.asarray(group_size).astype(dtype), "std")


def softmax_drive(normalisation: Normalisation, group_size: Scalar, dtype: DTypeLike) -> Drive:
    r"""Softmax force on logits: $\sqrt{p(1-p)}$ or $p(1-p)$, times its finite-group factor."""
    if normalisation == "mean":
        factor = 1.0 if _infinite(group_size) else 1.0 - 1.0 / jnp.asarray(group_size).astype(dtype)

        def mean_only(z):
            p = jax.nn.sigmoid(z)
            return p * jax.nn.sigmoid(-z) * factor

        return mean_only
    table = None if _infinite(group_size) else group_factor_table(group_size, dtype)

    def normalised(z):
        root = jnp.exp(0.5 * (jax.nn.log_sigmoid(z) + jax.nn.log_sigmoid(-z)))
        return root if table is None else root * _interpolate(table, z)

    return normalised


def _check(normalisation, floor):
    if normalisation not in ("std", "mean"):
        raise ValueError(f"normalisation must be 'std' or 'mean', got {normalisation!r}")
    if is_concrete(floor) and not bool(jnp.all(jnp.isfinite(floor))):
        raise ValueError(f"floor must be finite, got {floor}")


class Softmax(AbstractForce):
    r"""Softmax policy on a binary reward, one logit: $R = f + (R^* - f)\,\sigma(z)$.

    The force on $z$ is $\kappa\sqrt{p(1-p)}$ for the std-normalised advantage (GRPO), $\kappa\,p(1-p)$ for the mean-only
    one (Dr. GRPO, RLOO), times the finite-group factor. It starts slowly without any inertia.

    Args:
        normalisation: `"std"` or `"mean"`.
        floor: Reward $f$ of a failed completion.
    """

    normalisation: Normalisation = eqx.field(static=True, default="std")
    floor: Float[Array, ""] = eqx.field(converter=as_float_leaf, default=0.0)

    def __check_init__(self):
        _check(self.normalisation, self.floor)

    def initial_state(self, initial_reward, plateau):
        """Logit of the share of the range that the initial reward has reached."""
        return _logit((initial_reward - self.floor) / (plateau - self.floor))[None]

    def reward(self, state, plateau):
        r"""$f + (R^* - f) \sigma(z)$."""
        return self.floor + (plateau - self.floor) * jax.nn.sigmoid(state[0])

    def bind(self, plateau, group_size, dtype):
        """Softmax force with its finite-group factor."""
        del plateau
        return softmax_drive(self.normalisation, group_size, dtype)

    def peak_slope(self):
        """Largest slope of the softmax force against the logit."""
        return _PEAK_SLOPE[self.normalisation]


class MixedDifficulty(AbstractForce):
    r"""Prompts of mixed difficulty: logits $z_i \sim N(z_0, s_0^2)$ at the start, each pushed by its own softmax force.

    $R = f + (R^* - f)\,E[\sigma(z_i)]$ over quadrature nodes. Easy prompts saturate while hard ones have hardly begun,
    which bends the curve and lengthens its tail.

    Args:
        spread: Standard deviation $s_0$ of the prompts' logits at the start.
        normalisation: `"std"` or `"mean"`.
        floor: Reward $f$ of a failed completion.
        nodes: quadrature nodes.
    """

    spread: Float[Array, ""] = eqx.field(converter=as_float_leaf)
    normalisation: Normalisation = eqx.field(static=True, default="std")
    floor: Float[Array, ""] = eqx.field(converter=as_float_leaf, default=0.0)
    nodes: int = eqx.field(static=True, default=31)

    def __check_init__(self):
        _check(self.normalisation, self.floor)
        if is_concrete(self.spread) and bool(jnp.any(self.spread < 0)):
            raise ValueError(f"spread must not be negative, got {self.spread}")
        if self.nodes < 1:
            raise ValueError(f"nodes must be at least 1, got {self.nodes}")

    def initial_state(self, initial_reward, plateau):
        """Logits of the nodes, centred so that their mean reward is the initial one."""
        x, weights = normal_nodes(self.nodes)
        share = jnp.asarray((initial_reward - self.floor) / (plateau - self.floor))
        tiny = 1e-12 if share.dtype == jnp.float64 else 1e-6
        share = jnp.clip(share, tiny, 1.0 - tiny)
        x = self.spread * jnp.asarray(x, share.dtype)
        return mixture_location(share, x, jnp.asarray(weights, share.dtype)) + x

    def reward(self, state, plateau):
        r"""$f + (R^* - f) E[\sigma(z_i)]$."""
        weights = jnp.asarray(normal_nodes(self.nodes)[1], state.dtype)
        return self.floor + (plateau - self.floor) * jnp.sum(weights * jax.nn.sigmoid(state))

    def bind(self, plateau, group_size, dtype):
        """Softmax force on every node, with its finite-group factor."""
        del plateau
        return softmax_drive(self.normalisation, group_size, dtype)

    def peak_slope(self):
        """Largest slope of the softmax force against the logit."""
        return _PEAK_SLOPE[self.normalisation]


def mixture_location(
    share: Float[Array, ""], offsets: Float[Array, " nodes"], weights: Float[Array, " nodes"]
) -> Float[Array, ""]:
    r"""Location $z_0$ at which $E[\sigma(z_0 + x_i)]$ equals a given share, differentiable in all arguments."""

    def value(location):
        return jnp.sum(weights * jax.nn.sigmoid(location + offsets))

    fixed_share = jax.lax.stop_gradient(share)
    fixed = jax.lax.stop_gradient(offsets)
    centre = jnp.log(fixed_share) - jnp.log1p(-fixed_share)
    reach = jnp.max(jnp.abs(fixed)) + 1.0

    def bisect(_, bounds):
        low, high = bounds
        middle = 0.5 * (low + high)
        above = jnp.sum(weights * jax.nn.sigmoid(middle + fixed)) > fixed_share
        return jnp.where(above, low, middle), jnp.where(above, middle, high)

    low, high = jax.lax.fori_loop(0, 60, bisect, (centre - reach, centre + reach))
    root = jax.lax.stop_gradient(0.5 * (low + high))
    # One Newton step, with a fixed slope: the derivative of the implicit function.
    p = jax.nn.sigmoid(root + fixed)
    slope = jax.lax.stop_gradient(jnp.sum(weights * p * (1.0 - p)))
    return root - (value(root) - share) / slope


class KLAnchored(AbstractForce):
    r"""A softmax force held back by a KL penalty: the force less $\beta (z - z_{ref})\,p(1-p)$.

    The plateau of the task is then the ceiling that the reward would reach without the penalty; `fixed_point` gives
    where the run settles.

    Args:
        base: `Softmax` or `MixedDifficulty`.
        beta: Strength of the penalty in units of the reward's own force.
        reference: Logit of the reference policy; one number for all prompts.
    """

    base: Softmax | MixedDifficulty
    beta: Float[Array, ""] = eqx.field(converter=as_float_leaf)
    reference: Float[Array, ""] = eqx.field(converter=as_float_leaf, default=0.0)

    def __check_init__(self):
        if is_concrete(self.beta) and bool(jnp.any(self.beta < 0)):
            raise ValueError(f"beta must not be negative, got {self.beta}")

    def initial_state(self, initial_reward, plateau):
        """As the unanchored force."""
        return self.base.initial_state(initial_reward, plateau)

    def reward(self, state, plateau):
        """As the unanchored force."""
        return self.base.reward(state, plateau)

    def bind(self, plateau, group_size, dtype):
        """The unanchored force less the penalty's."""
        base = self.base.bind(plateau, group_size, dtype)

        def anchored(z):
            return base(z) - self.beta * (z - self.reference) * jax.nn.sigmoid(z) * jax.nn.sigmoid(-z)

        return anchored

    def peak_slope(self):
        """Slope of the base; the penalty's slope at the fixed point is added by `slope_at`."""
        return self.base.peak_slope()

    def fixed_point(self, plateau: Scalar = 1.0, group_size: Scalar = jnp.inf) -> Float[Array, ""]:
        """Reward at which force and penalty balance, reached from the reference policy.

        Args:
            plateau: Ceiling of the task.
            group_size: $G$.

        Returns:
            The reward; the ceiling itself if the penalty never stops the run.
        """
        return self.reward(self.fixed_state(plateau, group_size)[None], plateau)

    def fixed_state(self, plateau: Scalar = 1.0, group_size: Scalar = jnp.inf) -> Float[Array, ""]:
        """Logit at which force and penalty balance, reached from the reference policy (30 above it at most)."""
        dtype = self.beta.dtype
        anchored = self.bind(plateau, group_size, self.beta.dtype)
        grid = jax.lax.stop_gradient(self.reference) + jnp.linspace(0.0, 30.0, 601, dtype=dtype)

        def force(z):
            return anchored(z[None])[0]

        values = jax.lax.stop_gradient(jax.vmap(force)(grid))
        falls = (values[1:] <= 0) & (values[:-1] > 0)
        first = jnp.argmax(falls)

        def bisect(_, bounds):
            low, high = bounds
            middle = 0.5 * (low + high)
            above = force(middle) <= 0
            return jnp.where(above, low, middle), jnp.where(above, middle, high)

        low, high = jax.lax.fori_loop(0, 50, bisect, (grid[first], grid[first + 1]))
        root = jax.lax.stop_gradient(jnp.where(jnp.any(falls), 0.5 * (low + high), grid[-1]))
        slope = jax.lax.stop_gradient(jax.grad(lambda z: jax.lax.stop_gradient(1.0) * force(z))(root))
        step = jnp.where(jnp.any(falls), force(root) / jnp.where(slope == 0, -1.0, slope), 0.0)
        return root - step

    def slope_at_fixed_point(self, plateau: Scalar = 1.0, group_size: Scalar = jnp.inf) -> Float[Array, ""]:
        r"""Restoring slope at the balance, per unit of curvature: $\beta p^*(1-p^*)$ for the mean-only advantage."""
        anchored = self.bind(plateau, group_size, self.beta.dtype)
        state = self.fixed_state(plateau, group_size)
        return -jax.grad(lambda z: anchored(z[None])[0])(state)


def check_start(force: AbstractForce, initial_reward: Scalars, plateau: Scalars) -> None:
    """Refuse a start that no logit has, as far as the values are known.

    Args:
        force: The force.
        initial_reward: Reward of the initial policy.
        plateau: Ceiling of the task.

    Raises:
        ValueError: If the reward of a softmax policy starts below its floor or above its ceiling.
    """
    base = force.base if isinstance(force, KLAnchored) else force
    if not isinstance(base, Softmax | MixedDifficulty):
        return
    values = (initial_reward, plateau, base.floor)
    if not all(is_concrete(value) for value in values):
        return
    start, ceiling, floor = (np.asarray(value) for value in values)
    share = (start - floor) / np.where(ceiling == floor, np.nan, ceiling - floor)
    if np.any((share < 0) | (share > 1)):
        raise ValueError(
            f"initial_reward must lie between the floor {floor} and the plateau {ceiling}, got {start}"
        )
