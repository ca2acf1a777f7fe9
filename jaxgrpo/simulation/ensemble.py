"""Ensembles: configurations x paths in tiles of one shape, with statistics that are gathered as the paths go.

A tile is a block of configurations by a block of paths, moved by one compiled program whatever the number of tiles,
of portions or of devices; a path's noise is a function of key, path and step alone. Hence the same key gives the same
numbers, bit for bit, however the work is split.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxgrpo.errors import SimulationError
from jaxgrpo.simulation.configurations import Configurations
from jaxgrpo.simulation.noise import Words
from jaxgrpo.simulation.rule import AbstractRule, Seen

# Lanes (configurations times paths) of a tile: enough to fill vector units, few enough to stay in the cache.
_LANES = 4096
# Portions that a progress bar can tell apart.
_PORTIONS = 50
# Work beyond what is needed that a loop of fixed length, which reverse mode can go through, may cost.
_SLACK = 1.25


class Moments(NamedTuple):
    """Statistics of some paths; leading axes: configurations, recorded steps."""

    count: Any
    mean: Any
    squares: Any
    reached: Any
    diverged: Any
    quantiles: Any
    quantile_variance: Any


class Plan(NamedTuple):
    """How an ensemble is cut into tiles; hashable, so that programs are compiled once for each plan.

    Attributes:
        configurations: Configurations in a tile.
        paths: Paths in a tile.
        blocks: Blocks of configurations.
        path_blocks: Blocks of paths.
        total: Paths of each configuration.
        quantiles: Levels.
        bodies: Bodies of the loop between two records, or none where their number varies.
        store: Whether the rewards of the single paths are kept.
    """

    configurations: int
    paths: int
    blocks: int
    path_blocks: int
    total: int
    quantiles: tuple[float, ...]
    bodies: int | None
    store: bool


def make_plan(
    configurations: int,
    paths: int,
    bounds: np.ndarray,
    body: int,
    quantiles: Sequence[float] = (),
    store: bool = False,
) -> Plan:
    """Cut configurations and paths into tiles; depends on the problem alone, not on the machine.

    Args:
        configurations: Number of configurations.
        paths: Paths of each.
        bounds: First and last unit of time between records, `(records, 2)`.
        body: Units of time to a body of the loop.
        quantiles: Levels.
        store: Whether rewards of single paths are kept.

    Returns:
        The plan.
    """
    path_blocks = math.ceil(paths / _LANES)
    width = math.ceil(paths / path_blocks)
    side = min(configurations, max(_LANES // width, 1))
    lengths = -(-bounds[:, 1] // body) - bounds[:, 0] // body
    longest, needed = int(lengths.max()), int(lengths.sum())
    regular = longest * len(lengths) <= _SLACK * needed + 16
    return Plan(
        side,
        width,
        math.ceil(configurations / side),
        path_blocks,
        paths,
        tuple(quantiles),
        longest if regular else None,
        store,
    )


def _statistics(plan: Plan, x, seen: Seen, valid) -> Moments:
    """Statistics of the valid ones of some paths."""
    count = jnp.sum(valid).astype(x.dtype)
    mean = jnp.sum(jnp.where(valid, x, 0.0)) / count
    squares = jnp.sum(jnp.where(valid, (x - mean) ** 2, 0.0))
    reached, diverged = (jnp.sum(flag & valid).astype(x.dtype) for flag in seen)
    if not plan.quantiles:
        none = jnp.zeros((0,), x.dtype)
        return Moments(count, mean, squares, reached, diverged, none, none)
    ordered = jnp.sort(jnp.where(valid, x, jnp.inf))
    level = jnp.asarray(plan.quantiles, x.dtype)

    def at(rank):
        rank = jnp.clip(rank, 0.0, count - 1.0)
        low = jnp.floor(rank).astype(jnp.int32)
        high = jnp.minimum(low + 1, count.astype(jnp.int32) - 1)
        part = rank - low.astype(x.dtype)
        return ordered[low] + part * (ordered[high] - ordered[low])

    rank = level * (count - 1.0)
    # Ranks one standard deviation of the binomial away: where the quantile may as well lie.
    away = jnp.sqrt(count * level * (1.0 - level))
    error = 0.5 * (at(rank + away) - at(rank - away))
    return Moments(count, mean, squares, reached, diverged, at(rank), error**2)


def _tile(rule: AbstractRule, plan: Plan, words: Words, bounds, c: Configurations, start, active):
    """Statistics of one tile: a block of configurations and the paths from `start` on."""
    paths = start + jnp.arange(plan.paths, dtype=jnp.uint32)
    valid = paths < jnp.uint32(plan.total)
    body = rule.body()

    def one(c: Configurations):
        bound = rule.bind(c)
        direction = jnp.where(c.target >= c.initial_reward, 1.0, -1.0)

        def observe(state, seen: Seen) -> Seen:
            x = jax.lax.stop_gradient(rule.reward(bound, state))
            reached = seen[0] | (direction * (x - c.target) >= 0)
            # Written so that what is not a number counts as diverged.
            return reached, seen[1] | ~(jnp.abs(x - c.plateau) <= c.bound)

        def interval(carry, ends):
            first, last = ends[0], ends[1]
            base = first // body

            def step(i, carry):
                return rule.advance(bound, words, paths, carry, base + i, first, last, observe)

            number = -(-last // body) - base if plan.bodies is None else plan.bodies
            carry = jax.lax.fori_loop(0, number, step, carry)
            x = rule.reward(bound, carry[0])
            return carry, (_statistics(plan, x, carry[1], valid), x if plan.store else None)

        state = rule.start(bound, paths)
        none = jnp.zeros(paths.shape, bool)
        carry = (state, observe(state, (none, none)))
        return jax.lax.scan(jax.checkpoint(interval), carry, jnp.where(active, bounds, 0))[1]

    return jax.vmap(one)(c)


def _tiles(rule, plan, words, bounds, c, starts, active):
    """Statistics of several tiles, one after the other."""
    return jax.lax.map(lambda x: _tile(rule, plan, words, bounds, *x), (c, starts, active))


@eqx.filter_jit
def _on_one(rule, plan, words, bounds, c, starts, active):
    return _tiles(rule, plan, words, bounds, c, starts, active)


@eqx.filter_jit
def _on_several(rule, plan, words, bounds, c, starts, active, mesh):
    across, same = PartitionSpec(mesh.axis_names), PartitionSpec()
    arrays, static = eqx.partition(rule, eqx.is_array)

    def local(arrays, words, bounds, c, starts, active):
        return _tiles(eqx.combine(arrays, static), plan, words, bounds, c, starts, active)

    spread = jax.shard_map(
        local,
        mesh=mesh,
        in_specs=(same, same, same, across, across, across),
        out_specs=across,
        check_vma=False,
    )
    return spread(arrays, words, bounds, c, starts, active)


def _blocks(plan: Plan, c: Configurations) -> Configurations:
    """Configurations in blocks, the last one filled up with copies."""
    places = np.arange(plan.blocks * plan.configurations).reshape(plan.blocks, plan.configurations)
    return jax.tree.map(lambda x: x[np.minimum(places, x.size - 1)], c)


def local_mesh(sharding: NamedSharding | Mesh | None) -> tuple[Mesh | None, int, int]:
    """The devices of a sharding that belong to this process; number of processes, and which one this is.

    Args:
        sharding: A mesh, or a sharding over one; none for JAX's default device.

    Returns:
        A one-dimensional mesh (none for the default device), the number of processes, and the place of this one.

    Raises:
        SimulationError: If this process has no device in it.
    """
    if sharding is None:
        return None, 1, 0
    mesh = sharding.mesh if isinstance(sharding, NamedSharding) else sharding
    devices = np.asarray(mesh.devices).reshape(-1)
    processes = sorted({device.process_index for device in devices})
    own = [device for device in devices if device.process_index == jax.process_index()]
    if not own:
        raise SimulationError("the sharding holds no device of this process: make the mesh of jax.devices()")
    return Mesh(np.array(own), ("tiles",)), len(processes), processes.index(jax.process_index())


class Portion(NamedTuple):
    """What one call has computed: which tiles, their statistics and, if kept, the rewards of their paths."""

    tiles: np.ndarray
    moments: Moments
    rewards: np.ndarray | None


def portions(
    rule: AbstractRule,
    plan: Plan,
    c: Configurations,
    words: Words,
    bounds: np.ndarray,
    memory: int,
    sharding: NamedSharding | Mesh | None = None,
) -> Iterator[list[Portion]]:
    """Work through all tiles, a portion on all devices at a time.

    Args:
        rule: What moves the paths.
        plan: How they are cut into tiles.
        c: The configurations.
        words: Key material.
        bounds: First and last unit of time between records.
        memory: Bytes that results on the devices may take.
        sharding: Devices to use.

    Yields:
        The portions of all processes, in the order of their tiles. Each process sees the statistics of all, and the
        rewards of its own paths.

    Raises:
        SimulationError: If another process is lost.
    """
    mesh, processes, place = local_mesh(sharding)
    devices = 1 if mesh is None else mesh.size
    total = plan.blocks * plan.path_blocks
    item = c.gain.dtype.itemsize
    records = len(bounds)
    bytes_per_tile = records * plan.configurations * (5 + 2 * len(plan.quantiles)) * item
    bytes_per_tile += plan.store * records * plan.configurations * plan.paths * item
    most = max(int(memory // max(2 * bytes_per_tile * devices, 1)), 1)
    needed = math.ceil(total / (devices * processes))
    each = max(min(most, math.ceil(needed / _PORTIONS)), 1)
    chunk = each * devices
    # As NumPy arrays: tiles are picked from them without a call of the device for each field.
    blocks = _blocks(plan, jax.tree.map(np.asarray, c))
    bounds_ = jnp.asarray(bounds, jnp.int32)
    for first in range(0, total, chunk * processes):
        own = first + place * chunk + np.arange(chunk)
        inside = np.minimum(own, total - 1)
        tile_c = jax.tree.map(lambda x, i=inside: x[i // plan.path_blocks], blocks)
        starts = jnp.asarray((inside % plan.path_blocks) * plan.paths, jnp.uint32)
        arguments = (rule, plan, words, bounds_, tile_c, starts, jnp.asarray(own < total))
        out = _on_one(*arguments) if mesh is None else _on_several(*arguments, mesh)
        moments, rewards = jax.tree.map(np.asarray, out)
        everyone = _exchange(moments, processes)
        result = []
        for process, theirs in enumerate(everyone):
            tiles = first + process * chunk + np.arange(chunk)
            kept = tiles < total
            held = rewards[kept] if rewards is not None and process == place else None
            result.append(Portion(tiles[kept], jax.tree.map(lambda x, k=kept: x[k], theirs), held))
        yield result


def _exchange(moments: Moments, processes: int) -> list[Moments]:
    """Statistics of the same portion from every process."""
    if processes == 1:
        return [moments]
    from jax.experimental import multihost_utils

    try:
        gathered = multihost_utils.process_allgather(moments)
    except Exception as error:
        reason = " ".join(str(error).split())[:160]
        raise SimulationError(
            f"a process of this simulation was lost ({reason}): chunks that were stored are complete and can be "
            "read; start again for the rest"
        ) from error
    return [jax.tree.map(lambda x, i=i: np.asarray(x[i]), gathered) for i in range(processes)]


class Totals:
    """Statistics of all paths, merged portion by portion in double precision.

    Args:
        plan: How the ensemble is cut.
        configurations: Number of configurations.
        records: Number of recorded steps.
    """

    def __init__(self, plan: Plan, configurations: int, records: int):
        self.plan, self.configurations = plan, configurations
        shape, levels = (plan.blocks * plan.configurations, records), len(plan.quantiles)
        names = {"quantiles": (levels,), "quantile_variance": (levels,)}
        self.sums = Moments(*(np.zeros((*shape, *names.get(name, ()))) for name in Moments._fields))

    def add(self, portion: Portion) -> None:
        """Merge the statistics of a portion, tile by tile in their order."""
        side = self.plan.configurations
        for tile, index in zip(portion.tiles, range(len(portion.tiles)), strict=True):
            block = tile // self.plan.path_blocks
            rows = slice(block * side, (block + 1) * side)
            new = [np.asarray(x[index], float) for x in portion.moments]
            self._merge(rows, Moments(*new))

    def _merge(self, rows: slice, new: Moments) -> None:
        # Pairwise merging after Chan, Golub and LeVeque (1979).
        old = Moments(*(x[rows] for x in self.sums))
        count = old.count + new.count
        step = new.mean - old.mean
        old.squares[...] += new.squares + step**2 * old.count * new.count / count
        old.mean[...] += step * new.count / count
        share = (new.count / count)[..., None]
        old.quantiles[...] += (new.quantiles - old.quantiles) * share
        old.quantile_variance[...] = (
            old.quantile_variance * (1 - share) ** 2 + new.quantile_variance * share**2
        )
        old.reached[...] += new.reached
        old.diverged[...] += new.diverged
        old.count[...] = count

    def moments(self) -> Moments:
        """The statistics, of the configurations alone."""
        return Moments(*(x[: self.configurations] for x in self.sums))


def traced_moments(
    rule: AbstractRule, plan: Plan, c: Configurations, words: Words, bounds: np.ndarray
) -> Moments:
    """The same statistics as one program, for use inside `jax.jit`, `jax.grad` and `jax.vmap`.

    Args:
        rule: What moves the paths.
        plan: How they are cut into tiles.
        c: The configurations.
        words: Key material.
        bounds: First and last unit of time between records.

    Returns:
        The statistics; leading axes: configurations, recorded steps.
    """
    size = c.gain.size
    blocks = _blocks(plan, c)
    index = np.arange(plan.blocks * plan.path_blocks)
    tile_c = jax.tree.map(lambda x: x[index // plan.path_blocks], blocks)
    starts = jnp.asarray((index % plan.path_blocks) * plan.paths, jnp.uint32)
    every = jnp.ones(len(index), bool)
    parts, _ = _tiles(rule, plan, words, jnp.asarray(bounds, jnp.int32), tile_c, starts, every)

    def grouped(x):
        x = x.reshape(plan.blocks, plan.path_blocks, *x.shape[1:])
        rows = (plan.path_blocks, plan.blocks * plan.configurations, *x.shape[3:])
        return jnp.moveaxis(x, 1, 0).reshape(rows)[:, :size]

    parts = Moments(*map(grouped, parts))
    count = jnp.sum(parts.count, axis=0)
    mean = jnp.sum(parts.count * parts.mean, axis=0) / count
    squares = jnp.sum(parts.squares + parts.count * (parts.mean - mean[None]) ** 2, axis=0)
    share = (parts.count / count[None])[..., None]
    return Moments(
        count,
        mean,
        squares,
        jnp.sum(parts.reached, axis=0),
        jnp.sum(parts.diverged, axis=0),
        jnp.sum(share * parts.quantiles, axis=0),
        jnp.sum(share**2 * parts.quantile_variance, axis=0),
    )


class Meter:
    """A progress bar over portions, with the time left; silent where it is not wanted.

    Args:
        total: Number of tiles.
        show: Whether to show it.
    """

    def __init__(self, total: int, show: bool):
        self.bar = None
        if show:
            from tqdm import tqdm

            self.bar = tqdm(total=total, desc="simulating", unit="tile", leave=False)

    def add(self, tiles: int) -> None:
        """So many tiles more are done."""
        if self.bar is not None:
            self.bar.update(tiles)

    def close(self) -> None:
        """Take the bar away."""
        if self.bar is not None:
            self.bar.close()
