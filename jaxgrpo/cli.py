"""The command `jaxgrpo`: options in, exit code out.

Only the standard library is imported here, so that help and mistyped options answer at once; the work is in
`jaxgrpo.report.jobs`, imported once the command line is known to be good.
"""

import argparse
import math
import os
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

FINE, BAD_INPUT, INTERRUPTED, BROKEN_PIPE = 0, 2, 130, 141

_MOST_VALUES = 200
# Simulated configurations share one program, so that there may be more of them.
_MOST_SIMULATED = 2000
_FORCES = ("harmonic", "softmax", "mixed")


class UsageError(Exception):
    """A command line that cannot be carried out; the message is one line."""


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, without the usage before it."""

    def __init__(self, *args: Any, **kwargs: Any):
        kwargs.setdefault("allow_abbrev", False)
        kwargs.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(*args, **kwargs)

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see {self.prog} --help)")


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text!r} is no finite number")
    return value


def _whole(text: str) -> int:
    value = _number(text)
    if value < 1 or value != int(value):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number above 0")
    return int(value)


def _seed(text: str) -> int:
    value = _number(text)
    if not 0 <= value < 2**32 or value != int(value):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 0 to 2^32 - 1")
    return int(value)


def _part(text: str) -> float:
    value = _number(text)
    if not 0.0 < value < 1.0:
        raise argparse.ArgumentTypeError(f"{text!r} is no part between 0 and 1")
    return value


def _values(text: str) -> list[float]:
    """Numbers separated by commas, and ranges such as `1e-6:1e-5:log5` or `1:16:lin4`."""
    values: list[float] = []
    for part in text.split(","):
        ends = part.split(":")
        if len(ends) == 1:
            values.append(_number(part))
            continue
        if len(ends) != 3 or ends[2][:3] not in ("log", "lin"):
            raise argparse.ArgumentTypeError(f"{part!r} is no range; write LOW:HIGH:logN or LOW:HIGH:linN")
        low, high, count = _number(ends[0]), _number(ends[1]), _whole(ends[2][3:])
        if count > _MOST_VALUES:
            raise argparse.ArgumentTypeError(f"{part!r} has {count} values; {_MOST_VALUES} are allowed")
        logarithmic = ends[2].startswith("log")
        if logarithmic and (low <= 0 or high <= 0):
            raise argparse.ArgumentTypeError(f"{part!r}: the ends of a logarithmic range must be above 0")
        shares = [i / max(count - 1, 1) for i in range(1, count - 1)]
        between = [low * (high / low) ** x if logarithmic else low + x * (high - low) for x in shares]
        # Three digits are what a person would type; the ends stay as they were typed.
        values += [low, *(float(f"{x:.3g}") for x in between), *([high] if count > 1 else [])]
    return values


def _bounds(text: str) -> tuple[float, float] | str | None:
    if text in ("none", "auto"):
        return None if text == "none" else text
    parts = text.split(",")
    if len(parts) != 2:
        raise argparse.ArgumentTypeError(f"{text!r} is neither LOW,HIGH nor none nor auto")
    low, high = (_number(part) for part in parts)
    if low >= high:
        raise argparse.ArgumentTypeError(f"{text!r}: the lower bound must be below the upper one")
    return low, high


def _mapping(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=THEIRS")
    return name, value


def _budget(text: str) -> tuple[float, str]:
    value = _number(text.removesuffix("x"))
    if value <= 0:
        raise argparse.ArgumentTypeError(f"{text!r}: a budget must be above 0")
    return value, "x" if text.endswith("x") else ""


def _range(text: str) -> tuple[str, tuple[float, float]]:
    name, value = _mapping(text)
    ends = value.split(":")
    if len(ends) != 2:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=LOW:HIGH")
    return name.replace("-", "_"), (_number(ends[0]), _number(ends[1]))


def _priced(text: str) -> tuple[str, float]:
    name, value = _mapping(text)
    return name, _number(value)


def _setting(text: str) -> tuple[str, float | str]:
    name, value = _mapping(text)
    name = name.replace("-", "_")
    return name, value if name == "convention" else _number(value)


SETTINGS = {
    "learning_rate": ("RATE", "the optimizer's (peak) learning rate"),
    "momentum": ("MU", "momentum, or Adam's beta1"),
    "group_size": ("G", "completions per prompt"),
    "refresh_interval": ("K", "optimizer steps on one set of rollouts"),
    "prompts_per_step": ("B", "prompts per optimizer step"),
    "epochs_per_rollout": ("I", "passes over the same mini-batches"),
    "async_lag": ("D", "further rollout sets by which the sampler trails"),
    "staleness": ("RHO", "part of the lag left uncorrected: 1 all of it, 0 none"),
}


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def _reading(framework: str = "--framework") -> _Parser:
    parser = _Parser(add_help=False)
    group = parser.add_argument_group("reading the log")
    group.add_argument(
        framework, dest="framework", metavar="NAME", help="what wrote the log, where it is not recognised"
    )
    group.add_argument(
        "--config", metavar="FILE", help="the framework's configuration, for the hyperparameters"
    )
    group.add_argument(
        "--column",
        metavar="NAME=THEIRS",
        type=_mapping,
        action="append",
        default=[],
        help="which column plays which part, such as reward=my_score or step=iteration; repeatable",
    )
    group.add_argument("--reward", metavar="COLUMN", help="short for --column reward=COLUMN")
    group.add_argument("--segment", metavar="WHICH", help="longest, first, last, all, or a number from 1")
    group.add_argument("--run", metavar="NAME", help="one of several runs in a file or folder")
    group.add_argument(
        "--steps-per-row", metavar="N", type=_number, help="optimizer steps to one step of the log"
    )
    return parser


def _settings(several: bool) -> _Parser:
    parser = _Parser(add_help=False)
    if several:
        words = "to predict for: a value, several as 1e-6,3e-6, or a range as 1e-6:1e-5:log5 or 1:16:lin4"
    else:
        words = "override what the log and --config say"
    group = parser.add_argument_group("hyperparameters", textwrap.fill(words, 76))
    for name, (metavar, words) in SETTINGS.items():
        group.add_argument(_option(name), metavar=metavar, type=_values if several else _number, help=words)
    group.add_argument(
        "--convention", choices=("ema", "heavy_ball"), help="momentum: ema as in Adam, or heavy_ball"
    )
    return parser


def _fitting() -> _Parser:
    parser = _Parser(add_help=False)
    group = parser.add_argument_group("fitting")
    group.add_argument(
        "--model",
        metavar="NAME",
        default="auto",
        help="auto (the most probable one), or a name such as first_order, second_order or mixed_std",
    )
    group.add_argument(
        "--bounds",
        metavar="LOW,HIGH",
        type=_bounds,
        default="auto",
        help="lowest and highest possible reward, or none (write --bounds=-1,1 for negative numbers)",
    )
    group.add_argument(
        "--sharpness", metavar="S", type=_number, help="top curvature, if it was measured; decides stability"
    )
    return parser


def _output() -> _Parser:
    parser = _Parser(add_help=False)
    group = parser.add_argument_group("output")
    group.add_argument("--plot", metavar="FILE", help="write a picture (.png, .pdf or .svg)")
    group.add_argument("--html", metavar="FILE", help="write a self-contained page with table and picture")
    group.add_argument(
        "--json",
        metavar="FILE",
        nargs="?",
        const="-",
        help="write JSON; to standard output, and nothing else there, if no file is named",
    )
    return parser


def _task_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--log-setting",
        metavar="NAME=VALUE",
        type=_setting,
        action="append",
        default=[],
        help="a hyperparameter of the run that wrote the log, such as group_size=16; repeatable",
    )
    task = parser.add_argument_group("the task, where there is no log")
    task.add_argument(
        "--curvature", metavar="KAPPA", type=_number, help="slope of the force per learning rate"
    )
    task.add_argument("--plateau", metavar="R", type=_number, help="reward that the run settles at")
    task.add_argument("--initial-reward", metavar="R", type=_number, help="reward at the start (0)")
    task.add_argument(
        "--rollout-noise", metavar="S", type=_number, help="standard deviation of one rollout's force (0)"
    )
    task.add_argument("--force", choices=_FORCES, help="shape of the force (harmonic)")
    task.add_argument(
        "--normalisation", choices=("std", "mean"), help="advantage of the softmax forces (std)"
    )
    task.add_argument("--floor", metavar="R", type=_number, help="reward of a failed completion (0)")
    task.add_argument("--spread", metavar="S", type=_number, help="spread of difficulty in logits (mixed)")


_LOG = "a log: a file, a folder, a gzip, or - for standard input"


def _add_tune(commands: Any) -> None:
    tune = commands.add_parser(
        "tune",
        usage="jaxgrpo tune [OPTION ...] LOG [LOG ...]",
        parents=[_reading("--log-framework"), _settings(several=False), _fitting(), _output()],
        help="recommend the settings of the next run",
        description="Recommend learning rate, momentum, group size and refresh interval for the next run on the\n"
        "same task, from one log or from several (which are then fitted jointly).",
        epilog="examples:\n"
        "  jaxgrpo tune trainer_state.json --config grpo.yaml --budget 1x --framework trl --plot tune.png\n"
        "  jaxgrpo tune run1.jsonl run2.jsonl --objective cost --target 0.7 --fix group_size=8\n"
        "Prices are the log's own timings in seconds where it has them; otherwise a rollout counts 1, training on\n"
        "one counts 0.5, a synchronisation 8.",
    )
    tune.add_argument("logs", metavar="LOG", nargs="+", help=_LOG)
    goal = tune.add_argument_group("what is wanted")
    goal.add_argument(
        "--budget",
        metavar="B",
        type=_budget,
        help="what may be spent, in the unit of the prices, or as a multiple of the log's own cost such as 2x (1x)",
    )
    goal.add_argument(
        "--objective",
        choices=("reward", "cost"),
        default="reward",
        help="most reward, or least cost to --target",
    )
    goal.add_argument(
        "--target", metavar="R", type=_number, help="reward to reach (95 %% of the way to the plateau)"
    )
    goal.add_argument(
        "--fix",
        metavar="NAME=VALUE",
        type=_setting,
        action="append",
        default=[],
        help="a setting to keep; repeatable",
    )
    goal.add_argument(
        "--range",
        metavar="NAME=LOW:HIGH",
        type=_range,
        action="append",
        default=[],
        help="range of a setting; repeatable",
    )
    goal.add_argument(
        "--hold-batch", action="store_true", help="change G at a constant batch, not constant prompts"
    )
    goal.add_argument(
        "--price",
        metavar="NAME=VALUE",
        type=_priced,
        action="append",
        default=[],
        help="price of a rollout, of an update (training on one rollout) or of a synchronisation; repeatable",
    )
    limits = tune.add_argument_group("limits (0 for none)")
    limits.add_argument(
        "--stable", metavar="P", type=_part, default=0.99, help="least probability of stability (0.99)"
    )
    limits.add_argument(
        "--rate-extrapolation",
        metavar="F",
        type=_number,
        default=3.0,
        help="largest rate over those that were run (3)",
    )
    limits.add_argument(
        "--beyond-stable",
        metavar="F",
        type=_number,
        default=3.0,
        help="largest share of the stability limit over what runs have survived (3)",
    )
    limits.add_argument(
        "--beyond-noise",
        metavar="F",
        type=_number,
        default=3.0,
        help="largest gradient noise over what was run (3)",
    )
    limits.add_argument("--damping-ratio", metavar="Z", type=_number, help="least damping ratio")
    limits.add_argument(
        "--largest-batch", metavar="N", type=_whole, help="most completions in an optimizer step"
    )
    tune.add_argument(
        "--framework",
        dest="settings_for",
        metavar="NAME",
        help="write the settings for trl, verl, openrlhf, nemo-rl, prime-rl... (that of the log)",
    )
    tune.add_argument("--certify", metavar="N", type=_whole, help="compare with a grid of N points a setting")


def build_parser() -> _Parser:
    """The parser of the whole command line."""
    parser = _Parser(
        prog="jaxgrpo",
        description="Predict GRPO training dynamics from the logs you already have.",
        epilog="Start with: jaxgrpo demo, then: jaxgrpo fit LOG --plot fit.png",
    )
    parser.add_argument("--version", action="store_true", help="show the version and exit")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")

    read = commands.add_parser(
        "read",
        usage="jaxgrpo read [OPTION ...] LOG [LOG ...]",
        parents=[_reading(), _settings(several=False), _output()],
        help="show what is read of logs",
        description="Show what is read of logs: points, steps, hyperparameters and their origin.",
    )
    read.add_argument("logs", metavar="LOG", nargs="+", help=_LOG)

    fit = commands.add_parser(
        "fit",
        usage="jaxgrpo fit [OPTION ...] LOG [LOG ...]",
        parents=[_reading(), _settings(several=False), _fitting(), _output()],
        help="fit the dynamics to logs",
        description="Fit the dynamics to a log and say what drove the run; several logs one by one.",
        epilog="example: jaxgrpo fit trainer_state.json --config grpo.yaml --plot fit.png",
    )
    fit.add_argument("logs", metavar="LOG", nargs="+", help=_LOG)
    how = fit.add_mutually_exclusive_group()
    how.add_argument("--joint", action="store_true", help="fit all logs jointly, as runs of one task")
    how.add_argument("--parts", action="store_true", help="fit the reward's parts one by one and sum them")

    predict = commands.add_parser(
        "predict",
        usage="jaxgrpo predict [OPTION ...] [LOG]",
        parents=[_reading(), _settings(several=True), _fitting(), _output()],
        help="predict the same task under other hyperparameters",
        description="Fit a log and predict its task under other hyperparameters; or, without a log,\n"
        "predict a task that is given by --curvature, --plateau and --initial-reward.",
        epilog="examples:\n"
        "  jaxgrpo predict state.json --learning-rate 1e-6:1e-5:log5 --plot rates.png\n"
        "  jaxgrpo predict --curvature 2e4 --plateau 0.8 --learning-rate 1e-6 --steps 300",
    )
    predict.add_argument("logs", metavar="LOG", nargs="?", help=_LOG)
    predict.add_argument(
        "--steps", metavar="N", type=_whole, help="optimizer steps to predict (as many as the log has)"
    )
    _task_options(predict)

    simulate = commands.add_parser(
        "simulate",
        usage="jaxgrpo simulate [OPTION ...] [LOG]",
        parents=[_reading(), _settings(several=True), _fitting(), _output()],
        help="simulate many runs of a task, for one or many settings",
        description="Simulate ensembles of runs by the update rule itself: of a task fitted to a log,\n"
        "or of one that is given by --curvature, --plateau and --initial-reward.",
        epilog="examples:\n"
        "  jaxgrpo simulate state.json --config grpo.yaml --group-size 4,16\n"
        "  jaxgrpo simulate --curvature 2e4 --plateau 0.8 --rollout-noise 2e4 \\\n"
        "    --steps 300 --learning-rate 1e-6:1e-4:log20 \\\n"
        "    --refresh-interval 1:16:lin16 --plot map.png",
    )
    simulate.add_argument("logs", metavar="LOG", nargs="?", help=_LOG)
    simulate.add_argument(
        "--steps", metavar="N", type=_whole, help="optimizer steps to simulate (as many as the log has)"
    )
    ensemble = simulate.add_argument_group("the ensemble")
    ensemble.add_argument(
        "--paths", metavar="N", type=_whole, default=1000, help="runs of each setting (1000)"
    )
    ensemble.add_argument("--seed", metavar="N", type=_seed, default=0, help="seed of the noise (0)")
    ensemble.add_argument(
        "--method",
        choices=("exact", "sde"),
        default="exact",
        help="the update rule itself, or the oscillator as a stochastic differential equation (exact)",
    )
    ensemble.add_argument(
        "--target",
        metavar="R",
        type=_number,
        help="reward whose first passage is timed (90 %% of the way up)",
    )
    ensemble.add_argument(
        "--bound",
        metavar="R",
        type=_number,
        help="distance from the plateau that counts as diverged (three times that of the start)",
    )
    ensemble.add_argument("--save", metavar="FOLDER", help="store the rewards of all runs, chunk by chunk")
    ensemble.add_argument(
        "--save-format", choices=("numpy", "parquet"), default="numpy", help="how to store them (numpy)"
    )
    ensemble.add_argument(
        "--memory", metavar="MIB", type=_whole, default=512, help="memory for results in progress (512)"
    )
    _task_options(simulate)

    forecast = commands.add_parser(
        "forecast",
        usage="jaxgrpo forecast [OPTION ...] LOG [LOG ...]",
        parents=[_reading(), _settings(several=False), _output()],
        help="say where a run in progress will end, and whether to stop it",
        description="Forecast the expected reward of a run that is still going on, with intervals.",
        epilog="examples:\n"
        "  jaxgrpo forecast trainer_state.json --horizon 500 --plot forecast.png\n"
        "  jaxgrpo forecast trainer_state.json --upto 0.5   (what half of it would have said)",
    )
    forecast.add_argument("logs", metavar="LOG", nargs="+", help=_LOG)
    forecast.add_argument(
        "--horizon",
        metavar="STEP",
        type=_number,
        help="step of the log at which the run is planned to end (half as long again as was seen)",
    )
    forecast.add_argument(
        "--upto",
        metavar="PART",
        type=_part,
        help="look at this part of the log only, and show what then happened",
    )
    forecast.add_argument(
        "--bounds",
        metavar="LOW,HIGH",
        type=_bounds,
        default="auto",
        help="lowest and highest possible reward, or none (write --bounds=-1,1 for negative numbers)",
    )
    rule = forecast.add_argument_group("when to stop")
    rule.add_argument(
        "--gain", metavar="R", type=_number, default=0.01, help="gain worth going on for (0.01)"
    )
    rule.add_argument(
        "--within", metavar="N", type=_number, default=200.0, help="steps of the log to gain it in (200)"
    )
    rule.add_argument(
        "--chance", metavar="P", type=_number, default=0.05, help="least chance worth going on for (0.05)"
    )
    rule.add_argument(
        "--patience",
        metavar="N",
        type=_whole,
        default=1,
        help="rows in a row at which the rule must hold (1)",
    )

    _add_tune(commands)

    demo = commands.add_parser(
        "demo",
        usage="jaxgrpo demo [OPTION ...]",
        parents=[_output()],
        help="fit a log that ships with the package",
        description="Fit a log that ships with the package (a small TRL run) and draw the picture\n"
        "jaxgrpo-demo.png in the current folder.",
    )
    del demo
    return parser


TASK_OPTIONS = (
    "curvature",
    "plateau",
    "initial_reward",
    "rollout_noise",
    "force",
    "normalisation",
    "floor",
    "spread",
)


def _check(arguments: argparse.Namespace) -> None:
    """Refuse options that do not go together, and outputs that would destroy something."""
    if arguments.command in ("predict", "simulate"):
        name_of_command = arguments.command
        given = [name for name in TASK_OPTIONS if getattr(arguments, name) is not None]
        if arguments.logs is not None and given:
            raise UsageError(
                f"{_option(given[0])} describes a task without a log; leave out either it or the log"
            )
        if arguments.logs is None:
            hint = _swallowed(arguments)
            if not given:
                raise UsageError(
                    f"{name_of_command} needs a LOG, or --curvature, --plateau and --learning-rate{hint}"
                )
            for name in ("curvature", "plateau", "learning_rate", "steps"):
                if getattr(arguments, name) is None:
                    raise UsageError(f"without a log {name_of_command} needs {_option(name)} as well{hint}")
            if arguments.force == "mixed" and arguments.spread is None:
                raise UsageError("--force mixed needs --spread, the spread of difficulty in logits")
            if arguments.spread is not None and arguments.force != "mixed":
                raise UsageError("--spread goes with --force mixed only")
            reading = ("framework", "config", "reward", "segment", "run", "steps_per_row")
            for name in (*reading, *(["column"] if arguments.column else [])):
                if getattr(arguments, name) is not None:
                    raise UsageError(f"{_option(name)} is about a log, and there is none")
        count = 1
        for name in SETTINGS:
            count *= len(getattr(arguments, name) or [None])
        most = _MOST_VALUES if name_of_command == "predict" else _MOST_SIMULATED
        if count > most:
            verb = "predicted" if name_of_command == "predict" else "simulated"
            raise UsageError(f"these are {count} combinations; at most {most} are {verb} at once")
        if arguments.segment == "all":
            raise UsageError(f"--segment all gives several runs; {name_of_command} needs one")
    _check_outputs(arguments)


def _swallowed(arguments: argparse.Namespace) -> str:
    """A hint where --json has taken the log's path for its file."""
    named = arguments.json not in (None, "-")
    return f"; --json took {arguments.json!r} as its FILE, so put LOG before --json" if named else ""


