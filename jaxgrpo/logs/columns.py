"""What the frameworks call things: from a log's own column names to canonical ones."""

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from jaxgrpo.errors import ReadError
from jaxgrpo.logs.run import CHANNELS

_SEPARATORS = re.compile(r"[\s/\-.:]+")


def normal(name: str) -> str:
    """A column's name in lower case with every separator an underscore, so that spellings agree."""
    return _SEPARATORS.sub("_", name.strip().lower()).strip("_")


# In order of preference, in normal form: `critic/rewards/mean` and `critic_rewards_mean` are the same.
STEP = (
    "step global_step train_global_step trainer_global_step training_global_step training_step train_step "
    "system_step optimizer_step iteration iter update progress_batch progress_step batch rollout_batch "
    "current_step steps _step n_steps"
).split()
REWARD = (
    "reward train_reward critic_rewards_mean critic_reward_mean critic_score_mean env_all_reward_total "
    "reward_mean reward_total reward_avg mean_reward avg_reward average_reward rollout_reward_mean "
    "rollout_reward rollout_mean_reward train_reward_mean train_mean_reward train_avg_reward "
    "train_rewards_mean rewards_mean rewards_total_mean rewards_total reward_selected_mean "
    "reward_all_mean total_reward reward_reward_mean reward_score_mean mean_rewards avg_rewards "
    "env_reward_mean rollout_rewards_mean rewards "
    "rollout_raw_reward raw_reward_mean train_raw_reward mean_score score_mean train_score_mean "
    "batch_reward episode_reward"
).split()
EVAL_REWARD = (
    "eval_reward eval_rewards_mean eval_reward_mean eval_mean_reward validation_reward val_reward "
    "val_mean_reward val_reward_mean test_reward test_env_all_reward_total test_test_env_all_reward_total "
    "validation_accuracy val_accuracy val_acc eval_accuracy eval_acc test_accuracy test_acc test_reward_mean "
    "eval_score heldout_accuracy heldout_reward eval_env_all_reward_total eval_pass@1 test_pass@1"
).split()
_ALIASES: Mapping[str, Sequence[str]] = {
    "reward_std": (
        "reward_std train_reward_std rollout_reward_std std_reward rewards_std train_rewards_std "
        "reward_stddev critic_rewards_std critic_score_std rewards_total_std reward_selected_std "
        "group_reward_std_mean advantage_done_group_reward_std_mean mean_reward_std"
    ).split(),
    "kl": (
        "kl train_kl actor_kl_loss critic_kl train_kl_penalty kl_loss kl_div mean_kl kl_mean avg_kl kl_ref "
        "kl_policy_base actor_policykl optim_kl_sample_train_v1 train_policy_kl_error actor_ppo_kl "
        "mismatch_kl_mean rollout_corr_kl approx_kl avg_exact_kl approxkl actor_approxkl objective_kl"
    ).split(),
    "entropy": (
        "entropy train_entropy actor_entropy actor_entropy_loss optim_entropy policy_entropy "
        "train_approx_entropy entropy_avg avg_entropy mean_entropy entropy_mean token_entropy "
        "policy_entropy_mean"
    ).split(),
    "length": (
        "completions_mean_length train_completions_mean_length completion_length train_completion_length "
        "response_length_mean env_all_ac_tokens_per_turn train_mean_gen_tokens_per_sample avg_response_len "
        "mean_response_length train_mean_response_length avg_len mean_len response_length completion_len "
        "mean_completion_length completion_len_mean train_response_length "
        "avg_completion_length avg_length length_mean response_len "
        "rollout_partition_done_completion_length_mean rollout_done_completion_length_mean "
        "tokens_response_length"
    ).split(),
    "grad_norm": (
        "grad_norm train_grad_norm actor_grad_norm unclipped_grad_l2_mean gradient_norm "
        "actor_train_grad_norm l2_norm optim_grad_norm policy_grad_norm train_gradient_norm grad_l2 gnorm"
    ).split(),
    "learning_rate": (
        "learning_rate train_learning_rate train_actor_lr actor_lr actor_lr(1e_4) optim_lr train_lr lr "
        "learning_rate(param_group_1) actor_learning_rate policy_lr"
    ).split(),
    "zero_spread": (
        "frac_reward_zero_std train_frac_reward_zero_std advantage_done_zero_advantage_group_ratio "
        "zero_advantage_group_ratio advantage_zero_rate zvf frac_zero_std zero_std_frac frac_zero_variance "
        "train_frac_zero_std"
    ).split(),
    "clip_fraction": (
        "clip_ratio_region_mean train_clip_ratio_region_mean clip_ratio train_clip_ratio actor_pg_clipfrac "
        "actor_ppo_ratio_clipfrac actor_clipfrac train_clip_fraction clip_fraction clip_frac "
        "avg_clip_fraction train_clip_frac pg_clipfrac clipfrac"
    ).split(),
    "truncation": (
        "completions_clipped_ratio train_completions_clipped_ratio response_length_clip_ratio "
        "train_truncation_rate truncation_rate length_cap_hit_rate truncated_ratio truncation "
        "rollout_partition_done_completion_truncated_ratio rollout_done_completion_truncated_ratio"
    ).split(),
    "eval_reward": EVAL_REWARD,
    "loss": (
        "loss train_loss train_policy_loss actor_pg_loss training_loss policy_loss pg_loss rl_loss "
        "train_loss_mean actor_loss actor_total_loss"
    ).split(),
    "step_time": (
        "step_time train_step_time timing_s_step perf_time_per_step time_total timing_train_total_step_time "
        "step_elapsed_sec"
    ).split(),
    "num_tokens": "num_tokens train_num_tokens perf_total_num_tokens train_total_num_tokens".split(),
}
_VALIDATION = re.compile(
    r"^val_core_.+_(acc|reward|score)_(mean|best|maj)@\d+(_mean)?$|^val_(test_)?score_.+$"
)
_HELD_OUT = re.compile(r"(^|_)(eval|val|valid|validation|test|heldout|held_out|dev)(_|$)")
_STATISTIC = re.compile(
    r"(^|_)(std|stddev|var|variance|max|min|median|count|time|loss|weight|coef|s|num|n)(_|$)"
)

