"""How fast ensembles are, as ratios against named peers in one run; 4096 paths x 1000 steps, float32, min of 5.

* The lattice with streaming statistics against Diffrax's ShARK with `VirtualBrownianTree` under `vmap`, torchsde's `sdeint`
  (Euler) and a parallel Numba loop; the last two need `--peers PYTHON`, an interpreter that has them.
* `OscillatorSDE.solve` against `vmap(diffeqsolve)` with the same solver.
* Value and forward gradient by four hyperparameters of 100,000 configurations against the value alone.
* Cost against paths, steps and configurations, with the exponent fitted to it.
* `--memory`: peak memory of 10^6 paths x 10^4 steps, in a process of its own.

Run as `python -m benchmarks.simulation`; compile times are reported apart.
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
from pathlib import Path

import diffrax
import jax
import jax.numpy as jnp
import numpy as np

import jaxgrpo as jg

PATHS, STEPS = 4096, 1000
MOMENTUM, STIFFNESS, NOISE = 0.9, 0.01, 0.01
KEY = jax.random.key(0)
TASK = jg.Task(curvature=1.0, plateau=0.0, initial_reward=-0.6, rollout_noise=NOISE / STIFFNESS)


def settings(rate: float = STIFFNESS) -> jg.Hyperparameters:
    """The oscillator of all of these benchmarks, as hyperparameters."""
    return jg.Hyperparameters(rate, momentum=MOMENTUM, group_size=1, convention="heavy_ball")


def timed(run, repeats: int = 5) -> tuple[float, float]:
    """Seconds of the best of some runs, and what the first one took beyond that."""
    start = time.perf_counter()
    jax.block_until_ready(run())
    first = time.perf_counter() - start
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(run())
        times.append(time.perf_counter() - start)
    return min(times), first - min(times)


def ensemble(paths: int = PATHS, steps: int = STEPS, hyperparameters=None, quantiles=()):
    """The lattice with streaming statistics: mean, variance, first passage, divergence."""
    return jg.simulate(
        settings() if hyperparameters is None else hyperparameters,
        TASK,
        steps=steps,
        paths=paths,
        key=KEY,
        quantiles=quantiles,
    ).mean


def equation() -> jg.OscillatorSDE:
    """Its leading order."""
    return jg.OscillatorSDE.from_task(settings(), TASK)


def diffrax_vmap(brownian: str):
    """As Diffrax's documentation writes an ensemble: one solve a key, under vmap."""
    sde = equation()

    def one(key):
        if brownian == "tree":
            path = diffrax.VirtualBrownianTree(
                0.0, float(STEPS), 0.5, (1,), key, levy_area=diffrax.SpaceTimeLevyArea
            )
        else:
            path = diffrax.UnsafeBrownianPath((1,), key, levy_area=diffrax.SpaceTimeLevyArea)
        return diffrax.diffeqsolve(
            sde.terms(path),
            diffrax.ShARK(),
            0.0,
            float(STEPS),
            1.0,
            sde.initial_state(),
            max_steps=STEPS + 1,
            adjoint=diffrax.ForwardMode(),
        ).ys.position

    keys = jax.random.split(KEY, PATHS)
    solve = jax.jit(jax.vmap(one))
    return lambda: solve(keys)


def solve():
    """Our solve of the same, at the end alone."""
    return (
        equation()
        .solve(
            STEPS,
            paths=PATHS,
            key=KEY,
            substeps=1,
            saveat=diffrax.SaveAt(t1=True),
            adjoint=diffrax.ForwardMode(),
        )
        .ys.position
    )


def gradient_ratio(configurations: int = 100_000, portion: int = 10_000) -> tuple[float, float, float, float]:
    """Seconds of value, and of value with four derivatives, of mean(T) for many configurations in portions."""
    rates = jnp.geomspace(1e-3, 3e-2, configurations).reshape(-1, portion)

    def mean(x):
        own = jg.Hyperparameters(
            x[0], momentum=x[1], group_size=x[2], refresh_interval=x[3], convention="heavy_ball"
        )
        return jg.simulate(own, TASK, steps=STEPS, paths=1, key=KEY, record=[STEPS], quantiles=()).mean[
            ..., -1
        ]

    def point(rate):
        return jnp.stack([rate, jnp.full_like(rate, 0.9), jnp.full_like(rate, 8.0), jnp.full_like(rate, 1.0)])

    value, both = jax.jit(mean), jax.jit(with_gradient_pushed(mean))
    plain = timed(lambda: [value(point(rate)) for rate in rates], 3)
    full = timed(lambda: [both(point(rate)) for rate in rates], 3)
    return (*plain, *full)


def with_gradient_pushed(mean):
    """Value and derivatives by forward mode, the tangents together."""

    def run(x):
        basis = jnp.broadcast_to(jnp.eye(4)[:, :, None], (4, *x.shape))
        return jax.vmap(lambda tangent: jax.jvp(mean, (x,), (tangent,)), out_axes=(None, 0))(basis)

    return run


