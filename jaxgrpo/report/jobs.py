"""What the subcommands do once their options are known to be good."""

import argparse
import dataclasses
import io
import itertools
import json
import math
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxgrpo.errors import JaxgrpoError, ReadError
from jaxgrpo.logs.read import read_run, read_runs
from jaxgrpo.logs.run import Run
from jaxgrpo.report import tables, text
from jaxgrpo.report.blocks import Block
from jaxgrpo.theory.hyperparameters import Hyperparameters

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from jaxgrpo.inference.fit import Fit
    from jaxgrpo.report.assessment import Assessment
    from jaxgrpo.report.scenarios import Scenario

FINE, BAD_INPUT = 0, 2
# Fields of a task that an option sets.
_TASK_FIELDS = ("curvature", "plateau", "initial_reward", "rollout_noise", "sharpness", "spread", "floor")
# Frameworks whose settings are written without being asked for, where the log is theirs.
_WRITABLE = ("trl", "verl", "openrlhf", "nemo-rl", "prime-rl")
# Runs are fitted in portions of this size, so that a progress bar can move.
_PORTION = 16


@dataclass
class Result:
    """What a subcommand has to say, before it is written anywhere.

    Attributes:
        blocks: The report.
        data: The same for machines.
        draw: Makes the picture.
        title: Title of the page.
        skipped: One line for each input that could not be used while others could.
    """

    blocks: list[Block]
    data: dict[str, Any]
    draw: Callable[[], "Figure"]
    title: str
    skipped: list[str] = field(default_factory=list)


def run(arguments: argparse.Namespace) -> int:
    """Carry out a parsed command line.

    Args:
        arguments: What `jaxgrpo.cli.build_parser` made of it.

    Returns:
        The exit code.
    """
    jobs = {
        "read": _read,
        "fit": _fit,
        "predict": _predict,
        "simulate": _simulate,
        "forecast": _forecast,
        "tune": _tune,
        "demo": _demo,
    }
    job = jobs[arguments.command]
    result = job(arguments)
    for line in result.skipped:
        _say_aside(f"jaxgrpo: left out: {line}")
    _write(arguments, result)
    return BAD_INPUT if result.skipped else FINE


def _given(arguments: argparse.Namespace) -> dict[str, Any]:
    """Hyperparameters given as options, checked by themselves so that an error names the option."""
    names = [*tables.SETTINGS, "convention"]
    given = {n: getattr(arguments, n) for n in names if getattr(arguments, n, None) is not None}
    check_settings(given)
    return given


def check_settings(given: Mapping[str, Any]) -> None:
    """Refuse hyperparameters out of range, naming the option.

    Args:
        given: Some fields of `Hyperparameters`.

    Raises:
        JaxgrpoError: If a value is out of range.
    """
    names = [entry.name for entry in dataclasses.fields(Hyperparameters)]
    for name, value in given.items():
        if name not in names:
            raise JaxgrpoError(f"{name!r} is no hyperparameter; there are: {', '.join(names)}")
        try:
            settings: dict[str, Any] = {"learning_rate": 1.0, name: value}
            Hyperparameters(**settings)
        except (ValueError, TypeError) as error:
            reason = " ".join(str(error).split())
            option = "--" + name.replace("_", "-")
            raise JaxgrpoError(
                reason.replace(name, option, 1) if name in reason else f"{option}: {reason}"
            ) from error


def _reading_options(arguments: argparse.Namespace) -> dict[str, Any]:
    columns = dict(arguments.column)
    return {
        "framework": arguments.framework,
        "columns": columns,
        "reward": arguments.reward,
        "run": arguments.run,
        "config": arguments.config,
        "steps_per_row": arguments.steps_per_row,
    }


def _read_all(arguments: argparse.Namespace, segment: str) -> tuple[list[Run], list[str]]:
    """The runs of all logs; where some logs cannot be read but others can, what is wrong with them."""
    options = _reading_options(arguments)
    given = _given(arguments) or None
    runs, skipped, first = [], [], None
    for path in _progress(arguments.logs, "reading"):
        try:
            runs += read_runs(path, given, segment=arguments.segment or segment, **options)
        except JaxgrpoError as error:
            first = first or error
            skipped.append(_plain(error))
    if not runs and first is not None:
        raise _in_option_words(first)
    return runs, skipped


