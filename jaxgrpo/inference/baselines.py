"""What else forecasts a reward curve: the last level carried forward, and curves fitted by least squares."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from jaxgrpo.inference.problem import noise_std

Curve = Literal["exponential", "sigmoid", "power_law", "logistic"]

# Widths of the random walk over that of the blocks' differences, and their weights, for the scale mixture.
_WIDTHS = np.array([0.1, 0.2, 0.4, 0.8, 1.6])
_WEIGHTS = np.array([1.0, 2.0, 3.0, 2.0, 1.0]) / 9.0
_BLOCKS = 8


@dataclass(frozen=True, eq=False)
class NormalMixture:
    """A predictive law: a mixture of normal laws, clipped at bounds where there are any.

    Attributes:
        weight: Weights, summing to 1.
        mean: Means of the components.
        std: Standard deviations.
        bounds: Lowest and highest value, or nothing.
    """

    weight: np.ndarray
    mean: np.ndarray
    std: np.ndarray
    bounds: tuple[float, float] | None = None


def carry_forward(
    rewards: np.ndarray,
    rows: float | int,
    average: int = 1,
    *,
    mixture: bool,
    bounds: tuple[float, float] | None = None,
) -> NormalMixture:
    r"""The mean of the last fifth, with the spread of a random walk.

    The walk's variance per row is that of the differences of eight block means, less what noise explains.

    Args:
        rewards: Rewards seen.
        rows: Rows from the last one seen to the middle of what is forecast.
        average: Rows over which the forecast reward is a mean.
        mixture: Whether the width of the walk is a scale mixture (0.1 to 1.6 times), instead of one.
        bounds: Bounds to clip at.

    Returns:
        The law of that mean reward.
    """
    rewards = np.asarray(rewards, float)
    n = len(rewards)
    last = max(1, round(0.2 * n))
    level, noise = float(rewards[-last:].mean()), noise_std(rewards)
    blocks = min(_BLOCKS, n // 4)
    drift = noise**2 / n
    if blocks > 1:
        means = np.array([block.mean() for block in np.array_split(rewards, blocks)])
        length = n / blocks
        drift = max(float(np.mean(np.diff(means) ** 2)) - 2.0 * noise**2 / length, 0.0) / length
    fixed = noise**2 / last + noise**2 / average
    widths, weights = (_WIDTHS, _WEIGHTS) if mixture else (np.ones(1), np.ones(1))
    std = np.sqrt(fixed + drift * max(rows, 0.0) * widths**2) + 1e-12
    return NormalMixture(weights, np.full(widths.size, level), std, bounds)


def fitted_curve(rewards: np.ndarray, x: np.ndarray, ahead: np.ndarray, curve: Curve) -> np.ndarray:
    r"""A saturating curve by least squares: a grid over its shape, its level and gain in closed form.

    `exponential` is $a + b(1 - e^{-x/t})$, `sigmoid` ScaleRL's $a + b/(1 + (t/x)^s)$ (arXiv 2510.13786) and `power_law`
    $a - b(1 + x/t)^{-s}$, and `logistic` $a + b/(1 + e^{-(x - s t)/t})$, which is the law of arXiv 2507.18014 for a single run:
    what it says of the model's size is then part of $a$ and $b$.

    Args:
        rewards: Rewards seen.
        x: Their steps from 0 on, or learning-rate times.
        ahead: Where the curve is wanted.
        curve: Which.

    Returns:
        The curve at `ahead`; the mean where the rewards do not determine one.

    Raises:
        ValueError: If the curve is unknown.
    """
    x, ahead, rewards = (np.asarray(a, float) for a in (x, ahead, rewards))
    reach = max(float(x[-1]), 1e-12)
    # A sigmoid whose middle lies far beyond what was seen can end anywhere.
    scales = reach * np.geomspace(0.01, 2.0 if curve == "sigmoid" else 10.0, 61)
    powers = {
        "exponential": [1.0],
        "sigmoid": np.geomspace(0.5, 5.0, 15),
        "power_law": np.geomspace(0.25, 4.0, 9),
        "logistic": np.linspace(0.0, 8.0, 9),
    }
    if curve not in powers:
        raise ValueError(f"curve must be one of {', '.join(powers)}, got {curve!r}")
    t, s = (a.ravel()[:, None] for a in np.meshgrid(scales, powers[curve]))

    def shapes(at):
        if curve == "exponential":
            return -np.expm1(-at / t)
        if curve == "sigmoid":
            return 1.0 / (1.0 + (t / np.maximum(at, 1e-12)) ** s)
        if curve == "logistic":
            return 1.0 / (1.0 + np.exp(-(np.clip(at / t - s, -50.0, 50.0))))
        return 1.0 - (1.0 + at / t) ** -s

    seen = shapes(x)
    centred = seen - seen.mean(axis=1, keepdims=True)
    square = np.sum(centred**2, axis=1)
    across = centred @ (rewards - rewards.mean())
    usable = square > 1e-12
    explained = np.where(usable, across**2 / np.where(usable, square, 1.0), -np.inf)
    best = int(np.argmax(explained))
    if not usable[best]:
        return np.full(ahead.shape, rewards.mean())
    gain = across[best] / square[best]
    return rewards.mean() + gain * (shapes(ahead)[best] - seen[best].mean())


def entropy_law(rewards: np.ndarray, entropy: np.ndarray, x: np.ndarray, ahead: np.ndarray) -> np.ndarray:
    r"""The reward that the entropy of the policy allows: $R = b - a e^H$ (arXiv 2505.22617), by least squares.

    The entropy itself is carried on by the exponential that fits it best.

    Args:
        rewards: Rewards seen.
        entropy: Entropies beside them.
        x: Their steps from 0 on.
        ahead: Where the reward is wanted.

    Returns:
        The reward at `ahead`; the mean where the entropy stands still.
    """
    rewards, entropy = np.asarray(rewards, float), np.asarray(entropy, float)
    seen = np.exp(np.minimum(entropy, 50.0))
    centred = seen - seen.mean()
    square = float(centred @ centred)
    if square < 1e-12:
        return np.full(np.shape(ahead), rewards.mean())
    slope = float(centred @ (rewards - rewards.mean())) / square
    later = np.clip(fitted_curve(entropy, x, ahead, "exponential"), 0.0, 50.0)
    return rewards.mean() + slope * (np.exp(later) - seen.mean())
