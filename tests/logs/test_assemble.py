import math
from pathlib import Path

import numpy as np
import pytest

from jaxgrpo import Hyperparameters
from jaxgrpo.errors import ReadError
from jaxgrpo.logs import read_run

FIXTURES = Path(__file__).parent / "fixtures"


def numbers(run, *names):
    assert run.hyperparameters is not None
    return [pytest.approx(float(getattr(run.hyperparameters, name)), rel=1e-6) for name in names]


def test_what_the_caller_gives_overrides_the_log():
    given = Hyperparameters(learning_rate=1e-3, group_size=3, refresh_interval=2)
    run = read_run(FIXTURES / "verl_console.log", given)
    assert run.hyperparameters is given
    np.testing.assert_array_equal(run.steps, 2.0 * np.arange(10))


def test_single_fields_override_and_the_rest_stays():
    run = read_run(FIXTURES / "verl_console.log", {"group_size": 12, "async_lag": 1})
    assert numbers(run, "group_size", "async_lag", "refresh_interval", "learning_rate") == [12, 1, 4, 3e-6]


def test_an_unknown_field_gives_the_near_names():
    with pytest.raises(ReadError, match="'groupsize' is no hyperparameter; did you mean 'group_size'"):
        read_run(FIXTURES / "verl_console.log", {"groupsize": 12})


def test_a_field_out_of_range_is_refused_in_one_line():
    with pytest.raises(ReadError, match="momentum must be less than 1") as error:
        read_run(FIXTURES / "verl_console.log", {"momentum": 2.0})
    assert "\n" not in str(error.value)


def test_fields_without_a_learning_rate_are_not_enough():
    with pytest.raises(ReadError, match="no learning rate; give learning_rate"):
        read_run(FIXTURES / "sparse.jsonl", {"group_size": 8})
    run = read_run(FIXTURES / "sparse.jsonl", {"group_size": 4, "learning_rate": 1e-6, "refresh_interval": 8})
    assert numbers(run, "group_size") == [4]
    np.testing.assert_array_equal(run.steps, 8.0 * np.arange(6))


def test_a_configuration_file_fills_in_what_the_log_lacks(tmp_path):
    config = tmp_path / "run.yaml"
    config.write_text(
        "actor_rollout_ref:\n  actor:\n    ppo_mini_batch_size: 32\n  rollout:\n    n: 5\n"
        "data:\n  train_batch_size: 64\n"
    )
    run = read_run(FIXTURES / "verl_underscores.csv", config=config)
    assert numbers(run, "group_size", "refresh_interval", "learning_rate") == [5, 2, 5e-6]
    np.testing.assert_array_equal(run.steps, 2.0 * np.arange(7))
    over = read_run(FIXTURES / "verl_underscores.csv", {"group_size": 9}, config=config)
    assert numbers(over, "group_size", "refresh_interval") == [9, 2]


def test_a_configuration_overrides_the_log(tmp_path):
    config = tmp_path / "run.yaml"
    config.write_text("actor_rollout_ref:\n  rollout:\n    n: 5\n")
    run = read_run(FIXTURES / "verl_console.log", config=config)
    assert numbers(run, "group_size", "refresh_interval", "learning_rate") == [5, 4, 3e-6]


def test_a_configuration_of_another_framework_is_refused(tmp_path):
    config = tmp_path / "run.yaml"
    config.write_text("num_generations: 8\nlearning_rate: 1.0e-6\nper_device_train_batch_size: 8\n")
    with pytest.raises(ReadError, match="configuration is for trl, but .* is a log of verl"):
        read_run(FIXTURES / "verl_console.log", config=config)


def test_a_learning_rate_alone_leaves_assumptions_that_are_told():
    run = read_run(FIXTURES / "nemo_rl.json")
    assert numbers(run, "learning_rate", "group_size", "momentum") == [1e-6, 8, 0.9]
    assert any("assumed, since the log does not tell: momentum 0.9, group size 8" in w for w in run.warnings)


def test_no_learning_rate_means_no_hyperparameters():
    assert read_run(FIXTURES / "sparse.jsonl").hyperparameters is None


def test_steps_per_row_may_be_given():
    run = read_run(FIXTURES / "sparse.jsonl", steps_per_row=3)
    assert run.steps_per_row == 3.0 and run.steps[-1] == 15.0
    with pytest.raises(ReadError, match="steps_per_row must be a positive number"):
        read_run(FIXTURES / "sparse.jsonl", steps_per_row=math.nan)


def test_rows_with_an_infinite_reward_are_counted(tmp_path):
    path = tmp_path / "x.json"
    path.write_text(
        '[{"step":1,"reward":0.5},{"step":2,"reward":Infinity},{"step":2,"reward":0.25},{"step":3,"reward":NaN}]'
    )
    run = read_run(path)
    assert run.reward.tolist() == [0.5, 0.25]
    assert any("1 rows with an infinite reward" in warning for warning in run.warnings)
    assert any("1 of 4 rows have no reward" in warning for warning in run.warnings)


def test_rows_without_a_step_are_dropped_or_all_are_counted(tmp_path):
    path = tmp_path / "x.json"
    path.write_text('[{"step":1,"reward":0.1},{"reward":0.2},{"step":5,"reward":0.3}]')
    run = read_run(path)
    assert run.reward.tolist() == [0.1, 0.3]
    assert any("1 rows have a reward but no step" in warning for warning in run.warnings)
    path.write_text('[{"step":1,"reward":0.1},{"reward":0.2},{"reward":0.3}]')
    assert read_run(path).logged_steps.tolist() == [1, 2, 3]


def test_a_step_that_never_moves_is_no_step(tmp_path):
    path = tmp_path / "x.json"
    path.write_text('[{"step":0,"iteration":3,"reward":0.1},{"step":0,"iteration":6,"reward":0.2}]')
    assert read_run(path).logged_steps.tolist() == [3, 6]
