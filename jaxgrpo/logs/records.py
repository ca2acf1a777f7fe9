"""Logs that are a list of dictionaries, whatever file they came from."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jaxgrpo.logs.columns import normal
from jaxgrpo.logs.table import Table, records

_NAMES = ("run_name", "run_id", "run", "experiment", "exp_name")


def framework_of(names: Iterable[str]) -> str | None:
    """The framework whose names a log uses.

    Args:
        names: The log's column names.

    Returns:
        `"trl"`, `"verl"`, `"nemo-rl"`, `"openrlhf"`, `"prime-rl"`, `"tinker-cookbook"`, `"roll"`, or `None`.
    """
    keys = {normal(name) for name in names}
    plain = {key.removeprefix("train_") for key in keys}
    if "actor_ppo_ratio_clipfrac" in keys or ("actor_train_grad_norm" in keys and "system_step" in keys):
        return "roll"
    if {"critic_rewards_mean", "critic_score_mean"} & keys:
        return "verl"
    if {"train_baseline_reward_pct_mixed", "train_gen_kl_error", "train_mean_gen_tokens_per_sample"} & keys:
        return "nemo-rl"
    if {"train_actor_lr", "train_policy_loss"} <= keys:
        return "openrlhf"
    if "off_policy_mean" in keys and "reward_mean" in keys:
        return "prime-rl"
    if "env_all_reward_total" in keys or {"progress_done_frac", "progress_batch"} & keys:
        return "tinker-cookbook"
    if "reward" in plain and "reward_std" in plain:
        marks = (
            "completion_length",
            "completions_mean_length",
            "frac_reward_zero_std",
            "clip_ratio",
            "epoch",
        )
        if any(mark in plain for mark in marks) or any(key.startswith("rewards_") for key in plain):
            return "trl"
    return None


def read_records(rows: Sequence[Mapping[str, Any]], name: str, framework: str) -> list[Table]:
    """Make tables of a list of dictionaries: one, or one for each run that they name.

    Args:
        rows: The dictionaries.
        name: Name of the run, where the rows have none.
        framework: Name of the framework or format.

    Returns:
        The tables.
    """
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        progress = row.get("global_step/max_steps")
        if isinstance(progress, str) and "step" not in row:
            # ms-swift writes its step as "3/100".
            row = {**row, "step": progress.partition("/")[0]}
        own = next((row[key] for key in _NAMES if isinstance(row.get(key), str)), name)
        groups.setdefault(own[:200], []).append(row)
    if len(groups) > 1 and len(groups) * 2 > len(rows):
        # A different name on every row is no name of a run.
        groups = {name: list(rows)}
    counts = "optimizer" if framework == "trl" else "rollout"
    return [records(group, Table(own, framework, counts)) for own, group in groups.items()]