def _plain(error: Exception) -> str:
    return tables.for_command_line(" ".join(str(error).split()))


def _in_option_words(error: JaxgrpoError) -> JaxgrpoError:
    return type(error)(_plain(error))


def _read(arguments: argparse.Namespace) -> Result:
    from jaxgrpo.report import data

    runs, skipped = _read_all(arguments, "all")
    if len(runs) == 1:
        blocks = tables.run_report(runs[0], list(_given(arguments)), arguments.config)
    else:
        blocks = tables.runs_report(runs)

    def draw():
        from jaxgrpo.report import plots

        return plots.run(runs[0]) if len(runs) == 1 else plots.runs(runs)

    return Result(blocks, {"runs": [data.of_run(one) for one in runs]}, draw, runs[0].name, skipped)


def _fit(arguments: argparse.Namespace) -> Result:
    runs, skipped = _read_all(arguments, "longest")
    from jaxgrpo.inference.fit import fit
    from jaxgrpo.report.assessment import compile_ahead

    compile_ahead()

    options = {"model": arguments.model, "bounds": arguments.bounds}
    if arguments.joint:
        fits = [fit(runs, **options)]
    elif len(runs) == 1 or arguments.parts:
        fits = [fit(one, parts=arguments.parts, **options) for one in _progress(runs, "fitting")]
    else:
        fits, failed = _fit_each(runs, options)
        skipped += failed
    return _fit_result(fits, arguments.sharpness, skipped)


def _fit_each(runs: Sequence[Run], options: Mapping[str, Any]) -> tuple[list["Fit"], list[str]]:
    """Fit runs one by one in one compiled program; leave out, with the reason, what cannot be fitted."""
    from jaxgrpo.errors import FitError
    from jaxgrpo.inference.fit import fit, fit_each

    fits, failed = [], []
    bar = _progress_bar(len(runs), "fitting")
    for first in range(0, len(runs), _PORTION):
        portion = runs[first : first + _PORTION]
        try:
            fits += fit_each(portion, **options)
        except FitError:
            for one in portion:
                try:
                    fits.append(fit(one, **options))
                except FitError as error:
                    failed.append(_plain(error))
        if bar is not None:
            bar.update(len(portion))
    if bar is not None:
        bar.close()
    if not fits:
        raise FitError(failed[0])
    return fits, failed


def _fit_result(fits: list["Fit"], sharpness: float | None, skipped: list[str]) -> Result:
    from jaxgrpo.report import data
    from jaxgrpo.report.assessment import assess

    def of(fit: "Fit", index: int) -> "Assessment":
        task = fit.task if sharpness is None else dataclasses.replace(fit.task, sharpness=sharpness)
        return _checked(lambda: assess(fit.hyperparameters[index], task))

    assessments = [[of(fit, index) for index in range(len(fit.runs))] for fit in fits]
    if len(fits) == 1:
        blocks = tables.fit_report(fits[0], assessments[0], _with_fitted_inertia(fits[0]))
    else:
        blocks = tables.fits_report(fits, [own[0] for own in assessments])

    def draw():
        from jaxgrpo.report import plots

        return plots.fit(fits[0]) if len(fits) == 1 else plots.fits(fits)

    content = {"fits": [data.of_fit(fit, own) for fit, own in zip(fits, assessments, strict=True)]}
    return Result(blocks, content, draw, fits[0].run.name, skipped)


def _forecast(arguments: argparse.Namespace) -> Result:
    runs, skipped = _read_all(arguments, "longest")
    from jaxgrpo.report import forecasting

    several = []
    for whole in _progress(runs, "forecasting"):
        try:
            several.append(_ahead(whole, arguments))
        except JaxgrpoError as error:
            if len(runs) == 1:
                raise
            skipped.append(_plain(error))
    if not several:
        raise JaxgrpoError(skipped[0])
    one = len(several) == 1
    blocks = forecasting.forecast_report(several[0]) if one else forecasting.forecasts_report(several)
    content = {"forecasts": [forecasting.of_forecast(ahead) for ahead in several]}
    return Result(
        blocks, content, lambda: forecasting.picture(several), several[0].forecast.run.name, skipped
    )


