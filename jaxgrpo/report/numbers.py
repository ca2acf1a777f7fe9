"""Numbers as people read them: few digits, no padding, intervals to their own precision."""

import math


def _tidy_exponent(text: str) -> str:
    """Scientific notation without the zeros that Python pads it with: 1e-06 becomes 1e-6."""
    mantissa, mark, exponent = text.partition("e")
    if not mark:
        return text
    if "." in mantissa:
        mantissa = mantissa.rstrip("0").rstrip(".")
    return f"{mantissa}e{int(exponent)}"


def number(value: float | None, digits: int = 3, infinite: str = "infinite") -> str:
    """A number to a few significant digits.

    Args:
        value: The number; `None` and NaN are shown as a dash.
        digits: Significant digits.
        infinite: What to write for infinity.

    Returns:
        Its text: fixed notation from 0.001 to 99,999, scientific notation elsewhere.
    """
    if value is None or math.isnan(value):
        return "–"
    if math.isinf(value):
        return infinite if value > 0 else f"-{infinite}"
    if value == 0:
        return "0"
    rounded = float(f"{value:.{digits - 1}e}")
    if not 1e-3 <= abs(rounded) < 1e5:
        return _tidy_exponent(f"{value:.{digits - 1}e}")
    if float(value).is_integer():
        return f"{value:.0f}"
    decimals = max(digits - 1 - math.floor(math.log10(abs(rounded))), 0)
    return f"{value:.{decimals}f}"


def setting(value: float) -> str:
    """A setting as it was typed: all the digits that it means, and no others."""
    if math.isfinite(value) and float(value).is_integer() and abs(value) < 1e6:
        return f"{value:.0f}"
    return _tidy_exponent(f"{value:.6g}" if abs(value) >= 1e-2 else f"{value:.5e}")


def interval(lower: float, upper: float) -> str:
    """An interval, both ends to the same decimal: two digits of its width."""
    ends = (lower, upper)
    width = upper - lower
    plain = all(math.isfinite(end) and (end == 0 or 1e-3 <= abs(end) < 1e5) for end in ends)
    if not plain or not 1e-6 <= width:
        return f"[{number(lower, infinite='–')}, {number(upper, infinite='–')}]"
    decimals = max(1 - math.floor(math.log10(width)), 0)
    return f"[{lower:.{decimals}f}, {upper:.{decimals}f}]"
