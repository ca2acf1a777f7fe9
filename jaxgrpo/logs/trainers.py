r"""Training frameworks described: where their settings stand, and what these mean for the dynamics.

One `Framework` describes one trainer: the names of its settings, what it takes where they are missing, and
how they combine into the refresh interval $K$, the prompts per optimizer step $B$, the passes over the same
mini-batches $I$ and the lag $d$ of the sampler in sets of rollouts. One description serves both directions.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from jaxgrpo.errors import JaxgrpoError, ReadError
from jaxgrpo.logs.settings import FALSE, TRUE, Option, Settings, option

Normalisation = Literal["std", "mean"]


class Dynamics(NamedTuple):
    """What a framework's settings come to, in plain numbers."""

    group_size: float
    refresh_interval: float
    prompts_per_step: float
    epochs_per_rollout: float
    async_lag: float


@dataclass(frozen=True)
class Numbers:
    """Hyperparameters as plain numbers while they are written as one framework's settings."""

    title: str
    learning_rate: float
    momentum: float
    group_size: float
    refresh_interval: float
    prompts_per_step: float
    epochs_per_rollout: float
    async_lag: float

    def whole(self, value: float | int, what: str) -> int:
        """A whole number, or an error that says what would have to be one."""
        nearest = round(value)
        if nearest < 1 or abs(value - nearest) > 1e-5 * abs(value):
            self.refuse(what, value, "it must be a whole number of at least 1")
        return nearest

    def refuse(self, what: str, value: float | int, why: str) -> None:
        """Say that the framework cannot express something."""
        raise JaxgrpoError(f"{self.title} cannot express {what} = {value:g}: {why}")

    def once(self) -> None:
        """Refuse several passes over the same mini-batches."""
        if self.epochs != 1:
            self.refuse("epochs_per_rollout", self.epochs, "it goes over each mini-batch once")

    def synchronous(self, hint: str = "") -> None:
        """Refuse an asynchronous lag."""
        if self.async_lag > 1e-9:
            self.refuse("async_lag", self.async_lag, "it samples synchronously" + hint)

    @property
    def group(self) -> int:
        """Completions per prompt."""
        size = self.whole(self.group_size, "group_size")
        if size < 2:
            self.refuse("group_size", size, "one completion leaves no group advantage")
        return size

    @property
    def epochs(self) -> int:
        """Passes over the same mini-batches."""
        return self.whole(self.epochs_per_rollout, "epochs_per_rollout")

    @property
    def minibatches(self) -> int:
        """Fresh mini-batches per set of rollouts."""
        interval = self.whole(self.refresh_interval, "refresh_interval")
        return self.whole(interval / self.epochs, "refresh_interval / epochs_per_rollout")

    @property
    def prompts(self) -> int:
        """Prompts per optimizer step."""
        return self.whole(self.prompts_per_step, "prompts_per_step")

    @property
    def prompts_per_rollout(self) -> int:
        """Prompts per set of rollouts."""
        return self.whole(self.prompts_per_step * self.minibatches, "prompts per set of rollouts")

    @property
    def completions(self) -> int:
        """Completions per optimizer step."""
        return self.whole(self.prompts_per_step * self.group_size, "prompts_per_step x group_size")

    @property
    def whole_lag(self) -> int:
        """The lag in whole sets of rollouts."""
        return 0 if self.async_lag < 1e-9 else self.whole(self.async_lag, "async_lag")


@dataclass(frozen=True)
class Framework:
    """How one trainer names its settings and combines them.

    Args:
        name: The name used in this package.
        title: The name its authors use.
        options: Quantity -> setting.
        signature: Names (or beginnings of names, ending in a dot) by which its settings are recognised.
        read: Settings -> dynamics.
        write: Numbers -> settings; see `hyperparameters_to_settings`.
        normalisation: Settings -> how group advantages are scaled.
        aliases: Further names of the same description.
        family: Frameworks of one family share a configuration format and are told apart by single keys.
        schedule_in_rollouts: Whether its schedules count sets of rollouts instead of optimizer steps.
        row_is_rollout: Whether a row of its logs is one set of rollouts (otherwise one optimizer step).
        default_schedule: The schedule it follows where nothing is said.
    """

    name: str
    title: str
    options: Mapping[str, Option]
    signature: tuple[str, ...]
    read: Callable[[Settings], Dynamics]
    write: Callable[[Numbers], dict[str, Any]]
    normalisation: Callable[[Settings], Normalisation]
    aliases: tuple[str, ...] = ()
    family: str = ""
    schedule_in_rollouts: bool = False
    row_is_rollout: bool = False
    default_schedule: str = "constant"


