"""What one configuration is in for on a task: regime, damping, and how far it is from instability."""

import dataclasses
from dataclasses import dataclass

import equinox as eqx
import jax
import numpy as np

from jaxgrpo.theory.hyperparameters import Hyperparameters
from jaxgrpo.theory.oscillator import REGIMES
from jaxgrpo.theory.reduction import reduce
from jaxgrpo.theory.stability import stability
from jaxgrpo.theory.task import Task


@dataclass(frozen=True)
class Outlook:
    """Regime and stability of one configuration, as plain numbers; times in optimizer steps.

    Attributes:
        regime: `"overdamped"`, `"critical"`, `"underdamped"` or `"unstable"`.
        matched: Whether regime and damping are those of the exactly matched oscillator; otherwise of the leading order.
        damping_ratio: 1 is critical damping, below it the reward rings.
        timescale: Slowest e-folding time.
        period: Period of the ringing; infinite if there is none.
        stiffness: Dimensionless stiffness per step.
        spectral_radius: Growth per refresh cycle, exact.
        margin: 1 less the stiffness over the critical one.
        critical_refresh_interval: Refresh interval at which the run turns unstable.
        critical_learning_rate: Learning rate at which it does.
        oscillation_onset: Learning rate at which it begins to ring.
        leading_margin: The margin to leading order, and so on.
        leading_critical_refresh_interval: See above.
        leading_critical_learning_rate: See above.
        leading_oscillation_onset: See above.
        is_upper_bound: Whether the thresholds are upper bounds, for want of a measured sharpness.
    """

    regime: str
    matched: bool
    damping_ratio: float
    timescale: float
    period: float
    stiffness: float
    spectral_radius: float
    margin: float
    critical_refresh_interval: float
    critical_learning_rate: float
    oscillation_onset: float
    leading_margin: float
    leading_critical_refresh_interval: float
    leading_critical_learning_rate: float
    leading_oscillation_onset: float
    is_upper_bound: bool


@eqx.filter_jit
def _numbers(hyperparameters, task, async_lag: float, staleness: float):
    """All of it in one compiled program; the two static arguments decide its shape."""
    fixed = (np.asarray(async_lag), np.asarray(staleness))
    hyperparameters = eqx.tree_at(lambda h: (h.async_lag, h.staleness), hyperparameters, fixed)
    with jax.ensure_compile_time_eval():
        order = "leading" if async_lag > 0 else "matched"
        oscillator = reduce(hyperparameters, task, order=order, throw=False)
    shape = (oscillator.regime, oscillator.damping_ratio, oscillator.timescale, oscillator.period)
    return shape, stability(hyperparameters, task)


def outlook(hyperparameters: Hyperparameters, task: Task) -> Outlook:
    """Regime and stability of one configuration.

    Args:
        hyperparameters: One configuration.
        task: The task.

    Returns:
        The figures.

    Raises:
        ValueError: If the async lag is not a whole number.
    """
    lag, staleness = float(hyperparameters.async_lag), float(hyperparameters.staleness)
    shape, limits = _numbers(hyperparameters, task, lag, staleness)
    regime, damping_ratio, timescale, period = shape
    numbers = {
        field.name: float(getattr(limits, field.name))
        for field in dataclasses.fields(limits)
        if field.name != "is_upper_bound"
    }
    return Outlook(
        # The sharpness, where there is one, decides: it can be far above the curvature that drives the reward.
        regime="unstable" if numbers["margin"] < 0 else REGIMES[int(regime)],
        matched=lag == 0,
        damping_ratio=float(damping_ratio),
        timescale=float(timescale),
        period=float(period),
        is_upper_bound=limits.is_upper_bound,
        **numbers,
    )
