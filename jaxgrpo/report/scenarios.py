"""A task under given hyperparameters: the predicted course with its band, and what it is in for."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from jaxgrpo.inference.fit import Fit
from jaxgrpo.report.assessment import Assessment, assess
from jaxgrpo.theory.hyperparameters import Hyperparameters
from jaxgrpo.theory.task import Task
from jaxgrpo.theory.trajectory import predict


@dataclass(frozen=True, eq=False)
class Scenario:
    """One predicted run.

    Attributes:
        label: What sets it apart from the others.
        hyperparameters: Its settings.
        steps: Optimizer steps.
        mean: Expected reward.
        lower: Lower end of the band.
        upper: Upper end of the band.
        level: Probability of the band.
        plateau: Reward at which the task's force vanishes.
        assessment: Regime and stability.
        is_own: Whether these are the settings of the run that was fitted.
    """

    label: str
    hyperparameters: Hyperparameters
    steps: np.ndarray
    mean: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    level: float
    plateau: float
    assessment: Assessment
    is_own: bool = False


def scenario_of_task(
    label: str, hyperparameters: Hyperparameters, task: Task, steps: np.ndarray, level: float = 0.9
) -> Scenario:
    """Predict a run of a task that is given, not fitted; the band is that of the gradient noise alone.

    Args:
        label: What to call it.
        hyperparameters: Its settings.
        task: The task.
        steps: Optimizer steps.
        level: Probability of the band.

    Returns:
        The scenario.
    """
    prediction = predict(hyperparameters, task, steps)
    mean, std = np.asarray(prediction.mean, float), np.asarray(prediction.std, float)
    width = NormalDist().inv_cdf(0.5 + level / 2.0) * std
    return Scenario(
        label,
        hyperparameters,
        steps,
        mean,
        mean - width,
        mean + width,
        level,
        float(task.plateau),
        assess(hyperparameters, task),
    )


def scenario_of_fit(
    label: str,
    hyperparameters: Hyperparameters,
    fit: Fit,
    steps: np.ndarray,
    *,
    sharpness: float | None = None,
    is_own: bool = False,
    level: float = 0.9,
) -> Scenario:
    """Predict a run of the task that was fitted; the band is what the fit leaves open.

    Args:
        label: What to call it.
        hyperparameters: Its settings.
        fit: The fit.
        steps: Optimizer steps; the schedule is that of the log, its last factor kept beyond.
        sharpness: Top curvature, if it was measured; decides stability.
        is_own: Whether these are the settings of the run that was fitted.
        level: Probability of the band.

    Returns:
        The scenario.
    """
    predicted = fit.predict(hyperparameters, steps, level=level, schedule=fit.schedule)
    task = fit.task if sharpness is None else dataclasses.replace(fit.task, sharpness=sharpness)
    mean = np.asarray(predicted.mean, float)
    return Scenario(
        label,
        hyperparameters,
        steps,
        mean,
        np.minimum(predicted.lower, mean),
        np.maximum(predicted.upper, mean),
        level,
        float(task.plateau),
        assess(hyperparameters, task),
        is_own,
    )


def with_inertia(h: Hyperparameters, inertia: np.ndarray) -> Hyperparameters:
    r"""The settings with the momentum that has a given inertia; the speed of the overdamped course stays.

    Args:
        h: One configuration.
        inertia: Inertial time $\mu/(1-\mu)$ in optimizer steps, any shape.

    Returns:
        Settings whose momentum and learning rate have the shape of the inertia.
    """
    momentum = inertia / (1.0 + inertia)
    rate = np.full_like(momentum, float(h.learning_rate))
    if h.convention == "heavy_ball":
        rate = rate * (1.0 - momentum) / (1.0 - float(h.momentum))
    return eqx.tree_at(lambda x: (x.momentum, x.learning_rate), h, (jnp.asarray(momentum), jnp.asarray(rate)))


def with_settings(base: Hyperparameters, changes: Mapping[str, Any]) -> Hyperparameters:
    """Hyperparameters with some fields changed, and checked again."""
    return dataclasses.replace(base, **changes)


def even_steps(last: float | int, most: int = 400) -> np.ndarray:
    """Whole optimizer steps from 0 to the last, evenly spaced and at most so many, and the last itself."""
    stride = max(math.ceil(last / most), 1)
    steps = np.arange(0.0, last, stride)
    return np.append(steps, last) if last > 0 else np.zeros(1)


def r_squared(observed: Sequence[float] | np.ndarray, expected: Sequence[float] | np.ndarray) -> float:
    """Share of the variance of what was observed that is explained."""
    observed, expected = np.asarray(observed, float), np.asarray(expected, float)
    return float(1.0 - np.sum((observed - expected) ** 2) / np.sum((observed - observed.mean()) ** 2))
