"""The lab's training against updates written out by hand, counts of groups, and the theory of the bandit."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxgrpo as jg
from jaxgrpo import lab
from jaxgrpo.lab.dynamics import at_rest, cycle_of, dynamics_of, find_plateau


def settings(rate, momentum=0.5, group=8, interval=1, prompts=1, **others):
    return jg.Hyperparameters(rate, momentum, group, interval, prompts, convention="heavy_ball", **others)


def test_expected_bandit_follows_the_rule_written_by_hand(x64):
    """Refresh interval 3 and one set of lag: the force is p q (1 - 1/G) (1 - beta theta), of the stale policy alone."""
    beta, rate, momentum, group = 0.5, 0.8, 0.7, 8
    start, reference = lab.SoftmaxBandit.with_success(0.1), lab.SoftmaxBandit.with_success(0.5)
    algorithm = lab.Algorithm("mean", penalty="reward", beta=beta)
    trained = lab.train_grpo(
        start,
        lab.first_arm(),
        settings(rate, momentum, group, 3, async_lag=1),
        algorithm,
        steps=30,
        key=jax.random.key(0),
        expected=True,
        reference=reference,
    )
    theta, u, kept, expected = math.log(0.1 / 0.9), 0.0, [], []
    for _ in range(10):
        kept.append(theta)
        expected.append(1 / (1 + math.exp(-theta)))
        stale = kept[-2] if len(kept) > 1 else kept[-1]
        p = 1 / (1 + math.exp(-stale))
        for _ in range(3):
            u = momentum * u + rate * (1 - 1 / group) * p * (1 - p) * (1 - beta * stale)
            theta += u
    np.testing.assert_allclose(trained.expected_reward[0], expected, rtol=1e-12)


@pytest.mark.parametrize("advantage", ["mean", "std", "leave_one_out"])
def test_the_exact_force_is_the_mean_over_all_groups(x64, advantage):
    """Every group of 3 answers out of 2, with its probability: the expected gradient of the sampled objective."""
    p, size = 0.3, 3
    algorithm = lab.Algorithm(advantage)
    total = 0.0
    for rewards in itertools.product([1.0, 0.0], repeat=size):
        r = np.array(rewards)
        chance = np.prod(np.where(r == 1, p, 1 - p))
        centred = r - r.mean()
        if advantage == "std":
            centred = centred / r.std() if r.std() > 0 else centred
        if advantage == "leave_one_out":
            centred = centred * size / (size - 1)
        total += chance * np.mean(centred * (r - p))
    bandit = lab.SoftmaxBandit.with_success(p)
    dynamics = dynamics_of(bandit, lab.first_arm(), algorithm, group_size=size)
    force = float(dynamics.force(dynamics.parameters, dynamics.parameters).logits[0, 0])
    assert force == pytest.approx(total, rel=1e-6)


@pytest.mark.parametrize("convention", ["ema", "heavy_ball"])
def test_momentum_is_that_of_the_convention(x64, convention):
    bandit = lab.SoftmaxBandit.with_success(0.4)
    h = jg.Hyperparameters(0.3, 0.8, 8, convention=convention)
    trained = lab.train_grpo(
        bandit,
        lab.first_arm(),
        h,
        lab.Algorithm("leave_one_out"),
        steps=6,
        key=jax.random.key(0),
        expected=True,
    )
    theta, u = math.log(0.4 / 0.6), 0.0
    for expected in trained.expected_reward[0]:
        p = 1 / (1 + math.exp(-theta))
        assert expected == pytest.approx(p, rel=1e-12)
        u = 0.8 * u + (0.2 if convention == "ema" else 1.0) * 0.3 * p * (1 - p)
        theta += u


def test_adam_divides_by_the_root_of_its_second_moment(x64):
    bandit = lab.SoftmaxBandit.with_success(0.4)
    h = jg.Hyperparameters(0.3, 0.8, 8)
    # Optax raises a float to an integer power.
    with jax.numpy_dtype_promotion("standard"):
        trained = lab.train_grpo(
            bandit,
            lab.first_arm(),
            h,
            lab.Algorithm("leave_one_out"),
            steps=6,
            key=jax.random.key(0),
            expected=True,
            optimizer="adam",
            second_moment=0.95,
        )
    theta, m, v = math.log(0.4 / 0.6), 0.0, 0.0
    for t, expected in enumerate(trained.expected_reward[0], 1):
        p = 1 / (1 + math.exp(-theta))
        assert expected == pytest.approx(p, rel=1e-9)
        g = p * (1 - p)
        m, v = 0.8 * m + 0.2 * g, 0.95 * v + 0.05 * g * g
        theta += 0.3 * (m / (1 - 0.8**t)) / (math.sqrt(v / (1 - 0.95**t)) + 1e-8)


def test_importance_weights_of_every_kind_agree_on_policy_and_differ_off_it(x64):
    policy, rewards = lab.mlp_for_addition(3, 4, key=jax.random.key(0))
    reference = policy.log_probabilities()
    table = jnp.asarray(rewards)

    def gradient(weighting, old):
        algorithm = lab.Algorithm("mean", weighting)
        return jax.grad(lambda now: lab.expected_objective(algorithm, now, old, reference, table))(reference)

    same = [gradient(w, reference) for w in ("none", "ratio", "clipped", "sequence")]
    for other in same[1:]:
        np.testing.assert_allclose(other, same[0], atol=1e-14)
    away = jax.nn.log_softmax(1.7 * reference + jnp.sin(jnp.arange(reference.size).reshape(reference.shape)))
    assert np.abs(gradient("none", away) - gradient("ratio", away)).max() > 1e-3
    assert np.abs(gradient("clipped", away) - gradient("ratio", away)).max() > 1e-3


@pytest.mark.parametrize("policy_and_rewards", ["mlp", "transformer"])
def test_policies_are_distributions_and_learn(policy_and_rewards):
    make = {
        "mlp": lambda: lab.mlp_for_addition(3, 8, key=jax.random.key(1)),
        "transformer": lambda: lab.transformer_for_sorting(3, 6, 8, key=jax.random.key(1)),
    }
    policy, rewards = make[policy_and_rewards]()
    np.testing.assert_allclose(np.exp(policy.log_probabilities()).sum(axis=1), 1.0, rtol=1e-5)
    np.testing.assert_array_equal(rewards.sum(axis=1), 1.0)
    trained = lab.train_grpo(
        policy,
        rewards,
        settings(0.1, 0.5, 8, 2, 9),
        lab.Algorithm("mean"),
        steps=600,
        key=jax.random.key(2),
        seeds=2,
    )
    assert np.all(trained.expected_reward[:, -1] > trained.expected_reward[:, 0] + 0.1)
    run = trained.run(1)
    assert len(run) == 300 and run.steps_per_row == 2.0 and run.row_is_rollout


def test_sampled_runs_are_about_the_expected_one(x64):
    bandit, rewards = lab.SoftmaxBandit.with_success(0.2), lab.first_arm()
    arguments = dict(steps=60, key=jax.random.key(3))
    h = settings(0.2, 0.5, 4, 2, 8)
    sampled = lab.train_grpo(bandit, rewards, h, lab.Algorithm("std"), seeds=100, **arguments)
    exact = lab.train_grpo(bandit, rewards, h, lab.Algorithm("std"), expected=True, **arguments)
    doubt = sampled.expected_reward.std(axis=0) / np.sqrt(100)
    gap = np.abs(sampled.expected_reward.mean(axis=0) - exact.expected_reward[0])
    assert np.all(gap < 4 * doubt + 0.01)


def test_a_lagging_cycle_has_the_critical_rate_of_the_theory(x64):
    """The bandit's own cycle, K = 4 and d = 1 at mu = 0.9: h = 0.0198958 as simulated."""
    start, reference = lab.SoftmaxBandit.with_success(0.8), lab.SoftmaxBandit.with_success(0.5)
    dynamics = dynamics_of(
        start, lab.first_arm(), lab.Algorithm("mean", penalty="reward", beta=0.5), reference=reference
    )
    plateau, left = find_plateau(dynamics, steps=200)
    assert float(plateau.logits[0, 0]) == pytest.approx(2.0, abs=1e-9) and left < 1e-12
    run = cycle_of(dynamics, 4, 1)
    flat, unravel = jax.flatten_util.ravel_pytree(at_rest(plateau, 1))

    def radius(h):
        jacobian = jax.jacfwd(
            lambda x: jax.flatten_util.ravel_pytree(run(unravel(x), h / 0.0524968, 0.9))[0]
        )(flat)
        return np.abs(np.linalg.eigvals(np.asarray(jacobian))).max()

    assert radius(0.0198958 * 0.999) < 1.0 < radius(0.0198958 * 1.001)


def test_an_expectation_that_is_not_known_is_refused():
    algorithm = lab.Algorithm("std", penalty="reward", beta=0.1)
    with pytest.raises(ValueError, match="binary rewards"):
        lab.train_grpo(
            lab.SoftmaxBandit.with_success(0.2),
            lab.first_arm(),
            settings(0.1),
            algorithm,
            steps=3,
            key=jax.random.key(0),
            expected=True,
        )


@pytest.mark.parametrize(
    ("change", "words"),
    [({"group_size": 2.5}, "whole number"), ({"epochs_per_rollout": 2}, "whole multiple"), ({}, "shape")],
)
def test_what_cannot_be_trained_is_refused(change, words):
    h = jg.Hyperparameters(**({"learning_rate": 0.1, "refresh_interval": 3} | change))
    with pytest.raises(ValueError, match=words):
        rewards = np.ones((2, 2)) if not change else lab.first_arm()
        lab.train_grpo(lab.SoftmaxBandit.with_success(0.2), rewards, h, steps=3, key=jax.random.key(0))
