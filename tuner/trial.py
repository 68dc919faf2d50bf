"""`Trial`: one finished or unfinished trial as programs see it, in one flat and frozen object."""

from dataclasses import dataclass, replace
from datetime import datetime

from results_db.intervals import throughput_interval
from results_db.records import FailureRow, MeasurementRow, Purpose, TrialStatus, TrialSummary
from search_spaces.parallel_config import ParallelConfig
from tuner.outcomes import config_of


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One configuration, run once: what was asked, what came of it, and why if nothing did."""

    number: int
    """1, 2, 3 ... within the study."""
    config: ParallelConfig
    status: TrialStatus
    purpose: Purpose
    repeat: int
    """0 for the first measurement of a configuration, 1.. for deliberate repeats of it."""
    attempt: int
    source: str
    """What proposed it: a searcher's name, `baseline`, `confirm`, `drift`."""
    measurement: MeasurementRow | None = None
    """Its numbers, if it completed."""
    failure: FailureRow | None = None
    """Why it gave none, if it failed."""
    started_at: datetime | None = None
    finished_at: datetime | None = None
    id: int | None = None
    """Its key in the database."""
    measured_steps: int = 1
    """Steps that its medians were taken over."""

    @property
    def is_measured(self) -> bool:
        """Whether it gave a number."""
        return self.measurement is not None

    @property
    def label(self) -> str:
        """The configuration for people, e.g. `tp2 pp1 dp2 mbs4 zero1`."""
        return self.config.short()

    @property
    def num_devices(self) -> int:
        """Ranks that it ran on."""
        return self.config.world_size

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens a second over all devices; none without a measurement."""
        return self.measurement.tokens_per_s if self.measurement else None

    @property
    def step_time_s(self) -> float | None:
        """Median time of an optimizer step, seconds; none without a measurement."""
        return self.measurement.step_time_s if self.measurement else None

    @property
    def peak_memory_bytes(self) -> int | None:
        """Peak of the fullest rank; none without a measurement."""
        return self.measurement.peak_memory_bytes if self.measurement else None

    @property
    def mfu(self) -> float | None:
        """Share, 0 to 1, of the devices' peak; none where no peak is known."""
        return self.measurement.mfu if self.measurement else None

    @property
    def wall_s(self) -> float | None:
        """Start to end, seconds; none while it has not ended."""
        if self.started_at is None or self.finished_at is None:
            return None
        return (self.finished_at - self.started_at).total_seconds()

    def bounds(self) -> tuple["Trial", "Trial"]:
        """The trial as it would be at the slow and the fast end of its step time's interval."""
        if self.measurement is None:
            return self, self
        row = self.measurement
        span = throughput_interval(
            row.tokens_per_step, row.step_time_s, row.step_time_iqr_s, self.measured_steps
        )
        return self._at(row, span.low), self._at(row, span.high)

    def _at(self, row: MeasurementRow, tokens_per_s: float) -> "Trial":
        factor = tokens_per_s / row.tokens_per_s
        moved = replace(
            row,
            tokens_per_s=tokens_per_s,
            step_time_s=row.step_time_s / factor,
            model_flops_per_s_per_device=row.model_flops_per_s_per_device * factor,
            hardware_flops_per_s_per_device=row.hardware_flops_per_s_per_device * factor,
            mfu=None if row.mfu is None else row.mfu * factor,
        )
        return replace(self, measurement=moved)


def trial_of(row: TrialSummary) -> Trial:
    """A stored trial."""
    record = row.trial
    assert record.number is not None  # noqa: S101 -- given by the store
    return Trial(
        number=record.number,
        config=config_of(record),
        status=record.status,
        purpose=record.purpose,
        repeat=record.repeat,
        attempt=record.attempt,
        source=record.source,
        measurement=row.measurement,
        failure=row.failure,
        started_at=record.started_at,
        finished_at=record.finished_at,
        id=record.id,
        measured_steps=record.measured_steps,
    )