def _inputs(arguments: argparse.Namespace) -> list[Path]:
    logs = getattr(arguments, "logs", None) or []
    named = [logs] if isinstance(logs, str) else list(logs)
    if getattr(arguments, "config", None):
        named.append(arguments.config)
    return [Path(name) for name in named if name != "-"]


def _check_outputs(arguments: argparse.Namespace) -> None:
    outputs = {"--plot": arguments.plot, "--html": arguments.html, "--json": arguments.json}
    outputs = {option: Path(name) for option, name in outputs.items() if name is not None}
    if outputs.get("--json") == Path("-"):
        del outputs["--json"]
    inputs = _inputs(arguments)
    seen: dict[Path, str] = {}
    for option, path in outputs.items():
        if path.is_dir():
            raise UsageError(f"{option} {path}: is a folder; name a file")
        if not path.absolute().parent.is_dir():
            raise UsageError(f"{option} {path}: there is no folder {path.parent}")
        resolved = path.resolve()
        if resolved in seen:
            raise UsageError(f"{option} {path}: is also the file of {seen[resolved]}")
        seen[resolved] = option
        for source in inputs:
            own = source.resolve()
            if resolved == own or (path.exists() and own in resolved.parents):
                raise UsageError(f"{option} {path}: is one of the inputs, which are never overwritten")
            if path.exists() and source.exists() and os.path.samefile(path, source):
                raise UsageError(f"{option} {path}: is one of the inputs, which are never overwritten")
    picture = outputs.get("--plot")
    if picture is not None and picture.suffix.lower() not in (".png", ".pdf", ".svg"):
        raise UsageError(f"--plot {picture}: the name must end in .png, .pdf or .svg")
    # `--json LOG` with a forgotten FILE would otherwise replace a log.
    table = outputs.get("--json")
    if table is not None and table.exists() and not _is_own_json(table):
        raise UsageError(
            f"--json {table}: exists and was not written by jaxgrpo, so it is left alone; name another file"
        )


