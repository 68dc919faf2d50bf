"""Numbers of logs: the true value is always within what rounding hides."""

import math
import re

from hypothesis import given
from hypothesis import strategies as st

from tuner.adapters.figures import NUMBER, Figure, parse

_POSITIVE = st.floats(min_value=1e-3, max_value=1e14)


def shortened(value: float) -> str:
    """As nanotron prints numbers: three digits, zeros at the end dropped, and a suffix."""
    if abs(value) < 1:
        return f"{value:.3g}"
    value, size = float(f"{value:.3g}"), 0
    while abs(value) >= 1000:
        value, size = value / 1000, size + 1
    return f"{value:f}".rstrip("0").rstrip(".") + ["", "K", "M", "G", "T", "P"][size]


@given(_POSITIVE)
def test_a_rounded_number_agrees_with_its_value(value: float) -> None:
    for text in (f"{value:.1f}", f"{value:.3f}", f"{value:.6E}", f"{value:,.2f}"):
        figure = parse(text)
        assert re.fullmatch(NUMBER, text)
        assert figure.agrees_with(value), (text, figure)
        assert not figure.agrees_with(value + 3 * figure.slack + 1e-3 * value), text


@given(_POSITIVE)
def test_three_digits_agree_with_their_value(value: float) -> None:
    text = shortened(value)
    assert re.fullmatch(NUMBER, text)
    figure = parse(text, 3)
    assert figure.agrees_with(value), (text, figure)
    assert not figure.agrees_with(value * 1.02), text


@given(st.integers(min_value=0, max_value=10**15))
def test_a_whole_number_is_exact(value: int) -> None:
    for text in (str(value), f"{value:,}"):
        assert parse(text) == Figure(float(value))
    assert not parse(str(value)).agrees_with(value + 1)


def test_what_is_no_finite_number_is_read_as_such() -> None:
    assert math.isnan(parse("nan").value)
    assert math.isinf(parse("inf").value)
    assert not parse("nan").agrees_with(1.0)


def test_figures_are_shown_short() -> None:
    assert str(Figure(65536.0)) == "65536"
    assert str(Figure(16395.60241, 30.0)) == "about 16396"
    assert str(Figure(2.4567, 0.01)) == "about 2.46"
