import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from jaxgrpo.logs import read_run
from jaxgrpo.logs.verl import ConsoleReader, parse_line

FIXTURES = Path(__file__).parent / "fixtures"


def test_console():
    run = read_run(FIXTURES / "verl_console.log")
    i = np.arange(1, 11)
    assert run.framework == "verl"
    np.testing.assert_array_equal(run.logged_steps, i)
    np.testing.assert_allclose(run.reward, 0.1 * i - 0.05)
    expected = {
        "entropy": 1 - 0.05 * i,
        "kl": 0.001 * i,
        "length": 80.0 + i,
        "grad_norm": np.full(10, 0.3),
        "learning_rate": np.full(10, 3e-6),
        "clip_fraction": np.full(10, 0.01),
        "truncation": np.full(10, 0.25),
        "step_time": np.full(10, 40.5),
        "loss": np.full(10, -0.02),
    }
    for channel, values in expected.items():
        np.testing.assert_allclose(run.channels[channel], values, err_msg=channel)


def test_validation_and_the_row_before_training():
    run = read_run(FIXTURES / "verl_console.log")
    evaluation = run.channels["eval_reward"]
    assert np.flatnonzero(np.isfinite(evaluation)).tolist() == [4, 9]
    np.testing.assert_allclose(evaluation[[4, 9]], [0.35, 0.6])
    assert any("1 held-out values" in warning for warning in run.warnings)


def test_the_printed_configuration_gives_the_hyperparameters():
    run = read_run(FIXTURES / "verl_console.log")
    assert run.settings["actor_rollout_ref"]["actor"]["optim"]["note"] == "odd ( text"
    assert run.hyperparameters is not None
    assert float(run.hyperparameters.group_size) == 6.0
    # 64 prompts a batch in mini-batches of 16.
    assert float(run.hyperparameters.refresh_interval) == 4.0
    assert run.steps_per_row == 4.0
    np.testing.assert_array_equal(run.steps, 4.0 * np.arange(10))
    assert any("4 optimizer steps" in warning for warning in run.warnings)


def test_old_names_and_the_rate_in_units_of_1e_4():
    run = read_run(FIXTURES / "verl_console_old.log")
    np.testing.assert_allclose(run.reward, 0.1 * np.arange(6), atol=1e-12)
    np.testing.assert_allclose(run.channels["learning_rate"], 1e-6)
    assert any("actor/lr(1e-4) is in units of 1e-4" in warning for warning in run.warnings)
    assert run.hyperparameters is not None
    assert float(run.hyperparameters.learning_rate) == pytest.approx(1e-6)
    assert any("optimizer steps per logged row is unknown" in warning for warning in run.warnings)


def test_underscored_csv():
    run = read_run(FIXTURES / "verl_underscores.csv")
    i = np.arange(7)
    assert run.framework == "verl"
    np.testing.assert_array_equal(run.logged_steps, 1001 + i)
    np.testing.assert_array_equal(run.steps, i)
    np.testing.assert_allclose(run.reward, 0.1 * i, atol=1e-12)
    np.testing.assert_allclose(run.channels["zero_spread"], 0.0625)
    assert np.flatnonzero(np.isfinite(run.extra["timing_s_save_checkpoint"])).tolist() == [3]
    assert run.parts == {}
    assert any("zero reward only" in warning for warning in run.warnings)
    assert any("the policy that sampled" in warning for warning in run.warnings)


@pytest.mark.parametrize(
    "line, expected",
    [
        ("step:3 - a/b:0.5 - c:np.float64(-1e-05)", {"step": 3, "a/b": 0.5, "c": -1e-5}),
        ("\x1b[36m(TaskRunner pid=1)\x1b[0m step:3 - a:1\x1b[0m\n", {"step": 3, "a": 1}),
        ("step:1 - actor/lr(1e-4):0.010 - x:nan", {"step": 1, "actor/lr(1e-4)": 0.01, "x": np.nan}),
        ("step:1 - a:tensor(2.5, device='cuda:0') - b:1", {"step": 1, "a": 2.5, "b": 1}),
        ("step:1 - a:none - b:1", {"step": 1, "b": 1}),
        ("step:1 - grad:mean:0.5 - b:1", {"step": 1, "grad:mean": 0.5, "b": 1}),
        ("step:1 - a:np.float64(0.25)\r\n", {"step": 1, "a": 0.25}),
    ],
)
def test_lines_of_metrics(line, expected):
    row = parse_line(line)
    assert row is not None
    np.testing.assert_equal(dict(zip(*row, strict=True)), expected)


@pytest.mark.parametrize(
    "line",
    [
        "step:1",
        "step:x - a:1",
        "global_step:1 - a:2",
        "timing/step:1 - a:2",
        "a step: 1 - a:1",
        "",
        "step:1 - a:b",
    ],
)
def test_lines_that_are_no_metrics(line):
    assert parse_line(line) is None


@pytest.mark.parametrize(
    "text",
    [
        "{'trainer': __import__('os').system('true')}",
        "{'trainer': " + "[" * 500 + "]" * 500 + "}",
        "{'trainer': 1",
        "{'trainer': {1}}",
    ],
)
def test_a_configuration_that_is_no_literal_is_ignored(text):
    reader = ConsoleReader("x")
    for line in (text + "\n", "step:1 - critic/rewards/mean:0.5\n"):
        reader.feed(line)
    (table,) = reader.finish()
    assert table.settings in ({}, {"trainer": {1}}) and table.rows == 1


def test_a_long_log_is_read_fast_and_in_little_memory(tmp_path):
    # In a process of its own, on its processor time, since other processes run beside it. Its peak memory is the kernel's
    # mark for this program alone: ru_maxrss would count that of the test run which it was forked from.
    path = tmp_path / "long.log"
    metrics = " - ".join(f"timing_s/part_{k}:{k + 0.123456789}" for k in range(25))
    with path.open("w") as file:
        for i in range(25_000):
            file.write(
                f"\x1b[36m(TaskRunner pid=1)\x1b[0m step:{i} - critic/rewards/mean:{i / 25_000} - {metrics}\n"
            )
            file.write("(TaskRunner pid=1) local_global_step_folder: /checkpoints/global_step reward\n" * 3)
    code = (
        "import re, sys, time; from jaxgrpo.logs import read_run; began = time.process_time(); "
        "run = read_run(sys.argv[1]); print(len(run), time.process_time() - began, "
        "int(re.search(r'VmHWM:\\s*(\\d+)', open('/proc/self/status').read())[1]) / 1024)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    points, seconds, megabytes = (float(word) for word in done.stdout.split())
    assert points == 25_000
    assert seconds < 5.0
    assert megabytes < 500.0
