from pathlib import Path

import numpy as np
import pytest

from jaxgrpo.errors import ReadError
from jaxgrpo.logs import read_run

FIXTURES = Path(__file__).parent / "fixtures"


def test_micro_batches_are_merged_by_their_mean():
    run = read_run(FIXTURES / "microbatches.json")
    np.testing.assert_array_equal(run.logged_steps, np.arange(5))
    np.testing.assert_allclose(run.reward, 0.1 * np.arange(5) + 0.015)
    assert any("15 rows that repeat a step" in warning for warning in run.warnings)


def test_columns_of_metrics():
    run = read_run(FIXTURES / "columnar.json")
    assert run.logged_steps.tolist() == [2, 4, 6, 8]
    assert run.reward.tolist() == [0.1, 0.2, 0.3, 0.4]
    assert any("left out: dev" in warning for warning in run.warnings)


def test_no_reward_lists_the_columns():
    with pytest.raises(
        ReadError, match="no reward column; the columns are step, loss, avg_entropy; name one"
    ):
        read_run(FIXTURES / "columnar_no_reward.json")


def test_rows_under_a_usual_name(tmp_path):
    path = tmp_path / "x.json"
    path.write_text(
        '{"config": {"lr": 1}, "history": [{"step": 1, "reward": 0.5}, {"step": 2, "reward": 0.25}]}'
    )
    assert read_run(path).reward.tolist() == [0.5, 0.25]


def test_json_cut_off_says_where(tmp_path):
    path = tmp_path / "trainer_state.json"
    path.write_text('{"log_history": [\n {"step": 1, "reward": 0.5, "loss": 0.1},\n {"step": 2, "rew')
    with pytest.raises(ReadError, match=r"cut off at line 3, column \d+"):
        read_run(path)


def test_damaged_json_says_where(tmp_path):
    path = tmp_path / "x.json"
    path.write_text('{"log_history": [\n {"step": 1 "reward": 0.5}]}')
    with pytest.raises(ReadError, match="damaged at line 2, column 13"):
        read_run(path)


def test_deep_nesting_is_refused(tmp_path):
    path = tmp_path / "x.json"
    path.write_text('{"a":' * 100_000)
    with pytest.raises(ReadError, match="nested too deeply|cut off"):
        read_run(path)


def test_all_nan_is_said(tmp_path):
    path = tmp_path / "x.json"
    path.write_text('[{"step": 1, "reward": NaN}, {"step": 2, "reward": NaN}]')
    with pytest.raises(ReadError, match="'reward' holds no finite number on any row"):
        read_run(path)