TRL_PART = re.compile(r"^(?:train/)?rewards\s?/\s?(.+?)(?:\s?/\s?mean)?$")
_OTHER_PART = (
    re.compile(r"^reward/(?!mean$|total$|std$|max$|min$|pass@)([^/]+)$"),
    re.compile(r"^env/all/(correct|format[^/]*)$"),
    re.compile(r"^mean_(.+_reward)$"),
    re.compile(
        r"^(?!mean_|avg_|total_|train_|eval_|val_|test_|batch_|raw_|timing_|time_)(\w+_reward)(?:_avg|_mean)?$"
    ),
    re.compile(r"^reward_data/(.+_reward)$"),
)
_NO_PART = re.compile(
    r"(_|^|/)(std|max|min|rate|advantage|failed|eligible|selected|count|entropy|rollout|mean_reward)(_|$|/)"
)


@dataclass
class Roles:
    """Which column plays which part.

    Attributes:
        reward: Column of the mean training reward.
        step: Column of the step, or `None` where rows are to be counted.
        channels: Canonical name to column.
        parts: Name of a reward's component to column.
        notes: One line for each decision.
    """

    reward: str
    step: str | None
    channels: dict[str, str] = field(default_factory=dict)
    parts: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def near(name: str, names: Iterable[str], count: int = 3) -> str:
    """The names that look most like one that does not exist, as a clause for a message."""
    names = list(names)
    lower = {}
    for candidate in names[:2000]:
        lower.setdefault(normal(candidate), candidate)
    close = [lower[match] for match in difflib.get_close_matches(normal(name)[:200], lower, count, 0.5)]
    inside = [candidate for candidate in names if normal(name) and normal(name) in normal(candidate)]
    found = list(dict.fromkeys(close + inside))[:count]
    if found:
        return "did you mean " + " or ".join(repr(match) for match in found) + "?"
    return "there are: " + listing(names)


def listing(names: Iterable[str], count: int = 12) -> str:
    """A list of names for a message, cut off when long."""
    names = [" ".join(name.split()) for name in names]
    names = [name if len(name) <= 60 else name[:57] + "..." for name in names]
    shown = ", ".join(names[:count]) or "none"
    return shown + (f" and {len(names) - count} more" if len(names) > count else "")


