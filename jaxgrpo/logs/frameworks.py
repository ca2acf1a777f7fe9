"""Training frameworks' settings to hyperparameters and back, schedules, and the scaling of advantages.

Settings may be nested (`{"actor": {"lr": 1e-6}}`), dotted (`{"actor.lr": 1e-6}`) or as on a command line
(`{"--actor.lr": "1e-6"}`); numbers may be text, as in YAML files that say `1e-6`.

What importance weighting leaves uncorrected of the lag (`Hyperparameters.staleness`) is a property of the
loss and its KL term, not a setting of any framework: it stays 1 when settings are read, and is not written.
"""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from jaxgrpo.errors import JaxgrpoError, ReadError
from jaxgrpo.logs.settings import Settings, as_number, as_text, flatten_settings
from jaxgrpo.logs.trainers import (
    FRAMEWORKS,
    NEMO_RL,
    NEMO_RL_MEGATRON,
    Dynamics,
    Framework,
    Normalisation,
    Numbers,
)
from jaxgrpo.theory.hyperparameters import Convention, Hyperparameters, register_framework


class ScheduleSettings(NamedTuple):
    """A learning-rate schedule as a framework's settings describe it, in optimizer steps.

    Args:
        name: Its Hugging Face name: `"constant"`, `"constant_with_warmup"`, `"linear"`, `"cosine"`, ...
        warmup_steps: Optimizer steps of linear warm-up, or None where only a ratio is given.
        warmup_ratio: Warm-up as a part of all steps, or None.
        total_steps: Optimizer steps of the whole schedule, or None where the settings do not say.
        end_ratio: Last learning rate over the peak, or None where the settings do not say.
    """

    name: str
    warmup_steps: float | None = None
    warmup_ratio: float | None = None
    total_steps: float | None = None
    end_ratio: float | None = None


_ALIASES = {alias: name for name, framework in FRAMEWORKS.items() for alias in (name, *framework.aliases)}


def framework_named(name: str) -> Framework:
    """The description of a framework.

    Args:
        name: Its name or one of its aliases; case, and `_` or `-`, do not matter.

    Returns:
        The description.

    Raises:
        ReadError: If the name is unknown; the message lists the known ones.
    """
    key = name.strip().lower().replace("_", "-").replace(" ", "-")
    if key not in _ALIASES:
        raise ReadError(f"unknown framework {name!r}; known are {', '.join(FRAMEWORKS)}")
    return FRAMEWORKS[_ALIASES[key]]


def detect_framework(settings: Mapping[str, Any]) -> str | None:
    """Tell the framework from its own setting names.

    Args:
        settings: Settings in any of the accepted shapes.

    Returns:
        The framework's name, or None if no setting is characteristic or two frameworks fit equally well.

    Example:
        >>> detect_framework({"num_generations": 8, "learning_rate": 1e-6})
        'trl'
    """
    return _detect(flatten_settings(settings))


def _detect(flat: Mapping[str, Any]) -> str | None:
    names = [name for name, value in flat.items() if value is not None]
    scores = {name: _score(framework.signature, names) for name, framework in FRAMEWORKS.items()}
    if not any(scores.values()):
        # Settings that stand one section deeper, in `config` or `training_args`.
        inner = [name.split(".", 1)[1] for name in names if "." in name]
        scores = {name: _score(framework.signature, inner) for name, framework in FRAMEWORKS.items()}
    families: dict[str, int] = {}
    for name, score in scores.items():
        family = FRAMEWORKS[name].family
        families[family] = families.get(family, 0) + score
    best = max(families.values())
    winners = [family for family, score in families.items() if score == best]
    if best == 0 or len(winners) > 1:
        return None
    # The later members of a family are told by keys that they alone have.
    return [name for name, score in scores.items() if score and FRAMEWORKS[name].family == winners[0]][-1]


def _score(signature: Iterable[str], names: Iterable[str]) -> int:
    """How many names match a signature: whole names, or beginnings that end in a dot or an underscore."""
    exact = set(signature)
    beginnings = tuple(entry for entry in exact if entry.endswith((".", "_")))
    return sum(name in exact or name.startswith(beginnings) for name in names)


def _open(framework: str, settings: Mapping[str, Any]) -> tuple[Framework, Settings]:
    """Settings ready to be read, after a check that they are the framework's own."""
    description = framework_named(framework)
    flat = flatten_settings(settings)
    detected = _detect(flat)
    notes: list[str] = []
    if detected is not None and FRAMEWORKS[detected].family != description.family:
        other = FRAMEWORKS[detected]
        if _score(description.signature, flat) == 0:
            telling = next(
                (name for name in flat if _score(other.signature, (name, name.split(".", 1)[-1]))), ""
            )
            raise ReadError(
                f"these settings look like {other.title}, not {description.title} (for example {telling!r}); "
                f"choose framework {other.name!r}"
            )
    elif detected not in (None, description.name, description.family):
        description = FRAMEWORKS[detected]
        notes.append("the settings say that it is this variant")
    opened = Settings(description.title, description.options, flat, notes=notes)
    if description is NEMO_RL and opened.flag("megatron"):
        opened = Settings(description.title, NEMO_RL_MEGATRON.options, flat, notes=notes)
    return description, opened


