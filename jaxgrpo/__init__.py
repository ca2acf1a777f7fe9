"""Predict a GRPO run before it is paid for."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxgrpo import lab as lab
    from jaxgrpo.errors import SimulationError as SimulationError
    from jaxgrpo.inference.curvature import measure_curvature as measure_curvature
    from jaxgrpo.inference.fit import Fit as Fit
    from jaxgrpo.inference.fit import fit as fit
    from jaxgrpo.inference.fit import fit_each as fit_each
    from jaxgrpo.inference.forecast import Forecast as Forecast
    from jaxgrpo.inference.forecast import forecast as forecast
    from jaxgrpo.inference.forecast import forecast_each as forecast_each
    from jaxgrpo.inference.forecast import stop_rule as stop_rule
    from jaxgrpo.logs.read import read_run as read_run
    from jaxgrpo.logs.read import read_runs as read_runs
    from jaxgrpo.logs.run import Run as Run
    from jaxgrpo.report import plots as plot
    from jaxgrpo.simulation.sde import OscillatorSDE as OscillatorSDE
    from jaxgrpo.simulation.simulate import Ensemble as Ensemble
    from jaxgrpo.simulation.simulate import simulate as simulate
    from jaxgrpo.theory.adam import AdamNormalisation as AdamNormalisation
    from jaxgrpo.theory.forces import Harmonic as Harmonic
    from jaxgrpo.theory.forces import KLAnchored as KLAnchored
    from jaxgrpo.theory.forces import MixedCurvature as MixedCurvature
    from jaxgrpo.theory.forces import MixedDifficulty as MixedDifficulty
    from jaxgrpo.theory.forces import Softmax as Softmax
    from jaxgrpo.theory.hyperparameters import Hyperparameters as Hyperparameters
    from jaxgrpo.theory.oscillator import Oscillator as Oscillator
    from jaxgrpo.theory.reduction import reduce as reduce
    from jaxgrpo.theory.stability import Stability as Stability
    from jaxgrpo.theory.stability import stability as stability
    from jaxgrpo.theory.task import Task as Task
    from jaxgrpo.theory.trajectory import Prediction as Prediction
    from jaxgrpo.theory.trajectory import predict as predict
    from jaxgrpo.tuning.constraints import Constraints as Constraints
    from jaxgrpo.tuning.cost import Prices as Prices
    from jaxgrpo.tuning.tune import Recommendation as Recommendation
    from jaxgrpo.tuning.tune import tune as tune

# Where each public name lives. They are imported when they are first used, so that the command line can answer
# a mistyped option without waiting for JAX.
_HOMES = {
    "measure_curvature": "jaxgrpo.inference.curvature",
    "Fit": "jaxgrpo.inference.fit",
    "fit": "jaxgrpo.inference.fit",
    "fit_each": "jaxgrpo.inference.fit",
    "Forecast": "jaxgrpo.inference.forecast",
    "forecast": "jaxgrpo.inference.forecast",
    "forecast_each": "jaxgrpo.inference.forecast",
    "stop_rule": "jaxgrpo.inference.forecast",
    "read_run": "jaxgrpo.logs.read",
    "read_runs": "jaxgrpo.logs.read",
    "Run": "jaxgrpo.logs.run",
    "SimulationError": "jaxgrpo.errors",
    "OscillatorSDE": "jaxgrpo.simulation.sde",
    "Ensemble": "jaxgrpo.simulation.simulate",
    "simulate": "jaxgrpo.simulation.simulate",
    "AdamNormalisation": "jaxgrpo.theory.adam",
    "Harmonic": "jaxgrpo.theory.forces",
    "KLAnchored": "jaxgrpo.theory.forces",
    "MixedCurvature": "jaxgrpo.theory.forces",
    "MixedDifficulty": "jaxgrpo.theory.forces",
    "Softmax": "jaxgrpo.theory.forces",
    "Hyperparameters": "jaxgrpo.theory.hyperparameters",
    "Oscillator": "jaxgrpo.theory.oscillator",
    "reduce": "jaxgrpo.theory.reduction",
    "Stability": "jaxgrpo.theory.stability",
    "stability": "jaxgrpo.theory.stability",
    "Task": "jaxgrpo.theory.task",
    "Prediction": "jaxgrpo.theory.trajectory",
    "predict": "jaxgrpo.theory.trajectory",
    "Constraints": "jaxgrpo.tuning.constraints",
    "Prices": "jaxgrpo.tuning.cost",
    "Recommendation": "jaxgrpo.tuning.tune",
    "tune": "jaxgrpo.tuning.tune",
}

__all__ = [*_HOMES, "lab", "plot"]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name == "plot":
        value = import_module("jaxgrpo.report.plots")
    elif name == "lab":
        value = import_module("jaxgrpo.lab")
    elif name in _HOMES:
        # Hyperparameters.from_framework knows the frameworks' settings once this is imported.
        import_module("jaxgrpo.logs.frameworks")
        value = getattr(import_module(_HOMES[name]), name)
    else:
        raise AttributeError(f"module 'jaxgrpo' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
