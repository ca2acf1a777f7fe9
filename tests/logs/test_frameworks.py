"""Frameworks' settings against figures worked out by hand, and there and back again."""

import math

import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

import jaxgrpo as jg
from jaxgrpo.errors import JaxgrpoError, ReadError
from jaxgrpo.logs.frameworks import (
    FRAMEWORKS,
    advantage_normalisation,
    detect_framework,
    framework_named,
    hyperparameters_to_settings,
    learning_rate_schedule_settings,
    optimizer_steps_per_row,
    settings_to_hyperparameters,
)
from jaxgrpo.logs.settings import flatten_settings


def numbers(hyperparameters):
    """Learning rate, momentum, G, K, B, I, d."""
    return tuple(
        round(float(getattr(hyperparameters, name)), 9)
        for name in (
            "learning_rate",
            "momentum",
            "group_size",
            "refresh_interval",
            "prompts_per_step",
            "epochs_per_rollout",
            "async_lag",
        )
    )


VERL_NESTED = {
    "data": {"train_batch_size": 512},
    "actor_rollout_ref": {
        "actor": {"optim": {"lr": 2e-6}, "ppo_mini_batch_size": 128, "ppo_epochs": 2},
        "rollout": {"n": 5},
    },
    "critic": {"optim": {"lr": 1e-5}, "ppo_mini_batch_size": 64},
    "algorithm": {"adv_estimator": "grpo"},
}
CASES = {
    # framework, settings, (learning rate, momentum, G, K, B, I, d)
    "trl, every setting": (
        "trl",
        {
            "learning_rate": 5e-6,
            "adam_beta1": 0.8,
            "num_generations": 4,
            "per_device_train_batch_size": 8,
            "gradient_accumulation_steps": 2,
            "steps_per_generation": 6,
            "num_iterations": 2,
            "num_processes": 3,
        },
        (5e-6, 0.8, 4, 6, 12, 2, 0),
    ),
    "trl, processes from the generation batch": (
        "trl",
        {
            "learning_rate": 1e-5,
            "per_device_train_batch_size": 4,
            "gradient_accumulation_steps": 4,
            "generation_batch_size": 64,
            "steps_per_generation": 8,
        },
        (1e-5, 0.9, 8, 2, 4, 1, 0),
    ),
    "trl, generation batch alone": (
        "trl",
        {"per_device_train_batch_size": 8, "generation_batch_size": 32, "num_generations": 8},
        (1e-6, 0.9, 8, 4, 1, 1, 0),
    ),
    "trl, fewer steps per generation than accumulated": (
        "trl",
        {"gradient_accumulation_steps": 8, "steps_per_generation": 2, "num_iterations": 3},
        (1e-6, 0.9, 8, 3, 8, 3, 0),
    ),
    "trl, command line": (
        "TRL",
        {"--learning-rate": "3e-6", "--num_generations": "16", "--per_device_train_batch_size": "32"},
        (3e-6, 0.9, 16, 1, 2, 1, 0),
    ),
    "unsloth": ("unsloth", {"num_generations": 6}, (5e-5, 0.9, 6, 1, 8 / 6, 1, 0)),
    "verl, nested": ("verl", VERL_NESTED, (2e-6, 0.9, 5, 8, 128, 2, 0)),
    "verl, defaults": ("verl", {"algorithm.adv_estimator": "grpo"}, (1e-6, 0.9, 1, 4, 256, 1, 0)),
    "verl, a small batch": ("verl", {"data.train_batch_size": 64}, (1e-6, 0.9, 1, 1, 64, 1, 0)),
    "verl, a mini-batch larger than the batch": (
        "verl",
        {"data.train_batch_size": 64, "actor_rollout_ref.actor.ppo_mini_batch_size": 256},
        (1e-6, 0.9, 1, 1, 64, 1, 0),
    ),
    "verl, one section deeper": ("verl", {"config": VERL_NESTED}, (2e-6, 0.9, 5, 8, 128, 2, 0)),
    "verl, fully async": (
        "verl-fully-async",
        {
            "async_training": {
                "trigger_parameter_sync_step": 3,
                "require_batches": 2,
                "staleness_threshold": 0.5,
            },
            "actor_rollout_ref": {"actor": {"ppo_mini_batch_size": 32, "optim": {"betas": "[0.85, 0.99]"}}},
        },
        (1e-6, 0.85, 4, 6, 32, 1, 0.5),
    ),
    "openrlhf, flat": (
        "openrlhf",
        {
            "--actor_learning_rate": "5e-7",
            "--n_samples_per_prompt": "8",
            "--rollout_batch_size": "128",
            "--train_batch_size": "256",
            "--max_epochs": "2",
            "--adam_betas": ["0.7", "0.95"],
        },
        (5e-7, 0.7, 8, 8, 32, 2, 0),
    ),
    "openrlhf, dotted and asynchronous": (
        "openrlhf",
        {
            "actor.adam.lr": 1e-6,
            "rollout.n_samples_per_prompt": 16,
            "rollout.batch_size": 512,
            "train.batch_size": 1024,
            "train.async_enable": True,
            "train.async_queue_size": 2,
        },
        (1e-6, 0.9, 16, 8, 64, 1, 2),
    ),
    "nemo-rl": (
        "nemo-rl",
        {
            "grpo": {
                "num_prompts_per_step": 64,
                "num_generations_per_prompt": 32,
                "async_grpo": {"enabled": True, "max_trajectory_age_steps": 2},
            },
            "policy": {
                "train_global_batch_size": 512,
                "optimizer": {"kwargs": {"lr": 3e-6, "betas": [0.9, 0.98]}},
            },
        },
        (3e-6, 0.9, 32, 4, 16, 1, 2),
    ),
    "nemo-rl, megatron": (
        "nemo-rl",
        {
            "grpo.num_prompts_per_step": 32,
            "policy.megatron_cfg.enabled": "true",
            "policy.megatron_cfg.optimizer.lr": "2e-6",
            "policy.megatron_cfg.optimizer.adam_beta1": 0.95,
            "policy.optimizer.kwargs.lr": 5e-6,
        },
        (2e-6, 0.95, 16, 1, 32, 1, 0),
    ),
    "prime-rl": (
        "prime-rl",
        {
            "max_async_level": 2,
            "trainer": {"optim": {"lr": 1e-5, "betas1": 0.8}},
            "orchestrator": {"batch_size": 512, "rollouts_per_example": 16},
        },
        (1e-5, 0.8, 16, 1, 32, 1, 2),
    ),
    "tunix": (
        "tunix",
        {
            "batch_size": 16,
            "grpo_config": {"num_generations": 4, "num_iterations": 2, "off_policy_steps": 1},
            "rl_training_config": {
                "mini_batch_size": 4,
                "actor_optimizer_config": {"peak_value": 3e-6, "learning_rate": 1e-5, "b1": 0.85},
            },
        },
        (3e-6, 0.85, 4, 8, 4, 2, 1),
    ),
    "tinker-cookbook": (
        "tinker",
        {
            "learning_rate": 4e-5,
            "dataset_builder": {"group_size": 8, "groups_per_batch": 64},
            "num_substeps": 4,
            "async_config": {"max_steps_off_policy": 3, "groups_per_batch": 64},
        },
        (4e-5, 0.9, 8, 4, 16, 1, 3),
    ),
    "weights and biases wrapper": (
        "trl",
        {
            "learning_rate": {"value": 2e-6, "desc": None},
            "num_generations": {"value": 4},
            "_wandb": {"value": {"cli_version": "0.19"}},
        },
        (2e-6, 0.9, 4, 1, 2, 1, 0),
    ),
    "a reference to another setting": (
        "verl",
        {"actor_rollout_ref.rollout.n": "${my.n}", "my.n": 6, "data.train_batch_size": 256},
        (1e-6, 0.9, 6, 1, 256, 1, 0),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_settings_mean_what_their_framework_makes_of_them(case, x64):
    framework, settings, expected = CASES[case]
    hyperparameters, _ = settings_to_hyperparameters(framework, settings)
    assert hyperparameters is not None
    assert numbers(hyperparameters) == pytest.approx(expected, abs=1e-9)
    assert hyperparameters.convention == "ema"


# What a framework can express: passes over mini-batches, mini-batches per rollout, lag, momentum.
EXPRESSIBLE = {
    "trl": {"epochs": True},
    "ms-swift": {"epochs": True},
    "unsloth": {"epochs": True},
    "verl": {"epochs": True},
    "verl-fully-async": {"epochs": True, "lag": "real"},
    "openrlhf": {"epochs": True, "lag": "whole"},
    "nemo-rl": {"lag": "whole"},
    "prime-rl": {"lag": "whole", "minibatches": False},
    "tunix": {"epochs": True, "lag": "whole"},
    "tinker-cookbook": {"lag": "whole", "momentum": False},
}


@st.composite
def configurations(draw, framework):
    can = EXPRESSIBLE[framework]
    epochs = draw(st.integers(1, 4)) if can.get("epochs") else 1
    minibatches = draw(st.integers(1, 8)) if can.get("minibatches", True) else 1
    lag = {
        None: st.just(0),
        "whole": st.integers(0, 6),
        "real": st.floats(0, 4).map(lambda value: round(value, 3)),
    }
    return jg.Hyperparameters(
        learning_rate=draw(st.floats(1e-8, 1e-2)),
        momentum=draw(st.floats(0, 0.999)) if can.get("momentum", True) else 0.9,
        group_size=draw(st.integers(2, 64)),
        refresh_interval=epochs * minibatches,
        prompts_per_step=draw(st.integers(1, 512)),
        epochs_per_rollout=epochs,
        async_lag=draw(lag[can.get("lag")]),
    )


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_to_a_framework_and_back(framework, x64):
    assert set(EXPRESSIBLE) == set(FRAMEWORKS)

    @given(configurations(framework))
    @hypothesis_settings(max_examples=30, deadline=None, derandomize=True)
    def there_and_back(hyperparameters):
        settings = hyperparameters.to_framework(framework)
        again = jg.Hyperparameters.from_framework(framework, settings)
        assert numbers(again) == pytest.approx(numbers(hyperparameters), rel=1e-9)
        assert detect_framework(settings) in (framework, FRAMEWORKS[framework].family)
        nested, remarks = settings_to_hyperparameters(framework, _nested(settings))
        assert numbers(nested) == numbers(again)
        assert not any("defaults are assumed" in remark for remark in remarks)

    there_and_back()


def _nested(flat):
    tree = {}
    for name, value in flat.items():
        *sections, last = name.split(".")
        node = tree
        for section in sections:
            node = node.setdefault(section, {})
        node[last] = value
    return tree


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_written_numbers_are_clean_in_single_precision_too(framework):
    settings = jg.Hyperparameters(1e-6, group_size=8, prompts_per_step=4).to_framework(framework)
    values = list(settings.values())
    assert 1e-6 in values and 8 in values
    assert all(type(value) in (int, float, list, str, bool) for value in values)
    whole = [value for value in values if value in (8, 4, 32)]
    assert whole and all(type(value) is int for value in whole)


def test_trl_settings_written_are_those_trl_documents(x64):
    hyperparameters = jg.Hyperparameters(
        2e-6, momentum=0.8, group_size=8, refresh_interval=6, prompts_per_step=4, epochs_per_rollout=2
    )
    assert hyperparameters_to_settings("trl", hyperparameters) == {
        "learning_rate": 2e-6,
        "adam_beta1": 0.8,
        "num_generations": 8,
        "per_device_train_batch_size": 32,
        "gradient_accumulation_steps": 1,
        "steps_per_generation": 3,
        "num_iterations": 2,
    }


@pytest.mark.parametrize(
    ("framework", "changes", "message"),
    [
        ("trl", {"refresh_interval": 2.5}, "refresh_interval = 2.5"),
        ("trl", {"group_size": 7.5}, "group_size = 7.5"),
        ("trl", {"group_size": 1}, "group_size = 1"),
        ("trl", {"async_lag": 1}, "async_lag = 1"),
        ("trl", {"refresh_interval": 3, "epochs_per_rollout": 2}, "refresh_interval / epochs_per_rollout"),
        ("trl", {"prompts_per_step": 0.3}, "prompts_per_step x group_size"),
        ("trl", {"convention": "heavy_ball"}, "'heavy_ball' cannot be expressed"),
        ("verl", {"async_lag": 1}, "verl-fully-async"),
        ("verl", {"prompts_per_step": 1.5}, "prompts_per_step = 1.5"),
        ("prime-rl", {"refresh_interval": 4}, "refresh_interval = 4"),
        ("nemo-rl", {"refresh_interval": 2, "epochs_per_rollout": 2}, "epochs_per_rollout = 2"),
        ("nemo-rl", {"async_lag": 0.5}, "async_lag = 0.5"),
        ("tinker-cookbook", {"momentum": 0.8}, "momentum = 0.8"),
        ("trl", {"learning_rate": jnp.array([1e-6, 2e-6])}, "one configuration at a time"),
        ("megatron-lm", {}, "known are"),
    ],
)
def test_what_a_framework_cannot_express_is_refused(framework, changes, message, x64):
    hyperparameters = jg.Hyperparameters(**{"learning_rate": 1e-6, "prompts_per_step": 8, **changes})
    with pytest.raises(JaxgrpoError) as raised:
        hyperparameters_to_settings(framework, hyperparameters)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("framework", "settings", "message"),
    [
        ("trl", {"learning_rate": "fast", "num_generations": 8}, "learning_rate must be a number"),
        ("trl", {"learning_rate": -1e-6, "num_generations": 8}, "learning_rate"),
        ("trl", {"learning_rate": True, "num_generations": 8}, "learning_rate"),
        ("trl", {"learning_rate": float("nan"), "num_generations": 8}, "learning_rate"),
        ("trl", {"num_generations": 2.5}, "num_generations must be a whole number"),
        ("trl", {"num_generations": 0}, "num_generations"),
        ("trl", {"num_generations": [8]}, "num_generations"),
        ("trl", {"adam_beta1": 1.0}, "adam_beta1"),
        ("trl", {"num-generations": 8, "num_generations": 4}, "given twice"),
        ("trl", {"a.num_generations": 8, "b.num_generations": 4}, "contradict"),
        (
            "trl",
            {"generation_batch_size": 60, "steps_per_generation": 4, "per_device_train_batch_size": 8},
            "generation_batch_size is no multiple",
        ),
        ("nemo-rl", {"grpo.async_grpo.enabled": "perhaps"}, "true or false"),
        ("trl", VERL_NESTED, "look like verl, not TRL"),
        ("verl", {"num_generations": 8, "steps_per_generation": 4}, "look like TRL, not verl"),
        ("openrlhf", {"grpo.num_prompts_per_step": 8}, "look like NeMo RL"),
        ("tinker-cookbook", {"orchestrator.batch_size": 128}, "look like prime-rl"),
        ("prime-rl", {"grpo_config.num_generations": 4}, "look like tunix"),
        ("jupiter", {"num_generations": 8}, "unknown framework 'jupiter'"),
    ],
)
def test_unusable_settings_are_refused_in_one_line(framework, settings, message):
    with pytest.raises(ReadError) as raised:
        settings_to_hyperparameters(framework, settings)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_assumed_defaults_are_said():
    _, remarks = settings_to_hyperparameters("trl", {"learning_rate": 1e-6, "num_generations": 8})
    assumed = next(remark for remark in remarks if "defaults are assumed" in remark)
    for said in ("adam_beta1 = 0.9", "num_iterations = 1", "per_device_train_batch_size = 8"):
        assert said in assumed
    assert "learning_rate" not in assumed and "num_generations" not in assumed
    assert any("one process" in remark for remark in remarks)


@pytest.mark.parametrize("settings", [{}, {"output_dir": "out", "bf16": True}, {"learning_rate": None}])
def test_settings_that_say_nothing_give_nothing(settings):
    hyperparameters, remarks = settings_to_hyperparameters("trl", settings)
    assert hyperparameters is None
    assert len(remarks) == 1
    with pytest.raises(JaxgrpoError, match="nothing"):
        jg.Hyperparameters.from_framework("trl", settings)


def test_a_learning_rate_that_nobody_knows_gives_nothing():
    hyperparameters, remarks = settings_to_hyperparameters("tinker", {"group_size": 8})
    assert hyperparameters is None
    assert "no learning rate" in remarks[-1]


def test_group_of_one_and_advantages_without_groups_are_remarked():
    _, remarks = settings_to_hyperparameters("verl", {"algorithm.adv_estimator": "gae"})
    assert any("gae" in remark and "not relative to a group" in remark for remark in remarks)
    assert any("rollout.n is 1" in remark for remark in remarks)


def test_variants_of_one_family_are_told_by_their_own_settings(x64):
    asynchronous = {"async_training.trigger_parameter_sync_step": 2, **flatten_settings(VERL_NESTED)}
    hyperparameters, remarks = settings_to_hyperparameters("verl", asynchronous)
    assert float(hyperparameters.refresh_interval) == 2 * 1 * 2
    assert any("verl (fully async)" in remark for remark in remarks)
    assert detect_framework(asynchronous) == "verl-fully-async"
    assert detect_framework({"unsloth_num_chunks": -1, "num_generations": 6}) == "unsloth"
    assert detect_framework({"rlhf_type": "grpo", "num_generations": 6}) == "ms-swift"
    # Unsloth's arguments are TRL's; whoever says Unsloth gets Unsloth's defaults.
    hyperparameters, _ = settings_to_hyperparameters("unsloth", {"num_generations": 6})
    assert float(hyperparameters.learning_rate) == 5e-5


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"optim": "adamw_torch_fused"}, (0.9, "ema")),
        ({"optim": "paged_adamw_8bit", "adam_beta1": 0.7}, (0.7, "ema")),
        ({"optim": "sgd", "optim_args": "momentum=0.6,nesterov=True"}, (0.6, "heavy_ball")),
        ({"optim": "sgd"}, (0.0, "heavy_ball")),
        ({"optim": "adafactor"}, (0.0, "ema")),
    ],
)
def test_momentum_follows_the_optimizer(settings, expected, x64):
    hyperparameters, _ = settings_to_hyperparameters("trl", {"num_generations": 8, **settings})
    assert (float(hyperparameters.momentum), hyperparameters.convention) == expected


