"""From a reader's table to runs: roles of columns, rows kept, segments, steps and hyperparameters."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from jaxgrpo.errors import JaxgrpoError, ReadError
from jaxgrpo.logs.columns import Roles, find_roles, listing, near, normal
from jaxgrpo.logs.run import Run
from jaxgrpo.logs.segments import Segment, find_segments, merge
from jaxgrpo.logs.settings import flatten_settings
from jaxgrpo.logs.table import Table
from jaxgrpo.theory.hyperparameters import Hyperparameters

_MAX_STEP = 1e12
"""A number from here on counts something else than steps."""

# What `Hyperparameters` assumes where nothing is known.
_MOMENTUM = 0.9
_GROUP_SIZE = 8


@dataclass
class Options:
    """What the caller wants of a log beyond its path; see `jaxgrpo.logs.read.read_run`."""

    hyperparameters: Hyperparameters | Mapping[str, Any] | None = None
    framework: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    segment: str | int = "longest"
    run: str | None = None
    config: str | Path | None = None
    steps_per_row: float | int | None = None


def assemble(table: Table, label: str, path: Path | None, options: Options) -> list[Run]:
    """Turn a table into the runs it holds.

    Args:
        table: What a reader found.
        label: The log's name, for messages.
        path: The log's path.
        options: The caller's wishes; `segment` says which of several segments to return.

    Returns:
        One run, or with `segment="all"` one per segment.

    Raises:
        ReadError: If there is no reward, or a choice does not exist.
    """
    notes = list(table.notes)
    table.notes = []
    arrays = table.arrays()
    notes += table.notes
    arrays = _without_empty(arrays, options, notes)

    def has_step(name: str) -> bool:
        values = arrays[name]
        values = values[np.abs(values) < _MAX_STEP]
        return len(values) > 0 and (len(values) == 1 or bool(values.max() > values.min()))

    roles = find_roles(label, arrays, options.columns, has_step)
    notes += roles.notes
    reward = arrays[roles.reward]
    trained = np.isfinite(reward)
    if not trained.any():
        raise ReadError(f"{label}: the reward column {roles.reward!r} holds no finite number on any row")
    if not trained.all():
        missing = int(np.isnan(reward).sum())
        infinite = int(np.isinf(reward).sum())
        if missing:
            notes.append(
                f"{missing} of {table.rows} rows have no reward (evaluation, summary, NaN) and are left out"
            )
        if infinite:
            notes.append(f"{infinite} rows with an infinite reward are dropped")
        # Lest it be merged into the reward of another row of its step.
        arrays[roles.reward] = np.where(trained, reward, np.nan)
    steps = _steps(table, roles, arrays, trained, notes)
    if roles.step is not None:
        trained = trained & (np.abs(steps) < _MAX_STEP)
    segments = find_segments(steps, trained, table.breaks)
    chosen = _choose(segments, trained, options.segment, label, notes)
    hyperparameters, interval = _hyperparameters(table, roles, arrays, label, options, notes)
    steps_per_row = _steps_per_row(table, interval, options, notes)
    runs = []
    for index, segment in chosen:
        run_notes = list(notes)
        name = table.name if len(chosen) == 1 else f"{table.name} [{index}]"
        runs.append(
            _run(
                segment,
                steps,
                trained,
                arrays,
                roles,
                run_notes,
                name=name,
                framework=table.framework,
                settings=table.settings,
                hyperparameters=hyperparameters,
                steps_per_row=steps_per_row,
                row_is_rollout=table.counts != "optimizer" and options.steps_per_row is None,
                path=path,
            )
        )
    return runs


def _without_empty(
    arrays: dict[str, np.ndarray], options: Options, notes: list[str]
) -> dict[str, np.ndarray]:
    """Leave out columns that are NaN throughout, but not those that somebody may ask for."""
    wanted = set(options.columns.values())
    empty = [
        name
        for name, values in arrays.items()
        if name not in wanted and "reward" not in normal(name) and bool(np.isnan(values).all())
    ]
    if empty:
        notes.append(f"columns without a number on any row are left out: {listing(empty, 6)}")
    return {name: values for name, values in arrays.items() if name not in empty}


def _steps(
    table: Table, roles: Roles, arrays: Mapping[str, np.ndarray], trained: np.ndarray, notes: list[str]
) -> np.ndarray:
    """The step of each row: the log's own, or a count of the training rows of each session."""
    if roles.step is not None:
        steps = arrays[roles.step]
        missing = int((trained & ~(np.abs(steps) < _MAX_STEP)).sum())
        if 2 * missing <= trained.sum():
            if missing:
                notes.append(f"{missing} rows have a reward but no step and are dropped")
            return steps
        roles.step = None
    notes.append("the log has no step: its rows are counted 1, 2, 3...")
    if not table.breaks:
        # Without steps a restart shows in what only ever grows within a session.
        for growing in ("num_tokens", "epoch"):
            name = next((n for n in arrays if normal(n) in (growing, "train_" + growing)), None)
            if name is None:
                continue
            index = np.flatnonzero(trained & np.isfinite(arrays[name]))
            back = np.flatnonzero(np.diff(arrays[name][index]) < 0) + 1
            table.breaks = [int(index[b]) for b in back]
            break
    session = np.searchsorted(
        np.asarray(sorted(table.breaks), dtype=np.int64), np.arange(table.rows), "right"
    )
    steps = np.zeros(table.rows)
    for number in np.unique(session):
        mask = session == number
        steps[mask] = np.maximum(np.cumsum(trained[mask]), 1.0)
    return steps


