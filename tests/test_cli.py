"""The command: what it prints, writes and refuses, and what it leaves alone."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from jaxgrpo import cli

DATA = Path(cli.__file__).parent / "data"
DEMO, CONFIG = DATA / "demo_trl_trainer_state.json", DATA / "demo_trl_config.json"
TASK = ["--curvature", "50", "--plateau", "0.86", "--initial-reward", "0.03", "--steps", "60"]


@pytest.fixture(autouse=True)
def quiet_process(monkeypatch, tmp_path):
    """Leave this process as it was: no configuration of JAX, no thread, no files but in a folder of our own."""
    monkeypatch.setattr(cli, "prepare_jax", lambda: None)
    monkeypatch.setattr("jaxgrpo.report.assessment.compile_ahead", lambda: None)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.chdir(tmp_path)
    with jax.enable_x64(True):
        yield


def rising(points=40, seed=1, plateau=0.8):
    noise = 0.03 * np.random.default_rng(seed).standard_normal(points)
    return plateau - 0.6 * np.exp(-np.arange(points) / 8.0) + noise


def write_log(path="log.csv", rewards=None, rate=1e-6, column="reward"):
    rewards = rising() if rewards is None else rewards
    rows = [f"{i + 1},{reward},{rate}" for i, reward in enumerate(rewards)]
    Path(path).write_text(f"step,{column},learning_rate\n" + "\n".join(rows) + "\n")
    return str(path)


def run(capsys, *argv):
    code = cli.main([str(word) for word in argv])
    out, err = capsys.readouterr()
    return code, out, err


def refused(capsys, *argv):
    code, out, err = run(capsys, *argv)
    assert code == 2 and out == ""
    assert err.startswith("jaxgrpo: error: ") and err.endswith("\n") and err.count("\n") == 1, err
    return err


# ---------------------------------------------------------------- bad input: one clear line, exit code 2


def truncated():
    Path("cut.json").write_text(DEMO.read_text()[:3000])
    return "cut.json"


def lines(name, *rows):
    Path(name).write_text("\n".join(rows) + "\n" if rows else "")
    return name


VERL = """
actor_rollout_ref: {actor: {optim: {lr: 1e-6}, ppo_mini_batch_size: 64}, rollout: {n: 8}}
data: {train_batch_size: 128}
algorithm: {adv_estimator: grpo}
"""


@pytest.mark.parametrize(
    ("make", "options", "said"),
    [
        (lambda: "missing.json", [], "missing.json: there is no such file"),
        (lambda: lines("empty.json"), [], "empty.json: the file is empty"),
        (truncated, [], "cut.json: the JSON is cut off at line"),
        (
            lambda: lines("a.csv", "step,loss", "1,2", "2,3"),
            [],
            "no reward column; the columns are step, loss",
        ),
        (lambda: lines("a.csv", "step,reward", "1,nan", "2,nan", "3,nan"), [], "no finite number"),
        (lambda: lines("a.csv", "step,reward", "1,.1", "2,.2", "3,.3"), [], "3 points"),
        (lambda: lines("a.csv", "step,reward", *(f"{i},.5" for i in range(9))), [], "constant"),
        (write_log, ["--column", "reward=rewrd"], "there is no column 'rewrd'; did you mean 'reward'?"),
        (lambda: DEMO, ["--config", lambda: lines("verl.yaml", *VERL.split("\n"))], "is for verl"),
    ],
    ids=["missing", "empty", "truncated", "no-reward", "all-nan", "three", "constant", "mapping", "config"],
)
def test_bad_logs(capsys, make, options, said):
    options = [word() if callable(word) else word for word in options]
    assert said in refused(capsys, "fit", make(), *options)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["bogus"], "invalid choice: 'bogus'"),
        (["fit"], "LOG"),
        (["fit", "log.csv", "--nonsense"], "--nonsense"),
        (["fit", "log.csv", "--momentum", "x"], "--momentum: 'x' is no finite number"),
        (["fit", "log.csv", "--momentum", "1.5"], "--momentum must be less than 1"),
        (["fit", "log.csv", "--learning-rate", "inf"], "--learning-rate"),
        (["fit", "log.csv", "--group-size", "0"], "--group-size must be at least 1"),
        (["fit", "log.csv", "--convention", "x"], "--convention"),
        (["fit", "log.csv", "--async-lag", "0.5"], "--async-lag must be a whole number"),
        (["fit", "log.csv", "--column", "reward"], "NAME=THEIRS"),
        (["fit", "log.csv", "--bounds", "2,1"], "--bounds"),
        (["fit", "log.csv", "--bounds", "x"], "LOW,HIGH"),
        (["fit", "log.csv", "--model", "nope"], "unknown model 'nope'"),
        (["fit", "log.csv", "--segment", "7"], "no segment 7"),
        (["fit", "log.csv", "--run", "nope"], "no run 'nope'"),
        (["fit", "log.csv", "--joint", "--parts"], "not allowed with"),
        (["fit", "log.csv", "--parts"], "part"),
        (["fit", "log.csv", "--config", "missing.yaml"], "missing.yaml"),
        (["fit", "log.csv", "--plot", "no/such/x.png"], "there is no folder no/such"),
        (["fit", "log.csv", "--plot", "x.bmp"], ".png, .pdf or .svg"),
        (["fit", "log.csv", "--plot", "."], "is a folder"),
        (["fit", "log.csv", "--plot", "a.png", "--html", "a.png"], "is also the file of --plot"),
        (["forecast", "log.csv", "--upto", "1.5"], "between 0 and 1"),
        (["forecast", "log.csv", "--patience", "0"], "whole number above 0"),
        (["predict"], "needs a LOG"),
        (["predict", "--json", "log.csv"], "put LOG before --json"),
        (["predict", *TASK], "--learning-rate"),
        (["predict", *TASK[:-2], "--learning-rate", "1"], "--steps"),
        (["predict", *TASK, "--learning-rate", "-1"], "--learning-rate must be at least 0"),
        (["predict", *TASK, "--learning-rate", "1:2:3"], "is no range"),
        (["predict", *TASK, "--learning-rate", "0:2:log3"], "above 0"),
        (["predict", *TASK, "--learning-rate", "1:2:lin500"], "500 values"),
        (["predict", *TASK, "--learning-rate", "1:2:lin100", "--momentum", "0:0.9:lin9"], "900 combinations"),
        (["predict", *TASK, "--learning-rate", "1", "--force", "mixed"], "--spread"),
        (["predict", *TASK, "--learning-rate", "1", "--spread", "1"], "--force mixed"),
        (
            ["predict", *TASK, "--learning-rate", "1", "--force", "softmax", "--floor", "0.5"],
            "--initial-reward",
        ),
        (["predict", *TASK, "--learning-rate", "1", "--rollout-noise", "-1"], "--rollout-noise"),
        (["predict", *TASK, "--learning-rate", "1", "--config", "x"], "--config is about a log"),
        (["predict", "log.csv", *TASK], "--curvature describes a task without a log"),
        (["predict", "log.csv", "--segment", "all"], "--segment all"),
        (["simulate"], "simulate needs a LOG"),
        (["simulate", *TASK, "--learning-rate", "1", "--paths", "0"], "--paths"),
        (["simulate", *TASK, "--learning-rate", "1", "--seed", "-1"], "--seed"),
        (
            ["simulate", *TASK, "--learning-rate", "1:9:lin100", "--momentum", "0:0.9:lin30"],
            "3000 combinations",
        ),
        (
            ["simulate", *TASK, "--learning-rate", "1e-3", "--momentum", "0.001", "--method", "sde"],
            "method='exact'",
        ),
        (["predict", "log.csv", "--log-setting", "nope=1"], "'nope' is no hyperparameter"),
        (["predict", "log.csv", "--log-setting", "group_size=0"], "--group-size must be at least 1"),
        (
            ["predict", *TASK, "--learning-rate", "1", "--staleness", "0.5", "--epochs-per-rollout", "2"],
            "epochs",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_bad_options(capsys, argv, said):
    write_log()
    assert said in refused(capsys, *argv)


def test_a_rate_to_predict_needs_the_rate_of_the_log(capsys):
    lines("bare.csv", "step,reward", *(f"{i},{r}" for i, r in enumerate(rising())))
    said = refused(capsys, "predict", "bare.csv", "--learning-rate", "1e-6")
    assert "--log-setting learning_rate=VALUE" in said


def test_a_name_cannot_steer_the_terminal(capsys):
    said = refused(capsys, "fit", "bad\x1b[31m\nname\u202e")
    assert "bad?[31m" in said and "\x1b" not in said and "\u202e" not in said


# ---------------------------------------------------------------- outputs never destroy


@pytest.mark.parametrize("option", ["--json", "--html", "--plot"])
def test_an_input_is_never_overwritten(capsys, option):
    name = write_log("log.png")
    before = Path(name).read_bytes()
    for target in (name, "./log.png", str(Path(name).resolve())):
        assert "is one of the inputs" in refused(capsys, "fit", name, option, target)
    os.link(name, "other.png")
    assert "is one of the inputs" in refused(capsys, "fit", name, option, "other.png")
    assert Path(name).read_bytes() == before


def test_nor_is_a_configuration_or_what_lies_in_a_folder_that_is_read(capsys):
    Path("logs").mkdir()
    write_log("logs/a.csv")
    Path("c.json").write_text(CONFIG.read_text())
    assert "inputs" in refused(capsys, "read", DEMO, "--config", "c.json", "--json", "c.json")
    assert "inputs" in refused(capsys, "read", "logs", "--json", "logs/a.csv")


def test_json_replaces_only_its_own_files(capsys):
    log = write_log()
    other = write_log("second.csv")
    before = Path(other).read_bytes()
    # The second log is taken for the FILE of --json.
    assert "was not written by jaxgrpo" in refused(capsys, "read", log, "--json", other)
    assert Path(other).read_bytes() == before
    for _ in range(2):
        assert run(capsys, "read", log, "--json", "out.json")[0] == 0
    assert json.loads(Path("out.json").read_text())["command"] == "read"


# ---------------------------------------------------------------- read


def test_read_one(capsys):
    code, out, err = run(capsys, "read", DEMO, "--config", CONFIG, "--group-size", "4")
    assert code == 0 and err == ""
    rows = {line[:19].strip(): line[19:].split() for line in out.splitlines()}
    assert rows["learning rate"][:2] == ["3e-4", "settings"]
    assert rows["group size G"] == ["4", "command", "line"]
    assert "320, steps 1–320" in out and "correct, even_digits" in out and "Notes" in out


def test_read_several(capsys):
    logs = [write_log("a.csv"), write_log("b.csv", rate=3e-6)]
    code, out, err = run(capsys, "read", *logs, "--momentum", "0.8")
    assert code == 0 and err == ""
    first, second = (next(row for row in out.splitlines() if row.startswith(name + " ")) for name in "ab")
    assert "1e-6" in first and "3e-6" in second and "0.8" in first


def test_what_can_be_read_is_shown_and_the_rest_is_named(capsys):
    code, out, err = run(capsys, "read", write_log("a.csv"), "missing.csv")
    assert code == 2 and "a" in out
    assert err == "jaxgrpo: left out: missing.csv: there is no such file; check the path\n"


def test_standard_input(capsys, monkeypatch):
    data = io.BytesIO(Path(write_log()).read_bytes())
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(data))
    code, out, _ = run(capsys, "read", "-")
    assert code == 0 and "40, steps 1–40" in out


def test_a_column_of_another_name(capsys):
    code, out, _ = run(capsys, "read", write_log(column="score"), "--reward", "score")
    assert code == 0 and "40, steps 1–40" in out


def test_read_json_has_the_series(capsys):
    code, out, err = run(capsys, "read", write_log(), "--json")
    content = json.loads(out)
    assert code == 0 and err == ""
    np.testing.assert_allclose(content["runs"][0]["reward"], rising())
    assert content["runs"][0]["hyperparameters"]["learning_rate"] == 1e-6


# ---------------------------------------------------------------- fit


def test_fit_prints_writes_and_draws(capsys):
    log = write_log()
    code, out, err = run(capsys, "fit", log, "--plot", "p.png", "--html", "p.html", "--json", "p.json")
    assert code == 0 and err == ""
    for part in ("What it says", "log evidence", "noise ceiling", "90 % interval", "critical learning rate"):
        assert part in out
    assert "Upper bounds: no sharpness was measured" in out
    assert out.endswith("Picture: p.png\nPage: p.html\nJSON: p.json\n")
    assert Path("p.png").read_bytes().startswith(b"\x89PNG")
    page = Path("p.html").read_text(encoding="utf-8")
    assert page.startswith("<!DOCTYPE html>") and "data:image/png;base64," in page
    content = json.loads(Path("p.json").read_text())["fits"][0]
    estimate = content["parameters"]["plateau"]
    assert estimate["lower"] < 0.8 < estimate["upper"]
    assert len(content["runs"][0]["expected"]) == 40
    assert content["runs"][0]["stability"]["regime"] in ("overdamped", "underdamped")
    assert "\x1b" not in out


def test_json_alone_on_standard_output(capsys):
    code, out, err = run(capsys, "fit", write_log(), "--json", "--plot", "p.svg")
    assert code == 0
    content = json.loads(out)
    assert content["command"] == "fit" and content["fits"][0]["model"]
    # Strict JSON: what is not finite is null.
    json.loads(out, parse_constant=lambda name: pytest.fail(name))
    assert err == "Picture: p.svg\n"


def test_options_override_the_log(capsys):
    log = write_log()
    options = ["--learning-rate", "2e-6", "--refresh-interval", "2", "--model", "first_order", "--json"]
    _, out, _ = run(capsys, "fit", log, *options)
    fit = json.loads(out)["fits"][0]
    assert fit["model"] == "first_order"
    assert fit["runs"][0]["hyperparameters"]["learning_rate"] == 2e-6
    assert fit["runs"][0]["hyperparameters"]["refresh_interval"] == 2


def test_a_sharpness_makes_the_limits_measured(capsys):
    code, out, _ = run(capsys, "fit", write_log(), "--sharpness", "1e9")
    assert code == 0 and "Upper bounds" not in out and "Unstable" in out


def test_several_logs_a_line_each_and_those_that_cannot_be_fitted_named(capsys):
    flat = write_log("flat.csv", rewards=np.full(40, 0.5))
    logs = [write_log("a.csv"), flat, write_log("b.csv", rewards=rising(seed=2))]
    code, out, err = run(capsys, "fit", *logs, "--plot", "p.png")
    assert code == 2 and err.startswith("jaxgrpo: left out: flat") and err.count("\n") == 1
    assert [line.split()[0] for line in out.splitlines() if line[:2] in ("a ", "b ")] == ["a", "b"]
    assert Path("p.png").exists()


def test_joint(capsys):
    logs = [write_log("a.csv"), write_log("b.csv", rewards=rising(seed=2), rate=1e-6)]
    code, out, _ = run(capsys, "fit", "--joint", *logs)
    assert code == 0 and "2 runs fitted jointly" in out and "Each run" in out


# ---------------------------------------------------------------- predict


def test_predict_a_task(capsys):
    options = ["--learning-rate", "1e-4:1e-2:log3", "--refresh-interval", "1,4", "--rollout-noise", "10"]
    code, out, err = run(capsys, "predict", *TASK, *options, "--json", "--plot", "p.png")
    predictions = json.loads(out)["predictions"]
    found = [
        (p["hyperparameters"]["learning_rate"], p["hyperparameters"]["refresh_interval"]) for p in predictions
    ]
    assert found == [(1e-4, 1), (1e-4, 4), (1e-3, 1), (1e-3, 4), (1e-2, 1), (1e-2, 4)]
    for one in predictions:
        assert one["optimizer_steps"][-1] == 60
        assert one["lower"][-1] < one["expected"][-1] < one["upper"][-1]
    # By the update rule itself, step by step.
    error, update = 0.03 - 0.86, 0.0
    for _ in range(60):
        update = 0.9 * update - 0.1 * 1e-3 * 50 * error
        error += update
    assert predictions[2]["expected"][-1] == pytest.approx(0.86 + error, abs=1e-9)
    assert code == 0 and err == "Picture: p.png\n"


def test_the_table_of_a_prediction(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = run(capsys, "predict", *TASK, "--learning-rate", "1e-3,5", "--force", "harmonic")
    assert code == 0
    assert max(len(line) for line in out.splitlines()) <= 80
    for part in ("regime", "damping", "margin", "critical", "at end", "90 % band", "diverges", "unstable"):
        assert part in out


def test_simulate_a_grid_with_a_map(capsys):
    options = ["--learning-rate", "1e-3:2:log3", "--refresh-interval", "1,4", "--rollout-noise", "10"]
    more = ["--paths", "300", "--plot", "map.png", "--json", "sim.json", "--save", "runs"]
    code, out, _ = run(capsys, "simulate", *TASK, *options, *more)
    assert code == 0 and "diverged" in out and "300 runs a setting" in out
    content = json.loads(Path("sim.json").read_text())
    ours = {
        (one["hyperparameters"]["learning_rate"], one["hyperparameters"]["refresh_interval"]): one
        for one in content["simulations"]
    }
    assert len(ours) == 6 and ours[2.0, 4.0]["diverged"][-1] == 1 and ours[1e-3, 1.0]["diverged"][-1] == 0
    error, update = 0.03 - 0.86, 0.0
    for _ in range(60):
        update = 0.9 * update - 0.1 * 1e-3 * 50 * error
        error += update
    slow = ours[1e-3, 1.0]
    assert abs(slow["mean"][-1] - 0.86 - error) < 4 * slow["mean_error"][-1]
    chunk = np.load(next(Path("runs").glob("chunk-*.npz")))
    assert chunk["rewards"].shape == (6, 61, 300) and Path("map.png").stat().st_size > 10_000


def test_simulate_the_task_of_a_log(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    log = write_log()
    options = ["--group-size", "4,16", "--model", "first_order", "--paths", "100", "--plot", "fan.png"]
    code, out, _ = run(capsys, "simulate", log, "--log-setting", "group_size=8", *options)
    assert code == 0 and Path("fan.png").exists()
    assert max(len(line) for line in out.splitlines()) <= 80
    for part in (": simulated", "Fitted: first order", "39 optimizer steps", "most probable values"):
        assert part in out, out


def test_predict_from_a_log(capsys):
    log = write_log()
    code, out, _ = run(
        capsys,
        "predict",
        log,
        "--learning-rate",
        "1e-6,3e-6",
        "--steps",
        "80",
        "--json",
        "p.json",
        "--plot",
        "p.png",
    )
    assert code == 0 and "▸" in out and "after" not in out and "(80 optimizer steps)" in out
    own, faster = json.loads(Path("p.json").read_text())["predictions"]
    assert own["is_own"] and not faster["is_own"]
    at = {step: index for index, step in enumerate(own["optimizer_steps"])}
    # Early on more learning rate is more reward; the band at a rate that was not run is the wider one.
    assert faster["expected"][at[4]] > own["expected"][at[4]]
    assert faster["upper"][at[4]] - faster["lower"][at[4]] > own["upper"][at[4]] - own["lower"][at[4]]
    assert own["expected"][-1] == pytest.approx(0.8, abs=0.03)


# ---------------------------------------------------------------- demo, terminals, processes


def test_demo(capsys):
    Path("jaxgrpo-demo.png").write_bytes(b"mine")
    code, out, err = run(capsys, "demo")
    assert code == 0 and err == ""
    assert "demo_trl_trainer_state.json" in out and "What it says" in out
    assert out.endswith("Picture: jaxgrpo-demo-2.png\n")
    assert Path("jaxgrpo-demo.png").read_bytes() == b"mine"
    assert Path("jaxgrpo-demo-2.png").read_bytes().startswith(b"\x89PNG")


def test_an_output_without_unicode(capsys, monkeypatch):
    buffer = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(buffer, encoding="ascii", write_through=True))
    assert cli.main(["read", write_log()]) == 0
    assert "0." in buffer.getvalue().decode("ascii") and "->" in buffer.getvalue().decode("ascii")


@pytest.mark.parametrize("width", ["40", "80", "120", "1000"])
def test_lines_keep_to_the_terminal(capsys, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", width)
    _, out, _ = run(capsys, "read", DEMO, write_log())
    assert max(len(line) for line in out.splitlines()) <= min(int(width), 120)


def test_interruption(capsys, monkeypatch):
    def interrupted(arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("jaxgrpo.report.jobs.run", interrupted)
    assert run(capsys, "demo") == (130, "", "")


def test_a_full_disk_is_one_line(capsys, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device", "p.png")

    monkeypatch.setattr("jaxgrpo.report.jobs._save", full)
    assert "p.png: No space left on device" in cli_error(capsys, "read", write_log(), "--plot", "p.png")


def cli_error(capsys, *argv):
    code, _, err = run(capsys, *argv)
    assert code == 2 and err.count("\n") == 1
    return err


def test_help_names_every_command_and_fits_a_terminal(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    for argv in ([], ["read"], ["fit"], ["predict"], ["simulate"], ["demo"]):
        with pytest.raises(SystemExit) as stop:
            cli.main([*argv, "--help"])
        out = capsys.readouterr().out
        assert stop.value.code == 0
        assert max(len(line) for line in out.splitlines()) <= 80
    assert run(capsys)[0] == 0


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1e-6", [1e-6]),
        ("1,2", [1.0, 2.0]),
        ("1e-6:1e-4:log3", [1e-6, 1e-5, 1e-4]),
        ("1:4:lin4", [1.0, 2.0, 3.0, 4.0]),
        ("3:3:lin1,7", [3.0, 7.0]),
        ("1e-4:1e-2:log4", [1e-4, 4.64e-4, 2.15e-3, 1e-2]),
    ],
)
def test_lists_and_ranges(text, values):
    assert cli._values(text) == values


def environment(tmp_path, **more):
    kept = {k: v for k, v in os.environ.items() if k not in ("JAX_PLATFORMS", "JAX_COMPILATION_CACHE_DIR")}
    return {**kept, "XDG_CACHE_HOME": str(tmp_path / "cache"), "PYTHONIOENCODING": "utf-8", **more}


def python(program, tmp_path, **more):
    return subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        encoding="utf-8",
        env=environment(tmp_path, **more),
        cwd=tmp_path,
        check=False,
    )


def test_help_and_mistakes_do_not_wait_for_jax(tmp_path):
    program = """
