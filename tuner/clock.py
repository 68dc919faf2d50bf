"""The real time, behind the `Clock` protocol."""

import time


class SystemClock:
    """The machine's own clock."""

    def monotonic_s(self) -> float:
        """Seconds of a clock that only goes forward, whatever is done to the time of day."""
        return time.monotonic()

    def sleep_s(self, duration_s: float) -> None:
        """Wait."""
        time.sleep(duration_s)
