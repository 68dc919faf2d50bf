"""Numbers as logs print them: rounded, with thousands separators or a suffix."""

import math
import re
from dataclasses import dataclass

# What stands for a printed number in the patterns: 1,234.5  1.030000E+01  4.71K  nan  -inf
NUMBER = r"[-+]?(?:\d[\d,]*(?:\.\d*)?(?:[eE][-+]?\d+)?[KMGTPB]?|nan|inf|NaN|Infinity)(?![\w%])"
_SUFFIXES = {"K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12, "P": 1e15}
_PARTS = re.compile(r"([-+]?)([\d,]*)(?:\.(\d*))?(?:[eE]([-+]?\d+))?([KMGTPB]?)")


@dataclass(frozen=True)
class Figure:
    """A printed number with what its rounding hides: the true value is within `slack` of it."""

    value: float
    slack: float = 0.0

    def agrees_with(self, expected: float) -> bool:
        """Whether the true value may be `expected`."""
        rounding = 4 * math.ulp(expected) if self.slack else 0.0
        return abs(self.value - expected) <= self.slack * (1 + 1e-9) + rounding

    def scaled(self, factor: float) -> "Figure":
        """The number in another unit."""
        return Figure(self.value * factor, self.slack * abs(factor))

    def __str__(self) -> str:
        if not self.slack:
            return f"{self.value:.10g}"
        return f"about {self.value:.0f}" if abs(self.value) >= 100 else f"about {self.value:.3g}"


def parse(text: str, significant: int | None = None) -> Figure:
    """Read a number that `NUMBER` matches.

    A whole number is exact; the last digit of any other may be off by half.

    Args:
        text: The number.
        significant: Digits that the printer keeps, where it also drops zeros at the end.
    """
    match = _PARTS.fullmatch(text)
    if match is None or not match.group(2):
        return Figure(float(text))  # nan, inf
    sign, whole, fraction, exponent, suffix = match.groups()
    scale = _SUFFIXES.get(suffix, 1.0) * 10.0 ** int(exponent or 0)
    digits = whole.replace(",", "") + (f".{fraction}" if fraction else "")
    value = float(sign + digits) * scale
    if significant is not None:
        return Figure(value, _ulp(value, significant) / 2)
    if fraction is None and exponent is None and not suffix:
        return Figure(value)
    return Figure(value, 10.0 ** -len(fraction or "") * scale / 2)


def _ulp(value: float, significant: int) -> float:
    if value == 0 or not math.isfinite(value):
        return 0.0
    return float(10.0 ** (math.floor(math.log10(abs(value))) - significant + 1))
