import socket
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulation_reference import update_rule

import jaxgrpo as jg
from jaxgrpo.errors import SimulationError
from jaxgrpo.simulation.ensemble import make_plan
from jaxgrpo.simulation.simulate import recorded_steps
from jaxgrpo.simulation.storage import read_chunks
from jaxgrpo.theory.forces import AbstractForce

KEY = jax.random.key(2)
TASK = jg.Task(curvature=1.0, plateau=0.8, initial_reward=0.2, rollout_noise=0.6)
THREE = jg.Hyperparameters(jnp.array([0.02, 0.05, 2.0]), refresh_interval=4)


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """An ensemble of several tiles with the rewards of all its paths; the third setting diverges."""
    folder = tmp_path_factory.mktemp("stored") / "runs"
    options = {"steps": 60, "paths": 5000, "key": KEY, "record": 6, "target": 0.7, "bound": 2.0}
    runs = jg.simulate(THREE, TASK, save=folder, **options)
    rewards = np.zeros((3, 7, 5000), np.float32)
    for chunk in read_chunks(folder):
        rewards[np.ix_(chunk["configurations"], range(7), chunk["paths"])] = chunk["rewards"]
    return runs, rewards.astype(float), options, folder


def test_statistics_are_those_of_the_stored_paths(stored):
    runs, rewards, _, _ = stored
    assert runs.mean.shape == (3, 7) and list(runs.steps) == [0, 10, 20, 30, 40, 50, 60]
    np.testing.assert_allclose(runs.mean, rewards.mean(-1), rtol=2e-6)
    np.testing.assert_allclose(runs.variance[:, 1:], rewards[:, 1:].var(-1, ddof=1), rtol=2e-5)
    exact = np.quantile(rewards, runs.levels, axis=-1).transpose(1, 2, 0)
    assert np.all(np.abs(runs.quantiles - exact) <= runs.quantile_error + 1e-6)
    # The stated error is that of a quantile of so many paths: sqrt(q(1-q)/n)/f for a normal one.
    middle = runs.levels.index(0.5)
    normal = 1.2533 * runs.std[0, 1:] / np.sqrt(5000)
    np.testing.assert_allclose(runs.quantile_error[0, 1:, middle], normal, rtol=0.15)


def test_quantiles_of_one_tile_are_exact():
    runs = jg.simulate(THREE, TASK, steps=12, paths=101, key=KEY, record=[12], quantiles=(0.05, 0.5))
    again = jg.simulate(THREE, TASK, steps=12, paths=101, key=KEY, record=[12], quantiles=(0.95,))
    assert np.all(runs.quantiles[..., 0] < runs.quantiles[..., 1])
    assert np.all(runs.quantiles[..., 1] < again.quantiles[..., 0])
    np.testing.assert_array_equal(runs.mean, again.mean)


def test_first_passage_and_divergence_look_at_every_step(tmp_path):
    options = {"paths": 200, "key": KEY, "target": 0.7, "bound": 2.0, "quantiles": ()}
    every = jg.simulate(THREE, TASK, steps=60, record=range(61), save=tmp_path / "a", **options)
    (chunk,) = read_chunks(tmp_path / "a")
    seen = np.maximum.accumulate(chunk["rewards"] >= np.float32(0.7), axis=1).mean(-1)
    lost = np.maximum.accumulate(np.abs(chunk["rewards"] - np.float32(0.8)) > 2.0, axis=1).mean(-1)
    np.testing.assert_allclose(every.reached, seen, atol=1e-7)
    np.testing.assert_allclose(every.diverged, lost, atol=1e-7)
    assert 0 < seen[1, 30] < 1 and 0.9 < lost[2, -1] and lost[0, -1] == 0
    assert every.first_passage(0.3)[1] == np.argmax(seen[1] >= 0.3)
    rare = jg.simulate(THREE, TASK, steps=60, record=[10, 60], **options)
    np.testing.assert_array_equal(rare.reached, every.reached[:, [10, 60]])


def test_the_target_may_lie_below_the_start():
    falling = jg.Task(curvature=1.0, plateau=0.2, initial_reward=0.8, rollout_noise=0.1)
    runs = jg.simulate(jg.Hyperparameters(0.5), falling, steps=60, paths=50, key=KEY, record=4, target=0.4)
    assert runs.reached[0] == 0 and runs.reached[-1] == 1


