"""What is measured, once, of a model on a task."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxgrpo.theory.adam import AdamNormalisation
from jaxgrpo.theory.forces import AbstractForce, Harmonic
from jaxgrpo.theory.hyperparameters import as_float_leaf, is_concrete


class Task(eqx.Module):
    r"""A model on a task, as far as the dynamics see it.

    Args:
        curvature: $\kappa$, what drives $R(t)$: slope of the mean-field force per unit of learning rate (per logit for
            the softmax forces).
        plateau: $R^*$, fixed point of the reward; the ceiling for the softmax forces.
        initial_reward: Expected reward of the initial policy.
        rollout_noise: $s$, standard deviation of one rollout's force; the velocity's noise per step is
            $\sigma = c\,\eta\,s/\sqrt{BG}$.
        force: Shape of the restoring force.
        sharpness: Top curvature of the force field, if measured: it decides stability. Without it the curvature
            stands in, and thresholds are upper bounds.
        learning_rate_exponent: $a$ in $h \propto \eta^a$, 1 unless runs at several rates say otherwise.
        reference_learning_rate: Rate at which `curvature` was measured; needed if the exponent is not 1.
        adam: Size of what Adam divides by, if the dependence on the batch is to be predicted.

    Raises:
        ValueError: If a value known at construction lies outside its range.
    """

    curvature: Float[Array, "..."] = eqx.field(converter=as_float_leaf)
    plateau: Float[Array, "..."] = eqx.field(converter=as_float_leaf)
    initial_reward: Float[Array, "..."] = eqx.field(converter=as_float_leaf, default=0.0)
    rollout_noise: Float[Array, "..."] = eqx.field(converter=as_float_leaf, default=0.0)
    force: AbstractForce = eqx.field(default_factory=Harmonic)
    sharpness: Float[Array, "..."] | None = eqx.field(converter=as_float_leaf, default=None)
    learning_rate_exponent: Float[Array, "..."] = eqx.field(converter=as_float_leaf, default=1.0)
    reference_learning_rate: Float[Array, "..."] | None = eqx.field(converter=as_float_leaf, default=None)
    adam: AdamNormalisation | None = None

    def __check_init__(self):
        for name in ("curvature", "plateau", "initial_reward", "rollout_noise", "learning_rate_exponent"):
            value = getattr(self, name)
            if is_concrete(value) and not bool(jnp.all(jnp.isfinite(value))):
                raise ValueError(f"{name} must be finite, got {value}")
        for name in ("rollout_noise", "sharpness"):
            value = getattr(self, name)
            if value is not None and is_concrete(value) and not bool(jnp.all(value >= 0)):
                raise ValueError(f"{name} must not be negative, got {value}")
        reference = self.reference_learning_rate
        if reference is not None and is_concrete(reference) and not bool(jnp.all(reference > 0)):
            raise ValueError(f"reference_learning_rate must be positive, got {reference}")
        exponent = self.learning_rate_exponent
        if self.reference_learning_rate is None and is_concrete(exponent) and bool(jnp.any(exponent != 1)):
            raise ValueError("learning_rate_exponent other than 1 needs reference_learning_rate")
