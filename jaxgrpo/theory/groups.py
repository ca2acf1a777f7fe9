"""What a finite group of completions does: zero spread, expected spread, and the factors on the force.

All functions are exact at whole group sizes and smooth between them, so that the group size can be differentiated.
"""

import functools
from statistics import NormalDist
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from jaxtyping import Array, Float

from jaxgrpo.theory.hyperparameters import is_concrete
from jaxgrpo.theory.numerics import safe_sqrt

Normalisation = Literal["std", "mean"]
Scalars = Float[Array, "..."] | Float[np.ndarray, "..."] | float

# Largest group whose expected spread is summed term by term; beyond it what it lacks is extrapolated in 1/G.
LARGEST_SUMMED_GROUP = 512
# Coefficients of x, x^2 and x^3, with x the largest summed group over the group, from what is lacking at three groups.
_EARLIER_GROUPS = (512, 448, 384)
_FROM_LACKS = np.linalg.inv(
    np.stack([(512.0 / np.array(_EARLIER_GROUPS)) ** power for power in (1, 2, 3)], axis=1)
)


def _floats(*values: Scalars) -> list[Float[Array, "..."]]:
    arrays = [jnp.asarray(value) for value in values]
    explicit = [a.dtype for a in arrays if jnp.issubdtype(a.dtype, jnp.inexact) and not a.weak_type]
    dtype = jnp.result_type(*explicit) if explicit else jnp.result_type(float)
    return [a.astype(dtype) for a in arrays]


def zero_spread_probability(p: Scalars, group_size: Scalars) -> Float[Array, "..."]:
    r"""Probability that a group of binary rewards teaches nothing, $p^G + (1-p)^G$.

    Args:
        p: Success probability of the prompt.
        group_size: $G \ge 1$.

    Returns:
        The probability, 1 at $G = 1$.
    """
    p, group_size = _floats(p, group_size)
    # Powers of a floor instead of zero: their slope at p = 0 and 1 is then finite in single precision too.
    tiny = jnp.finfo(p.dtype).tiny ** 0.5
    power = lambda share: jnp.exp(group_size * jnp.log(jnp.maximum(share, tiny)))
    return power(p) + power(1.0 - p)


def expected_biased_variance(p: Scalars, group_size: Scalars) -> Float[Array, "..."]:
    """Expected biased variance of a group's binary rewards, $p(1-p)(1-1/G)$."""
    p, group_size = _floats(p, group_size)
    return p * (1.0 - p) * (1.0 - 1.0 / group_size)


def _log_factorials(largest: int) -> np.ndarray:
    r"""$\log n!$ for n = 0, ..., `largest`."""
    return np.concatenate([[0.0], np.cumsum(np.log(np.arange(1.0, largest + 1.0)))])


def _expected_std_at(p, n, largest: int):
    """Expected biased standard deviation of a whole number n of binary rewards, by enumeration."""
    log_factorial = jnp.asarray(_log_factorials(largest + 1), p.dtype)
    k = jnp.arange(1, largest, dtype=p.dtype).reshape((1,) * n.ndim + (-1,))
    n = n[..., None]
    inside = k < n
    k = jnp.where(inside, k, 1.0)
    m = jnp.where(inside, n - k, 1.0)
    safe_n = jnp.maximum(n, 2.0)
    look_up = lambda count: log_factorial[count.astype(jnp.int32)]
    # Outside the sum the coefficient is none of the group's and may overflow: leave it out before the exponential.
    log_choose = jnp.where(inside, look_up(safe_n) - look_up(k) - look_up(m), 0.0)
    tiny = jnp.finfo(p.dtype).tiny ** 0.5
    log_share, log_rest = jnp.log(jnp.maximum(p, tiny)), jnp.log(jnp.maximum(1.0 - p, tiny))
    log_weight = log_choose + k * log_share[..., None] + m * log_rest[..., None]
    terms = jnp.exp(log_weight) * jnp.sqrt(k * m) / safe_n
    return jnp.sum(jnp.where(inside, terms, 0.0), axis=-1)


