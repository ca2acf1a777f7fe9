"""The damped oscillator that summarises a run: mean, variance and regime in closed form."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxgrpo.theory.hyperparameters import as_float_leaf
from jaxgrpo.theory.numerics import bounded_exp, cosine_like, decay_integral, safe_sqrt, sine_like

REGIMES = ("overdamped", "critical", "underdamped", "unstable")

# A mass below this is indistinguishable from none: the fast root is then beyond 1e6 per step, or 1e10 in double precision.
_SMALLEST_MASS = {"float32": 1e-6, "float64": 1e-10}
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(48)


class Oscillator(eqx.Module):
    r"""Reward dynamics as a stochastically forced damped oscillator.

    $$m \ddot R + \gamma \dot R + k (R - R^*) = \sigma \xi(t)$$

    with $t$ in optimizer steps. Mean and variance are exact for every sign of $\gamma$, through critical damping
    and at $m = 0$ (the single exponential). All fields may carry matching leading axes.

    Args:
        mass: Inertia $m \ge 0$.
        damping: $\gamma$; the oscillator is unstable where it is not positive.
        stiffness: $k > 0$.
        plateau: Fixed point $R^*$.
        initial_reward: $R(0)$.
        noise: $\sigma$, standard deviation of the velocity's increment per optimizer step.
        initial_velocity: $\dot R(0)$ per optimizer step.

    Example:
        >>> import jaxgrpo as jg
        >>> oscillator = jg.Oscillator(mass=0.9, damping=0.1, stiffness=0.01, plateau=0.8, initial_reward=0.2)
        >>> oscillator.regime_name
        'underdamped'
        >>> print(round(float(oscillator.mean(0.0)), 6))
        0.2
    """

    mass: Float[Array, "*configurations"] = eqx.field(converter=as_float_leaf)
    damping: Float[Array, "*configurations"] = eqx.field(converter=as_float_leaf)
    stiffness: Float[Array, "*configurations"] = eqx.field(converter=as_float_leaf)
    plateau: Float[Array, "..."] = eqx.field(converter=as_float_leaf)
    initial_reward: Float[Array, "..."] = eqx.field(converter=as_float_leaf)
    noise: Float[Array, "..."] = eqx.field(converter=as_float_leaf, default=0.0)
    initial_velocity: Float[Array, "..."] = eqx.field(converter=as_float_leaf, default=0.0)

    @property
    def temperature(self) -> Float[Array, "..."]:
        r"""$T = \sigma^2 / (2\gamma)$; infinite where $\gamma \le 0$."""
        positive = self.damping > 0
        return jnp.where(positive, self.noise**2 / (2.0 * jnp.where(positive, self.damping, 1.0)), jnp.inf)

    @property
    def stationary_variance(self) -> Float[Array, "..."]:
        r"""$\operatorname{Var} R = T/k = \sigma^2/(2\gamma k)$; infinite where $\gamma \le 0$."""
        return self.temperature / self.stiffness

    @property
    def damping_ratio(self) -> Float[Array, "..."]:
        r"""$\zeta = \gamma / (2\sqrt{m k})$; 1 is critical damping. Infinite for $m = 0$."""
        product = self.mass * self.stiffness
        positive = product > 0
        ratio = self.damping / (2.0 * jnp.sqrt(jnp.where(positive, product, 1.0)))
        return jnp.where(positive, ratio, jnp.where(self.damping > 0, jnp.inf, -jnp.inf))

    @property
    def _discriminant(self) -> Float[Array, "..."]:
        return self.damping**2 - 4.0 * self.mass * self.stiffness

    @property
    def regime(self) -> Int[Array, "..."]:
        """Index into `REGIMES`: 0 overdamped, 1 critical, 2 underdamped, 3 unstable."""
        discriminant = self._discriminant
        tolerance = 8.0 * jnp.finfo(discriminant.dtype).eps * self.damping**2
        code = jnp.where(discriminant > tolerance, 0, jnp.where(discriminant >= -tolerance, 1, 2))
        return jnp.where(self.damping <= 0, 3, code)

    @property
    def regime_name(self) -> str:
        """The regime in words; needs a single, concrete configuration."""
        return REGIMES[int(self.regime)]

    @property
    def timescale(self) -> Float[Array, "..."]:
        r"""Slowest e-folding time of the mean in optimizer steps; infinite where unstable.

        $\gamma/k$ to leading order in the overdamped regime, $2m/\gamma$ in the underdamped one.
        """
        root = safe_sqrt(self._discriminant)
        stable = self.damping > 0
        damping = jnp.where(stable, self.damping, 1.0)
        slow = (damping + root) / (2.0 * self.stiffness)
        envelope = 2.0 * self.mass / damping
        return jnp.where(stable, jnp.where(self._discriminant > 0, slow, envelope), jnp.inf)

    @property
    def period(self) -> Float[Array, "..."]:
        r"""Period of the oscillation, $2\pi / \sqrt{k/m - \gamma^2/4m^2}$, in steps; infinite if none."""
        oscillates = self._discriminant < 0
        root = jnp.sqrt(jnp.where(oscillates, -self._discriminant, 1.0))
        return jnp.where(oscillates, 4.0 * jnp.pi * self.mass / root, jnp.inf)

    @property
    def _resolved_mass(self) -> Float[Array, "..."]:
        """The mass, at least the smallest that is resolved; its derivative is kept, for that by the momentum at 0."""
        smallest = _SMALLEST_MASS.get(self._dtype.name, 1e-6)
        return self.mass + jax.lax.stop_gradient(jnp.maximum(self.mass, smallest) - self.mass)

    def _responses(self, t: Float[Array, "..."]) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
        """Response of the displacement to a unit initial displacement and to a unit initial velocity."""
        mass = self._resolved_mass
        a = self.damping / (2.0 * mass)
        rate_squared = self._discriminant / (4.0 * mass**2)
        y = rate_squared * t**2
        separate = y > 1.0

        y_near = jnp.where(separate, 0.0, y)
        envelope = bounded_exp(-jnp.where(separate, 0.0, a * t))
        sine = t * sine_like(y_near)
        displacement_near = envelope * (cosine_like(y_near) + a * sine)
        velocity_near = envelope * sine

        # Away from critical damping the two roots are apart and each may be exponentiated alone.
        root = jnp.sqrt(jnp.where(self._discriminant > 0, self._discriminant, 1.0))
        root = jnp.where(self.damping < 0, -root, root)
        fast_mass = 0.5 * (self.damping + root)
        fast_mass = jnp.where(self._discriminant > 0, fast_mass, 1.0)
        slow_exp = bounded_exp(-self.stiffness / fast_mass * t)
        fast_exp = bounded_exp(-fast_mass / mass * t)
        displacement_far = (fast_mass * slow_exp - mass * self.stiffness / fast_mass * fast_exp) / root
        velocity_far = mass * (slow_exp - fast_exp) / root
        return (
            jnp.where(separate, displacement_far, displacement_near),
            jnp.where(separate, velocity_far, velocity_near),
        )

    def mean(self, t: Float[Array, "..."] | float) -> Float[Array, "..."]:
        r"""Expected reward at $t$ optimizer steps.

        $e(t) = e^{-at}[e_0 C(y) + (v_0 + a e_0)\, t S(y)]$, $a = \gamma/2m$, $y = (a^2 - k/m) t^2$.

        Args:
            t: Times in optimizer steps, any shape that broadcasts with the fields.

        Returns:
            $R^* + e(t)$.
        """
        t = jnp.asarray(t, self._dtype)
        displacement, velocity = self._responses(t)
        start = self.initial_reward - self.plateau
        return self.plateau + start * displacement + self.initial_velocity * velocity

    @property
    def _dtype(self):
        return jnp.result_type(self.mass, self.damping, self.stiffness)

    def variance(self, t: Float[Array, "..."] | float) -> Float[Array, "..."]:
        r"""Variance of the reward at $t$ optimizer steps, from a start without any.

        $\operatorname{Var} R(t) = (\sigma/m)^2 \int_0^t g(s)^2 ds$ with $g$ the response to a unit velocity; it
        tends to $T/k$ where $\gamma > 0$ and grows without bound otherwise.

        Args:
            t: Times in optimizer steps, any shape that broadcasts with the fields.

        Returns:
            The variance, in squared units of reward.
        """
        t = jnp.asarray(t, self._dtype)
        mass = self._resolved_mass
        a = self.damping / (2.0 * mass)
        rate_squared = self._discriminant / (4.0 * mass**2)
        # Beyond 18 e-folding times of the envelope nothing is added.
        decaying = a > 0
        reach = jnp.where(decaying, jnp.minimum(t, 18.0 / jnp.where(decaying, a, 1.0)), t)
        spread = rate_squared * reach**2

        near = jnp.abs(spread) < 1.0
        reach_near = jnp.where(near, reach, 0.0)
        shape = (1,) * reach_near.ndim + (-1,)
        nodes = jnp.asarray(0.5 * (_NODES + 1.0), t.dtype).reshape(shape)
        weights = jnp.asarray(0.5 * _WEIGHTS, t.dtype).reshape(shape)
        s = reach_near[..., None] * nodes
        rate_near = jnp.where(near, rate_squared, 0.0)[..., None]
        a_near = jnp.where(near, a, 0.0)[..., None]
        g = bounded_exp(-a_near * s) * s * sine_like(rate_near * s**2)
        integral_near = reach_near * jnp.sum(weights * g**2, axis=-1) / jnp.where(near, mass, 1.0) ** 2

        real = spread >= 1.0
        discriminant = jnp.where(real, self._discriminant, 1.0)
        root = jnp.where(self.damping < 0, -1.0, 1.0) * jnp.sqrt(discriminant)
        fast_mass = jnp.where(real, 0.5 * (self.damping + root), 1.0)
        slow, fast = self.stiffness / fast_mass, fast_mass / mass
        integral_real = (
            decay_integral(2.0 * slow, t)
            - 2.0 * decay_integral(slow + fast, t)
            + decay_integral(2.0 * fast, t)
        ) / discriminant

        oscillating = spread <= -1.0
        omega = jnp.sqrt(jnp.where(oscillating, -rate_squared, 1.0))
        a_osc = jnp.where(oscillating, a, 0.0)
        decay = bounded_exp(-2.0 * a_osc * t)
        rotating = (
            a_osc * (1.0 - decay * jnp.cos(2.0 * omega * t)) + omega * decay * jnp.sin(2.0 * omega * t)
        ) / (2.0 * (a_osc**2 + omega**2))
        integral_osc = (decay_integral(2.0 * a_osc, t) - rotating) / (
            2.0 * omega**2 * jnp.where(oscillating, mass, 1.0) ** 2
        )
        integral = jnp.where(near, integral_near, jnp.where(real, integral_real, integral_osc))
        return self.noise**2 * jnp.maximum(integral, 0.0)
