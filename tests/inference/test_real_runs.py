"""Runs of a 7B model on GSM8K, on policy and one set of rollouts behind, where the public logs are at hand."""

import jax
import numpy as np
import pytest

import jaxgrpo as jg
from jaxgrpo.inference.models import MODELS, OPTIMIZER_MOMENTUM

# Five completions for 1024 prompts, in mini-batches of 256: four optimizer steps a row.
SETTINGS = dict(learning_rate=1e-6, group_size=5, refresh_interval=4, prompts_per_step=256)
TRAILING = {
    "verl-async-gsm8k_qwen2_7b_off_ppl": 0.985,
    "verl-async-q7b_mcore_off": 0.985,
}


def explained(values, mean):
    return 1.0 - np.sum((values - mean) ** 2) / np.sum((values - values.mean()) ** 2)


@pytest.fixture(scope="module")
def on_policy(real_logs):
    run = jg.read_run(real_logs / "verl-async-gsm8k_qwen2_7b_base", jg.Hyperparameters(**SETTINGS))
    return jg.fit(run)


def test_fit_of_the_run_on_policy(on_policy):
    run = on_policy.run
    np.testing.assert_array_equal(run.steps, 4.0 * np.arange(len(run)))
    assert on_policy.r_squared >= 0.985
    assert on_policy.r_squared == pytest.approx(explained(run.reward, on_policy.mean(run.steps)), rel=1e-9)
    assert on_policy.r_squared > on_policy.models["exponential"].r_squared
    assert on_policy.models[on_policy.model].converged
    assert on_policy.r_squared < on_policy.explained_ceiling
    # The lag is told by a model whose inertia is the optimizer's.
    assert MODELS[on_policy.model].momentum == OPTIMIZER_MOMENTUM


@pytest.mark.parametrize("name", TRAILING)
def test_trailing_runs_are_predicted_without_refitting(on_policy, real_logs, name):
    """Of zero, one and two sets of rollouts behind, one explains a run that trails by one."""
    found = {}
    for lag in (0, 1, 2):
        h = jg.Hyperparameters(**SETTINGS, async_lag=lag)
        run = jg.read_run(real_logs / name, h)
        rows = run.logged_steps - run.logged_steps[0]
        np.testing.assert_array_equal(run.steps, 4.0 * np.maximum(rows - lag, 0.0))
        with jax.enable_x64(True):
            predicted = np.asarray(jg.predict(h, on_policy.task, run.steps).mean)
        found[lag] = explained(run.reward, predicted)
    assert found[1] >= TRAILING[name], found
    assert found[1] > found[0] and found[1] > found[2], found
