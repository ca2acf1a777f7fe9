"""How long a fit takes, as ratios against named peers in one run.

* `jaxgrpo fit` on a 105-point log, without and with a filled compilation cache, and `jaxgrpo forecast`, against
  `python -c "import jax, diffrax, optimistix"`;
* 100 fits of the mixed-difficulty model at once in Python (noise levels included) against SciPy's `least_squares` (the mean
  alone), run by run, with the same model in NumPy, the same starts and the same tolerance.

Run as `python -m benchmarks.speed`.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import jax
import numpy as np
from scipy.optimize import least_squares

import jaxgrpo as jg
from jaxgrpo.inference.models import MODELS, specify, starting_points
from jaxgrpo.inference.problem import make_problem
from jaxgrpo.inference.state_space import NODES
from jaxgrpo.theory.groups import normal_nodes

TOLERANCE = 1e-4


def timed(command: list[str], **environment: str) -> float:
    """Wall time of a process, in seconds."""
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=os.environ | environment)
    return time.perf_counter() - start


def command_line(repeats: int) -> list[str]:
    """Cold and warm `jaxgrpo fit` against the import of what it stands on."""
    steps = np.arange(1, 106)
    rng = np.random.default_rng(0)
    rewards = 0.9 - 0.7 * np.exp(-steps / 20.0) + 0.02 * rng.standard_normal(105)
    rows = [
        {"step": int(s), "reward": float(r), "reward_std": 0.3, "loss": 0.0, "learning_rate": 1e-6}
        for s, r in zip(steps, rewards, strict=True)
    ]
    imports, cold, warm, ahead = [], [], [], []
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "trainer_state.json"
        log.write_text(json.dumps({"log_history": rows}))
        command = [sys.executable, "-m", "jaxgrpo", "fit", str(log)]
        for i in range(repeats):
            imports.append(timed([sys.executable, "-c", "import jax, diffrax, optimistix"]))
            cache = str(Path(folder) / str(i))
            cold.append(timed(command, XDG_CACHE_HOME=cache))
            warm.append(timed(command, XDG_CACHE_HOME=cache))
            command_ahead = [*command[:3], "forecast", str(log), "--horizon", "200"]
            ahead.append(timed(command_ahead, XDG_CACHE_HOME=cache))
    peer = np.median(imports)
    lines = []
    for name, values, aim in (
        ("fit`, 105 points, cold", cold, "at most 3"),
        ("fit`, 105 points, warm cache", warm, "at most 2"),
        ("forecast`, 105 points", ahead, "at most 2"),
    ):
        low, middle, high = np.quantile(np.asarray(values) / peer, [0.0, 0.5, 1.0])
        measured = f"{low:.1f} / {middle:.1f} / {high:.1f} times"
        against = "`import jax, diffrax, optimistix`"
        lines.append(f"| `jaxgrpo {name} | {against} | {measured} | {aim} |")
    return lines


def mixed_run(rng: np.random.Generator) -> jg.Run:
    """A run of the mixed-difficulty force."""
    steps = np.arange(100.0)
    force = jg.MixedDifficulty(float(rng.uniform(1.0, 2.5)))
    task = jg.Task(float(rng.uniform(1e5, 4e5)), 0.9, float(rng.uniform(0.1, 0.3)), force=force)
    mean = np.asarray(jg.predict(jg.Hyperparameters(1e-6), task, steps).mean)
    return jg.Run(steps, steps, np.clip(mean + 0.02 * rng.standard_normal(100), 0.0, 1.0))


def scipy_fit(run: jg.Run, settings: jg.Hyperparameters) -> float:
    """Least squares with the same model, starts and tolerance; returns the best cost."""
    problem = make_problem((run,), (settings,), (0.0, 1.0))
    specification = specify(MODELS["mixed_std"], problem)
    free = specification.free.copy()
    free[5:] = False
    x, w = normal_nodes(NODES)
    z_grid = np.linspace(-16.0, 16.0, 1025)
    table = problem.observations.force[0, 0]
    horizon, momentum = float(problem.observations.horizon), 0.9
    data = problem.scale.to_scaled(run.reward)

    def residuals(values):
        theta = specification.centre.copy()
        theta[free] = values
        ceiling = specification.lower + (specification.upper - specification.lower) / (
            1.0 + np.exp(-theta[1])
        )
        z, u = theta[0] + np.exp(theta[3]) * x, np.zeros(NODES)
        gain = (1.0 - momentum) * np.exp(theta[2]) / horizon
        curve = np.empty(len(data))
        for n in range(len(data)):
            curve[n] = theta[4] + (ceiling - theta[4]) * (w @ (1.0 / (1.0 + np.exp(-z))))
            u = momentum * u + gain * np.interp(z, z_grid, table)
            z = z + u
        prior = (values - specification.centre[free]) / specification.spread[free]
        return np.concatenate([(data - curve) / problem.noise, prior])

    costs = []
    for start in starting_points(specification):
        with np.errstate(over="ignore"):
            found = least_squares(residuals, start[free], ftol=TOLERANCE, xtol=TOLERANCE, gtol=TOLERANCE)
        costs.append(found.cost)
    return min(costs)


def batch(runs: int, sample: int) -> list[str]:
    """Many fits at once against SciPy, of which a sample is timed."""
    rng = np.random.default_rng(1)
    drawn = [mixed_run(rng) for _ in range(runs)]
    settings = jg.Hyperparameters(1e-6)
    start = time.perf_counter()
    jg.fit_each(drawn, settings, model="mixed_std", bounds=(0.0, 1.0))
    first = time.perf_counter() - start
    start = time.perf_counter()
    jg.fit_each(drawn, settings, model="mixed_std", bounds=(0.0, 1.0))
    ours = time.perf_counter() - start
    start = time.perf_counter()
    for run in drawn[:sample]:
        scipy_fit(run, settings)
    peer = (time.perf_counter() - start) * runs / sample
    note = f"timed on {sample}" if sample < runs else "all timed"
    return [
        f"| {runs} mixed-difficulty fits at once | SciPy `least_squares` one by one ({note}) | "
        f"{peer / ours:.0f} times faster ({peer / first:.0f} with compilation) | at least 10 times |"
    ]


def main(argv: list[str] | None = None) -> list[str]:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--sample", type=int, default=10)
    arguments = parser.parse_args(argv)
    lines = [
        f"Python {platform.python_version()}, jax {jax.__version__}, {os.cpu_count()} CPUs; min / median / max.\n",
        "| what | against | measured | aim |",
        "|---|---|---|---|",
        *command_line(arguments.repeats),
        *batch(arguments.runs, arguments.sample),
    ]
    print("\n".join(lines))
    return lines


if __name__ == "__main__":
    main()
