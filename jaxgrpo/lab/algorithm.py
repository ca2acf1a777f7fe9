"""What GRPO and its relatives maximise: as an exact expectation over all answers, and from a sampled group."""

from typing import Literal, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxgrpo.theory.groups import force_factor

Advantage = Literal["std", "mean", "leave_one_out"]
Weighting = Literal["none", "ratio", "clipped", "sequence"]
Penalty = Literal["none", "reward", "current", "k3"]

# Of the variance, so that a group without spread teaches nothing instead of dividing by zero.
_TINY = 1e-12


class Algorithm(eqx.Module):
    r"""One member of the GRPO family.

    Args:
        advantage: `"std"` (GRPO), `"mean"` (Dr. GRPO) or `"leave_one_out"` (RLOO).
        weighting: Importance weight of an answer: `"none"` (the gradient of its log-probability), `"ratio"`, `"clipped"`
            ratio, or `"sequence"`, the ratio to the power of one over the answer's length.
        penalty: Where the KL divergence to the reference policy is charged: `"none"`, in the `"reward"` (of the policy that
            sampled), exactly at the `"current"` parameters, or by the `"k3"` estimator on the sampled answers.
        beta: Strength of the penalty.
        clip: Clipping range of the ratio.
        entropy: Strength of an entropy bonus at the current parameters.
        weighted_penalty: Whether the k3 estimator is weighted by the ratio, which makes it unbiased off policy.
    """

    advantage: Advantage = eqx.field(static=True, default="std")
    weighting: Weighting = eqx.field(static=True, default="none")
    penalty: Penalty = eqx.field(static=True, default="none")
    beta: float = eqx.field(static=True, default=0.0)
    clip: float = eqx.field(static=True, default=0.2)
    entropy: float = eqx.field(static=True, default=0.0)
    weighted_penalty: bool = eqx.field(static=True, default=False)

    def __check_init__(self):
        for name, options in (("advantage", Advantage), ("weighting", Weighting), ("penalty", Penalty)):
            if getattr(self, name) not in get_args(options):
                raise ValueError(f"{name} must be one of {get_args(options)}, got {getattr(self, name)!r}")
        if self.beta < 0 or self.clip <= 0:
            raise ValueError(f"beta must not be negative and clip positive, got {self.beta} and {self.clip}")


def _weight(algorithm: Algorithm, log_now, log_old, advantage, length):
    """What is maximised for an answer: its weight times the advantage, with the right derivative."""
    if algorithm.weighting == "none":
        return advantage * log_now
    difference = log_now - log_old
    if algorithm.weighting == "sequence":
        return advantage * jnp.exp(difference / length) * length
    ratio = jnp.exp(difference)
    if algorithm.weighting == "ratio":
        return advantage * ratio
    bounded = jnp.clip(ratio, 1.0 - algorithm.clip, 1.0 + algorithm.clip)
    return jnp.minimum(advantage * ratio, advantage * bounded)


def _k3(log_now, log_reference):
    difference = log_reference - log_now
    return jnp.expm1(difference) - difference


def _at_current(algorithm: Algorithm, table, reference):
    """Penalty and bonus that depend on the current policy alone, for each prompt."""
    value = jnp.zeros(table.shape[:-1], table.dtype)
    if algorithm.penalty == "current":
        value = value - algorithm.beta * jnp.sum(jnp.exp(table) * (table - reference), axis=-1)
    if algorithm.entropy:
        value = value - algorithm.entropy * jnp.sum(jnp.exp(table) * table, axis=-1)
    return value


