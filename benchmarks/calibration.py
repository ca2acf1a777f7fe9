"""Coverage of the fit's 90 % intervals on simulated runs, whose truth is known.

The runs are simulated by the update rule itself, step by step in NumPy, over a plausible range of settings: momentum 0.9 (EMA),
refresh intervals 1, 2 and 4, 40 to 380 rows, relaxation within 3 to 60 % of the run, rising and falling, with the noise of
32 to 1024 rollouts a step in reward and force. Run as `python -m benchmarks.calibration [--runs 500]`.
"""

import argparse

import numpy as np

import jaxgrpo as jg


def simulate(rng: np.random.Generator) -> tuple[jg.Run, jg.Hyperparameters, dict[str, float]]:
    """One run by the update rule, and what its fit should find."""
    rows = int(rng.integers(40, 381))
    interval = int(rng.choice([1, 2, 4]))
    momentum, rollouts = 0.9, int(2 ** rng.integers(5, 11))
    steps = rows * interval
    timescale = steps * np.exp(rng.uniform(np.log(0.03), np.log(0.6)))
    timescale = max(timescale, 12.0 * interval)
    rate = 1.0 / timescale
    start, plateau = rng.uniform(0.1, 0.5), rng.uniform(0.55, 0.95)
    if rng.random() < 0.2:
        start, plateau = plateau, start
    part = rng.uniform(0.2, 0.8)
    scatter = 0.5 / np.sqrt(rollouts)
    h = (1.0 - momentum) * rate
    error, update = start - plateau, 0.0
    rewards = []
    for _ in range(rows):
        rewards.append(plateau + error + scatter * rng.standard_normal())
        stale = error
        for _ in range(interval):
            update = momentum * update - h * stale + h * part * scatter * rng.standard_normal()
            error += update
    logged = np.arange(rows, dtype=float)
    settings = jg.Hyperparameters(1e-6, momentum=momentum, refresh_interval=interval, group_size=8)
    run = jg.Run(logged * interval, logged, np.asarray(rewards), steps_per_row=float(interval))
    truth = {"plateau": plateau, "timescale": timescale - 0.5 * (interval - 1)}
    return run, settings, truth


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--model", default="second_order")
    arguments = parser.parse_args(argv)
    rng = np.random.default_rng(20)
    drawn = [simulate(rng) for _ in range(arguments.runs)]
    fits = jg.fit_each([d[0] for d in drawn], [d[1] for d in drawn], model=arguments.model, bounds=None)
    print("| parameter | inside | below | above | not identified | converged |\n|---|---|---|---|---|---|")
    converged = np.mean([fit.models[fit.model].converged for fit in fits])
    for name in ("plateau", "timescale") if arguments.model != "auto" else ("plateau",):
        estimates = [fit.parameters[name] for fit in fits]
        truth = np.array([d[2][name] for d in drawn])
        low, high = np.array([e.lower for e in estimates]), np.array([e.upper for e in estimates])
        inside = (truth >= low) & (truth <= high)
        unknown = np.mean([not e.identified for e in estimates])
        error = np.sqrt(inside.mean() * (1 - inside.mean()) / len(truth))
        print(
            f"| {name} | {inside.mean():.3f} +- {error:.3f} | {np.mean(truth < low):.3f} "
            f"| {np.mean(truth > high):.3f} | {unknown:.3f} | {converged:.3f} |"
        )


if __name__ == "__main__":
    main()
