import pytest

from jaxgrpo.logs.records import framework_of, read_records


@pytest.mark.parametrize(
    "names, framework",
    [
        (["reward", "reward_std", "epoch"], "trl"),
        (["train/reward", "train/reward_std", "train/rewards/f/mean"], "trl"),
        (["critic/rewards/mean"], "verl"),
        (["env/all/reward/total"], "tinker-cookbook"),
        (["reward/mean", "progress/batch"], "tinker-cookbook"),
        (["train/reward", "train/gen_kl_error"], "nemo-rl"),
        (["actor/ppo_ratio_clipfrac", "reward/selected_mean"], "roll"),
        (["train/policy_loss", "train/actor_lr", "train/reward"], "openrlhf"),
        (["reward/mean", "off_policy/mean"], "prime-rl"),
        (["reward", "loss"], None),
        ([], None),
    ],
)
def test_frameworks_are_told_by_their_names(names, framework):
    assert framework_of(names) == framework


def test_rows_that_name_their_run_are_kept_apart():
    rows = [{"run_name": name, "reward": value} for value, name in enumerate("abab")]
    tables = read_records(rows, "file", "jsonl")
    assert [(table.name, table.arrays()["reward"].tolist()) for table in tables] == [
        ("a", [0, 2]),
        ("b", [1, 3]),
    ]


def test_ms_swift_states_its_step_with_the_total():
    rows = [{"reward": 0.5, "global_step/max_steps": f"{5 * i}/100"} for i in (1, 2)]
    (table,) = read_records(rows, "file", "trl")
    assert table.arrays()["step"].tolist() == [5, 10]


def test_a_different_name_on_every_row_is_no_run():
    rows = [{"run_id": str(i), "reward": i} for i in range(4)]
    (table,) = read_records(rows, "file", "jsonl")
    assert table.name == "file" and table.rows == 4