def _note_estimator(settings: Settings, not_group: tuple[str, ...]) -> None:
    """Remark on advantages that are not relative to a group."""
    estimator = settings.text("estimator")
    if estimator in not_group:
        settings.notes.append(
            f"{settings.name('estimator')} = {estimator}: advantages are not relative to a group, "
            "so that the theory of GRPO holds only roughly"
        )


# TRL, and the trainers that take its arguments


def _read_trl(settings: Settings) -> Dynamics:
    group = settings.count("group_size")
    device, accumulation = settings.count("device_batch"), settings.count("accumulation")
    iterations = settings.count("iterations")
    processes = settings.optional_count("processes")
    per_generation = settings.optional_count("steps_per_generation")
    generated = settings.optional_count("generation_batch")
    if processes is None and generated is not None and per_generation is not None:
        # A log carries all three, which gives the number of processes that none of them says.
        processes = generated / (device * per_generation)
        if processes < 1 or processes != round(processes):
            raise ReadError(
                f"{settings.title} settings contradict each other: {settings.name('generation_batch')} is no "
                f"multiple of {settings.name('device_batch')} x {settings.name('steps_per_generation')}"
            )
    if processes is None:
        processes = 1.0
        settings.notes.append("one process is assumed, since the settings do not give their number")
    if per_generation is None:
        per_generation = accumulation if generated is None else generated / (device * processes)
    minibatches = per_generation / accumulation
    if minibatches < 1.0:
        settings.notes.append(
            f"{settings.name('steps_per_generation')} is less than {settings.name('accumulation')}: several "
            "sets of rollouts enter one optimizer step"
        )
        minibatches = 1.0
    prompts = device * processes * accumulation / group
    return Dynamics(group, minibatches * iterations, prompts, iterations, 0.0)


def _write_trl(numbers: Numbers) -> dict[str, Any]:
    numbers.synchronous()
    return {
        "learning_rate": numbers.learning_rate,
        "adam_beta1": numbers.momentum,
        "num_generations": numbers.group,
        "per_device_train_batch_size": numbers.completions,
        "gradient_accumulation_steps": 1,
        "steps_per_generation": numbers.minibatches,
        "num_iterations": numbers.epochs,
    }


def _trl_normalisation(settings: Settings) -> Normalisation:
    scale = settings.text("scale_rewards") or "group"
    if scale in ("group", *TRUE):
        return "std"
    # A batch-wide deviation scales all groups alike, which leaves the shape of the mean-only force.
    if scale in ("batch", *FALSE):
        return "mean"
    name = settings.name("scale_rewards")
    raise ReadError(f"{settings.title} setting {name} must be group, batch or none, got {scale[:40]!r}")


