"""The settings of a GRPO run that enter its dynamics."""

from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float

Convention = Literal["ema", "heavy_ball"]

FromFramework = Callable[[Mapping[str, Any]], "Hyperparameters"]
ToFramework = Callable[["Hyperparameters"], dict[str, Any]]
_FRAMEWORKS: dict[str, tuple[FromFramework, ToFramework]] = {}


def register_framework(name: str, read: FromFramework, write: ToFramework) -> None:
    """Make a training framework known to `Hyperparameters.from_framework` and `.to_framework`.

    The tables of settings live with the log readers; this module stays free of them.

    Args:
        name: The framework's name, lower case.
        read: Turns the framework's settings into `Hyperparameters`.
        write: Turns `Hyperparameters` into the framework's settings.
    """
    _FRAMEWORKS[name] = (read, write)


def _framework(name: str) -> tuple[FromFramework, ToFramework]:
    if name not in _FRAMEWORKS:
        known = ", ".join(sorted(_FRAMEWORKS))
        raise ValueError(f"unknown framework {name!r}; known are: {known}")
    return _FRAMEWORKS[name]


def as_float_leaf(value: Any) -> Any:
    """Turn a number into a floating-point array, and leave arrays, tracers and placeholders alone.

    Python numbers become weakly typed arrays, so that they follow the precision of what they meet.
    """
    if value is None:
        return None
    if isinstance(value, bool | int | float):
        return jnp.asarray(float(value))
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        if jnp.issubdtype(value.dtype, jnp.inexact):
            return jnp.asarray(value)
        if jnp.issubdtype(value.dtype, jnp.integer):
            return jnp.asarray(value).astype(jnp.result_type(float))
    return value


def is_concrete(value: Any) -> bool:
    """Whether the values of an array are known now (not inside `jax.jit`, `jax.grad` or `jax.vmap`)."""
    return isinstance(value, jax.Array) and not isinstance(value, Tracer)


class Hyperparameters(eqx.Module):
    r"""What the user of a GRPO trainer sets, reduced to what moves the dynamics.

    Every numeric field is a differentiable leaf; leading axes may hold several configurations.

    Args:
        learning_rate: The optimizer's (peak) learning rate, $\eta \ge 0$.
        momentum: Heavy-ball coefficient or Adam's beta1, $\mu \in [0, 1)$.
        group_size: Completions per prompt, $G \ge 1$.
        refresh_interval: Optimizer steps taken on one set of rollouts, $K \ge 1$.
        prompts_per_step: Prompts per optimizer step, $B$.
        epochs_per_rollout: Passes over the same mini-batches, $I \ge 1$; $K = S I$ with $S$ fresh mini-batches.
        async_lag: Further rollout sets by which the sampler trails the learner, $d \ge 0$.
        staleness: Part of the lag that importance weighting leaves uncorrected, $\rho$. 1 is none
            corrected, 0 is all; values outside [0, 1] occur.
        convention: `"ema"` for $u \leftarrow \mu u + (1-\mu)\eta g$ (Adam and its kin), `"heavy_ball"` for
            $u \leftarrow \mu u + \eta g$.

    Raises:
        ValueError: If a value known at construction lies outside its range.

    Example:
        >>> import jaxgrpo as jg
        >>> hyperparameters = jg.Hyperparameters(learning_rate=1e-6, group_size=16, refresh_interval=4)
        >>> print(round(float(hyperparameters.mean_lag), 3))
        1.5
    """

    learning_rate: Float[Array, "..."] = eqx.field(converter=as_float_leaf)
    momentum: Float[Array, "..."] = eqx.field(converter=as_float_leaf, default=0.9)
    group_size: Float[Array, "..."] = eqx.field(converter=as_float_leaf, default=8)
    refresh_interval: Float[Array, "..."] = eqx.field(converter=as_float_leaf, default=1)
    prompts_per_step: Float[Array, "..."] = eqx.field(converter=as_float_leaf, default=1)
    epochs_per_rollout: Float[Array, "..."] = eqx.field(converter=as_float_leaf, default=1)
    async_lag: Float[Array, "..."] = eqx.field(converter=as_float_leaf, default=0)
    staleness: Float[Array, "..."] = eqx.field(converter=as_float_leaf, default=1.0)
    convention: Convention = eqx.field(static=True, default="ema")

    def __check_init__(self):
        if self.convention not in get_args(Convention):
            raise ValueError(f"convention must be one of {get_args(Convention)}, got {self.convention!r}")
        ranges = {
            "learning_rate": (0.0, None),
            "momentum": (0.0, 1.0),
            "group_size": (1.0, None),
            "refresh_interval": (1.0, None),
            "prompts_per_step": (0.0, None),
            "epochs_per_rollout": (1.0, None),
            "async_lag": (0.0, None),
            "staleness": (None, None),
        }
        prompts = self.prompts_per_step
        if is_concrete(prompts) and np.any(np.asarray(prompts) <= 0):
            raise ValueError(f"prompts_per_step must be positive, got {prompts}")
        for name, (low, high) in ranges.items():
            value = getattr(self, name)
            if not is_concrete(value):
                continue
            value = np.asarray(value)
            if not np.all(np.isfinite(value)):
                raise ValueError(f"{name} must be finite, got {value}")
            if low is not None and np.any(value < low):
                raise ValueError(f"{name} must be at least {low:g}, got {value}")
            if high is not None and np.any(value >= high):
                raise ValueError(f"{name} must be less than {high:g}, got {value}")

    @property
    def dampening(self) -> Float[Array, "..."]:
        r"""Factor $c$ on the force: $1-\mu$ for the EMA convention, 1 for heavy ball."""
        return 1.0 - self.momentum if self.convention == "ema" else jnp.ones_like(self.momentum)

    @property
    def minibatches_per_rollout(self) -> Float[Array, "..."]:
        r"""Fresh mini-batches per set of rollouts, $S = K / I$."""
        return self.refresh_interval / self.epochs_per_rollout

    @property
    def rollouts_per_step(self) -> Float[Array, "..."]:
        r"""Completions behind one optimizer step, $B G$."""
        return self.prompts_per_step * self.group_size

    @property
    def mean_lag(self) -> Float[Array, "..."]:
        r"""Mean age of the force in optimizer steps, $\tau = \rho [ (K-1)/2 + d K ]$."""
        return self.staleness * (0.5 * (self.refresh_interval - 1.0) + self.async_lag * self.refresh_interval)

    @classmethod
    def from_framework(cls, name: str, settings: Mapping[str, Any]) -> "Hyperparameters":
        """Read a training framework's own settings.

        Args:
            name: `"trl"`, `"verl"`, `"openrlhf"`, `"nemo-rl"`, `"prime-rl"`, `"tunix"`, ...
            settings: The framework's configuration, nested or with dotted keys.

        Returns:
            The hyperparameters, with the refresh interval, lag and momentum convention of that framework.

        Raises:
            ValueError: If the framework is unknown or the settings are not its own.
        """
        return _framework(name)[0](settings)

    def to_framework(self, name: str) -> dict[str, Any]:
        """Write the hyperparameters as a training framework's own settings.

        Args:
            name: As in `from_framework`.

        Returns:
            A dictionary of the framework's option names.

        Raises:
            ValueError: If the framework is unknown or cannot express the hyperparameters.
        """
        return _framework(name)[1](self)
