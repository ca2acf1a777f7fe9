import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.extend.random import threefry_2x32
from scipy import stats

from jaxgrpo.simulation.noise import _log_single, key_words, node_words, normal_at, normal_pair, threefry2x32

WORDS = st.integers(0, 2**32 - 1)


@settings(max_examples=20, deadline=None)
@given(st.tuples(WORDS, WORDS), st.tuples(WORDS, WORDS))
def test_threefry_of_twenty_rounds_is_jax_s_own(key, counter):
    key, counter = jnp.array(key, jnp.uint32), jnp.array(counter, jnp.uint32)
    ours = threefry2x32((key[0], key[1]), (counter[0], counter[1]), rounds=20)
    np.testing.assert_array_equal(jnp.stack(ours), threefry_2x32(key, counter))


@pytest.mark.parametrize(
    ("key", "counter", "published"),
    [
        ((0, 0), (0, 0), (0x9D1C5EC6, 0x8BD50731)),
        ((0xFFFFFFFF,) * 2, (0xFFFFFFFF,) * 2, (0xFD36D048, 0x2D17272C)),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xBA3E4725, 0xF27D669E)),
    ],
)
def test_threefry_of_thirteen_rounds_gives_the_answers_published_with_random123(key, counter, published):
    ours = threefry2x32(tuple(map(jnp.uint32, key)), tuple(map(jnp.uint32, counter)))
    assert tuple(map(int, ours)) == published


def draw(seed, paths, pairs, dtype):
    words = key_words(jax.random.key(seed))
    numbers = jnp.arange(paths, dtype=jnp.uint32)[:, None]
    both = jax.jit(normal_pair, static_argnums=3)(words, numbers, jnp.arange(pairs)[None, :], dtype)
    return np.stack(both, axis=-1)


def test_normals_are_standard_and_independent(precision):
    x = draw(0, 500, 400, jnp.dtype(precision))
    assert x.dtype == precision
    flat = x.reshape(-1).astype(float)
    assert stats.kstest(flat, "norm").pvalue > 0.01
    n = flat.size
    assert abs(np.mean(np.abs(flat) > 3) * n - 0.0026998 * n) < 3 * np.sqrt(0.0027 * n)
    assert abs(np.mean(flat**4) - 3.0) < 3 * np.sqrt(96 / n)
    # Between the two of a pair, between neighbouring pairs and between neighbouring paths; of squares as well.
    for a, b in ((x[..., 0], x[..., 1]), (x[:, 1:], x[:, :-1]), (x[1:], x[:-1])):
        for power in (1, 2):
            r = np.corrcoef(a.reshape(-1) ** power, b.reshape(-1) ** power)[0, 1]
            assert abs(r) < 3.5 / np.sqrt(a.size)


def test_a_normal_hangs_on_key_path_and_step_alone():
    words = key_words(jax.random.key(3))
    x = draw(3, 7, 5, jnp.float32)
    steps = jnp.arange(10)[None, :]
    one_by_one = normal_at(words, jnp.array([[5], [2]], jnp.uint32), steps, jnp.float32)
    np.testing.assert_array_equal(one_by_one, x[[5, 2]].reshape(2, 10))
    assert not np.any(draw(4, 7, 5, jnp.float32) == x)
    other = normal_pair(node_words(words, 1), jnp.arange(7, dtype=jnp.uint32), jnp.array(0), jnp.float32)
    assert not np.any(np.asarray(other[0]) == x[:, 0, 0])


def test_old_and_new_keys_and_other_generators_work():
    assert all(map(jnp.array_equal, key_words(jax.random.key(1)), key_words(jax.random.PRNGKey(1))))
    assert key_words(jax.random.key(1, impl="rbg"))[0].dtype == jnp.uint32


def test_the_logarithm_is_that_of_numpy_to_single_precision():
    x = np.concatenate([np.geomspace(2.0**-32, 1.0, 20001), 1.0 - np.geomspace(1e-7, 0.5, 5000)]).astype(
        np.float32
    )
    error = np.abs(np.asarray(_log_single(jnp.asarray(x)), float) - np.log(x.astype(float)))
    assert np.max(error / np.maximum(np.abs(np.log(x.astype(float))), 1e-7)) < 4e-7