_TRL = Framework(
    name="trl",
    title="TRL",
    family="trl",
    aliases=("huggingface", "open-r1"),
    options={
        "learning_rate": option("learning_rate", 1e-6),
        "momentum": option("adam_beta1", 0.9),
        "optimizer": option("optim"),
        "optimizer_arguments": option("optim_args"),
        "group_size": option("num_generations", 8),
        "device_batch": option("per_device_train_batch_size", 8),
        "accumulation": option("gradient_accumulation_steps", 1),
        "processes": option("num_processes world_size nproc_per_node"),
        "steps_per_generation": option("steps_per_generation"),
        "generation_batch": option("generation_batch_size"),
        "iterations": option("num_iterations", 1),
        "scale_rewards": option("scale_rewards"),
        "scheduler": option("lr_scheduler_type"),
        "warmup_steps": option("warmup_steps"),
        "warmup_ratio": option("warmup_ratio"),
        "total_steps": option("max_steps"),
    },
    signature=tuple(
        "num_generations steps_per_generation generation_batch_size num_iterations scale_rewards "
        "per_device_train_batch_size gradient_accumulation_steps max_completion_length lr_scheduler_type "
        "adam_beta1 epsilon_high".split()
    ),
    read=_read_trl,
    write=_write_trl,
    normalisation=_trl_normalisation,
    default_schedule="linear",
)
_MS_SWIFT = replace(
    _TRL,
    name="ms-swift",
    title="ms-swift",
    aliases=("swift",),
    options={**_TRL.options, "learning_rate": option("learning_rate", 1e-4)},
    signature=("rlhf_type", "train_type", "tuner_type", "external_plugins"),
    default_schedule="cosine",
)
_UNSLOTH = replace(
    _TRL,
    name="unsloth",
    title="Unsloth",
    aliases=(),
    options={**_TRL.options, "learning_rate": option("learning_rate", 5e-5)},
    signature=("unsloth_num_chunks", "unsloth_grpo_mini_batch", "unsloth_logit_chunk_multiplier"),
)


# verl, synchronous and fully asynchronous

_VERL_NOT_GROUP = ("gae", "remax", "reinforce_plus_plus")


def _read_verl(settings: Settings) -> Dynamics:
    group = settings.count("group_size")
    _note_estimator(settings, _VERL_NOT_GROUP)
    batch, epochs = settings.count("train_batch"), settings.count("epochs")
    minibatches = settings.minibatches(batch / settings.count("minibatch"), "train_batch", "minibatch")
    return Dynamics(group, minibatches * epochs, batch / minibatches, epochs, 0.0)


def _write_verl(numbers: Numbers) -> dict[str, Any]:
    numbers.synchronous("; verl-fully-async does not")
    return {
        "algorithm.adv_estimator": "grpo",
        "data.train_batch_size": numbers.prompts * numbers.minibatches,
        "actor_rollout_ref.rollout.n": numbers.group,
        "actor_rollout_ref.actor.optim.lr": numbers.learning_rate,
        "actor_rollout_ref.actor.optim.betas": [numbers.momentum, 0.999],
        "actor_rollout_ref.actor.ppo_mini_batch_size": numbers.prompts,
        "actor_rollout_ref.actor.ppo_epochs": numbers.epochs,
    }


def _verl_normalisation(settings: Settings) -> Normalisation:
    if settings.text("estimator") in ("rloo", "rloo_vectorized", "opo"):
        return "mean"
    return "std" if settings.flag("normalise") else "mean"


_ACTOR = "actor_rollout_ref.actor."
_VERL = Framework(
    name="verl",
    title="verl",
    family="verl",
    options={
        "learning_rate": option(f"{_ACTOR}optim.lr actor.optim.lr", 1e-6),
        "momentum": option(f"{_ACTOR}optim.betas actor.optim.betas", 0.9, first=True),
        "optimizer": option(f"{_ACTOR}optim.optimizer"),
        "group_size": option("actor_rollout_ref.rollout.n rollout.n", 1),
        "train_batch": option("data.train_batch_size train_batch_size", 1024),
        "minibatch": option(
            f"{_ACTOR}ppo_mini_batch_size actor.ppo_mini_batch_size ppo_mini_batch_size", 256
        ),
        "epochs": option(f"{_ACTOR}ppo_epochs actor.ppo_epochs ppo_epochs", 1),
        "estimator": option("algorithm.adv_estimator"),
        "normalise": option("algorithm.norm_adv_by_std_in_grpo", True),
        "scheduler": option(f"{_ACTOR}optim.lr_scheduler_type {_ACTOR}optim.warmup_style"),
        "warmup_steps": option(f"{_ACTOR}optim.lr_warmup_steps"),
        "warmup_ratio": option(f"{_ACTOR}optim.lr_warmup_steps_ratio"),
        "total_steps": option("trainer.total_training_steps"),
        "end_ratio": option(f"{_ACTOR}optim.min_lr_ratio"),
    },
    signature=("actor_rollout_ref.", "algorithm.", "critic.ppo_", "data.train_batch_size"),
    read=_read_verl,
    write=_write_verl,
    normalisation=_verl_normalisation,
    schedule_in_rollouts=True,
    row_is_rollout=True,
)