def expected_objective(
    algorithm: Algorithm,
    now: Float[Array, "prompts answers"],
    old: Float[Array, "prompts answers"],
    reference: Float[Array, "prompts answers"],
    rewards: Float[Array, "prompts answers"],
    group_size: Float[Array, ""] | float | int = jnp.inf,
    length: int = 1,
) -> Float[Array, ""]:
    r"""The objective in expectation over all answers of the policy that sampled.

    Its gradient by `now` at a fixed `old` is the mean-field force. A finite group scales the advantage by $1 - 1/G$
    (mean-only) or by $E[\mathrm{std}]/\sqrt{p(1-p)}$ (std-normalised, binary rewards; without a penalty in the reward).

    Args:
        algorithm: The algorithm.
        now: Log-probabilities under the current parameters.
        old: The same under the parameters that sampled.
        reference: The same of the reference policy.
        rewards: Reward of every answer.
        group_size: $G$.
        length: Tokens of an answer.

    Returns:
        Its mean over the prompts.
    """
    probability = jnp.exp(old)
    scored = rewards - algorithm.beta * (old - reference) if algorithm.penalty == "reward" else rewards
    mean = jnp.sum(probability * scored, axis=1, keepdims=True)
    advantage = scored - mean
    size = jnp.asarray(group_size, now.dtype)
    if algorithm.advantage == "mean":
        advantage = advantage * (1.0 - 1.0 / size)
    elif algorithm.advantage == "std":
        variance = jnp.sum(probability * advantage**2, axis=1, keepdims=True)
        finite = jnp.isfinite(size)
        factor = jax.vmap(lambda p: force_factor(p, jnp.where(finite, size, 2.0), "std"))(
            jnp.clip(mean[:, 0], 0.0, 1.0)
        )
        advantage = advantage * jnp.where(finite, factor, 1.0)[:, None] / jnp.sqrt(variance + _TINY)
    value = jnp.sum(probability * _weight(algorithm, now, old, advantage, length), axis=1)
    if algorithm.penalty == "k3":
        weight = jnp.exp(now - old) if algorithm.weighted_penalty else 1.0
        value = value - algorithm.beta * jnp.sum(probability * weight * _k3(now, reference), axis=1)
    return jnp.mean(value + _at_current(algorithm, now, reference))


def sampled_advantage(
    algorithm: Algorithm, scored: Float[Array, "batch group"]
) -> Float[Array, "batch group"]:
    """Advantages within groups.

    Args:
        algorithm: The algorithm.
        scored: Rewards, with the penalty where it is charged in the reward.

    Returns:
        The advantages; zero in a group without spread.
    """
    size = scored.shape[1]
    centred = scored - jnp.mean(scored, axis=1, keepdims=True)
    if algorithm.advantage == "leave_one_out":
        return centred * (size / max(size - 1, 1))
    if algorithm.advantage == "std":
        return centred / jnp.sqrt(jnp.mean(centred**2, axis=1, keepdims=True) + _TINY)
    return centred


def sampled_objective(
    algorithm: Algorithm,
    now: Float[Array, "prompts answers"],
    old: Float[Array, "batch group"],
    reference: Float[Array, "prompts answers"],
    advantage: Float[Array, "batch group"],
    prompts: Int[Array, " batch"],
    answers: Int[Array, "batch group"],
    length: int = 1,
) -> Float[Array, ""]:
    """The objective on sampled groups.

    Args:
        algorithm: The algorithm.
        now: Log-probabilities under the current parameters, of everything.
        old: Those of the sampled answers under the parameters that sampled.
        reference: Those of the reference policy, of everything.
        advantage: Advantages of the sampled answers.
        prompts: Prompts of the batch.
        answers: Their sampled answers.
        length: Tokens of an answer.

    Returns:
        Its mean over prompts and groups.
    """
    table = now[prompts]
    chosen = jnp.take_along_axis(table, answers, axis=1)
    value = jnp.mean(_weight(algorithm, chosen, old, advantage, length), axis=1)
    if algorithm.penalty == "k3":
        anchor = jnp.take_along_axis(reference[prompts], answers, axis=1)
        weight = jnp.exp(chosen - old) if algorithm.weighted_penalty else 1.0
        value = value - algorithm.beta * jnp.mean(weight * _k3(chosen, anchor), axis=1)
    return jnp.mean(value + _at_current(algorithm, table, reference[prompts]))
