import json
from pathlib import Path

import numpy as np
import pytest

from jaxgrpo.errors import ReadError
from jaxgrpo.logs import read_run, read_runs

FIXTURES = Path(__file__).parent / "fixtures"


def test_the_table_in_an_output():
    run = read_run(FIXTURES / "notebook.ipynb")
    np.testing.assert_allclose(run.reward, 0.5 * np.arange(6) - 1)
    np.testing.assert_array_equal(run.logged_steps, np.arange(1, 7))
    np.testing.assert_array_equal(run.channels["length"], 90.0 + np.arange(6))
    # The first cell says "No log".
    np.testing.assert_array_equal(run.channels["loss"], [np.nan, 0.01, 0.01, 0.01, 0.01, 0.01])
    np.testing.assert_allclose(run.parts["check_answer"], run.reward)


def test_settings_from_the_banner_and_the_code():
    run = read_run(FIXTURES / "notebook.ipynb")
    assert run.settings == {
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "learning_rate": 5e-6,
        "num_generations": 4,
        "adam_beta1": 0.9,
    }
    assert run.hyperparameters is not None
    assert float(run.hyperparameters.learning_rate) == pytest.approx(5e-6)
    assert float(run.hyperparameters.group_size) == 4.0


def table(rewards):
    rows = "".join(f"<tr><td>{i + 1}<td>{r}</tr>" for i, r in enumerate(rewards))
    return f"<table><tr><th>Step<th>reward</tr>{rows}</table>"


def notebook(*outputs):
    return json.dumps({"cells": [{"outputs": list(outputs)}], "nbformat": 4})


def test_two_tables_are_two_sessions(tmp_path):
    path = tmp_path / "x.ipynb"
    html = [{"data": {"text/html": table(rewards)}} for rewards in ([0.1, 0.2], [0.3, 0.4, 0.5])]
    path.write_text(notebook(*html))
    assert [run.reward.tolist() for run in read_runs(path)] == [[0.1, 0.2], [0.3, 0.4, 0.5]]


def test_rows_printed_as_text_where_there_is_no_table(tmp_path):
    path = tmp_path / "x.ipynb"
    path.write_text(notebook({"text": ["{'loss': 0.1, 'reward': 0.25}\n", "{'loss': 0.1, 'reward': 0.5}\n"]}))
    assert read_run(path).reward.tolist() == [0.25, 0.5]


def test_a_notebook_without_results_is_refused(tmp_path):
    path = tmp_path / "x.ipynb"
    path.write_text(notebook({"text": "hello"}, {"data": None}, None))
    with pytest.raises(ReadError, match="a notebook without a table of training results"):
        read_run(path)