def _read_verl_fully_async(settings: Settings) -> Dynamics:
    group = settings.count("group_size")
    _note_estimator(settings, _VERL_NOT_GROUP)
    prompts, epochs = settings.count("minibatch"), settings.count("epochs")
    minibatches = settings.count("trigger") * settings.count("require_batches")
    lag = settings.number("lag") or 0.0
    settings.notes.append(
        f"{settings.name('lag')} = {lag:g} bounds the part of stale samples and is taken as the mean lag"
    )
    return Dynamics(group, minibatches * epochs, prompts, epochs, lag)


def _write_verl_fully_async(numbers: Numbers) -> dict[str, Any]:
    settings = _write_verl(replace(numbers, async_lag=0.0))
    del settings["data.train_batch_size"]
    return {
        **settings,
        "async_training.trigger_parameter_sync_step": numbers.minibatches,
        "async_training.require_batches": 1,
        "async_training.staleness_threshold": numbers.async_lag,
    }


_VERL_FULLY_ASYNC = replace(
    _VERL,
    name="verl-fully-async",
    title="verl (fully async)",
    options={
        **_VERL.options,
        "group_size": option("actor_rollout_ref.rollout.n rollout.n", 4),
        "trigger": option("async_training.trigger_parameter_sync_step", 4),
        "require_batches": option("async_training.require_batches", 1),
        "lag": option("async_training.staleness_threshold", 0.1),
    },
    signature=("async_training.",),
    read=_read_verl_fully_async,
    write=_write_verl_fully_async,
    schedule_in_rollouts=False,
    row_is_rollout=False,
)


# OpenRLHF: dotted names since 0.10, flat ones before


def _read_openrlhf(settings: Settings) -> Dynamics:
    group = settings.count("group_size")
    _note_estimator(settings, ("gae", "reinforce"))
    completions, epochs = settings.count("rollout_batch") * group, settings.count("epochs")
    quotient = completions / settings.count("train_batch")
    minibatches = settings.minibatches(quotient, "rollout_batch", "train_batch")
    lag = settings.count("lag") if settings.flag("asynchronous") else 0.0
    return Dynamics(group, minibatches * epochs, completions / minibatches / group, epochs, lag)


def _write_openrlhf(numbers: Numbers) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "algo.advantage.estimator": "group_norm",
        "actor.adam.lr": numbers.learning_rate,
        "actor.adam.betas": [numbers.momentum, 0.95],
        "rollout.n_samples_per_prompt": numbers.group,
        "rollout.batch_size": numbers.prompts_per_rollout,
        "train.batch_size": numbers.completions,
        "train.max_epochs": numbers.epochs,
    }
    if numbers.whole_lag:
        settings |= {"train.async_enable": True, "train.async_queue_size": numbers.whole_lag}
    return settings


def _openrlhf_normalisation(settings: Settings) -> Normalisation:
    grouped = (settings.text("estimator") or "group_norm") in ("group_norm", "grpo")
    return "std" if grouped and not settings.flag("no_normalise") else "mean"