def slopes() -> list[str]:
    """Cost against size, and the exponent of its growth."""
    lines = []
    kinds = {
        "paths": ([8192, 32768, 131072], lambda n: ensemble(paths=n, steps=200)),
        "steps": ([1000, 4000, 16000], lambda n: ensemble(steps=n)),
        "configurations": (
            [8, 32, 128],
            lambda n: ensemble(paths=512, steps=200, hyperparameters=settings(jnp.geomspace(1e-3, 1e-2, n))),
        ),
    }
    sizes = {"paths": 200, "steps": PATHS, "configurations": 512 * 200}
    for name, (values, run) in kinds.items():
        times = [timed(lambda n=n, run=run: run(n), 3)[0] for n in values]
        power = np.polyfit(np.log(values), np.log(times), 1)[0]
        each = times[-1] / (values[-1] * sizes[name]) * 1e9
        shown = ", ".join(f"{n}: {t:.3g} s" for n, t in zip(values, times, strict=True))
        lines.append(
            f"| cost against {name} | {shown} | exponent {power:.2f}, {each:.2f} ns a path-step | 1 |"
        )
    return lines


def memory_run() -> None:
    """10^6 paths x 10^4 steps; prints the peak memory of this process in GiB, and the seconds it took."""
    start = time.perf_counter()
    runs = jg.simulate(settings(), TASK, steps=10_000, paths=1_000_000, key=KEY, quantiles=())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(json.dumps([peak, time.perf_counter() - start, float(runs.variance[-1])]))


def peers(python: str) -> dict:
    """What the peers took."""
    script = Path(__file__).with_name("simulation_peers.py")
    return json.loads(
        subprocess.run([python, script], check=True, capture_output=True, text=True).stdout.splitlines()[-1]
    )


def main(argv: list[str] | None = None) -> list[str]:
    """Run the benchmarks and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", metavar="PYTHON", help="interpreter that has torch, torchsde and numba")
    parser.add_argument("--memory", action="store_true", help="measure the memory of 10^10 path-steps too")
    parser.add_argument("--memory-run", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--only", nargs="*", default=[], choices=["lattice", "solve", "gradient", "slopes"])
    arguments = parser.parse_args(argv)
    if arguments.memory_run:
        memory_run()
        return []
    wanted = set(arguments.only) or {"lattice", "solve", "gradient", "slopes"}
    lines = [
        f"Python {platform.python_version()}, jax {jax.__version__}, diffrax {diffrax.__version__}, {os.cpu_count()} CPUs.\n",
        "| what | against | measured | aim |",
        "|---|---|---|---|",
    ]
    ours, compile_ours = timed(ensemble)
    rate = PATHS * STEPS / ours
    lines.append(
        f"| lattice, statistics at 101 steps | – | {ours:.4f} s, {rate:.3g} path-steps/s (compile {compile_ours:.1f} s) | |"
    )
    if "lattice" in wanted:
        sorted_, _ = timed(lambda: ensemble(quantiles=(0.05, 0.5, 0.95)))
        lines.append(
            f"| lattice with 3 quantiles at 101 steps | lattice without | {sorted_ / ours:.1f} times as long | |"
        )
        tree, compile_tree = timed(diffrax_vmap("tree"), 2)
        lines.append(
            f"| lattice | `vmap` of Diffrax ShARK, `VirtualBrownianTree` | {tree / ours:.0f} times faster "
            f"(compile {compile_tree:.1f} s) | at least 50 |"
        )
        if arguments.peers:
            found = peers(arguments.peers)
            again, _ = timed(ensemble)
            best = min(ours, again)
            lines.append(
                f"| lattice | torchsde `sdeint`, Euler | {found['torchsde'] / best:.1f} times faster | at least 10 |"
            )
            lines.append(
                f"| lattice | Numba, parallel loop | {found['numba'] / best:.2f} times faster | at least 1 |"
            )
            lines.append(f"| | {found['versions']} | | |")
    if "solve" in wanted:
        own, compile_own = timed(solve)
        for name, words in (("unsafe", "`UnsafeBrownianPath`"), ("tree", "`VirtualBrownianTree`")):
            other, compile_other = timed(diffrax_vmap(name), 3 if name == "unsafe" else 1)
            lines.append(
                f"| `OscillatorSDE.solve`, ShARK | `vmap(diffeqsolve)`, ShARK, {words} | {other / own:.1f} times faster "
                f"(compile {compile_own:.1f} and {compile_other:.1f} s) | at least 3 |"
            )
    if "gradient" in wanted:
        value, compile_value, both, compile_both = gradient_ratio()
        lines.append(
            f"| value and 4 derivatives of mean(T), 10^5 configurations x {STEPS} steps | value alone, {value:.2f} s | "
            f"{both / value:.1f} times as long (compile {compile_value:.1f} and {compile_both:.1f} s) | at most 5 |"
        )
    if "slopes" in wanted:
        lines += slopes()
    if arguments.memory:
        command = [sys.executable, "-m", "benchmarks.simulation", "--memory-run"]
        out = subprocess.run(
            command, check=True, capture_output=True, text=True, cwd=Path(__file__).parents[1]
        )
        peak, seconds, _ = json.loads(out.stdout.splitlines()[-1])
        lines.append(
            f"| 10^6 paths x 10^4 steps, peak memory | – | {peak:.2f} GiB in {seconds:.0f} s | below 1 GiB |"
        )
    print("\n".join(lines))
    return lines


if __name__ == "__main__":
    main()
