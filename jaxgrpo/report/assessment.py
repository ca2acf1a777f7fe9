"""What one configuration is in for on a task: regime, damping, and how far it is from instability."""

import dataclasses
import math
import threading
from dataclasses import dataclass

import equinox as eqx
import jax
import numpy as np

from jaxgrpo.theory.cycle import critical_stiffness
from jaxgrpo.theory.forces import Harmonic, KLAnchored, MixedDifficulty, Softmax
from jaxgrpo.theory.hyperparameters import Hyperparameters
from jaxgrpo.theory.oscillator import REGIMES
from jaxgrpo.theory.reduction import reduce
from jaxgrpo.theory.stability import stability
from jaxgrpo.theory.task import Task


@dataclass(frozen=True)
class Assessment:
    """Regime and stability of one configuration, as plain numbers; times in optimizer steps.

    Attributes:
        regime: `"overdamped"`, `"critical"`, `"underdamped"` or `"unstable"`.
        matched: Whether regime and damping are exact (the matched oscillator), or to leading order.
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
        saturates: Whether the force weakens as prompts are solved (softmax forces): the figures are then
            those of its stiffest part, midway up the course, which a run passes through.
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
    saturates: bool = False


@eqx.filter_jit
def _figures(hyperparameters, task, async_lag: float, staleness: float, with_interval: bool):
    """All of it in one compiled program; the last three arguments are static and decide its shape."""
    fixed = (np.asarray(async_lag), np.asarray(staleness))
    hyperparameters = eqx.tree_at(lambda h: (h.async_lag, h.staleness), hyperparameters, fixed)
    order = "leading" if async_lag > 0 else "matched"
    oscillator = reduce(hyperparameters, task, order=order, throw=False)
    shape = (oscillator.regime, oscillator.damping_ratio, oscillator.timescale, oscillator.period)
    limits = stability(hyperparameters, task)
    figures = {
        field.name: getattr(limits, field.name)
        for field in dataclasses.fields(limits)
        if field.name != "is_upper_bound" and (with_interval or field.name != "critical_refresh_interval")
    }
    return shape, figures


_critical_stiffness = jax.jit(critical_stiffness)


def _critical_interval(momentum: float, h: float) -> float:
    """Refresh interval at which a synchronous run without importance weighting turns unstable.

    The same as `jaxgrpo.theory.cycle.critical_refresh_interval`, by two evaluations on a grid instead of a search
    inside the compiled program, which takes as long to compile as all else together.
    """
    low, high = 0.0, math.log(1e5)
    for _ in range(2):
        grid = np.linspace(low, high, 4097)
        excess = math.log(max(h, 1e-300)) - np.log(np.asarray(_critical_stiffness(momentum, np.exp(grid))))
        if excess[0] >= 0:
            break
        above = np.flatnonzero(excess >= 0)
        if not len(above):
            return math.inf
        low, high = grid[above[0] - 1], grid[above[0]]
        share = excess[above[0] - 1] / (excess[above[0] - 1] - excess[above[0]])
    else:
        return math.exp(low + share * (high - low))
    return 1.0


def compile_ahead() -> threading.Thread:
    """Compile the usual program beside other work, so that its figures need not be waited for.

    Returns:
        The thread that does it; the interpreter does not end before it has.
    """
    usual = Task(curvature=1.0, plateau=1.0)  # pyright: ignore[reportArgumentType]
    thread = threading.Thread(target=assess, args=(Hyperparameters(1e-6), usual))  # pyright: ignore
    thread.start()
    return thread


def assess(hyperparameters: Hyperparameters, task: Task) -> Assessment:
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
    saturates = isinstance(task.force, Softmax | MixedDifficulty)
    if not isinstance(task.force, KLAnchored):
        # The linearised force is harmonic whatever its shape: one compiled program serves them all.
        slope = task.force.peak_slope()
        task = dataclasses.replace(task, force=Harmonic(), curvature=float(task.curvature) * slope)
    simple = lag == 0 and staleness == 1
    shape, figures = _figures(hyperparameters, task, lag, staleness, not simple)
    regime, damping_ratio, timescale, period = shape
    numbers = {name: float(value) for name, value in figures.items()}
    if simple:
        interval = _critical_interval(float(hyperparameters.momentum), numbers["stiffness"])
        numbers["critical_refresh_interval"] = interval
    return Assessment(
        # The sharpness, where there is one, decides: it can be far above the fitted curvature.
        regime="unstable" if numbers["margin"] < 0 else REGIMES[int(regime)],
        matched=lag == 0,
        damping_ratio=float(damping_ratio),
        timescale=float(timescale),
        period=float(period),
        is_upper_bound=task.sharpness is None,
        saturates=saturates,
        **numbers,
    )
