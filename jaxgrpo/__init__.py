"""Predict a GRPO run before it is paid for."""

import jaxgrpo.logs.frameworks  # noqa: F401  (registers the frameworks' settings)
from jaxgrpo.inference.fit import Fit as Fit
from jaxgrpo.inference.fit import fit as fit
from jaxgrpo.inference.fit import fit_each as fit_each
from jaxgrpo.logs.read import read_run as read_run
from jaxgrpo.logs.read import read_runs as read_runs
from jaxgrpo.logs.run import Run as Run
from jaxgrpo.theory.adam import AdamNormalisation as AdamNormalisation
from jaxgrpo.theory.forces import (
    Harmonic as Harmonic,
)
from jaxgrpo.theory.forces import (
    KLAnchored as KLAnchored,
)
from jaxgrpo.theory.forces import (
    MixedCurvature as MixedCurvature,
)
from jaxgrpo.theory.forces import (
    MixedDifficulty as MixedDifficulty,
)
from jaxgrpo.theory.forces import (
    Softmax as Softmax,
)
from jaxgrpo.theory.hyperparameters import Hyperparameters as Hyperparameters
from jaxgrpo.theory.oscillator import Oscillator as Oscillator
from jaxgrpo.theory.reduction import reduce as reduce
from jaxgrpo.theory.stability import Stability as Stability
from jaxgrpo.theory.stability import stability as stability
from jaxgrpo.theory.task import Task as Task
from jaxgrpo.theory.trajectory import Prediction as Prediction
from jaxgrpo.theory.trajectory import predict as predict
