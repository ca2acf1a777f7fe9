"""Segments are checked against a plain loop that walks the rows one by one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxgrpo.logs.segments import find_segments, merge


def rows_of(steps, trained=None, breaks=()):
    steps = np.asarray(steps, dtype=float)
    trained = np.ones(len(steps), bool) if trained is None else np.asarray(trained, bool)
    return [segment.rows.tolist() for segment in find_segments(steps, trained, list(breaks))]


def test_one_run_is_one_segment():
    assert rows_of([1, 2, 3, 4]) == [[0, 1, 2, 3]]


def test_a_restart_from_the_beginning_is_a_new_segment():
    assert rows_of([1, 2, 3, 1, 2]) == [[0, 1, 2], [3, 4]]


def test_repeated_steps_are_no_restart():
    assert rows_of([0, 0, 1, 1]) == [[0, 1, 2, 3]]


def test_a_resumption_replaces_what_was_trained_anew():
    steps, trained = np.array([1.0, 2, 3, 4, 5, 4, 5, 6]), np.ones(8, bool)
    (segment,) = find_segments(steps, trained, [])
    assert segment.rows.tolist() == [0, 1, 2, 5, 6, 7]
    assert segment.resumed == [4.0] and segment.replaced == 2


def test_a_session_that_the_log_closes_is_a_segment():
    assert rows_of([1, 2, 3, 4], breaks=[2]) == [[0, 1], [2, 3]]


def test_evaluation_rows_go_with_the_training_row_before_them():
    # A row without reward at step 3, then a restart.
    assert rows_of([1, 2, 3, 1, 2], trained=[1, 1, 0, 1, 1]) == [[0, 1, 2], [3, 4]]


def test_no_training_row_gives_no_segment():
    assert rows_of([1, 2], trained=[0, 0]) == []


@given(st.lists(st.integers(0, 6), min_size=1, max_size=30))
def test_every_row_is_in_one_segment_or_replaced(values):
    steps = np.array(values, float)
    segments = find_segments(steps, np.ones(len(steps), bool), [])
    used = np.concatenate([segment.rows for segment in segments])
    assert len(set(used.tolist())) == len(used)
    assert len(used) + sum(segment.replaced for segment in segments) == len(steps)
    for segment in segments:
        assert (np.diff(steps[segment.rows]) >= 0).all()


@given(
    st.lists(st.tuples(st.integers(0, 4), st.floats(-5, 5) | st.just(float("nan"))), min_size=1, max_size=25),
)
def test_merging_is_the_mean_of_each_step(pairs):
    pairs = sorted(pairs, key=lambda pair: pair[0])
    steps = np.array([float(step) for step, _ in pairs])
    values = np.array([value for _, value in pairs])
    trained = np.arange(len(pairs)) % 2 == 0
    unique, merged, repeated = merge(steps, trained, {"v": values})
    expected = {}
    for step in sorted({s for s, t in zip(steps, trained, strict=True) if t}):
        kept = [v for s, v in zip(steps, values, strict=True) if s == step and not np.isnan(v)]
        expected[step] = sum(kept) / len(kept) if kept else np.nan
    np.testing.assert_array_equal(unique, list(expected))
    np.testing.assert_allclose(merged["v"], list(expected.values()), rtol=1e-12, atol=1e-12)
    assert repeated == trained.sum() - len(unique)


def test_a_mean_of_large_values_does_not_overflow():
    _, merged, _ = merge(np.zeros(2), np.ones(2, bool), {"v": np.array([1.7e308, 1.7e308])})
    assert merged["v"][0] == pytest.approx(1.7e308)
