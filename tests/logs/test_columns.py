import numpy as np
import pytest

from jaxgrpo.errors import ReadError
from jaxgrpo.logs.columns import find_roles, listing, near, normal

ONES = np.array([1.0, 2.0])
EMPTY = np.full(2, np.nan)


def roles(*names, columns=None, empty=()):
    arrays = {name: ONES for name in names} | {name: EMPTY for name in empty}
    return find_roles("log", arrays, columns, lambda name: name in names)


@pytest.mark.parametrize(
    "name, expected",
    [
        ("critic/rewards/mean", "critic_rewards_mean"),
        ("rewards / fn / mean", "rewards_fn_mean"),
        ("unclipped_grad_l2:mean", "unclipped_grad_l2_mean"),
        ("Avg Len", "avg_len"),
        ("actor/lr(1e-4)", "actor_lr(1e_4)"),
    ],
)
def test_spellings_agree_in_normal_form(name, expected):
    assert normal(name) == expected


# One line a framework: the columns that its logs have, and the role each must get.
NAMES = {
    "trl": dict(
        step="step",
        reward="reward",
        reward_std="reward_std",
        kl="kl",
        entropy="entropy",
        length="completions/mean_length",
        grad_norm="grad_norm",
        learning_rate="learning_rate",
        zero_spread="frac_reward_zero_std",
        clip_fraction="clip_ratio/region_mean",
        truncation="completions/clipped_ratio",
        eval_reward="eval_reward",
    ),
    "trl old": dict(step="step", reward="reward", length="completion_length"),
    "trl tensorboard": dict(
        step="step",
        reward="train/reward",
        reward_std="train/reward_std",
        kl="train/kl",
        length="train/completions/mean_length",
        zero_spread="train/frac_reward_zero_std",
        eval_reward="eval/reward",
    ),
    "verl": dict(
        step="training/global_step",
        reward="critic/rewards/mean",
        kl="actor/kl_loss",
        entropy="actor/entropy",
        length="response_length/mean",
        grad_norm="actor/grad_norm",
        learning_rate="actor/lr",
        clip_fraction="actor/pg_clipfrac",
        truncation="response_length/clip_ratio",
        eval_reward="val-core/openai/gsm8k/acc/mean@1",
    ),
    "verl old": dict(
        reward="critic/score/mean",
        kl="critic/kl",
        entropy="actor/entropy_loss",
        learning_rate="actor/lr(1e-4)",
    ),
    "verl csv": dict(
        step="step", reward="critic_rewards_mean", kl="actor_ppo_kl", truncation="response_length_clip_ratio"
    ),
    "tinker": dict(
        step="step",
        reward="env/all/reward/total",
        kl="optim/kl_sample_train_v1",
        entropy="optim/entropy",
        length="env/all/ac_tokens_per_turn",
        grad_norm="unclipped_grad_l2:mean",
        learning_rate="optim/lr",
        eval_reward="test/env/all/reward/total",
    ),
    "tinker means": dict(step="progress/batch", reward="reward/mean", entropy="policy/entropy"),
    "nemo-rl": dict(
        reward="train/reward",
        kl="train/kl_penalty",
        entropy="train/approx_entropy",
        length="train/mean_gen_tokens_per_sample",
        grad_norm="train/grad_norm",
        learning_rate="train/lr",
        truncation="train/truncation_rate",
        eval_reward="validation/accuracy",
    ),
    "rasbt": dict(
        step="step",
        reward="reward_avg",
        kl="kl_loss",
        entropy="entropy_avg",
        length="avg_response_len",
        eval_reward="eval_acc",
    ),
    "roll": dict(
        step="system/step",
        reward="reward/selected_mean",
        clip_fraction="actor/ppo_ratio_clipfrac",
        grad_norm="actor_train/grad_norm",
    ),
    "dequeue": dict(
        step="step",
        reward="rollout_reward_mean",
        clip_fraction="train_clip_fraction",
        eval_reward="val_accuracy",
    ),
}


@pytest.mark.parametrize("framework", NAMES)
def test_each_frameworks_names_get_their_roles(framework):
    expected = dict(NAMES[framework])
    found = roles(*expected.values())
    assert found.reward == expected.pop("reward")
    assert found.step == expected.pop("step", None)
    assert {name: found.channels.get(name) for name in expected} == expected


def test_clipping_and_truncation_are_not_confused():
    found = roles("reward", "completions/clipped_ratio", "clip_ratio/low_mean")
    assert "clip_fraction" not in found.channels
    assert found.channels["truncation"] == "completions/clipped_ratio"


def test_parts_of_the_reward():
    found = roles(
        "reward",
        "rewards/accuracy/mean",
        "rewards/accuracy/std",
        "rewards/format",
        "rewards / old",
        "timing_s_reward",
        "eval_rewards/accuracy/mean",
    )
    assert found.parts == {
        "accuracy": "rewards/accuracy/mean",
        "format": "rewards/format",
        "old": "rewards / old",
    }
    assert roles("mean_reward", "mean_format_reward").parts == {"format_reward": "mean_format_reward"}
    assert roles("reward/mean", "reward/f", "reward/pass@1").parts == {"f": "reward/f"}


def test_a_rollout_reward_goes_before_a_held_out_one():
    found = roles("eval/reward", "rollout_reward_mean")
    assert found.reward == "rollout_reward_mean" and found.channels["eval_reward"] == "eval/reward"


def test_a_held_out_series_alone_is_taken_and_told():
    found = roles("eval/reward", "train/entropy")
    assert found.reward == "eval/reward" and "eval_reward" not in found.channels
    assert any("held-out" in note for note in found.notes)


def test_one_unusual_reward_is_taken_and_told():
    found = roles("step", "twisted_reward_value", "reward_weight")
    assert found.reward == "twisted_reward_value"
    assert any("twisted_reward_value" in note for note in found.notes)


def test_several_unusual_rewards_are_not_guessed_between():
    with pytest.raises(
        ReadError, match="which column is the reward.*one_reward_x.*two_reward_x.*reward=NAME"
    ):
        roles("one_reward_x", "two_reward_x")


def test_no_reward_lists_the_columns():
    with pytest.raises(ReadError, match="there is no reward column; the columns are step, loss; name one"):
        roles("step", "loss")


def test_a_reward_that_is_nan_throughout_is_said_to_be():
    with pytest.raises(ReadError, match="'reward' holds no finite number"):
        roles("step", empty=("reward",))


def test_an_empty_reward_column_gives_way_to_a_filled_one():
    assert roles("critic/score/mean", empty=("critic/rewards/mean",)).reward == "critic/score/mean"


def test_a_wrong_name_gives_the_near_ones():
    with pytest.raises(ReadError, match="no column 'my_skore'; did you mean 'my_score'"):
        roles("my_score", "loss", columns={"reward": "my_skore"})


def test_a_wrong_role_gives_the_near_ones():
    with pytest.raises(ReadError, match="'rewards' is no role.*did you mean 'reward'"):
        roles("a", columns={"rewards": "a"})


def test_a_mapping_overrides():
    found = roles("reward", "mine", "kl", "other", columns={"reward": "mine", "kl": "other"})
    assert found.reward == "mine" and found.channels["kl"] == "other"


def test_messages_about_names():
    assert near("q", ["alpha", "beta"]) == "there are: alpha, beta"
    assert near("lr", ["actor/lr", "critic"]) == "did you mean 'actor/lr'?"
    assert listing([str(i) for i in range(15)], 3) == "0, 1, 2 and 12 more"
    assert listing([]) == "none"
