"""A program that simulates one ensemble on the devices it is told, and prints a digest of all of its numbers.

Called as `devices.py DEVICES [ADDRESS PROCESS PROCESSES [FOLDER LOST]]`; LOST is the process that dies on the way.
"""

import hashlib
import os
import sys


def main():
    devices = int(sys.argv[1])
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={devices}"
    os.environ["JAX_PLATFORMS"] = "cpu"

    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh

    import jaxgrpo as jg

    if len(sys.argv) > 2:
        address, process, processes = sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
        jax.distributed.initialize(address, processes, process)
    folder = sys.argv[5] if len(sys.argv) > 5 else None
    if folder is not None and process == int(sys.argv[6]):
        # Dies when its second portion is due.
        from jaxgrpo.simulation import ensemble

        exchange, calls = ensemble._exchange, []

        def dying(*arguments):
            calls.append(1)
            if len(calls) == 2:
                os._exit(9)
            return exchange(*arguments)

        ensemble._exchange = dying

    task = jg.Task(curvature=1.0, plateau=0.8, initial_reward=0.2, rollout_noise=0.4)
    settings = jg.Hyperparameters(jnp.array([0.02, 0.05, 0.1]), refresh_interval=4, async_lag=1)
    mesh = Mesh(np.array(jax.devices()), ("tiles",))
    try:
        runs = jg.simulate(
            settings,
            task,
            steps=30,
            paths=20000,
            key=jax.random.key(0),
            record=3,
            quantiles=(0.5,),
            sharding=mesh,
            save=folder,
            memory=2**26 if folder is None else 2**19,
        )
    except jg.SimulationError as error:
        print(f"error: {error}", flush=True)
        os._exit(3)
    digest = hashlib.sha256()
    for leaf in (runs.mean, runs.variance, runs.reached, runs.diverged, runs.quantiles, runs.quantile_error):
        digest.update(np.ascontiguousarray(leaf).tobytes())
    print(len(jax.devices()), digest.hexdigest(), flush=True)


if __name__ == "__main__":
    main()
