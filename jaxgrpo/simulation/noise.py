"""Counter-based noise: a normal number is a function of key, path and step alone.

What a path is driven by depends on nothing else, neither on how paths are split into portions nor on the number of
devices, and configurations that are compared see common random numbers. The generator is Threefry-2x32 with 13 rounds
(Salmon, Moraes, Dror and Shaw, *Parallel random numbers: as easy as 1, 2, 3*, 2011: the fewest that pass BigCrush with
a margin), its two words give two normals by the transformation of Box and Muller.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, PRNGKeyArray, UInt32

Word = UInt32[Array, "..."]
Words = tuple[UInt32[Array, ""], UInt32[Array, ""]]

_ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)
_PARITY = 0x1BD11BDA
_LN2 = math.log(2.0)


def key_words(key: PRNGKeyArray | Array) -> Words:
    """Two words of key material from a JAX key of any implementation, new or old style.

    Args:
        key: What `jax.random.key` or `jax.random.PRNGKey` returned.

    Returns:
        The two words.
    """
    words = jax.random.bits(key, (2,), "uint32")
    return words[0], words[1]


def threefry2x32(key: tuple[Word, Word], counter: tuple[Word, Word], rounds: int = 13) -> tuple[Word, Word]:
    """Threefry-2x32: two pseudo-random words for a key and a counter.

    Written out instead of called from `jax.random`, whose loop over rounds keeps a CPU from fusing it with its use.

    Args:
        key: Two words.
        counter: Two words, of shapes that broadcast.
        rounds: Number of rounds.

    Returns:
        Two words.
    """
    schedule = (key[0], key[1], key[0] ^ key[1] ^ np.uint32(_PARITY))
    x0, x1 = counter[0] + schedule[0], counter[1] + schedule[1]
    for number in range(rounds):
        turn = _ROTATIONS[number % 8]
        x0 = x0 + x1
        x1 = ((x1 << np.uint32(turn)) | (x1 >> np.uint32(32 - turn))) ^ x0
        if number % 4 == 3:
            injection = number // 4 + 1
            x0 = x0 + schedule[injection % 3]
            x1 = x1 + schedule[(injection + 1) % 3] + np.uint32(injection)
    return x0, x1


def _log_single(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Natural logarithm of normal positive float32 numbers, by polynomial: the library's call does not vectorise."""
    bits = jax.lax.bitcast_convert_type(x, jnp.int32)
    # 0x3f3504f3 is sqrt(1/2): the mantissa is brought to between sqrt(1/2) and sqrt(2).
    exponent = (bits - np.int32(0x3F3504F3)) >> np.int32(23)
    rest = jax.lax.bitcast_convert_type(bits - (exponent << np.int32(23)), jnp.float32) - 1.0
    s = rest / (rest + 2.0)
    square = s * s
    series = 1.0 + square * (1.0 / 3.0 + square * (1.0 / 5.0 + square * (1.0 / 7.0 + square * (1.0 / 9.0))))
    return 2.0 * s * series + exponent.astype(jnp.float32) * _LN2


def _box_muller(
    first: Word, second: Word, dtype: DTypeLike
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """Two independent standard normals from two words."""
    uniform = (first >> np.uint32(1)).astype(jnp.int32).astype(dtype)
    uniform = (uniform + 0.5) * 2.0**-31
    # The angle: a quarter of the circle, and a place in it between -pi/4 and pi/4.
    place = (second & np.uint32(0x3FFFFFFF)).astype(jnp.int32).astype(dtype)
    angle = (place * 2.0**-30 - 0.5) * (0.5 * math.pi)
    quarter = (second >> np.uint32(30)).astype(jnp.int32)
    if jnp.dtype(dtype) == jnp.float32:
        logarithm = _log_single(uniform)
        square = angle * angle
        sine = angle * (1.0 - square * (1 / 6 - square * (1 / 120 - square * (1 / 5040 - square / 362880))))
        cosine = 1.0 - square * (0.5 - square * (1 / 24 - square * (1 / 720 - square / 40320)))
    else:
        logarithm, sine, cosine = jnp.log(uniform), jnp.sin(angle), jnp.cos(angle)
    radius = jnp.sqrt(-2.0 * logarithm)
    radius = jnp.where((quarter & 2) == 2, -radius, radius)
    swap = (quarter & 1) == 1
    return radius * jnp.where(swap, sine, cosine), radius * jnp.where(swap, -cosine, sine)


def normal_pair(
    words: Words, path: UInt32[Array, "..."], pair: Int[Array, "..."], dtype: DTypeLike
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """Two independent standard normals for each path.

    Args:
        words: From `key_words`.
        path: Numbers of the paths.
        pair: Number of the pair, the same for all or of a shape that broadcasts.
        dtype: Precision; the underlying uniform numbers have 31 bits in either.

    Returns:
        The normals `2 * pair` and `2 * pair + 1` of each path.
    """
    first, second = threefry2x32(words, (path, pair.astype(jnp.uint32)))
    cosine, sine = _box_muller(first, second, dtype)
    # As one complex array, which is stored: the compiler would otherwise repeat the generator in every use.
    both = jax.lax.optimization_barrier(jax.lax.complex(*jnp.broadcast_arrays(cosine, sine)))
    return both.real, both.imag


def normal_at(
    words: Words, path: UInt32[Array, "..."], step: Int[Array, "..."], dtype: DTypeLike
) -> Float[Array, "..."]:
    """One standard normal for each path: number `step` of those that `normal_pair` gives two by two."""
    even, odd = normal_pair(words, path, step >> 1, dtype)
    return jnp.where((step & 1) == 1, odd, even)


def node_words(words: Words, node: int) -> Words:
    """Key material of its own for one of several independent sources of noise."""
    if node == 0:
        return words
    # A counter that no path and step have: paths are fewer than 2^32 - 1.
    return threefry2x32(words, (jnp.uint32(0xFFFFFFFF), jnp.uint32(node)), rounds=20)
