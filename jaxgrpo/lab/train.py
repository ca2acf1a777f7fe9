"""GRPO itself, on policies that can be enumerated: one compiled program for all steps and seeds."""

import dataclasses
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from jaxgrpo.lab.algorithm import Algorithm, expected_objective, sampled_advantage, sampled_objective
from jaxgrpo.lab.policies import AbstractPolicy
from jaxgrpo.logs.run import Run
from jaxgrpo.theory.hyperparameters import Hyperparameters
from jaxgrpo.theory.schedules import Schedule

Optimizer = Literal["momentum", "adam"]


@dataclasses.dataclass(frozen=True, eq=False)
class Training:
    """What a training run logged; one entry for each set of rollouts.

    Attributes:
        policy: The trained policies, with a leading axis of seeds.
        logged: Series by TRL's names, seeds x sets of rollouts.
        expected_reward: Expected reward of the policy before each set, over all prompts: seeds x sets of rollouts.
        hyperparameters: The settings.
        algorithm: The algorithm.
    """

    policy: AbstractPolicy
    logged: dict[str, np.ndarray]
    expected_reward: np.ndarray
    hyperparameters: Hyperparameters
    algorithm: Algorithm

    def run(self, seed: int = 0, name: str = "lab") -> Run:
        """One seed as a run like any other.

        Args:
            seed: Which.
            name: Name of the run.

        Returns:
            The run: a row for each set of rollouts.
        """
        k = float(self.hyperparameters.refresh_interval)
        rows = np.arange(self.expected_reward.shape[1], dtype=float)
        series = {key: np.asarray(values[seed], float) for key, values in self.logged.items()}
        late = float(self.hyperparameters.async_lag) * k
        channels = {
            canonical: series[logged]
            for canonical, logged in (
                ("reward_std", "reward_std"),
                ("zero_spread", "frac_reward_zero_std"),
                ("kl", "kl"),
                ("entropy", "entropy"),
                ("grad_norm", "grad_norm"),
                ("learning_rate", "learning_rate"),
                ("clip_fraction", "clip_ratio"),
            )
        }
        return Run(
            steps=np.maximum(rows * k - late, 0.0),
            logged_steps=rows + 1.0,
            reward=series["reward"],
            channels=channels,
            hyperparameters=self.hyperparameters,
            framework="lab",
            name=name,
            steps_per_row=k,
            row_is_rollout=True,
        )


def gradient_transformation(
    hyperparameters: Hyperparameters,
    optimizer: Optimizer = "momentum",
    schedule: Schedule | None = None,
    second_moment: float = 0.999,
) -> optax.GradientTransformation:
    """The optimizer of the update rule, as an Optax transformation that ascends.

    Args:
        hyperparameters: Learning rate, momentum and convention.
        optimizer: `"momentum"` (heavy ball, or EMA by the convention) or `"adam"`.
        schedule: Factor on the learning rate as a function of the optimizer step.
        second_moment: Adam's beta2.

    Returns:
        The transformation.
    """
    rate, momentum = hyperparameters.learning_rate, hyperparameters.momentum
    step = rate if schedule is None else lambda count: rate * schedule(count)
    scale = optax.scale_by_learning_rate(step, flip_sign=False)
    if optimizer == "adam":
        return optax.chain(
            optax.scale_by_adam(b1=momentum, b2=second_moment),
            scale,
        )  # pyright: ignore[reportArgumentType]
    if hyperparameters.convention == "ema":
        return optax.chain(optax.ema(momentum, debias=False), scale)  # pyright: ignore[reportArgumentType]
    return optax.chain(optax.trace(momentum), scale)  # pyright: ignore[reportArgumentType]


def _whole(value, name: str) -> int:
    number = float(value)
    if number != round(number):
        raise ValueError(f"{name} must be a whole number to train with, got {number:g}")
    return round(number)


