"""The script for accelerators runs on the CPU as well, where it has to find no difference to the CPU."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks import accelerator  # noqa: E402


def test_the_accelerator_script_runs_on_the_cpu():
    lines = accelerator.main(["--paths", "64", "--steps", "100"])
    assert "path-steps/s" in lines[3]
    assert lines[5].endswith("| 0 standard errors |") and lines[6].endswith("| 0 |")