def expected_std(p: Scalars, group_size: Scalars, unbiased: bool = False) -> Float[Array, "..."]:
    r"""Expected standard deviation of a group's binary rewards.

    $\sum_k \operatorname{Binom}(k; G, p) \sqrt{(k/G)(1-k/G)}$, times $\sqrt{G/(G-1)}$ if `unbiased`. Between whole
    group sizes it is interpolated by a cubic with continuous slope.

    Args:
        p: Success probability.
        group_size: $G \ge 1$; above 512 the rest to $\sqrt{p(1-p)}$ is taken as a cubic in $1/G$ (right to $10^{-5}$
            for $p \ge 0.03$, to 0.4 % for $p = 0.003$).
        unbiased: Whether the framework divides by $G - 1$.

    Returns:
        The expected standard deviation, 0 at $G = 1$.
    """
    p, group_size = jnp.broadcast_arrays(*_floats(p, group_size))
    largest = LARGEST_SUMMED_GROUP
    if is_concrete(group_size) and group_size.size and bool(np.all(np.isfinite(np.asarray(group_size)))):
        largest = int(min(largest, np.ceil(float(jnp.max(group_size)))))
    size = jnp.clip(group_size, 1.0, float(largest))
    base = jnp.floor(size)
    base = jnp.where(base >= largest, jnp.maximum(largest - 1.0, 1.0), base)
    part = size - base
    values = [_expected_std_at(p, jnp.maximum(base + shift, 1.0), largest + 3) for shift in (-1, 0, 1, 2)]
    # Below G = 1 the curve is continued by its point reflection, which keeps its slope at 1.
    before = jnp.where(base < 2, 2.0 * values[1] - values[2], values[0])
    slope_low, slope_high = 0.5 * (values[2] - before), 0.5 * (values[3] - values[1])
    rise = values[2] - values[1]
    result = values[1] + part * (
        slope_low
        + part * (3.0 * rise - 2.0 * slope_low - slope_high + part * (slope_low + slope_high - 2.0 * rise))
    )
    if largest == LARGEST_SUMMED_GROUP:
        full = jnp.sqrt(jnp.maximum(p * (1.0 - p), 1e-30))
        lacks = [full - _expected_std_at(p, jnp.full_like(size, n), largest) for n in _EARLIER_GROUPS]
        share = largest / jnp.maximum(group_size, largest)
        terms = jnp.tensordot(jnp.asarray(_FROM_LACKS, p.dtype), jnp.stack(lacks), axes=1)
        rest = share * (terms[0] + share * (terms[1] + share * terms[2]))
        result = jnp.where(group_size > largest, full - rest, result)
    if unbiased:
        result = result * safe_sqrt(size / jnp.maximum(size - 1.0, 1e-6))
    return result


def force_factor(
    p: Scalars, group_size: Scalars, normalisation: Normalisation = "std"
) -> Float[Array, "..."]:
    r"""What a group of size $G$ leaves of the force of an infinite one.

    $1 - 1/G$ for the mean-only advantage (Dr. GRPO), $E[\mathrm{std}]/\sqrt{p(1-p)}$ for the std-normalised one.

    Args:
        p: Success probability.
        group_size: $G \ge 1$.
        normalisation: `"std"` or `"mean"`.

    Returns:
        The factor, in [0, 1].
    """
    p, group_size = jnp.broadcast_arrays(*_floats(p, group_size))
    if normalisation == "mean":
        return 1.0 - 1.0 / group_size
    tiny = 1e-12 if p.dtype == jnp.float64 else 1e-6
    inside = jnp.clip(p, tiny, 1.0 - tiny)
    return expected_std(inside, group_size) / jnp.sqrt(inside * (1.0 - inside))


def group_force_variance(p: Scalars, group_size: Scalars, unbiased: bool = True) -> Float[Array, "..."]:
    r"""Variance of one group's mean-only force with binary rewards.

    $\frac{pq}{G}\left[(1-2p)^2 + \frac{2pq}{G-1}\right]$ for the unbiased advantage (RLOO, $\times G/(G-1)$), times
    $(1-1/G)^2$ for the biased one. It falls as $1/G$ only away from $p = 1/2$, where it falls as $1/G^2$.

    Args:
        p: Success probability, $q = 1 - p$.
        group_size: $G \ge 1$; at 1 the biased force and its variance are 0, the unbiased one does not exist (inf).
        unbiased: Whether the advantage is unbiased.

    Returns:
        The variance.
    """
    p, g = jnp.broadcast_arrays(*_floats(p, group_size))
    pq = p * (1.0 - p)
    several = g > 1
    rest = jnp.where(several, g - 1.0, 1.0)
    value = pq / g * ((1.0 - 2.0 * p) ** 2 + 2.0 * pq / rest)
    if unbiased:
        return jnp.where(several, value, jnp.inf)
    return jnp.where(several, value * (1.0 - 1.0 / g) ** 2, 0.0)


