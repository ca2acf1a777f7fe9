from pathlib import Path

import numpy as np
import pytest

from jaxgrpo.logs import read_run

FIXTURES = Path(__file__).parent / "fixtures"


def test_bars_with_percentages():
    run = read_run(FIXTURES / "homemade_bars.log")
    np.testing.assert_allclose(run.reward, 0.125 * np.arange(6))
    np.testing.assert_array_equal(run.logged_steps, np.arange(1, 7))
    np.testing.assert_allclose(run.channels["loss"], -1.5 * np.arange(6))
    np.testing.assert_allclose(run.extra["acc"], 0.125 * np.arange(6))
    assert run.hyperparameters is not None
    assert float(run.hyperparameters.learning_rate) == pytest.approx(5e-6)
    assert float(run.hyperparameters.group_size) == 4.0


def test_steps_go_on_from_epoch_to_epoch():
    run = read_run(FIXTURES / "homemade_epochs.log")
    np.testing.assert_array_equal(run.logged_steps, np.arange(1, 9))
    np.testing.assert_allclose(run.reward, 0.1 * np.arange(1, 9))
    np.testing.assert_allclose(run.channels["kl"][:4], [-0.0001, -0.0002, -0.0003, -0.0004])
    assert run.channels["length"].tolist() == [101, 102, 103, 104] * 2
    np.testing.assert_allclose(run.channels["learning_rate"], 1e-6)


def test_summed_rewards_are_divided_by_their_number():
    run = read_run(FIXTURES / "python_logging.log")
    np.testing.assert_allclose(run.reward, (4 + 4 * np.arange(5)) / 32)
    np.testing.assert_allclose(run.parts["format_reward"], 0.5)
    np.testing.assert_allclose(run.parts["answer_reward"], run.reward)
    np.testing.assert_array_equal(run.logged_steps, np.arange(5))
    assert np.flatnonzero(np.isfinite(run.channels["eval_reward"])).tolist() == [2]
    assert run.channels["eval_reward"][2] == 0.45
    assert any("divided by the number of samples" in warning for warning in run.warnings)


def test_a_line_with_nothing_but_a_reward_is_no_row(tmp_path):
    path = tmp_path / "x.log"
    path.write_text(
        "Reward: 0.5\nstep 1: reward = 0.25, loss = 0.1\nReward: 0.7\nstep 2: reward: 0.5, loss: 0.2\n"
    )
    run = read_run(path)
    assert run.reward.tolist() == [0.25, 0.5] and run.logged_steps.tolist() == [1, 2]
