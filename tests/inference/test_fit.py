"""The fit: known parameters, calibration, agreement with the prediction, words and errors."""

from dataclasses import replace

import jax
import numpy as np
import pytest
from inference_reference import harmonic_run, row_run, softmax_run

import jaxgrpo as jg
from jaxgrpo.errors import FitError, JaxgrpoError
from jaxgrpo.inference.models import MODELS

PLAIN = jg.Hyperparameters(1e-6, momentum=0.0)
MOMENTUM = jg.Hyperparameters(1e-6, momentum=0.9)
DYNAMIC = [name for name, model in MODELS.items() if not model.baseline]


def covers(estimate, truth, widen=0.0):
    """Whether the interval holds the truth, widened on both sides by a share of its length."""
    room = widen * (estimate.upper - estimate.lower)
    return estimate.lower - room <= truth <= estimate.upper + room


def assert_sound(fit):
    """Every number is finite and in order."""
    for name, entry in fit.models.items():
        assert np.isfinite(entry.log_evidence), name
        for parameter, e in entry.parameters.items():
            assert np.all(np.isfinite([e.value, e.lower, e.upper])), (name, parameter)
            assert e.lower <= e.value <= e.upper, (name, parameter, e)
    lower, upper = fit.band(fit.run.steps)
    mean = fit.mean(fit.run.steps)
    assert np.all(np.isfinite([lower, mean, upper]))
    assert np.all((lower <= mean) & (mean <= upper))
    assert np.isfinite([fit.r_squared, fit.r_squared_smoothed, fit.explained_ceiling]).all()


# A truth is missed by a 90 % interval one time in ten; widened by half its length on both sides it is a 99.9 % interval.
MISS = 0.5


@pytest.mark.parametrize("refresh_interval", [1, 3])
@pytest.mark.parametrize("seed", [1, 2])
def test_recovers_first_order(seed, refresh_interval):
    h = jg.Hyperparameters(1e-6, momentum=0.0, refresh_interval=refresh_interval)
    run = harmonic_run(seed, h, 12.0 * refresh_interval, start=0.15, plateau=0.75, noise=0.03)
    found = jg.fit(run, model="first_order").parameters
    truth = {
        "plateau": 0.75,
        "initial_reward": 0.15,
        "curvature": 1e6 / (12.0 * refresh_interval),
        # The mean age of the force shortens the relaxation.
        "timescale": 12.0 * refresh_interval - (refresh_interval - 1) / 2,
        "observation_noise": 0.03,
    }
    assert set(found) == set(truth)
    for name, value in truth.items():
        assert found[name].identified
        assert covers(found[name], value, MISS), (name, value, found[name])
        assert found[name].value == pytest.approx(value, rel=0.25)
        assert found[name].upper - found[name].lower < value


@pytest.mark.parametrize("momentum, timescale", [(0.9, 6.0), (0.95, 20.0)])
@pytest.mark.parametrize("seed", [1, 2])
def test_recovers_inertia_of_momentum(seed, momentum, timescale):
    h = jg.Hyperparameters(1e-6, momentum=momentum)
    run = harmonic_run(seed, h, timescale, start=0.1, plateau=0.55, noise=0.02)
    found = jg.fit(run, model="second_order").parameters
    truth = {"plateau": 0.55, "timescale": timescale, "inertial_time": momentum / (1 - momentum)}
    for name, value in truth.items():
        assert found[name].identified
        assert covers(found[name], value, MISS), (name, value, found[name])
        assert found[name].value == pytest.approx(value, rel=0.35)


@pytest.mark.parametrize("seed", [1, 2])
def test_recovers_mixed_difficulty(seed):
    run = softmax_run(seed, MOMENTUM, 0.4, start=-1.5, spread=1.3, noise=0.015, ceiling=0.9)
    fit = jg.fit(run, model="mixed_std")
    found = fit.parameters
    for name, value in {
        "plateau": 0.9,
        "spread": 1.3,
        "curvature": 0.4e6,
        "observation_noise": 0.015,
    }.items():
        assert found[name].identified
        assert covers(found[name], value, MISS), (name, value, found[name])
    assert fit.r_squared > 0.97