def find_roles(
    label: str,
    arrays: Mapping[str, np.ndarray],
    columns: Mapping[str, str] | None,
    has_step: Callable[[str], bool],
) -> Roles:
    """Decide what the columns of a log are.

    Args:
        label: The log's name, for messages.
        arrays: The columns.
        columns: The caller's own choice: canonical name to column.
        has_step: Whether a column can serve as the step.

    Returns:
        The roles.

    Raises:
        ReadError: If a chosen column does not exist, or no reward can be told.
    """
    chosen = dict(columns or {})
    for role, name in chosen.items():
        if role not in ("reward", "step", *CHANNELS):
            raise ReadError(
                f"{label}: {role!r} is no role a column can play; {near(role, ('reward', 'step', *CHANNELS))}"
            )
        if name not in arrays:
            raise ReadError(f"{label}: there is no column {name!r}; {near(name, arrays)}")
    by_normal: dict[str, str] = {}
    for name in arrays:
        by_normal.setdefault(normal(name), name)
    filled = {name for name, values in arrays.items() if np.isfinite(values).any()}
    notes: list[str] = []

    def first(aliases: Iterable[str]) -> str | None:
        found = [by_normal[alias] for alias in aliases if alias in by_normal]
        return next((name for name in found if name in filled), found[0] if found else None)

    reward = chosen.get("reward") or first(REWARD)
    if reward is None or (reward not in filled and "reward" not in chosen):
        reward = _unusual_reward(label, by_normal, filled, reward, notes)
    elif "reward" in chosen and _is_held_out(reward):
        notes.append(f"reward is the held-out series {reward!r}, as asked: not the reward of the rollouts")

    step = chosen.get("step")
    if step is None:
        step = next((by_normal[a] for a in STEP if a in by_normal and has_step(by_normal[a])), None)
    roles = Roles(reward, step, notes=notes)
    taken = {reward, step}
    for channel, aliases in _ALIASES.items():
        name = chosen.get(channel) or next(
            (by_normal[a] for a in aliases if by_normal.get(a) in filled and by_normal.get(a) not in taken),
            None,
        )
        if name is not None:
            roles.channels[channel] = name
    if "eval_reward" not in roles.channels:
        held_out = [by_normal[n] for n in by_normal if _VALIDATION.match(n) and by_normal[n] in filled]
        held_out = [name for name in held_out if name not in taken]
        if held_out:
            roles.channels["eval_reward"] = held_out[0]
            if len(held_out) > 1:
                notes.append(f"eval_reward is {held_out[0]!r}, the first of {len(held_out)} held-out series")
    taken |= set(roles.channels.values())
    for name in arrays:
        if name in taken or name not in filled:
            continue
        part = _part(name)
        if part is not None:
            roles.parts.setdefault(part, name)
    return roles


def _part(name: str) -> str | None:
    """The reward component that a column holds, if it holds one."""
    match = TRL_PART.match(name)
    if match:
        part = match.group(1)
        ends = (" / std", "/std", "/max", "/min", "_std")
        return None if part.endswith(ends) or part in ("mean", "std", "max", "min", "total_mean") else part
    if _HELD_OUT.search(normal(name)):
        return None
    for pattern in _OTHER_PART:
        match = pattern.match(name)
        if match and not _NO_PART.search(match.group(1)):
            return match.group(1)
    return None


def _is_held_out(name: str) -> bool:
    return bool(_HELD_OUT.search(normal(name)))


def _unusual_reward(
    label: str, by_normal: Mapping[str, str], filled: set[str], empty: str | None, notes: list[str]
) -> str:
    """The reward column of a log that does not call it by any usual name."""
    likely = [
        name
        for key, name in by_normal.items()
        if "reward" in key and name in filled and not _STATISTIC.search(key) and not _HELD_OUT.search(key)
    ]
    whole = [name for name in likely if normal(name).endswith(("reward", "reward_mean", "rewards_mean"))]
    only = likely if len(likely) == 1 else whole if len(whole) == 1 and len(likely) < 4 else []
    if only:
        notes.append(f"the reward is taken from {only[0]!r}, the one column that looks like it")
        return only[0]
    if likely:
        raise ReadError(
            f"{label}: which column is the reward? {listing(likely)} look like it; say so with reward=NAME"
        )
    if empty is not None:
        raise ReadError(f"{label}: the reward column {empty!r} holds no finite number on any row")
    held_out = [by_normal[a] for a in EVAL_REWARD if by_normal.get(a) in filled]
    held_out += [n for k, n in by_normal.items() if _VALIDATION.match(k) and n in filled]
    if held_out:
        notes.append(
            f"no training reward is logged: the held-out series {held_out[0]!r} is taken as the reward "
            f"(choose with reward=NAME)"
        )
        return held_out[0]
    names = [name for name in by_normal.values() if name in filled]
    raise ReadError(
        f"{label}: there is no reward column; the columns are {listing(names)}; name one with reward=NAME"
    )
