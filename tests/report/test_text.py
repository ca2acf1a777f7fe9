import pytest

from jaxgrpo.report.blocks import Bullets, Column, Heading, Pairs, Paragraph, Table, Title
from jaxgrpo.report.text import clean, display_width, for_encoding, render, table_lines

TABLE = Table(
    [
        Column("run", "left", wraps=True),
        Column("points"),
        Column("what it is", "left", wraps=True),
        Column("small print", "left", expendable=2),
        Column("more", expendable=1),
    ],
    [
        ["a_run_with_a_very_long_name_that_has_no_spaces", "320", "softmax, mean-only", "none", "1"],
        ["b", "7", "first order", "a remark that takes up room", "22"],
    ],
    frozenset({1}),
)


def test_columns_line_up_and_numbers_stand_to_the_right():
    lines = table_lines(Table([Column("name", "left"), Column("n")], [["a", "1"], ["bcd", "234"]]), 40)
    assert lines == ["name    n", "─────────", "a       1", "bcd   234"]


def test_a_mark_points_at_its_row():
    lines = table_lines(TABLE, 200)
    assert [line[0] for line in lines] == [" ", " ", " ", "▸"]


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120])
def test_a_table_fits_its_width(width):
    assert max(display_width(line) for line in table_lines(TABLE, width)) <= width


def test_the_most_expendable_columns_go_first_and_nothing_else_is_lost():
    wide, narrow, narrowest = (table_lines(TABLE, width) for width in (200, 60, 40))
    assert "small print" in wide[0] and "more" in wide[0]
    assert "small print" not in narrow[0] and "more" in narrow[0]
    assert "more" not in narrowest[0]
    joined = "".join("".join(narrowest).split())
    for part in ("320", "first", "order", "b", "7"):
        assert part in joined
    letters = "".join(line[2:18].strip() for line in narrowest[2:5])
    assert letters.startswith("a_run_with_a_very_long_name_that_has_no_spaces"[: len(letters)])


def test_headings_of_several_lines():
    lines = table_lines(Table([Column("learning\nrate"), Column("K")], [["1e-6", "4"]]), 40)
    assert lines[:2] == ["learning", "    rate  K"]


def test_wide_characters_are_counted_as_two():
    lines = table_lines(Table([Column("x", "left"), Column("n")], [["日本", "1"], ["ab", "2"]]), 40)
    assert [display_width(line) for line in lines[2:]] == [7, 7]
    assert lines[2] == "日本  1" and lines[3] == "ab    2"


def test_a_report_in_full():
    blocks = [
        Title("t", "about"),
        Heading("h"),
        Paragraph("one two three four five six seven eight nine ten"),
        Pairs([("k", "v"), ("key", "w")]),
        Bullets(["first", "second"]),
    ]
    expected = """t
about
═════

h
─
one two three four five six seven eight
nine ten

k    v
key  w

• first
• second"""
    assert render(blocks, 40) == expected


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred", "?[31mred"),
        ("a\x07b", "a?b"),
        ("a\u202eb", "a?b"),
        ("a\x9bb", "a?b"),
        ("a\u200bb", "a?b"),
        ("a\u2028b", "a?b"),
        ("a\ud800b", "a?b"),
    ],
)
def test_what_could_steer_a_terminal_is_taken_out(text, shown):
    assert clean(text) == shown
    assert render([Table([Column(text)], [["1"]])], 80).startswith(shown)


def test_ordinary_text_is_left_alone():
    assert clean("κ = 3 – naïve “日本”") == "κ = 3 – naïve “日本”"
    assert clean("two\nlines\tand") == "two lines and"


def test_an_output_that_cannot_encode_gets_the_nearest_ascii():
    text = "R² ≥ 0.9 – κ → 3 · ▸ • …\n═══"
    assert for_encoding(text, "utf-8") == text
    assert for_encoding(text, "ascii") == "R^2 >= 0.9 - kappa -> 3 , > - ...\n==="
    assert for_encoding("日", "ascii") == "?"
    assert for_encoding("²", "latin-1") == "²"
    assert for_encoding("–", None) == "-"
    assert for_encoding("–", "no-such-encoding") == "-"