def _choose(
    segments: list[Segment], trained: np.ndarray, choice: str | int, label: str, notes: list[str]
) -> list[tuple[int, Segment]]:
    """The segments asked for, with their numbers from 1."""
    numbered = list(enumerate(segments, 1))
    sizes = [int(trained[segment.rows].sum()) for segment in segments]
    if isinstance(choice, str) and choice.lstrip("-").isdigit():
        choice = int(choice)
    if choice == "all":
        picked = numbered
        if len(segments) > 1:
            notes.append(f"the log holds {len(segments)} sessions of training ({_sizes(sizes)} points)")
        return picked
    if isinstance(choice, int):
        if not 1 <= choice <= len(segments):
            raise ReadError(
                f"{label}: there is no segment {choice}; the log holds {len(segments)}, from 1 on"
            )
        picked = numbered[choice - 1]
    elif choice == "first":
        picked = numbered[0]
    elif choice == "last":
        picked = numbered[-1]
    elif choice == "longest":
        # Of equally long ones the last: an author restarts because the earlier attempt went wrong.
        picked = max(numbered, key=lambda item: (sizes[item[0] - 1], item[0]))
    else:
        raise ReadError(
            f"{label}: segment must be 'longest', 'first', 'last', 'all' or a number, not {choice!r}"
        )
    if len(segments) > 1:
        notes.append(
            f"the log holds {len(segments)} sessions of training ({_sizes(sizes)} points): "
            f"number {picked[0]} is read; choose another with segment=NUMBER, or read_runs for all"
        )
    return [picked]


def _sizes(sizes: list[int]) -> str:
    shown = " + ".join(str(size) for size in sizes[:8])
    return shown + (" + ..." if len(sizes) > 8 else "")


def _run(
    segment: Segment,
    steps: np.ndarray,
    trained: np.ndarray,
    arrays: Mapping[str, np.ndarray],
    roles: Roles,
    notes: list[str],
    *,
    name: str,
    framework: str,
    settings: Mapping[str, Any],
    hyperparameters: Hyperparameters | None,
    steps_per_row: float,
    row_is_rollout: bool,
    path: Path | None,
) -> Run:
    """One run from the rows of one segment."""
    rows = segment.rows
    if segment.resumed:
        notes.append(
            f"training went on from a checkpoint at step {', '.join(f'{s:g}' for s in segment.resumed[:5])}: "
            f"{segment.replaced} rows of the abandoned attempt are dropped"
        )
    logged, merged, repeated = merge(steps[rows], trained[rows], {n: v[rows] for n, v in arrays.items()})
    if repeated:
        notes.append(f"{repeated} rows that repeat a step (micro-batches, restarts) are merged by their mean")
    channels = {channel: merged[name] for channel, name in roles.channels.items()}
    _interpret(channels, merged, roles, framework, settings, notes)
    held_out = roles.channels.get("eval_reward")
    if held_out is not None:
        lost = int(np.isfinite(arrays[held_out][rows]).sum() - np.isfinite(channels["eval_reward"]).sum())
        if lost > 0:
            notes.append(
                f"{lost} held-out values ({held_out}) are at steps without a training reward and left out"
            )
    taken = {roles.reward, roles.step, *roles.channels.values(), *roles.parts.values()}
    run = Run(
        steps=(logged - logged[0]) * steps_per_row,
        logged_steps=logged,
        reward=merged[roles.reward],
        channels=channels,
        parts={part: merged[column] for part, column in roles.parts.items()},
        extra={column: values for column, values in merged.items() if column not in taken},
        hyperparameters=hyperparameters,
        settings=settings,
        framework=framework,
        name=name,
        path=path,
        warnings=tuple(dict.fromkeys(" ".join(note.split()) for note in notes)),
        steps_per_row=steps_per_row,
        row_is_rollout=row_is_rollout,
    )
    late = hyperparameters is not None and float(np.max(np.asarray(hyperparameters.async_lag))) > 0
    return run.acting_under(hyperparameters) if late and hyperparameters is not None else run


