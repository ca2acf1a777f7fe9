"""The tables of the command line: what was read, what was fitted, what is predicted."""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from jaxgrpo.report.blocks import Block, Bullets, Column, Heading, Pairs, Paragraph, Table, Title
from jaxgrpo.report.numbers import interval, number, setting

if TYPE_CHECKING:
    from jaxgrpo.inference.fit import Estimate, Fit
    from jaxgrpo.logs.run import Run
    from jaxgrpo.report.assessment import Assessment
    from jaxgrpo.report.scenarios import Scenario
    from jaxgrpo.theory.hyperparameters import Hyperparameters

SETTINGS = {
    "learning_rate": "learning rate",
    "momentum": "momentum",
    "group_size": "group size G",
    "refresh_interval": "refresh interval K",
    "prompts_per_step": "prompts per step",
    "epochs_per_rollout": "epochs per rollout",
    "async_lag": "async lag",
    "staleness": "staleness",
}
_SHORT = {
    "learning_rate": "rate",
    "momentum": "mom.",
    "group_size": "G",
    "refresh_interval": "K",
    "prompts_per_step": "prompts",
    "epochs_per_rollout": "epochs",
    "async_lag": "lag",
    "staleness": "stale",
}
_WHY_UPPER = (
    "no sharpness was measured, and the curvature that a reward curve shows can be far below the sharpness "
    "that decides stability. The true limits may be much lower."
)
_SATURATES = (
    "A softmax force is stiffest midway up the course and vanishes as prompts are solved: the figures are "
    "those of its stiffest part, and a run beyond the limit there swings for a while rather than diverges."
)
_UPPER_BOUND = f"Upper bounds: {_WHY_UPPER}"
_CONVENTIONS = {"ema": "EMA", "heavy_ball": "heavy ball"}


def setting_of(hyperparameters: "Hyperparameters", name: str) -> str:
    """One setting as text."""
    return setting(float(getattr(hyperparameters, name)))


def steps_of(run: "Run") -> str:
    """First and last of the log's own steps."""
    return f"{setting(float(run.logged_steps[0]))}–{setting(float(run.logged_steps[-1]))}"


def distinct_names(runs: Sequence["Run"]) -> list[str]:
    """Names that tell runs apart: with the folder before them where the name alone does not."""
    counts = Counter(run.name for run in runs)
    names = [
        f"{run.path.resolve().parent.name}/{run.name}" if counts[run.name] > 1 and run.path else run.name
        for run in runs
    ]
    again = Counter(names)
    seen: Counter[str] = Counter()
    for index, name in enumerate(names):
        if again[name] > 1:
            seen[name] += 1
            names[index] = f"{name} ({seen[name]})"
    return names


