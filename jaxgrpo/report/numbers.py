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
        return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.0f}"
    decimals = max(digits - 1 - math.floor(math.log10(abs(rounded))), 0)
    return f"{rounded:.{decimals}f}"


def setting(value: float) -> str:
    """A setting as it was typed: all the digits that it means, and no others."""
    if math.isfinite(value) and float(value).is_integer() and abs(value) < 1e6:
        return f"{value:.0f}"
    return _tidy_exponent(f"{value:.6g}" if abs(value) >= 1e-2 else f"{value:.5e}")


def interval(lower: float, upper: float) -> str:
    """An interval, both ends to the digits that its width warrants."""
    if not (math.isfinite(lower) and math.isfinite(upper)):
        low = number(lower) if math.isfinite(lower) else "–"
        high = number(upper) if math.isfinite(upper) else "–"
        return f"[{low}, {high}]"
    return f"[{_to_width(lower, upper - lower)}, {_to_width(upper, upper - lower)}]"


def _to_width(value: float, width: float) -> str:
    """A number to two digits of an interval's width, and to three of its own at most six."""
    size = max(abs(value), width)
    if width <= 0 or size == 0:
        return number(value)
    digits = math.floor(math.log10(size)) - math.floor(math.log10(width)) + 2
    if value and abs(value) < size:
        digits += math.floor(math.log10(abs(value))) - math.floor(math.log10(size))
    return number(value, min(max(digits, 2), 6))


def percent(share: float) -> str:
    """A share as a percentage."""
    return f"{100.0 * share:.0f} %" if math.isfinite(share) else "–"
