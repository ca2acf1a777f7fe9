"""One script for a machine with an accelerator, of at most four minutes: speed of the ensemble, its ceiling, its statistics.

Reports path-steps per second of the lattice with streaming statistics, the same as a fraction of the rate at which the device
makes the normals alone, and by how many standard errors mean and variance differ from those of the CPU. On a machine without
an accelerator it does the same on the CPU. Run as `python -m benchmarks.accelerator`.
"""

import argparse
import time

import jax
import jax.numpy as jnp
import numpy as np

import jaxgrpo as jg
from jaxgrpo.simulation.noise import key_words, normal_pair

STEPS, CONFIGURATIONS = 1000, 64
TASK = jg.Task(curvature=1.0, plateau=0.8, initial_reward=0.2, rollout_noise=0.4)
KEY = jax.random.key(0)


def settings() -> jg.Hyperparameters:
    """Learning rates from slow to ringing."""
    return jg.Hyperparameters(jnp.geomspace(0.01, 0.3, CONFIGURATIONS))


def simulate(paths: int, steps: int, device: jax.Device) -> tuple[jg.Ensemble, float]:
    """The ensemble on a device, and the seconds of the second call."""
    with jax.default_device(device):
        for _ in range(2):
            start = time.perf_counter()
            runs = jg.simulate(settings(), TASK, steps=steps, paths=paths, key=KEY, record=4, quantiles=())
            seconds = time.perf_counter() - start
    return runs, seconds


def normals(lanes: int, pairs: int, device: jax.Device) -> float:
    """Normals per second that the device makes and sums, and does nothing else."""

    @jax.jit
    def run(words):
        paths = jnp.arange(lanes, dtype=jnp.uint32)

        def body(i, total):
            first, second = normal_pair(words, paths, i, jnp.float32)
            return total + first + second

        return jax.lax.fori_loop(0, pairs, body, jnp.zeros(lanes))

    with jax.default_device(device):
        words = key_words(KEY)
        run(words).block_until_ready()
        start = time.perf_counter()
        run(words).block_until_ready()
        return 2.0 * lanes * pairs / (time.perf_counter() - start)


def main(argv: list[str] | None = None) -> list[str]:
    """Run, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--paths", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=STEPS)
    arguments = parser.parse_args(argv)
    device, cpu = jax.devices()[0], jax.devices("cpu")[0]
    runs, seconds = simulate(arguments.paths, arguments.steps, device)
    rate = CONFIGURATIONS * arguments.paths * arguments.steps / seconds
    # All configurations see the same noise, so that a normal serves as many of them as lie in one tile.
    ceiling = normals(4096, arguments.steps // 2, device)
    few = min(arguments.paths, 1024)
    other, _ = simulate(few, arguments.steps, cpu)
    own, _ = simulate(few, arguments.steps, device)
    z = float(np.max(np.abs(own.mean[:, 1:] - other.mean[:, 1:]) / other.mean_error[:, 1:]))
    spread = float(np.max(np.abs(own.variance[:, 1:] / other.variance[:, 1:] - 1.0)))
    lines = [
        f"jax {jax.__version__}, {device.device_kind} ({device.platform}).\n",
        "| what | measured |",
        "|---|---|",
        f"| lattice, {CONFIGURATIONS} x {arguments.paths} paths x {arguments.steps} steps | {rate:.3g} path-steps/s |",
        f"| normals alone, 4096 at a time | {ceiling:.3g} a second; the lattice runs at {rate / ceiling:.2f} of it |",
        f"| largest difference of a mean to the CPU's, same noise | {z:.2g} standard errors |",
        f"| largest relative difference of a variance | {spread:.2g} |",
        f"| paths that diverged | {float(np.max(runs.diverged)):.2g} |",
    ]
    print("\n".join(lines))
    return lines


if __name__ == "__main__":
    main()