def _is_own_json(path: Path) -> bool:
    """Whether an existing file is empty or was written by an earlier --json."""
    with path.open("rb") as file:
        start = file.read(64).decode("utf-8", "replace")
    return not start.strip() or "".join(start.split()).startswith('{"jaxgrpo":')


def prepare_jax() -> None:
    """Double precision, a compilation cache that outlives the process, and no grip on a busy accelerator.

    Only the command does this; the library leaves JAX as it finds it. Fits of single runs are small: they run
    on the CPU unless JAX_PLATFORMS says otherwise, so that a GPU in use for training is not touched.
    """
    if "jax" not in sys.modules:
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
    import jax

    jax.config.update("jax_enable_x64", True)
    if os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        return
    home = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(home) if os.path.isabs(home) else Path(os.path.expanduser("~")) / ".cache"
    folder = base / "jaxgrpo" / "compiled"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return
    if os.access(folder, os.W_OK | os.X_OK):
        jax.config.update("jax_compilation_cache_dir", str(folder))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_raise_persistent_cache_errors", False)


def _one_line(error: BaseException) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror or 'cannot be used'}"
    return " ".join(str(error).split()) or type(error).__name__


def _fail(message: str) -> int:
    encoding = getattr(sys.stderr, "encoding", None) or "ascii"
    # A name from a log may hold anything; a terminal must get none of its control characters.
    safe = "".join(c if c.isprintable() else "?" for c in message)
    sys.stderr.write(f"jaxgrpo: error: {safe.encode(encoding, 'replace').decode(encoding)}\n")
    return BAD_INPUT


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        argv: Its arguments; those of the process by default.

    Returns:
        The exit code: 0 fine, 2 bad input.
    """
    from jaxgrpo.errors import JaxgrpoError

    try:
        parser = build_parser()
        arguments = parser.parse_args(argv)
        if arguments.version:
            from importlib.metadata import version

            print(f"jaxgrpo {version('jaxgrpo')}")
            return FINE
        if arguments.command is None:
            parser.print_help()
            return FINE
        _check(arguments)
        prepare_jax()
        from jaxgrpo.report import jobs

        code = jobs.run(arguments)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # Whoever reads has left; do not complain about it while the interpreter closes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except KeyboardInterrupt:
        return INTERRUPTED
    except (UsageError, JaxgrpoError, OSError) as error:
        return _fail(_one_line(error))


if __name__ == "__main__":
    sys.exit(main())