def _log_beta(a: Float[Array, "..."], b: Float[Array, "..."]) -> Float[Array, "..."]:
    """Logarithm of the beta function; JAX's own `betaln` is good to six digits only."""
    return gammaln(a) + gammaln(b) - gammaln(a + b)


def beta_zero_spread_probability(a: Scalars, b: Scalars, group_size: Scalars) -> Float[Array, "..."]:
    r"""Zero-spread probability over prompts with $p \sim \mathrm{Beta}(a, b)$.

    $[B(a+G, b) + B(a, b+G)] / B(a, b)$.
    """
    a, b, g = _floats(a, b, group_size)
    base = _log_beta(a, b)
    return jnp.exp(_log_beta(a + g, b) - base) + jnp.exp(_log_beta(a, b + g) - base)


def beta_expected_biased_variance(a: Scalars, b: Scalars, group_size: Scalars) -> Float[Array, "..."]:
    r"""Expected within-group biased variance over prompts with $p \sim \mathrm{Beta}(a, b)$.

    $(1 - 1/G)\, ab / ((a+b)(a+b+1))$.
    """
    a, b, g = _floats(a, b, group_size)
    return (1.0 - 1.0 / g) * a * b / ((a + b) * (a + b + 1.0))


@functools.cache
def normal_nodes(nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights for expectations over a standard normal variable: Gauss-Legendre in its quantile.

    As prompts are learnt one after the other, the success probability turns into a step in difficulty. Gauss-Hermite nodes
    are sparse and heavy in the middle and make a staircase of it (errors of .025 in the reward at 21 nodes and a spread of
    2.5 logits, .018 for equidistant nodes, .008 for these and .004 for 31 of them).
    """
    x, weights = np.polynomial.legendre.leggauss(nodes)
    quantile = NormalDist().inv_cdf
    return np.array([quantile(0.5 * (1.0 + u)) for u in x]), 0.5 * weights


def half_normal_nodes(nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Equidistant nodes and weights (trapezoidal rule) for expectations over the modulus of a standard normal variable."""
    y = np.linspace(0.0, 3.5, nodes) if nodes > 1 else np.zeros(1)
    weights = np.exp(-0.5 * y**2)
    weights[0] *= 0.5 if nodes > 1 else 1.0
    return y, weights / weights.sum()


def _mixture(function, location, spread, group_size, nodes):
    location, spread, group_size = _floats(location, spread, group_size)
    x, w = normal_nodes(nodes)
    location, spread, group_size = jnp.broadcast_arrays(location, spread, group_size)
    shape = (1,) * location.ndim + (-1,)
    x, w = (jnp.asarray(a, location.dtype).reshape(shape) for a in (x, w))
    p = jax.nn.sigmoid(location[..., None] + spread[..., None] * x)
    return jnp.sum(w * function(p, jnp.broadcast_to(group_size[..., None], p.shape)), axis=-1)


def mixture_zero_spread_probability(
    location: Scalars, spread: Scalars, group_size: Scalars, nodes: int = 31
) -> Float[Array, "..."]:
    """Zero-spread probability over prompts whose logits are normal.

    Args:
        location: Mean logit $z_0$.
        spread: Standard deviation of the logits $s_0$.
        group_size: $G$.
        nodes: quadrature nodes.

    Returns:
        $E[p^G + (1-p)^G]$.
    """
    return _mixture(zero_spread_probability, location, spread, group_size, nodes)


def mixture_expected_std(
    location: Scalars, spread: Scalars, group_size: Scalars, nodes: int = 31
) -> Float[Array, "..."]:
    r"""Expected within-group standard deviation over prompts whose logits are normal.

    Args:
        location: Mean logit $z_0$.
        spread: Standard deviation of the logits $s_0$.
        group_size: $G$.
        nodes: quadrature nodes.

    Returns:
        $E[\mathrm{std}]$ (biased).
    """
    return _mixture(expected_std, location, spread, group_size, nodes)
