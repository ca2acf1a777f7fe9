from pathlib import Path

import numpy as np
import pytest

from jaxgrpo.errors import ReadError
from jaxgrpo.logs import read_run

FIXTURES = Path(__file__).parent / "fixtures"


def test_the_events_of_a_step_make_a_row():
    run = read_run(FIXTURES / "event_stream.jsonl")
    np.testing.assert_array_equal(run.logged_steps, [1, 2, 3, 4])
    np.testing.assert_allclose(run.reward, 0.25 * np.arange(4))
    # Means over the two groups of each partition.
    np.testing.assert_allclose(run.channels["zero_spread"], 0.5)
    np.testing.assert_allclose(run.channels["length"], 100.5)
    np.testing.assert_allclose(run.channels["reward_std"], 0.2)
    # Numbers that were logged as text.
    np.testing.assert_allclose(run.channels["loss"], 0.0063)
    np.testing.assert_allclose(run.channels["learning_rate"], 1.7e-5)
    np.testing.assert_array_equal(run.extra["policy_version"], np.arange(4))
    assert run.hyperparameters is not None and float(run.hyperparameters.group_size) == 4.0
    assert any("24 events make 4 rows" in warning for warning in run.warnings)


def test_a_stream_without_rewards_is_refused(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text('{"event": "started", "metrics": {"latency": 1}}\n' * 3)
    with pytest.raises(ReadError, match="none of them carries a reward"):
        read_run(path)
