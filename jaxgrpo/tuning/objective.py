r"""Predicted courses as functions of the settings, fast enough to be searched through, and what is asked of them.

The course follows the exact map of the refresh cycle, for every draw from the task's posterior. A run of many cycles is
followed in a fixed number of strides: within a stride the force is linear about the state it begins with, and the stride's
whole number of cycles is one power of the resulting affine map. That is exact for linear forces, exact for any force as
long as a stride is one cycle, and second order in the stride otherwise, with the stability of the cycle map kept.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxgrpo.inference.problem import FORCE_POINTS, FORCE_REACH, force_table
from jaxgrpo.theory.cycle import cycle_responses, momentum_sums, noise_covariance
from jaxgrpo.theory.forces import Harmonic, KLAnchored, MixedCurvature, MixedDifficulty, Softmax
from jaxgrpo.theory.hyperparameters import Convention, Hyperparameters, as_float_leaf
from jaxgrpo.theory.numerics import momentum_power, safe_sqrt
from jaxgrpo.theory.reduction import learning_rate_gain, step_noise
from jaxgrpo.theory.task import Task
from jaxgrpo.tuning.cost import Prices

# Group sizes at which the forces are tabulated: exact there, linear in 1/G in between.
GROUP_SIZES = np.array(
    [*range(2, 17), 18, 20, 22, 24, 28, 32, 36, 40, 48, 56, 64, 80, 96, 128, 192, 256, 512, 1024], float
)
_SPACING = 2.0 * FORCE_REACH / (FORCE_POINTS - 1)
# Of the 31 nodes that a fit has for prompts of mixed difficulty; fewer are enough to compare settings by.
NODES = 9
# Strides to a run.
STRIDES = 40
# Strides kept for what the powers of two leave over.
_LAST = 12
# Three-point Gauss-Hermite rule for the spread of the end about its mean.
_OFFSETS, _WEIGHTS = (-(3.0**0.5), 0.0, 3.0**0.5), (1.0 / 6.0, 2.0 / 3.0, 1.0 / 6.0)


class Design(eqx.Module):
    """A point of the search: the settings that may be tuned, as real numbers.

    Args:
        learning_rate: Peak learning rate.
        momentum: Momentum.
        group_size: Completions per prompt.
        prompts_per_step: Prompts per optimizer step.
        minibatches_per_rollout: Fresh mini-batches per set of rollouts, $S$.
        epochs_per_rollout: Passes over them, $I$; $K = S I$.
        warmup: Share of the run in which the learning rate rises linearly from zero.
        final_rate: Learning rate at the end over its peak; it falls linearly after the warm-up.
    """

    learning_rate: Float[Array, "..."] = eqx.field(converter=as_float_leaf)
    momentum: Float[Array, "..."] = eqx.field(converter=as_float_leaf)
    group_size: Float[Array, "..."] = eqx.field(converter=as_float_leaf)
    prompts_per_step: Float[Array, "..."] = eqx.field(converter=as_float_leaf)
    minibatches_per_rollout: Float[Array, "..."] = eqx.field(converter=as_float_leaf)
    epochs_per_rollout: Float[Array, "..."] = eqx.field(converter=as_float_leaf)
    warmup: Float[Array, "..."] = eqx.field(converter=as_float_leaf, default=0.0)
    final_rate: Float[Array, "..."] = eqx.field(converter=as_float_leaf, default=1.0)

    def hyperparameters(self, async_lag: float, staleness: float, convention: Convention) -> Hyperparameters:
        """The design as hyperparameters, with what it does not hold.

        Args:
            async_lag: Async lag.
            staleness: Staleness.
            convention: Convention of the momentum.

        Returns:
            The hyperparameters.
        """
        return Hyperparameters(
            learning_rate=self.learning_rate,
            momentum=self.momentum,
            group_size=self.group_size,
            refresh_interval=self.minibatches_per_rollout * self.epochs_per_rollout,
            prompts_per_step=self.prompts_per_step,
            epochs_per_rollout=self.epochs_per_rollout,
            async_lag=async_lag,  # pyright: ignore[reportArgumentType]
            staleness=staleness,  # pyright: ignore[reportArgumentType]
            convention=convention,
        )


def design_of(
    hyperparameters: Hyperparameters,
    warmup: Float[Array, ""] | float | int = 0.0,
    final_rate: Float[Array, ""] | float | int = 1.0,
) -> Design:
    """The design of given hyperparameters.

    Args:
        hyperparameters: One configuration.
        warmup: Share of the run that is warm-up.
        final_rate: Learning rate at the end over its peak.

    Returns:
        The design.
    """
    h = hyperparameters
    return Design(
        h.learning_rate,
        h.momentum,
        h.group_size,
        h.prompts_per_step,
        h.minibatches_per_rollout,
        h.epochs_per_rollout,
        warmup,  # pyright: ignore[reportArgumentType]
        final_rate,  # pyright: ignore[reportArgumentType]
    )


class Ensemble(eqx.Module):
    """Draws of a task from its posterior, prepared for many evaluations.

    Attributes:
        task: The task, with a leading axis of draws on its leaves.
        start: Coordinates of the initial policy, draws by nodes.
        rows: Softmax force on the grid of logits, one row for each of `GROUP_SIZES`; empty for linear forces.
        staleness: Uncorrected part of the lag, known.
        inertia: Inertial time of a model that has its own instead of the optimizer's, in steps.
        depth: Async lag in sets of rollouts, whole.
        convention: Of the momentum.
    """

    task: Task
    start: Float[Array, "draws nodes"]
    rows: Float[Array, "groups points"]
    staleness: float = eqx.field(static=True)
    inertia: Float[Array, ""] | None
    depth: int = eqx.field(static=True)
    convention: Convention = eqx.field(static=True)

    @property
    def draws(self) -> int:
        """Number of draws."""
        return self.start.shape[0]

    def hyperparameters(self, design: Design) -> Hyperparameters:
        """The design with the lag and the convention of the run."""
        return design.hyperparameters(float(self.depth), self.staleness, self.convention)


class Course(NamedTuple):
    """Predicted courses of one design, one row a draw.

    Attributes:
        steps: Optimizer steps, strides and end.
        cost: What the run has cost by then.
        reward: Expected reward (mean field).
        end_reward: Expected reward at the end of the budget, gradient noise averaged over.
        end_std: Standard deviation that gradient noise gives the policy's reward at the end.
        total_steps: Steps that the budget pays for.
        plateau: Fixed point of each draw.
        sign: 1 where reward is to rise to it, -1 where it falls.
        hyperparameters: The settings.
    """

    steps: Float[Array, " grid"]
    cost: Float[Array, " grid"]
    reward: Float[Array, "draws grid"]
    end_reward: Float[Array, " draws"]
    end_std: Float[Array, " draws"]
    total_steps: Float[Array, ""]
    plateau: Float[Array, " draws"]
    sign: Float[Array, " draws"]
    hyperparameters: Hyperparameters


Objective = Callable[[Course], Float[Array, ""]]


def prepare(
    tasks: Task,
    hyperparameters: Hyperparameters,
    inertia: float | None = None,
    nodes: int = NODES,
) -> Ensemble:
    """Prepare draws of a task for many evaluations.

    Args:
        tasks: The task, with a leading axis of draws on every leaf.
        hyperparameters: Where lag, staleness and convention come from.
        inertia: Inertial time of a model that has its own.
        nodes: Nodes of a force with prompts of mixed difficulty.

    Returns:
        The ensemble.

    Raises:
        ValueError: If the async lag is not a whole number.
    """
    lag = float(hyperparameters.async_lag)
    if lag != round(lag):
        raise ValueError(f"async_lag must be a whole number to be tuned at, got {lag:g}")
    force = tasks.force
    base = force.base if isinstance(force, KLAnchored) else force
    if isinstance(base, MixedDifficulty) and base.nodes > nodes:
        base = MixedDifficulty(base.spread, base.normalisation, base.floor, nodes)
        force = KLAnchored(base, force.beta, force.reference) if isinstance(force, KLAnchored) else base
        tasks = eqx.tree_at(lambda t: t.force, tasks, force)
    start = eqx.filter_jit(
        eqx.filter_vmap(lambda t: t.force.initial_state(t.initial_reward, t.plateau) + 0.0 * t.plateau)
    )(tasks)
    rows = np.zeros((0, 0))
    if isinstance(base, Softmax | MixedDifficulty):
        row = 0 if base.normalisation == "std" else 1
        rows = np.stack([force_table(float(g))[row] for g in GROUP_SIZES])
    return Ensemble(
        tasks,
        start,
        jnp.asarray(rows, start.dtype),
        float(hyperparameters.staleness),
        None if inertia is None else jnp.asarray(inertia, start.dtype),
        round(lag),
        hyperparameters.convention,
    )


def stack_tasks(task: Task, draws: int = 1) -> Task:
    """Repeat a task along a new leading axis of draws."""
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (draws, *jnp.shape(x))), task)


def _row(rows, group_size):
    """Force of groups of a real size, linear in 1/G between the tabulated sizes."""
    x = 1.0 / jnp.clip(group_size, GROUP_SIZES[0], GROUP_SIZES[-1])
    knots = jnp.asarray(1.0 / GROUP_SIZES, x.dtype)
    i = jnp.clip(jnp.sum(knots > x) - 1, 0, len(GROUP_SIZES) - 2)
    part = (knots[i] - x) / (knots[i] - knots[i + 1])
    return rows[i] + part * (rows[i + 1] - rows[i])


def _tabulated(row, z):
    """Value and slope of a tabulated force."""
    x = jnp.clip((z + FORCE_REACH) / _SPACING, 0.0, FORCE_POINTS - 1.001)
    i = jnp.floor(x).astype(jnp.int32)
    low, high = row[i], row[i + 1]
    inside = jnp.abs(z) < FORCE_REACH
    slope = jnp.where(inside, (high - low) / _SPACING, 0.0)
    return low + (x - i.astype(x.dtype)) * (high - low), slope


def _force(force, plateau, row, z):
    """Force per unit of curvature at the coordinates, and its slope."""
    if isinstance(force, Harmonic):
        return plateau - z, -jnp.ones_like(z)
    if isinstance(force, MixedCurvature):
        drive = force.bind(plateau, jnp.inf, z.dtype)
        return drive(z), drive(z + 1.0) - drive(z)
    value, slope = _tabulated(row, z)
    if isinstance(force, KLAnchored):
        p = jax.nn.sigmoid(z)
        pq = p * jax.nn.sigmoid(-z)
        away = z - force.reference
        return value - force.beta * away * pq, slope - force.beta * (pq + away * pq * (1.0 - 2.0 * p))
    return value, slope


def _mul(a, b):
    """Product of small matrices written out, entries arrays or None for zero."""
    size = len(a)
    return [
        [
            _sum([a[i][k] * b[k][j] for k in range(size) if a[i][k] is not None and b[k][j] is not None])
            for j in range(size)
        ]
        for i in range(size)
    ]


def _apply(a, x):
    return [
        _sum([row[k] * x[k] for k in range(len(x)) if row[k] is not None and x[k] is not None]) for row in a
    ]


def _sum(terms):
    if not terms:
        return None
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def _cycle_matrix(responses, stale_slope, depth):
    """Map of (e, u, errors at earlier refreshes) over a cycle, and the response to a unit force."""
    moved, held, left, reduced, momentum = responses
    size = 2 + depth
    matrix: list[list[Any]] = [[jnp.zeros_like(stale_slope) for _ in range(size)] for _ in range(size)]
    one = jnp.ones_like(stale_slope)
    matrix[0][0] = one - reduced * moved
    matrix[0][1] = one * momentum * held
    matrix[1][0] = -reduced * held * one
    matrix[1][1] = one * left
    acting = 0 if depth == 0 else size - 1
    matrix[0][acting] = matrix[0][acting] + moved * stale_slope
    matrix[1][acting] = matrix[1][acting] + held * stale_slope
    for i in range(2, size):
        matrix[i][0 if i == 2 else i - 1] = one
    return matrix


def _transposed(a):
    return [list(row) for row in zip(*a, strict=True)]


def _add(a, b):
    return [[x + y for x, y in zip(r, s, strict=True)] for r, s in zip(a, b, strict=True)]


def _bounded(tree):
    """Powers of an unstable map overflow: bound them, far beyond what can be meant."""
    return jax.tree.map(lambda x: jnp.clip(x, -1e30, 1e30), tree)


def _many_cycles(matrix, constant, vector, doublings):
    r"""A vector after $2^j$ cycles of an affine map whose matrix is 2 by 2.

    By Cayley and Hamilton $M^n = a_n M + b_n$ and $\sum_{i<n} M^i = p_n M + q_n$, so that a doubling is a few scalars.
    """
    (m00, m01), (m10, m11) = matrix
    trace, det = m00 + m11, m00 * m11 - m01 * m10
    one, zero = jnp.ones_like(trace), jnp.zeros_like(trace)

    def double(_, carry):
        a, b, p, q = carry
        ap = a * p
        p, q = p + ap * trace + a * q + b * p, q - ap * det + b * q
        a, b = 2.0 * a * b + a * a * trace, b * b - a * a * det
        return _bounded((a, b, p, q))

    a, b, p, q = jax.lax.fori_loop(0, doublings, double, (one, zero, zero, one))
    (x, y), (c, d) = vector, constant
    return [
        a * (m00 * x + m01 * y) + b * x + p * (m00 * c + m01 * d) + q * c,
        a * (m10 * x + m11 * y) + b * y + p * (m10 * c + m11 * d) + q * d,
    ]


def _many_cycles_deep(matrix, constant, vector, doublings):
    """The same for the larger matrix of a run with async lag."""

    def double(_, carry):
        matrix, constant = carry
        constant = [x + y for x, y in zip(_apply(matrix, constant), constant, strict=True)]
        return _bounded((_mul(matrix, matrix), constant))

    matrix, constant = jax.lax.fori_loop(0, doublings, double, (matrix, constant))
    return [x + y for x, y in zip(_apply(matrix, vector), constant, strict=True)]


def _carried(matrix, covariance, noise):
    return _add(_mul(_mul(matrix, covariance), _transposed(matrix)), noise)


def _grown(matrix, noise, covariance, doublings):
    """Covariance after $2^j$ cycles."""

    def double(_, carry):
        matrix, noise = carry
        return _bounded((_mul(matrix, matrix), _carried(matrix, noise, noise)))

    matrix, noise = jax.lax.fori_loop(0, doublings, double, (matrix, noise))
    return _carried(matrix, covariance, noise)


def schedule_factor(
    share: Float[Array, "..."], warmup: Float[Array, "..."], final_rate: Float[Array, "..."]
) -> Float[Array, "..."]:
    """Learning rate over its peak at a share of the run: a linear rise, then a linear fall.

    Args:
        share: Share of the run that has passed, in [0, 1].
        warmup: Share that is warm-up.
        final_rate: Rate at the end over its peak.

    Returns:
        The factor.
    """
    rising = share / jnp.maximum(warmup, 1e-9)
    fall = (share - warmup) / jnp.maximum(1.0 - warmup, 1e-9)
    return jnp.where(share < warmup, rising, 1.0 - (1.0 - final_rate) * jnp.maximum(fall, 0.0))


def _acting(design: Design, ensemble: Ensemble) -> Hyperparameters:
    """The settings that move the mean: with the model's own inertia where it has one."""
    h = ensemble.hyperparameters(design)
    if ensemble.inertia is None:
        return h
    own = ensemble.inertia / (1.0 + ensemble.inertia)
    rate = h.learning_rate * h.dampening / (1.0 - h.momentum)
    h = eqx.tree_at(lambda x: (x.momentum, x.learning_rate), h, (own, rate))
    return Hyperparameters(
        h.learning_rate,
        h.momentum,
        h.group_size,
        h.refresh_interval,
        h.prompts_per_step,
        h.epochs_per_rollout,
        h.async_lag,
        h.staleness,
        "ema",
    )


