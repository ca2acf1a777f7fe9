"""Forecasts of public logs from their first 30, 50 and 70 %, beside the baselines.

What is forecast is the mean reward of the last max(4, n/10) rows. Error is |median - realised|, CRPS the continuous ranked
probability score; both over the range of the smoothed curve (moving mean over max(3, n/15)) plus the standard error of the
noise. The known plan (horizon and logged learning rate) is given to all. The priors come from
an earlier study of public runs, these among them; families (by repository) alternate between two halves.
Run as `python -m benchmarks.forecast FOLDER [FOLDER ...]`.
"""

import argparse
import contextlib
import sys
import time
import warnings
from pathlib import Path

import numpy as np
from tqdm import tqdm

import jaxgrpo as jg
from jaxgrpo.errors import JaxgrpoError
from jaxgrpo.inference import forecast as prior
from jaxgrpo.inference.baselines import NormalMixture, carry_forward, entropy_law, fitted_curve
from jaxgrpo.inference.forecast import _normal_cdf
from jaxgrpo.inference.problem import noise_std

FRACTIONS = (0.3, 0.5, 0.7)
FEWEST = 20
CURVES = {
    "exponential": "exponential",
    "sigmoid": "sigmoid of ScaleRL",
    "power_law": "power law",
    "logistic": "logistic of 2507.18014",
}


def runs_of(folders: list[Path]) -> list[tuple[str, jg.Run]]:
    """Family and run, for every log with enough rows."""
    found = []
    paths = [path for folder in folders for path in sorted(folder.iterdir()) if path.is_dir()]
    for path in tqdm(paths, disable=not sys.stderr.isatty()):
        try:
            runs = jg.read_runs(path)
        except JaxgrpoError:
            continue
        family = path.name.split("-")[0]
        found += [(family, r) for r in runs if len(r) >= FEWEST and np.ptp(r.reward) > 0]
    return found


def law_of(forecast: jg.Forecast, rows: int) -> NormalMixture:
    """The forecast's law of the mean of the rewards logged at its steps."""
    mean, std = forecast._components(forecast.steps)
    mix = forecast._mixture
    noise = (forecast._unit * mix.sigma) ** 2 / rows
    return NormalMixture(
        mix.weight, mean.mean(axis=1), np.sqrt((std**2).mean(axis=1) + noise), forecast.bounds
    )


def score(law: NormalMixture, truth: float) -> tuple[float, float, float, float, float, float]:
    """Median, CRPS, whether the 50 % and the 90 % interval hold the truth, and the width of the latter."""
    centre = law.weight @ law.mean
    spread = np.sqrt(law.weight @ (law.std**2 + (law.mean - centre) ** 2))
    low, high = min(centre - 8 * spread, truth), max(centre + 8 * spread, truth)
    # Fine about the middle, where narrow laws have their mass.
    about = centre + spread * np.sinh(np.linspace(-4.0, 4.0, 301)) / 20.0
    grid = np.sort(np.concatenate([np.linspace(low, high, 400), about]))
    cumulative = _normal_cdf((grid[:, None] - law.mean) / law.std) @ law.weight
    values = grid if law.bounds is None else np.clip(grid, *law.bounds)
    at = lambda q: float(np.interp(q, cumulative, values))
    middle = 0.5 * (cumulative[1:] + cumulative[:-1])
    crps = float(np.sum(np.diff(values) * (middle - (0.5 * (values[1:] + values[:-1]) >= truth)) ** 2))
    crps += max(values[0] - truth, 0.0) + max(truth - values[-1], 0.0)
    held = [at(0.5 - p / 2) - 1e-9 <= truth <= at(0.5 + p / 2) + 1e-9 for p in (0.5, 0.9)]
    return at(0.5), crps, *map(float, held), at(0.95) - at(0.05)