def _interpret(
    channels: dict[str, np.ndarray],
    merged: Mapping[str, np.ndarray],
    roles: Roles,
    framework: str,
    settings: Mapping[str, Any],
    notes: list[str],
) -> None:
    """Bring channels whose meaning or unit differs between versions to a common one."""
    by_normal = {normal(name): name for name in merged}
    rate = roles.channels.get("learning_rate")
    if rate is not None and normal(rate).endswith("lr(1e_4)"):
        channels["learning_rate"] = channels["learning_rate"] * 1e-4
        notes.append(f"{rate} is in units of 1e-4 and has been converted")
    if "zero_spread" not in channels:
        _zero_spread(channels, merged, by_normal, notes)
    if framework == "trl" and "reward_std" in channels:
        notes.append(_meaning_of_reward_std(channels, merged, roles, settings))
    if "kl" in channels and normal(roles.channels["kl"]) in _KL_TO_SAMPLER:
        notes.append(
            f"kl is {roles.channels['kl']}: the distance to the policy that sampled, not to a reference"
        )


_KL_TO_SAMPLER = (
    "actor_ppo_kl",
    "approx_kl",
    "rollout_corr_kl",
    "actor_approxkl",
    "optim_kl_sample_train_v1",
    "train_policy_kl_error",
)


def _zero_spread(
    channels: dict[str, np.ndarray],
    merged: Mapping[str, np.ndarray],
    by_normal: Mapping[str, str],
    notes: list[str],
) -> None:
    """The fraction of groups without any spread, from what frameworks log in its place."""
    sums = (
        (("env_all_by_group_frac_all_good", "env_all_by_group_frac_all_bad"), 1.0),
        (("train_baseline_reward_pct_0", "train_baseline_reward_pct_1"), 0.01),
    )
    for names, unit in sums:
        if all(name in by_normal for name in names):
            columns = [by_normal[name] for name in names]
            channels["zero_spread"] = unit * (merged[columns[0]] + merged[columns[1]])
            notes.append(f"zero_spread is the sum of {' and '.join(columns)}")
            return
    name = by_normal.get("group_reward_all_zero_rate")
    if name is not None and np.isfinite(merged[name]).any():
        channels["zero_spread"] = merged[name]
        notes.append(
            f"zero_spread is {name}, which counts groups of zero reward only, not those of full reward"
        )


def _meaning_of_reward_std(
    channels: Mapping[str, np.ndarray],
    merged: Mapping[str, np.ndarray],
    roles: Roles,
    settings: Mapping[str, Any],
) -> str:
    """Which spread TRL's `reward_std` is: its meaning changed in version 0.27."""
    spread = channels["reward_std"]
    uniform = channels.get("zero_spread")
    batch = "reward_std is the spread over the whole batch, as TRL logs it from 0.27 on"
    group = "reward_std is the mean spread within a group, as TRL logged it up to 0.26"
    if uniform is not None:
        at_one = uniform >= 1.0 - 1e-9
        if at_one.any() and bool((spread[at_one] > 1e-6).any()):
            return f"{batch} (it is above zero where every group is uniform)"
    own = [
        n
        for n in merged
        if normal(n).startswith(("rewards_", "train_rewards_")) and normal(n).endswith("_std")
    ]
    if len(own) == 1:
        other = merged[own[0]]
        both = np.isfinite(other) & np.isfinite(spread)
        if both.any():
            if np.allclose(other[both], spread[both], rtol=1e-4, atol=1e-7):
                if bool((spread[both] > 0).any()):
                    return f"{batch} (it equals {own[0]})"
            elif bool((spread[both] < other[both] - 1e-6).any()):
                return f"{group} (it is below {own[0]}, the spread over the batch)"
    names = {normal(name).removeprefix("train_") for name in merged}
    if "completion_length" in names and "completions_mean_length" not in names:
        return f"{group} (the log has the older names)"
    return "the log does not tell whether reward_std is within groups (TRL up to 0.26) or over the batch"