def _tune(arguments: argparse.Namespace) -> Result:
    """Fit logs jointly and recommend the settings of the next run."""
    runs, skipped = _read_all(arguments, "longest")
    from jaxgrpo.inference.fit import fit
    from jaxgrpo.report import tuning
    from jaxgrpo.tuning.constraints import Constraints
    from jaxgrpo.tuning.cost import prices_from_mapping, prices_from_run
    from jaxgrpo.tuning.tune import tune

    for one in runs:
        if one.hyperparameters is None or not float(one.hyperparameters.learning_rate) > 0:
            raise ReadError(
                f"{one.name}: its learning rate is not known; give --learning-rate or --config FILE"
            )
    fitted = fit(runs if len(runs) > 1 else runs[0], model=arguments.model, bounds=arguments.bounds)
    one, h = fitted.run, fitted.hyperparameters[0]
    given = dict(arguments.price)
    prices = prices_from_mapping(given) if given else prices_from_run(one, h)[0]
    budget = arguments.budget
    if budget is not None and budget[1] == "x":
        budget = budget[0] * float(prices.per_step(h)) * (float(one.steps[-1]) + one.steps_per_row)
    elif budget is not None:
        budget = budget[0]
    limits = Constraints(
        stability_probability=arguments.stable,
        rate_extrapolation=arguments.rate_extrapolation or None,
        beyond_stable=arguments.beyond_stable or None,
        beyond_noise=arguments.beyond_noise or None,
        damping_ratio=arguments.damping_ratio,
        largest_batch=arguments.largest_batch,
    )
    advice = tune(
        fitted,
        {**dict(arguments.range), **dict(arguments.fix)},
        budget,
        objective=arguments.objective,
        target=arguments.target,
        prices=prices if given else None,
        constraints=limits,
        hold="rollouts_per_step" if arguments.hold_batch else "prompts_per_step",
        sharpness=arguments.sharpness,
        certify=arguments.certify or 0,
    )
    framework = arguments.settings_for or (one.framework if one.framework in _WRITABLE else None)
    if framework is not None and advice.supported:
        try:
            advice.to_framework(framework)
        except ValueError as error:
            if arguments.settings_for:
                raise JaxgrpoError(f"--framework {framework}: {error}") from error
            framework = None
    title = f"{one.name}: settings for the next run"
    return Result(
        tuning.tune_report(advice, one, framework),
        {"recommendation": tuning.of_recommendation(advice, framework)},
        lambda: tuning.picture(advice, one),
        title,
        skipped,
    )


def _ahead(whole: Run, arguments: argparse.Namespace):
    """The forecast of one run, from all of it or from its first part."""
    from jaxgrpo.errors import ForecastError
    from jaxgrpo.inference.forecast import forecast, stop_rule
    from jaxgrpo.report.forecasting import Ahead, to_logged_steps

    seen = whole if arguments.upto is None else whole.head(arguments.upto)
    schedule, end = None, None
    if len(seen) < len(whole):
        # The plan of a run was known before it ran: its length and its learning rates.
        end = float(whole.steps[-1])
        rates = whole.channels.get("learning_rate")
        if rates is not None and np.isfinite(rates).all() and rates.max() > 0:
            schedule = lambda step: np.interp(step, whole.steps, rates / rates.max())
    if arguments.horizon is not None:
        last = float(whole.logged_steps[-1])
        end = float(np.interp(arguments.horizon, whole.logged_steps, whole.steps))
        end += max(arguments.horizon - last, 0.0) * whole.steps_per_row
        if end <= seen.steps[-1]:
            raise ForecastError(
                f"{whole.name}: --horizon {arguments.horizon:g} is not beyond step {seen.logged_steps[-1]:g}, the last seen"
            )
    options: dict[str, Any] = {"horizon": end, "schedule": schedule, "bounds": arguments.bounds}
    made = forecast(seen, **options)
    decision = stop_rule(
        seen,
        gain=arguments.gain,
        within=arguments.within * whole.steps_per_row,
        chance=arguments.chance,
        patience=arguments.patience,
        **options,
    )
    return Ahead(made, to_logged_steps(whole, made.steps), whole, decision)


