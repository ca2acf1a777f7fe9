"""What a claim is: a prediction that is made and kept, and the run that tests it afterwards."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Claim:
    """A claim of the theory.

    Attributes:
        name: Short name.
        statement: What is claimed, in a sentence.
        tolerance: Largest error with which it holds.
        predict: Makes the prediction; whatever else it returns is handed to `measure`.
        measure: Runs the test and returns what was found.
        error: From prediction and measurement to the error that is compared with the tolerance.
        criterion: What the error is, in words.
    """

    name: str
    statement: str
    tolerance: float
    predict: Callable[[], "Prediction"]
    measure: Callable[["Prediction"], np.ndarray]
    error: Callable[["Prediction", np.ndarray], float]
    criterion: str


@dataclass(frozen=True)
class Prediction:
    """Numbers predicted before the run that tests them, with what the run needs.

    Attributes:
        values: The numbers.
        labels: What each one is of.
        given: What the measurement needs to know.
    """

    values: np.ndarray
    labels: tuple[str, ...] = ()
    given: dict[str, Any] = field(default_factory=dict)


def largest_relative(prediction: Prediction, measured: np.ndarray) -> float:
    """Largest relative deviation."""
    return float(np.max(np.abs(measured / prediction.values - 1.0)))


def largest_absolute(prediction: Prediction, measured: np.ndarray) -> float:
    """Largest absolute deviation."""
    return float(np.max(np.abs(measured - prediction.values)))
