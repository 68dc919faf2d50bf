"""Bars and sparklines: right lengths, true order, left out where they do not suit."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.cli import sparks

values = st.lists(st.floats(min_value=-1e6, max_value=1e6), min_size=1, max_size=200)


@given(st.floats(min_value=-1, max_value=2), st.integers(min_value=1, max_value=60))
def test_a_bar_is_as_long_as_its_share(share: float, width: int) -> None:
    drawn = sparks.bar(share, width)
    assert len(drawn) <= width
    assert abs(len(drawn) - min(max(share, 0), 1) * width) <= 1


@given(values, st.integers(min_value=1, max_value=60))
def test_a_sparkline_fits_and_ends_with_the_last_value(numbers: list[float], width: int) -> None:
    line = sparks.sparkline(numbers, width)
    assert len(line) == min(len(numbers), width)
    assert set(line) <= set("▁▂▃▄▅▆▇█")
    if len(numbers) <= width and max(numbers) > min(numbers):
        assert line[numbers.index(max(numbers))] == "█"
        assert line[numbers.index(min(numbers))] == "▁"


def test_equal_values_are_a_level_line() -> None:
    assert sparks.sparkline([3.0, 3.0]) == "▅▅"
    assert sparks.sparkline([]) == ""


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def test_bars_need_a_terminal_with_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "150")
    assert sparks.has_room(Terminal())
    assert not sparks.has_room(io.StringIO())
    monkeypatch.setenv("COLUMNS", "80")
    assert not sparks.has_room(Terminal())
    monkeypatch.setenv("COLUMNS", "150")
    monkeypatch.setenv("TERM", "dumb")
    assert not sparks.has_room(Terminal())


def test_an_encoding_without_blocks_goes_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "150")
    ascii_only = Terminal()
    ascii_only.encoding = "ascii"  # type: ignore[misc]
    assert not sparks.has_room(ascii_only)
