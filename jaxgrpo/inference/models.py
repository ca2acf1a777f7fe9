"""The models a run is compared under: which force, whose momentum, which parameters, and their priors.

All models are one family with switches, so that one compiled program fits them side by side.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from jaxgrpo.inference.problem import Problem
from jaxgrpo.theory.groups import Normalisation

# Unconstrained coordinates.
PARAMETERS = (
    "start",
    "plateau",
    "rate",
    "form",
    "floor",
    "observation_noise",
    "process_noise",
    "learning_rate_exponent",
)
START, PLATEAU, RATE, FORM, FLOOR, OBSERVATION, PROCESS, EXPONENT = range(len(PARAMETERS))
# What the form parameter is depends on the model: inertial time, spread of difficulty, or exponent of a baseline.

# How the expected reward is made from time.
DYNAMIC, POWER, SIGMOID, CONSTANT = range(4)
# Whose momentum moves the coordinates.
NO_MOMENTUM, FREE_MOMENTUM, OPTIMIZER_MOMENTUM = range(3)


@dataclass(frozen=True)
class Model:
    """A model of the expected reward.

    Attributes:
        name: Public name.
        title: What to call it in a table.
        free: Mean parameters that are estimated.
        curve: one of DYNAMIC, POWER, SIGMOID, CONSTANT.
        momentum: One of NO_MOMENTUM, FREE_MOMENTUM, OPTIMIZER_MOMENTUM.
        harmonic: Whether the force is harmonic (otherwise softmax).
        normalisation: `"std"` or `"mean"` for the softmax forces.
        mixed: Whether prompts are of mixed difficulty (softmax), or directions of mixed curvature (harmonic).
        baseline: Whether it is a curve without dynamics of ours.
    """

    name: str
    title: str
    free: tuple[int, ...]
    curve: int = DYNAMIC
    momentum: int = NO_MOMENTUM
    harmonic: bool = True
    normalisation: Normalisation = "std"
    mixed: bool = False
    baseline: bool = False


_HARMONIC = (START, PLATEAU, RATE)
_SOFTMAX = (START, PLATEAU, RATE, FLOOR)
MODELS: dict[str, Model] = {
    m.name: m
    for m in (
        Model("first_order", "first order", _HARMONIC),
        Model("second_order", "second order", (*_HARMONIC, FORM), momentum=FREE_MOMENTUM),
        Model(
            "mixed_curvature",
            "mixed curvature",
            (*_HARMONIC, FORM),
            momentum=OPTIMIZER_MOMENTUM,
            mixed=True,
        ),
        Model(
            "softmax_std", "softmax, std-normalised", _SOFTMAX, momentum=OPTIMIZER_MOMENTUM, harmonic=False
        ),
        Model(
            "softmax_mean",
            "softmax, mean-only",
            _SOFTMAX,
            momentum=OPTIMIZER_MOMENTUM,
            harmonic=False,
            normalisation="mean",
        ),
        Model(
            "mixed_std",
            "mixed difficulty, std-normalised",
            (*_SOFTMAX, FORM),
            momentum=OPTIMIZER_MOMENTUM,
            harmonic=False,
            mixed=True,
        ),
        Model(
            "mixed_mean",
            "mixed difficulty, mean-only",
            (*_SOFTMAX, FORM),
            momentum=OPTIMIZER_MOMENTUM,
            harmonic=False,
            normalisation="mean",
            mixed=True,
        ),
        Model("exponential", "single exponential", _HARMONIC, curve=POWER, baseline=True),
        Model("sigmoid", "ScaleRL sigmoid", (*_HARMONIC, FORM), curve=SIGMOID, baseline=True),
        Model("power_law", "power law", (*_HARMONIC, FORM), curve=POWER, baseline=True),
        Model("constant", "no trend", (PLATEAU,), curve=CONSTANT, baseline=True),
    )
}


class Specification(NamedTuple):
    """A model and its priors as arrays; a leading axis holds several."""

    curve: np.ndarray
    momentum: np.ndarray
    harmonic: np.ndarray
    std_normalised: np.ndarray
    mixed: np.ndarray
    bounded: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    centre: np.ndarray
    spread: np.ndarray
    free: np.ndarray


def _logit(p: float) -> float:
    p = min(max(p, 0.02), 0.98)
    return float(np.log(p / (1.0 - p)))


def specify(model: Model, problem: Problem) -> Specification:
    """Priors of a model for a problem, in scaled units (start level 0, range of the smoothed curve 1).

    The priors are weak and centred on the data's own scale: the plateau within about one range of the last level, the
    number of e-foldings within the run log-normal about 4 (factor 4.5), the inertia log-normal about what the
    optimizer's momentum explains (factor 4.5), the exponent of the learning rate log-normal about 1 (sd 0.5 in log).

    Args:
        model: The model.
        problem: The problem.

    Returns:
        Its specification.
    """
    end = problem.end_level
    rising = end >= problem.start_level
    sign = 1.0 if rising else -1.0
    momentum = float(np.clip(problem.observations.momentum[0], 0.05, 0.99))
    centre, spread = np.zeros(len(PARAMETERS)), np.ones(len(PARAMETERS))

    bounded = problem.bounds is not None
    lower, upper = (0.0, 1.0)
    if problem.bounds is not None:
        lower, upper = (float(problem.scale.to_scaled(b)) for b in problem.bounds)
        centre[PLATEAU], spread[PLATEAU] = _logit((end - lower) / (upper - lower)), 1.5
        centre[FLOOR] = lower if rising else upper
    else:
        centre[PLATEAU], spread[PLATEAU] = end + 0.1 * sign, 1.0
        centre[FLOOR], spread[FLOOR] = -0.3 * sign, 0.5
    if model.harmonic:
        centre[START], spread[START] = problem.start_level, 0.5
    else:
        floor = centre[FLOOR]
        share = (problem.start_level - floor) / (end + 0.1 * sign - floor)
        centre[START], spread[START] = _logit(share), 1.5
    centre[RATE], spread[RATE] = np.log(4.0), 1.5
    if model.harmonic and model.mixed:
        # The rate is that of the stiffest direction.
        centre[RATE], spread[RATE] = np.log(30.0), 2.0
    if not model.harmonic:
        # A logit's excursion over a run, at the peak force, is what the rate counts there.
        centre[RATE], spread[RATE] = np.log(30.0), 2.0
    if model.momentum == FREE_MOMENTUM:
        centre[FORM], spread[FORM] = np.log(momentum / (1.0 - momentum)), 1.5
    elif model.mixed:
        centre[FORM], spread[FORM] = (np.log(2.0) if model.harmonic else np.log(1.5)), 0.7
    elif FORM in model.free:
        centre[FORM], spread[FORM] = 0.3, 0.7
    else:
        # The power law with a large exponent is the exponential.
        centre[FORM] = 9.0
    centre[OBSERVATION], spread[OBSERVATION] = np.log(problem.noise), 0.7
    centre[PROCESS], spread[PROCESS] = 0.0, 1.0
    centre[EXPONENT], spread[EXPONENT] = 0.0, 0.5

    free = np.zeros(len(PARAMETERS), bool)
    free[list(model.free)] = True
    free[[OBSERVATION, PROCESS]] = True
    if bounded:
        free[FLOOR] = False
    rates = {float(h.learning_rate) for h in problem.hyperparameters}
    free[EXPONENT] = len(rates) > 1 and not model.baseline and RATE in model.free
    return Specification(
        curve=np.asarray(model.curve),
        momentum=np.asarray(model.momentum),
        harmonic=np.asarray(model.harmonic),
        std_normalised=np.asarray(model.normalisation == "std"),
        mixed=np.asarray(model.mixed),
        bounded=np.asarray(bounded),
        lower=np.asarray(lower),
        upper=np.asarray(upper),
        centre=centre,
        spread=spread,
        free=free,
    )


def starting_points(specification: Specification) -> np.ndarray:
    """Where the searches start: the prior's centre, moved along the directions in which the likelihood has several modes."""
    moves = [
        {RATE: 0.0},
        {RATE: 1.6, START: -0.5},
        {RATE: 0.5, START: -1.2, FORM: -1.0},
        {RATE: 0.3, FORM: 1.2},
    ]
    points = np.tile(specification.centre, (len(moves), 1))
    # A search that starts with too much observation noise is not trapped by the first few points it can fit.
    points[:, OBSERVATION] += 3.0 * specification.spread[OBSERVATION]
    for point, move in zip(points, moves, strict=True):
        for index, amount in move.items():
            if specification.free[index]:
                point[index] += amount * specification.spread[index]
    return points
