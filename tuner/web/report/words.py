"""Numbers as the report's tables show them. Units are in the column heads or the words."""

from datetime import datetime
from typing import Any

FILTERS = ("speed", "step", "memory", "percent", "ratio", "moment", "half_width", "value")


def speed(tokens_per_s: float | None) -> str:
    """Tokens a second with about four digits."""
    if tokens_per_s is None:
        return ""
    return f"{tokens_per_s:,.0f}" if tokens_per_s >= 1000 else f"{tokens_per_s:.4g}"


def step(duration_s: float | None) -> str:
    """A step's time."""
    if duration_s is None:
        return ""
    return f"{duration_s:,.3g} s" if duration_s >= 1 else f"{duration_s * 1e3:.3g} ms"


def memory(size_bytes: float | None) -> str:
    """Bytes in GiB or MiB."""
    if size_bytes is None:
        return ""
    large = size_bytes >= 2**30
    return f"{size_bytes / 2**30:.2f} GiB" if large else f"{size_bytes / 2**20:.0f} MiB"


def percent(fraction: float | None) -> str:
    """A share of one as per cent."""
    return "" if fraction is None else f"{100 * fraction:.1f} %"


def ratio(value: float | None) -> str:
    """A speed-up."""
    return "" if value is None else f"{value:.2f}x"


def moment(time: datetime) -> str:
    """A time in UTC."""
    return time.strftime("%Y-%m-%d %H:%M UTC")


def half_width(row: Any) -> str:
    """Half of a leaderboard row's interval, in per cent of its throughput."""
    half = (row.tokens_per_s_high - row.tokens_per_s_low) / 2
    return f"{100 * half / row.tokens_per_s:.1f} %"


def value(knob: Any) -> str:
    """A knob's value."""
    if isinstance(knob, bool):
        return "true" if knob else "false"
    return "/".join(map(str, knob)) if isinstance(knob, list | tuple) else str(knob)
