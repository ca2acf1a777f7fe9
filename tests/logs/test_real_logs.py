"""Public training logs, where they are at hand, against what an independent parser took of them."""

import functools
import json

import numpy as np
import pytest

from jaxgrpo.errors import ReadError
from jaxgrpo.logs import read_run, read_runs

# Logs whose sessions together are not the series of the independent parser, and why.
OTHERWISE = {
    "sun-drgrpo-g4-s42": "four micro-batches a step are merged",
    "rohun-llama-3.2-3b-hard-g-llmjudge": "its second session repeats its first step, which is merged",
    "rdan-roll-metrics": "the independent parser took another series than the reward",
    "tinkerlab-groupsize-campaign": "many runs",
    "tinkerlab-wave6-ablations": "many runs",
    "garg-long-lr_sweep": "many runs",
    "wangyukai-gpt2-grporank": "no reward",
    "oraby-wandb-runs-table": "no curve",
}
# Where another column was taken: here the divergence from the base model goes before that from the sampler.
OTHER_COLUMN = {("tinker-omnimath-gptoss-20b-v2", "kl")}
SESSIONS = {
    "johnson-qwen3-4b-nangrad": [20, 26],
    "rasbt-7-3-tracking": [5, 500],
    "rohun-llama-3.2-1b-hard": [5, 45],
    "rohun-llama-3.2-3b-hard-g-llmjudge": [24, 29],
    "rookworld-appended-runs": [3, 5, 642, 595, 165],
}


def folders(real_logs):
    """Each log's file and what is known of it."""
    for root in (real_logs, real_logs.parent / "sweeps"):
        for meta in sorted(root.glob("*/meta.json")):
            known = json.loads(meta.read_text())
            yield meta.parent.name, meta.parent / known["file"], known


@functools.cache
def runs_of(path):
    return read_runs(path)


def tenths(values):
    count = max(1, len(values) // 10)
    return values[:count].mean(), values[-count:].mean()


def test_points_and_tenths_agree_with_an_independent_parser(real_logs):
    checked, wrong = 0, []
    for name, path, known in folders(real_logs):
        if name in OTHERWISE:
            continue
        runs = runs_of(path)
        reward = np.concatenate([run.reward for run in runs])
        stats = known["reward_stats"]
        # The statistics are rounded to four digits.
        expected = [stats["n"], stats["first10pct"], stats["last10pct"], stats["min"], stats["max"]]
        got = [len(reward), *tenths(reward), reward.min(), reward.max()]
        if not np.allclose(got, expected, rtol=0, atol=5e-5 + 1e-6):
            wrong.append((name, got, expected))
        if [len(run) for run in runs] != SESSIONS.get(name, [stats["n"]]):
            wrong.append((name, [len(run) for run in runs], "sessions"))
        checked += 1
    assert wrong == []
    assert checked >= 103


def test_the_rest_reads_as_it_should(real_logs):
    paths = {name: path for name, path, _ in folders(real_logs)}
    known = {name: known for name, _, known in folders(real_logs)}
    steps = read_run(paths["sun-drgrpo-g4-s42"])
    assert len(steps) == 200
    stats = known["sun-drgrpo-g4-s42"]["reward_stats"]
    np.testing.assert_allclose(tenths(steps.reward), [stats["first10pct"], stats["last10pct"]], atol=5e-5)
    other = read_run(paths["rdan-roll-metrics"], reward="reward/process_quality_mean")
    stats = known["rdan-roll-metrics"]["reward_stats"]
    np.testing.assert_allclose(tenths(other.reward), [stats["first10pct"], stats["last10pct"]], atol=5e-5)
    runs = read_runs(paths["rohun-llama-3.2-3b-hard-g-llmjudge"])
    assert [len(run) for run in runs] == SESSIONS["rohun-llama-3.2-3b-hard-g-llmjudge"]
    with pytest.raises(ReadError, match="there is no reward column; the columns are step, loss"):
        read_run(paths["wangyukai-gpt2-grporank"])
    if "oraby-wandb-runs-table" in paths:
        with pytest.raises(ReadError, match="no curve"):
            read_run(paths["oraby-wandb-runs-table"])


def test_campaigns_give_their_runs(real_logs):
    groups = read_runs(real_logs / "tinkerlab-groupsize-campaign")
    sizes = {run.name: float(run.hyperparameters.group_size) for run in groups if "_G" in run.name}
    assert sizes == {"w2_qwen3-8b_G2": 2, "w2_qwen3-8b_G4": 4, "w2_qwen3-8b_G16": 16, "w2_qwen3-8b_G32": 32}
    assert len(groups) == 15 and all(len(run) == 30 for run in groups)
    ablations = read_runs(real_logs / "tinkerlab-wave6-ablations")
    assert len(ablations) == 12 and all(len(run) == 30 for run in ablations)


def test_the_runs_of_one_file_are_those_of_the_files_of_each(real_logs):
    sweeps = real_logs.parent / "sweeps"
    if not sweeps.is_dir():
        pytest.skip("the folder of sweeps is not at hand")
    for run in read_runs(sweeps / "garg-long-lr_sweep"):
        alone = read_run(sweeps / run.name.replace("lr_sweep_", "garg-lr-"), reward="eval/reward")
        np.testing.assert_array_equal(run.reward, alone.reward)
        np.testing.assert_array_equal(run.logged_steps, alone.logged_steps)


def test_channels_agree_with_an_independent_parser(real_logs):
    """First, last, least and greatest value of each channel, wherever the same column was taken."""
    roles = {
        "kl": "kl",
        "length": "length",
        "grad_norm": "grad_norm",
        "reward_std": "reward_std",
        "entropy": "entropy",
    }
    compared = 0
    for name, path, known in folders(real_logs):
        if name in OTHERWISE or name in SESSIONS or name.startswith("nemo-"):
            continue
        (run,) = runs_of(path)
        for theirs, ours in roles.items():
            stats = (known.get("signature") or {}).get(theirs)
            values = run.channels.get(ours)
            if stats is None or values is None or stats.get("nonfinite"):
                continue
            values = values[np.isfinite(values)]
            if len(values) != stats["n"] or (name, theirs) in OTHER_COLUMN:
                continue
            expected = [stats["first"], stats["last"], stats["min"], stats["max"]]
            got = [values[0], values[-1], values.min(), values.max()]
            np.testing.assert_allclose(got, expected, rtol=2e-3, atol=1e-6, err_msg=f"{name} {theirs}")
            compared += 1
    assert compared > 200


def test_every_folder_reads_like_its_file(real_logs):
    """What else lies in a folder, meta.json above all, changes nothing."""
    for name, path, _ in folders(real_logs):
        # Each folder holds meta.json; these hold configurations and summaries as well, or are one of a kind.
        if not name.startswith(
            ("rohun", "dequeue", "anish", "garg-lr", "tinker-cog", "verl-2048", "nemo", "leon")
        ):
            continue
        alone = runs_of(path)
        inside = read_runs(path.parent)
        assert [run.reward.tolist() for run in inside] == [run.reward.tolist() for run in alone], name
        assert [str(run.hyperparameters) for run in inside] == [str(run.hyperparameters) for run in alone], (
            name
        )
