"""Tuning: against an exhaustive grid, against the tools that people use, and on runs that are really made.

python -m benchmarks.tuning optimum [TASKS]      search against a grid of a million points, refined
python -m benchmarks.tuning tools [TASKS]        the same objective given to Optuna (install it beside) and to random search
python -m benchmarks.tuning bandit               sampled GRPO on a softmax policy: one run, advice, then 32 real runs
python -m benchmarks.tuning coverage             predicted bands against the mean of 32 real runs, on 20 tasks
python -m benchmarks.tuning rates FOLDER         a public sweep of learning rates (runs named ...lr-1e-5 and so on)
"""

import argparse
import dataclasses
import math
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import jaxgrpo as jg
from jaxgrpo.tuning.constraints import make_limits
from jaxgrpo.tuning.objective import design_of, final_reward, prepare, stack_tasks
from jaxgrpo.tuning.search import COORDINATES, Point, Problem, climb, find, grid_values

FREE = ("learning_rate", "momentum", "group_size", "minibatches_per_rollout")
OPEN = {"rate_extrapolation": None, "beyond_stable": None, "beyond_noise": None}


def random_problem(seed: int):
    """A random task, settings, prices and budget, with the search over four settings."""
    rng = np.random.default_rng(seed)
    force = jg.Harmonic() if seed % 2 else jg.Softmax("std")
    start = rng.uniform(0.05, 0.4)
    rate = 10.0 ** rng.uniform(-6.5, -5.0)
    slow = 10.0 ** rng.uniform(-2.7, -1.3)
    task = jg.Task(float(slow / rate), float(rng.uniform(0.6, 0.95)), float(start), force=force)
    group, interval = int(2 ** rng.integers(2, 5)), int(2 ** rng.integers(0, 3))
    h = jg.Hyperparameters(
        float(rate),
        group_size=group,
        refresh_interval=interval,
        prompts_per_step=int(2 ** rng.integers(2, 7)),
    )
    h = jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), h)
    task = jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), task)
    prices = jg.Prices(1.0, float(rng.uniform(0.1, 1.0)), float(10.0 ** rng.uniform(0, 2.5)))
    budget = float(prices.per_step(h)) * float(rng.uniform(20, 400))
    limits = make_limits(stack_tasks(task), [h], jg.Constraints(beyond_stable=30.0, rate_extrapolation=30.0))
    problem = Problem(
        prepare(stack_tasks(task), h), limits, prices, design_of(h), final_reward,
        jnp.asarray(float(task.plateau - task.initial_reward)), jnp.asarray(float(h.rollouts_per_step)),
        jnp.asarray(16.0), jnp.asarray(0.0), FREE, noise=False,
    )  # fmt: skip
    ranges = {
        "learning_rate": (rate / 30, rate * 30),
        "momentum": (0.0, 0.98),
        "group_size": (2.0, 32.0),
        "minibatches_per_rollout": (1.0, 16.0),
    }
    return problem, ranges, budget


def rows_of(problem, columns):
    base = [float(getattr(problem.base, name)) for name in COORDINATES]
    count = len(next(iter(columns.values())))
    rows = np.tile(base, (count, 1))
    for name, values in columns.items():
        rows[:, COORDINATES.index(name)] = values
    return rows


def optimum(tasks: int, size=(64, 32)) -> None:
    print("task  search      grid+refinement   lack/way    violation   seconds search/grid")
    lacks = []
    for seed in range(tasks):
        problem, ranges, budget = random_problem(seed)
        begin = time.perf_counter()
        found = find(problem, ranges, budget)
        middle = time.perf_counter()
        rates = np.geomspace(*ranges["learning_rate"], size[0])
        momenta = 1.0 - np.geomspace(1.0, 0.02, size[1])
        mesh = np.meshgrid(rates, momenta, np.arange(2.0, 33), np.arange(1.0, 17), indexing="ij")
        rows = rows_of(problem, dict(zip(FREE, [m.ravel() for m in mesh], strict=True)))
        values = grid_values(rows, budget, problem)
        order = np.argsort(-values)[:12]
        # Refinement: the two real settings about each of the best points, its whole numbers held.
        best = rows[order][:, [COORDINATES.index(name) for name in FREE]]
        lower, upper = best.copy(), best.copy()
        lower[:, 0], upper[:, 0] = (
            best[:, 0] / 1.15,
            np.minimum(best[:, 0] * 1.15, ranges["learning_rate"][1]),
        )
        lower[:, 1] = np.clip(1 - (1 - best[:, 1]) * 1.15, 0, 0.98)
        upper[:, 1] = np.clip(1 - (1 - best[:, 1]) / 1.15, 0, 0.98)
        points = Point(np.zeros_like(best), lower, upper, np.full(12, budget), np.ones(12))
        refined = max(float(climb(points, problem, 60).value.max()), float(values[order[0]]))
        end = time.perf_counter()
        lack = (refined - found.value) / float(problem.scale)
        lacks.append(lack)
        print(
            f"{seed:4d}  {found.value:.6f}   {refined:.6f}         {lack:+.2e}   {found.violation:.1e}   "
            f"{middle - begin:.2f} / {end - middle:.1f}",
            flush=True,
        )
    lacks = np.array(lacks)
    print(
        f"within 0.1 % of the way from start to plateau: {np.sum(lacks < 1e-3)} of {tasks}; "
        f"lack min/median/max {lacks.min():.1e} / {np.median(lacks):.1e} / {lacks.max():.1e}"
    )


