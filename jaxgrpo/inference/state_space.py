r"""A run as a state-space model on the grid of refresh cycles.

The expected reward follows the exact update rule of its model. Gradient noise moves the coordinates about it (the state
$(e, u)$, propagated by the cycle map of the local stiffness), and every logged reward is a noisy look at the sum:

$$y_n = R(z_n) + R'(z_n)\, e_n + \varepsilon_n, \quad (e,u)_{n+1} = M_n (e,u)_n + \eta_n, \quad \eta_n \sim N(0, q^2 Q)$$

The likelihood is exact for the harmonic force and that of the linearised fluctuations otherwise; an async lag enters the
course of the mean, not the memory of the fluctuations.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxgrpo.inference import models
from jaxgrpo.inference.models import Specification
from jaxgrpo.inference.problem import FORCE_POINTS, FORCE_REACH, Observations
from jaxgrpo.theory.groups import half_normal_nodes, normal_nodes

NODES = 31
Parameters = Float[Array, " parameters"]


class Course(NamedTuple):
    """The expected reward on the grid, and what the fluctuations about it need."""

    reward: Float[Array, " cycles"]
    stiffness: Float[Array, " cycles"]
    readout: Float[Array, " cycles"]
    jolt: Float[Array, " cycles"]


class Kinetics(NamedTuple):
    """What momentum does over one cycle (theory/cycle.py), for a momentum strictly between 0 and 1."""

    momentum: Float[Array, ""]
    carry_move: Float[Array, ""]
    carry_push: Float[Array, ""]
    move: Float[Array, ""]
    push: Float[Array, ""]
    noise: tuple[Float[Array, ""], Float[Array, ""], Float[Array, ""]]


def kinetics(parameters: Parameters, specification: Specification, observations: Observations) -> Kinetics:
    """Momentum sums of a model; a short form of `momentum_sums` and `noise_covariance` without their edge cases."""
    own = jax.nn.sigmoid(parameters[models.FORM])
    kind = specification.momentum
    mu = jnp.where(kind == models.FREE_MOMENTUM, own, observations.momentum)
    mu = jnp.where(kind == models.NO_MOMENTUM, 0.0, mu) + 1e-9
    k = jnp.asarray(observations.interval)
    power = jnp.exp(k * jnp.log(mu))
    rest = 1.0 - mu
    c = (1.0 - power) / rest
    c2 = (1.0 - power * power) / (1.0 - mu * mu)
    a = (k - mu * c) / rest
    # Per unit of the noise that a velocity without memory would need for the same random walk: times (1 - mu).
    ee = k - 2.0 * mu * c + mu * mu * c2
    eu = rest * (c - mu * c2)
    return Kinetics(mu, mu * c, power, a, c, (ee, eu, rest * rest * c2))


def plateau_of(parameters: Parameters, specification: Specification) -> Float[Array, ""]:
    """Plateau in scaled units, within the bounds where there are any."""
    raw = parameters[models.PLATEAU]
    inside = specification.lower + (specification.upper - specification.lower) * jax.nn.sigmoid(raw)
    return jnp.where(specification.bounded, inside, raw)


def course(
    parameters: Parameters, specification: Specification, observations: Observations, depth: int
) -> Course:
    """Expected reward of one run on its grid.

    Args:
        parameters: Unconstrained parameters.
        specification: The model.
        observations: One run (no leading axis).
        depth: Largest async lag in cycles, static.

    Returns:
        The course.
    """
    dtype = parameters.dtype
    motion = kinetics(parameters, specification, observations)
    interval = observations.interval
    factor = jnp.exp(jnp.exp(parameters[models.EXPONENT]) * observations.log_rate)
    rate = jnp.exp(parameters[models.RATE]) / observations.horizon
    gain = (1.0 - motion.momentum) * rate * factor

    harmonic = specification.harmonic
    plateau = plateau_of(parameters, specification)
    floor = jnp.where(harmonic, 0.0, parameters[models.FLOOR])
    height = jnp.where(harmonic, 1.0, plateau - floor)
    x, w = (jnp.asarray(v, dtype) for v in normal_nodes(NODES))
    y, w_half = (jnp.asarray(v, dtype) for v in half_normal_nodes(NODES))
    w = jnp.where(harmonic, w_half, w)
    spread = jnp.where(specification.mixed, jnp.exp(parameters[models.FORM]), 0.0)
    z0 = parameters[models.START] + jnp.where(harmonic, 0.0, spread) * x
    # For a harmonic force the spread is that of the curvature between directions.
    curvature = jnp.exp(-jnp.where(harmonic, spread, 0.0) * y)
    table = jnp.where(specification.std_normalised, observations.force[0], observations.force[1])

    def drive(z):
        position = jnp.clip(
            (z + FORCE_REACH) * ((FORCE_POINTS - 1) / (2.0 * FORCE_REACH)), 0.0, FORCE_POINTS - 1.001
        )
        below = jnp.floor(position)
        index = below.astype(jnp.int32)
        low, high = table[index], table[index + 1]
        return jnp.where(harmonic, curvature * (plateau - z), low + (position - below) * (high - low))

    weights = jax.nn.one_hot(jnp.round(observations.lag).astype(jnp.int32), depth + 1, dtype=dtype)

    def cycle(carry, gain_n):
        z, u, history = carry
        acting = history[0] if depth == 0 else weights @ history
        force = gain_n * drive(acting)
        moved = z + motion.carry_move * u + motion.move * force
        pushed = motion.carry_push * u + motion.push * force
        shifted = moved[None] if depth == 0 else jnp.concatenate([moved[None], history[:-1]], axis=0)
        return (moved, pushed, shifted), z

    start = (z0, jnp.zeros_like(z0), jnp.broadcast_to(z0, (depth + 1, NODES)))
    _, z = jax.lax.scan(cycle, start, gain)
    p = jax.nn.sigmoid(z)
    # A softmax force is felt by fluctuations through its slope, averaged over prompts by what they do to the reward.
    pq = p * (1.0 - p)
    weight = w[None, :] * pq
    total = jnp.sum(weight, axis=1) + 1e-12
    power = jnp.where(specification.std_normalised, 0.5 * jnp.sqrt(pq + 1e-20), pq)
    slope = jnp.sum(weight * power * (2.0 * p - 1.0), axis=1) / total
    reached = jnp.sum(w[None, :] * jnp.where(harmonic, z, p), axis=1)
    time = interval * (jnp.cumsum(factor) - factor)
    closed = _closed_form(parameters, specification, time, rate, plateau)
    is_dynamic = specification.curve == models.DYNAMIC
    # Force noise moves the logits, and through them the reward the less the nearer it is to its bounds.
    agility = jnp.where(specification.std_normalised, 0.125, 0.096) * 4.0 / (jnp.abs(height) + 1e-6)
    return Course(
        reward=jnp.where(is_dynamic, floor + height * reached, closed),
        stiffness=gain * jnp.where(harmonic, 1.0, slope),
        readout=jnp.where(harmonic, 1.0, height * total),
        jolt=jnp.where(is_dynamic, rate * factor * jnp.where(harmonic, 1.0, agility), 0.0),
    )


def _closed_form(parameters, specification, time, rate, plateau):
    r"""The baselines, as functions of learning-rate time.

    Power law $(1 + \lambda t/\alpha)^{-\alpha}$, which is the exponential for large $\alpha$, and ScaleRL's sigmoid
    $1/(1 + (\lambda t)^B)$, of what is left to the plateau.
    """
    start = parameters[models.START]
    shape = jnp.exp(parameters[models.FORM])
    kind = specification.curve
    scaled = rate * time
    power = jnp.exp(-shape * jnp.log1p(scaled / shape))
    sigmoid = jax.nn.sigmoid(-shape * jnp.log(scaled + 1e-9))
    left = jnp.where(kind == models.SIGMOID, sigmoid, jnp.where(kind == models.CONSTANT, 0.0, power))
    return plateau + (start - plateau) * left


class Innovations(NamedTuple):
    """One-step prediction errors and their variances; variance 1 and error 0 where nothing was observed."""

    error: Float[Array, " cycles"]
    variance: Float[Array, " cycles"]
    reward: Float[Array, " cycles"]


def innovations(
    parameters: Parameters, specification: Specification, observations: Observations, depth: int
) -> Innovations:
    """Kalman filter of one run.

    Args:
        parameters: Unconstrained parameters.
        specification: The model.
        observations: One run.
        depth: Largest async lag, static.

    Returns:
        The innovations, and the expected reward on the grid.
    """
    path = course(parameters, specification, observations, depth)
    motion = kinetics(parameters, specification, observations)
    observed = jnp.exp(2.0 * parameters[models.OBSERVATION])
    # Reward and force are averages over the same rollouts: per step, the fluctuations receive the noise of one reward times
    # the relaxation within one step, times a factor between 0 and 1. A freer process noise would explain the course away.
    added = (
        jax.nn.sigmoid(parameters[models.PROCESS]) ** 2
        * path.jolt**2
        * observed
        * observations.noise_scale**2
    )
    q_ee, q_eu, q_uu = motion.noise
    m01, m11 = motion.carry_move, motion.carry_push
    # Fluctuations are not allowed to grow in the early, unstable part of an S-shaped course: they would explain it away.
    falls = jnp.clip(path.stiffness * motion.move, 0.0, 1.9)
    pushes = jnp.maximum(path.stiffness, 0.0) * motion.push

    def update(carry, inputs):
        e, u, p_ee, p_eu, p_uu = carry
        y, count, mean, fall, push, r, q = inputs
        seen = (count > 0).astype(y.dtype)
        variance = r * r * p_ee + observed / jnp.maximum(count, 1.0)
        error = y - mean - r * e
        gain_e, gain_u = seen * r * p_ee / variance, seen * r * p_eu / variance
        e, u = e + gain_e * error, u + gain_u * error
        p_uu = p_uu - gain_u * r * p_eu
        p_eu = p_eu - gain_e * r * p_eu
        p_ee = p_ee - gain_e * r * p_ee
        m00, m10 = 1.0 - fall, -push
        a_ee, a_eu = m00 * p_ee + m01 * p_eu, m00 * p_eu + m01 * p_uu
        b_ee, b_eu = m10 * p_ee + m11 * p_eu, m10 * p_eu + m11 * p_uu
        state = (
            m00 * e + m01 * u,
            m10 * e + m11 * u,
            m00 * a_ee + m01 * a_eu + q * q_ee,
            m10 * a_ee + m11 * a_eu + q * q_eu,
            m10 * b_ee + m11 * b_eu + q * q_uu,
        )
        return state, (error, variance)

    zero = jnp.zeros((), parameters.dtype)
    inputs = (observations.reward, observations.count, path.reward, falls, pushes, path.readout, added)
    _, (error, variance) = jax.lax.scan(update, (zero,) * 5, inputs)
    return Innovations(error, variance, path.reward)
