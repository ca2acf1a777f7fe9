"""The search: Optax from many starts in one compiled program, then whole numbers one by one.

A coordinate runs over its range as a sine, so that the search is unconstrained and reaches the ends of a range; the learning
rate's upper end is what the constraints leave, which follows from the other coordinates.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from jaxgrpo.tuning.constraints import Limits, largest_rate
from jaxgrpo.tuning.cost import Prices
from jaxgrpo.tuning.objective import STRIDES, Design, Ensemble, Objective, evaluate

COORDINATES: tuple[str, ...] = (
    "learning_rate",
    "momentum",
    "group_size",
    "prompts_per_step",
    "minibatches_per_rollout",
    "epochs_per_rollout",
    "warmup",
    "final_rate",
)
WHOLE: tuple[str, ...] = ("group_size", "prompts_per_step", "minibatches_per_rollout", "epochs_per_rollout")
_LOGARITHMIC = ("learning_rate", *WHOLE)
# Searches that climb side by side in the compiled program.
BATCH = 12
# Rounds of searching about whole numbers.
_ROUNDS = 6
_FIRST_RATE, _LAST_RATE = 0.25, 0.004
# A configuration that breaks a constraint loses this much of the objective's scale for every factor of e.
_PENALTY = 10.0


class Problem(eqx.Module):
    """A search as the compiled program sees it.

    Attributes:
        ensemble: Draws of the task.
        limits: Constraints.
        prices: Cost of a run's parts.
        base: Values of what is not searched, and where ties are broken towards.
        objective: What is to be large.
        scale: Size of a difference of the objective that matters.
        total_batch: Completions per optimizer step where they are held, otherwise 0.
        largest_interval: Largest refresh interval.
        free: Names of the coordinates that are searched.
        strides: Points at which a course is looked at.
        noise: Whether gradient noise enters.
    """

    ensemble: Ensemble
    limits: Limits
    prices: Prices
    base: Design
    objective: Objective
    scale: Float[Array, ""]
    total_batch: Float[Array, ""]
    largest_interval: Float[Array, ""]
    tie: Float[Array, ""]
    free: tuple[str, ...] = eqx.field(static=True)
    hold_batch: bool = eqx.field(static=True, default=False)
    strides: int = eqx.field(static=True, default=STRIDES)
    noise: bool = eqx.field(static=True, default=True)


class Point(NamedTuple):
    """Where searches are; a leading axis of searches.

    Attributes:
        position: Unconstrained coordinates.
        lower: Lower ends of the ranges.
        upper: Upper ends.
        budget: What may be spent.
        headroom: Largest learning rate over the one that the constraints allow.
    """

    position: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    budget: np.ndarray
    headroom: np.ndarray


class Outcome(NamedTuple):
    """Where searches ended; a leading axis of searches.

    Attributes:
        position: Unconstrained coordinates.
        value: Objective, penalty and tie-break included.
        gradient: Its derivatives by the coordinates.
        late_gain: What the last quarter of the search gained.
        values: The settings, a column a coordinate of `COORDINATES`.
        violation: By how much constraints are broken, in logarithm.
    """

    position: np.ndarray
    value: np.ndarray
    gradient: np.ndarray
    late_gain: np.ndarray
    values: np.ndarray
    violation: np.ndarray


def forward(name: str, value):
    """The scale on which a coordinate is searched."""
    if name in _LOGARITHMIC:
        return jnp.log(value)
    return -jnp.log1p(-value) if name == "momentum" else value


def backward(name: str, value):
    """Inverse of `forward`."""
    if name in _LOGARITHMIC:
        return jnp.exp(value)
    return -jnp.expm1(-value) if name == "momentum" else value


def place(
    position: Float[Array, " free"],
    lower: Float[Array, " free"],
    upper: Float[Array, " free"],
    headroom: Float[Array, ""],
    problem: Problem,
) -> tuple[Design, Float[Array, ""]]:
    """The design at a position, and by how much it breaks the constraints.

    Args:
        position: Unconstrained coordinates.
        lower: Lower ends of the ranges.
        upper: Upper ends.
        headroom: Largest learning rate over the one that the constraints allow.
        problem: The search.

    Returns:
        The design and the violation, in logarithm of the learning rate.
    """
    share = 0.5 * (1.0 + jnp.sin(position))
    chosen = {name: getattr(problem.base, name) for name in COORDINATES}
    order = [name for name in problem.free if name != "learning_rate"]
    for name in sorted(order, key=lambda name: name == "minibatches_per_rollout"):
        i = problem.free.index(name)
        low, high = lower[i], upper[i]
        if name == "minibatches_per_rollout":
            high = jnp.maximum(
                jnp.minimum(high, problem.largest_interval / chosen["epochs_per_rollout"]), low
            )
        low, high = forward(name, low), forward(name, high)
        chosen[name] = backward(name, low + (high - low) * share[i])
    if problem.hold_batch:
        chosen["prompts_per_step"] = problem.total_batch / chosen["group_size"]
    design = Design(**chosen)
    allowed = headroom * largest_rate(problem.ensemble.hyperparameters(design), problem.limits)
    if "learning_rate" not in problem.free:
        return design, jax.nn.relu(jnp.log(design.learning_rate) - jnp.log(allowed) - 1e-9)
    i = problem.free.index("learning_rate")
    high = jnp.log(jnp.minimum(upper[i], allowed))
    low = jnp.minimum(jnp.log(lower[i]), high)
    rate = jnp.exp(low + (high - low) * share[i])
    design = eqx.tree_at(lambda d: d.learning_rate, design, rate)
    return design, jax.nn.relu(jnp.log(lower[i]) - jnp.log(rate) - 1e-9)


def value_of(design: Design, budget: Float[Array, ""], problem: Problem) -> Float[Array, ""]:
    """The objective at a design.

    Args:
        design: The settings.
        budget: What may be spent.
        problem: The search.

    Returns:
        The objective.
    """
    course = evaluate(design, problem.ensemble, problem.prices, budget, problem.strides, problem.noise)
    return problem.objective(course)


def _searched(position, lower, upper, budget, headroom, problem):
    design, violation = place(position, lower, upper, headroom, problem)
    value = value_of(design, budget, problem)
    # What changes nothing stays as it was.
    away = jnp.zeros_like(value)
    for i, name in enumerate(problem.free):
        reach = forward(name, upper[i]) - forward(name, lower[i])
        moved = forward(name, getattr(design, name)) - forward(name, getattr(problem.base, name))
        away = away + jnp.where(reach > 0, (moved / jnp.where(reach > 0, reach, 1.0)) ** 2, 0.0)
    total = value - problem.scale * (_PENALTY * violation + problem.tie * away)
    total = jnp.where(jnp.isfinite(total), total, -1e6 * problem.scale)
    values = jnp.stack([getattr(design, name) for name in COORDINATES])
    return total, (total, values, violation)


@eqx.filter_jit
def _climb(points: Point, problem: Problem, iterations):
    """Adam with a falling rate from every start; the best position of each is kept."""
    transform = optax.scale_by_adam(b1=0.8, b2=0.95)
    slope = jax.jacfwd(_searched, has_aux=True)

    def at(position, lower, upper, budget, headroom):
        gradient, (total, values, violation) = slope(position, lower, upper, budget, headroom, problem)
        gradient = jnp.where(jnp.isfinite(gradient), gradient, 0.0) / problem.scale
        return gradient, total, values, violation

    each = jax.vmap(at)

    def step(i, carry):
        position, state, best, marks = carry
        gradient, total, values, violation = each(position, *points[1:])
        better = total > best[1]
        new = (position, total, gradient, values, violation)
        choose = lambda a, b: jnp.where(better.reshape(better.shape + (1,) * (a.ndim - 1)), a, b)
        best = tuple(choose(a, b) for a, b in zip(new, best, strict=True))
        marks = jnp.where(i <= (3 * iterations) // 4, best[1], marks)
        # Optax raises its decay to the power of a whole count, which strict promotion refuses.
        with jax.numpy_dtype_promotion("standard"):
            moves, state = jax.vmap(transform.update)(-gradient, state)
        update = jnp.asarray(moves)
        share = i / jnp.maximum(iterations, 1)
        rate = _LAST_RATE + (_FIRST_RATE - _LAST_RATE) * 0.5 * (1.0 + jnp.cos(jnp.pi * share))
        return position - rate * update, state, best, marks

    start = jnp.asarray(points.position)
    count = start.shape[0]
    empty = (
        start,
        jnp.full(count, -jnp.inf),
        jnp.zeros_like(start),
        jnp.zeros((count, len(COORDINATES))),
        jnp.zeros(count),
    )
    state = jax.vmap(transform.init)(start)
    _, _, best, marks = jax.lax.fori_loop(0, iterations, step, (start, state, empty, empty[1]))
    position, total, gradient, values, violation = best
    return Outcome(position, total, gradient, total - marks, values, violation)


def climb(points: Point, problem: Problem, iterations: int) -> Outcome:
    """Climb from any number of starts, `BATCH` at a time.

    Args:
        points: The starts.
        problem: The search.
        iterations: Steps; 1 only evaluates.

    Returns:
        Where each ended.
    """
    count = len(points.position)
    found = []
    for first in range(0, count, BATCH):
        index = np.minimum(np.arange(first, first + BATCH), count - 1)
        part = Point(*(np.asarray(leaf)[index] for leaf in points))
        outcome = _climb(part, problem, np.asarray(iterations))
        found.append(Outcome(*(np.asarray(leaf)[: count - first] for leaf in outcome)))
    return Outcome(*(np.concatenate(leaves) for leaves in zip(*found, strict=True)))


@dataclass(frozen=True, eq=False)
class Found:
    """Result of a search.

    Attributes:
        values: Name of a coordinate to its value, whole where it has to be.
        value: Objective there.
        real_value: Objective before the rounding to whole numbers.
        gradient: Derivatives of the objective by the unconstrained coordinates.
        late_gain: What the last quarter of the search gained, in units of the objective's scale.
        converged: Whether that, and the gradient, are small.
        violation: By how much constraints are broken, in logarithm of the learning rate.
        starts: How many starts were tried, and how many ended within a thousandth of the best.
        position: Unconstrained coordinates.
        lower: Lower ends of the ranges, whole numbers held at their values.
        upper: Upper ends.
    """

    values: dict[str, float]
    value: float
    real_value: float
    gradient: dict[str, float]
    late_gain: float
    converged: bool
    violation: float
    starts: tuple[int, int]
    position: np.ndarray
    lower: np.ndarray
    upper: np.ndarray


def halton(count: int, dimensions: int) -> np.ndarray:
    """Halton's evenly spread points in the unit cube."""
    points = np.zeros((count, dimensions))
    for column, base in enumerate((2, 3, 5, 7, 11, 13, 17, 19)[:dimensions]):
        for row in range(count):
            n, share, value = row + 1, 1.0, 0.0
            while n:
                share /= base
                n, digit = divmod(n, base)
                value += share * digit
            points[row, column] = value
    return points