def _with_fitted_inertia(fit: "Fit") -> "Assessment | None":
    """Regime with the inertia that was fitted instead of the optimizer's, where the model has its own."""
    from jaxgrpo.report.assessment import assess
    from jaxgrpo.report.scenarios import with_inertia

    inertia = fit.parameters.get("inertial_time")
    if inertia is None:
        return None
    acting = with_inertia(fit.hyperparameters[0], np.asarray(inertia.value))
    return _checked(lambda: assess(acting, fit.task))


def _checked(make: Callable[[], Any]) -> Any:
    """Say what the theory refuses (a fractional async lag, say) as one line of the user's."""
    try:
        return make()
    except JaxgrpoError:
        raise
    except ValueError as error:
        reason = " ".join(str(error).split())
        name = reason.split(" ", 1)[0]
        if name in (*tables.SETTINGS, *_TASK_FIELDS):
            reason = reason.replace(name, "--" + name.replace("_", "-"), 1)
        raise JaxgrpoError(reason) from error


def _demo(arguments: argparse.Namespace) -> Result:
    from importlib.resources import as_file, files

    from jaxgrpo.inference.fit import fit

    folder = files("jaxgrpo") / "data"
    with (
        as_file(folder / "demo_trl_trainer_state.json") as log,
        as_file(folder / "demo_trl_config.json") as config,
    ):
        one = read_run(log, config=config)
        command = f"jaxgrpo fit {log} --config {config}"
    result = _fit_result([fit(one)], None, [])
    lines = f"This is what you get with: {command}"
    result.blocks.insert(1, tables.Paragraph(lines))
    if arguments.plot is None:
        arguments.plot = str(_free_name("jaxgrpo-demo", ".png"))
    return result


def _free_name(stem: str, ending: str) -> Path:
    """The first of stem, stem-2, stem-3... that is not taken in the current folder."""
    for number in itertools.count(1):
        path = Path(f"{stem}{'' if number == 1 else f'-{number}'}{ending}")
        if not path.exists():
            return path
    raise AssertionError


def _variants(arguments: argparse.Namespace) -> tuple[list[str], list[dict[str, Any]]]:
    """Names of the settings that were given, and every combination of their values."""
    lists: dict[str, list[Any]] = {}
    for name in tables.SETTINGS:
        values = getattr(arguments, name)
        if values is not None:
            lists[name] = list(dict.fromkeys(values))
            for value in lists[name]:
                check_settings({name: value})
    if arguments.convention is not None:
        lists["convention"] = [arguments.convention]
    combinations = [dict(zip(lists, values, strict=True)) for values in itertools.product(*lists.values())]
    return list(lists), combinations


def _label(changes: Mapping[str, Any], varied: Iterable[str]) -> str:
    words = [
        f"{tables.SETTINGS[name]} {tables.setting(changes[name])}"
        for name in varied
        if name in tables.SETTINGS and name in changes
    ]
    return ", ".join(words)


def _predict(arguments: argparse.Namespace) -> Result:
    if arguments.logs is None:
        return _predict_task(arguments)
    return _predict_log(arguments)


def _predict_task(arguments: argparse.Namespace) -> Result:
    """Predict a task that is described by options."""
    from jaxgrpo.report import scenarios as s

    names, combinations = _variants(arguments)
    task = _task(arguments)
    varied = [name for name in names if len({c[name] for c in combinations}) > 1]
    steps = s.even_steps(float(arguments.steps))
    predicted = []
    for changes in _progress(combinations, "predicting"):
        hyperparameters = _checked(lambda changes=changes: Hyperparameters(**changes))
        label = _label(changes, varied or ["learning_rate"])
        predicted.append(
            _checked(lambda h=hyperparameters, label=label: s.scenario_of_task(label, h, task, steps))
        )
    remarks = []
    if not arguments.rollout_noise:
        remarks.append("no --rollout-noise was given, so the bands have no width")
    details = [_task_line(arguments), _common_settings(predicted)]
    return _prediction_result(
        "Predicted runs", predicted, None, f"after {arguments.steps} optimizer steps", remarks, details
    )