def test_curvature_does_not_depend_on_how_momentum_is_written():
    """One run, its learning rate stated for a moving average and for heavy ball."""
    run = harmonic_run(3, MOMENTUM, 15.0, plateau=0.6)
    average = jg.fit(run, MOMENTUM, model="second_order")
    heavy = jg.fit(run, jg.Hyperparameters(1e-7, momentum=0.9, convention="heavy_ball"), model="second_order")
    ratio = heavy.parameters["curvature"].value / average.parameters["curvature"].value
    assert ratio == pytest.approx(1.0, rel=1e-4)


def coverage(model, truths, fits):
    inside = {name: [] for name in truths[0]}
    for truth, fit in zip(truths, fits, strict=True):
        assert fit.model == model
        for name, value in truth.items():
            inside[name].append(covers(fit.parameters[name], value))
    return {name: np.mean(values) for name, values in inside.items()}


@pytest.mark.parametrize("model", ["first_order", "second_order"])
def test_intervals_are_calibrated(model):
    """Of 64 runs over the plausible range of settings, about nine tenths are within their intervals."""
    rng = np.random.default_rng(2024)
    runs, truths = [], []
    for seed in range(64):
        k = int(rng.choice([1, 2, 4]))
        momentum = 0.0 if model == "first_order" else float(rng.uniform(0.5, 0.95))
        h = jg.Hyperparameters(1e-6, momentum=momentum, refresh_interval=k)
        # Ranges in rows, so that every run bends within its log.
        timescale = k * float(np.exp(rng.uniform(np.log(5.0), np.log(25.0))))
        start, plateau = float(rng.uniform(0.05, 0.3)), float(rng.uniform(0.45, 0.7))
        noise, force_noise = float(np.exp(rng.uniform(np.log(0.01), np.log(0.06)))), float(rng.uniform(0, 1))
        runs.append(
            harmonic_run(
                seed, h, timescale, start=start, plateau=plateau, noise=noise, force_noise=force_noise
            )
        )
        truths.append({"plateau": plateau, "timescale": timescale - (k - 1) / 2})
        if model == "second_order":
            truths[-1]["inertial_time"] = momentum / (1.0 - momentum)
    fits = jg.fit_each(runs, model=model)
    share = coverage(model, truths, fits)
    assert all(0.78 <= value <= 0.99 for value in share.values()), share


def test_intervals_of_the_chosen_model_are_calibrated():
    """By default the data choose the model: what is said of the plateau must hold then as well."""
    rng = np.random.default_rng(7)
    runs, plateaus = [], []
    for seed in range(32):
        h = jg.Hyperparameters(1e-6, momentum=0.9 if seed % 2 else 0.0)
        plateaus.append(float(rng.uniform(0.45, 0.7)))
        timescale, noise = float(rng.uniform(5.0, 25.0)), float(rng.uniform(0.01, 0.05))
        runs.append(harmonic_run(200 + seed, h, timescale, plateau=plateaus[-1], noise=noise))
    fits = jg.fit_each(runs)
    share = np.mean([covers(f.parameters["plateau"], p) for f, p in zip(fits, plateaus, strict=True)])
    # Three standard deviations of 32 draws below nine tenths.
    assert share >= 0.74, share


