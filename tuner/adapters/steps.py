"""Optimizer steps as a log tells them: by number, with the time of each and what it consumed."""

from dataclasses import dataclass, replace
from itertools import pairwise

from tuner.adapters.figures import Figure

# A file's modification time is as fine as the kernel's tick.
_ARRIVAL_SLACK_S = 0.005


@dataclass(frozen=True, kw_only=True)
class LoggedStep:
    """One line of the log: the steps since the line before, up to `number`.

    Attributes:
        number: The last step, counted from 1.
        count: Steps that the line covers.
        time_s: Mean time of one of them, seconds; none where the log does not say.
        loss: Loss, where it is printed.
        is_skipped: Whether an update was skipped (overflow in fp16), so that no real step was run.
    """

    number: int
    count: int
    time_s: Figure | None = None
    loss: float | None = None
    is_skipped: bool = False


class StepTable:
    """The steps of one trial, in order.

    Several ranks may print the same step: the slowest counts. Where the trainer prints no times,
    they are taken from when its lines were printed.
    """

    def __init__(self) -> None:
        self._steps: list[LoggedStep] = []
        self._moments: dict[int, float] = {}

    @property
    def last_number(self) -> int:
        """Number of the last step; 0 before the first."""
        return self._steps[-1].number if self._steps else 0

    def add(
        self,
        number: int,
        *,
        time_s: Figure | None = None,
        loss: float | None = None,
        is_skipped: bool = False,
        moment_s: float | None = None,
    ) -> None:
        """Take in a line for step `number`; one of an earlier step changes nothing."""
        if moment_s is not None:
            if number > self.last_number and self._moments.get(self.last_number) == moment_s:
                del self._moments[self.last_number]  # seen together: only the later one ended then
            self._moments.setdefault(number, moment_s)
        if number > self.last_number:
            step = LoggedStep(number=number, count=number - self.last_number)
            self._steps.append(step)
        elif number < self.last_number or number < 1:
            return
        self._steps[-1] = _merged(self._steps[-1], time_s, loss, is_skipped)

    def timed(self) -> list[LoggedStep]:
        """Steps whose time is known, oldest first.

        A step whose time of printing is not known is joined with the next one that has it.
        """
        found: list[LoggedStep] = []
        since: tuple[int, float] | None = None
        is_skipped = False
        for step in self._steps:
            is_skipped |= step.is_skipped
            if step.time_s is not None:
                found.append(step)
                is_skipped = False
            elif (moment_s := self._moments.get(step.number)) is not None:
                if since is not None:
                    found.append(_between(step, *since, moment_s, is_skipped))
                since, is_skipped = (step.number, moment_s), False
        return found

    def claims(self) -> list[tuple[float, float]]:
        """Per line the seconds a step that it says, and those since the line before was printed."""
        found = []
        for before, step in pairwise(self._steps):
            since_s, until_s = self._moments.get(before.number), self._moments.get(step.number)
            if step.time_s is None or since_s is None or until_s is None:
                continue
            seen_s = (until_s - since_s) / step.count
            if seen_s > _ARRIVAL_SLACK_S and step.time_s.value > 0:
                found.append((step.time_s.value, seen_s))
        return found

    def last_loss(self) -> float | None:
        """The newest loss."""
        return next((s.loss for s in reversed(self._steps) if s.loss is not None), None)


def _merged(
    step: LoggedStep, time_s: Figure | None, loss: float | None, is_skipped: bool
) -> LoggedStep:
    is_slower = time_s is not None and (step.time_s is None or time_s.value > step.time_s.value)
    return replace(
        step,
        time_s=time_s if is_slower else step.time_s,
        loss=loss if loss is not None else step.loss,
        is_skipped=step.is_skipped or is_skipped,
    )


def _between(
    step: LoggedStep, number: int, since_s: float, until_s: float, is_skipped: bool
) -> LoggedStep:
    count = step.number - number
    time_s = Figure(max(until_s - since_s, 1e-9) / count, _ARRIVAL_SLACK_S / count)
    return replace(step, count=count, time_s=time_s, is_skipped=is_skipped)