def _task(arguments: argparse.Namespace):
    """The task that is described by options."""
    from jaxgrpo.theory.task import Task

    task = _checked(
        lambda: Task(
            curvature=arguments.curvature,
            plateau=arguments.plateau,
            initial_reward=arguments.initial_reward or 0.0,  # pyright: ignore[reportArgumentType]
            rollout_noise=arguments.rollout_noise or 0.0,  # pyright: ignore[reportArgumentType]
            force=_force(arguments),
            sharpness=arguments.sharpness,
        )
    )
    _check_rewards(arguments)
    return task


def _task_line(arguments: argparse.Namespace) -> str:
    """The same in words."""
    force = arguments.force or "harmonic"
    curvature, plateau, start = (
        tables.setting(value or 0.0)
        for value in (arguments.curvature, arguments.plateau, arguments.initial_reward)
    )
    return f"A task of curvature {curvature} ({force} force), plateau {plateau}, initial reward {start}."


def _check_rewards(arguments: argparse.Namespace) -> None:
    start, end, floor = arguments.initial_reward or 0.0, arguments.plateau, arguments.floor or 0.0
    if arguments.force in ("softmax", "mixed") and not min(floor, end) < start < max(floor, end):
        raise JaxgrpoError(
            f"--initial-reward {tables.setting(start)} must lie between --floor {tables.setting(floor)} "
            f"and --plateau {tables.setting(end)} for the {arguments.force} force"
        )


def _force(arguments: argparse.Namespace):
    from jaxgrpo.theory import forces

    normalisation = arguments.normalisation or "std"
    if arguments.force == "softmax":
        return forces.Softmax(normalisation, arguments.floor or 0.0)  # pyright: ignore[reportArgumentType]
    if arguments.force == "mixed":
        floor: Any = arguments.floor or 0.0
        return forces.MixedDifficulty(arguments.spread, normalisation, floor)
    return forces.Harmonic()


def _common_settings(predicted: Sequence[Any]) -> str:
    varied = tables.varied_settings(predicted)
    line = tables.settings_line(predicted[0].hyperparameters, without=varied)
    return f"All with {line}." if varied else line


def _fitted(arguments: argparse.Namespace, names: Sequence[str]) -> "Fit":
    """The fit of the one log whose task is wanted under other settings."""
    from jaxgrpo.inference.fit import fit

    own_settings = dict(arguments.log_setting)
    check_settings(own_settings)
    try:
        one = read_run(
            arguments.logs,
            own_settings or None,
            segment=arguments.segment or "longest",
            **_reading_options(arguments),
        )
    except ReadError as error:
        raise _in_option_words(error) from error
    if "learning_rate" in names and (
        one.hyperparameters is None or not float(one.hyperparameters.learning_rate) > 0
    ):
        raise ReadError(
            f"{arguments.logs}: its learning rate is not known, so that no other can be predicted; "
            "give --log-setting learning_rate=VALUE or --config FILE"
        )
    return fit(one, model=arguments.model, bounds=arguments.bounds)