def test_joint_fit_finds_the_exponent_of_the_learning_rate():
    slow, fast = jg.Hyperparameters(1e-6, momentum=0.0), jg.Hyperparameters(2e-6, momentum=0.0)
    runs = [
        harmonic_run(seed, h, 40.0, plateau=0.7, noise=0.02, exponent=2.0, reference_rate=1e-6)
        for seed, h in enumerate((slow, fast))
    ]
    fit = jg.fit(runs, model="first_order")
    found = fit.parameters
    for name, value in {"learning_rate_exponent": 2.0, "plateau": 0.7, "timescale": 40.0}.items():
        assert covers(found[name], value, MISS), (name, value, found[name])
    assert found["learning_rate_exponent"].value == pytest.approx(2.0, abs=0.25)
    assert found["learning_rate_exponent"].identified
    assert len(fit.r_squared_per_run) == 2 and min(fit.r_squared_per_run) > 0.9
    # One task explains both: shared plateau, start and curvature.
    assert float(fit.task.learning_rate_exponent) == pytest.approx(
        found["learning_rate_exponent"].value, rel=1e-6
    )
    for i, (run, h) in enumerate(zip(runs, (slow, fast), strict=True)):
        with jax.enable_x64(True):
            predicted = np.asarray(jg.predict(h, fit.task, run.steps).mean)
        np.testing.assert_allclose(fit.mean(run.steps, run=i), predicted, atol=1e-5)
    alone = jg.fit(runs[0], model="first_order").parameters["plateau"]
    assert found["plateau"].upper - found["plateau"].lower < 0.7 * (alone.upper - alone.lower)

    same_rate = jg.fit([runs[0], harmonic_run(9, slow, 40.0, plateau=0.7, noise=0.02)], model="first_order")
    assert "learning_rate_exponent" not in same_rate.parameters
    assert float(same_rate.task.learning_rate_exponent) == 1.0


def test_fit_each_is_fit():
    runs = [harmonic_run(seed, PLAIN, 8.0 + 3 * seed, rows=40 + 8 * seed, plateau=0.6) for seed in range(3)]
    together = jg.fit_each(runs, model="second_order")
    assert [f.run.reward is r.reward for f, r in zip(together, runs, strict=True)] == [True] * 3
    for run, one in zip(runs, together, strict=True):
        alone = jg.fit(run, model="second_order")
        for name, e in alone.parameters.items():
            got = one.parameters[name]
            np.testing.assert_allclose(
                [got.value, got.lower, got.upper], [e.value, e.lower, e.upper], rtol=1e-5
            )
        np.testing.assert_allclose(one.mean(run.steps), alone.mean(run.steps), rtol=1e-6)
        assert one.comparison == pytest.approx(alone.comparison, rel=1e-6)


def test_head_of_a_run_is_fitted_as_if_the_rest_did_not_exist():
    run = harmonic_run(4, PLAIN, 10.0, rows=62, plateau=0.7)
    head = jg.fit(run.head(0.6), model="first_order")
    n = len(head.run)
    assert n == 38
    spoilt = replace(run, reward=np.where(np.arange(62) < n, run.reward, 0.0))
    again = jg.fit(spoilt.head(0.6), model="first_order")
    assert head.as_dict() == again.as_dict()
    assert covers(head.parameters["plateau"], 0.7, MISS)
    # What it expects of the part that it has not seen.
    later = run.steps[n:]
    assert np.sqrt(np.mean((head.mean(later) - run.reward[n:]) ** 2)) < 0.05


@pytest.mark.parametrize("offset", [0.0, 0.3], ids=["exact", "a constant that is not logged"])
def test_parts_are_summed(offset):
    rng = np.random.default_rng(6)
    t = np.arange(60.0)
    rising = 0.1 + 0.6 * (1 - np.exp(-t / 8.0)) + 0.02 * rng.standard_normal(60)
    falling = 0.5 * np.exp(-t / 25.0) + 0.02 * rng.standard_normal(60)
    parts = {"correct": rising, "format": falling, "bonus": np.full(60, 0.25)}
    run = row_run(rising + falling + 0.25 + offset, PLAIN, parts=parts)
    fit = jg.fit(run, model="first_order", parts=True)
    assert list(fit.parts) == ["correct", "format"]
    truth = 0.1 + 0.6 * (1 - np.exp(-t / 8.0)) + 0.5 * np.exp(-t / 25.0) + 0.25 + offset
    np.testing.assert_allclose(fit.mean(t), truth, atol=0.04)
    residual = run.reward - fit.mean(t)
    expected = 1 - np.sum(residual**2) / np.sum((run.reward - run.reward.mean()) ** 2)
    assert fit.r_squared == pytest.approx(expected, rel=1e-9)
    assert fit.r_squared > jg.fit(run, model="first_order").r_squared + 0.2
    # Beyond the log, by the parts' own tasks.
    assert fit.mean([400.0])[0] == pytest.approx(0.7 + 0.25 + offset, abs=0.06)
    lower, upper = fit.band(t)
    assert np.all((lower < fit.mean(t)) & (fit.mean(t) < upper))


