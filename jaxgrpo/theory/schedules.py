r"""Learning-rate schedules as Optax schedules, and learning-rate time.

In the overdamped limit only the learning-rate time $s(t) = \sum_{i<t} \eta_i$ matters: a decay to zero makes a plateau of
its own at the last step, which a fit that ignores it mistakes for the task's.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

Schedule = optax.Schedule


def constant(value: float) -> Schedule:
    """The same rate at every step."""
    return optax.constant_schedule(value)


def _check_total(total_steps: int) -> None:
    if total_steps <= 0:
        raise ValueError(f"total_steps must be positive, got {total_steps}")


def _with_warmup(peak: float, warmup_steps: int, rest: Schedule) -> Schedule:
    if warmup_steps <= 0:
        return rest
    return optax.join_schedules([optax.linear_schedule(0.0, peak, warmup_steps), rest], [warmup_steps])


def linear(peak: float, total_steps: int, warmup_steps: int = 0, end: float = 0.0) -> Schedule:
    """Linear warm-up from zero to `peak`, then a linear decay to `end` at `total_steps`."""
    _check_total(total_steps)
    decay = optax.linear_schedule(peak, end, max(total_steps - warmup_steps, 1))
    return _with_warmup(peak, warmup_steps, decay)


def cosine(peak: float, total_steps: int, warmup_steps: int = 0, end: float = 0.0) -> Schedule:
    """Linear warm-up from zero to `peak`, then half a cosine to `end` at `total_steps`."""
    _check_total(total_steps)
    alpha = end / peak if peak else 0.0
    decay = optax.cosine_decay_schedule(peak, max(total_steps - warmup_steps, 1), alpha=alpha)

    def counted(count):
        # Optax divides the count, which strict promotion refuses for whole numbers.
        count = jnp.asarray(count)
        whole = not jnp.issubdtype(count.dtype, jnp.inexact)
        return decay(count.astype(jnp.result_type(float)) if whole else count)

    return _with_warmup(peak, warmup_steps, counted)


def from_name(name: str, peak: float, total_steps: int, warmup_steps: int = 0) -> Schedule:
    """Schedule by the name that Hugging Face Transformers and verl use.

    Args:
        name: `"constant"`, `"constant_with_warmup"`, `"linear"` or `"cosine"`.
        peak: Peak learning rate.
        total_steps: Optimizer steps planned.
        warmup_steps: Steps of linear warm-up.

    Returns:
        The schedule.

    Raises:
        ValueError: If the name is unknown.
    """
    if name == "constant":
        return constant(peak)
    if name == "constant_with_warmup":
        return _with_warmup(peak, warmup_steps, constant(peak))
    if name == "linear":
        return linear(peak, total_steps, warmup_steps)
    if name == "cosine":
        return cosine(peak, total_steps, warmup_steps)
    raise ValueError(
        f"unknown schedule {name!r}; known are constant, constant_with_warmup, linear and cosine"
    )


def tabulated(steps: Float[np.ndarray, " n"], values: Float[np.ndarray, " n"]) -> Schedule:
    """Schedule through logged learning rates: linear in between, constant outside.

    Args:
        steps: Increasing optimizer steps.
        values: Learning rates at these steps.

    Returns:
        The schedule.
    """

    def schedule(count):
        count = jnp.asarray(count)
        dtype = count.dtype if jnp.issubdtype(count.dtype, jnp.inexact) else jnp.result_type(float)
        return jnp.interp(count.astype(dtype), jnp.asarray(steps, dtype), jnp.asarray(values, dtype))

    return schedule


def learning_rate_time(schedule: Schedule, steps: Float[Array, " n"] | np.ndarray) -> Float[Array, " n"]:
    r"""Learning-rate time $s(t) = \sum_{i<t} \eta_i$.

    Args:
        schedule: Rate as a function of the step.
        steps: Concrete non-negative steps $t$, fractions allowed (the last step then counts in part).

    Returns:
        $s(t)$ in units of learning rate times step.
    """
    steps = np.asarray(steps)
    longest = int(np.ceil(steps.max(initial=0.0))) + 1
    rates = jnp.asarray(jax.vmap(schedule)(jnp.arange(longest)))
    total = jnp.concatenate([jnp.zeros(1, rates.dtype), jnp.cumsum(rates)])
    whole = np.floor(steps).astype(int)
    return total[whole] + jnp.asarray(steps - whole, rates.dtype) * rates[whole]