def course(
    design: Design,
    ensemble: Ensemble,
    total_steps: Float[Array, ""],
    strides: int = STRIDES,
    noise: bool = True,
) -> tuple[Float[Array, " grid"], Float[Array, "draws grid"], Float[Array, " draws"], Float[Array, " draws"]]:
    """Predicted courses of a design.

    Args:
        design: The settings.
        ensemble: The task's draws.
        total_steps: Optimizer steps, a real number.
        strides: Points at which the course is looked at.
        noise: Whether to follow the gradient noise as well.

    Returns:
        Steps, expected rewards, expected reward at the end with the noise averaged over, and its standard deviation.
    """
    h = _acting(design, ensemble)
    momentum, k, rho = h.momentum, h.refresh_interval, ensemble.staleness
    row = _row(ensemble.rows, h.group_size) if ensemble.rows.size else ensemble.rows
    edges, doublings = _strides(total_steps / k, strides)
    # The last stride is what is left of the last cycle, by the same closed form.
    rest = jnp.maximum(total_steps - edges[-1] * k, 0.0)
    lengths = jnp.concatenate([jnp.broadcast_to(k, (strides,)), rest[None]])
    doublings = jnp.concatenate([doublings, jnp.zeros(1, doublings.dtype)])
    times = jnp.concatenate([edges * k, total_steps[None]])
    middle = 0.5 * (times[1:] + times[:-1]) / jnp.maximum(total_steps, 1e-9)
    factors = schedule_factor(middle, design.warmup, design.final_rate)
    # A stride without a cycle has no length.
    lengths = jnp.where(doublings >= 0, lengths, 0.0)
    whole, last, none = (_held(momentum, n) for n in (k, rest, jnp.zeros_like(k)))
    pick = lambda a, b, c: jnp.concatenate([jnp.where(doublings[:-1] >= 0, a, c), b[None]])
    held = tuple(pick(a, b, c) for a, b, c in zip(whole, last, none, strict=True))
    unit = jnp.zeros((strides + 1, 2, 2), k.dtype)
    if noise:
        unit = unit.at[:-1].set(noise_covariance(momentum, k, 1.0, h.epochs_per_rollout))
        unit = unit.at[-1].set(noise_covariance(momentum, rest, 1.0))
        unit = jnp.where((doublings >= 0)[:, None, None], unit, 0.0)
    depth, size = ensemble.depth, 2 + ensemble.depth

    def single(task: Task, start):
        gain = learning_rate_gain(h, task) * task.curvature
        sigma = step_noise(h, task)
        exponent = task.learning_rate_exponent
        readout = jax.grad(lambda z: task.force.reward(z, task.plateau))

        scales = jnp.where(factors > 0, jnp.exp(exponent * jnp.log(jnp.maximum(factors, 1e-12))), 0.0)

        def maps_of(slope, length, known):
            """Map of a cycle where the force has a slope; a held force is felt in part at the current policy."""
            responses = _responses(momentum, -slope, length, rho, known)
            return responses, _cycle_matrix(responses, rho * slope, depth)

        def stride(state, inputs):
            count, scale, length, known, unit = inputs
            doublings = jnp.maximum(count, 0)
            z, u, history, covariance = state
            acting = history[-1] if depth else z
            force, slope = _force(task.force, task.plateau, row, acting)
            responses, matrix = maps_of(gain * scale * slope, length, known)
            constant = [response * (gain * scale) * force for response in responses[:2]]
            constant += [jnp.zeros_like(z)] * depth
            if noise:
                weights = jnp.abs(readout(z))
                share = weights / jnp.maximum(jnp.sum(weights), 1e-30)
                at_node = slope if depth == 0 else _force(task.force, task.plateau, row, z)[1]
                common = maps_of(gain * scale * jnp.sum(share * at_node), length, known)[1]
                zero = jnp.zeros_like(length)
                level = (sigma * scale) ** 2
                added = [
                    [level * unit[i, j] if i < 2 and j < 2 else zero for j in range(size)]
                    for i in range(size)
                ]
                later = _bounded(_grown(common, added, covariance, doublings))
                covariance = jax.tree.map(lambda new, old: jnp.where(count >= 0, new, old), later, covariance)
            vector = [z - acting, u, *(old - acting for old in history)]
            power = _many_cycles_deep if depth else _many_cycles
            moved = power(matrix, constant, vector, doublings)
            earlier = [
                jnp.where(count >= 0, acting + old, was) for old, was in zip(moved[2:], history, strict=True)
            ]
            state = (acting + moved[0], moved[1], earlier, covariance)
            return state, task.force.reward(state[0], task.plateau)

        zero = jnp.zeros((), start.dtype)
        still = [[zero] * size for _ in range(size)] if noise else None
        state = (start, jnp.zeros_like(start), [start] * depth, still)
        (z, _, _, covariance), rewards = jax.lax.scan(stride, state, (doublings, scales, lengths, held, unit))
        curve = jnp.concatenate([task.force.reward(start, task.plateau)[None], rewards])
        if covariance is None:
            return curve, rewards[-1], zero
        deviation = safe_sqrt(covariance[0][0])
        around = [
            w * task.force.reward(z + o * deviation, task.plateau)
            for o, w in zip(_OFFSETS, _WEIGHTS, strict=True)
        ]
        return curve, sum(around), jnp.abs(jnp.sum(readout(z))) * deviation

    curves, ends, stds = eqx.filter_vmap(single)(ensemble.task, ensemble.start)
    return times, curves, ends, stds


