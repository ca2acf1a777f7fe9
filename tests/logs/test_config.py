"""Configuration files of every kind, good and bad."""

import json
from importlib.resources import files

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from jaxgrpo.errors import ReadError
from jaxgrpo.logs.config import read_config
from jaxgrpo.logs.frameworks import learning_rate_schedule_settings, settings_to_hyperparameters


def summary(path, framework=None):
    """Framework, learning rate, G and K of a file."""
    name, settings = read_config(path, framework)
    hyperparameters, _ = settings_to_hyperparameters(name, settings)
    assert hyperparameters is not None
    values = (hyperparameters.learning_rate, hyperparameters.group_size, hyperparameters.refresh_interval)
    return name, *(float(value) for value in values)


TRL_YAML = """
# a recipe
learning_rate: 2e-6   # YAML reads this as text
num_generations: 16
steps_per_generation: 8
gradient_accumulation_steps: 4
lr_scheduler_type: cosine
"""
TRL_JSON = json.dumps({"learning_rate": 2e-6, "num_generations": 16, "steps_per_generation": 2, "fsdp": []})
NEMO_YAML = """
base: &base {lr: 2.0e-6, betas: [0.9, 0.999]}
grpo:
  num_prompts_per_step: 64
  num_generations_per_prompt: 16
policy:
  train_global_batch_size: 512
  optimizer: {name: torch.optim.AdamW, kwargs: *base}
"""
PRIME_TOML = """
max_steps = 100
max_async_level = 2
[trainer.optim]
lr = 2e-6
[orchestrator]
batch_size = 512
rollouts_per_example = 16
[[orchestrator.env]]
id = "someone/something"
"""
VERL_OVERRIDES = """
- data.train_batch_size=512
- actor_rollout_ref.actor.optim.lr=2e-6
- +actor_rollout_ref.rollout.n=16
- actor_rollout_ref.actor.ppo_mini_batch_size=256
"""
VERL_SCRIPT = """#!/bin/bash
# don't run this
set -x
export RATE=2e-6
N=${N:-16}
MODEL='someone/something: a model'

python3 -m verl.trainer.main_ppo \\
    algorithm.adv_estimator=grpo \\
    data.train_batch_size=512 \\
    data.train_files="['a.parquet', 'b.parquet']" \\
    actor_rollout_ref.model.path="$MODEL" \\
    # actor_rollout_ref.actor.optim.lr=9 \\
    actor_rollout_ref.actor.optim.lr=$RATE \\
    actor_rollout_ref.rollout.n=${N} \\
    actor_rollout_ref.actor.ppo_mini_batch_size=256 $@
"""
OPENRLHF_SCRIPT = """
read -r -d '' training_commands <<EOF
openrlhf.cli.train_ppo_ray \\
   --actor.adam.lr 2e-6 --actor.adam.betas 0.8 0.95 \\
   --rollout.n_samples_per_prompt 16 \\
   --rollout.batch_size=64 --train.batch_size 512 --ckpt.save_hf \\
   --algo.advantage.estimator group_norm
EOF
deepspeed --module $training_commands
"""
SWIFT_SCRIPT = """
ARGUMENTS="--rlhf_type grpo --learning_rate 2e-6 --num_generations 16"
swift rlhf $ARGUMENTS --steps_per_generation 2 --gradient_accumulation_steps 1
"""
TINKER_SCRIPT = """
python -m tinker_cookbook.recipes.math_rl.train learning_rate=2e-6 group_size=16 \\
    groups_per_batch=64 num_substeps=2
"""
TRL_PYTHON = """
from trl import GRPOConfig, GRPOTrainer, SFTConfig

GENERATIONS = 16
pattern = "\\d+"
warm_up = SFTConfig(learning_rate=9.0, num_train_epochs=1)
arguments = GRPOConfig(
    output_dir=make_folder(),
    learning_rate=2e-6,
    num_generations=GENERATIONS,
    steps_per_generation=2,
    **more,
)
raise SystemExit("this file is never run")
"""
TUNIX_YAML = """
batch_size: 8
grpo_config: {num_generations: 16, num_iterations: 2}
rl_training_config:
  actor_optimizer_config: {peak_value: 2e-6, b1: 0.9}
"""
FILES = {
    "recipe.yaml": (TRL_YAML, "trl", 2),
    "training_args.json": (TRL_JSON, "trl", 2),
    "grpo.yml": (NEMO_YAML, "nemo-rl", 2),
    "rl.toml": (PRIME_TOML, "prime-rl", 1),
    "overrides.yaml": (VERL_OVERRIDES, "verl", 2),
    "run.sh": (VERL_SCRIPT, "verl", 2),
    "train_openrlhf.sh": (OPENRLHF_SCRIPT, "openrlhf", 2),
    "swift.sh": (SWIFT_SCRIPT, "ms-swift", 2),
    "tinker.sh": (TINKER_SCRIPT, "tinker-cookbook", 2),
    "train.py": (TRL_PYTHON, "trl", 2),
    "tunix.yaml": (TUNIX_YAML, "tunix", 2),
}


@pytest.mark.parametrize("name", FILES)
def test_files_of_every_kind(name, tmp_path):
    text, framework, interval = FILES[name]
    path = tmp_path / name
    path.write_text(text)
    assert summary(path) == (framework, pytest.approx(2e-6), 16, interval)
    assert summary(str(path), framework) == summary(path)


@pytest.mark.parametrize("name", FILES)
def test_the_content_decides_where_the_ending_says_nothing(name, tmp_path):
    text, framework, interval = FILES[name]
    path = tmp_path / "configuration"
    path.write_text("\ufeff" + text, encoding="utf-8")
    assert summary(path) == (framework, pytest.approx(2e-6), 16, interval)