# The momentum of the models that do not take the optimizer's.
def acting_settings(h, fit):
    momentum = {"first_order": 0.0}.get(fit.model, float(h.momentum))
    if fit.model == "second_order":
        inertia = fit.parameters["inertial_time"].value
        momentum = inertia / (1.0 + inertia)
    return jg.Hyperparameters(
        h.learning_rate,
        momentum=momentum,
        group_size=h.group_size,
        refresh_interval=h.refresh_interval,
        async_lag=h.async_lag,
    )


COURSES = [
    # Model, K, decay of the learning rate, whether to look beyond the end of the log.
    ("first_order", 4, 0.95, False),
    ("second_order", 1, 0.0, True),
    ("mixed_curvature", 4, 0.0, False),
    ("softmax_std", 1, 0.95, False),
    ("softmax_mean", 4, 0.0, False),
    ("mixed_std", 1, 0.95, True),
    ("mixed_mean", 4, 0.95, False),
]


@pytest.mark.parametrize("model, refresh_interval, decay, beyond", COURSES)
def test_course_is_the_prediction_of_the_task(model, refresh_interval, decay, beyond):
    """At every refresh within the log, and after its end."""
    k = refresh_interval
    h = jg.Hyperparameters(1e-6, momentum=0.85, group_size=6, refresh_interval=k)
    run = softmax_run(3, h, 0.35 / k, start=-1.5, spread=0.8)
    if decay:
        run = replace(run, channels={"learning_rate": 1e-6 * (1 - decay * run.steps / run.steps.max())})
    fit = jg.fit(run, model=model)
    assert fit.model == model
    assert (fit.schedule is None) == (decay == 0.0)
    steps = run.steps
    if beyond:
        steps = np.concatenate([steps, [steps.max() + 10 * k, steps.max() + 100.0 * k]])
    with jax.enable_x64(True):
        predicted = np.asarray(jg.predict(acting_settings(h, fit), fit.task, steps, fit.schedule).mean)
    assert np.ptp(predicted) > 0.3
    # Within a cycle the fit takes the rate of its middle.
    tolerance = (1e-5 if MODELS[model].harmonic else 1e-4) if decay == 0.0 or k == 1 else 2e-3
    np.testing.assert_allclose(fit.mean(steps), predicted, rtol=0, atol=tolerance)
    np.testing.assert_allclose(fit.residuals, run.reward - fit.mean(run.steps), atol=1e-12)


def test_every_model_is_compared_with_its_prediction():
    assert [case[0] for case in COURSES] == DYNAMIC


@pytest.mark.parametrize("model", ["first_order", "second_order"])
def test_outlook_at_the_settings_of_the_run_is_the_fit(model):
    h = PLAIN if model == "first_order" else MOMENTUM
    run = harmonic_run(20, h, 12.0, plateau=0.6, noise=0.03)
    fit = jg.fit(run, model=model)
    steps = run.steps[::6]
    same = fit.predict(h, steps)
    np.testing.assert_allclose(same.mean, fit.mean(steps), atol=1e-5)
    lower, upper = fit.band(steps)
    # Draws of the parameters against the linearised band.
    ratio = np.mean(same.upper - same.lower) / np.mean(upper - lower)
    assert 0.75 < ratio < 1.35
    # A rate that was not run is as uncertain as the exponent of the learning rate.
    other = fit.predict(replace_rate(h, 3e-7), steps)
    assert np.mean(other.upper - other.lower) > 3 * np.mean(same.upper - same.lower)
    assert np.all((other.lower <= other.mean) & (other.mean <= other.upper))