_OPENRLHF = Framework(
    name="openrlhf",
    title="OpenRLHF",
    family="openrlhf",
    options={
        "learning_rate": option("actor.adam.lr actor_learning_rate", 1e-6),
        "momentum": option("actor.adam.betas adam_betas", 0.9, first=True),
        "optimizer": option("actor.optim"),
        "group_size": option("rollout.n_samples_per_prompt n_samples_per_prompt", 1),
        "rollout_batch": option("rollout.batch_size rollout_batch_size", 1024),
        "train_batch": option("train.batch_size train_batch_size", 128),
        "epochs": option("train.max_epochs max_epochs", 1),
        "asynchronous": option("train.async_enable async_train", False),
        "lag": option("train.async_queue_size async_queue_size", 1),
        "estimator": option("algo.advantage.estimator advantage_estimator"),
        "no_normalise": option("algo.advantage.no_std_norm no_advantage_std_norm", False),
        "scheduler": option("actor.lr_scheduler lr_scheduler"),
        "warmup_ratio": option("actor.lr_warmup_ratio lr_warmup_ratio"),
    },
    signature=tuple(
        "actor.adam. algo. rollout.n_samples_per_prompt rollout.batch_size train.batch_size train.max_epochs "
        "actor_learning_rate n_samples_per_prompt rollout_batch_size micro_rollout_batch_size "
        "advantage_estimator init_kl_coef prompt_data".split()
    ),
    read=_read_openrlhf,
    write=_write_openrlhf,
    normalisation=_openrlhf_normalisation,
    row_is_rollout=True,
    default_schedule="cosine_with_min_lr",
)


# NeMo RL, with PyTorch's or Megatron's optimizer


def _read_nemo(settings: Settings) -> Dynamics:
    group = settings.count("group_size")
    completions = settings.count("prompts") * group
    minibatches = settings.minibatches(completions / settings.count("train_batch"), "prompts", "train_batch")
    lag = 0.0
    if settings.flag("asynchronous"):
        lag = settings.number("lag") or 0.0
        settings.notes.append(
            f"{settings.name('lag')} = {lag:g} bounds the age of trajectories and is taken as the mean lag"
        )
    return Dynamics(group, minibatches, completions / minibatches / group, 1.0, lag)


def _write_nemo(numbers: Numbers) -> dict[str, Any]:
    numbers.once()
    settings: dict[str, Any] = {
        "policy.optimizer.kwargs.lr": numbers.learning_rate,
        "policy.optimizer.kwargs.betas": [numbers.momentum, 0.999],
        "policy.train_global_batch_size": numbers.completions,
        "grpo.num_generations_per_prompt": numbers.group,
        "grpo.num_prompts_per_step": numbers.prompts_per_rollout,
    }
    if numbers.whole_lag:
        settings |= {
            "grpo.async_grpo.enabled": True,
            "grpo.async_grpo.max_trajectory_age_steps": numbers.whole_lag,
            "loss_fn.use_importance_sampling_correction": True,
        }
    return settings


NEMO_RL = Framework(
    name="nemo-rl",
    title="NeMo RL",
    family="nemo-rl",
    aliases=("nemo", "nemorl"),
    options={
        "learning_rate": option("policy.optimizer.kwargs.lr", 5e-6),
        "momentum": option("policy.optimizer.kwargs.betas", 0.9, first=True),
        "optimizer": option("policy.optimizer.name"),
        "optimizer_arguments": option("policy.optimizer.kwargs.momentum"),
        "megatron": option("policy.megatron_cfg.enabled", False),
        "group_size": option("grpo.num_generations_per_prompt", 16),
        "prompts": option("grpo.num_prompts_per_step", 32),
        "train_batch": option("policy.train_global_batch_size", 512),
        "asynchronous": option("grpo.async_grpo.enabled", False),
        "lag": option("grpo.async_grpo.max_trajectory_age_steps", 1),
        "normalise": option("grpo.normalize_rewards", True),
        "scheduler": option("policy.scheduler"),
        "total_steps": option("grpo.max_num_steps"),
    },
    signature=("grpo.", "policy.", "loss_fn."),
    read=_read_nemo,
    write=_write_nemo,
    normalisation=lambda settings: "std" if settings.flag("normalise") else "mean",
    schedule_in_rollouts=True,
    row_is_rollout=True,
)
_MEGATRON = "policy.megatron_cfg."
NEMO_RL_MEGATRON = replace(
    NEMO_RL,
    options={
        **NEMO_RL.options,
        "learning_rate": option(f"{_MEGATRON}optimizer.lr", 5e-6),
        "momentum": option(f"{_MEGATRON}optimizer.adam_beta1", 0.9),
        "optimizer": option(f"{_MEGATRON}optimizer.optimizer"),
        "optimizer_arguments": option(f"{_MEGATRON}optimizer.sgd_momentum"),
        "scheduler": option(f"{_MEGATRON}scheduler.lr_decay_style"),
        "warmup_steps": option(f"{_MEGATRON}scheduler.lr_warmup_iters"),
        "total_steps": option(f"{_MEGATRON}scheduler.lr_decay_iters"),
    },
)


