import numpy as np
import pytest

from jaxgrpo.logs import Run


def make(n=10):
    steps = np.arange(float(n))
    return Run(
        steps, steps + 5, steps / 10, channels={"kl": steps}, parts={"a": -steps}, extra={"x": 2 * steps}
    )


@pytest.mark.parametrize("fraction, points", [(1.0, 10), (0.1, 1), (0.11, 2), (0.3, 3), (0.7, 7), (0.95, 10)])
def test_head_rounds_up_to_whole_points(fraction, points):
    head = make().head(fraction)
    assert len(head) == points
    for values in (head.steps, head.channels["kl"], -head.parts["a"], head.extra["x"] / 2):
        np.testing.assert_array_equal(values, np.arange(float(points)))


@pytest.mark.parametrize("fraction", [0.0, -0.5, 1.1, float("nan")])
def test_head_refuses_what_is_no_fraction(fraction):
    with pytest.raises(ValueError, match="fraction must lie in"):
        make().head(fraction)


def test_select_takes_masks_and_keeps_the_rest():
    run = make()
    some = run.select(run.steps % 2 == 0)
    np.testing.assert_array_equal(some.logged_steps, [5, 7, 9, 11, 13])
    assert some.framework == run.framework and some.warnings == run.warnings


def test_repr_tells_name_points_and_channels():
    assert repr(make()) == "Run('run', 10 points, framework='unknown', channels=[kl])"


def test_arrays_must_agree_in_length():
    with pytest.raises(Exception, match="reward"):
        Run(np.zeros(3), np.zeros(3), np.zeros(4))
