"""What the README says is so: its code runs, its commands exist, its numbers are those that come out."""

import json
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from jaxgrpo.cli import build_parser
from jaxgrpo.inference.models import MODELS
from jaxgrpo.logs.detection import FRAMEWORKS
from jaxgrpo.logs.trainers import FRAMEWORKS as TRAINERS

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

# Runs after the README's block, in the same process: what it came to, and what to hold its gradient against.
CHECKS = """
import dataclasses, json
import numpy as np

own = fit.hyperparameters[0]

def average_at(**changes):
    with jax.enable_x64(True):
        return float(average_reward(dataclasses.replace(own, **changes)))

differences = {}
for name in ("learning_rate", "momentum", "group_size"):
    value = float(getattr(own, name))
    low, high = value * (1 - 1e-4), value * (1 + 1e-4)
    differences[name] = (average_at(**{name: high}) - average_at(**{name: low})) / (high - low)
# Between whole refresh intervals the course is interpolated; what counts is the next whole one.
differences["refresh_interval"] = average_at(refresh_interval=2.0) - average_at()

logs = {
    "half the learning rate": ("rate_1.5e-4", {"learning_rate": 0.5 * own.learning_rate}),
    "twice the learning rate": ("rate_6e-4", {"learning_rate": 2.0 * own.learning_rate}),
    "each set of rollouts used for 4 optimizer steps": (
        "reuse_4", {"refresh_interval": 4.0, "epochs_per_rollout": 4.0}
    ),
}
explained = {}
for label, (log, changes) in logs.items():
    settings = dataclasses.replace(own, **changes)
    other = jg.read_run(f"tests/fixtures/trl/{log}.trainer_state.json", settings)
    prediction = fit.predict(settings, run.steps, schedule=fit.schedule)
    missed = other.reward - np.interp(other.steps, run.steps, prediction.mean)
    noise = other.reward[1:-1] - 0.5 * (other.reward[:-2] + other.reward[2:])
    variance = np.var(other.reward)
    explained[label] = [
        1 - np.mean(missed**2) / variance,
        1 - np.mean(noise**2) / 1.5 / variance,
        other.reward[-other.reward.size // 10 :].mean(),
        prediction.lower[-1],
        prediction.upper[-1],
    ]
print(json.dumps({
    "gradient": {name: float(getattr(gradient, name)) for name in differences},
    "differences": differences,
    "explained": explained,
    "points": len(run),
}))
"""


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def section(title: str) -> str:
    found = re.search(rf"^#+ {re.escape(title)}\n(.*?)(?=^#+ |\Z)", README, re.MULTILINE | re.DOTALL)
    assert found, f"the README has no section {title!r}"
    return found.group(1)


def rows(text: str) -> list[list[str]]:
    """Cells of a table, without its heading and rule."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def options_of(parser) -> set[str]:
    found = set()
    for action in parser._actions:
        found |= set(action.option_strings)
        for inner in (action.choices or {}).values() if isinstance(action.choices, dict) else ():
            found |= options_of(inner)
    return found


@pytest.fixture(scope="module")
def outcome():
    """The README's one Python block, run as a user would, and then the checks."""
    (block,) = blocks("python")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", block + CHECKS], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_the_python_block_has_ten_lines():
    (block,) = blocks("python")
    assert len([line for line in block.splitlines() if line.strip()]) <= 10


@pytest.mark.parametrize(
    ("name", "tolerance"),
    [("learning_rate", 1e-3), ("momentum", 1e-3), ("group_size", 1e-3), ("refresh_interval", 0.3)],
)
def test_its_gradient_is_that_of_finite_differences(outcome, name, tolerance):
    expected = outcome["differences"][name]
    assert outcome["gradient"][name] == pytest.approx(expected, rel=tolerance, abs=1e-7)


def test_the_gradient_is_not_all_zero(outcome):
    assert outcome["points"] == 320
    for name in ("learning_rate", "momentum", "refresh_interval"):
        assert abs(outcome["differences"][name]) > 1e-4


def test_the_table_of_predictions_is_what_comes_out(outcome):
    table = rows(section("Does it predict?"))
    assert [row[0] for row in table] == list(outcome["explained"])
    for label, *numbers in table:
        figures = [float(figure) for cell in numbers for figure in cell.split(" to ")]
        assert outcome["explained"][label] == pytest.approx(figures, abs=5e-3)


def shell_lines() -> list[str]:
    return [line for block in blocks("sh") for line in block.splitlines()]


@pytest.mark.parametrize("line", [line for line in shell_lines() if line.startswith("jaxgrpo ")])
def test_commands_are_understood(line):
    arguments = build_parser().parse_args(shlex.split(line, comments=True)[1:])
    assert arguments.command in ("read", "fit", "predict", "simulate", "tune", "forecast", "demo")


def test_every_command_is_shown():
    shown = {line.split()[1] for line in shell_lines() if line.startswith("jaxgrpo ")}
    shown |= set(re.findall(r"bin/jaxgrpo (\w+)", README))
    (commands,) = [a.choices for a in build_parser()._actions if isinstance(a.choices, dict)]
    assert set(commands) == shown


def test_options_in_the_text_exist():
    text = re.sub(r"^```.*?^```$", "", README, flags=re.MULTILINE | re.DOTALL)
    named = {
        option for code in re.findall(r"`([^`]+)`", text) for option in re.findall(r"--[a-z][a-z-]+", code)
    }
    assert len(named) > 8
    assert named <= options_of(build_parser())


def test_setup_commands_need_only_python_and_pip():
    lines = [line for line in shell_lines() if line.startswith("python3 -m venv ")]
    assert lines[0].split()[-1] == "demo" and " pytest " in lines[1]
    for line in lines:
        parts = [shlex.split(part) for part in line.split("&&")]
        assert parts[0] == ["python3", "-m", "venv", ".venv"]
        assert all(part[0].startswith(".venv/bin/") for part in parts[1:])
    groups = {g for line in shell_lines() for g in re.findall(r"--group (\w+)", line)}
    assert groups == set(PROJECT["dependency-groups"])


def package_names(requirements: list[str]) -> set[str]:
    found = (re.match(r"[\w.-]+", requirement) for requirement in requirements)
    return {name.group() for name in found if name}


def test_each_dependency_has_its_reason():
    table = rows(section("Dependencies"))
    assert all(reason for _, reason in table)
    named = {name.split()[0] for row in table for name in row[0].split(", ")}
    extras = {name for e in PROJECT["project"]["optional-dependencies"].values() for name in package_names(e)}
    assert named == package_names(PROJECT["project"]["dependencies"]) | extras
    for group in PROJECT["dependency-groups"].values():
        for name in package_names(group):
            assert name in section("Dependencies"), name


def test_the_models_are_those_of_the_package():
    named = set(re.findall(r"`(\w+_\w+)`", section("How the numbers are obtained")))
    assert named == {name for name, model in MODELS.items() if not model.baseline}


def test_frameworks_are_named():
    text = section("Formats").lower().replace("weights & biases", "wandb")
    for name in (*FRAMEWORKS, *TRAINERS):
        assert name.removesuffix("-fully-async") in text, name


def test_links_lead_somewhere():
    targets = [t for t in re.findall(r"\]\(([^)]+)\)", README) if not t.startswith("https://")]
    assert "assets/demo.png" in targets
    for target in targets:
        assert (ROOT / target).is_file(), target


def test_the_citation_is_valid_and_of_this_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == PROJECT["project"]["version"]
    assert "2606.30789" in README and "2606.30789" in citation["references"][0]["url"]
