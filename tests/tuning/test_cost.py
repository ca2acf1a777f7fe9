import numpy as np
import pytest

import jaxgrpo as jg
from jaxgrpo.errors import TuneError
from jaxgrpo.tuning.cost import prices_from_mapping, prices_from_run


@pytest.mark.parametrize(("batches", "passes"), [(1, 1), (4, 1), (1, 4), (3, 2)])
def test_cost_per_step_is_that_of_counting_what_a_run_does(batches, passes):
    prices = jg.Prices(rollout=2.0, update=0.7, synchronisation=11.0)
    prompts, group, refreshes = 5, 6, 7
    spent, steps = 0.0, 0
    for _ in range(refreshes):
        spent += 11.0
        for _ in range(batches):
            spent += 2.0 * prompts * group
        for _ in range(batches * passes):
            spent += 0.7 * prompts * group
            steps += 1
    h = jg.Hyperparameters(
        1e-6,
        group_size=group,
        prompts_per_step=prompts,
        refresh_interval=batches * passes,
        epochs_per_rollout=passes,
    )
    np.testing.assert_allclose(float(prices.per_step(h)), spent / steps, rtol=1e-6)
    np.testing.assert_allclose(float(prices.steps(h, spent)), steps, rtol=1e-6)


def _run(row_is_rollout, **extra):
    steps = np.arange(10.0)
    channels = {"step_time": np.full(10, 100.0)} if extra.pop("whole", True) else {}
    arrays = {name: np.array([1e4, *([value] * 9)]) for name, value in extra.items()}
    return jg.Run(
        steps, steps, np.linspace(0, 1, 10), channels=channels, extra=arrays, row_is_rollout=row_is_rollout
    )


def test_prices_from_timings_give_back_the_time_of_a_step():
    h = jg.Hyperparameters(1e-6, group_size=8, prompts_per_step=4, refresh_interval=2)
    run = _run(True, **{"timing_s/gen": 50.0, "timing_s/update_actor": 30.0, "timing_s/reshard": 2.0})
    prices, notes = prices_from_run(run, h)
    assert prices.unit == "seconds" and notes
    # One row is one refresh of two steps that takes 100 s; the slow first row does not count.
    np.testing.assert_allclose(float(prices.per_step(h)) * 2.0, 100.0, rtol=1e-5)
    np.testing.assert_allclose(float(prices.update), 30.0 / 64.0, rtol=1e-5)
    whole, _ = prices_from_run(_run(False), h)
    np.testing.assert_allclose(float(whole.per_step(h)), 100.0, rtol=1e-5)
    none, notes = prices_from_run(_run(False, whole=False), h)
    assert none.unit == "rollouts" and "no timings" in notes[0]


def test_bad_prices_are_refused():
    with pytest.raises(TuneError, match="no price"):
        prices_from_mapping({"gpu": 1.0})
    with pytest.raises(TuneError, match="not negative"):
        prices_from_mapping({"rollout": -1.0})
    with pytest.raises(ValueError, match="all prices are zero"):
        jg.Prices(0.0, 0.0, 0.0)