def _momentum(settings: Settings) -> tuple[float, Convention]:
    """Momentum and its convention from the optimizer's settings."""
    kind = (settings.text("optimizer") or "adamw").rsplit(".", 1)[-1].removeprefix("paged_")
    if kind.startswith("sgd"):
        extra = settings.find("optimizer_arguments")
        default = (
            settings.options["optimizer_arguments"].default
            if "optimizer_arguments" in settings.options
            else 0
        )
        for part in str(extra[1] if extra else default).replace(",", " ").split():
            key, _, value = part.rpartition("=")
            number = as_number(value)
            if key in ("", "momentum") and number is not None and 0 <= number < 1:
                return number, "heavy_ball"
        return 0.0, "heavy_ball"
    if kind.startswith("adafactor"):
        return 0.0, "ema"
    if "adam" not in kind:
        settings.notes.append(f"optimizer {kind[:40]!r} is treated like Adam")
    momentum = settings.number("momentum", below=1.0) if "momentum" in settings.options else None
    return (0.9 if momentum is None else momentum), "ema"


def settings_to_hyperparameters(
    framework: str, settings: Mapping[str, Any]
) -> tuple[Hyperparameters | None, list[str]]:
    """Turn a framework's settings into what moves the dynamics.

    Args:
        framework: The framework's name, such as `"trl"` or `"verl"`.
        settings: Its settings, nested, dotted or as on a command line.

    Returns:
        The hyperparameters, or None where the settings hold none of them or no learning rate can be had; and
        remarks: which defaults were assumed and what was decided.

    Raises:
        ReadError: If a value is unusable, settings contradict each other, or they are another framework's.

    Example:
        >>> hyperparameters, remarks = settings_to_hyperparameters(
        ...     "trl", {"learning_rate": 1e-6, "num_generations": 8, "steps_per_generation": 4})
        >>> print(float(hyperparameters.refresh_interval))
        4.0
    """
    description, opened = _open(framework, settings)
    title = description.title
    dynamics = description.read(opened)
    momentum, convention = _momentum(opened)
    # A schedule's peak is the learning rate, whatever stands beside it.
    peak = opened.number("peak") if "peak" in opened.options else None
    rate = opened.number("learning_rate") if peak is None else peak
    if not opened.found:
        return None, [f"{title}: the settings hold nothing that moves the dynamics"]
    remarks = [f"{title}: {note}" for note in opened.notes]
    if opened.assumed:
        listed = ", ".join(f"{name} = {value:g}" for name, value in opened.assumed.items())
        remarks.append(f"{title}: not among the settings, its defaults are assumed: {listed}")
    if rate is None:
        remarks.append(f"{title}: there is no learning rate among the settings, and no default for it")
        return None, remarks
    if dynamics.group_size < 2:
        remarks.append(
            f"{title}: {opened.name('group_size')} is 1, at which a group advantage does not exist; "
            "give the group size if it was another"
        )
    return Hyperparameters(rate, momentum, *dynamics, convention=convention), remarks


def _plain(value: Any, name: str) -> float:
    """One number from a leaf, without the digits that single precision adds: 1e-6 stays 1e-6."""
    array = np.asarray(value)
    if array.ndim:
        raise JaxgrpoError(f"{name} holds an array of shape {array.shape}; write one configuration at a time")
    return float(str(array[()]))


def hyperparameters_to_settings(framework: str, hyperparameters: Hyperparameters) -> dict[str, Any]:
    """Write hyperparameters as a framework's own settings.

    Batch sizes are those of one process without gradient accumulation; divide `per_device_train_batch_size`
    as the machine asks. `staleness` is a property of the loss, not a setting, and is not written.

    Args:
        framework: The framework's name.
        hyperparameters: One configuration.

    Returns:
        Option names -> values, whole numbers where the framework wants them.

    Raises:
        JaxgrpoError: If the framework cannot express the configuration; the message says which part.

    Example:
        >>> hyperparameters = Hyperparameters(1e-6, group_size=16, refresh_interval=4, prompts_per_step=32)
        >>> settings = hyperparameters_to_settings("verl", hyperparameters)
        >>> settings["data.train_batch_size"], settings["actor_rollout_ref.actor.ppo_mini_batch_size"]
        (128, 32)
    """
    description = framework_named(framework)
    if hyperparameters.convention != "ema":
        raise JaxgrpoError(
            f"{description.title} trains with Adam, whose momentum follows the 'ema' convention; "
            f"{hyperparameters.convention!r} cannot be expressed"
        )
    names = ("learning_rate", "momentum", *Dynamics._fields)
    values = {name: _plain(getattr(hyperparameters, name), name) for name in names}
    return description.write(Numbers(description.title, **values))


