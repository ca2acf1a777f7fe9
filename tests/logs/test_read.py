import gzip
import io
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from jaxgrpo.errors import ReadError
from jaxgrpo.logs import read_run, read_runs

FIXTURES = Path(__file__).parent / "fixtures"
STATE = FIXTURES / "trl_trainer_state.json"


@pytest.fixture(scope="module")
def expected():
    return read_run(STATE).reward


def test_paths_objects_gzip_and_standard_input(tmp_path, monkeypatch, expected):
    packed = tmp_path / "state.json.gz"
    packed.write_bytes(gzip.compress(STATE.read_bytes()))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(STATE.read_bytes())))
    for source in (
        STATE,
        str(STATE),
        packed,
        "-",
        io.BytesIO(STATE.read_bytes()),
        io.StringIO(STATE.read_text()),
    ):
        np.testing.assert_array_equal(read_run(source).reward, expected)
    with STATE.open("rb") as file:
        assert read_run(file).name == "trl_trainer_state"


def test_a_packed_event_file(tmp_path):
    path = tmp_path / "events.gz"
    events = FIXTURES / "events.out.tfevents.1700000000.verl"
    path.write_bytes(gzip.compress(events.read_bytes()))
    np.testing.assert_array_equal(read_run(path).reward, read_run(events).reward)


def test_a_folder_with_a_log_and_other_json(tmp_path, expected):
    shutil.copy(STATE, tmp_path / "trainer_state.json")
    (tmp_path / "meta.json").write_text(
        '{"reward_stats": {"n": 3, "first10pct": 0.5}, "hyperparameters": {"learning_rate": 1}}'
    )
    (tmp_path / "config.yaml").write_text("learning_rate: 1\n")
    (tmp_path / ".hidden.json").write_text("{")
    (tmp_path / "empty.txt").touch()
    run = read_run(tmp_path)
    np.testing.assert_array_equal(run.reward, expected)
    assert run.name == tmp_path.name
    assert (
        "files of the folder that are no training logs are skipped: config.yaml, empty.txt, meta.json"
        in run.warnings
    )
    assert run.hyperparameters is not None and float(run.hyperparameters.learning_rate) < 1e-3


def test_checkpoints_that_hold_the_beginning_are_skipped(tmp_path, expected):
    state = json.loads(STATE.read_text())
    for count in (4, 8, len(state["log_history"])):
        folder = tmp_path / f"checkpoint-{count}"
        folder.mkdir()
        (folder / "trainer_state.json").write_text(
            json.dumps(state | {"log_history": state["log_history"][:count]})
        )
    run = read_run(tmp_path)
    np.testing.assert_array_equal(run.reward, expected)
    assert any("2 logs of the folder that only hold the beginning" in warning for warning in run.warnings)


def test_a_folder_of_several_runs(tmp_path):
    shutil.copy(STATE, tmp_path / "one.json")
    shutil.copy(FIXTURES / "sparse.jsonl", tmp_path / "two.jsonl")
    assert [run.name for run in read_runs(tmp_path)] == ["one", "two"]
    assert read_run(tmp_path, run="two").name == "two"
    with pytest.raises(ReadError, match="holds 2 runs; choose one with run=NAME.*one, two"):
        read_run(tmp_path)
    with pytest.raises(ReadError, match="no run 'tow'; did you mean 'two'"):
        read_run(tmp_path, run="tow")


def test_event_files_of_one_folder_are_one_run(tmp_path):
    events = FIXTURES / "events.out.tfevents.1700000000.verl"
    shutil.copy(events, tmp_path / "events.out.tfevents.1700000000.box")
    shutil.copy(events, tmp_path / "events.out.tfevents.1700000009.box")
    run = read_run(tmp_path)
    assert len(run) == 7
    assert any("2 sessions of training (7 + 7 points)" in warning for warning in run.warnings)


@pytest.mark.parametrize(
    "files", [{}, {"a.txt": "hello"}, {"a.txt": "hello", "b.csv": "step,loss\n1,2\n2,3\n"}]
)
def test_a_folder_without_a_log_says_so(tmp_path, files):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(ReadError) as error:
        read_run(tmp_path)
    assert ["the folder is empty", "no line of it is a row", "there is no reward column"][len(files)] in str(
        error.value
    )


def test_several_paths_give_all_their_runs():
    runs = read_runs([STATE, FIXTURES / "campaign.json"])
    assert [run.name for run in runs] == ["trl_trainer_state", "G2", "G8", "T1"]
    with pytest.raises(ReadError, match="the list of paths is empty"):
        read_runs([])


def test_segments_of_read_runs_may_be_chosen():
    (run,) = read_runs(FIXTURES / "tinker_restart.jsonl", segment="longest")
    assert len(run) == 4
    with pytest.raises(ReadError, match="call read_runs"):
        read_run(FIXTURES / "tinker_restart.jsonl", segment="all")


def test_two_words_about_the_reward_must_agree():
    with pytest.raises(ReadError, match="give one of them"):
        read_run(FIXTURES / "plain.csv", columns={"reward": "my_kl"}, reward="my_score")


@pytest.mark.parametrize("path", ["nowhere.json", "nul\0byte", "x" * 5000])
def test_paths_that_are_none(path):
    with pytest.raises(ReadError) as error:
        read_run(path)
    assert "\n" not in str(error.value)


def test_each_warning_is_one_line():
    for path in FIXTURES.iterdir():
        try:
            runs = read_runs(path)
        except ReadError as error:
            assert "\n" not in str(error)
            continue
        for run in runs:
            assert run.warnings and not any("\n" in warning for warning in run.warnings)


def test_importing_the_readers_stays_light():
    import subprocess

    heavy = "('tensorboard', 'pandas', 'scipy', 'diffrax')"
    code = f"import sys, jaxgrpo.logs; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
