from pathlib import Path

import numpy as np

from jaxgrpo.logs import read_run

FIXTURES = Path(__file__).parent / "fixtures"


def test_metrics_by_step():
    run = read_run(FIXTURES / "nemo_rl.json")
    i = np.arange(1, 9)
    assert run.framework == "nemo-rl"
    np.testing.assert_array_equal(run.logged_steps, i)
    np.testing.assert_allclose(run.reward, 0.1 * i)
    np.testing.assert_allclose(run.channels["kl"], 0.002 * i)
    # Percentages of groups of reward 0 and of reward 1.
    np.testing.assert_allclose(run.channels["zero_spread"], (20 + 10 + i) / 100)
    np.testing.assert_array_equal(run.channels["length"], 500.0 + i)
    np.testing.assert_array_equal(run.channels["eval_reward"][[3, 7]], [0.3, 0.6])
    assert np.isfinite(run.channels["eval_reward"]).sum() == 2


def test_metrics_on_another_clock_are_left_out_and_told():
    run = read_run(FIXTURES / "nemo_rl.json")
    assert not any(name.startswith("ray/") for name in run.extra)
    assert any("ray/node.0.gpu.0.util" in warning for warning in run.warnings)
