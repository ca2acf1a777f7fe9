"""Tasks with a reward that can be verified: a table of rewards for every answer to every prompt."""

import numpy as np

from jaxgrpo.lab.policies import MLPPolicy, TransformerPolicy


def first_arm(prompts: int = 1, answers: int = 2) -> np.ndarray:
    """Reward 1 for the first answer to every prompt: the task of a `SoftmaxBandit`."""
    rewards = np.zeros((prompts, answers))
    rewards[:, 0] = 1.0
    return rewards


def modular_addition(p: int = 7) -> tuple[np.ndarray, np.ndarray]:
    """Addition modulo p: one-hot features of all pairs of numbers, and reward 1 for the right sum.

    Args:
        p: Modulus.

    Returns:
        Features, p^2 x 2p, and rewards, p^2 x p.
    """
    a, b = (x.ravel() for x in np.meshgrid(np.arange(p), np.arange(p), indexing="ij"))
    features = np.concatenate([np.eye(p)[a], np.eye(p)[b]], axis=1)
    return features, np.eye(p)[(a + b) % p]


def common_action(
    prompts: int = 32, answers: int = 8, features: int = 4, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Random contexts that share one right answer, so that they share one direction of learning.

    Args:
        prompts: Number of prompts.
        answers: Number of answers.
        features: Features of a prompt.
        seed: Of the contexts.

    Returns:
        Features and rewards.
    """
    contexts = np.random.default_rng(seed).standard_normal((prompts, features))
    return contexts, first_arm(prompts, answers)


def sort_two(digits: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """Two digits that are to be emitted in ascending order.

    Args:
        digits: Number of digits.

    Returns:
        Tokens of the prompts, and rewards over all answers of two tokens.
    """
    a, b = (x.ravel() for x in np.meshgrid(np.arange(digits), np.arange(digits), indexing="ij"))
    right = np.minimum(a, b) * digits + np.maximum(a, b)
    return np.stack([a, b], axis=1), np.eye(digits**2)[right]


def mlp_for_addition(p: int = 7, hidden: int = 32, *, key, dtype=float) -> tuple[MLPPolicy, np.ndarray]:
    """A perceptron for addition modulo p, with its rewards."""
    features, rewards = modular_addition(p)
    return MLPPolicy(features, hidden, p, key=key, dtype=dtype), rewards


def mlp_for_common_action(
    prompts: int = 32, answers: int = 8, hidden: int = 128, seed: int = 0, *, key, dtype=float
) -> tuple[MLPPolicy, np.ndarray]:
    """A perceptron for contexts with a common right answer, with its rewards."""
    features, rewards = common_action(prompts, answers, seed=seed)
    return MLPPolicy(features, hidden, answers, key=key, dtype=dtype), rewards


def transformer_for_sorting(
    digits: int = 5, width: int = 12, hidden: int = 24, *, key, dtype=float
) -> tuple[TransformerPolicy, np.ndarray]:
    """A one-layer transformer that sorts two digits, with its rewards."""
    prompts, rewards = sort_two(digits)
    return TransformerPolicy(prompts, digits, 2, width, hidden, key=key, dtype=dtype), rewards