def replace_rate(h, learning_rate):
    return jg.Hyperparameters(learning_rate, momentum=h.momentum)


def test_times_of_the_hyperparameters_given_count():
    """A row is K optimizer steps, whatever the run was read with."""
    run = harmonic_run(2, jg.Hyperparameters(1e-6, momentum=0.0, refresh_interval=4), 48.0)
    four = jg.fit(run, model="first_order")
    # The same file under another belief: K = 2, so that every time is half as long.
    two = jg.fit(run, jg.Hyperparameters(1e-6, momentum=0.0, refresh_interval=2), model="first_order")
    assert two.run.steps[-1] == 2 * 59
    relax = lambda f, k: f.parameters["timescale"].value + (k - 1) / 2
    assert relax(two, 2) == pytest.approx(0.5 * relax(four, 4), rel=1e-3)
    # Steps that the caller counted stay as they are.
    t = 4.0 * np.arange(60)
    own = jg.Run(t, t, run.reward)
    again = jg.fit(own, jg.Hyperparameters(1e-6, momentum=0.0, refresh_interval=4), model="first_order")
    assert again.parameters["timescale"].value == pytest.approx(four.parameters["timescale"].value, rel=1e-6)


@pytest.mark.parametrize(
    "slope, shift",
    [(1e-6, 0.0), (1e6, 0.0), (1.0, -1e3), (-1.0, 0.0), (-1e6, -5e6), (-1e-3, 2.0)],
    ids=["tiny", "huge", "negative", "falling", "huge, falling, negative", "small on top of a constant"],
)
@pytest.mark.parametrize("model", ["second_order", "mixed_std"])
def test_units_of_the_reward_do_not_matter(model, slope, shift):
    """Without bounds the fit of a straight transform of the rewards is the transform of the fit."""
    run = harmonic_run(5, MOMENTUM, 10.0, plateau=0.6, noise=0.02)
    plain = jg.fit(run, model=model, bounds=None)
    other = jg.fit(replace(run, reward=slope * run.reward + shift), model=model, bounds=None)
    assert other.r_squared == pytest.approx(plain.r_squared, abs=1e-3)
    for name in ("plateau", "initial_reward"):
        e, got = plain.parameters[name], other.parameters[name]
        width = abs(slope) * (e.upper - e.lower)
        assert got.value == pytest.approx(slope * e.value + shift, abs=0.1 * width)
        assert got.upper - got.lower == pytest.approx(width, rel=0.15)
    name = "timescale" if model == "second_order" else "spread"
    e, got = plain.parameters[name], other.parameters[name]
    assert got.value == pytest.approx(e.value, abs=0.1 * (e.upper - e.lower))
    noise = plain.parameters["observation_noise"].value
    assert other.parameters["observation_noise"].value == pytest.approx(abs(slope) * noise, rel=0.02)


def test_units_of_the_reward_do_not_matter_to_the_comparison():
    run = harmonic_run(5, MOMENTUM, 10.0, plateau=0.6, noise=0.02)
    plain = jg.fit(run, bounds=None).comparison
    other = jg.fit(replace(run, reward=-1e6 * run.reward - 5e6), bounds=None).comparison
    for name in plain:
        difference = other[name] - other["first_order"]
        assert difference == pytest.approx(plain[name] - plain["first_order"], abs=0.3), name


@pytest.mark.parametrize(
    "slope, shift",
    [(1e-6, 0.0), (1e6, -3e6), (-1.0, 0.9), (-1e-6, -1e-6)],
    ids=["tiny", "huge and negative", "falling", "tiny, falling and negative"],
)
def test_every_number_is_finite_at_any_scale(slope, shift):
    run = harmonic_run(8, MOMENTUM, 10.0, plateau=0.6, noise=0.03)
    fit = jg.fit(replace(run, reward=slope * run.reward + shift))
    assert_sound(fit)
    assert fit.r_squared > 0.85
    chosen = fit.parameters["plateau"]
    assert covers(chosen, slope * 0.6 + shift, MISS) or not chosen.identified