def test_moments_stay_finite_past_instability(precision):
    settings = jg.Hyperparameters(jnp.array([3.0, 3e4], precision), refresh_interval=4)
    runs = jg.simulate(settings, TASK, steps=400, paths=20, key=KEY, record=2, quantiles=(0.5,))
    assert runs.mean.dtype == np.float64 and np.all(runs.diverged[:, -1] == 1)
    for leaf in (runs.mean, runs.variance, runs.quantiles, runs.quantile_error):
        assert np.all(np.isfinite(leaf))


def test_portions_do_not_change_a_bit(stored):
    runs, _, options, _ = stored
    small = jg.simulate(THREE, TASK, memory=40_000, **options)
    for name in ("mean", "variance", "reached", "diverged", "quantiles", "quantile_error"):
        np.testing.assert_array_equal(getattr(small, name), getattr(runs, name))


def test_configurations_and_more_paths_do_not_change_a_path(stored, tmp_path):
    _, rewards, options, _ = stored
    alone = {**options, "paths": 100}
    jg.simulate(jg.Hyperparameters(0.05, refresh_interval=4), TASK, save=tmp_path / "one", **alone)
    (chunk,) = read_chunks(tmp_path / "one")
    np.testing.assert_allclose(chunk["rewards"][0], rewards[1, :, :100], rtol=1e-6)


def run_devices(*arguments, wait=True):
    command = [sys.executable, str(Path(__file__).with_name("devices.py")), *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    return said(process) if wait else process


def said(process):
    """What it printed last, in words; the transport between processes prints lines of its own before."""
    return process.communicate(timeout=200)[0].splitlines()[-1].split(maxsplit=1)


def free_address():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{one.getsockname()[1]}"


def test_one_device_eight_devices_and_two_processes_give_the_same_bits():
    address = free_address()
    pair = [run_devices(2, address, process, 2, wait=False) for process in (0, 1)]
    eight, one = run_devices(8), run_devices(1)
    both = [said(process) for process in pair]
    assert [eight[0], one[0], both[0][0], both[1][0]] == ["8", "1", "4", "4"]
    assert len({eight[1], one[1], both[0][1], both[1][1]}) == 1


def test_a_lost_process_is_told_and_finished_chunks_stay_readable(tmp_path):
    address, folder = free_address(), tmp_path / "runs"
    pair = [run_devices(1, address, process, 2, folder, 1, wait=False) for process in (0, 1)]
    told = said(pair[0])
    pair[1].communicate(timeout=200)
    assert pair[1].returncode == 9 and pair[0].returncode == 3
    assert told[0] == "error:" and told[1].startswith("a process of this simulation was lost")
    chunks = list(read_chunks(folder))
    assert chunks and all(np.isfinite(chunk["rewards"]).all() for chunk in chunks)


def test_traced_statistics_are_the_same_and_both_modes_of_differentiation_agree():
    def runs(rate):
        return jg.simulate(
            jg.Hyperparameters(rate), TASK, steps=20, paths=5000, key=KEY, record=[20], quantiles=()
        )

    def moments(rate):
        own = runs(rate)
        return jnp.stack([own.mean[-1], own.variance[-1], own.reached[-1]])

    @jax.jit
    def both(rate):
        value, back = jax.vjp(moments, rate)
        forward = jax.jvp(moments, (rate,), (jnp.ones_like(rate),))[1]
        return value, forward, jax.vmap(back)(jnp.eye(3))[0]

    rate = jnp.float32(0.05)
    ours = runs(rate)
    value, forward, reverse = both(rate)
    np.testing.assert_allclose(value, [ours.mean[-1], ours.variance[-1], ours.reached[-1]], rtol=1e-5)
    np.testing.assert_allclose(forward, reverse, rtol=1e-5)
    # The mean does not hang on the noise: its derivative is that of the deterministic course.
    ends = [
        update_rule(
            steps=20,
            gain=0.1 * r,
            sigma=0.0,
            momentum=0.9,
            drive=lambda z: 0.8 - z,
            start=[0.2],
            normals=np.zeros(20),
        )[-1, 0]
        for r in (0.0499, 0.0501)
    ]
    assert abs(forward[0] / ((ends[1] - ends[0]) / 0.0002) - 1) < 0.02


CALLS = []


class Counting(AbstractForce):
    """A user's own force that counts how often it is traced."""

    strength: jax.Array

    def initial_state(self, initial_reward, plateau):
        return jnp.asarray(initial_reward)[None]

    def reward(self, state, plateau):
        return state[0]

    def bind(self, plateau, group_size, dtype):
        CALLS.append(1)
        return lambda z: self.strength * (plateau - z)

    def peak_slope(self):
        return 1.0


def test_other_numbers_are_not_compiled_again():
    counts = []
    for rate in (0.1, 0.2, 0.3):
        task = jg.Task(1.0, 0.8, 0.2, 0.1, force=Counting(jnp.float32(1.0 + rate)))
        jg.simulate(jg.Hyperparameters(rate), task, steps=8, paths=4, key=KEY, record=2, quantiles=())
        counts.append(len(CALLS))
    assert counts[0] > 0 and counts[1:] == counts[:1] * 2


@given(st.integers(1, 10**6), st.integers(1, 10**7), st.integers(1, 3000), st.integers(1, 200))
@settings(max_examples=60, deadline=None)
def test_tiles_cover_everything_once(configurations, paths, steps, record):
    at = recorded_steps(steps, record)
    assert at[0] == 0 and at[-1] == steps and len(at) <= record + 2 and np.all(np.diff(at) > 0)
    bounds = np.stack([np.append(0, at[:-1]), at], axis=1)
    plan = make_plan(configurations, paths, bounds, 2)
    assert plan.paths * (plan.path_blocks - 1) < paths <= plan.paths * plan.path_blocks
    assert plan.configurations * (plan.blocks - 1) < configurations <= plan.configurations * plan.blocks
    assert plan.configurations * plan.paths <= 4096


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"paths": 0}, "paths must be"),
        ({"steps": 0}, "steps must be"),
        ({"record": [3, 99]}, "between 0 and steps"),
        ({"record": [1.5]}, "whole optimizer steps"),
        ({"quantiles": (1.0,)}, "quantiles must lie"),
        ({"adam_beta2": 0.99}, "adam_beta2 needs"),
        ({"substeps": 2}, "substeps"),
        ({"memory": 10}, "record fewer steps"),
    ],
)
def test_bad_arguments_are_told_in_one_line(options, words):
    arguments = {"steps": 10, "paths": 4, "key": KEY} | options
    with pytest.raises((ValueError, SimulationError), match=words) as caught:
        jg.simulate(jg.Hyperparameters(0.1), TASK, **arguments)
    assert "\n" not in str(caught.value)