def _strides(cycles, strides: int):
    """Whole cycles at which the strides end, and the power of two that each is long (-1 for none).

    One cycle a stride where that suffices; otherwise the strides lengthen along the run, whose course bends early.
    """
    cycles = jax.lax.stop_gradient(cycles)
    whole = jnp.floor(cycles + 1e-9)
    usable = strides - _LAST
    slope = jnp.where(whole > strides, 2.0 * whole / usable**2, 0.0)

    def take(done, i):
        left = whole - done
        wanted = jnp.minimum(jnp.maximum(slope * (i + 1.0), 1.0), left)
        power = jnp.floor(jnp.log2(jnp.maximum(wanted, 1.0)) + 1e-9)
        power = jnp.where(left >= 1.0, power, -1.0)
        done = done + jnp.where(power >= 0.0, 2.0**power, 0.0)
        return done, (done, power.astype(jnp.int32))

    _, (edges, powers) = jax.lax.scan(take, jnp.zeros_like(whole), jnp.arange(strides, dtype=whole.dtype))
    return jnp.concatenate([jnp.zeros_like(edges[:1]), edges]), powers


def _held(momentum, length):
    """Displacement and velocity that a unit force held for some steps leaves, and what is left of a velocity."""
    held, moved = momentum_sums(momentum, length)
    return moved, held, momentum_power(momentum, length)