def tools(tasks: int, trials: int = 1000) -> None:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    as_good, ours_total, theirs_total, random_total = 0, 0.0, 0.0, 0.0
    at_least_both = 0
    for seed in range(tasks):
        problem, ranges, budget = random_problem(seed)
        begin = time.perf_counter()
        found = find(problem, ranges, budget)
        ours = time.perf_counter() - begin
        single = lambda row, problem=problem, budget=budget: float(grid_values(row, budget, problem)[0])
        single(rows_of(problem, {"learning_rate": [ranges["learning_rate"][0]]}))

        def objective(trial, problem=problem, ranges=ranges, single=single):
            columns = {
                "learning_rate": [trial.suggest_float("rate", *ranges["learning_rate"], log=True)],
                "momentum": [1.0 - trial.suggest_float("memory", 0.02, 1.0, log=True)],
                "group_size": [float(trial.suggest_int("group", 2, 32, log=True))],
                "minibatches_per_rollout": [float(trial.suggest_int("batches", 1, 16, log=True))],
            }
            value = single(rows_of(problem, columns))
            return value if math.isfinite(value) else -10.0

        begin = time.perf_counter()
        study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))
        study.optimize(objective, n_trials=trials)
        theirs = time.perf_counter() - begin
        rng = np.random.default_rng(seed)
        columns = {
            "learning_rate": np.exp(rng.uniform(*np.log(ranges["learning_rate"]), 10_000)),
            "momentum": 1.0 - np.exp(rng.uniform(np.log(0.02), 0.0, 10_000)),
            "group_size": rng.integers(2, 33, 10_000),
            "minibatches_per_rollout": rng.integers(1, 17, 10_000),
        }
        begin = time.perf_counter()
        by_chance = float(grid_values(rows_of(problem, columns), budget, problem).max())
        chance = time.perf_counter() - begin
        scale = float(problem.scale)
        good = found.value >= max(study.best_value, by_chance) - 1e-6 * scale
        at_least_both += good
        as_good += found.value >= study.best_value - 1e-6 * scale
        ours_total, theirs_total, random_total = (
            ours_total + ours,
            theirs_total + theirs,
            random_total + chance,
        )
        print(
            f"{seed:3d} ours {found.value:.6f} ({ours:.2f} s)  TPE {study.best_value:.6f} ({theirs:.1f} s)  "
            f"random {by_chance:.6f} ({chance:.2f} s)  {'' if good else 'WORSE'}",
            flush=True,
        )
    print(
        f"at least as good as both: {at_least_both} of {tasks}, as TPE: {as_good}; seconds in all, compilation included: "
        f"ours {ours_total:.1f}, TPE {theirs_total:.1f} (x {theirs_total / ours_total:.1f}), random {random_total:.1f}"
    )