def judge(run: jg.Run, fraction: float) -> dict[str, float] | None:
    """All scores of one run seen up to a fraction."""
    rewards, n = run.reward, len(run)
    last = max(4, n // 10)
    window = max(3, n // 15)
    scale = np.ptp(np.convolve(rewards, np.ones(window) / window, "valid")) + noise_std(rewards) / np.sqrt(
        last
    )
    seen = min(round(fraction * n), n - last)
    head = run.head(seen / n)
    if len(head) < 6:
        return None
    truth = float(rewards[-last:].mean())
    logged = run.channels.get("learning_rate")
    schedule = None
    if logged is not None and np.isfinite(logged).all() and logged.max() > 0 and (logged >= 0).all():
        schedule = lambda step: np.interp(step, run.steps, logged / logged.max())
    ahead = jg.forecast(head, run.steps[-last:], horizon=float(run.steps[-1]), schedule=schedule)
    median, crps, half, nine, width = score(law_of(ahead, last), truth)
    rows = n - len(head) - last / 2
    walk = carry_forward(head.reward, rows, last, mixture=False)
    mixed = carry_forward(head.reward, rows, last, mixture=True, bounds=ahead.bounds)
    smoothed = np.convolve(head.reward, np.ones(max(3, len(head) // 15)) / max(3, len(head) // 15), "valid")
    known = np.ptp(smoothed) + noise_std(head.reward) / np.sqrt(last)
    result = {
        "error": abs(median - truth) / scale,
        "crps": crps / scale,
        "half": half,
        "nine": nine,
        "relative width": width / max(known, 1e-12),
        "carry error": abs(walk.mean[0] - truth) / scale,
        "walk crps": score(walk, truth)[1] / scale,
        "mixture crps": score(mixed, truth)[1] / scale,
    }
    x = run.steps - run.steps[0]
    for curve in CURVES:
        value = fitted_curve(head.reward, x[: len(head)], x[-last:], curve).mean()
        result[curve] = abs(value - truth) / scale
    entropy = head.channels.get("entropy")
    result["entropy"] = np.nan
    if entropy is not None and np.isfinite(entropy).all():
        value = entropy_law(head.reward, entropy, x[: len(head)], x[-last:]).mean()
        result["entropy"] = abs(value - truth) / scale
    return result


def kinds(run: jg.Run, failed: set[str]) -> list[str]:
    """The kinds of run that a run is of."""
    bounded = run.reward.min() >= 0 and run.reward.max() <= 1
    found = [
        "rewards in [0, 1]" if bounded else "other rewards",
        "50 rows or more" if len(run) >= 50 else "shorter",
    ]
    return [*found, "a labelled failure"] if run.name in failed else found


def interval(values: np.ndarray, families: np.ndarray) -> tuple[float, float]:
    """90 % bootstrap interval of a mean, families drawn as wholes."""
    rng = np.random.default_rng(0)
    names = np.unique(families)
    sums = np.array([values[families == f].sum() for f in names])
    counts = np.array([np.sum(families == f) for f in names])
    drawn = rng.integers(len(names), size=(2000, len(names)))
    means = sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1)
    return tuple(np.quantile(means, [0.05, 0.95]))


def simulated(runs: int = 2000) -> str:
    """Coverage on runs drawn from the model's own prior: 50 rows seen of 100, expected reward at the end."""
    rng = np.random.default_rng(7)
    u = np.arange(100.0) / 99.0
    shapes = prior._shapes(u)
    drawn, truth = [], []
    for _ in range(runs):
        gain = rng.choice(prior._GAIN) * (rng.choice(prior._UPWARDS) + rng.standard_normal())
        gain *= rng.random() >= prior._LEVEL_ONLY
        drift = np.full(100, rng.choice(prior._DRIFT, p=prior._DRIFT_PRIOR))
        drift[50:] *= rng.choice(prior._CHANGE, p=prior._CHANGE_PRIOR)
        course = gain * shapes[:, rng.integers(shapes.shape[1])]
        course = course + np.cumsum(np.sqrt(drift) * rng.standard_normal(100))
        rows = np.arange(50.0)
        drawn.append(jg.Run(rows, rows, (course + rng.standard_normal(100))[:50]))
        truth.append(course[-1])
    forecasts = jg.forecast_each(drawn, [99.0], bounds=None)
    held = []
    for level in (0.5, 0.8, 0.9, 0.95):
        ends = np.array([f.interval(level) for f in forecasts])[..., 0]
        held.append(f"{level:.0%}: {np.mean((ends[:, 0] <= truth) & (truth <= ends[:, 1])):.1%}")
    return f"Intervals on {runs} runs drawn from the model's own prior hold " + ", ".join(held) + "."


def after_collapse(folder: Path, failures: list[tuple[str, float | None]]) -> str:
    """Error of forecasts made after the labelled onset of a failure, beside that of carrying forward."""
    errors, carried = [], []
    for name, onset in failures:
        if onset is None:
            continue
        try:
            run = jg.read_run(folder / name)
        except JaxgrpoError:
            continue
        if np.ptp(run.reward) == 0:
            continue
        start = np.searchsorted(run.logged_steps, onset) / len(run)
        scores = [judge(run, part) for part in np.arange(0.2, 0.9, 0.1) if part > start]
        scores = [s for s in scores if s is not None]
        if scores:
            errors.append(np.mean([s["error"] for s in scores]))
            carried.append(np.mean([s["carry error"] for s in scores]))
    difference = np.array(errors) - np.array(carried)
    doubt = 1.64 * difference.std(ddof=1) / np.sqrt(len(errors))
    return (
        f"After the onset of {len(errors)} labelled failures: error {np.mean(errors):.3f}, carrying forward "
        f"{np.mean(carried):.3f} (difference {difference.mean():+.3f} +- {doubt:.3f})."
    )


def cost() -> str:
    """Time of forecasts of 300 rows, one by one and a hundred at once."""
    rng = np.random.default_rng(0)
    x = np.arange(300.0)
    runs = [jg.Run(x, x, 0.8 - 0.5 * np.exp(-x / 80) + 0.05 * rng.standard_normal(300)) for _ in range(100)]
    single, batch = [], []
    for _ in range(5):
        start = time.perf_counter()
        jg.forecast(runs[0], [450.0]).interval()
        single.append(time.perf_counter() - start)
        start = time.perf_counter()
        _ = [f.interval() for f in jg.forecast_each(runs, [450.0])]
        batch.append(time.perf_counter() - start)
    words = [
        f"{1e3 * min(t):.0f} / {1e3 * np.median(t):.0f} / {1e3 * max(t):.0f} ms" for t in (single, batch)
    ]
    return f"One forecast of 300 rows with its 90 % interval: {words[0]}; 100 at once: {words[1]} (min / median / max of 5)."


def labelled(folder: Path, labels: Path) -> list[tuple[str, float | None]]:
    """Names of the runs labelled as clear failures, with their onsets where they have one."""
    rows = [line.split("\t") for line in labels.read_text().splitlines()[1:]]
    rows = [row for row in rows if row[1] != "healthy" and row[3] == "clear" and (folder / row[0]).is_dir()]
    return [(row[0], float(row[2]) if row[2] else None) for row in rows]


def table(fraction: float, title: str, kept: list[tuple[str, dict[str, float]]]) -> list[str]:
    """Rows of the table for one group of runs."""
    families = np.array([family for family, _ in kept])
    column = lambda key: np.array([s[key] for _, s in kept])

    def error(key: str) -> str:
        there = np.isfinite(column(key))
        low, high = interval(column(key)[there], families[there])
        return f"{column(key)[there].mean():.3f} ({low:.3f} to {high:.3f})"

    sharp = column("relative width") <= np.median(column("relative width"))
    rows = [
        f"| {fraction:.0%} | {len(kept)} ({title}) | forecast | {error('error')} | {column('crps').mean():.3f} "
        f"| {column('half').mean():.2f} | {column('nine').mean():.2f} | {column('error')[sharp].mean():.3f} |"
    ]
    for name, key in (("random walk", "walk"), ("clipped mixture", "mixture")):
        crps = column(f"{key} crps").mean()
        ratio = f"{crps:.3f} (ours {column('crps').mean() / crps:.2f} of it)"
        rows.append(f"| | | carry forward, {name} | {error('carry error')} | {ratio} | | | |")
    if title == "all":
        rows += [
            f"| | | {words}, least squares | {error(curve)} | | | | |" for curve, words in CURVES.items()
        ]
        there = np.isfinite(column("entropy"))
        own = column("error")[there].mean()
        rows.append(
            f"| | {there.sum()} (entropy logged) | entropy law | {error('entropy')} (ours {own:.3f}) | | | | |"
        )
    return rows


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument(
        "--labels", type=Path, help="table of failures with their onsets: run, mode, step, certainty"
    )
    arguments = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    found = runs_of(arguments.folders)
    failures = labelled(arguments.folders[0], arguments.labels) if arguments.labels is not None else []
    failed = set()
    for name, _ in failures:
        with contextlib.suppress(JaxgrpoError):
            failed.add(jg.read_run(arguments.folders[0] / name).name)
    names = sorted({family for family, _ in found})
    halves = {"first half of families": set(names[::2]), "second half of families": set(names[1::2])}
    print(
        "| seen | runs | method | error (90 % interval) | CRPS | inside 50 % | inside 90 % | error of the sharper half |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for fraction in FRACTIONS:
        scored = [(family, run, s) for family, run in found if (s := judge(run, fraction)) is not None]
        groups = {"all": [(f, s) for f, _, s in scored]}
        groups |= {title: [(f, s) for f, _, s in scored if f in half] for title, half in halves.items()}
        for kind in (
            "rewards in [0, 1]",
            "other rewards",
            "50 rows or more",
            "shorter",
            "a labelled failure",
        ):
            groups[kind] = [(f, s) for f, run, s in scored if kind in kinds(run, failed)]
        for title, kept in groups.items():
            if kept:
                print("\n".join(table(fraction, title, kept)), flush=True)
    print()
    print(simulated())
    if failures:
        print()
        print(after_collapse(arguments.folders[0], failures))
    print()
    print(cost())


if __name__ == "__main__":
    main()