def _responses(momentum, stiffness, length, staleness, known):
    """The same where part of the force follows the current policy, with the stiffness that it feels."""
    if staleness == 1.0:
        return *known, jnp.zeros_like(stiffness), momentum
    return *cycle_responses(momentum, stiffness, length, staleness), momentum


def evaluate(
    design: Design,
    ensemble: Ensemble,
    prices: Prices,
    budget: Float[Array, ""],
    strides: int = STRIDES,
    noise: bool = True,
) -> Course:
    """Follow a design to the end of a budget.

    Args:
        design: The settings.
        ensemble: The task's draws.
        prices: What a run's parts cost.
        budget: What may be spent.
        strides: Points at which the course is looked at.
        noise: Whether to follow the gradient noise as well.

    Returns:
        The courses.
    """
    h = ensemble.hyperparameters(design)
    per_step = prices.per_step(h)
    total = budget / per_step
    steps, rewards, ends, stds = course(design, ensemble, total, strides, noise)
    plateau = ensemble.task.plateau
    sign = jnp.where(plateau >= ensemble.task.initial_reward, 1.0, -1.0)
    return Course(steps, steps * per_step, rewards, ends, stds, total, plateau, sign, h)


def counted_reward(course: Course) -> Float[Array, " draws"]:
    """Expected reward at the end of the budget; a swing beyond the plateau counts as much below it.

    A run is not to end at the top of a swing by design. A draw that diverges loses the way from start to plateau once, and no
    more: how far it is away when the budget ends means nothing.
    """
    way = jnp.abs(course.plateau - course.reward[:, 0])
    away = jnp.abs(course.plateau - course.end_reward)
    away = jnp.where(jnp.isfinite(away), jnp.minimum(away, 2.0 * way), 2.0 * way)
    return course.plateau - course.sign * away


