"""The exact-expectation dynamics of a policy: its force, its plateau, and the map of one refresh cycle."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from jaxgrpo.lab.algorithm import Algorithm, expected_objective
from jaxgrpo.lab.policies import AbstractPolicy

Tree = Any


class Dynamics(NamedTuple):
    """A policy under an algorithm, in exact expectation.

    Attributes:
        force: Update direction as a function of the current parameters and of those that sampled.
        reward: Expected reward of parameters.
        parameters: The policy's parameters.
        combine: From parameters back to the policy.
    """

    force: Callable[[Tree, Tree], Tree]
    reward: Callable[[Tree], Float[Array, ""]]
    parameters: Tree
    combine: Callable[[Tree], AbstractPolicy]


def dynamics_of(
    policy: AbstractPolicy,
    rewards: np.ndarray,
    algorithm: Algorithm,
    *,
    reference: AbstractPolicy | None = None,
    group_size: float | int = np.inf,
) -> Dynamics:
    """The exact-expectation dynamics.

    Args:
        policy: The policy.
        rewards: Reward of every answer to every prompt.
        algorithm: The algorithm.
        reference: Policy that the KL divergence is measured from; the policy itself by default.
        group_size: Group size whose factors act.

    Returns:
        Force and reward as functions of the parameters.
    """
    parameters, fixed = eqx.partition(policy, eqx.is_inexact_array)
    combine = lambda p: eqx.combine(p, fixed)
    anchor = (policy if reference is None else reference).log_probabilities()
    table = jnp.asarray(rewards, anchor.dtype)
    length = policy.answer_length

    def force(now, old):
        sampled = combine(old).log_probabilities()

        def objective(p):
            return expected_objective(
                algorithm, combine(p).log_probabilities(), sampled, anchor, table, group_size, length
            )

        return jax.grad(objective)(now)

    def reward(p):
        return jnp.mean(jnp.sum(jnp.exp(combine(p).log_probabilities()) * table, axis=1))

    return Dynamics(force, reward, parameters, combine)


def find_plateau(
    dynamics: Dynamics, *, rate: float = 1.0, momentum: float = 0.9, steps: int = 5000, polish: int = 12
) -> tuple[Tree, float]:
    """Parameters at which the force vanishes, reached by training and then by damped Newton steps.

    Args:
        dynamics: Force and parameters to start from.
        rate: Learning rate of the training.
        momentum: Its heavy-ball coefficient.
        steps: Its steps.
        polish: Newton steps at most, on the dense Jacobian (up to a few thousand parameters).

    Returns:
        The parameters and the size of the force that is left.
    """
    flat, unravel = ravel_pytree(dynamics.parameters)

    def field(x):
        p = unravel(x)
        return ravel_pytree(dynamics.force(p, p))[0]

    @jax.jit
    def train(x):
        def step(carry, _):
            x, u = carry
            u = momentum * u + (1.0 - momentum) * rate * field(x)
            return (x + u, u), None

        return jax.lax.scan(step, (x, jnp.zeros_like(x)), None, length=steps)[0][0]

    jacobian, value = jax.jit(jax.jacfwd(field)), jax.jit(field)
    x = train(flat)
    left = float(jnp.linalg.norm(value(x)))
    for _ in range(polish):
        if left < 1e-13:
            break
        # Directions that the force does not feel are left where they are.
        step = np.linalg.lstsq(np.asarray(jacobian(x)), -np.asarray(value(x)), rcond=1e-9)[0]
        size = np.linalg.norm(step)
        moved = x + jnp.asarray(step * min(1.0, 0.5 / max(size, 1e-300)))
        after = float(jnp.linalg.norm(value(moved)))
        if not after < left:
            break
        x, left = moved, after
    return unravel(x), left


def cycle_of(
    dynamics: Dynamics, interval: int, async_lag: int = 0, scale: Tree = None
) -> Callable[[tuple, Array, Array], tuple]:
    """The map of one refresh cycle of heavy-ball ascent.

    Args:
        dynamics: The dynamics.
        interval: Refresh interval.
        async_lag: Further sets of rollouts by which the sampler trails.
        scale: Factor on each parameter's update (a frozen second moment's), a pytree like the parameters.

    Returns:
        A function of `(parameters, velocity, older parameters...)`, learning rate and momentum that gives the same state one
        cycle later.
    """

    def cycle(state, rate, momentum):
        parameters, velocity, *older = state
        history = [parameters, *older]
        acting = history[async_lag]

        def step(carry, _):
            p, u = carry
            push = dynamics.force(p, acting)
            if scale is not None:
                push = jax.tree.map(jnp.multiply, push, scale)
            u = jax.tree.map(lambda v, g: momentum * v + rate * g, u, push)
            return (jax.tree.map(jnp.add, p, u), u), None

        (p, u), _ = jax.lax.scan(step, (parameters, velocity), None, length=interval)
        return (p, u, *history[:async_lag])

    return cycle


def at_rest(parameters: Tree, async_lag: int = 0) -> tuple:
    """The state of a cycle that stands still at given parameters."""
    return (parameters, jax.tree.map(jnp.zeros_like, parameters), *[parameters] * async_lag)
