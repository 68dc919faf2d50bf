"""A clock that moves only when told to."""


class FakeClock:
    """`Clock` for tests: sleeping takes no time and is remembered."""

    def __init__(self, start_s: float = 0.0) -> None:
        self._now_s = start_s
        self.sleeps_s: list[float] = []

    def monotonic_s(self) -> float:
        """The time that was set."""
        return self._now_s

    def sleep_s(self, duration_s: float) -> None:
        """Move on by `duration_s` at once."""
        self.sleeps_s.append(duration_s)
        self.advance(duration_s)

    def advance(self, duration_s: float) -> None:
        """Move on."""
        if duration_s < 0:
            raise ValueError(f"a monotonic clock cannot go back by {-duration_s} s")
        self._now_s += duration_s
