import builtins
from pathlib import Path

import numpy as np
import pytest

from jaxgrpo.errors import ReadError
from jaxgrpo.logs import read_run

FIXTURES = Path(__file__).parent / "fixtures"
VERL = FIXTURES / "events.out.tfevents.1700000000.verl"
TRL = FIXTURES / "events.out.tfevents.1700000001.trl"


def test_verl():
    run = read_run(VERL)
    i = np.arange(1, 8)
    np.testing.assert_array_equal(run.logged_steps, i)
    # Event files hold single precision.
    np.testing.assert_allclose(run.reward, 0.1 * i, rtol=1e-7)
    np.testing.assert_allclose(run.channels["kl"], 0.001 * i, rtol=1e-7)
    np.testing.assert_array_equal(run.channels["length"], 80.0 + i)
    assert np.flatnonzero(np.isfinite(run.channels["eval_reward"])).tolist() == [4]


def test_hugging_face_with_its_arguments():
    run = read_run(TRL)
    assert run.framework == "trl"
    # A generation every other step: rows without a reward are no points, and the steps tell.
    np.testing.assert_array_equal(run.logged_steps, [1, 3, 5, 7, 9])
    np.testing.assert_array_equal(run.steps, [0, 2, 4, 6, 8])
    np.testing.assert_allclose(run.reward, 0.1 * np.array([1, 3, 5, 7, 9]), rtol=1e-7)
    assert set(run.parts) == {"toy"}
    assert run.settings["steps_per_generation"] == 8
    assert run.hyperparameters is not None
    got = run.hyperparameters
    numbers = [float(x) for x in (got.learning_rate, got.momentum, got.group_size, got.refresh_interval)]
    np.testing.assert_allclose(numbers, [1e-5, 0.85, 4, 2], rtol=1e-6)


def test_tags_that_are_nan_throughout_are_told():
    assert any("train/nothing" in warning for warning in read_run(TRL).warnings)


def test_a_file_cut_off_keeps_what_was_written(tmp_path):
    path = tmp_path / "events.out.tfevents.1"
    path.write_bytes(VERL.read_bytes()[:-700])
    run = read_run(path)
    assert 0 < len(run) < 7
    np.testing.assert_allclose(run.reward, 0.1 * np.arange(1, len(run) + 1), rtol=1e-7)


def test_a_file_with_nothing_logged_is_said_to_hold_nothing(tmp_path):
    path = tmp_path / "events.out.tfevents.1"
    path.write_bytes(VERL.read_bytes()[:40])
    with pytest.raises(ReadError, match="holds no scalars"):
        read_run(path)


def test_the_missing_package_is_named(monkeypatch):
    genuine = builtins.__import__

    def without(name, *rest, **options):
        if name.startswith("tensorboard"):
            raise ImportError(name)
        return genuine(name, *rest, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ReadError, match=r"pip install 'jaxgrpo\[tensorboard\]'"):
        read_run(VERL)