def final_reward(course: Course) -> Float[Array, ""]:
    """Objective: the counted reward at the end, averaged over the posterior (to be large)."""
    return jnp.mean(counted_reward(course))


class CostToReach(eqx.Module):
    """Objective: the expected cost to reach a target reward, as little as possible.

    Where a draw does not reach the target within the budget, the whole budget counts, times one more than the share of the
    way that is still missing; so that the outcome is finite and still falls as the run gets closer.

    Args:
        target: The reward to reach.
    """

    target: Float[Array, ""] = eqx.field(converter=as_float_leaf)

    def __call__(self, course: Course) -> Float[Array, ""]:
        """Minus the logarithm of the mean cost (to be large)."""
        return -jnp.log(jnp.mean(costs_to_reach(course, self.target)))


def costs_to_reach(course: Course, target: Float[Array, ""] | float) -> Float[Array, " draws"]:
    """Cost at which each draw's course first reaches a target; see `CostToReach` for those that do not."""
    distance = course.sign[:, None] * (jnp.asarray(target, course.reward.dtype) - course.reward)
    reached = distance <= 0
    after = jnp.argmax(reached, axis=1)
    before = jnp.maximum(after - 1, 0)
    pick = lambda values, index: jnp.take_along_axis(values, index[:, None], axis=1)[:, 0]
    gap, beyond = pick(distance, before), pick(distance, after)
    share = jnp.where(gap > beyond, gap / jnp.where(gap > beyond, gap - beyond, 1.0), 0.0)
    crossing = course.cost[before] + share * (course.cost[after] - course.cost[before])
    way = jnp.where(distance[:, 0] > 0, distance[:, 0], 1.0)
    missing = jnp.maximum(distance[:, -1], 0.0) / way
    never = course.cost[-1] * (1.0 + missing)
    return (
        jnp.where(reached[:, 0], 0.0, jnp.where(jnp.any(reached, axis=1), crossing, never))
        + 1e-9 * (course.cost[-1])
    )
