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
from jaxgrpo.theory.cycle import momentum_sums, noise_covariance
from jaxgrpo.theory.groups import gauss_hermite
from jaxgrpo.theory.numerics import momentum_power

NODES = 21
Parameters = Float[Array, " parameters"]


class Course(NamedTuple):
    """The expected reward on the grid, and what the fluctuations about it need."""

    reward: Float[Array, " cycles"]
    stiffness: Float[Array, " cycles"]
    readout: Float[Array, " cycles"]


def effective_momentum(parameters: Parameters, specification: Specification, momentum: Float[Array, ""]):
    """The momentum that moves a model's coordinates."""
    inertia = jnp.exp(jnp.clip(parameters[models.INERTIA], -12.0, 12.0))
    free = inertia / (1.0 + inertia)
    own = jnp.where(specification.momentum == models.FREE_MOMENTUM, free, momentum)
    return jnp.where(specification.momentum == models.NO_MOMENTUM, 0.0, own)


def plateau_of(parameters: Parameters, specification: Specification) -> Float[Array, ""]:
    """Plateau in scaled units, within the bounds where there are any."""
    raw = parameters[models.PLATEAU]
    inside = specification.lower + (specification.upper - specification.lower) * jax.nn.sigmoid(raw)
    return jnp.where(specification.bounded, inside, raw)


def rate_per_step(parameters: Parameters, observations: Observations) -> Float[Array, ""]:
    """E-foldings per optimizer step at the first run's largest learning rate."""
    return jnp.exp(jnp.clip(parameters[models.RATE], -30.0, 12.0)) / observations.horizon


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
    momentum = effective_momentum(parameters, specification, observations.momentum)
    interval = observations.interval
    exponent = jnp.exp(parameters[models.EXPONENT])
    log_rate = jnp.where(specification.curve == models.DYNAMIC, exponent * observations.log_rate, observations.log_rate)
    factor = jnp.where(observations.rate_is_zero, 0.0, jnp.exp(log_rate))
    rate = rate_per_step(parameters, observations)
    gain = (1.0 - momentum) * rate * factor
    c, a = momentum_sums(momentum, interval)
    carry_move, carry_push = momentum * c, momentum_power(momentum, interval)

    harmonic = specification.harmonic
    plateau = plateau_of(parameters, specification)
    floor = jnp.where(harmonic, 0.0, parameters[models.FLOOR])
    height = jnp.where(harmonic, 1.0, plateau - floor)
    x, w = (jnp.asarray(v, dtype) for v in gauss_hermite(NODES))
    spread = jnp.where(specification.mixed, jnp.exp(jnp.minimum(parameters[models.SPREAD], 3.0)), 0.0)
    z0 = parameters[models.START] + spread * x
    table = jnp.where(specification.std_normalised, observations.force[0], observations.force[1])

    def drive(z):
        position = jnp.clip((z + FORCE_REACH) * ((FORCE_POINTS - 1) / (2.0 * FORCE_REACH)), 0.0, FORCE_POINTS - 1.001)
        below = jnp.floor(position)
        index = below.astype(jnp.int32)
        low, high = table[index], table[index + 1]
        return jnp.where(harmonic, plateau - z, low + (position - below) * (high - low))

    # A softmax force is at most 1/2 (std) or 1/4 (mean-only); its slope is felt by fluctuations.
    def slope_and_readout(z):
        p = jax.nn.sigmoid(z)
        pq = p * jax.nn.sigmoid(-z)
        std = 0.5 * jnp.sqrt(pq) * (2.0 * p - 1.0)
        softmax = jnp.where(specification.std_normalised, std, pq * (2.0 * p - 1.0))
        weights = w * jnp.where(harmonic, 1.0, pq)
        total = jnp.sum(weights)
        slope = jnp.sum(weights * jnp.where(harmonic, 1.0, softmax)) / (total + 1e-12)
        return slope, height * total

    weights = jax.nn.one_hot(jnp.round(observations.lag).astype(jnp.int32), depth + 1, dtype=dtype)

    def cycle(carry, gain_n):
        z, u, history = carry
        acting = history[0] if depth == 0 else weights @ history
        force = gain_n * drive(acting)
        out = z
        z_next = z + carry_move * u + a * force
        u_next = carry_push * u + c * force
        z_next = jnp.clip(z_next, -1e6, 1e6)
        shifted = z_next[None] if depth == 0 else jnp.concatenate([z_next[None], history[:-1]], axis=0)
        return (z_next, u_next, shifted), out

    start = (z0, jnp.zeros_like(z0), jnp.broadcast_to(z0, (depth + 1, NODES)))
    _, z = jax.lax.scan(cycle, start, gain)
    w_row = w[None, :]
    dynamic = floor + height * jnp.sum(w_row * jnp.where(harmonic, z, jax.nn.sigmoid(z)), axis=1)
    slope, readout = jax.vmap(slope_and_readout)(z)

    time = interval * jnp.cumsum(jnp.exp(observations.log_rate)) - interval * jnp.exp(observations.log_rate[0])
    closed, relaxation = _closed_form(parameters, specification, time, rate, plateau)
    is_dynamic = specification.curve == models.DYNAMIC
    return Course(
        reward=jnp.where(is_dynamic, dynamic, closed),
        stiffness=jnp.where(is_dynamic, gain * slope, relaxation),
        readout=jnp.where(is_dynamic, readout, 1.0),
    )