@pytest.mark.parametrize(
    ("framework", "settings", "expected"),
    [
        ("trl", {"lr_scheduler_type": "cosine", "warmup_ratio": 0.1}, ("cosine", None, 0.1, None, None)),
        ("trl", {"max_steps": 200, "warmup_steps": 20}, ("linear", 20, None, 200, None)),
        (
            "trl",
            {"max_steps": -1, "lr_scheduler_type": "SchedulerType.CONSTANT"},
            ("constant",) + (None,) * 4,
        ),
        (
            "trl",
            {"lr_scheduler_type": "constant", "warmup_steps": 0.05},
            ("constant_with_warmup", None, 0.05, None, None),
        ),
        (
            "verl",
            {
                "trainer.total_training_steps": 100,
                "actor_rollout_ref.actor.optim.warmup_style": "cosine",
                "actor_rollout_ref.actor.optim.lr_warmup_steps": 10,
                "actor_rollout_ref.actor.optim.min_lr_ratio": 0.1,
            },
            ("cosine", 40, None, 400, 0.1),
        ),
        (
            "nemo-rl",
            {
                "policy.scheduler": [
                    {
                        "name": "torch.optim.lr_scheduler.LinearLR",
                        "kwargs": {"start_factor": 0.1, "end_factor": 1.0, "total_iters": 50},
                    },
                    {"name": "torch.optim.lr_scheduler.ConstantLR", "kwargs": {"factor": 1.0}},
                    {"milestones": [50]},
                ]
            },
            ("constant_with_warmup", 50, None, None, None),
        ),
        (
            "tunix",
            {
                "rl_training_config.actor_optimizer_config.schedule_type": "warmup_cosine_decay_schedule",
                "rl_training_config.actor_optimizer_config.warmup_steps": 30,
                "rl_training_config.actor_optimizer_config.decay_steps": 300,
            },
            ("cosine", 30, None, 300, None),
        ),
        ("openrlhf", {"lr_warmup_ratio": 0.03}, ("cosine_with_min_lr", None, 0.03, None, None)),
    ],
)
def test_schedules_are_in_optimizer_steps(framework, settings, expected):
    assert tuple(learning_rate_schedule_settings(framework, settings)) == expected


