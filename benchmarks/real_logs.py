"""Fit every public log at hand, and tabulate what the fit explains beside the noise ceiling and the single exponential.

Run as `python -m benchmarks.real_logs FOLDER [NAME ...]`; FOLDER holds one folder a run.
"""

import argparse
import sys
from pathlib import Path

import jax
import numpy as np
from tqdm import tqdm

import jaxgrpo as jg
from jaxgrpo.errors import JaxgrpoError
from jaxgrpo.inference.problem import smooth


def explained_unsmoothed_mean(fit: jg.Fit) -> float:
    """R^2 of the smoothed rewards by the fitted mean as it is, not smoothed alike."""
    run = fit.run
    soft = smooth(run.reward)
    return float(1.0 - np.sum((soft - fit.mean(run.steps)) ** 2) / np.sum((soft - soft.mean()) ** 2))


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--parts", action="store_true", help="fit the parts of the reward as well")
    arguments = parser.parse_args(argv)
    cache = Path.home() / ".cache" / "jaxgrpo"
    jax.config.update("jax_compilation_cache_dir", str(cache))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    names = arguments.names or sorted(p.name for p in arguments.folder.iterdir() if p.is_dir())
    print(
        "| run | points | model | R2 | R2 smoothed (both) | R2 smoothed (data) | ceiling | exponential R2, smoothed | notes |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    good = 0
    for name in tqdm(names, disable=not sys.stderr.isatty()):
        try:
            run = jg.read_run(arguments.folder / name)
            fit = jg.fit(run)
        except JaxgrpoError as error:
            print(f"| {name} | | | | | | | | {error} |")
            continue
        simple = fit.models["exponential"]
        note = "" if fit.models[fit.model].converged else "not converged"
        if arguments.parts and run.parts:
            try:
                parts = jg.fit(run, parts=True)
                note += f" by parts {parts.r_squared:.3f}, {parts.r_squared_smoothed:.3f}"
            except JaxgrpoError:
                pass
        good += fit.r_squared_smoothed >= 0.91
        print(
            f"| {name} | {len(run)} | {fit.model} | {fit.r_squared:.3f} | {fit.r_squared_smoothed:.3f} "
            f"| {explained_unsmoothed_mean(fit):.3f} | {fit.explained_ceiling:.3f} "
            f"| {simple.r_squared:.3f}, {simple.r_squared_smoothed:.3f} | {note} |",
            flush=True,
        )
    print(f"\n{good} of {len(names)} with a smoothed R2 of at least 0.91")


if __name__ == "__main__":
    main()