def test_shapes_that_do_not_fit_are_named():
    bad = jg.Hyperparameters(jnp.ones(3), momentum=jnp.zeros(2))
    with pytest.raises(ValueError, match=r"learning_rate \(3,\), momentum \(2,\)"):
        jg.simulate(bad, TASK, steps=10, paths=4, key=KEY)


def test_a_folder_is_never_written_over_and_an_empty_one_is_no_ensemble(stored, tmp_path):
    _, _, options, folder = stored
    with pytest.raises(SimulationError, match="holds an ensemble already"):
        jg.simulate(THREE, TASK, save=folder, **options)
    with pytest.raises(SimulationError, match="no stored ensemble"):
        list(read_chunks(tmp_path))


def test_parquet_holds_the_same(stored, tmp_path):
    pytest.importorskip("pyarrow")
    _, rewards, options, _ = stored
    jg.simulate(THREE, TASK, save=tmp_path / "runs", save_format="parquet", **options)
    for chunk in read_chunks(tmp_path / "runs"):
        own = rewards[np.ix_(chunk["configurations"], range(7), chunk["paths"])]
        np.testing.assert_array_equal(chunk["rewards"], own)


def test_without_pyarrow_parquet_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(SimulationError, match=r"jaxgrpo\[parquet\]"):
        jg.simulate(
            jg.Hyperparameters(0.1),
            TASK,
            steps=4,
            paths=2,
            key=KEY,
            save=tmp_path / "x",
            save_format="parquet",
        )
