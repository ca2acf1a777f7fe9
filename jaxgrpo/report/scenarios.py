"""A task under given hyperparameters: the predicted course with its band, and what it is in for."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxgrpo.inference.fit import Fit, _task
from jaxgrpo.inference.models import FORM
from jaxgrpo.report.outlook import Outlook, outlook
from jaxgrpo.theory.hyperparameters import Hyperparameters
from jaxgrpo.theory.task import Task
from jaxgrpo.theory.trajectory import predict

# Prior standard deviation of the logarithm of the learning-rate exponent; runs at one rate cannot narrow it.
_EXPONENT_SPREAD = 0.5
_DRAWS = 200


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
        outlook: Regime and stability.
        is_own: Whether these are the settings of the run that was fitted.
    """

    label: str
    hyperparameters: Hyperparameters
    steps: np.ndarray
    mean: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    level: float
    outlook: Outlook
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
        label, hyperparameters, steps, mean, mean - width, mean + width, level, outlook(hyperparameters, task)
    )


class Scenarios:
    """Predictions of one fitted task under any settings, with what the fit leaves open in their bands.

    The band holds the expected reward of a new run: it covers the uncertainty of the task's parameters, the
    gradient noise of the run and, at another learning rate than the fitted one, how the force grows with the
    rate, which a single rate cannot tell (exponent 1, with a standard deviation of 0.5 in its logarithm).

    Where the fit has an inertia of its own (second order), a prediction keeps its ratio to what the
    optimizer's momentum explains, so that at the run's own settings it is the fit; otherwise the inertia is
    the optimizer's.

    Args:
        fit: The fit; of several runs the first is the reference.
        level: Probability of the bands.
        sharpness: Top curvature, if it was measured; decides stability.
    """

    def __init__(self, fit: Fit, level: float = 0.9, sharpness: float | None = None):
        self.fit = fit
        self.level = level
        self.own = fit.hyperparameters[0]
        self.task = fit.task if sharpness is None else dataclasses.replace(fit.task, sharpness=sharpness)
        rng = np.random.default_rng(0)
        posterior = fit.posterior
        values, vectors = np.linalg.eigh(posterior.covariance)
        noise = rng.standard_normal((_DRAWS, len(posterior.mode)))
        thetas = posterior.mode + noise @ (vectors * np.sqrt(np.maximum(values, 0.0))).T
        drawn = [_task(fit.problem, dataclasses.replace(posterior, mode=theta)) for theta in thetas]
        if fit.task.reference_learning_rate is None:
            exponents = np.exp(_EXPONENT_SPREAD * rng.standard_normal(_DRAWS))
            reference = float(self.own.learning_rate)
            drawn = [
                dataclasses.replace(
                    one, learning_rate_exponent=float(exponent), reference_learning_rate=reference
                )
                for one, exponent in zip(drawn, exponents, strict=True)
            ]
        self._drawn = jax.tree.map(lambda *leaves: jnp.stack(leaves), *drawn)
        self._deviates = rng.standard_normal(_DRAWS)[:, None]
        self._inertia = np.exp(thetas[:, FORM]) if "inertial_time" in fit.parameters else None

    @property
    def on_inertia(self) -> str:
        """What is taken for the inertia, in a sentence."""
        if self._inertia is None:
            return "The inertia is taken to be the optimizer's momentum."
        return (
            "The fitted inertia is taken to change in proportion to what the optimizer's momentum explains."
        )

    def _acting(self, h: Hyperparameters, inertia: np.ndarray) -> Hyperparameters:
        """The settings with an inertia that is the given one at the run's own momentum."""
        momentum, own = float(h.momentum), float(self.own.momentum)
        if own > 0:
            inertia = inertia * (momentum / (1.0 - momentum)) / (own / (1.0 - own))
        return with_inertia(h, inertia)

    def expected(self, hyperparameters: Hyperparameters, steps: np.ndarray) -> np.ndarray:
        """Expected reward of a run at the most probable parameters.

        Args:
            hyperparameters: Its settings.
            steps: Optimizer steps.

        Returns:
            The rewards.
        """
        if self._inertia is not None:
            at_mode = np.asarray(self.fit.parameters["inertial_time"].value)
            hyperparameters = self._acting(hyperparameters, at_mode)
        return np.asarray(predict(hyperparameters, self.task, steps, self.fit.schedule).mean, float)

    def at(
        self, label: str, hyperparameters: Hyperparameters, steps: np.ndarray, is_own: bool = False
    ) -> Scenario:
        """Predict a run.

        Args:
            label: What to call it.
            hyperparameters: Its settings.
            steps: Optimizer steps; the schedule is that of the log, its last factor kept beyond.
            is_own: Whether these are the settings of the run that was fitted.

        Returns:
            The scenario.
        """
        schedule = self.fit.schedule
        inertia = np.zeros(_DRAWS) if self._inertia is None else self._inertia
        acting = None if self._inertia is None else self._acting(hyperparameters, inertia)

        def course(task, momentum, rate):
            h = eqx.tree_at(lambda x: (x.momentum, x.learning_rate), hyperparameters, (momentum, rate))
            return predict(h, task, steps, schedule)

        if acting is None:
            drawn = eqx.filter_vmap(course, in_axes=(eqx.if_array(0), None, None))(
                self._drawn, hyperparameters.momentum, hyperparameters.learning_rate
            )
        else:
            drawn = eqx.filter_vmap(course)(self._drawn, acting.momentum, acting.learning_rate)
        courses = np.asarray(drawn.mean) + self._deviates * np.asarray(drawn.std)
        tail = 0.5 * (1.0 - self.level)
        lower, upper = np.quantile(courses, [tail, 1.0 - tail], axis=0)
        mean = self.expected(hyperparameters, steps)
        return Scenario(
            label,
            hyperparameters,
            steps,
            mean,
            np.minimum(lower, mean),
            np.maximum(upper, mean),
            self.level,
            outlook(hyperparameters, self.task),
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


def even_steps(last: float, points: int = 200) -> np.ndarray:
    """Optimizer steps from 0 to the last, at most so many, whole where there are enough."""
    count = int(min(points, max(last, 1.0))) + 1
    return np.linspace(0.0, max(last, 1.0), count)


def r_squared(observed: Sequence[float] | np.ndarray, expected: Sequence[float] | np.ndarray) -> float:
    """Share of the variance of what was observed that is explained."""
    observed, expected = np.asarray(observed, float), np.asarray(expected, float)
    return float(1.0 - np.sum((observed - expected) ** 2) / np.sum((observed - observed.mean()) ** 2))
