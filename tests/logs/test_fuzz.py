"""Damaged and random input: a reader gives runs or the package's own error, and soon."""

import io
import os
import random
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jaxgrpo.errors import ReadError
from jaxgrpo.logs import read_runs

FIXTURES = Path(__file__).parent / "fixtures"
FILES = sorted(path for path in FIXTURES.iterdir() if path.is_file())
CASES = int(os.environ.get("JAXGRPO_FUZZ_CASES", "1500"))
SECONDS_A_CASE = 20.0
TOKENS = [
    b"nan",
    b"inf",
    b"-inf",
    b"1e999",
    b"9" * 400,
    b"{",
    b"}",
    b"[",
    b"]",
    b'"',
    b"'",
    b",",
    b":",
    b"\n",
    b"\r",
    b"\x00",
    b"\xff",
    b"null",
    b"true",
    b"step",
    b"reward",
    b"\x1b[36m",
    b" - ",
    b"np.float64(",
    b")",
    b"\\u0000",
    b"<table><tr><td>",
    b"-1",
    b"0",
    b"\xef\xbb\xbf",
    b"{" * 200,
    b"[" * 3000,
    b'{"a":' * 300,
    b"1" * 5000,
    b"\t",
    b";",
    b"/",
    b"<",
    b"step:5 - ",
]


def mutate(data: bytes, other: bytes, rng: random.Random) -> bytes:
    """Damage a file in one to four ways."""
    for _ in range(rng.randint(1, 4)):
        kind = rng.randrange(9)
        a, b = sorted((rng.randint(0, len(data)), rng.randint(0, len(data))))
        if kind == 0:
            data = data[:a]
        elif kind == 1:
            data = data[:a] + rng.choice(TOKENS) + data[a:]
        elif kind == 2:
            data = data[:a] + data[b:]
        elif kind == 3:
            data = data[:a] + data[a : a + 300] * rng.randint(1, 4) + data[a:]
        elif kind == 4 and data:
            flipped = bytearray(data)
            for _ in range(rng.randint(1, 20)):
                flipped[rng.randrange(len(flipped))] = rng.randrange(256)
            data = bytes(flipped)
        elif kind == 5:
            lines = data.split(b"\n")
            rng.shuffle(lines)
            data = b"\n".join(lines)
        elif kind == 6:
            c = rng.randint(0, len(other))
            data = data[:a] + other[c : c + 2000]
        elif kind == 7:
            old, new = rng.choice(TOKENS), rng.choice(TOKENS)
            data = data.replace(old, new, rng.randint(1, 50))
        else:
            data = data.replace(b"0.", rng.choice(TOKENS) + b".", rng.randint(1, 20))
        data = data[:200_000]
    return data


def check(data: bytes, **options) -> int:
    """Read, and make sure of what comes back; gives the number of runs."""
    began = time.process_time()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            runs = read_runs(io.BytesIO(data), **options)
    except ReadError as error:
        assert "\n" not in str(error)
        runs = []
    for run in runs:
        assert len(run) > 0
        assert np.isfinite(run.reward).all()
        assert np.isfinite(run.steps).all()
        assert (np.diff(run.steps) > 0).all()
        for values in (run.logged_steps, *run.channels.values(), *run.parts.values(), *run.extra.values()):
            assert values.shape == run.reward.shape
            assert values.dtype == np.float64
        assert all("\n" not in warning for warning in run.warnings)
    assert time.process_time() - began < SECONDS_A_CASE
    return len(runs)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_mutated_files_give_runs_or_the_packages_error(path):
    rng = random.Random(path.name)
    data = path.read_bytes()
    read = 0
    for case in range(max(1, CASES // len(FILES))):
        damaged = mutate(data, rng.choice(FILES).read_bytes(), rng)
        options = {}
        if case % 7 == 0:
            options["framework"] = rng.choice(
                ["csv", "json", "jsonl", "console", "tensorboard", "trl", "verl"]
            )
        if case % 5 == 0:
            options["segment"] = rng.choice(["longest", "first", "last", 1, 2])
        try:
            read += check(damaged, **options) > 0
        except BaseException:
            Path(os.environ.get("JAXGRPO_FUZZ_KEEP", os.devnull)).write_bytes(damaged)
            raise
    # Light damage leaves most files readable: if none is, the mutations test nothing.
    if CASES >= 1000 and path.name not in (
        "plain.csv",
        "plain.jsonl",
        "columnar_no_reward.json",
        "wandb_runs_table.csv",
    ):
        assert read > 0


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["nan", "1e5", "reward", "x", ""]),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(
            st.sampled_from(
                [
                    "step",
                    "reward",
                    "loss",
                    "log_history",
                    "cells",
                    "outputs",
                    "data",
                    "metrics",
                    "event",
                    "1",
                    "2",
                ]
            )
            | st.text(max_size=5),
            inner,
            max_size=6,
        )
    ),
    max_leaves=40,
)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(value=JSON, lines=st.booleans())
def test_any_json_gives_runs_or_the_packages_error(value, lines):
    import json

    text = json.dumps(value)
    check((text if not lines else "\n".join([text] * 3)).encode())


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.binary(max_size=400))
def test_any_bytes_give_runs_or_the_packages_error(data):
    check(data)


WORDS = st.sampled_from(
    [
        "step",
        "reward",
        "loss",
        "1",
        "0.5",
        "nan",
        "-",
        ":",
        ",",
        "=",
        "{",
        "}",
        "'",
        '"',
        "|",
        "3/10",
        "step:3 - ",
        "\n",
        "\t",
        " ",
        "critic/rewards/mean:",
        "reward_std",
        "Epoch:[1/1](2/5)",
        "total_reward",
        "reward_data:",
        "\r",
    ]
)


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(words=st.lists(WORDS, max_size=120))
def test_any_log_like_text_gives_runs_or_the_packages_error(words):
    check("".join(words).encode())