def bandit(h, start, steps, seeds, rng, normalisation="std", beta=0.0, spread=0.0, prompts=64):
    """Sampled GRPO on a softmax policy that shares one logit between prompts of mixed difficulty.

    The force is that of the rollouts alone (no importance weighting), so that the staleness is exactly 1.

    Returns:
        Mean sampled reward of each step's policy, and the policy's true expected reward, runs by steps.
    """
    offsets = spread * np.random.default_rng(0).standard_normal(prompts)
    level = math.log(start / (1 - start))
    z, u = np.full(seeds, level), np.zeros(seeds)
    mu, k = float(h.momentum), int(h.refresh_interval)
    passes, group = int(h.epochs_per_rollout), int(h.group_size)
    size, eta = int(h.prompts_per_step), float(h.learning_rate)
    sampled, true = np.zeros((seeds, steps)), np.zeros((seeds, steps))
    kept, rewards = [], []
    for t in range(steps):
        policy = 1.0 / (1.0 + np.exp(-(z[:, None] + offsets)))
        true[:, t] = policy.mean(axis=1)
        if t % k == 0:
            kept, rewards = [], []
            for _ in range(k // passes):
                chosen = rng.integers(0, prompts, (seeds, size))
                p = np.take_along_axis(policy, chosen, axis=1)
                share = rng.binomial(group, p) / group
                pq = p * (1 - p)
                force = np.sqrt(share * (1 - share)) if normalisation == "std" else share * (1 - share)
                away = (z - level)[:, None] * pq
                kept.append((force - beta * away).mean(axis=1))
                rewards.append(share.mean(axis=1))
        sampled[:, t] = np.mean(rewards, axis=0)
        u = mu * u + (1 - mu) * eta * kept[(t % k) % len(kept)]
        z = np.clip(z + u, -30, 30)
    return sampled, true


def cost_to_reach(h, prices, budget, target, start, seeds=32, **kind):
    """Cost at which the mean of real runs reaches a target within a budget, infinite if it does not; and that mean."""
    per_step = float(prices.per_step(h))
    steps = max(int(budget / per_step), 2)
    _, true = bandit(h, start, steps, seeds, np.random.default_rng(7), **kind)
    mean = true.mean(axis=0)
    reached = np.flatnonzero(mean >= target)
    cost = (reached[0] + 0.0) * per_step if len(reached) else math.inf
    late = mean[int(0.9 * steps) :]
    swings = len(reached) > 0 and late.min() < 0.5 * target
    return cost, mean, swings


KINDS = {
    "std": ({"normalisation": "std"}, 0.05, 1.0, 0.3),
    "std, mixed prompts": ({"normalisation": "std", "spread": 1.5}, 0.2, 1.0, 0.3),
    "mean-only, KL": ({"normalisation": "mean", "beta": 0.1}, 0.1, 1.0, 1.0),
}


def calibration(kind, start, rate, steps=240, seed=0):
    """One run as a log would have it."""
    h = jg.Hyperparameters(rate, momentum=0.9, group_size=8, prompts_per_step=8, refresh_interval=2)
    sampled, _ = bandit(h, start, steps, 1, np.random.default_rng(seed), **kind)
    at = np.arange(float(steps))
    return jg.Run(at, at, sampled[0], hyperparameters=h, name="calibration"), h


def real_thing() -> None:
    prices = jg.Prices()
    for name, (kind, start, _, rate) in KINDS.items():
        for label, factor in (("default", 1.0), ("rate a tenth", 0.1)):
            run, h = calibration(kind, start, rate * factor)
            budget = float(prices.per_step(h)) * len(run)
            # The plateau of the real policy: where a long run settles.
            long = dataclasses.replace(h, learning_rate=float(rate))
            _, settled = bandit(long, start, 4000, 8, np.random.default_rng(1), **kind)
            plateau = settled[:, -200:].mean()
            target = 0.95 * plateau
            costs, rng_rates = [], np.geomspace(0.03, 30.0, 10) * rate
            for r in rng_rates:
                for g in (4, 8, 16, 32):
                    for k in (1, 2, 4, 8, 16):
                        trial = jg.Hyperparameters(float(r), 0.9, g, k, 8)
                        costs.append(cost_to_reach(trial, prices, budget, target, start, **kind)[0])
            costs = np.array(costs)
            best = costs.min()
            space = {"group_size": (4, 32), "refresh_interval": (1, 16), "momentum": 0.9}
            for title, constraints in (
                ("known exponent, limits off", jg.Constraints(**OPEN)),
                ("limits on", jg.Constraints()),
            ):
                try:
                    fit = jg.fit(run)
                    wide = (
                        {"learning_rate": (rate * 1e-3, rate * 30)}
                        if title == "known exponent, limits off"
                        else {}
                    )
                    # Plain momentum along one direction: the exponent is 1 and the curvature the sharpness, as is known here.
                    a = jg.tune(
                        fit, {**space, **wide}, budget, objective="cost", target=float(target), prices=prices,
                        constraints=constraints, frontier=False,
                        learning_rate_exponent=1.0 if title == "known exponent, limits off" else None,
                    )  # fmt: skip
                except Exception as error:
                    print(f"{name}, {label}, {title}: {type(error).__name__}: {error}")
                    continue
                if not a.supported:
                    print(f"{name}, {label}, {title}: refused: {a.refusal}", flush=True)
                    continue
                cost, mean, swings = cost_to_reach(a.hyperparameters, prices, budget, target, start, **kind)
                share = np.mean(costs <= cost)
                needed = math.log(0.5) / math.log1p(-share) if 0 < share < 1 else math.inf
                x = a.hyperparameters
                print(
                    f"{name}, {label}, {title}: rate {float(x.learning_rate):.3g} G {float(x.group_size):g} "
                    f"K {float(x.refresh_interval):g}: cost {cost:.0f}, best of {len(costs)} {best:.0f} "
                    f"(x {cost / best:.2f}), as run {cost_to_reach(h, prices, budget, target, start, **kind)[0]:.0f}; "
                    f"random search needs {needed:.0f} runs for as much; swings: {swings}; model {fit.title}",
                    flush=True,
                )


def coverage(tasks: int = 20) -> None:
    prices = jg.Prices()
    shares, widths = [], []
    for seed in range(tasks):
        rng = np.random.default_rng(100 + seed)
        name = list(KINDS)[seed % 3]
        kind, _, _, rate = KINDS[name]
        start = float(rng.uniform(0.05, 0.3))
        run, h = calibration(kind, start, rate * float(10 ** rng.uniform(-0.7, 0.3)), seed=seed)
        budget = float(prices.per_step(h)) * len(run)
        a = jg.tune(jg.fit(run), {"momentum": 0.9}, 0.7 * budget, prices=prices, frontier=False)
        if not a.supported:
            print(f"{seed}: refused: {a.refusal}")
            continue
        x = a.hyperparameters
        steps = int(a.predicted.steps[-1])
        _, true = bandit(x, start, steps, 32, np.random.default_rng(seed), **kind)
        at = np.arange(steps)
        low = np.interp(at, a.predicted.steps, a.predicted.lower)
        high = np.interp(at, a.predicted.steps, a.predicted.upper)
        mean = true.mean(axis=0)
        # To the third digit that a reward is shown with.
        inside = np.mean((mean >= low - 5e-4) & (mean <= high + 5e-4))
        shares.append(inside)
        widths.append(np.mean(high - low))
        print(
            f"{seed:2d} {name:20s} rate {float(h.learning_rate):.3g} -> {float(x.learning_rate):.3g}, inside {inside:.0%}, "
            f"mean width {widths[-1]:.3f}",
            flush=True,
        )
    print(
        f"share of steps inside the 90 % band: {np.mean(shares):.1%} over {len(shares)} tasks; width {np.mean(widths):.3f}"
    )


def rates(folder: Path) -> None:
    names = {"1e-6": 1e-6, "3e-6": 3e-6, "1e-5": 1e-5, "1.5e-5": 1.5e-5, "3e-5": 3e-5, "1e-4": 1e-4}
    runs = {}
    for text, rate in names.items():
        found = sorted(folder.glob(f"*lr-{text}"))
        if found:
            h = jg.Hyperparameters(rate, group_size=8, prompts_per_step=32)
            runs[text] = jg.read_run(found[0], h, columns={"reward": "eval/reward"})
    for chosen in (("1e-5",), ("3e-6", "1e-5"), ("1e-5", "1.5e-5"), ("1e-5", "3e-5")):
        fit = jg.fit([runs[c] for c in chosen] if len(chosen) > 1 else runs[chosen[0]])
        exponent = fit.parameters.get("learning_rate_exponent")
        known = (
            "prior"
            if exponent is None
            else f"{exponent.value:.2f} [{exponent.lower:.2f}, {exponent.upper:.2f}]"
        )
        for limit in (3.0, 30.0):
            a = jg.tune(
                fit, {"momentum": 0.9, "group_size": 8, "refresh_interval": 1},
                constraints=jg.Constraints(rate_extrapolation=limit, beyond_stable=limit, beyond_noise=limit), frontier=False,
            )  # fmt: skip
            print(f"from {', '.join(chosen)}: {fit.title}, exponent {known}, step up to x {limit:g}")
            if not a.supported:
                print(f"    refused: {a.refusal}")
                continue
            low, high = a.recommended.reward[1:]
            print(
                f"    recommended {float(a.hyperparameters.learning_rate):.2g}; end {a.recommended.reward[0]:.3f} "
                f"[{low:.3f}, {high:.3f}]; next run to learn from: {a.next_run.change}"
            )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("optimum", "tools", "bandit", "coverage", "rates"))
    parser.add_argument("argument", nargs="?")
    given = parser.parse_args(arguments)
    jax.config.update("jax_enable_x64", True)
    if given.what == "optimum":
        optimum(int(given.argument or 50))
    elif given.what == "tools":
        tools(int(given.argument or 50))
    elif given.what == "bandit":
        real_thing()
    elif given.what == "coverage":
        coverage(int(given.argument or 20))
    else:
        rates(Path(given.argument or sys.exit("give the folder of the sweep")))


if __name__ == "__main__":
    main()