_SCHEDULE_NAMES = {
    "warmup_cosine_decay_schedule": "cosine",
    "cosine_decay_schedule": "cosine",
    "linear_schedule": "linear",
    "constant_schedule": "constant",
}


def learning_rate_schedule_settings(framework: str, settings: Mapping[str, Any]) -> ScheduleSettings | None:
    """Describe the learning-rate schedule that settings ask for.

    verl, NeMo RL and tinker-cookbook count schedules in sets of rollouts; the result is in optimizer steps.

    Args:
        framework: The framework's name.
        settings: Its settings.

    Returns:
        The schedule, or None where the settings say nothing of it.

    Raises:
        ReadError: As for `settings_to_hyperparameters`.

    Example:
        >>> settings = {"lr_scheduler_type": "cosine", "max_steps": 300}
        >>> schedule = learning_rate_schedule_settings("trl", settings)
        >>> schedule.name, schedule.total_steps
        ('cosine', 300.0)
    """
    description, opened = _open(framework, settings)
    scheduler = opened.find("scheduler")
    total = opened.optional_positive("total_steps")
    warmup_steps = opened.optional_positive("warmup_steps")
    warmup_ratio = opened.optional_positive("warmup_ratio")
    if scheduler is None and total is None and warmup_steps is None and warmup_ratio is None:
        return None
    if scheduler is None:
        name = description.default_schedule
    elif isinstance(scheduler[1], list | tuple | Mapping):
        name, warmup_steps = _torch_schedulers(scheduler[1])
    else:
        text = as_text(scheduler[1]).removeprefix("schedulertype.")
        name = _SCHEDULE_NAMES.get(text, text)
    if warmup_steps is not None and warmup_steps < 1:
        # Hugging Face reads a warm-up of less than one step as a ratio.
        warmup_steps, warmup_ratio = None, warmup_steps
    if name == "constant" and (warmup_steps or warmup_ratio):
        name = "constant_with_warmup"
    if description.schedule_in_rollouts:
        interval = description.read(opened).refresh_interval
        warmup_steps = None if warmup_steps is None else warmup_steps * interval
        total = None if total is None else total * interval
    if warmup_steps is not None:
        warmup_ratio = None
    return ScheduleSettings(name, warmup_steps, warmup_ratio, total, opened.optional_positive("end_ratio"))


def _torch_schedulers(entries: Any) -> tuple[str, float | None]:
    """Name and warm-up of a list of `torch.optim.lr_scheduler` entries, as NeMo RL has it."""
    warmup: float | None = None
    name = "constant"
    for entry in entries if isinstance(entries, list | tuple) else [entries]:
        if not isinstance(entry, Mapping):
            continue
        kind = str(entry.get("name", "")).rsplit(".", 1)[-1].lower()
        arguments = entry.get("kwargs")
        arguments = arguments if isinstance(arguments, Mapping) else {}
        start, end = as_number(arguments.get("start_factor")), as_number(arguments.get("end_factor"))
        if kind == "linearlr" and (start if start is not None else 1 / 3) < (end if end is not None else 1.0):
            warmup = as_number(arguments.get("total_iters"))
        elif kind in ("linearlr", "cosineannealinglr"):
            name = kind.removesuffix("lr").removesuffix("annealing")
    return name, warmup


def advantage_normalisation(framework: str, settings: Mapping[str, Any]) -> Normalisation:
    """Whether group advantages are divided by the group's standard deviation.

    TRL's `loss_type="dr_grpo"` concerns the length of completions; `scale_rewards` alone decides here.

    Args:
        framework: The framework's name.
        settings: Its settings.

    Returns:
        `"std"` if they are, `"mean"` if only the group's mean is subtracted (or all groups share one scale).

    Raises:
        ReadError: As for `settings_to_hyperparameters`.

    Example:
        >>> advantage_normalisation("verl", {"algorithm.norm_adv_by_std_in_grpo": False})
        'mean'
    """
    description, opened = _open(framework, settings)
    return description.normalisation(opened)


def optimizer_steps_per_row(framework: str, hyperparameters: Hyperparameters) -> float:
    """Optimizer steps that pass from one row of a framework's log to the next.

    Args:
        framework: The framework's name.
        hyperparameters: Those of the run.

    Returns:
        The refresh interval for frameworks that log once a set of rollouts, otherwise 1.
    """
    if framework_named(framework).row_is_rollout:
        return _plain(hyperparameters.refresh_interval, "refresh_interval")
    return 1.0


def _read_for_hyperparameters(name: str, settings: Mapping[str, Any]) -> Hyperparameters:
    """What `Hyperparameters.from_framework` calls: an error where there is nothing to read."""
    hyperparameters, remarks = settings_to_hyperparameters(name, settings)
    if hyperparameters is None:
        raise ReadError(remarks[-1])
    return hyperparameters


for _name in _ALIASES:
    register_framework(
        _name, partial(_read_for_hyperparameters, _name), partial(hyperparameters_to_settings, _name)
    )