def _predict_log(arguments: argparse.Namespace) -> Result:
    """Fit a log and predict its task under other settings."""
    from jaxgrpo.inference.models import MODELS, OPTIMIZER_MOMENTUM
    from jaxgrpo.report import scenarios as s

    names, combinations = _variants(arguments)
    fitted = _fitted(arguments, names)
    one = fitted.run
    last = float(arguments.steps) if arguments.steps else float(one.steps[-1])
    steps = s.even_steps(last)
    at_own = fitted.hyperparameters[0]

    def at(label: str, hyperparameters: Hyperparameters, is_own: bool = False) -> "Scenario":
        return _checked(
            lambda: s.scenario_of_fit(
                label, hyperparameters, fitted, steps, sharpness=arguments.sharpness, is_own=is_own
            )
        )

    own = at("as run", at_own, is_own=True)
    varied = [name for name in names if len({c[name] for c in combinations}) > 1] or names
    predicted = []
    for changes in _progress(combinations if names else [], "predicting"):
        hyperparameters = _checked(lambda changes=changes: s.with_settings(at_own, changes))
        label = _label(changes, varied) or "as given"
        predicted.append(at(label, hyperparameters))
    kept = [p for p in predicted if not _same(p.hyperparameters, own.hyperparameters)]
    own = dataclasses.replace(own, label=_own_label(own, kept))
    shown = sorted([own, *kept], key=lambda p: _order(p, kept))
    expected = fitted.predict(at_own, one.steps, schedule=fitted.schedule).mean
    agreement = s.r_squared(one.reward, expected)
    remarks = [
        f"At the run's own settings the same prediction explains the log with R² {agreement:.3f} (the fit: "
        f"{fitted.r_squared:.3f})."
    ]
    if fitted.task.reference_learning_rate is None and "learning_rate" in names:
        remarks.append(
            "One log has one learning rate: the force is taken to grow in proportion to the rate, and the "
            "bands at other rates hold what that leaves open (an exponent of 1, a factor of 1.6 either way)."
        )
    if "momentum" in names and MODELS[fitted.model].momentum != OPTIMIZER_MOMENTUM:
        remarks.append(
            f"The model '{fitted.title}' has its own inertia: another momentum changes regime and limits here, "
            "but not the course."
        )
    if "group_size" in names or "prompts_per_step" in names:
        remarks.append(
            "G and prompts per step change the noise; the plateau and the speed stay (to leading order)."
        )
    final = one.logged_steps[0] + last / one.steps_per_row
    end = f"step {tables.setting(round(float(final), 6))} of the log ({tables.setting(last)} optimizer steps)"
    details = [f"Fitted: {fitted.title}.", _common_settings(shown)]
    result = _prediction_result(
        f"{one.name}: the same task under other settings" if kept else f"{one.name}: predicted",
        shown,
        one,
        end,
        [*remarks, *fitted.warnings, *one.warnings],
        details,
    )
    return result


def _simulate(arguments: argparse.Namespace) -> Result:
    """Simulate a task, fitted to a log or described by options, under one or many settings."""
    from jaxgrpo.report import simulating
    from jaxgrpo.report.scenarios import with_inertia, with_settings

    names, combinations = _variants(arguments)
    acting, inertial = None, []
    if arguments.logs is None:
        task, schedule, name, remarks = _task(arguments), None, "Simulated runs", []
        settings = [_checked(lambda c=changes: Hyperparameters(**c)) for changes in combinations]
        steps, details = arguments.steps, [_task_line(arguments)]
        if not arguments.rollout_noise:
            remarks.append("no --rollout-noise was given, so all runs of a setting are alike")
    else:
        fitted = _fitted(arguments, names)
        task, schedule, name = fitted.task, fitted.schedule, f"{fitted.run.name}: simulated"
        if arguments.sharpness is not None:
            task = dataclasses.replace(task, sharpness=arguments.sharpness)
        own = fitted.hyperparameters[0]
        settings = [_checked(lambda c=changes: with_settings(own, c)) for changes in combinations]
        inertia = fitted.parameters.get("inertial_time")
        if inertia is not None:
            acting = [with_inertia(one, np.asarray(inertia.value)) for one in settings]
            if "momentum" in names:
                inertial.append(simulating.OWN_INERTIA)
        steps = arguments.steps or max(int(fitted.run.steps[-1]), 1)
        details = [f"Fitted: {fitted.title}."]
        remarks = [*inertial, simulating.OF_A_FIT, *fitted.warnings, *fitted.run.warnings]
    study = _checked(lambda: simulating.simulate_all(arguments, settings, acting, task, steps, schedule))
    varied = [n for n in names if n != "convention" and len({c[n] for c in combinations}) > 1]
    details.append(tables.settings_line(settings[0], without=varied))
    blocks = simulating.report(name, study, varied, details, remarks)
    return Result(blocks, simulating.as_data(study), lambda: simulating.draw(study, varied, name), name)