def _edges(run: "Run") -> tuple[float, float]:
    """Mean reward of the first and of the last tenth."""
    width = max(1, len(run) // 10)
    return float(run.reward[:width].mean()), float(run.reward[-width:].mean())


def _source(run: "Run", name: str, given: Sequence[str], config: str | None) -> str:
    """Where a hyperparameter came from, as far as it is known."""
    if name in given:
        return "command line"
    told = " ".join(run.warnings)
    if run.settings:
        return f"settings ({config})" if config else "settings in the log"
    if name == "learning_rate" and "largest in the log's own column" in told:
        return "largest in the log"
    assumed = re.search(r"assumed, since the log does not tell: ([^(]*)", told)
    if assumed and name.replace("_", " ") in assumed.group(1):
        return "assumed"
    return "default"


def run_report(run: "Run", given: Sequence[str] = (), config: str | None = None) -> list[Block]:
    """All that was read of one log.

    Args:
        run: The run.
        given: Hyperparameters that the user gave.
        config: Name of the configuration file that the user gave.

    Returns:
        The report.
    """
    first, last = _edges(run)
    unit = setting(run.steps_per_row)
    rows: list[tuple[str, str]] = [
        ("framework", run.framework),
        ("points", f"{len(run)}, steps {steps_of(run)}"),
        ("optimizer steps", f"{unit} to a step of the log, {setting(float(run.steps[-1]))} in all"),
        (
            "reward",
            f"{number(first)} → {number(last)} (first and last tenth), "
            f"{number(float(run.reward.min()))} to {number(float(run.reward.max()))}",
        ),
        ("channels", ", ".join(run.channels) or "none"),
    ]
    if run.parts:
        rows.append(("reward parts", ", ".join(run.parts)))
    if run.extra:
        rows.append(("other columns", f"{len(run.extra)}"))
    blocks: list[Block] = [Title(run.name, str(run.path or "")), Pairs(rows), Heading("Hyperparameters")]
    h = run.hyperparameters
    if h is None:
        blocks.append(Paragraph("None are known: give --learning-rate and the others, or --config FILE."))
    else:
        table = [
            [title, setting_of(h, name), _source(run, name, given, config)]
            for name, title in SETTINGS.items()
        ]
        convention = "EMA, as in Adam" if h.convention == "ema" else "heavy ball"
        table.append(["momentum convention", convention, ""])
        blocks.append(
            Table([Column("setting", "left"), Column("value"), Column("from", "left", True)], table)
        )
    return blocks + notes(run.warnings)


def runs_report(runs: Sequence["Run"]) -> list[Block]:
    """Several logs in one table, and their notes, each said once.

    Args:
        runs: The runs.

    Returns:
        The report.
    """
    columns = [
        Column("run", "left", wraps=True),
        Column("framework", "left", expendable=3),
        Column("points"),
        Column("steps", expendable=1),
        Column("reward", "left"),
        Column("rate"),
        Column("mom.", expendable=2),
        Column("G", expendable=1),
        Column("K", expendable=1),
        Column("lag", expendable=2),
        Column("prompts", expendable=4),
    ]
    names = ("learning_rate", "momentum", "group_size", "refresh_interval", "async_lag", "prompts_per_step")
    rows = []
    for name, run in zip(distinct_names(runs), runs, strict=True):
        first, last = _edges(run)
        h = run.hyperparameters
        known = ["–"] * len(names) if h is None else [setting_of(h, entry) for entry in names]
        change = f"{number(first)} → {number(last)}"
        rows.append([name, run.framework, str(len(run)), steps_of(run), change, *known])
    legend = (
        "reward: means of the first and last tenth; rate: learning rate; G: group size; K: refresh interval"
    )
    return [
        Title(f"{len(runs)} runs"),
        Table(columns, rows),
        Paragraph(legend),
        *notes_of_several(dict(zip(distinct_names(runs), (run.warnings for run in runs), strict=True))),
    ]


def notes(lines: Sequence[str], heading: str = "Notes") -> list[Block]:
    """Warnings as a short list; nothing where there are none."""
    lines = [for_command_line(line) for line in dict.fromkeys(lines)]
    return [Heading(heading), Bullets(lines)] if lines else []


def notes_of_several(lines: Mapping[str, Sequence[str]]) -> list[Block]:
    """Notes of several runs: each once, with the runs that it concerns."""
    concerned: dict[str, list[str]] = {}
    for name, own in lines.items():
        for line in dict.fromkeys(own):
            concerned.setdefault(for_command_line(line), []).append(name)
    items = []
    for line, names in concerned.items():
        if len(names) == len(lines):
            items.append(line)
        else:
            shown = ", ".join(names) if len(names) <= 2 else f"{len(names)} runs"
            items.append(line if line.startswith(shown) else f"{line} ({shown})")
    return [Heading("Notes"), Bullets(items)] if items else []


_PYTHON_WORDS = (
    (re.compile(r"\bsegment=NUMBER, or read_runs for all"), "--segment NUMBER, or --segment all"),
    (re.compile(r"\brun=NAME or call read_runs"), "--run NAME"),
    (re.compile(r"\(give hyperparameters or config\)"), "(give --momentum, --group-size or --config)"),
    (
        re.compile(r"\(give refresh_interval or steps_per_row\)"),
        "(give --refresh-interval or --steps-per-row)",
    ),
    (re.compile(r"\bgive learning_rate with the hyperparameters"), "give --learning-rate"),
    (re.compile(r"\bsteps_per_row must"), "--steps-per-row must"),
    (re.compile(r"\bsegment must"), "--segment must"),
    (re.compile(r"\breward=NAME"), "--reward NAME"),
    (re.compile(r"\bcolumns=\{[^}]*\}"), "--column NAME=THEIRS"),
)


def for_command_line(message: str) -> str:
    """Say a message of the Python interface in the words of the command line."""
    for pattern, words in _PYTHON_WORDS:
        message = pattern.sub(words, message)
    return message


def settings_line(h: "Hyperparameters", without: Sequence[str] = ()) -> str:
    """The settings that matter, in one line; those at their neutral value are left out.

    Args:
        h: The settings.
        without: Names of settings to leave out.

    Returns:
        The line.
    """
    prompts = setting_of(h, "prompts_per_step")
    words = {
        "learning_rate": f"learning rate {setting_of(h, 'learning_rate')}",
        "momentum": f"momentum {setting_of(h, 'momentum')} ({_CONVENTIONS[h.convention]})",
        "group_size": f"G {setting_of(h, 'group_size')}",
        "refresh_interval": f"K {setting_of(h, 'refresh_interval')}",
        "prompts_per_step": f"{prompts} prompt{'' if prompts == '1' else 's'} a step",
    }
    for name, neutral in (("epochs_per_rollout", 1.0), ("async_lag", 0.0), ("staleness", 1.0)):
        if float(getattr(h, name)) != neutral:
            words[name] = f"{SETTINGS[name]} {setting_of(h, name)}"
    return " · ".join(text for name, text in words.items() if name not in without)


def _comparison(fit: "Fit") -> list[Block]:
    best = max(fit.comparison.values())
    rows, marks = [], set()
    for name, evidence in fit.comparison.items():
        entry = fit.models[name]
        if name == fit.model:
            marks.add(len(rows))
        kind = "baseline" if entry.baseline else ""
        if not entry.converged:
            kind = (kind + ", " if kind else "") + "did not converge"
        rows.append(
            [
                entry.title,
                "0" if evidence == best else f"{evidence - best:.1f}" if math.isfinite(evidence) else "–",
                _share(entry.r_squared),
                _share(entry.r_squared_smoothed),
                kind,
            ]
        )
    rows.append(["noise ceiling (a perfect curve)", "", _share(fit.explained_ceiling), "", ""])
    columns = [
        Column("model", "left", wraps=True),
        Column("log evidence"),
        Column("R²"),
        Column("R² smoothed"),
        Column("", "left"),
    ]
    return [
        Heading("Models, the most probable first (▸ the chosen one)"),
        Table(columns, rows, frozenset(marks)),
    ]


def _share(value: float) -> str:
    if not math.isfinite(value):
        return "–"
    return f"{value + 0.0 if abs(value) >= 5e-4 else 0.0:.3f}" if value > -10 else "< -10"


def _unit(estimate: "Estimate", run: "Run") -> str:
    """Unit of a parameter; times also in the log's own steps, where they differ."""
    unit = estimate.unit
    if unit == "optimizer steps" and run.steps_per_row != 1.0:
        unit += f" (= {number(estimate.value / run.steps_per_row)} of the log's)"
    return ", ".join(part for part in (unit, estimate.note) if part)


def _parameters(fit: "Fit") -> list[Block]:
    rows = []
    for name, estimate in fit.parameters.items():
        known = interval(estimate.lower, estimate.upper) if estimate.identified else "not identified"
        value = number(estimate.value, 4) if estimate.identified else f"({number(estimate.value, 2)})"
        rows.append([name.replace("_", " "), value, known, _unit(estimate, fit.run)])
    columns = [
        Column("parameter", "left"),
        Column("estimate"),
        Column("90 % interval", "left"),
        Column("unit", "left", True),
    ]
    return [Heading("What was measured"), Table(columns, rows)]


def _limit(value: float) -> str:
    return number(value, infinite="none")


def stability_blocks(assessment: "Assessment", run: "Run | None" = None) -> list[Block]:
    """Regime and limits of one configuration, exact and to leading order side by side."""
    rows = [
        ["stability margin", _share(assessment.margin), _share(assessment.leading_margin)],
        [
            "critical refresh interval K",
            _limit(assessment.critical_refresh_interval),
            _limit(assessment.leading_critical_refresh_interval),
        ],
        [
            "critical learning rate",
            _limit(assessment.critical_learning_rate),
            _limit(assessment.leading_critical_learning_rate),
        ],
        [
            "ringing begins at learning rate",
            _limit(assessment.oscillation_onset),
            _limit(assessment.leading_oscillation_onset),
        ],
    ]
    blocks: list[Block] = [
        Heading("Stability at these settings"),
        Paragraph(regime_sentence(assessment, run)),
        Table([Column("", "left"), Column("exact"), Column("leading order")], rows),
    ]
    if assessment.is_upper_bound:
        blocks.append(Paragraph(_UPPER_BOUND))
    return blocks


def regime_sentence(assessment: "Assessment", run: "Run | None" = None) -> str:
    """Regime and damping in a sentence or two."""
    words = {
        "overdamped": "Overdamped: the reward approaches its plateau without ringing",
        "critical": "Critically damped: the fastest approach without ringing",
        "underdamped": "Underdamped: the reward overshoots and rings",
        "unstable": "Unstable: the swings grow",
    }
    if assessment.saturates:
        words["underdamped"] = "Underdamped where the force is stiffest: the reward may overshoot on its way"
        words["unstable"] = "Beyond the linear limit where the force is stiffest: swings may grow on the way"
    sentence = f"{words[assessment.regime]}; damping ratio {number(assessment.damping_ratio)}"
    if not assessment.matched:
        sentence += " (to leading order, as for every run with an async lag)"
    if math.isfinite(assessment.period):
        sentence += f", period {number(assessment.period)} optimizer steps"
        if run is not None and run.steps_per_row != 1.0:
            sentence += f" (= {number(assessment.period / run.steps_per_row)} of the log's)"
    return sentence + "." + (f" {_SATURATES}" if assessment.saturates else "")


def regime_word(assessment: "Assessment") -> str:
    """The regime in a word or two, for a table."""
    return "stiff midway" if assessment.saturates and assessment.regime == "unstable" else assessment.regime


def fit_report(
    fit: "Fit", assessments: Sequence["Assessment"], with_fitted_inertia: "Assessment | None" = None
) -> list[Block]:
    """All that one fit says.

    Args:
        fit: The fit of one run, or of several jointly.
        assessments: Regime and stability, one for each of its runs.
        with_fitted_inertia: The same with the inertia that was fitted instead of the optimizer's, where it was.

    Returns:
        The report.
    """
    run = fit.run
    blocks: list[Block]
    if len(fit.runs) == 1:
        detail = f"{run.framework}, {len(run)} points, steps {steps_of(run)}"
        if run.steps_per_row != 1.0:
            detail += f" of {setting(run.steps_per_row)} optimizer steps each"
        blocks = [Title(run.name, detail), Paragraph(settings_line(fit.hyperparameters[0]))]
    else:
        blocks = [Title(f"{len(fit.runs)} runs fitted jointly"), *_joint_runs(fit)]
    blocks += [Heading("What it says"), Bullets(fit.verdicts), *_comparison(fit), *_parameters(fit)]
    if fit.parts:
        blocks += _parts(fit)
    blocks += stability_blocks(assessments[0], run)
    if with_fitted_inertia is not None:
        blocks.append(
            Paragraph(
                f"With the inertia that was fitted, damping ratio {number(with_fitted_inertia.damping_ratio)}."
            )
        )
    if len(fit.runs) > 1:
        blocks += _joint_assessments(fit, assessments)
    lines = [*fit.warnings, *(line for one in fit.runs for line in one.warnings)]
    return blocks + notes(lines)


def _joint_runs(fit: "Fit") -> list[Block]:
    rows = [
        [
            run.name,
            str(len(run)),
            steps_of(run),
            *(
                setting_of(h, name)
                for name in ("learning_rate", "group_size", "refresh_interval", "async_lag")
            ),
            _share(r_squared),
        ]
        for run, h, r_squared in zip(fit.runs, fit.hyperparameters, fit.r_squared_per_run, strict=True)
    ]
    columns = [
        Column("run", "left", wraps=True),
        Column("points", expendable=2),
        Column("steps", expendable=1),
        *(Column(title) for title in ("rate", "G", "K", "lag", "R²")),
    ]
    return [Table(columns, rows)]


def _joint_assessments(fit: "Fit", assessments: Sequence["Assessment"]) -> list[Block]:
    rows = [
        [
            run.name,
            regime_word(o),
            number(o.damping_ratio),
            _share(o.margin),
            _limit(o.critical_refresh_interval),
        ]
        for run, o in zip(fit.runs, assessments, strict=True)
    ]
    columns = [
        Column("run", "left", wraps=True),
        Column("regime", "left"),
        Column("damping ratio"),
        Column("margin"),
        Column("critical K"),
    ]
    return [Heading("Each run"), Table(columns, rows)]


def _parts(fit: "Fit") -> list[Block]:
    rows = []
    for name, part in fit.parts.items():
        plateau = part.parameters["plateau"]
        known = interval(plateau.lower, plateau.upper) if plateau.identified else "not identified"
        rows.append(
            [
                name,
                part.title,
                number(plateau.value),
                known,
                _share(part.r_squared),
                _share(part.explained_ceiling),
            ]
        )
    columns = [
        Column("part", "left", wraps=True),
        Column("model", "left", wraps=True),
        Column("plateau"),
        Column("90 % interval", "left"),
        Column("R²"),
        Column("ceiling"),
    ]
    return [Heading("Parts of the reward"), Table(columns, rows)]


def fits_report(fits: Sequence["Fit"], assessments: Sequence["Assessment"]) -> list[Block]:
    """Several fits, a line each.

    Args:
        fits: Fits of one run each.
        assessments: Regime and stability of each.

    Returns:
        The report.
    """
    columns = [
        Column("run", "left", wraps=True),
        Column("points", expendable=4),
        Column("model", "left", wraps=True),
        Column("R²"),
        Column("smoothed", expendable=1),
        Column("ceiling", expendable=2),
        Column("plateau"),
        Column("90 % interval", "left"),
        Column("regime", "left", expendable=1),
        Column("damping", expendable=3),
        Column("margin", expendable=2),
    ]
    rows = []
    distinct = distinct_names([fit.run for fit in fits])
    for name, fit, o in zip(distinct, fits, assessments, strict=True):
        plateau = fit.parameters["plateau"]
        known = interval(plateau.lower, plateau.upper) if plateau.identified else "not identified"
        rows.append(
            [
                name,
                str(len(fit.run)),
                fit.title,
                _share(fit.r_squared),
                _share(fit.r_squared_smoothed),
                _share(fit.explained_ceiling),
                number(plateau.value),
                known,
                regime_word(o),
                number(o.damping_ratio),
                _share(o.margin),
            ]
        )
    legend = (
        "R² of the rewards as logged, of centred moving means, and what a perfect curve would reach "
        "(ceiling). For all that one fit says, give its log alone."
    )
    blocks: list[Block] = [Title(f"{len(fits)} runs"), Table(columns, rows), Paragraph(legend)]
    if any(o.saturates for o in assessments):
        blocks.append(Paragraph(_SATURATES))
    if any(o.is_upper_bound for o in assessments):
        blocks.append(
            Paragraph(f"Margins (0 is the threshold of instability) are upper bounds: {_WHY_UPPER}")
        )
    lines = [[*fit.warnings, *fit.run.warnings] for fit in fits]
    return blocks + notes_of_several(dict(zip(distinct, lines, strict=True)))


def varied_settings(scenarios: Sequence["Scenario"]) -> list[str]:
    """Names of the settings in which scenarios differ."""
    return [
        name for name in SETTINGS if len({float(getattr(one.hyperparameters, name)) for one in scenarios}) > 1
    ]


def prediction_report(
    title: str, scenarios: Sequence["Scenario"], end: str, remarks: Sequence[str], details: Sequence[str] = ()
) -> list[Block]:
    """Predictions, a line each.

    Args:
        title: Title of the report.
        scenarios: The predicted runs.
        end: The last step, in words.
        remarks: What to know about them.
        details: Lines on what is predicted.

    Returns:
        The report.
    """
    varied = varied_settings(scenarios) or ["learning_rate"]
    columns = [Column("learning\nrate" if name == "learning_rate" else _SHORT[name]) for name in varied]
    columns += [
        Column("reward\nat end"),
        Column("90 % band", "left"),
        Column("regime", "left"),
        Column("damping\nratio"),
        Column("stability\nmargin"),
        Column("critical\nK"),
        Column("critical\nrate"),
        Column("leading\nK", expendable=2),
        Column("leading\nrate", expendable=2),
        Column("rings\nfrom rate", expendable=3),
    ]
    rows, marks = [], set()
    for index, one in enumerate(scenarios):
        o = one.assessment
        if one.is_own:
            marks.add(index)
        rows.append(
            [
                *(setting_of(one.hyperparameters, name) for name in varied),
                *_end_of(one),
                regime_word(o),
                number(o.damping_ratio),
                _share(o.margin),
                _limit(o.critical_refresh_interval),
                _limit(o.critical_learning_rate),
                _limit(o.leading_critical_refresh_interval),
                _limit(o.leading_critical_learning_rate),
                _limit(o.oscillation_onset),
            ]
        )
    legend = f"End: {end}. Critical K and rate: where the run turns unstable, all else equal, exact"
    legend += "; leading: to leading order."
    if marks and len(scenarios) > 1:
        legend += " ▸ marks the run's own settings."
    blocks: list[Block] = [Title(title), *(Paragraph(line) for line in details)]
    blocks += [Table(columns, rows, frozenset(marks)), Paragraph(legend)]
    if any(one.assessment.saturates for one in scenarios):
        blocks.append(Paragraph(_SATURATES))
    if any(one.assessment.is_upper_bound for one in scenarios):
        blocks.append(Paragraph(f"Margin, critical K and critical rate are upper bounds: {_WHY_UPPER}"))
    return blocks + notes(remarks)


def _end_of(scenario: "Scenario") -> tuple[str, str]:
    mean, lower, upper = (float(x[-1]) for x in (scenario.mean, scenario.lower, scenario.upper))
    reach = abs(scenario.plateau - float(scenario.mean[0])) or max(abs(scenario.plateau), 1.0)
    if not abs(mean - scenario.plateau) < 100.0 * reach:
        return "diverges", "–"
    return number(mean), interval(lower, upper)