# prime-rl


def _read_prime(settings: Settings) -> Dynamics:
    group = settings.count("group_size")
    lag = settings.number("lag") or 0.0
    settings.notes.append(
        f"every optimizer step makes new weights; {settings.name('lag')} = {lag:g} is taken as the lag "
        "(the log's off_policy/mean says what it was)"
    )
    return Dynamics(group, 1.0, settings.count("batch") / group, 1.0, lag)


def _write_prime(numbers: Numbers) -> dict[str, Any]:
    numbers.once()
    if numbers.minibatches != 1:
        numbers.refuse("refresh_interval", numbers.refresh_interval, "every step makes new weights")
    return {
        "trainer.optim.lr": numbers.learning_rate,
        "trainer.optim.betas1": numbers.momentum,
        "orchestrator.rollouts_per_example": numbers.group,
        "orchestrator.batch_size": numbers.completions,
        "max_async_level": numbers.whole_lag,
    }


_PRIME = Framework(
    name="prime-rl",
    title="prime-rl",
    family="prime-rl",
    aliases=("prime",),
    options={
        "learning_rate": option("trainer.optim.lr optim.lr learning_rate", 1e-6),
        "momentum": option("trainer.optim.betas1 optim.betas1", 0.9),
        "optimizer": option("trainer.optim.type optim.type"),
        "optimizer_arguments": option("trainer.optim.momentum optim.momentum", 0.9),
        "group_size": option(
            "orchestrator.rollouts_per_example orchestrator.group_size rollouts_per_example", 1
        ),
        "batch": option("orchestrator.batch_size batch_size", 128),
        "lag": option("max_async_level orchestrator.max_async_level trainer.max_async_level", 1),
        "scheduler": option("trainer.scheduler.type scheduler.type"),
        "warmup_steps": option("trainer.scheduler.warmup_steps scheduler.warmup_steps"),
        "total_steps": option("max_steps trainer.max_steps orchestrator.max_steps"),
    },
    signature=tuple(
        "orchestrator. trainer.optim. trainer.model. inference. rollouts_per_example max_async_level "
        "optim.betas1 max_off_policy_steps".split()
    ),
    read=_read_prime,
    write=_write_prime,
    normalisation=lambda settings: "mean",
)


# tunix; batch sizes count prompts


def _read_tunix(settings: Settings) -> Dynamics:
    group, iterations = settings.count("group_size"), settings.count("iterations")
    batch = settings.count("batch")
    prompts = settings.optional_count("minibatch") or batch
    minibatches = settings.minibatches(batch / prompts, "batch", "minibatch")
    lag = settings.number("lag") or 0.0
    return Dynamics(group, minibatches * iterations, batch / minibatches, iterations, lag)


def _write_tunix(numbers: Numbers) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "rl_training_config.actor_optimizer_config.learning_rate": numbers.learning_rate,
        "rl_training_config.actor_optimizer_config.b1": numbers.momentum,
        "rl_training_config.mini_batch_size": numbers.prompts,
        "batch_size": numbers.prompts * numbers.minibatches,
        "grpo_config.num_generations": numbers.group,
        "grpo_config.num_iterations": numbers.epochs,
    }
    if numbers.whole_lag:
        settings["grpo_config.off_policy_steps"] = numbers.whole_lag
    return settings


def _tunix_optimizer(*settings: str) -> str:
    """The names of optimizer settings, which stand in one of several sections."""
    sections = ("rl_training_config.actor_optimizer_config.", "actor_optimizer_config.", "optimizer_config.")
    return " ".join(section + setting for section in sections for setting in settings)