def train_grpo(
    policy: AbstractPolicy,
    rewards: np.ndarray | Float[Array, "prompts answers"],
    hyperparameters: Hyperparameters,
    algorithm: Algorithm | None = None,
    *,
    steps: int,
    key,
    seeds: int = 1,
    optimizer: Optimizer = "momentum",
    schedule: Schedule | None = None,
    expected: bool = False,
    reference: AbstractPolicy | None = None,
    truth: np.ndarray | None = None,
    second_moment: float = 0.999,
) -> Training:
    """Train a policy by GRPO.

    For each set of rollouts the policy (or that of `async_lag` sets before) answers S mini-batches of
    `prompts_per_step` prompts, `group_size` times each; I passes over them are K = S I optimizer steps. Where
    `prompts_per_step` is the number of prompts, every mini-batch holds each prompt once; otherwise prompts are drawn.

    Args:
        policy: The policy to start from.
        rewards: Reward of every answer to every prompt.
        hyperparameters: Settings, whole numbers where they count something.
        algorithm: GRPO without importance weights or penalty by default.
        steps: Optimizer steps, rounded up to whole sets of rollouts.
        key: JAX random key.
        seeds: Number of independent runs, trained at once.
        optimizer: `"momentum"` or `"adam"`.
        schedule: Factor on the learning rate as a function of the optimizer step.
        expected: Whether to follow the exact expectation over prompts and answers instead of samples.
        reference: Policy that the KL divergence is measured from; the one to start from by default.
        truth: Another table of rewards, logged as `true_reward` and never trained on.
        second_moment: Adam's beta2.

    Returns:
        The trained policies and the log.

    Raises:
        ValueError: If a setting that counts something is not whole, the shapes do not fit, or the exact expectation is not
            known: of a std-normalised advantage in groups, it is for binary rewards without a penalty in them.

    Example:
        >>> import jax, jaxgrpo as jg
        >>> from jaxgrpo import lab
        >>> bandit = lab.SoftmaxBandit.with_success(0.2)
        >>> settings = jg.Hyperparameters(0.5, momentum=0.5, group_size=8, prompts_per_step=1, convention="heavy_ball")
        >>> trained = lab.train_grpo(bandit, lab.first_arm(), settings, steps=50, key=jax.random.key(0), seeds=4)
        >>> trained.run(seed=0).reward.shape
        (50,)
    """
    algorithm = Algorithm() if algorithm is None else algorithm
    start = policy.log_probabilities()
    rewards = jnp.asarray(rewards, start.dtype)
    if rewards.shape != start.shape:
        raise ValueError(f"rewards must be of shape {start.shape} (prompts, answers), got {rewards.shape}")
    names = ("group_size", "refresh_interval", "prompts_per_step", "epochs_per_rollout", "async_lag")
    counts = {name: _whole(getattr(hyperparameters, name), name) for name in names}
    if counts["refresh_interval"] % counts["epochs_per_rollout"]:
        raise ValueError("refresh_interval must be a whole multiple of epochs_per_rollout")
    if expected and algorithm.advantage == "std":
        binary = bool(jnp.all((rewards == 0) | (rewards == 1)))
        if not binary or (algorithm.penalty == "reward" and algorithm.beta > 0):
            raise ValueError(
                "the exact expectation of a std-normalised advantage is known for binary rewards without a penalty in them "
                "alone: charge it at the 'current' parameters or by 'k3', or train on samples"
            )
    frozen = policy if reference is None else reference
    anchor = jax.lax.stop_gradient(frozen.log_probabilities())
    other = None if truth is None else jnp.asarray(truth, start.dtype)
    rounds = -(-steps // counts["refresh_interval"])
    trained, logged, course = _train(
        policy,
        rewards,
        other,
        anchor,
        hyperparameters,
        algorithm,
        tuple(counts.values()),
        rounds,
        jax.random.split(key, seeds),
        optimizer,
        schedule,
        expected,
        second_moment,
    )
    return Training(
        trained,
        {name: np.asarray(values) for name, values in logged.items()},
        np.asarray(course),
        hyperparameters,
        algorithm,
    )


@eqx.filter_jit
def _train(
    policy,
    rewards,
    other,
    anchor,
    hyperparameters,
    algorithm,
    counts,
    rounds,
    keys,
    optimizer,
    schedule,
    expected,
    second_moment,
):
    group, interval, batch, passes, lag = counts
    batches = interval // passes
    transformation = gradient_transformation(hyperparameters, optimizer, schedule, second_moment)
    parameters, fixed = eqx.partition(policy, eqx.is_inexact_array)
    length = policy.answer_length
    prompts_total = rewards.shape[0]

    def table(parameters):
        return eqx.combine(parameters, fixed).log_probabilities()

    def sample(old, key):
        """Prompts, answers and what belongs to them, for all mini-batches of a set of rollouts."""
        key_prompts, key_answers = jax.random.split(key)
        if batch == prompts_total:
            prompts = jnp.broadcast_to(jnp.arange(batch), (batches, batch))
        else:
            prompts = jax.random.choice(
                key_prompts, prompts_total, (batches, batch), replace=batches * batch > prompts_total
            )
        answers = jax.random.categorical(
            key_answers, old[prompts][:, :, None, :], shape=(batches, batch, group)
        )
        log_old = jnp.take_along_axis(old[prompts], answers, axis=2)
        reward = jnp.take_along_axis(rewards[prompts], answers, axis=2)
        scored = reward
        if algorithm.penalty == "reward":
            scored = reward - algorithm.beta * (
                log_old - jnp.take_along_axis(anchor[prompts], answers, axis=2)
            )
        advantage = jax.vmap(lambda s: sampled_advantage(algorithm, s))(scored)
        return prompts, answers, log_old, advantage, reward

    def one_round(carry, inputs):
        parameters, state, history = carry
        index, key = inputs
        history = jax.tree.map(lambda new, old: jnp.concatenate([new[None], old[:-1]]), parameters, history)
        acting = table(jax.tree.map(lambda h: h[-1], history))
        current = table(parameters)
        prompts, answers, log_old, advantage, reward = sample(acting, key)

        def step(carry, i):
            parameters, state = carry
            b = jnp.mod(i, batches)

            def objective(p):
                now = table(p)
                if expected:
                    return expected_objective(
                        algorithm, now, acting, anchor, rewards, group_or_infinite, length
                    ), now
                value = sampled_objective(
                    algorithm, now, log_old[b], anchor, advantage[b], prompts[b], answers[b], length
                )
                return value, now

            gradient, now = jax.grad(objective, has_aux=True)(parameters)
            updates, state = transformation.update(gradient, state)
            chosen = jnp.take_along_axis(now[prompts[b]], answers[b], axis=1)
            outside = jnp.mean(jnp.abs(jnp.exp(chosen - log_old[b]) - 1.0) > algorithm.clip)
            parameters = jax.tree.map(lambda p, u: p + u.astype(p.dtype), parameters, updates)
            return (parameters, state), (
                jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(gradient))),
                outside,
            )

        (parameters, state), (norms, outside) = jax.lax.scan(step, (parameters, state), jnp.arange(interval))
        spread = jnp.std(reward, axis=-1)
        probability = jnp.exp(acting)
        rate = hyperparameters.learning_rate
        rate = rate if schedule is None else rate * schedule(index * interval)
        log = {
            "reward": jnp.mean(reward),
            "reward_std": jnp.mean(spread),
            "frac_reward_zero_std": jnp.mean(spread == 0),
            "kl": jnp.mean(jnp.sum(probability * (acting - anchor), axis=1)),
            "entropy": -jnp.mean(jnp.sum(probability * acting, axis=1)),
            "grad_norm": jnp.mean(norms),
            "learning_rate": jnp.asarray(rate),
            "clip_ratio": jnp.mean(outside),
        }
        if other is not None:
            log["true_reward"] = jnp.mean(jnp.take_along_axis(other[prompts], answers, axis=2))
        return (parameters, state, history), (log, jnp.mean(jnp.sum(jnp.exp(current) * rewards, axis=1)))

    group_or_infinite = hyperparameters.group_size

    def one_seed(key):
        history = jax.tree.map(lambda p: jnp.broadcast_to(p, (lag + 1, *p.shape)), parameters)
        state = transformation.init(parameters)
        rounds_keys = jax.vmap(lambda i: jax.random.fold_in(key, i))(jnp.arange(rounds))
        (final, _, _), (log, course) = jax.lax.scan(
            one_round, (parameters, state, history), (jnp.arange(rounds), rounds_keys)
        )
        return eqx.combine(final, fixed), log, course

    return eqx.filter_vmap(one_seed)(keys)
