"""Predict a GRPO run before it is paid for."""

from jaxgrpo.theory.adam import AdamNormalisation as AdamNormalisation
from jaxgrpo.theory.forces import (
    Harmonic as Harmonic,
)
from jaxgrpo.theory.forces import (
    KLAnchored as KLAnchored,
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
