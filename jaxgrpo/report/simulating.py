"""Simulated ensembles as the command shows them: table, data and pictures."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxgrpo.report import tables
from jaxgrpo.report.assessment import Assessment, assess
from jaxgrpo.report.blocks import Block, Column, Paragraph, Table, Title
from jaxgrpo.report.data import of_hyperparameters
from jaxgrpo.report.numbers import interval, number, setting
from jaxgrpo.simulation.simulate import Ensemble, simulate
from jaxgrpo.theory.hyperparameters import Hyperparameters
from jaxgrpo.theory.schedules import Schedule
from jaxgrpo.theory.task import Task

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OF_A_FIT = (
    "The runs are of the fitted task at its most probable values: they scatter by the noise of the gradient alone, "
    "not by what the fit leaves open (predict and forecast show that)."
)
OWN_INERTIA = (
    "The fitted model has its own inertia, which the simulated runs keep: another momentum changes the limits here, "
    "but not the runs."
)
# A table longer than this is of no use; the JSON holds all.
_MOST_ROWS = 40
_LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True, eq=False)
class Study:
    """A simulated ensemble of several settings.

    Attributes:
        settings: The settings.
        task: The task.
        ensemble: Statistics; the first axis are the settings.
        assessments: Regime and stability of each.
    """

    settings: Sequence[Hyperparameters]
    task: Task
    ensemble: Ensemble
    assessments: Sequence[Assessment]


def simulate_all(
    arguments: argparse.Namespace,
    settings: Sequence[Hyperparameters],
    acting: Sequence[Hyperparameters] | None,
    task: Task,
    steps: int,
    schedule: Schedule | None,
) -> Study:
    """Simulate all settings at once, in single precision.

    Args:
        arguments: The options of the command.
        settings: The settings.
        acting: The settings with the inertia that was fitted, where the model has its own.
        task: The task.
        steps: Optimizer steps.
        schedule: Factor on the learning rate, or none.

    Returns:
        The ensemble with what the theory says of each setting.
    """

    def single(x):
        return x.astype(jnp.float32) if eqx.is_inexact_array(x) else x

    moved = settings if acting is None else acting
    stacked = jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves), jnp.float32), *moved)
    start, end = float(task.initial_reward), float(task.plateau)
    ensemble = simulate(
        stacked,
        jax.tree.map(single, task),
        steps=steps,
        paths=arguments.paths,
        key=jax.random.key(arguments.seed),
        method=arguments.method,
        quantiles=_LEVELS,
        target=start + 0.9 * (end - start) if arguments.target is None else arguments.target,
        bound=arguments.bound,
        schedule=schedule,
        save=arguments.save,
        save_format=arguments.save_format,
        memory=arguments.memory * 2**20,
        progress=sys.stderr.isatty(),
    )
    return Study(settings, task, ensemble, [assess(one, task) for one in settings])


def _every(stride: float) -> str:
    return "every step" if stride == 1 else f"every {setting(stride)} steps"


def _share(share: float, error: float) -> str:
    return f"{100 * share:.3g} ± {100 * error:.1g} %"


def report(
    title: str, study: Study, varied: Sequence[str], details: Sequence[str], remarks: Sequence[str]
) -> list[Block]:
    """Simulated runs, a setting a line.

    Args:
        title: Title of the report.
        study: The ensemble.
        varied: Names of the settings that vary.
        details: Lines on what is simulated.
        remarks: What to know about it.

    Returns:
        The report.
    """
    runs = study.ensemble
    names = list(varied) or ["learning_rate"]
    columns = [Column(tables.SETTINGS[name].replace(" ", "\n", 1)) for name in names]
    columns += [
        Column("mean\nat end"),
        Column("90 % of\nthe runs", "left"),
        Column("half reach the\ntarget by"),
        Column("reached"),
        Column("diverged"),
        Column("stability\nmargin"),
        Column("regime", "left", expendable=2),
    ]
    reached_error = np.asarray(runs.share_error(runs.reached))
    diverged_error = np.asarray(runs.share_error(runs.diverged))
    passage = np.asarray(runs.first_passage(0.5))
    rows = []
    for i, (one, theory) in enumerate(zip(study.settings, study.assessments, strict=True)):
        error = float(np.asarray(runs.mean_error)[i, -1])
        lost = float(np.asarray(runs.diverged)[i, -1])
        mean = "–" if lost > 0.5 else f"{number(float(runs.mean[i, -1]))} ± {number(error, 1)}"
        spread = (
            "–" if lost > 0.5 else interval(float(runs.quantiles[i, -1, 0]), float(runs.quantiles[i, -1, -1]))
        )
        rows.append(
            [
                *(tables.setting_of(one, name) for name in names),
                mean,
                spread,
                number(float(passage[i]), infinite="never"),
                _share(float(runs.reached[i, -1]), float(reached_error[i, -1])),
                _share(lost, float(diverged_error[i, -1])),
                number(theory.margin),
                tables.regime_word(theory),
            ]
        )
    stride = float(np.max(np.diff(runs.steps)))
    target = float(np.asarray(runs.target).reshape(-1)[0])
    legend = (
        f"{runs.paths} runs a setting, {setting(float(runs.steps[-1]))} optimizer steps, method {runs.method}. "
        f"± is one standard error. Target: reward {number(target)}; first passages are seen at every step and "
        f"reported at the next of the records, {_every(stride)}. All settings see the same noise."
    )
    blocks: list[Block] = [
        Title(title),
        *(Paragraph(line) for line in details),
        Table(columns, rows[:_MOST_ROWS]),
    ]
    if len(rows) > _MOST_ROWS:
        blocks.append(Paragraph(f"The first {_MOST_ROWS} of {len(rows)} settings; --json has all."))
    blocks.append(Paragraph(legend))
    if any(one.is_upper_bound for one in study.assessments):
        blocks.append(
            Paragraph(
                "The margin is an upper bound: no sharpness was measured. The simulated runs know one direction "
                "only, that of the curvature, and diverge where it does."
            )
        )
    return blocks + tables.notes(remarks)


def as_data(study: Study) -> dict[str, Any]:
    """The ensemble as plain numbers."""
    runs = study.ensemble
    single = []
    for i, (one, theory) in enumerate(zip(study.settings, study.assessments, strict=True)):
        single.append(
            {
                "hyperparameters": of_hyperparameters(one),
                "stability": asdict(theory),
                "mean": runs.mean[i],
                "mean_error": np.asarray(runs.mean_error)[i],
                "standard_deviation": np.asarray(runs.std)[i],
                "quantiles": np.asarray(runs.quantiles)[i].T,
                "reached": runs.reached[i],
                "diverged": runs.diverged[i],
            }
        )
    return {
        "optimizer_steps": runs.steps,
        "paths": runs.paths,
        "method": runs.method,
        "levels": list(runs.levels),
        "target": float(np.asarray(runs.target).reshape(-1)[0]),
        "simulations": single,
    }


def draw(study: Study, varied: Sequence[str], title: str) -> "Figure":
    """A map of stability where two settings vary over several values each, fans of the runs otherwise."""
    from jaxgrpo.report import plots

    if len(varied) == 2 and len(study.settings) >= 6:
        return plots.stability_map(study.settings, study.task, varied, study.ensemble, title)
    labels = [
        ", ".join(f"{tables.SETTINGS[name]} {tables.setting_of(one, name)}" for name in varied)
        for one in study.settings
    ]
    return plots.ensemble(study.ensemble, labels, title)
