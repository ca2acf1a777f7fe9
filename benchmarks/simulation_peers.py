"""Peers of the ensemble that are no dependency: torchsde and Numba, timed in an environment of their own.

Run by `benchmarks.simulation` with the interpreter that `--peers` names; prints JSON. Needs torch, torchsde and numba.
"""

import json
import math
import time

import numba
import numpy as np
import torch
import torchsde

PATHS, STEPS, REPEATS = 4096, 1000, 5
MOMENTUM, STIFFNESS, NOISE = 0.9, 0.01, 0.01


def best(run):
    run()
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


@numba.njit(parallel=True, fastmath=True)
def lattice(paths, steps, momentum, stiffness, noise):
    end = np.empty(paths, np.float32)
    for path in numba.prange(paths):
        error, update = np.float32(-0.6), np.float32(0.0)
        for _ in range(steps):
            update = momentum * update - stiffness * error + noise * np.float32(np.random.normal())
            error += update
        end[path] = error
    return end


class Oscillator(torch.nn.Module):
    """The oscillator in torchsde's form."""

    noise_type, sde_type = "diagonal", "ito"

    def f(self, t, y):
        """Drift."""
        r, v = y[:, :1], y[:, 1:]
        return torch.cat([v, (-STIFFNESS * r - (1 - MOMENTUM) * v) / MOMENTUM], dim=1)

    def g(self, t, y):
        """Diffusion."""
        zero = torch.zeros_like(y[:, :1])
        return torch.cat([zero, zero + NOISE / MOMENTUM], dim=1)


def torchsde_run():
    start = torch.tensor([[-0.6, 0.0]]).repeat(PATHS, 1)
    times = torch.tensor([0.0, float(STEPS)])
    with torch.no_grad():
        return torchsde.sdeint(Oscillator(), start, times, dt=1.0, method="euler")[-1, :, 0]


def main():
    torch.set_num_threads(torch.get_num_threads())
    numbers = [np.float32(x) for x in (MOMENTUM, STIFFNESS, NOISE)]
    found = {
        "numba": best(lambda: lattice(PATHS, STEPS, *numbers)),
        "torchsde": best(torchsde_run),
        "numba_std": float(lattice(PATHS, STEPS, *numbers).std()),
        "torchsde_std": float(torchsde_run().std()),
        "versions": f"numba {numba.__version__}, torch {torch.__version__}, torchsde {torchsde.__version__}",
    }
    assert all(math.isfinite(value) for value in found.values() if isinstance(value, float))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
