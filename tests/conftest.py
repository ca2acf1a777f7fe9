"""Shared fixtures: both precisions, strict promotion, and real logs where they are at hand."""

import os
from pathlib import Path

import jax
import pytest

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

HERE = Path(__file__).resolve().parent


def _shortfalls() -> list[str]:
    """Full names of tests that state a known shortfall, from `shortfalls.txt`."""
    lines = (HERE / "shortfalls.txt").read_text().splitlines()
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


def pytest_collection_modifyitems(items):
    """Mark the tests of known shortfalls, which stay in the suite until they are mended."""
    known = set(_shortfalls())
    for item in items:
        if item.nodeid in known:
            reason = "a known shortfall of the implementation, listed in tests/shortfalls.txt"
            item.add_marker(pytest.mark.xfail(reason=reason, strict=True))


@pytest.fixture(params=["float32", "float64"])
def precision(request):
    """Run a test in both precisions; yields the name of the one in force."""
    with jax.enable_x64(request.param == "float64"):
        yield request.param


@pytest.fixture
def x64():
    """Run a test in double precision."""
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="session")
def real_logs() -> Path:
    """Folder of public training logs: $JAXGRPO_LOGS, or ../shared/logs beside the project."""
    folder = Path(os.environ.get("JAXGRPO_LOGS", HERE.parent.parent / "shared" / "logs"))
    if not folder.is_dir():
        pytest.skip("the folder of real logs is not at hand (set JAXGRPO_LOGS)")
    return folder