def _same(a: Hyperparameters, b: Hyperparameters) -> bool:
    return a.convention == b.convention and all(
        float(getattr(a, name)) == float(getattr(b, name)) for name in tables.SETTINGS
    )


def _own_label(own: Any, others: Sequence[Any]) -> str:
    varied = tables.varied_settings([own, *others])
    return _label({name: float(getattr(own.hyperparameters, name)) for name in varied}, varied) or "as run"


def _order(one: Any, others: Sequence[Any]) -> tuple[float, ...]:
    return tuple(float(getattr(one.hyperparameters, name)) for name in tables.SETTINGS)


def _prediction_result(title, predicted, one, end, remarks, details) -> Result:
    from jaxgrpo.report import data

    def draw():
        from jaxgrpo.report import plots

        return plots.prediction(predicted, one, title)

    blocks = tables.prediction_report(title, predicted, end, remarks, details)
    content = {"predictions": [data.of_scenario(p) for p in predicted], "remarks": list(remarks)}
    return Result(blocks, content, draw, title)


def _progress(items: Sequence[Any], what: str) -> Iterable[Any]:
    """The items, with a progress bar on a terminal where there are several."""
    bar = _progress_bar(len(items), what)
    if bar is None:
        return items
    return _advancing(items, bar)


def _advancing(items, bar):
    with bar:
        for item in items:
            yield item
            bar.update(1)


def _progress_bar(count: int, what: str):
    if count < 2 or not sys.stderr.isatty():
        return None
    from tqdm import tqdm

    return tqdm(total=count, desc=what, file=sys.stderr, leave=False)


def _say_aside(line: str) -> None:
    """One line on standard error."""
    print(text.for_encoding(text.clean(line), sys.stderr.encoding), file=sys.stderr)


def _write(arguments: argparse.Namespace, result: Result) -> None:
    """Write table, picture, page and JSON where they were asked for."""
    quiet = arguments.json == "-"
    written = []
    figure = result.draw() if arguments.plot or arguments.html else None
    if arguments.plot and figure is not None:
        _save(figure, Path(arguments.plot))
        written.append(f"Picture: {arguments.plot}")
    if arguments.html and figure is not None:
        from jaxgrpo.report.page import page

        picture = (result.title, _png(figure))
        document = page(result.title, result.blocks, [picture], f"Made by jaxgrpo {_version()}.")
        Path(arguments.html).write_text(document, encoding="utf-8")
        written.append(f"Page: {arguments.html}")
    if arguments.json is not None:
        content = {
            "jaxgrpo": _version(),
            "command": arguments.command,
            **result.data,
            "left_out": result.skipped,
        }
        encoded = json.dumps(jsonable(content), indent=1, allow_nan=False)
        if quiet:
            print(encoded)
        else:
            Path(arguments.json).write_text(encoded + "\n", encoding="utf-8")
            written.append(f"JSON: {arguments.json}")
    if quiet:
        for line in written:
            _say_aside(line)
        return
    width = min(max(shutil.get_terminal_size((100, 24)).columns, 40), 120)
    report = text.render(result.blocks, width)
    closing = "\n\n" + "\n".join(text.clean(line) for line in written) if written else ""
    print(text.for_encoding(report + closing, sys.stdout.encoding))


def _version() -> str:
    try:
        return version("jaxgrpo")
    except PackageNotFoundError:
        return "unknown"


def _save(figure: "Figure", path: Path) -> None:
    figure.savefig(path, format=path.suffix[1:].lower())


def _png(figure: "Figure") -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def jsonable(value: Any) -> Any:
    """Plain JSON of nested results: arrays as lists, what is not a finite number as null."""
    if isinstance(value, Mapping):
        return {str(key): jsonable(entry) for key, entry in value.items()}
    if isinstance(value, bool | str) or value is None:
        return value
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list | tuple | set | frozenset):
        return [jsonable(entry) for entry in value]
    if isinstance(value, Path):
        return str(value)
    array = np.asarray(value)
    if array.dtype == object:
        return str(value)
    return jsonable(array.tolist())
