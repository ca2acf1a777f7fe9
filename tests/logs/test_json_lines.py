from pathlib import Path

import numpy as np
import pytest

from jaxgrpo.errors import ReadError
from jaxgrpo.logs import read_run, read_runs

FIXTURES = Path(__file__).parent / "fixtures"


def test_tinker_cookbook():
    run = read_run(FIXTURES / "tinker_cookbook.jsonl")
    i = np.arange(8)
    assert run.framework == "tinker-cookbook"
    np.testing.assert_array_equal(run.logged_steps, i)
    np.testing.assert_allclose(run.reward, 0.3 + 0.05 * i)
    np.testing.assert_allclose(run.channels["zero_spread"], 0.4)
    np.testing.assert_allclose(run.channels["grad_norm"], 0.2)
    # One held-out value in a training row, one in a row of its own for step 6.
    evaluation = run.channels["eval_reward"]
    assert np.flatnonzero(np.isfinite(evaluation)).tolist() == [4, 6]
    np.testing.assert_allclose(evaluation[[4, 6]], [0.6, 0.9])
    np.testing.assert_allclose(run.parts["correct"], 0.35 + 0.05 * i)


def test_a_restart_in_one_file():
    path = FIXTURES / "tinker_restart.jsonl"
    assert [run.reward.tolist() for run in read_runs(path)] == [[0.1, 0.2, 0.3], [0.15, 0.25, 0.35, 0.45]]
    assert len(read_run(path)) == 4 and len(read_run(path, segment="first")) == 3
    assert read_run(path, segment=1).reward.tolist() == [0.1, 0.2, 0.3]
    assert set(read_run(path).parts) == {"f", "g"}
    with pytest.raises(ReadError, match="no segment 3; the log holds 2"):
        read_run(path, segment=3)
    with pytest.raises(ReadError, match="segment must be"):
        read_run(path, segment="middle")


def test_roll():
    run = read_run(FIXTURES / "roll.jsonl")
    assert run.framework == "roll"
    np.testing.assert_allclose(run.reward, 0.1 * np.arange(5))
    np.testing.assert_array_equal(run.logged_steps, np.arange(1, 6))
    assert run.channels["zero_spread"].tolist() == [0.4] * 5
    assert run.channels["clip_fraction"].tolist() == [0.01] * 5


def test_nulls_and_held_out_accuracy():
    run = read_run(FIXTURES / "sparse.jsonl")
    np.testing.assert_allclose(run.reward, 0.05 * np.arange(6))
    np.testing.assert_array_equal(run.channels["eval_reward"], [0.1] + [np.nan] * 5)
    held_out = read_run(FIXTURES / "sparse.jsonl", reward="val_accuracy")
    assert held_out.reward.tolist() == [0.1]
    assert any("held-out series 'val_accuracy', as asked" in warning for warning in held_out.warnings)


def test_rows_keyed_by_iteration():
    run = read_run(FIXTURES / "iteration.jsonl")
    np.testing.assert_array_equal(run.logged_steps, np.arange(1, 7))
    np.testing.assert_allclose(run.reward, 1 + 0.1 * np.arange(6))
    assert set(run.parts) == {"format_reward", "answer_reward"}


def test_a_resumption_replaces_the_abandoned_rows():
    run = read_run(FIXTURES / "resumed.jsonl")
    assert run.reward.tolist() == [0.1, 0.2, 0.3, 0.44, 0.55, 0.66]
    assert any("checkpoint at step 4: 2 rows of the abandoned attempt" in warning for warning in run.warnings)


def test_a_last_line_cut_off_is_left_out_and_told(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text('{"step": 1, "reward": 0.5}\n{"step": 2, "reward": 0.6}\n{"step": 3, "rew')
    run = read_run(path)
    assert run.reward.tolist() == [0.5, 0.6]
    assert any("line 3 is no JSON" in warning and "the last one" in warning for warning in run.warnings)


def test_lines_that_are_mostly_damaged_are_refused(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text('{"step": 1, "reward": 0.5}\n{{\n}}\n')
    with pytest.raises(ReadError, match="line 2 is no JSON from column 2 on"):
        read_run(path)


def test_lines_longer_than_what_is_looked_at(tmp_path):
    path = tmp_path / "x.jsonl"
    filler = "x" * 70_000
    path.write_text("".join(f'{{"step": {i}, "text": "{filler}", "reward": 0.5}}\n' for i in (1, 2, 3)))
    assert read_run(path).logged_steps.tolist() == [1, 2, 3]


def test_a_mapping_for_ones_own_names():
    run = read_run(FIXTURES / "plain.jsonl", columns={"reward": "my_score", "step": "t"})
    np.testing.assert_allclose(run.reward, 0.1 * np.arange(5))
    np.testing.assert_array_equal(run.logged_steps, np.arange(5))
