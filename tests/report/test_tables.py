import dataclasses

import numpy as np
import pytest

import jaxgrpo as jg
from jaxgrpo.report import tables
from jaxgrpo.report.assessment import Assessment
from jaxgrpo.report.blocks import Bullets, Paragraph, Table
from jaxgrpo.report.scenarios import Scenario
from jaxgrpo.report.text import render

CALM = Assessment(
    "overdamped", True, 1.4, 60.0, np.inf, 0.001, 0.98, 0.9, 159.0, 0.8, 5e-4, 1.0, 142.0, np.inf, 6e-4, True
)


def make_run(name="run", path=None, **fields):
    steps = np.arange(10.0)
    return jg.Run(steps, steps + 1.0, np.linspace(0.1, 0.9, 10), name=name, path=path, **fields)


def shown(blocks, width=100):
    return render(blocks, width)


def table_of(blocks, index=0):
    return [block for block in blocks if isinstance(block, Table)][index]


def test_a_run_and_where_its_settings_came_from():
    assumed = "assumed, since the log does not tell: momentum 0.9 (give hyperparameters or config)"
    run = make_run(
        hyperparameters=jg.Hyperparameters(3e-6, group_size=16),
        warnings=("the learning rate 3e-06 is the largest in the log's own column", assumed),
        channels={"kl": np.zeros(10)},
        framework="trl",
    )
    blocks = tables.run_report(run, given=["group_size"])
    origin = {row[0]: (row[1], row[2]) for row in table_of(blocks).rows}
    assert origin["learning rate"] == ("3e-6", "largest in the log")
    assert origin["momentum"] == ("0.9", "assumed")
    assert origin["group size G"] == ("16", "command line")
    assert origin["staleness"] == ("1", "default")
    text = shown(blocks)
    assert "0.100 → 0.900" in text and "10, steps 1–10" in text and "kl" in text
    assert "(give --momentum, --group-size or --config)" in text

    told = dataclasses.replace(run, settings={"learning_rate": 3e-6})
    origin = {row[0]: row[2] for row in table_of(tables.run_report(told, config="a.yaml")).rows}
    assert origin["learning rate"] == "settings (a.yaml)"


def test_a_run_without_hyperparameters_says_what_to_give():
    assert "give --learning-rate" in shown(tables.run_report(make_run()))


def test_several_runs_each_note_once():
    runs = [make_run("a", warnings=("same", "own")), make_run("b", warnings=("same",)), make_run("c")]
    runs += [make_run(name, warnings=("same",)) for name in "defg"]
    notes = next(block for block in tables.runs_report(runs) if isinstance(block, Bullets)).items
    assert notes == ["same (6 runs)", "own (a)"]


def test_names_are_told_apart(tmp_path):
    one, two = make_run("m", tmp_path / "x" / "m.csv"), make_run("m", tmp_path / "y" / "m.csv")
    assert tables.distinct_names([one, two, make_run("n")]) == ["x/m", "y/m", "n"]
    assert tables.distinct_names([one, one]) == ["x/m (1)", "x/m (2)"]
    assert tables.distinct_names([make_run("m"), make_run("m")]) == ["m (1)", "m (2)"]


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("choose another with segment=NUMBER, or read_runs for all", "--segment NUMBER, or --segment all"),
        ("choose one with run=NAME or call read_runs; there", "choose one with --run NAME; there"),
        (
            "1 is assumed (give refresh_interval or steps_per_row)",
            "(give --refresh-interval or --steps-per-row)",
        ),
        ("name one with reward=NAME", "name one with --reward NAME"),
    ],
)
def test_messages_speak_of_options(said, meant):
    assert meant in tables.for_command_line(said)


def test_stability_with_and_without_a_limit():
    blocks = tables.stability_blocks(CALM)
    rows = {row[0]: row[1:] for row in table_of(blocks).rows}
    assert rows["critical learning rate"] == ["0.800", "none"]
    assert rows["critical refresh interval K"] == ["159", "142"]
    assert "Upper bounds: no sharpness was measured" in shown(blocks, 300)
    measured = tables.stability_blocks(dataclasses.replace(CALM, is_upper_bound=False))
    assert "Upper bounds" not in shown(measured, 300)


def test_times_are_also_given_in_the_steps_of_the_log():
    ringing = dataclasses.replace(CALM, regime="underdamped", period=20.0)
    run = make_run(steps_per_row=4.0)
    assert "period 20 optimizer steps (= 5 of the log's)" in tables.regime_sentence(ringing, run)
    assert "of the log" not in tables.regime_sentence(ringing, make_run())