Range = tuple[float, float]


def find(
    problem: Problem,
    ranges: Mapping[str, Range],
    budget: float,
    *,
    headroom: float = 1.0,
    admissible: Mapping[str, np.ndarray] | None = None,
    screened: int = 144,
    climbed: int = 24,
    iterations: int = 60,
    start: Mapping[str, float] | None = None,
) -> Found:
    """Search one budget.

    Args:
        problem: The search.
        ranges: Ranges of the free coordinates.
        budget: What may be spent.
        headroom: Largest learning rate over the one that the constraints allow.
        admissible: Whole numbers that a coordinate may take, where not all of its range.
        screened: Starts that are looked at before the best are climbed from.
        climbed: How many of them.
        iterations: Steps of each climb.
        start: Settings to start from as well, such as those of the run.

    Returns:
        The best settings.
    """
    free = problem.free
    lower = np.array([ranges[name][0] for name in free], float)
    upper = np.array([ranges[name][1] for name in free], float)
    many = lambda position, low=lower, high=upper: _points(position, low, high, budget, headroom)
    shares = halton(screened, len(free))
    position = np.arcsin(2.0 * (0.05 + 0.9 * shares) - 1.0)
    if start is not None:
        position[0] = _position_of(start, free, lower, upper)
    looked = climb(many(position), problem, 1)
    order = np.argsort(-looked.value)[:climbed]
    if start is not None and 0 not in order:
        order[-1] = 0
    outcome = climb(many(looked.position[order]), problem, iterations)
    best = int(np.argmax(outcome.value))
    scale = float(problem.scale)
    near = int(np.sum(outcome.value > outcome.value[best] - 1e-3 * scale))
    real_value, late = float(outcome.value[best]), float(outcome.late_gain[best]) / scale
    ends = (lower, upper)
    whole = [name for name in free if name in WHOLE]
    if whole:
        # Whole numbers about the best real ones; then about the best whole ones, until none is better.
        result, rounds, tried = None, 0, set()
        while rounds < _ROUNDS:
            choices = _whole_choices(outcome, problem, ranges, admissible or {}, tried, 1 if rounds else 6)
            if not choices:
                break
            lows, highs = np.tile(lower, (len(choices), 1)), np.tile(upper, (len(choices), 1))
            for row, (choice, _) in enumerate(choices):
                for name, value in choice.items():
                    i = free.index(name)
                    lows[row, i] = highs[row, i] = value
            points = _points(np.stack([position for _, position in choices]), lows, highs, budget, headroom)
            # A look at all of them, then a climb from the most promising.
            kept = np.arange(len(choices))
            if len(choices) > BATCH:
                kept = np.argsort(-climb(points, problem, 1).value)[:BATCH]
            found = climb(Point(*(leaf[kept] for leaf in points)), problem, max(iterations // 2, 8))
            rounds += 1
            index = int(np.argmax(found.value))
            if result is not None and found.value[index] <= result[0] + 1e-6 * scale:
                break
            result = (float(found.value[index]), found, index, (lows[kept[index]], highs[kept[index]]))
            outcome = found
        assert result is not None
        _, outcome, best, ends = result
    index = best
    gradient = dict(zip(free, outcome.gradient[index].tolist(), strict=True))
    values = dict(zip(COORDINATES, outcome.values[index].tolist(), strict=True))
    for name in whole:
        values[name] = float(round(values[name]))
    return Found(
        values=values,
        value=float(outcome.value[index]),
        real_value=real_value,
        gradient=gradient,
        late_gain=late,
        converged=bool(late < 1e-3 and np.isfinite(real_value)),
        violation=float(outcome.violation[index]),
        starts=(len(looked.value), near),
        position=outcome.position[index],
        lower=ends[0],
        upper=ends[1],
    )


def _points(position, lower, upper, budget, headroom) -> Point:
    count = len(position)
    lower, upper = np.broadcast_to(lower, position.shape), np.broadcast_to(upper, position.shape)
    return Point(position, lower, upper, np.full(count, float(budget)), np.full(count, float(headroom)))


def _position_of(values, free, lower, upper) -> np.ndarray:
    """Position at which the ranges have given values, kept off their ends."""
    position = np.zeros(len(free))
    for i, name in enumerate(free):
        low, high = float(forward(name, lower[i])), float(forward(name, upper[i]))
        share = (float(forward(name, values[name])) - low) / (high - low) if high > low else 0.5
        position[i] = np.arcsin(2.0 * np.clip(share, 0.03, 0.97) - 1.0)
    return position


def _whole_choices(outcome: Outcome, problem: Problem, ranges, admissible, tried: set, about: int):
    """Combinations of whole numbers about the best points that were not tried yet, each with where to start from."""
    scale = float(problem.scale)
    order = np.argsort(-outcome.value)
    close = [i for i in order if outcome.value[i] > outcome.value[order[0]] - 0.02 * scale][:about]
    whole = [name for name in problem.free if name in WHOLE]
    found = []
    for i in close:
        options = []
        for name in whole:
            value = float(outcome.values[i][COORDINATES.index(name)])
            low, high = ranges[name]
            allowed = admissible.get(name)
            if allowed is None:
                allowed = np.arange(np.ceil(low - 1e-9), np.floor(high + 1e-9) + 1)
            distance = lambda to, allowed=allowed: np.abs(np.log(allowed) - np.log(to))
            # The nearest ones, and one further off on either side: ridges run across the settings.
            nearest = {*np.argsort(distance(value), kind="stable")[:3].tolist()}
            nearest |= {int(np.argmin(distance(value * f))) for f in (0.75, 1.35)}
            options.append(allowed[sorted(nearest)].tolist())
        grid = np.stack(np.meshgrid(*options, indexing="ij"), -1).reshape(-1, len(whole))
        for row in grid.tolist():
            choice = dict(zip(whole, row, strict=True))
            passes = choice.get("epochs_per_rollout", float(problem.base.epochs_per_rollout))
            batches = choice.get("minibatches_per_rollout", float(problem.base.minibatches_per_rollout))
            if passes * batches <= float(problem.largest_interval) + 1e-9 and tuple(row) not in tried:
                tried.add(tuple(row))
                found.append((choice, outcome.position[i]))
    return found


@eqx.filter_jit
def _grid_values(values, budget, problem: Problem):
    def single(row):
        design = Design(**{name: row[i] for i, name in enumerate(COORDINATES)})
        h = problem.ensemble.hyperparameters(design)
        allowed = design.learning_rate <= largest_rate(h, problem.limits) * (1.0 + 1e-9)
        value = value_of(design, budget, problem)
        return jnp.where(allowed & jnp.isfinite(value), value, -jnp.inf)

    return jax.lax.map(single, values, batch_size=256)


def grid_values(values: np.ndarray, budget: float, problem: Problem) -> np.ndarray:
    """Objective on a list of settings, minus infinity where a constraint is broken.

    Args:
        values: One row of settings a point, in the order of `COORDINATES`.
        budget: What may be spent.
        problem: The search.

    Returns:
        The objective at each.
    """
    return np.asarray(_grid_values(jnp.asarray(values), jnp.asarray(float(budget)), problem))
