"""Runs and fits to report on."""

import jax
import numpy as np
import pytest

import jaxgrpo as jg


def make_run(name="run", points=40, **fields):
    """A run that rises from 0.2 to 0.8, with noise that is the same every time."""
    steps = np.arange(float(points))
    noise = 0.03 * np.random.default_rng(7).standard_normal(points)
    fields.setdefault("hyperparameters", jg.Hyperparameters(1e-6))
    return jg.Run(steps, steps + 1.0, 0.8 - 0.6 * np.exp(-steps / 8.0) + noise, name=name, **fields)


@pytest.fixture(scope="session")
def fitted():
    """One fit, shared by all tests of its report."""
    run = make_run("a $run$", channels={"learning_rate": np.linspace(1e-6, 0.0, 40)})
    with jax.enable_x64(True):
        return jg.fit(run)