def test_several_values_after_one_option(tmp_path):
    path = tmp_path / "run.sh"
    path.write_text(OPENRLHF_SCRIPT)
    _, settings = read_config(path)
    assert settings["actor.adam.betas"] == ["0.8", "0.95"]
    assert settings["ckpt.save_hf"] is True


def test_a_commented_override_and_a_variable(tmp_path):
    path = tmp_path / "run.sh"
    path.write_text(VERL_SCRIPT)
    _, settings = read_config(path)
    assert settings["actor_rollout_ref.actor.optim.lr"] == "2e-6"
    assert settings["actor_rollout_ref.model.path"] == "someone/something: a model"


def test_nothing_in_a_python_file_is_run(tmp_path):
    path = tmp_path / "train.py"
    trace = tmp_path / "trace"
    opening = f"open({str(trace)!r}, 'w')"
    path.write_text(f"{opening}\nGRPOConfig(num_generations=4, beta={opening}, bf16=not 1)\n")
    assert read_config(path) == ("trl", {"num_generations": 4})
    assert not trace.exists()


def test_two_calls_that_disagree_are_refused(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("GRPOConfig(num_generations=4)\nGRPOConfig(num_generations=8)\n")
    with pytest.raises(
        ReadError, match="line 2: another call of GRPOConfig sets num_generations differently"
    ):
        read_config(path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none.yaml", None, "does not exist"),
        ("empty.yaml", b"  \n", "is empty"),
        ("binary.yaml", b"a: 1\0", "binary"),
        ("cut.json", b'{"learning_rate": 1e-6,', "not readable as JSON (line 1"),
        ("cut.toml", b"[trainer\n", "not readable as TOML"),
        ("cut.yaml", b"a: [1, 2\nb: 3\n", "not readable as YAML (line 2"),
        ("cut.py", b"GRPOConfig(learning_rate=", "not readable as Python (line 1"),
        ("number.json", b"3", "a table of settings is needed"),
        ("comments.yaml", b"# nothing\n", "a table of settings is needed"),
        ("nothing.py", b"x = 1\n", "no settings found"),
        ("prose.txt", b"It was a dark and stormy night.", "no settings found"),
        ("model.json", b'{"hidden_size": 64, "vocab_size": 100}', "no framework is recognised"),
        ("deep.json", b'{"a":' * 20_000 + b"1" + b"}" * 20_000, "nested"),
        ("deep.py", b"GRPOConfig(x=" + b"-" * 100_000 + b"1)", ""),
        ("twice.yaml", b"num-generations: 4\nnum_generations: 8\n", "given twice"),
    ],
)
def test_bad_files_are_refused_in_one_line(name, content, message, tmp_path):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ReadError) as raised:
        read_config(path)
    assert str(path) in str(raised.value)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_folder_and_a_huge_file_are_refused(tmp_path):
    with pytest.raises(ReadError, match="is a directory"):
        read_config(tmp_path)
    path = tmp_path / "huge.yaml"
    path.write_bytes(b"# " + b"x" * 6_000_000)
    with pytest.raises(ReadError, match="larger than 5 MB"):
        read_config(path)


def test_a_file_that_unfolds_without_end_is_refused_soon(tmp_path):
    lines = ["a0: &a0 {x: 1}"]
    lines += [f"a{i}: &a{i} {{p: *a{i - 1}, q: *a{i - 1}, r: [*a{i - 1}, *a{i - 1}]}}" for i in range(1, 30)]
    path = tmp_path / "bomb.yaml"
    path.write_text("\n".join([*lines, "learning_rate: *a29"]))
    with pytest.raises(ReadError, match="settings"):
        read_config(path, "trl")


def test_another_framework_than_the_one_named(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(TRL_YAML)
    with pytest.raises(ReadError, match=r"look like TRL \('trl'\), not verl"):
        read_config(path, "verl")
    with pytest.raises(ReadError, match="unknown framework"):
        read_config(path, "unknown")
    # Unsloth takes TRL's arguments, so that only its user can say which it is.
    assert read_config(path, "unsloth")[0] == "unsloth"


def test_a_named_framework_needs_no_characteristic_setting(tmp_path):
    path = tmp_path / "small.json"
    path.write_text('{"learning_rate": 3e-6}')
    with pytest.raises(ReadError, match="no framework is recognised"):
        read_config(path)
    assert read_config(path, "trl") == ("trl", {"learning_rate": 3e-6})


def test_the_configuration_that_ships_with_the_package():
    path = files("jaxgrpo") / "data" / "demo_trl_config.json"
    assert summary(str(path)) == ("trl", pytest.approx(3e-4), 8, 1)
    schedule = learning_rate_schedule_settings(*read_config(str(path)))
    assert tuple(schedule) == ("constant_with_warmup", 10, None, 320, None)


@given(
    st.sampled_from(sorted(FILES)),
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 8), st.binary(max_size=6)), max_size=6),
)
@hypothesis_settings(
    max_examples=120,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_mutated_files_raise_nothing_but_the_packages_own_error(tmp_path, name, edits):
    data = FILES[name][0].encode()
    for place, length, inserted in edits:
        place %= len(data) + 1
        data = data[:place] + inserted + data[place + length :]
    for target in (tmp_path / name, tmp_path / "unnamed"):
        target.write_bytes(data)
        try:
            framework, settings = read_config(target)
            settings_to_hyperparameters(framework, settings)
        except ReadError as error:
            assert len(str(error).splitlines()) == 1
