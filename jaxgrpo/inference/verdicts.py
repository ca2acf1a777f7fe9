"""What a comparison of models says, in words."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxgrpo.inference.problem import Problem

# Differences of log evidence below DOUBT say nothing; only from SUPPORT on are they very strong (Kass and Raftery 1995), and
# the evidence here is itself approximate.
DOUBT, SUPPORT = 1.0, 5.0


def verdicts(fits: Mapping[str, Any], best: str, problem: Problem) -> list[str]:
    """Sentences on what the data support.

    Args:
        fits: Model name to its fit, the most probable first.
        best: Name of the chosen model.
        problem: What was fitted.

    Returns:
        One sentence for each question: is there a trend, which shape, is second order supported, does momentum explain the
        inertia, how do curves without dynamics compare, is the plateau known.
    """
    sentences = []
    evidence = {name: f.log_evidence for name, f in fits.items()}
    dynamic = [name for name, f in fits.items() if not f.baseline]
    trend = evidence[best] - evidence["constant"]
    if trend < SUPPORT:
        sentences.append(
            f"No trend is told from noise (log evidence {trend:+.1f} against a constant): parameters below are not to be used."
        )
    others = [name for name in dynamic if name != best]
    rivals = [name for name in others if evidence[best] - evidence[name] < SUPPORT]
    if rivals:
        names = "; ".join(fits[name].title for name in rivals)
        sentences.append(
            f"The course is that of the model '{fits[best].title}'; not told apart from it: {names}."
        )
    else:
        second = evidence[best] - evidence[others[0]]
        sentences.append(
            f"The course is that of the model '{fits[best].title}' (log evidence {second:+.1f} against the next one)."
        )
    sentences += _inertia(fits, evidence, best, problem)
    baselines = [name for name, f in fits.items() if f.baseline and name != "constant"]
    ahead = evidence[baselines[0]] - evidence[best]
    if ahead > SUPPORT:
        sentences.append(
            f"The {fits[baselines[0]].title} describes this log better (log evidence {ahead:+.1f}) but has no dynamics: "
            "take predictions at other settings with care."
        )
    plateau = fits[best].parameters["plateau"]
    reach = float(np.ptp(np.concatenate([run.reward for run in problem.runs])))
    if plateau.upper - plateau.lower > reach:
        sentences.append(
            "The plateau is not identified: the run ends before the course bends far enough to show it."
        )
    return sentences


def _inertia(fits, evidence, best, problem) -> list[str]:
    """Whether second order is supported, and whether the optimizer's momentum explains it."""
    gain = evidence["second_order"] - evidence["first_order"]
    against = evidence[best] - evidence["second_order"]
    sentences = []
    if gain < -DOUBT:
        sentences.append(f"Second order is not supported (log evidence {gain:+.1f} against first order).")
        return sentences
    if gain < SUPPORT:
        word = "the data cannot tell" if abs(gain) < DOUBT else "weak support"
        sentences.append(f"Whether there is inertia: {word} (log evidence {gain:+.1f} for second order).")
        return sentences
    if best not in ("first_order", "second_order") and against > SUPPORT:
        sentences.append(
            f"Second order beats first order ({gain:+.1f}), but the saturating force explains the slow start without "
            f"inertia, and better (by {against:.1f})."
        )
        return sentences
    momentum = float(problem.hyperparameters[0].momentum)
    expected = momentum / (1.0 - momentum)
    inertia = fits["second_order"].parameters["inertial_time"]
    sentences.append(f"Second order is clearly supported (log evidence {gain:+.1f} against first order).")
    held = f"{inertia.value:.3g} steps ({inertia.lower:.3g} to {inertia.upper:.3g})"
    # That a run contradicts its optimizer is said at 99 %, not at the 90 % of the interval: one in ten would be too many.
    spread = max(float(np.log(inertia.upper / max(inertia.lower, 1e-12))) / (2.0 * 1.645), 1e-12)
    distance = float(np.log(max(inertia.value, 1e-12) / max(expected, 1e-12))) / spread
    if abs(distance) <= 2.576:
        sentences.append(
            f"The inertia, {held}, is what the optimizer's momentum explains ({expected:.3g} steps; tested at 99 %)."
        )
    elif distance > 0:
        sentences.append(
            f"The inertia, {held}, is longer than the optimizer's momentum explains ({expected:.3g} steps): "
            "a warm-up, a slow-starting force or the batches' order are likelier causes than momentum."
        )
    else:
        sentences.append(
            f"The inertia, {held}, is shorter than the optimizer's momentum would make it ({expected:.3g} steps)."
        )
    return sentences