@pytest.mark.parametrize("seed", range(3))
def test_every_number_is_finite_for_five_points(seed):
    reward = [0.2, 0.35, 0.5, 0.55, 0.62] + 0.05 * np.random.default_rng(seed).standard_normal(5)
    fit = jg.fit(row_run(reward, MOMENTUM))
    assert_sound(fit)
    # Five points do not tell one shape from another.
    assert "not told apart from it" in said(fit)


def said(fit):
    return " ".join(fit.verdicts)


def test_flat_noise_has_no_trend():
    rng = np.random.default_rng(11)
    fit = jg.fit(row_run(0.4 + 0.05 * rng.standard_normal(60), MOMENTUM))
    assert "No trend is told from noise" in said(fit)
    assert "clearly supported" not in said(fit)
    assert next(iter(fit.comparison)) == "constant"


def test_ringing_is_second_order_and_momentum_explains_it():
    run = harmonic_run(14, MOMENTUM, 3.0, start=0.1, plateau=0.55, noise=0.02)
    assert run.reward.max() > 0.65
    fit = jg.fit(run)
    assert "Second order is clearly supported" in said(fit)
    assert "is what the optimizer's momentum explains (9 steps" in said(fit)
    assert "No trend" not in said(fit)
    assert fit.comparison["second_order"] > fit.comparison["first_order"] + 10


def test_ringing_that_momentum_does_not_explain_is_said_to_be_so():
    """The same run, told to have been trained with less momentum than it was."""
    run = harmonic_run(14, MOMENTUM, 3.0, start=0.1, plateau=0.55, noise=0.02)
    fit = jg.fit(run, jg.Hyperparameters(1e-6, momentum=0.5))
    assert "longer than the optimizer's momentum explains (1 steps)" in said(fit)


def test_slow_start_of_a_softmax_is_not_called_inertia():
    """An S-curve over many times the momentum's memory."""
    h = jg.Hyperparameters(1e-6, momentum=0.5)
    run = softmax_run(13, h, 0.7, start=-4.0, noise=0.015, ceiling=0.95)
    fit = jg.fit(run)
    assert fit.comparison["second_order"] > fit.comparison["first_order"] + 3
    assert "clearly supported" not in said(fit)
    assert "the saturating force explains the slow start without inertia" in said(fit)
    assert not MODELS[fit.model].harmonic


def test_plain_relaxation_is_not_called_inertia():
    fit = jg.fit(harmonic_run(14, jg.Hyperparameters(1e-6, momentum=0.5), 15.0, noise=0.02))
    assert "clearly supported" not in said(fit)
    assert "No trend" not in said(fit)


def test_comparison_is_complete_and_in_order():
    fit = jg.fit(harmonic_run(15, MOMENTUM, 10.0))
    assert set(fit.comparison) == set(MODELS) == set(fit.models)
    assert list(fit.comparison.values()) == sorted(fit.comparison.values(), reverse=True)
    own = fit.models[fit.model].parameters
    assert list(fit.parameters) == list(own)
    shared = ("plateau", "initial_reward")
    assert all(fit.parameters[name] == own[name] for name in own if name not in shared)
    for name in shared:
        # Averaged over the models: within all that they say, and not narrower than the narrowest.
        each = [fit.models[model].parameters[name] for model in DYNAMIC]
        averaged = fit.parameters[name]
        assert averaged.value == own[name].value
        assert min(e.lower for e in each) <= averaged.lower <= averaged.value
        assert averaged.value <= averaged.upper <= max(e.upper for e in each)
        assert averaged.upper - averaged.lower >= min(e.upper - e.lower for e in each)
    assert fit.model in DYNAMIC
    assert fit.title == MODELS[fit.model].title
    text = fit.summary()
    assert fit.title in text and "plateau" in text and all(sentence in text for sentence in fit.verdicts)


