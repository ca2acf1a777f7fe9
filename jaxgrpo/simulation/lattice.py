r"""The update rule itself, step by step, for many paths at once: exact in distribution, one normal a step.

$$u_{t+1} = \mu u_t + g f_t [(1-\rho) F(z_t) + \rho F(z_s)] + \sigma f_t \varepsilon_t, \qquad z_{t+1} = z_t + u_{t+1}$$

with $z_s$ the coordinates at the policy that made the rollouts and $f_t$ the factor of the schedule.
"""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt32

from jaxgrpo.simulation.configurations import Configurations, NoiseShape, Structure
from jaxgrpo.simulation.noise import Words, normal_at, normal_pair
from jaxgrpo.simulation.rule import AbstractRule, Observer, Seen
from jaxgrpo.theory.cycle import lag_selector
from jaxgrpo.theory.forces import AbstractForce
from jaxgrpo.theory.numerics import momentum_power, safe_sqrt
from jaxgrpo.theory.schedules import Schedule
from jaxgrpo.theory.trajectory import schedule_factor

State = Float[Array, "nodes paths"]
Scalar = Float[Array, ""]


class LatticeState(eqx.Module):
    """State of the paths.

    Attributes:
        position: Coordinates $z$.
        update: Last update $u$.
        refreshes: Coordinates at the last refreshes, newest first; none for fresh rollouts.
        second_moment: Second moment $v$ that Adam divides by the root of; none if it is not simulated.
    """

    position: State
    update: State
    refreshes: Float[Array, "refreshes nodes paths"] | None
    second_moment: Float[Array, " paths"] | None


class Bound(NamedTuple):
    """One configuration with its force prepared.

    Attributes:
        c: The configuration.
        drive: Force on every coordinate of every path.
        size: Square of the force at the start.
    """

    c: Configurations
    drive: Callable[[State], State]
    size: Scalar


