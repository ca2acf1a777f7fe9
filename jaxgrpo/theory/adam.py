"""Adam's division by the root of the second moment, and its two regimes."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxgrpo.theory.hyperparameters import as_float_leaf, is_concrete


class AdamNormalisation(eqx.Module):
    r"""Size of what Adam divides by.

    $h = (1-\beta_1)\eta\kappa / \sqrt{g^2 + s^2/(BG)}$. Signal-dominated ($g$ large) the dynamics do not depend on the
    group size; noise-dominated ($s$ large) $h$ grows as $\sqrt{BG}$, the square-root scaling rule.

    Args:
        signal: Root mean square of the mean gradient per parameter, $g$.
        noise: Standard deviation of one rollout's gradient per parameter, $s$.

    Raises:
        ValueError: If a value known at construction is negative or not finite.
    """

    signal: Float[Array, "..."] = eqx.field(converter=as_float_leaf)
    noise: Float[Array, "..."] = eqx.field(converter=as_float_leaf, default=0.0)

    def __check_init__(self):
        for name in ("signal", "noise"):
            value = getattr(self, name)
            if is_concrete(value) and not bool(jnp.all(jnp.isfinite(value) & (value >= 0))):
                raise ValueError(f"{name} must be finite and not negative, got {value}")

    def gain(self, rollouts_per_step: Float[Array, "..."] | float) -> Float[Array, "..."]:
        r"""$1/\sqrt{g^2 + s^2/(BG)}$.

        Args:
            rollouts_per_step: $B G$.

        Returns:
            The factor on the stiffness.
        """
        return 1.0 / jnp.sqrt(self.signal**2 + self.noise**2 / rollouts_per_step)
