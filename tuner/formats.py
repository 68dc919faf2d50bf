"""Numbers as people read them. Every function takes SI units and none for what is not known."""

import datetime

UNKNOWN = "–"  # noqa: RUF001 -- a dash in a table, not a minus sign


def throughput(tokens_per_s: float | None) -> str:
    """Tokens a second with about four digits, thousands apart."""
    if tokens_per_s is None:
        return UNKNOWN
    digits = 0 if tokens_per_s >= 1000 else 1 if tokens_per_s >= 100 else 2
    return f"{tokens_per_s:,.{digits}f}"


def step_time(duration_s: float | None) -> str:
    """A step's time in the unit that gives it one to three digits before the point."""
    if duration_s is None:
        return UNKNOWN
    for scale, unit in ((1.0, "s"), (1e-3, "ms")):
        if duration_s >= scale:
            return (
                f"{duration_s / scale:.3g} {unit}" if duration_s < 1000 else f"{duration_s:.0f} s"
            )
    return f"{duration_s * 1e6:.3g} µs"


def duration(duration_s: float | None) -> str:
    """A span as a clock shows it (`02:13`), or in words beyond an hour (`1 h 05 min`)."""
    if duration_s is None:
        return UNKNOWN
    whole = max(0, round(duration_s))
    if whole < 3600:
        return f"{whole // 60:02d}:{whole % 60:02d}"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86400} d {whole % 86400 // 3600:02d} h"


def memory(size_bytes: float | None) -> str:
    """Bytes in GiB or MiB."""
    if size_bytes is None:
        return UNKNOWN
    return (
        f"{size_bytes / 2**30:.2f} GiB" if size_bytes >= 2**30 else f"{size_bytes / 2**20:.0f} MiB"
    )


def percent(fraction: float | None) -> str:
    """A share of one as per cent."""
    return UNKNOWN if fraction is None else f"{fraction * 100:.1f} %"


def ratio(value: float | None) -> str:
    """A speed-up, e.g. `1.34x`."""
    return UNKNOWN if value is None else f"{value:.2f}x"


def flops(flops_per_s: float | None) -> str:
    """Operations a second."""
    if flops_per_s is None:
        return UNKNOWN
    for scale, unit in ((1e15, "PFLOP/s"), (1e12, "TFLOP/s"), (1e9, "GFLOP/s")):
        if flops_per_s >= scale:
            return f"{flops_per_s / scale:.3g} {unit}"
    return f"{flops_per_s / 1e6:.3g} MFLOP/s"


def count(number: int | None) -> str:
    """An integer with its thousands apart."""
    return UNKNOWN if number is None else f"{number:,}"


def parameters(number: int | None) -> str:
    """A model's size: `124M`, `8.03B`."""
    if number is None:
        return UNKNOWN
    for scale, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K")):
        if number >= scale:
            return f"{number / scale:.3g}{unit}"
    return str(number)


def plural(number: int, noun: str) -> str:
    """A counted noun: `1 trial`, `2 trials`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def moment(time: datetime.datetime | None) -> str:
    """A stored time in the user's zone."""
    return UNKNOWN if time is None else time.astimezone().strftime("%Y-%m-%d %H:%M:%S")
