import math

import numpy as np
import pytest

from jaxgrpo.logs.table import MAX_COLUMNS, Table, flatten, number, records


@pytest.mark.parametrize(
    "value, expected",
    [
        (1, 1.0),
        (True, 1.0),
        ("0.35", 0.35),
        (" -1e-05 ", -1e-5),
        ("np.float64(0.25)", 0.25),
        ("tensor(2.5, device='cuda:0')", 2.5),
        ("inf", math.inf),
        (10**400, math.inf),
        (-(10**400), -math.inf),
    ],
)
def test_numbers_in_all_their_guises(value, expected):
    assert number(value) == expected


@pytest.mark.parametrize("value", [None, "", "easy", "6.5 minutes", [1], {}, "x" * 200, "()", "1,5"])
def test_what_is_no_number(value):
    assert number(value) is None


def test_nan_text_is_nan():
    assert math.isnan(number("nan"))


def test_rows_of_different_names_are_aligned():
    table = Table("t", "f")
    table.add({"a": 1.0})
    table.add({"b": 2.0, "a": 3.0})
    table.add({})
    table.add({"a": 4.0})
    arrays = table.arrays()
    assert table.names == ["a", "b"] and table.rows == 4
    np.testing.assert_array_equal(arrays["a"], [1, 3, np.nan, 4])
    np.testing.assert_array_equal(arrays["b"], [np.nan, 2, np.nan, np.nan])


def test_whole_columns_replace_those_of_rows():
    table = Table("t", "f")
    table.add({"a": 1.0, "b": 5.0})
    table.set_columns({"a": [7.0]})
    assert table.arrays()["a"].tolist() == [7.0] and table.arrays()["b"].tolist() == [5.0]


def test_too_many_columns_are_left_out_and_told():
    table = Table("t", "f")
    table.add({f"c{i}": 1.0 for i in range(MAX_COLUMNS + 5)})
    assert len(table.arrays()) == MAX_COLUMNS
    assert table.notes == [f"columns after the first {MAX_COLUMNS} are left out: 5"]


def test_nested_dictionaries_are_joined_and_bounded():
    deep: dict = {"x": 1}
    for _ in range(10):
        deep = {"d": deep}
    assert flatten({"a": {"b": "2.5", "c": "text"}, "e": 1}) == {"a/b": 2.5, "e": 1.0}
    assert flatten(deep) == {}


def test_breaks_are_noted_once_and_not_before_the_first_row():
    table = Table("t", "f")
    table.break_here()
    records([{"a": 1}], table)
    table.break_here()
    table.break_here()
    assert table.breaks == [1]
