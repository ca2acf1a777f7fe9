"""Trade-offs about a recommendation: cost against reward, reward against margin, and which setting matters."""

from dataclasses import dataclass

import numpy as np

from jaxgrpo.tuning.search import COORDINATES, WHOLE, Point, Problem, climb

BUDGETS = (0.25, 0.5, 0.75, 1.5, 2.0, 4.0)
HEADROOMS = (0.1, 0.25, 0.5, 0.75)


@dataclass(frozen=True, eq=False)
class Frontier:
    """Best outcomes along two trade-offs, whole numbers as recommended and the rest searched anew.

    Attributes:
        budget: Budgets, the recommendation's own among them.
        outcome: Best objective at each.
        settings: Settings there, a row each, in the order of `COORDINATES`.
        headroom: Share of the largest allowed learning rate that may be used.
        outcome_by_headroom: Best objective at each share.
        settings_by_headroom: Settings there.
    """

    budget: np.ndarray
    outcome: np.ndarray
    settings: np.ndarray
    headroom: np.ndarray
    outcome_by_headroom: np.ndarray
    settings_by_headroom: np.ndarray

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns of the settings."""
        return COORDINATES


def trade_offs(
    problem: Problem,
    position: np.ndarray,
    lower: np.ndarray,
    upper: np.ndarray,
    budget: float,
    iterations: int = 24,
) -> Frontier:
    """Search a few budgets and a few headrooms from the recommendation, in one batch.

    Args:
        problem: The search.
        position: Where the recommendation was found.
        lower: Lower ends of the ranges; whole numbers are held at the recommendation's.
        upper: Upper ends.
        budget: The recommendation's budget.
        iterations: Steps of each climb.

    Returns:
        The frontier.
    """
    factors = np.array([*BUDGETS, *(1.0,) * (len(HEADROOMS) + 1)])
    headrooms = np.array([*(1.0,) * len(BUDGETS), *HEADROOMS, 1.0])
    count = len(factors)
    tile = lambda row: np.tile(row, (count, 1))
    points = Point(tile(position), tile(lower), tile(upper), budget * factors, headrooms)
    found = climb(points, problem, iterations)
    value = found.value + float(problem.scale) * 10.0 * found.violation
    by_budget = [*range(len(BUDGETS)), count - 1]
    by_budget = sorted(by_budget, key=lambda i: factors[i])
    by_headroom = list(range(len(BUDGETS), count))
    return Frontier(
        budget * factors[by_budget],
        value[by_budget],
        found.values[by_budget],
        headrooms[by_headroom],
        value[by_headroom],
        found.values[by_headroom],
    )


def nudged(values: dict[str, float], names: tuple[str, ...], factor: float = 1.1) -> list[dict[str, float]]:
    """Settings with one of them a little larger, then a little smaller, for each name.

    Args:
        values: The settings.
        names: Which of them.
        factor: By how much; momentum moves in the time that it remembers.

    Returns:
        Two settings a name.
    """
    found = []
    for name in names:
        for f in (factor, 1.0 / factor):
            moved = dict(values)
            if name == "momentum":
                memory = max(values[name] / (1.0 - values[name]), 1e-2) * f
                moved[name] = memory / (1.0 + memory)
            elif name in ("warmup", "final_rate"):
                moved[name] = min(max(values[name] + (0.05 if f > 1 else -0.05), 0.0), 1.0)
            else:
                moved[name] = values[name] * f
                if name in WHOLE and moved[name] < 1.0:
                    moved[name] = 1.0
            found.append(moved)
    return found