def test_a_named_model_speaks_for_itself():
    fit = jg.fit(harmonic_run(15, MOMENTUM, 10.0), model="second_order")
    assert fit.parameters == fit.models["second_order"].parameters


def test_r_squared_and_ceiling():
    run = harmonic_run(16, PLAIN, 10.0, noise=0.05)
    fit = jg.fit(run, model="first_order")
    total = np.sum((run.reward - run.reward.mean()) ** 2)
    assert fit.r_squared == pytest.approx(1 - np.sum(fit.residuals**2) / total, rel=1e-9)
    smooth = lambda y: np.array([y[max(i - 2, 0) : i + 3].mean() for i in range(60)])
    soft, expected = smooth(run.reward), smooth(fit.mean(run.steps))
    share = 1 - np.sum((soft - expected) ** 2) / np.sum((soft - soft.mean()) ** 2)
    assert fit.r_squared_smoothed == pytest.approx(share, rel=1e-9)
    assert fit.explained_ceiling == pytest.approx(1 - 0.05**2 * 60 / total, abs=0.03)


def test_what_is_not_identified_is_said_to_be():
    """A straight beginning knows neither plateau nor timescale."""
    rng = np.random.default_rng(17)
    fit = jg.fit(
        row_run(0.2 + 0.001 * np.arange(40) + 0.01 * rng.standard_normal(40), PLAIN),
        model="first_order",
        bounds=None,
    )
    missing = [name for name, e in fit.parameters.items() if not e.identified]
    assert "timescale" in missing or fit.parameters["timescale"].upper > 3 * fit.parameters["timescale"].lower
    reach = np.ptp(fit.run.reward)
    assert fit.parameters["plateau"].upper - fit.parameters["plateau"].lower > reach
    assert all(name.replace("_", " ") in " ".join(fit.warnings) for name in missing)


def test_hyperparameters_unknown_is_a_warning():
    t = np.arange(60.0)
    run = jg.Run(t, t, harmonic_run(18, PLAIN, 10.0).reward, name="nameless")
    fit = jg.fit(run, model="first_order")
    assert any("nameless" in w and "no hyperparameters are known" in w for w in fit.warnings)
    assert float(fit.hyperparameters[0].learning_rate) == 1.0


BAD = {
    "three points": (lambda run: jg.fit(run.select(slice(0, 3))), "3 points"),
    "constant": (lambda run: jg.fit(replace(run, reward=np.full(60, 0.25))), "the reward is 0.25"),
    "unknown model": (lambda run: jg.fit(run, model="third_order"), "'third_order'"),
    "baseline as model": (lambda run: jg.fit(run, model="sigmoid"), "'sigmoid'"),
    "hyperparameters": (lambda run: jg.fit([run, run], [PLAIN] * 3), "3 hyperparameters for 2 runs"),
    "no runs": (lambda run: jg.fit([]), "no runs"),
    "no parts": (lambda run: jg.fit(run, parts=True), "no parts"),
    "parts of several": (lambda run: jg.fit([run, run], parts=True), "several runs"),
    "parts that do not add up": (
        lambda run: jg.fit(replace(run, parts={"a": 0.5 * run.reward, "b": 0.1 * run.reward}), parts=True),
        "do not add up",
    ),
    "one of many": (lambda run: jg.fit_each([run, replace(run.select(slice(0, 3)), name="short")]), "short"),
}


@pytest.mark.parametrize("call, words", BAD.values(), ids=BAD)
def test_errors_are_one_line(call, words):
    run = harmonic_run(19, PLAIN, 10.0)
    with pytest.raises(FitError) as caught:
        call(run)
    assert isinstance(caught.value, JaxgrpoError)
    assert "\n" not in str(caught.value)
    assert words in str(caught.value)