def _closed_form(parameters, specification, time, rate, plateau):
    """The baselines, as functions of learning-rate time, and their local rates of relaxation per step."""
    start = parameters[models.START]
    shape = jnp.exp(jnp.clip(parameters[models.SHAPE], -4.0, 4.0))
    exponential = jnp.exp(-jnp.minimum(rate * time, 500.0))
    power = jnp.exp(-shape * jnp.log1p(rate * time))
    scaled = jnp.maximum(rate * time, 1e-12)
    grown = jnp.exp(jnp.clip(shape * jnp.log(scaled), -200.0, 200.0))
    sigmoid = 1.0 / (1.0 + grown)
    kind = specification.curve
    left = jnp.where(kind == models.EXPONENTIAL, exponential, jnp.where(kind == models.SIGMOID, sigmoid, power))
    left = jnp.where(kind == models.CONSTANT, 0.0, left)
    relaxation = jnp.where(
        kind == models.EXPONENTIAL,
        rate,
        jnp.where(
            kind == models.SIGMOID,
            shape * grown / (1.0 + grown) / (time + 1.0 / rate),
            jnp.where(kind == models.POWER, shape * rate / (1.0 + rate * time), 0.0),
        ),
    )
    return plateau + (start - plateau) * left, relaxation


class Innovations(NamedTuple):
    """One-step prediction errors and their variances; variance 1 and error 0 where nothing was observed."""

    error: Float[Array, " cycles"]
    variance: Float[Array, " cycles"]
    reward: Float[Array, " cycles"]


def innovations(
    parameters: Parameters, specification: Specification, observations: Observations, noise: Float[Array, ""], depth: int
) -> Innovations:
    """Kalman filter of one run.

    Args:
        parameters: Unconstrained parameters.
        specification: The model.
        observations: One run.
        noise: Scale of the process noise: the noise of one reward, scaled units.
        depth: Largest async lag, static.

    Returns:
        The innovations, and the expected reward on the grid.
    """
    path = course(parameters, specification, observations, depth)
    momentum = effective_momentum(parameters, specification, observations.momentum)
    interval = observations.interval
    c, a = momentum_sums(momentum, interval)
    carry_move, carry_push = momentum * c, momentum_power(momentum, interval)
    noise_shape = noise_covariance(momentum, interval, 1.0)
    factor = jnp.where(observations.rate_is_zero, 0.0, jnp.exp(observations.log_rate))
    # Random-walk displacement over the run that the process noise would cause without restoring force.
    height = jnp.abs(plateau_of(parameters, specification) - parameters[models.FLOOR])
    unit = jnp.where(specification.harmonic, 1.0, 0.25 * height + 1e-6)
    size = jnp.exp(parameters[models.PROCESS]) * noise * observations.noise_scale / unit
    steps = observations.horizon
    q = (size * (1.0 - momentum)) ** 2 / steps * noise_shape.astype(parameters.dtype)
    observed = jnp.exp(2.0 * parameters[models.OBSERVATION])

    def update(carry, inputs):
        e, u, p_ee, p_eu, p_uu = carry
        y, count, mean, h, r, f = inputs
        seen = count > 0
        variance = r * r * p_ee + observed / jnp.maximum(count, 1.0)
        error = y - mean - r * e
        gain_e = jnp.where(seen, r * p_ee / variance, 0.0)
        gain_u = jnp.where(seen, r * p_eu / variance, 0.0)
        e, u = e + gain_e * error, u + gain_u * error
        p_ee, p_eu, p_uu = (
            p_ee - gain_e * r * p_ee,
            p_eu - gain_e * r * p_eu,
            p_uu - gain_u * r * p_eu,
        )
        m00, m10 = 1.0 - jnp.clip(h * a, -1.0, 1.9), -jnp.clip(h * c, -1.0, 1.9)
        m01, m11 = carry_move, carry_push
        scale = f * f
        next_ee = m00 * m00 * p_ee + 2.0 * m00 * m01 * p_eu + m01 * m01 * p_uu + scale * q[0, 0]
        next_eu = m00 * m10 * p_ee + (m00 * m11 + m01 * m10) * p_eu + m01 * m11 * p_uu + scale * q[0, 1]
        next_uu = m10 * m10 * p_ee + 2.0 * m10 * m11 * p_eu + m11 * m11 * p_uu + scale * q[1, 1]
        state = (m00 * e + m01 * u, m10 * e + m11 * u, *(jnp.clip(v, -1e12, 1e12) for v in (next_ee, next_eu, next_uu)))
        return state, (jnp.where(seen, error, 0.0), jnp.where(seen, variance, 1.0))

    zero = jnp.zeros((), parameters.dtype)
    inputs = (observations.reward, observations.count, path.reward, path.stiffness, path.readout, factor)
    _, (error, variance) = jax.lax.scan(update, (zero,) * 5, inputs)
    return Innovations(error, variance, path.reward)
