from pathlib import Path

import numpy as np
import pytest

from jaxgrpo.errors import ReadError
from jaxgrpo.logs import read_run, read_runs

FIXTURES = Path(__file__).parent / "fixtures"


def test_each_run_once_with_what_its_record_says():
    runs = read_runs(FIXTURES / "campaign.json")
    assert [run.name for run in runs] == ["G2", "G8", "T1"]
    np.testing.assert_allclose(runs[0].reward, 0.1 + 0.1 * np.arange(5))
    np.testing.assert_allclose(runs[1].reward, 0.3 + 0.1 * np.arange(5))
    for run, group, rate in zip(runs, (2, 8, 4), (1e-5, 2e-5, 1e-5), strict=True):
        assert run.hyperparameters is not None
        assert float(run.hyperparameters.group_size) == group
        assert float(run.hyperparameters.learning_rate) == pytest.approx(rate)
    assert all(any("twice" in warning for warning in run.warnings) for run in runs)


def test_rows_go_before_a_bare_trace():
    run = read_run(FIXTURES / "campaign.json", run="T1")
    np.testing.assert_array_equal(run.logged_steps, [10, 20, 30, 40, 50])
    np.testing.assert_array_equal(run.channels["zero_spread"], 0.5)


def test_reading_one_run_asks_which():
    with pytest.raises(ReadError, match="holds 3 runs; choose one.*G2, G8, T1"):
        read_run(FIXTURES / "campaign.json")


def test_runs_of_one_name_are_numbered(tmp_path):
    path = tmp_path / "x.json"
    path.write_text('{"a": {"name": "r", "rewards": [1, 2]}, "b": [{"name": "r", "rewards": [3, 4]}]}')
    assert [run.name for run in read_runs(path)] == ["r #1", "r #2"]