def test_no_schedule_without_a_word_of_it():
    assert learning_rate_schedule_settings("trl", {"learning_rate": 1e-6, "num_generations": 8}) is None
    with pytest.raises(ReadError, match="warmup_steps must be a number"):
        learning_rate_schedule_settings("trl", {"warmup_steps": "soon"})


@pytest.mark.parametrize(
    ("framework", "settings", "expected"),
    [
        ("trl", {}, "std"),
        ("trl", {"scale_rewards": True}, "std"),
        ("trl", {"scale_rewards": "False"}, "mean"),
        ("trl", {"scale_rewards": "batch"}, "mean"),
        ("trl", {"loss_type": "dr_grpo"}, "std"),
        ("verl", {"algorithm.norm_adv_by_std_in_grpo": "False"}, "mean"),
        ("verl", {"algorithm.adv_estimator": "grpo"}, "std"),
        ("verl", {"algorithm.adv_estimator": "rloo"}, "mean"),
        ("openrlhf", {"advantage_estimator": "group_norm"}, "std"),
        ("openrlhf", {"advantage_estimator": "group_norm", "no_advantage_std_norm": True}, "mean"),
        ("openrlhf", {"algo.advantage.estimator": "dr_grpo"}, "mean"),
        ("nemo-rl", {"grpo.normalize_rewards": False}, "mean"),
        ("tunix", {"grpo_config.advantage_estimator": "drgrpo"}, "mean"),
        ("tinker-cookbook", {}, "mean"),
        ("prime-rl", {}, "mean"),
    ],
)
def test_scaling_of_group_advantages(framework, settings, expected):
    assert advantage_normalisation(framework, settings) == expected