def _config(options: Options, table: Table, label: str) -> tuple[str | None, dict[str, Any]]:
    """The framework and settings of the configuration file that the caller named."""
    if options.config is None:
        return None, {}
    from jaxgrpo.logs.config import read_config
    from jaxgrpo.logs.frameworks import FRAMEWORKS

    framework, settings = read_config(options.config)
    own = FRAMEWORKS.get(table.framework)
    if own is not None and framework in FRAMEWORKS and FRAMEWORKS[framework].family != own.family:
        raise ReadError(
            f"{options.config}: the configuration is for {framework}, but {label} is a log of "
            f"{table.framework}; give the configuration of the run that wrote the log"
        )
    return framework, settings


# Where a framework keeps the learning rate, which its logs tell even where they carry no settings.
_RATE = {
    "trl": "learning_rate",
    "verl": "actor_rollout_ref.actor.optim.lr",
    "nemo-rl": "policy.optimizer.kwargs.lr",
    "tinker-cookbook": "learning_rate",
}


def _hyperparameters(
    table: Table,
    roles: Roles,
    arrays: Mapping[str, np.ndarray],
    label: str,
    options: Options,
    notes: list[str],
) -> tuple[Hyperparameters | None, float | None]:
    """Merge what the log, the configuration and the caller say.

    Returns:
        The hyperparameters, if there is a learning rate; and the refresh interval, if it is known.
    """
    given = options.hyperparameters
    framework, settings = _config(options, table, label)
    if framework is not None:
        table.settings = _flat_merge(table.settings, settings)
        if table.framework not in _RATE:
            table.counts = "optimizer" if framework in ("trl", "unsloth", "ms-swift") else "rollout"
    if isinstance(given, Hyperparameters):
        return given, _scalar(given.refresh_interval)
    rate = _peak_rate(roles, arrays)
    base: Hyperparameters | None = None
    if table.settings:
        base, more = _from_settings(framework or table.framework, table.settings, rate)
        notes += more
        if base is not None and rate is not None:
            configured = _scalar(base.learning_rate)
            if configured is not None and configured > 0 and abs(np.log(rate / configured)) > 0.02:
                notes.append(
                    f"the settings' learning rate {configured:g} is not the largest one logged, {rate:g} (a warm-up that was "
                    "cut off, or settings of another run): that of the settings is taken"
                )
    known: dict[str, Any] = {name: value for name, value in table.known.items() if name in _FIELDS}
    if base is None and "learning_rate" not in known and rate is not None:
        known["learning_rate"] = rate
        notes.append(f"the learning rate {rate:g} is the largest in the log's own column")
    if base is None and "refresh_interval" not in known and table.counts == "rollout":
        updates = _updates_per_step(arrays, roles)
        if updates is not None:
            known["refresh_interval"] = updates
            notes.append(
                f"the gradient norm is logged {updates:g} times a step: {updates:g} optimizer steps a row"
            )
    if isinstance(given, Mapping):
        unknown = [name for name in given if name not in _FIELDS]
        if unknown:
            raise ReadError(f"{unknown[0]!r} is no hyperparameter; {near(str(unknown[0]), _FIELDS)}")
        known.update(given)
    if base is None and "learning_rate" not in known:
        if isinstance(given, Mapping) and given:
            raise ReadError(
                f"{label}: the log has no learning rate; give learning_rate with the hyperparameters"
            )
        return None, _scalar(known.get("refresh_interval"))
    fields = {name: getattr(base, name) for name in _FIELDS} if base is not None else {}
    try:
        merged = Hyperparameters(**(fields | known))
    except (ValueError, TypeError, OverflowError) as error:
        reason = " ".join(str(error).split())[:200]
        if isinstance(given, Mapping) and given:
            raise ReadError(f"{label}: the hyperparameters cannot be used: {reason}") from error
        notes.append(f"the log's hyperparameters cannot be used and are left out: {reason}")
        return None, None
    assumed = {"momentum": f"momentum {_MOMENTUM:g}", "group_size": f"group size {_GROUP_SIZE}"}
    missing = [text for name, text in assumed.items() if base is None and name not in known]
    if missing:
        notes.append(
            f"assumed, since the log does not tell: {', '.join(missing)} (give hyperparameters or config)"
        )
    has_interval = base is not None or "refresh_interval" in known
    return merged, _scalar(merged.refresh_interval) if has_interval else None


