import dataclasses
import io

import numpy as np
import pytest
from matplotlib.figure import Figure

import jaxgrpo as jg
from jaxgrpo.report import plots
from jaxgrpo.report.assessment import Assessment
from jaxgrpo.report.scenarios import Scenario

CALM = Assessment(
    "overdamped", True, 1.4, 60.0, np.inf, 0.001, 0.98, 0.9, 159.0, 0.8, 5e-4, 1.0, 142.0, np.inf, 6e-4, True
)


def make_run(name="run", points=40, **fields):
    steps = np.arange(float(points))
    return jg.Run(steps, 10.0 + steps, 0.8 - 0.6 * np.exp(-steps / 8.0), name=name, **fields)


def rendered(figure):
    assert isinstance(figure, Figure)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    data = buffer.getvalue()
    assert data.startswith(b"\x89PNG") and len(data) > 5000
    return figure


def texts(figure):
    figure.canvas.draw()
    return [artist.get_text() for artist in figure.findobj(lambda a: hasattr(a, "get_text"))]


def line(axes, label):
    return next(one for one in axes.get_lines() if one.get_label().startswith(label))


def test_a_fit_shows_data_curve_plateau_residuals_and_schedule(fitted):
    figure = rendered(plots.fit(fitted))
    main, residuals, schedule = figure.axes
    np.testing.assert_array_equal(line(main, "reward as logged").get_xdata(), fitted.run.logged_steps)
    np.testing.assert_array_equal(line(main, "reward as logged").get_ydata(), fitted.run.reward)
    curve = line(main, "expected reward")
    np.testing.assert_allclose(
        np.interp(5.0, curve.get_xdata(), curve.get_ydata()), fitted.mean([4.0])[0], atol=1e-3
    )
    assert line(main, "plateau").get_ydata()[0] == fitted.parameters["plateau"].value
    dots = next(one for one in residuals.get_lines() if one.get_marker() == ".")
    np.testing.assert_allclose(dots.get_ydata(), fitted.residuals)
    np.testing.assert_array_equal(schedule.get_lines()[0].get_ydata(), fitted.run.channels["learning_rate"])
    said = " ".join(texts(figure))
    assert "step of the log" in said and f"R² {fitted.r_squared:.3f}" in said and "90 %" in said


def test_without_a_logged_rate_there_is_no_panel_for_it(fitted):
    bare = dataclasses.replace(fitted.run, channels={})
    assert len(plots.fit(dataclasses.replace(fitted, runs=(bare,))).axes) == 2


def test_a_plateau_that_is_not_identified_is_not_drawn(fitted):
    plateau = dataclasses.replace(fitted.parameters["plateau"], identified=False)
    figure = plots.fit(dataclasses.replace(fitted, parameters={"plateau": plateau}))
    assert not any(one.get_label().startswith("plateau") for one in figure.axes[0].get_lines())


def test_the_band_of_a_fit_is_its_own(fitted):
    main = plots.fit(fitted).axes[0]
    corners = main.collections[0].get_paths()[0].vertices
    lower, upper = fitted.band(np.array([20.0]))
    at = np.isclose(corners[:, 0], 21.0, atol=0.06)
    assert corners[at, 1].min() == pytest.approx(lower[0], abs=2e-3)
    assert corners[at, 1].max() == pytest.approx(upper[0], abs=2e-3)


def test_names_are_never_read_as_mathematics():
    rendered(plots.run(make_run(r"$\frac{broken$ \x1b[0m")))


def test_many_fits_are_small_pictures_up_to_a_limit(fitted):
    figure = rendered(plots.fits([fitted] * 3))
    assert sum(axes.get_visible() for axes in figure.axes) == 3
    figure = plots.fits([fitted] * 30)
    assert sum(axes.get_visible() for axes in figure.axes) == 24
    assert any("24 of 30" in text for text in texts(figure))


def test_a_run_shows_the_channels_that_it_has():
    run = make_run(channels={"kl": np.linspace(0, 1, 40), "entropy": np.full(40, np.nan)})
    figure = rendered(plots.run(run))
    assert len(figure.axes) == 2
    assert len(rendered(plots.runs([run, make_run("other")])).axes) == 2


def test_a_run_of_equal_rewards_can_be_drawn():
    steps = np.arange(5.0)
    rendered(plots.run(jg.Run(steps, steps, np.zeros(5))))


def make_scenario(rate, mean, label="a rate", own=False):
    mean = np.asarray(mean, float)
    steps = np.linspace(0.0, 39.0, len(mean))
    return Scenario(
        label,
        jg.Hyperparameters(rate),
        steps,
        mean,
        mean - 0.05,
        mean + 0.05,
        0.9,
        0.8,
        CALM,
        own,
    )


def test_predictions_lie_on_the_steps_of_the_log():
    run = make_run(steps_per_row=2.0)
    curve = np.linspace(0.2, 0.8, 40)
    scenarios = [make_scenario(1e-6, curve), make_scenario(2e-6, curve, "own", own=True)]
    axes = rendered(plots.prediction(scenarios, run)).axes[0]
    np.testing.assert_allclose(line(axes, "a rate").get_xdata(), 10.0 + np.linspace(0.0, 39.0, 40) / 2.0)
    assert line(axes, "own").get_label() == "own (as run)"
    assert len(axes.collections) == 2
    assert "2 optimizer steps each" in axes.get_xlabel()


def test_a_diverging_prediction_does_not_squeeze_the_others():
    with np.errstate(over="ignore"):
        wild = 0.8 - 0.6 * (-3.0) ** np.arange(800)
    scenarios = [make_scenario(1e-6, np.linspace(0.2, 0.8, 40)), make_scenario(1e-3, wild, "wild")]
    axes = rendered(plots.prediction(scenarios)).axes[0]
    low, high = axes.get_ylim()
    assert low > -1.0 and high < 2.0
    assert line(axes, "wild").get_label() == "wild (diverges)"
    assert len(line(axes, "wild").get_xdata()) < 10


def test_bands_of_many_predictions_are_left_out():
    scenarios = [
        make_scenario(rate, np.linspace(0.2, 0.8, 40), f"r{rate}") for rate in (1e-6, 2e-6, 3e-6, 4e-6, 5e-6)
    ]
    axes = plots.prediction(scenarios).axes[0]
    assert not axes.collections and len(axes.get_lines()) == 5
    assert len({tuple(one.get_color()) for one in axes.get_lines()}) == 5


def test_a_second_setting_is_told_by_the_kind_of_line():
    one, two = make_scenario(1e-6, [0.2, 0.8]), make_scenario(1e-6, [0.2, 0.8], "late")
    two = dataclasses.replace(two, hyperparameters=jg.Hyperparameters(1e-6, async_lag=1))
    three = make_scenario(2e-6, [0.2, 0.8], "fast")
    lines = plots.prediction([one, two, three]).axes[0].get_lines()
    assert lines[0].get_linestyle() == lines[2].get_linestyle() != lines[1].get_linestyle()
    np.testing.assert_array_equal(lines[0].get_color(), lines[1].get_color())
    assert tuple(lines[0].get_color()) != tuple(lines[2].get_color())


def test_optimizer_steps_between_and_beyond_the_logged_ones():
    run = dataclasses.replace(make_run(points=3, steps_per_row=4.0), steps=np.array([0.0, 4.0, 8.0]))
    np.testing.assert_allclose(
        plots.to_optimizer_steps(run, np.array([10.0, 10.5, 12.0, 13.0])), [0, 2, 8, 12]
    )
