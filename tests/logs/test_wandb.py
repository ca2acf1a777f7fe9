from pathlib import Path

import numpy as np
import pytest

from jaxgrpo.errors import ReadError
from jaxgrpo.logs import read_run, read_runs

FIXTURES = Path(__file__).parent / "fixtures"


def test_a_long_history_gives_each_of_its_runs():
    runs = read_runs(FIXTURES / "wandb_long.csv")
    assert [run.name for run in runs] == ["lr_1e-5", "lr_3e-5"]
    for run, offset in zip(runs, (0.0, 0.2), strict=True):
        np.testing.assert_array_equal(run.logged_steps, [0, 3, 7, 11])
        np.testing.assert_allclose(run.reward, offset + 0.01 * np.array([0, 3, 7, 11]))
        assert any("held-out series 'eval/reward'" in warning for warning in run.warnings)


def test_updates_logged_within_a_step_tell_the_refresh_interval():
    run = read_run(FIXTURES / "wandb_long.csv", run="lr_1e-5")
    assert run.steps_per_row == 2.0
    np.testing.assert_array_equal(run.steps, [0, 6, 14, 22])
    assert any("logged 2 times a step" in warning for warning in run.warnings)
    np.testing.assert_allclose(run.channels["grad_norm"], [0.1, 0.4, 0.8, 0.3])


def test_one_of_several_runs_must_be_chosen():
    path = FIXTURES / "wandb_long.csv"
    with pytest.raises(ReadError, match="holds 2 runs; choose one with run=NAME.*lr_1e-5, lr_3e-5"):
        read_run(path)
    with pytest.raises(ReadError, match="no run 'lr_3e5'; did you mean 'lr_3e-5'"):
        read_run(path, run="lr_3e5")


def test_a_wide_history_with_sparse_cells():
    run = read_run(FIXTURES / "wandb_history.csv")
    np.testing.assert_array_equal(run.logged_steps, np.arange(1, 7))
    np.testing.assert_allclose(run.reward, 0.1 * np.arange(1, 7))
    np.testing.assert_allclose(run.channels["reward_std"], 0.2)
    assert run.parts == {}


def test_the_csv_of_a_chart():
    runs = read_runs(FIXTURES / "wandb_chart.csv")
    assert [run.name for run in runs] == ["alpha", "beta"]
    np.testing.assert_allclose(runs[0].reward, [0.1, 0.2, 0.3, 0.4])
    np.testing.assert_array_equal(runs[1].logged_steps, [1, 3, 4])


def test_a_table_of_runs_is_refused_with_the_reason():
    with pytest.raises(ReadError, match="one row a run without steps: there is no curve in it"):
        read_run(FIXTURES / "wandb_runs_table.csv")