def test_unknown_scaling_is_refused():
    with pytest.raises(ReadError, match="scale_rewards must be group, batch or none"):
        advantage_normalisation("trl", {"scale_rewards": "sideways"})


@pytest.mark.parametrize(("framework", "expected"), [("trl", 1), ("verl", 4), ("nemo-rl", 4), ("unsloth", 1)])
def test_optimizer_steps_per_row(framework, expected):
    assert optimizer_steps_per_row(framework, jg.Hyperparameters(1e-6, refresh_interval=4)) == expected


def test_names_and_aliases():
    assert framework_named("Prime_RL").name == "prime-rl"
    assert framework_named("swift").name == "ms-swift"
    for framework in FRAMEWORKS.values():
        for name in (framework.name, *framework.aliases):
            written = jg.Hyperparameters(1e-6, prompts_per_step=2).to_framework(name)
            again = jg.Hyperparameters.from_framework(name, written)
            assert math.isclose(float(again.learning_rate), 1e-6, rel_tol=1e-6)


@pytest.mark.parametrize("settings", [{"learning_rate": 1e-6}, {"lr": 1, "batch_size": 8}, {}])
def test_settings_of_no_framework_in_particular(settings):
    assert detect_framework(settings) is None


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=12),
    st.lists(st.integers(), max_size=3),
    st.sampled_from(["1e-6", "${data.x}", "${", "None", "0x10", "1_000", "١"]),
)
NAMES = sorted(
    {name for framework in FRAMEWORKS.values() for o in framework.options.values() for name in o.names}
)


@given(
    st.sampled_from(sorted(FRAMEWORKS)),
    st.dictionaries(st.one_of(st.sampled_from(NAMES), st.text(max_size=8)), SCALARS, max_size=8),
)
@hypothesis_settings(max_examples=400, deadline=None, derandomize=True)
def test_arbitrary_settings_raise_nothing_but_the_packages_own_error(framework, settings):
    for read in (settings_to_hyperparameters, learning_rate_schedule_settings, advantage_normalisation):
        try:
            read(framework, settings)
        except JaxgrpoError as error:
            assert "\n" not in str(error)


def test_deep_and_endless_settings_are_refused():
    deep = {}
    for _ in range(200):
        deep = {"a": deep}
    endless = {}
    endless["a"] = endless
    wide = {"x": 0}
    for _ in range(8):
        wide = {str(i): wide for i in range(10)}
    for settings in (deep, endless, wide):
        with pytest.raises(ReadError):
            flatten_settings(settings)
