import io
from pathlib import Path

import pytest

from jaxgrpo.errors import ReadError
from jaxgrpo.logs.detection import read_any
from jaxgrpo.logs.source import Source

FIXTURES = Path(__file__).parent / "fixtures"
FRAMEWORK = {
    "campaign.json": "json",
    "columnar.json": "json",
    "event_stream.jsonl": "event-stream",
    "events.out.tfevents.1700000000.verl": "verl",
    "events.out.tfevents.1700000001.trl": "trl",
    "homemade.csv": "csv",
    "homemade_bars.log": "console",
    "homemade_epochs.log": "console",
    "iteration.jsonl": "jsonl",
    "microbatches.json": "json",
    "nemo_rl.json": "nemo-rl",
    "notebook.ipynb": "trl",
    "plain.csv": "csv",
    "plain.jsonl": "jsonl",
    "python_logging.log": "console",
    "resumed.jsonl": "jsonl",
    "roll.jsonl": "roll",
    "sparse.jsonl": "jsonl",
    "tinker_cookbook.jsonl": "tinker-cookbook",
    "tinker_restart.jsonl": "tinker-cookbook",
    "trl_console.log": "trl",
    "trl_console_sessions.log": "trl",
    "trl_list.json": "trl",
    "trl_trainer_state.json": "trl",
    "verl_console.log": "verl",
    "verl_console_old.log": "verl",
    "verl_underscores.csv": "verl",
    "wandb_chart.csv": "wandb",
    "wandb_history.csv": "csv",
    "wandb_long.csv": "wandb",
}


@pytest.mark.parametrize("name", FRAMEWORK)
def test_formats_are_told_by_content_alone(name):
    # Without a file there is no name to go by.
    tables = read_any(Source(io.BytesIO((FIXTURES / name).read_bytes())))
    assert {table.framework for table in tables} == {FRAMEWORK[name]}


@pytest.mark.parametrize(
    "data, message",
    [
        (b"   \n ", "nothing in it but white space"),
        (b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR", "binary"),
        (b"hello world\nthis is a letter\n", "no line of it is a row of metrics"),
        (b"<html><body>404</body></html>", "no line of it is a row of metrics"),
        (b'{"a": 1}', "is of no format|no reward"),
        (b'{"training": {"lr": 1e-5}, "seed": 3}', "a JSON object with training, seed"),
        (b'["a", "b"]', "neither rows nor columns"),
    ],
)
def test_what_is_no_log_is_refused_in_one_line(data, message):
    with pytest.raises(ReadError, match=message) as error:
        from jaxgrpo.logs import read_runs

        read_runs(io.BytesIO(data))
    assert "\n" not in str(error.value)


def test_an_unknown_format_gives_the_near_names():
    with pytest.raises(ReadError, match="framework 'tensorbord' is not known; did you mean 'tensorboard'"):
        read_any(Source(FIXTURES / "plain.csv"), "tensorbord")


def test_a_caller_may_insist_on_a_framework():
    (table,) = read_any(Source(FIXTURES / "resumed.jsonl"), "trl")
    assert table.framework == "trl" and table.counts == "optimizer"
