"""Elementary functions written so that values and gradients stay finite at their removable singularities."""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float


def safe_sqrt(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Square root that is 0, with gradient 0, for arguments at or below zero (NaN stays NaN)."""
    positive = x > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, x, 1.0)), jnp.where(jnp.isnan(x), jnp.nan, 0.0))


def bounded_exp(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Exponential that saturates before overflow, so that products with it stay finite."""
    limit = 0.4 * math.log(float(jnp.finfo(x.dtype).max))
    return jnp.exp(jnp.minimum(x, limit))


def momentum_power(momentum: Float[Array, "..."], n: Float[Array, "..."]) -> Float[Array, "..."]:
    r"""$\mu^n$ for $0 \le \mu < 1$ and real $n \ge 0$, with finite derivatives at $\mu = 0$.

    Written as $\mu \cdot \mu^{n-1}$ for $n \ge 1$, so that the slope at $\mu = 0$, $n = 1$ is 1.
    """
    momentum, n = jnp.broadcast_arrays(jnp.asarray(momentum), jnp.asarray(n))
    positive = momentum > 0
    log = jnp.log(jnp.where(positive, momentum, 1.0))
    at_least_one = n >= 1
    rest = jnp.where(positive, jnp.exp((n - 1.0) * log), jnp.where(n == 1, 1.0, 0.0))
    below = jnp.where(positive, jnp.exp(n * log), jnp.where(n == 0, 1.0, 0.0))
    return jnp.where(at_least_one, momentum * rest, below)


def decay_integral(rate: Float[Array, "..."], t: Float[Array, "..."]) -> Float[Array, "..."]:
    r"""$\int_0^t e^{-r s} ds = (1 - e^{-r t})/r$, entire in $r$ (and finite where it would overflow)."""
    x = rate * t
    small = jnp.abs(x) < 1e-3
    near = jnp.where(small, x, 0.0)
    series = 1.0 - near / 2.0 * (1.0 - near / 3.0 * (1.0 - near / 4.0))
    safe = jnp.where(small, 1.0, x)
    limit = 0.4 * math.log(float(jnp.finfo(x.dtype).max))
    return t * jnp.where(small, series, -jnp.expm1(jnp.minimum(-safe, limit)) / safe)


def cosine_like(y: Float[Array, "..."]) -> Float[Array, "..."]:
    r"""$C(y) = \cosh\sqrt{y}$, equal to $\cos\sqrt{-y}$ for $y < 0$: an entire function."""
    small = jnp.abs(y) < 1e-2
    # Powers of a large argument overflow, and the derivative of what is not chosen must be finite too.
    near = jnp.where(small, y, 0.0)
    series = 1.0 + near / 2.0 * (
        1.0 + near / 12.0 * (1.0 + near / 30.0 * (1.0 + near / 56.0 * (1.0 + near / 90.0)))
    )
    root = jnp.sqrt(jnp.where(small, 1.0, jnp.abs(y)))
    cosh = jnp.cosh(jnp.where(y > 0, root, 0.0))
    return jnp.where(small, series, jnp.where(y > 0, cosh, jnp.cos(root)))


def sine_like(y: Float[Array, "..."]) -> Float[Array, "..."]:
    r"""$S(y) = \sinh\sqrt{y}/\sqrt{y}$, equal to $\sin\sqrt{-y}/\sqrt{-y}$ for $y < 0$: an entire function."""
    small = jnp.abs(y) < 1e-2
    near = jnp.where(small, y, 0.0)
    series = 1.0 + near / 6.0 * (
        1.0 + near / 20.0 * (1.0 + near / 42.0 * (1.0 + near / 72.0 * (1.0 + near / 110.0)))
    )
    root = jnp.sqrt(jnp.where(small, 1.0, jnp.abs(y)))
    sinh = jnp.sinh(jnp.where(y > 0, root, 0.0))
    return jnp.where(small, series, jnp.where(y > 0, sinh, jnp.sin(root)) / root)


def squared_arccosine(x: Float[Array, "..."]) -> Float[Array, "..."]:
    r"""$\arccos^2(x)$ for $-1 < x \le 1$, continued analytically to $-\operatorname{arccosh}^2(x)$ for $x > 1$.

    Smooth through $x = 1$, where the two roots of a quadratic meet.
    """
    d = 1.0 - x
    near = jnp.abs(d) < 1e-2
    d = jnp.where(near, d, 0.0)
    # arccos(1 - d)^2 = sum_n 2^(n+1) d^n / (n^2 binom(2n, n))
    series = (
        2.0 * d * (1.0 + d / 6.0 * (1.0 + d * 4.0 / 15.0 * (1.0 + d * 9.0 / 28.0 * (1.0 + d * 16.0 / 45.0))))
    )
    inside = jnp.where(near | (x >= 1), 0.0, jnp.clip(x, -1.0 + 1e-12, 1.0))
    outside = jnp.where(near | (x <= 1), 2.0, x)
    return jnp.where(near, series, jnp.where(x < 1, jnp.arccos(inside) ** 2, -(jnp.arccosh(outside) ** 2)))


def precision(*trees: Any) -> np.dtype:
    """Precision of inputs: that of the arrays among them, or JAX's default where there are plain numbers only.

    Args:
        *trees: Pytrees, such as hyperparameters and a task.

    Returns:
        The floating-point type.
    """
    leaves = [x for x in jax.tree.leaves(trees) if eqx.is_inexact_array(x)]
    explicit = [x.dtype for x in leaves if not x.weak_type]
    return np.dtype(jnp.result_type(*explicit) if explicit else jnp.result_type(float))