def test_a_softmax_force_beyond_its_limit_is_not_called_unstable():
    soft = dataclasses.replace(CALM, regime="unstable", margin=-0.5, saturates=True)
    assert tables.regime_word(soft) == "stiff midway"
    assert tables.regime_word(dataclasses.replace(soft, saturates=False)) == "unstable"
    assert "unstable" not in tables.regime_sentence(soft).lower()


def test_the_report_of_a_fit(fitted):
    text = shown(tables.fit_report(fitted, [CALM]), 100)
    for part in (
        "a $run$",
        "40 points, steps 1–40",
        "learning rate 1e-6 · momentum 0.9 (EMA) · G 8 · K 1",
        "noise ceiling",
        "baseline",
        "log evidence",
        f"{fitted.r_squared:.3f}",
        "90 % interval",
        "critical refresh interval K",
        *(sentence[:30] for sentence in fitted.verdicts),
    ):
        assert part in text
    marked = table_of(tables.fit_report(fitted, [CALM]))
    assert [marked.rows[i][0] for i in marked.marks] == [fitted.title]


def test_what_is_not_identified_is_said_to_be_so(fitted):
    plateau = dataclasses.replace(fitted.parameters["plateau"], identified=False)
    vague = dataclasses.replace(fitted, parameters={**fitted.parameters, "plateau": plateau})
    rows = {row[0]: row for row in table_of(tables.fit_report(vague, [CALM]), 1).rows}
    assert rows["plateau"][2] == "not identified"
    assert rows["plateau"][1].startswith("(")
    assert rows["initial reward"][2].startswith("[")


def test_a_model_that_did_not_converge_is_said_to_be_so(fitted):
    entry = dataclasses.replace(fitted.models["power_law"], converged=False)
    vague = dataclasses.replace(fitted, models={**fitted.models, "power_law": entry})
    rows = {row[0]: row[-1] for row in table_of(tables.fit_report(vague, [CALM])).rows}
    assert rows[entry.title] == "baseline, did not converge"


def test_several_fits_are_a_line_each(fitted):
    blocks = tables.fits_report([fitted, fitted], [CALM, CALM])
    assert [row[0] for row in table_of(blocks).rows] == ["a $run$ (1)", "a $run$ (2)"]
    assert max(len(line) for line in shown(blocks, 80).split("\n")) <= 80


def make_scenario(rate, own=False, mean=(0.2, 0.8), **figures):
    mean = np.array(mean)
    h = jg.Hyperparameters(rate)
    assessment = dataclasses.replace(CALM, **figures)
    return Scenario(
        f"rate {rate}", h, np.array([0.0, 9.0]), mean, mean - 0.1, mean + 0.1, 0.9, 0.9, assessment, own
    )


def test_predictions_are_a_line_each_and_the_own_one_is_marked():
    scenarios = [make_scenario(1e-6), make_scenario(2e-6, own=True), make_scenario(4e-6, mean=(0.2, 1e9))]
    blocks = tables.prediction_report("t", scenarios, "step 10", ["a remark"])
    table = table_of(blocks)
    assert [row[0] for row in table.rows] == ["1e-6", "2e-6", "4e-6"]
    assert table.marks == {1}
    assert table.rows[0][1:3] == ["0.800", "[0.70, 0.90]"]
    assert table.rows[2][1] == "diverges"
    text = shown(blocks, 80)
    assert "End: step 10." in text and "upper bounds: no sharpness" in text and "a remark" in text
    assert max(len(line) for line in text.split("\n")) <= 80


def test_only_what_differs_gets_a_column():
    assert tables.varied_settings([make_scenario(1e-6), make_scenario(2e-6)]) == ["learning_rate"]
    assert tables.varied_settings([make_scenario(1e-6), make_scenario(1e-6)]) == []


def test_settings_in_a_line():
    h = jg.Hyperparameters(1e-6, async_lag=1, prompts_per_step=4, convention="heavy_ball")
    line = tables.settings_line(h, without=["group_size"])
    assert line == "learning rate 1e-6 · momentum 0.9 (heavy ball) · K 1 · 4 prompts a step · async lag 1"


def test_no_notes_no_heading():
    assert tables.notes([]) == []
    assert tables.notes_of_several({"a": ()}) == []
    assert not any(isinstance(block, Paragraph) for block in tables.notes(["x"]))
