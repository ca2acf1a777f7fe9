import jax
import jax.numpy as jnp
import numpy as np
import pytest
from simulation_reference import linear_moments, update_rule

import jaxgrpo as jg
from jaxgrpo.simulation.noise import key_words, normal_at
from jaxgrpo.simulation.storage import read_chunks
from jaxgrpo.theory.forces import drive
from jaxgrpo.theory.groups import normal_nodes
from jaxgrpo.theory.reduction import learning_rate_gain, step_noise

KEY = jax.random.key(11)


def harmonic():
    """Made in the test, so that it has the precision in force there."""
    return jg.Task(curvature=1.0, plateau=0.8, initial_reward=0.2, rollout_noise=0.4)


def normals(path, steps):
    return np.asarray(normal_at(key_words(KEY), jnp.uint32(path), jnp.arange(steps), jnp.float64), float)


def stored(folder, hyperparameters, task, steps, paths, **options):
    jg.simulate(
        hyperparameters,
        task,
        steps=steps,
        paths=paths,
        key=KEY,
        record=range(steps + 1),
        save=folder,
        quantiles=(),
        **options,
    )
    (chunk,) = read_chunks(folder)
    return chunk["rewards"]


def warm_up(step):
    return jnp.minimum((jnp.asarray(step, float) + 1.0) / 10.0, 1.0)


