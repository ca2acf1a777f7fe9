import json
from pathlib import Path

import numpy as np
import pytest

from jaxgrpo.errors import ReadError
from jaxgrpo.logs import read_run, read_runs
from jaxgrpo.logs.trl import parse_dicts

FIXTURES = Path(__file__).parent / "fixtures"


def test_trainer_state():
    path = FIXTURES / "trl_trainer_state.json"
    run = read_run(path)
    rows = [row for row in json.loads(path.read_text())["log_history"] if "reward" in row]
    np.testing.assert_array_equal(run.reward, [row["reward"] for row in rows])
    np.testing.assert_array_equal(run.logged_steps, 5.0 * np.arange(1, 13))
    np.testing.assert_array_equal(run.steps, 5.0 * np.arange(12))
    assert run.framework == "trl" and run.steps_per_row == 1.0
    names = "loss grad_norm kl entropy reward_std learning_rate num_tokens step_time".split()
    for channel, name in {
        "length": "completions/mean_length",
        "zero_spread": "frac_reward_zero_std",
        "truncation": "completions/clipped_ratio",
        **{name: name for name in names},
    }.items():
        np.testing.assert_array_equal(run.channels[channel], [row[name] for row in rows])
    np.testing.assert_array_equal(run.parts["accuracy"], [row["rewards/accuracy/mean"] for row in rows])
    np.testing.assert_array_equal(run.parts["format"], [row["rewards/format/mean"] for row in rows])
    assert "rewards/accuracy/std" in run.extra


def test_evaluations_share_the_step_of_a_training_row():
    evaluation = read_run(FIXTURES / "trl_trainer_state.json").channels["eval_reward"]
    assert np.flatnonzero(np.isfinite(evaluation)).tolist() == [5, 11]
    np.testing.assert_allclose(evaluation[[5, 11]], [0.75, 0.81])


def test_the_closing_summary_is_no_point_and_is_told():
    run = read_run(FIXTURES / "trl_list.json")
    assert len(run) == 4
    assert any(warning.startswith("1 of 5 rows have no reward") for warning in run.warnings)


def test_an_empty_history_is_said_to_be_empty(tmp_path):
    path = tmp_path / "trainer_state.json"
    path.write_text('{"log_history": [], "global_step": 0}')
    with pytest.raises(ReadError, match="log_history is empty"):
        read_run(path)


def test_console_amid_bars_with_look_alikes_and_quoted_numbers():
    run = read_run(FIXTURES / "trl_console.log")
    # Rewards are printed as text with two digits; the two prints of the environment are no rows.
    np.testing.assert_allclose(run.reward, 0.1 * np.arange(8) + 0.05, atol=1e-12)
    assert np.isnan(run.channels["grad_norm"][2]) and np.isfinite(run.channels["grad_norm"][[0, 1, 3]]).all()
    np.testing.assert_array_equal(run.channels["length"], 50.5 + np.arange(8))
    assert set(run.parts) == {"hit", "form"}


def test_console_steps_follow_the_progress_bar():
    run = read_run(FIXTURES / "trl_console.log")
    np.testing.assert_array_equal(run.logged_steps, 5.0 * np.arange(1, 9))
    assert any("40 optimizer steps for 8 rows, so 5 a row" in warning for warning in run.warnings)


def test_console_without_a_bar_counts_its_rows(tmp_path):
    path = tmp_path / "x.log"
    path.write_text("".join(f"{{'loss': 0.1, 'reward': {0.1 * i}}}\n" for i in range(3)))
    run = read_run(path)
    assert run.logged_steps.tolist() == [1, 2, 3]
    assert any("the log has no step" in warning for warning in run.warnings)


def test_the_rest_logged_with_the_closing_summary_is_the_last_step(tmp_path):
    path = tmp_path / "x.log"
    rows = [f"\r 50%|#| {i}/47 [00:01<00:02, 1.0it/s]" for i in range(1, 48)]
    rows += [f"\n{{'loss': 0.1, 'reward': {0.1 * i}}}" for i in range(4)]
    path.write_text("".join(rows) + "\n{'train_runtime': 1.0, 'reward': 0.9, 'loss': 0.2}\n")
    assert read_run(path).logged_steps.tolist() == [10, 20, 30, 40, 47]


def test_settings_of_the_banner():
    run = read_run(FIXTURES / "trl_console.log")
    expected = dict(
        num_generations=8, per_device_train_batch_size=8, gradient_accumulation_steps=2, max_steps=40
    )
    assert run.settings == expected
    assert run.hyperparameters is not None
    assert float(run.hyperparameters.group_size) == 8.0
    assert float(run.hyperparameters.learning_rate) == pytest.approx(4e-6)


def test_sessions_end_with_their_summary():
    runs = read_runs(FIXTURES / "trl_console_sessions.log")
    assert [len(run) for run in runs] == [3, 5]
    assert [run.name for run in runs] == ["trl_console_sessions [1]", "trl_console_sessions [2]"]
    np.testing.assert_allclose(runs[1].reward, 0.5 + 0.1 * np.arange(5))
    longest = read_run(FIXTURES / "trl_console_sessions.log")
    np.testing.assert_array_equal(longest.reward, runs[1].reward)
    assert any("2 sessions of training (3 + 5 points): number 2" in warning for warning in longest.warnings)


def test_sessions_without_summary_show_in_what_only_grows(tmp_path):
    path = tmp_path / "x.log"
    rows = [(0.1, 10), (0.2, 20), (0.3, 10), (0.4, 20), (0.5, 30)]
    path.write_text("".join(f"{{'loss': 0.1, 'reward': {r}, 'num_tokens': {t}}}\n" for r, t in rows))
    assert [run.reward.tolist() for run in read_runs(path)] == [[0.1, 0.2], [0.3, 0.4, 0.5]]


@pytest.mark.parametrize(
    "line, expected",
    [
        ("50%|##| {'a': 1, 'b': '2.5'} 51%|", [{"a": 1.0, "b": 2.5}]),
        ("{'a': 1}{\"b\": 2}", [{"a": 1.0}, {"b": 2.0}]),
        ("{'a': np.float64(0.5), 'b': easy, 'c': 'x'}", [{"a": 0.5}]),
        ("{'a': __import__('os')}", []),
        ("no dictionary { here", []),
    ],
)
def test_dictionaries_in_a_line(line, expected):
    assert parse_dicts(line) == expected


@pytest.mark.parametrize(
    "spread, zero, other, names, expected",
    [
        ([0.1, 0.2], [1.0, 0.5], None, (), "over the whole batch.*every group is uniform"),
        ([0.1, 0.2], None, [0.1, 0.2], (), "over the whole batch.*equals"),
        ([0.1, 0.2], None, [0.3, 0.4], (), "within a group.*below"),
        ([0.1, 0.2], None, None, ("completion_length",), "within a group.*older names"),
        ([0.1, 0.2], [0.0, 0.5], None, (), "does not tell"),
    ],
)
def test_the_meaning_of_reward_std_is_told(tmp_path, spread, zero, other, names, expected):
    rows = []
    for i in range(2):
        row = {"step": i + 1, "reward": 0.5, "loss": 0.1, "epoch": 0.1, "reward_std": spread[i]}
        row |= {"frac_reward_zero_std": zero[i]} if zero else {}
        row |= {"rewards/f/mean": 0.5, "rewards/f/std": other[i]} if other else {}
        rows.append(row | {name: 1.0 for name in names})
    path = tmp_path / "x.json"
    path.write_text(json.dumps(rows))
    (told,) = [warning for warning in read_run(path).warnings if "reward_std" in warning]
    import re

    assert re.search(expected, told)