def _tunix_algorithm(setting: str) -> str:
    """The names of an algorithm setting, whose section is named after the learner."""
    return f"grpo_config.{setting} agentic_grpo_config.{setting} algo_config.{setting} {setting}"


_TUNIX = Framework(
    name="tunix",
    title="tunix",
    family="tunix",
    options={
        "peak": option(_tunix_optimizer("peak_value")),
        "learning_rate": option(_tunix_optimizer("learning_rate") + " learning_rate"),
        "momentum": option(_tunix_optimizer("b1"), 0.9),
        "optimizer": option(_tunix_optimizer("opt_type")),
        "group_size": option(_tunix_algorithm("num_generations"), 2),
        "iterations": option(_tunix_algorithm("num_iterations"), 1),
        "lag": option(_tunix_algorithm("off_policy_steps")),
        "estimator": option(_tunix_algorithm("advantage_estimator")),
        "batch": option("batch_size full_batch_size", 1),
        "minibatch": option(
            "rl_training_config.mini_batch_size training_config.mini_batch_size mini_batch_size"
        ),
        "scheduler": option(_tunix_optimizer("schedule_type")),
        "warmup_steps": option(_tunix_optimizer("warmup_steps")),
        "warmup_ratio": option(_tunix_optimizer("warmup_ratio")),
        "total_steps": option(_tunix_optimizer("decay_steps")),
    },
    signature=tuple(
        "grpo_config. agentic_grpo_config. rl_training_config. actor_model_config. rollout_model_config. "
        "reference_model_config.".split()
    ),
    read=_read_tunix,
    write=_write_tunix,
    normalisation=lambda settings: "mean" if settings.text("estimator") in ("drgrpo", "rloo") else "std",
)


# tinker-cookbook, whose Adam is fixed at beta1 = 0.9


def _read_tinker(settings: Settings) -> Dynamics:
    group, substeps = settings.count("group_size"), settings.count("substeps")
    lag = settings.number("lag") or 0.0
    return Dynamics(group, substeps, settings.count("prompts") / substeps, 1.0, lag)


def _write_tinker(numbers: Numbers) -> dict[str, Any]:
    numbers.once()
    if abs(numbers.momentum - 0.9) > 1e-6:
        numbers.refuse("momentum", numbers.momentum, "its Adam has beta1 = 0.9")
    settings: dict[str, Any] = {
        "learning_rate": numbers.learning_rate,
        "group_size": numbers.group,
        "groups_per_batch": numbers.prompts_per_rollout,
        "num_substeps": numbers.minibatches,
    }
    if numbers.whole_lag:
        settings["max_steps_off_policy"] = numbers.whole_lag
    return settings


_TINKER = Framework(
    name="tinker-cookbook",
    title="tinker-cookbook",
    family="tinker-cookbook",
    aliases=("tinker",),
    options={
        "learning_rate": option("learning_rate"),
        "group_size": option("group_size dataset_builder.group_size", 4),
        "prompts": option(
            "groups_per_batch dataset_builder.groups_per_batch dataset_builder.batch_size "
            "async_config.groups_per_batch batch_size",
            100,
        ),
        "substeps": option("num_substeps", 1),
        "lag": option(
            "max_steps_off_policy async_config.max_steps_off_policy async_config.sampling_steps_ahead"
        ),
        "scheduler": option("lr_schedule"),
        "total_steps": option("max_steps"),
    },
    signature=tuple(
        "group_size groups_per_batch num_substeps dataset_builder. async_config. stream_minibatch_config. "
        "max_steps_off_policy remove_constant_reward_groups".split()
    ),
    read=_read_tinker,
    write=_write_tinker,
    normalisation=lambda settings: "mean",
    schedule_in_rollouts=True,
    row_is_rollout=True,
)


FRAMEWORKS: dict[str, Framework] = {
    framework.name: framework
    for framework in (
        *(_TRL, _MS_SWIFT, _UNSLOTH, _VERL, _VERL_FULLY_ASYNC),
        *(_OPENRLHF, NEMO_RL, _PRIME, _TUNIX, _TINKER),
    )
}