import sys
from jaxgrpo.cli import main
try:
    main(["--help"])
except SystemExit:
    pass
assert main(["fit", "x", "--momentum", "y"]) == 2
assert main(["fit", "x", "--plot", "y.bmp"]) == 2
assert main(["--version"]) == 0
loaded = sorted({"jax", "numpy", "equinox", "matplotlib", "tqdm"} & set(sys.modules))
assert not loaded, loaded
"""
    done = python(program, tmp_path)
    assert done.returncode == 0, done.stderr


def test_the_command_sets_up_jax_and_needs_no_writable_cache(tmp_path):
    program = """
import jax
from jaxgrpo.cli import prepare_jax
prepare_jax()
print(jax.config.jax_enable_x64, jax.config.jax_compilation_cache_dir, jax.default_backend())
"""
    done = python(program, tmp_path)
    assert done.stdout.split() == ["True", str(tmp_path / "cache" / "jaxgrpo" / "compiled"), "cpu"]
    assert done.stderr == ""
    (tmp_path / "file").write_text("")
    done = python(program, tmp_path, XDG_CACHE_HOME=str(tmp_path / "file"))
    assert done.returncode == 0 and done.stdout.split()[:2] == ["True", "None"]


def test_the_whole_command_in_a_process_of_its_own(tmp_path):
    log = write_log(tmp_path / "log.csv")
    command = [sys.executable, "-m", "jaxgrpo", "fit", log, "--model", "first_order"]
    done = subprocess.run(
        command, capture_output=True, text=True, encoding="utf-8", env=environment(tmp_path), check=False
    )
    assert done.returncode == 0 and done.stderr == "" and "first order" in done.stdout
    assert list((tmp_path / "cache" / "jaxgrpo" / "compiled").iterdir())


def test_a_reader_that_leaves_is_no_error(tmp_path):
    log = write_log(tmp_path / "log.csv")
    command = f"{sys.executable} -m jaxgrpo read {log} | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, env=environment(tmp_path), check=False
    )
    assert done.stderr == "" and done.stdout.strip() in ("0", "141")


# ---------------------------------------------------------------- forecast


def test_forecast_of_one_log(capsys):
    code, out, err = run(capsys, "forecast", write_log(), "--horizon", 60, "--plot", "ahead.png")
    assert code == 0
    assert "90 % interval" in out and "60" in out and "stop?" in out and "ahead.png" in out + err
    assert Path("ahead.png").stat().st_size > 10_000


def test_forecast_from_a_part_says_what_then_happened(capsys):
    code, out, _ = run(capsys, "forecast", write_log(), "--upto", 0.5, "--json")
    assert code == 0
    content = json.loads(out)["forecasts"][0]
    rewards = rising()
    assert content["realised"] == pytest.approx(np.mean(rewards[-4:]), abs=1e-9)
    assert content["horizon"] == pytest.approx(39.0) and content["logged_steps"][-1] == pytest.approx(40.0)
    low, high = content["interval_90"]
    assert np.all(np.asarray(low) <= content["median"]) and np.all(np.asarray(content["median"]) <= high)


def test_forecast_of_several_logs_leaves_out_what_cannot_be(capsys):
    short = lines("short.csv", "step,reward", *(f"{i},.{i}" for i in range(1, 5)))
    code, out, err = run(capsys, "forecast", write_log("a.csv"), write_log("b.csv", rising(seed=2)), short)
    assert code == 2 and "short" in err and "too few" in err
    assert "2 runs" in out and "horizon" in out


def test_forecast_refuses_a_horizon_that_is_past(capsys):
    assert "--horizon 10 is not beyond step 40" in refused(capsys, "forecast", write_log(), "--horizon", 10)


def test_tune_predicts_fixed_settings_and_writes_them(capsys, tmp_path):
    fixed = ["learning_rate=6e-4", "momentum=0.9", "group-size=8", "refresh_interval=1"]
    argv = [
        "tune",
        DEMO,
        "--config",
        CONFIG,
        "--model",
        "first_order",
        "--budget",
        "0.3x",
        "--framework",
        "trl",
    ]
    argv += [word for setting in fixed for word in ("--fix", setting)]
    code, out, err = run(capsys, *argv, "--plot", "tune.png", "--json", "tune.json")
    assert code == 0 and err == ""
    for words in (
        "recommended",
        "Settings for TRL",
        "num_generations",
        "The advice fails if",
        "What to run to learn more",
    ):
        assert words in out
    advice = json.loads(Path("tune.json").read_text())["recommendation"]
    assert advice["settings"]["learning_rate"] == advice["hyperparameters"]["learning_rate"] == 6e-4
    assert advice["recommended"]["reward"][0] > advice["current"]["reward"][0]
    assert Path("tune.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--budget=-1"], "budget must be above 0"),
        (["--range", "group_size=4"], "NAME=LOW:HIGH"),
        (["--stable", "2"], "no part between 0 and 1"),
    ],
)
def test_tune_refuses_what_it_cannot_use(capsys, options, said):
    assert said in refused(capsys, "tune", DEMO, "--config", CONFIG, *options)
