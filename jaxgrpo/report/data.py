"""Runs, fits and predictions as plain dictionaries, for JSON."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jaxgrpo.logs.run import Run
from jaxgrpo.theory.hyperparameters import Hyperparameters

if TYPE_CHECKING:
    from jaxgrpo.inference.fit import Fit
    from jaxgrpo.report.assessment import Assessment
    from jaxgrpo.report.scenarios import Scenario


def of_hyperparameters(h: Hyperparameters | None) -> dict[str, Any] | None:
    """Every field by its name."""
    if h is None:
        return None
    return {entry.name: _value(getattr(h, entry.name)) for entry in dataclasses.fields(h)}


def _value(value: Any) -> Any:
    # To the digits that a setting can mean: it may have been stored in single precision.
    return value if isinstance(value, str) else float(f"{float(value):.7g}")


def of_run(run: Run) -> dict[str, Any]:
    """A run with all its series."""
    return {
        "name": run.name,
        "path": run.path,
        "framework": run.framework,
        "points": len(run),
        "steps_per_row": run.steps_per_row,
        "hyperparameters": of_hyperparameters(run.hyperparameters),
        "warnings": run.warnings,
        "logged_steps": run.logged_steps,
        "optimizer_steps": run.steps,
        "reward": run.reward,
        "channels": run.channels,
        "parts": run.parts,
    }


def of_fit(fit: "Fit", assessments: Sequence["Assessment"]) -> dict[str, Any]:
    """A fit with its expected rewards at the logged steps, and the stability of its runs."""
    runs = []
    for index, (run, h, assessment) in enumerate(
        zip(fit.runs, fit.hyperparameters, assessments, strict=True)
    ):
        lower, upper = fit.band(run.steps, run=index)
        runs.append(
            {
                "name": run.name,
                "path": run.path,
                "framework": run.framework,
                "hyperparameters": of_hyperparameters(h),
                "stability": dataclasses.asdict(assessment),
                "warnings": run.warnings,
                "logged_steps": run.logged_steps,
                "optimizer_steps": run.steps,
                "reward": run.reward,
                "expected": fit.mean(run.steps, run=index),
                "lower": lower,
                "upper": upper,
            }
        )
    return {**fit.as_dict(), "runs": runs}


def of_scenario(scenario: "Scenario") -> dict[str, Any]:
    """A prediction with its course and its stability."""
    return {
        "label": scenario.label,
        "is_own": scenario.is_own,
        "hyperparameters": of_hyperparameters(scenario.hyperparameters),
        "stability": dataclasses.asdict(scenario.assessment),
        "level": scenario.level,
        "optimizer_steps": scenario.steps,
        "expected": scenario.mean,
        "lower": scenario.lower,
        "upper": scenario.upper,
    }
