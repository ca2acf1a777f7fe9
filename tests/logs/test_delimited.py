from pathlib import Path

import numpy as np
import pytest

from jaxgrpo.errors import ReadError
from jaxgrpo.logs import read_run, read_runs
from jaxgrpo.logs.delimited import looks_like

FIXTURES = Path(__file__).parent / "fixtures"


def test_home_made_columns_with_empty_cells_and_a_restart():
    run = read_run(FIXTURES / "homemade.csv")
    np.testing.assert_allclose(run.reward, 0.05 + 0.1 * np.arange(1, 7))
    assert any("2 sessions of training (2 + 6 points)" in warning for warning in run.warnings)
    first = read_runs(FIXTURES / "homemade.csv")[0]
    np.testing.assert_array_equal(first.channels["eval_reward"], [15.6, np.nan])
    assert set(run.parts) == {"format_reward"}


def test_a_table_of_ones_own_by_a_mapping():
    path = FIXTURES / "plain.csv"
    run = read_run(path, columns={"reward": "my_score", "kl": "my_kl"})
    np.testing.assert_allclose(run.reward, 0.1 * np.arange(1, 6))
    np.testing.assert_allclose(run.channels["kl"], 0.01 * np.arange(1, 6))
    np.testing.assert_array_equal(run.logged_steps, np.arange(1, 6))
    np.testing.assert_array_equal(read_run(path, reward="my_score").reward, run.reward)


@pytest.mark.parametrize("delimiter, end", [(",", "\n"), (";", "\r\n"), ("\t", "\r")])
def test_delimiters_and_line_ends(tmp_path, delimiter, end):
    path = tmp_path / "x"
    rows = [["step", "reward", "note"], ["1", "0.5", "a"], ["2", "0.25", "b"], ["3", "", "c"]]
    path.write_bytes(end.join(delimiter.join(row) for row in rows).encode())
    run = read_run(path)
    assert run.reward.tolist() == [0.5, 0.25]
    assert any("1 of 3 rows have no reward" in warning for warning in run.warnings)


def test_ragged_rows_are_told(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("step,reward,loss\n" + "".join(f"{i},0.{i},1\n" for i in range(1, 9)) + "9,0.9\n")
    run = read_run(path)
    assert len(run) == 9
    assert any("1 rows have more or fewer cells" in warning for warning in run.warnings)


def test_columns_of_the_same_name_are_kept_apart(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("step,reward,a,a\n1,0.5,3,4\n2,0.5,5,6\n")
    run = read_run(path)
    assert run.extra["a"].tolist() == [3, 5] and run.extra["a.2"].tolist() == [4, 6]


def test_a_header_alone_is_refused(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("step,reward\n")
    with pytest.raises(ReadError, match="holds a header but no row"):
        read_run(path, framework="csv")


@pytest.mark.parametrize(
    "text, expected",
    [
        ("step,reward\n1,2\n", True),
        ("a;b\n1;2\n", True),
        ("1,2\n3,4\n", False),
        ("2024-01-01 10:00:00,100 INFO start\n2024-01-01 10:00:01,200 INFO go on\n", False),
        ("Dear reader,\nthis is, as it were, a letter, is it not\n", False),
        ("step,reward\n", False),
    ],
)
def test_what_looks_like_a_table(text, expected):
    assert looks_like(text) is expected
