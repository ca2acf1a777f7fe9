"""Run all benchmarks and write `benchmarks/RESULTS.md`.

`python -m benchmarks [--logs FOLDER] [--only TITLE ...]`; the table of real logs needs a folder of them.
"""

import argparse
import contextlib
import io
import re
from pathlib import Path

from benchmarks import calibration, forecast, real_logs, simulation, speed, tuning


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
    parser.add_argument(
        "--only", nargs="*", help="titles, or beginnings of titles, of the sections to renew; all by default"
    )
    arguments = parser.parse_args()
    work: dict[str, tuple] = {
        "Speed": (speed.main, []),
        "Coverage of the fit's 90 % intervals": (calibration.main, ["--runs", "120", "--model", "auto"]),
        "Simulation": (simulation.main, ["--memory"]),
        "Tuning: search against a grid of a million points": (tuning.main, ["optimum"]),
        "Tuning: runs that are really made": (tuning.main, ["bandit"]),
    }
    if arguments.logs is not None:
        folders = [str(folder) for folder in (arguments.logs, arguments.more_logs) if folder is not None]
        labels = arguments.logs / "labels.tsv"
        options = ["--labels", str(labels)] if labels.is_file() else []
        work["Public training logs"] = (real_logs.main, [str(arguments.logs)])
        work["Forecasts of public training logs"] = (forecast.main, [*folders, *options])
    results = Path(__file__).parent / "RESULTS.md"
    for title, (function, options) in work.items():
        if arguments.only and not any(title.lower().startswith(name.lower()) for name in arguments.only):
            continue
        # Each section is written as soon as it is done: the whole takes long, and what is done stays if it is cut short.
        renew(results, title, captured(function, options))


def renew(results: Path, title: str, body: str) -> None:
    """Put a section into the file of results, in place of an earlier one of that title."""
    text = results.read_text() if results.is_file() else ""
    _, *sections = re.split(r"^## ", text, flags=re.MULTILINE)
    kept = dict(section.split("\n", 1) for section in sections)
    kept[title] = f"\n{body}\n"
    parts = ["# Benchmarks\n\nMade by `python -m benchmarks`, a section at a time.\n"]
    parts += [f"## {name}\n\n{content.strip()}\n" for name, content in kept.items()]
    results.write_text("\n".join(parts))


if __name__ == "__main__":
    main()