class Lattice(AbstractRule):
    """The update rule of the optimizer.

    Attributes:
        force: Restoring force, shared by all configurations.
        schedule: Factor on the learning rate by step, or none.
        noise_shape: `"constant"`, or `"binary"` for a variance in proportion to $R(1-R)$ (as given at $R = 1/2$).
        structure: What of the rule the configurations need.
        beta2: Decay of Adam's second moment, if it is simulated.
    """

    force: AbstractForce
    schedule: Schedule | None = eqx.field(static=True)
    noise_shape: NoiseShape = eqx.field(static=True)
    structure: Structure = eqx.field(static=True)
    beta2: float | None = eqx.field(static=True)

    def units(self) -> int:
        """Time goes by optimizer steps."""
        return 1

    def body(self) -> int:
        """Two steps a body: one call of the generator gives two normals."""
        return 2

    def bind(self, c: Configurations) -> Bound:
        """The configuration with its force prepared."""
        drive = self.force.bind(c.plateau, c.group_size, c.gain.dtype)
        start = drive(self.force.initial_state(c.initial_reward, c.plateau).astype(c.gain.dtype))
        return Bound(c, jax.vmap(drive, in_axes=-1, out_axes=-1), jnp.sum(start**2))

    def start(self, bound: Bound, paths: UInt32[Array, " paths"]) -> LatticeState:
        """All paths at the initial reward, at rest."""
        c = bound.c
        z = self.force.initial_state(c.initial_reward, c.plateau)
        z = jnp.broadcast_to(z[:, None], (z.size, paths.size)).astype(c.gain.dtype)
        return LatticeState(
            position=z,
            update=jnp.zeros_like(z),
            refreshes=jnp.broadcast_to(z, (self.structure.depth + 1, *z.shape))
            if self.structure.stale
            else None,
            second_moment=None if self.beta2 is None else jnp.zeros(paths.size, z.dtype),
        )

    def reward(self, bound: Bound, state: LatticeState) -> Float[Array, " paths"]:
        """Expected reward of each path's policy."""
        return rewards(self.force, bound.c, state.position)

    def advance(
        self,
        bound: Bound,
        words: Words,
        paths: UInt32[Array, " paths"],
        carry: tuple[LatticeState, Seen],
        body: Int[Array, ""],
        first: Int[Array, ""],
        last: Int[Array, ""],
        observe: Observer,
    ) -> tuple[LatticeState, Seen]:
        """Steps `2 * body` and `2 * body + 1`, as far as they lie from `first` up to before `last`."""
        (state, seen), c = carry, bound.c
        dtype = c.gain.dtype
        normals = None if self.structure.reused else normal_pair(words, paths, body, dtype)
        for odd in (0, 1):
            t = 2 * body + odd
            if normals is None:
                noise = normal_at(words, paths, _first_use(c, t), dtype)
            else:
                noise = normals[odd]
            active = (t >= first) & (t < last)
            new = self._step(bound, state, t, noise)
            state = jax.tree.map(lambda a, b, active=active: jnp.where(active, a, b), new, state)
            seen = observe(state, seen)
        return state, seen

    def _step(self, bound: Bound, state: LatticeState, t, noise) -> LatticeState:
        c, drive, z = bound.c, bound.drive, state.position
        acting, refreshes = z, state.refreshes
        if refreshes is not None:
            renewed = jnp.concatenate([z[None], refreshes[:-1]], axis=0)
            refreshes = jnp.where(_is_refresh(c, t), renewed, refreshes)
            selector = lag_selector(c.async_lag, self.structure.depth)
            acting = refreshes[0] if self.structure.depth == 0 else jnp.tensordot(selector, refreshes, axes=1)
        force = drive(acting)
        if self.structure.stale and not self.structure.uncorrected:
            force = (1.0 - c.staleness) * drive(z) + c.staleness * force
        factor = jnp.ones((), z.dtype)
        if self.schedule is not None:
            factor = schedule_factor(self.schedule, t.astype(z.dtype), c.exponent)
        sigma = factor * c.noise
        if self.noise_shape == "binary":
            p = jnp.clip(rewards(self.force, c, acting), 0.0, 1.0)
            sigma = sigma * 2.0 * safe_sqrt(p * (1.0 - p))
        gain, moment = factor * c.gain, state.second_moment
        if self.beta2 is not None and moment is not None:
            gradient = self._mean_square_gradient(bound, force)
            moment = self.beta2 * moment + (1.0 - self.beta2) * gradient
            # Bias correction of Adam: the moment over the weight that it has gathered after t + 1 steps.
            weight = 1.0 - momentum_power(jnp.asarray(self.beta2, z.dtype), t.astype(z.dtype) + 1.0)
            root = jnp.sqrt(moment / weight)
            gain, sigma = gain / root, sigma / root
        push = jnp.broadcast_to(gain, noise.shape)[None] * force + (sigma * noise)[None]
        update = c.momentum * state.update + push
        limit = largest(z.dtype)
        update = jnp.clip(update, -limit, limit)
        return LatticeState(jnp.clip(z + update, -limit, limit), update, refreshes, moment)

    def _mean_square_gradient(self, bound: Bound, force):
        """Mean square gradient per parameter: its mean falls with the force, its batch noise stays."""
        size = jnp.where(bound.size > 0, bound.size, 1.0)
        return bound.c.signal * jnp.sum(force**2, axis=0) / size + bound.c.batch_noise


def largest(dtype) -> float:
    """Where coordinates stop growing: squares and sums of many of them stay finite."""
    return 1e15 if jnp.dtype(dtype) == jnp.float32 else 1e100


def rewards(force: AbstractForce, c: Configurations, position: State) -> Float[Array, " paths"]:
    """Expected reward of each path."""
    return jax.vmap(lambda z: force.reward(z, c.plateau), in_axes=-1, out_axes=-1)(position)


def _cycle(c: Configurations, t):
    tolerance = 1e-5 if c.gain.dtype == jnp.float32 else 1e-9
    return jnp.floor(t.astype(c.gain.dtype) / c.refresh_interval + tolerance)


def _is_refresh(c: Configurations, t: Int[Array, ""]) -> Bool[Array, ""]:
    return _cycle(c, t) > _cycle(c, t - 1)


def _first_use(c: Configurations, t: Int[Array, ""]) -> Int[Array, ""]:
    """Step at which the mini-batch of step `t` was used first: its noise is the noise of that step."""
    start = c.refresh_interval * _cycle(c, t)
    batches = jnp.maximum(jnp.round(c.refresh_interval / c.epochs_per_rollout), 1.0)
    since = jnp.round(t.astype(start.dtype) - start)
    return (jnp.round(start) + jnp.mod(since, batches)).astype(jnp.int32)
