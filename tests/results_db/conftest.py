"""Databases to test on: an SQLite file, and a private PostgreSQL server where one can start."""

import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

import pytest

import results_db
from results_db.records import (
    Lease,
    MeasurementRow,
    StepRow,
    StudyRecord,
    TrialOutcome,
    TrialStatus,
)
from results_db.store import Store
from results_db.testing.postgres import PostgresServer, PostgresUnavailable, private_postgres

_counter = itertools.count(1)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    with ExitStack() as stack:
        try:
            server = stack.enter_context(private_postgres())
        except PostgresUnavailable as error:
            pytest.skip(f"no private PostgreSQL: {error}")
        yield server


@pytest.fixture(scope="session")
def postgres_template(postgres_server: PostgresServer) -> str:
    """A database with our tables: copying it is much faster than making them anew."""
    results_db.open(postgres_server.new_database("template_results")).close()
    return "template_results"


BOTH = ("sqlite", pytest.param("postgresql", marks=pytest.mark.postgres))


@pytest.fixture(params=BOTH)
def new_url(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], str]:
    """Gives the URL of another database without a row at every call."""

    def make() -> str:
        number = next(_counter)
        if request.param == "sqlite":
            return str(tmp_path / f"results{number}.db")
        server: PostgresServer = request.getfixturevalue("postgres_server")
        template: str = request.getfixturevalue("postgres_template")
        return server.new_database(f"test_{os.getpid()}_{number}", template)

    return make


@pytest.fixture
def url(new_url: Callable[[], str]) -> str:
    return new_url()


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with results_db.open(url) as opened:
        yield opened


@pytest.fixture
def make_study() -> Callable[..., StudyRecord]:
    """A record with everything that a study needs; keywords replace fields."""

    def make(name: str = "study", **fields: object) -> StudyRecord:
        values: dict[str, object] = {
            "name": name,
            "searcher": "random",
            "launcher": "local",
            "model": {"name": "tiny", "family": "gpt2", "num_layers": 4, "num_parameters": 10**12},
            "cluster": {"name": "two", "device_kind": "cpu", "num_nodes": 1, "devices_per_node": 2},
            "training": {"sequence_length": 128, "global_batch_size": 32, "dtype": "fp32"},
            "resolved_config": "[model]",
            "config_hash": "c0ffee",
        }
        return StudyRecord(**{**values, **fields})  # type: ignore[arg-type]

    return make


@pytest.fixture
def make_measurement() -> Callable[..., MeasurementRow]:
    """A measurement whose tokens/s and step time agree; keywords replace fields."""

    def make(tokens_per_s: float = 1000.0, **fields: object) -> MeasurementRow:
        values: dict[str, object] = {
            "step_time_s": 4096 / tokens_per_s,
            "step_time_iqr_s": 0.01 * 4096 / tokens_per_s,
            "tokens_per_s": tokens_per_s,
            "tokens_per_step": 4096,
            "num_microbatches": 4,
            "num_parameters": 10**12,
            "num_layers": 4,
            "model_flops_per_step": 6e15,
            "hardware_flops_per_step": 8e15,
            "model_flops_per_s_per_device": 1e12,
            "hardware_flops_per_s_per_device": 1.3e12,
            "mfu": 0.4,
            "peak_memory_bytes": 2**31,
            "final_loss": 3.5,
            "startup_s": 1.0,
            "versions": {"torch": "2.13.0"},
        }
        return MeasurementRow(**{**values, **fields})  # type: ignore[arg-type]

    return make


@pytest.fixture
def make_outcome(make_measurement: Callable[..., MeasurementRow]) -> Callable[..., TrialOutcome]:
    """A completed trial with five steps; keywords go to the measurement."""

    def make(tokens_per_s: float = 1000.0, **fields: object) -> TrialOutcome:
        row = make_measurement(tokens_per_s, **fields)
        steps = tuple(
            StepRow(step=n, is_warmup=n < 2, step_time_s=row.step_time_s, loss=4.0 - n, tokens=4096)
            for n in range(5)
        )
        return TrialOutcome(status=TrialStatus.COMPLETED, measurement=row, steps=steps)

    return make


@pytest.fixture
def lease() -> Lease:
    now = datetime.now(UTC)
    return Lease(host="node0", pid=4711, process_started_at=now, heartbeat_at=now)