SETTINGS = {
    "fresh": {},
    "held": {"refresh_interval": 3},
    "lagged": {"refresh_interval": 3, "async_lag": 2},
    "corrected in part": {"refresh_interval": 4, "async_lag": 1, "staleness": 0.3},
    "reused": {"refresh_interval": 6, "epochs_per_rollout": 2},
    "without momentum": {"momentum": 0.0, "refresh_interval": 2},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_paths_follow_the_update_rule_number_by_number(name, tmp_path, x64):
    steps, own = 23, SETTINGS[name]
    settings = jg.Hyperparameters(jnp.float64(0.3), group_size=4, **own)
    scheduled = name in ("held", "without momentum")
    rewards = stored(
        tmp_path / "runs", settings, harmonic(), steps, 3, schedule=warm_up if scheduled else None
    )
    for path in range(3):
        expected = update_rule(
            steps=steps,
            gain=float(learning_rate_gain(settings, harmonic())),
            sigma=float(step_noise(settings, harmonic())),
            momentum=own.get("momentum", 0.9),
            drive=lambda z: 0.8 - z,
            start=[0.2],
            normals=normals(path, steps),
            interval=own.get("refresh_interval", 1),
            lag=own.get("async_lag", 0),
            staleness=own.get("staleness", 1.0),
            passes=own.get("epochs_per_rollout", 1),
            factor=(lambda t: min((t + 1) / 10, 1.0)) if scheduled else lambda t: 1.0,
        )
        np.testing.assert_allclose(rewards[0, :, path], expected[:, 0], rtol=1e-12)


def test_mixed_prompts_share_the_noise_and_binary_noise_follows_the_reward(tmp_path, x64):
    force = jg.MixedDifficulty(jnp.float64(1.2), nodes=5)
    task = jg.Task(jnp.float64(2.0), 0.9, 0.3, rollout_noise=3.0, force=force)
    settings = jg.Hyperparameters(jnp.float64(0.3), group_size=4)
    rewards = stored(tmp_path / "runs", settings, task, 12, 2, noise_shape="binary")
    weights = normal_nodes(5)[1]

    def reward(z):
        return 0.9 * np.sum(weights / (1.0 + np.exp(-z)))

    for path in range(2):
        course = update_rule(
            steps=12,
            gain=float(learning_rate_gain(settings, task)) * 2.0,
            sigma=float(step_noise(settings, task)),
            momentum=0.9,
            drive=lambda z: np.asarray(drive(force, jnp.asarray(z), 0.9, jnp.float64(4.0))),
            start=np.asarray(force.initial_state(jnp.float64(0.3), jnp.float64(0.9))),
            normals=normals(path, 12),
            spread=lambda z: 2.0 * np.sqrt(reward(z) * (1.0 - reward(z))),
        )
        np.testing.assert_allclose(rewards[0, :, path], [reward(z) for z in course], rtol=1e-9)


def test_adam_s_second_moment_is_followed_step_by_step(tmp_path, x64):
    adam = jg.AdamNormalisation(signal=0.3, noise=1.5)
    task = jg.Task(jnp.float64(0.5), 0.8, 0.2, rollout_noise=0.4, adam=adam)
    settings = jg.Hyperparameters(jnp.float64(0.2), group_size=4, refresh_interval=2)
    rewards = stored(tmp_path / "runs", settings, task, 15, 2, adam_beta2=0.95)
    for path in range(2):
        v = [0.0]

        def moment(force, t, v=v):
            v[0] = 0.95 * v[0] + 0.05 * (0.3**2 * (force[0] / 0.6) ** 2 + 1.5**2 / 4)
            return np.sqrt(v[0] / (1.0 - 0.95 ** (t + 1)))

        course = update_rule(
            steps=15,
            gain=0.1 * 0.2 * 0.5,
            sigma=0.1 * 0.2 * 0.4 / 2.0,
            momentum=0.9,
            drive=lambda z: 0.8 - z,
            start=[0.2],
            normals=normals(path, 15),
            interval=2,
            moment=moment,
        )
        np.testing.assert_allclose(rewards[0, :, path], course[:, 0], rtol=1e-10)


def test_adam_dominated_by_noise_is_the_frozen_normalisation():
    adam = jg.AdamNormalisation(signal=1e-4, noise=2.0)
    task = jg.Task(1.0, 0.8, 0.2, rollout_noise=0.3, adam=adam)
    settings = jg.Hyperparameters(0.1, group_size=16)
    options = {"steps": 30, "paths": 4, "key": KEY, "record": 3, "quantiles": ()}
    simulated = jg.simulate(settings, task, adam_beta2=0.99, **options)
    frozen = jg.simulate(settings, task, **options)
    np.testing.assert_allclose(simulated.mean, frozen.mean, rtol=1e-5)


def test_moments_of_random_settings_are_those_of_the_exact_recursion():
    rng = np.random.default_rng(5)
    n, steps, paths = 20, 40, 8192
    passes = rng.integers(1, 3, n)
    interval = passes * rng.integers(1, 5, n)
    lag, staleness = rng.integers(0, 3, n), rng.choice([1.0, 0.6, 0.0], n)
    momentum, stiffness = rng.choice([0.0, 0.5, 0.9], n), 10.0 ** rng.uniform(-2.5, -1.2, n)

    def leaf(x):
        return jnp.asarray(x, jnp.float32)

    settings = jg.Hyperparameters(
        leaf(stiffness),
        momentum=leaf(momentum),
        group_size=1,
        refresh_interval=leaf(interval),
        async_lag=leaf(lag),
        staleness=leaf(staleness),
        epochs_per_rollout=leaf(passes),
        convention="heavy_ball",
    )
    record = [1, 7, 20, 40]
    runs = jg.simulate(
        settings, harmonic(), steps=steps, paths=paths, key=jax.random.key(1), record=record, quantiles=()
    )
    for i in range(n):
        mean, variance = linear_moments(
            steps=steps,
            stiffness=stiffness[i],
            sigma=0.4 * stiffness[i],
            momentum=momentum[i],
            error=-0.6,
            interval=int(interval[i]),
            lag=int(lag[i]),
            staleness=staleness[i],
            passes=int(passes[i]),
        )
        mean, variance = 0.8 + mean[record], variance[record]
        assert np.all(np.abs(runs.mean[i] - mean) < 3 * np.sqrt(variance / paths) + 1e-6)
        assert np.all(np.abs(runs.variance[i] / variance - 1.0) < 3 * np.sqrt(2 / paths))
