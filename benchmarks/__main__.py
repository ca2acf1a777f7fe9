"""Run all benchmarks and write `benchmarks/RESULTS.md`.

`python -m benchmarks [--logs FOLDER]`; the table of real logs needs a folder of them.
"""

import argparse
import contextlib
import io
from pathlib import Path

from benchmarks import calibration, forecast, real_logs, simulation, speed


def captured(function, arguments: list[str]) -> str:
    """What a benchmark prints."""
    stream = io.StringIO()
    with contextlib.redirect_stdout(stream):
        function(arguments)
    return stream.getvalue().strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--logs", type=Path)
    parser.add_argument("--more-logs", type=Path, help="another folder of logs, for the forecasts")
    arguments = parser.parse_args()
    parts = ["# Benchmarks", "Made by `python -m benchmarks`."]
    parts += ["## Speed", captured(speed.main, [])]
    parts += ["## Simulation", captured(simulation.main, ["--memory"])]
    parts += ["## Coverage of the fit's 90 % intervals", captured(calibration.main, [])]
    if arguments.logs is not None:
        parts += ["## Public training logs", captured(real_logs.main, [str(arguments.logs)])]
        folders = [str(folder) for folder in (arguments.logs, arguments.more_logs) if folder is not None]
        labels = arguments.logs / "labels.tsv"
        options = ["--labels", str(labels)] if labels.is_file() else []
        parts += ["## Forecasts of public training logs", captured(forecast.main, [*folders, *options])]
    (Path(__file__).parent / "RESULTS.md").write_text("\n\n".join(parts) + "\n")


if __name__ == "__main__":
    main()