def _scalar(value: Any) -> float | None:
    """A single number to the six digits that a setting can mean, or `None`."""
    if value is None:
        return None
    values = np.asarray(value, dtype=np.float64).reshape(-1)
    return float(f"{values[0]:.6g}") if values.size == 1 and 0 < values[0] < _MAX_STEP else None


def _updates_per_step(arrays: Mapping[str, np.ndarray], roles: Roles) -> float | None:
    """Optimizer steps per step of the log, where the gradient norm, of which each has one, repeats steps."""
    norm = roles.channels.get("grad_norm")
    if norm is None or roles.step is None:
        return None
    steps = arrays[roles.step][np.isfinite(arrays[norm]) & np.isfinite(arrays[roles.step])]
    _, counts = np.unique(steps, return_counts=True)
    if len(counts) < 3:
        return None
    usual = int(np.median(counts))
    return float(usual) if usual > 1 and np.mean(np.abs(counts - usual) <= 1) >= 0.9 else None


_FIELDS = (
    "learning_rate",
    "momentum",
    "group_size",
    "refresh_interval",
    "prompts_per_step",
    "epochs_per_rollout",
    "async_lag",
    "staleness",
    "convention",
)


def _from_settings(
    framework: str, settings: Mapping[str, Any], rate: float | None
) -> tuple[Hyperparameters | None, list[str]]:
    """Convert a framework's settings, or say in a note why they could not be."""
    from jaxgrpo.logs.frameworks import FRAMEWORKS, settings_to_hyperparameters

    if framework not in FRAMEWORKS:
        return None, []
    try:
        name = _RATE.get(FRAMEWORKS[framework].family)
        if rate is not None and name is not None and flatten_settings(settings).get(name) is None:
            settings = _flat_merge(settings, {name: rate})
        hyperparameters, notes = settings_to_hyperparameters(framework, settings)
    except (JaxgrpoError, ValueError, TypeError, ArithmeticError, RecursionError) as error:
        return None, [
            f"the log's settings were not turned into hyperparameters: {' '.join(str(error).split())}"
        ]
    return hyperparameters, list(notes)


def _peak_rate(roles: Roles, arrays: Mapping[str, np.ndarray]) -> float | None:
    """The largest learning rate in the log."""
    column = roles.channels.get("learning_rate")
    if column is None:
        return None
    values = arrays[column]
    values = values[np.isfinite(values)]
    if len(values) == 0 or values.max() <= 0:
        return None
    return float(values.max()) * (1e-4 if normal(column).endswith("lr(1e_4)") else 1.0)


def _flat_merge(low: Mapping[str, Any], high: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by dotted name, with those of `high` in place of those of `low`."""
    return flatten_settings(low) | flatten_settings(high)


def _steps_per_row(table: Table, interval: float | None, options: Options, notes: list[str]) -> float:
    """Optimizer steps between two units of the log's step."""
    if options.steps_per_row is not None:
        value = float(options.steps_per_row)
        if not (math.isfinite(value) and value > 0):
            raise ReadError(f"steps_per_row must be a positive number, not {options.steps_per_row}")
        return value
    if table.counts == "optimizer":
        return 1.0
    if interval is not None:
        if interval != 1.0:
            notes.append(f"a row of the log is one set of rollouts: {interval:g} optimizer steps")
        return interval
    notes.append(
        "the number of optimizer steps per logged row is unknown: 1 is assumed "
        "(give refresh_interval or steps_per_row)"
    )
    return 1.0
