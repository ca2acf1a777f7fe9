import math

import pytest

from jaxgrpo.report.numbers import interval, number, setting


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (0.81234, "0.812"),
        (0.8, "0.800"),
        (-2.5, "-2.50"),
        (0.9999, "1.00"),
        (159.4, "159"),
        (12345.6, "12346"),
        (320.0, "320"),
        (1e-6, "1e-6"),
        (5.55e-4, "5.55e-4"),
        (1.5e7, "1.5e7"),
        (math.inf, "infinite"),
        (-math.inf, "-infinite"),
        (math.nan, "–"),
        (None, "–"),
    ],
)
def test_number(value, text):
    assert number(value) == text


@pytest.mark.parametrize("value", [1.2345e-9, 0.0123456, 0.5, 3.14159, 99.95, 12345.0, 7.7e12, -0.02])
@pytest.mark.parametrize("digits", [2, 3, 5])
def test_a_number_is_right_to_its_digits(value, digits):
    assert float(number(value, digits)) == pytest.approx(value, rel=0.51 * 10.0 ** (1 - digits))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1e-6, "1e-6"),
        (1.5e-5, "1.5e-5"),
        (0.0003, "3e-4"),
        (0.9, "0.9"),
        (0.95, "0.95"),
        (16.0, "16"),
        (0.0, "0"),
        (0.5, "0.5"),
    ],
)
def test_setting(value, text):
    assert setting(value) == text
    assert float(setting(value)) == value


@pytest.mark.parametrize(
    ("lower", "upper", "text"),
    [
        (0.8436, 0.8776, "[0.844, 0.878]"),
        (0.27, 1.4, "[0.3, 1.4]"),
        (-0.214, 1.9, "[-0.2, 1.9]"),
        (22.44, 30.91, "[22.4, 30.9]"),
        (1361.2, 4488.4, "[1361, 4488]"),
        (6.81e6, 1.08e7, "[6.81e6, 1.08e7]"),
        (0.0, 0.05, "[0.000, 0.050]"),
        (math.nan, 1.0, "[–, 1]"),
        (2.0, math.inf, "[2, –]"),
        (0.5, 0.5, "[0.500, 0.500]"),
    ],
)
def test_interval(lower, upper, text):
    assert interval(lower, upper) == text
