"""Databases to test on: an SQLite file, and a private PostgreSQL server where one can start."""

import itertools
import math
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import NullPool, create_engine, text, update

import results_db
from results_db.records import (
    FailureRow,
    Lease,
    MeasurementRow,
    PredictionRow,
    RankRow,
    StepRow,
    StudyRecord,
    TrialOutcome,
    TrialRecord,
    TrialStatus,
    UntriedRow,
)
from results_db.schema import SCHEMA_VERSION, metadata, schema_versions
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


_free: list[str] = []
"""PostgreSQL databases without rows: emptying one is faster than making another."""


def _empty(url: str) -> None:
    tables = [name for name in metadata.tables if name != schema_versions.name]
    names = ", ".join(tables)
    with create_engine(url, poolclass=NullPool).begin() as connection:
        connection.execute(text(f"TRUNCATE {names} RESTART IDENTITY CASCADE"))
        connection.execute(update(schema_versions).values(version_num=SCHEMA_VERSION))
    _free.append(url)


@pytest.fixture(params=BOTH)
def new_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], str]]:
    """Gives the URL of another database without a row at every call."""
    used: list[str] = []

    def make() -> str:
        number = next(_counter)
        if request.param == "sqlite":
            return str(tmp_path / f"results{number}.db")
        server: PostgresServer = request.getfixturevalue("postgres_server")
        template: str = request.getfixturevalue("postgres_template")
        name = f"test_{os.getpid()}_{number}"
        used.append(_free.pop() if _free else server.new_database(name, template))
        return used[-1]

    yield make
    for url in used:
        _empty(url)


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


@pytest.fixture
def fill_sample(
    make_study: Callable[..., StudyRecord], make_outcome: Callable[..., TrialOutcome], lease: Lease
) -> Callable[[Store], None]:
    """Fill a database with two studies that hold something of everything, at fixed times."""
    start = datetime(2026, 3, 1, 12, 0, 0, 250_000, tzinfo=UTC)
    points = [
        {"dp": 4}, {"tp": 2, "dp": 2}, {"pp": 2, "dp": 2}, {"tp": 2, "pp": 2},
        {"dp": 4, "zero_stage": 1}, {"tp": 2, "dp": 2, "zero_stage": 1, "recompute": "full"},
        {"pp": 2, "dp": 2, "micro_batch_size": 2}, {"tp": 2, "pp": 2, "compile": True},
    ]  # fmt: skip
    keyed = [("-".join(f"{name}{value}" for name, value in p.items()), p) for p in points]

    def results(study_id: int, scale: float) -> Iterator[tuple[TrialRecord, TrialOutcome]]:
        for n, (key, knobs) in enumerate([*keyed, keyed[1], keyed[1]]):
            trial = TrialRecord(
                study_id=study_id, config_key=key, knobs=knobs, repeat=max(n - len(keyed) + 1, 0),
                measured_steps=3, source="cbo", seed=n, queued_at=start + timedelta(seconds=n),
                started_at=start + timedelta(seconds=2 * n),
                finished_at=start + timedelta(seconds=2 * n + 30),
            )  # fmt: skip
            speed = scale * (1000 + 137 * (n * 5 % 8))
            done = make_outcome(speed, peak_memory_bytes=(2 + n % 3) * 2**30)
            ranks = tuple(sample_rank(rank, knobs) for rank in range(2))
            yield trial, replace(done, ranks=ranks)

    def sample_rank(rank: int, knobs: dict[str, object]) -> RankRow:
        stage = rank if knobs.get("pp") else 0
        return RankRow(
            rank=rank, hostname=f"node{rank}", device=f"cuda:{rank}", coordinates={"dp": rank},
            stages=(stage,), layers=(2 * stage, 2 * stage + 1), num_parameters=10**9,
            peak_memory_bytes=(3 - rank) * 2**30, state_memory_bytes=2**30,
            breakdown_s={"forward": 0.1, "backward": 0.25, "bubble": 0.01 * rank},
            collectives={"all_reduce": {"calls": 2.0, "bytes": 1e9, "seconds": 0.05}},
        )  # fmt: skip

    def fill(store: Store) -> None:
        for nodes, scale in ((1, 1.0), (2, 1.8)):
            cluster = {"name": f"{nodes} nodes", "num_nodes": nodes, "memory_bytes": 4 * 2**30}
            study = store.create_study(
                make_study(
                    f"gpt2-{nodes}-node{'s' * (nodes > 1)}", cluster=cluster, created_at=start,
                    provenance={"git": {"commit": "abc123", "is_dirty": "false"}},
                )
            )  # fmt: skip
            assert study.id is not None
            ids = store.add_results(study.id, list(results(study.id, scale)))
            store.add_predictions(
                study.id,
                [PredictionRow(config_key=key, model_name="analytic", step_time_s=3.0 + n,
                               step_time_low_s=2.0, step_time_high_s=4.0 + n,
                               peak_memory_bytes=2e9, probability_fits=0.9)
                 for n, (key, _) in enumerate(keyed)],
            )  # fmt: skip
            untried = UntriedRow(config_key="tp8", knobs={"tp": 8}, rule="devices", reason="8 > 4")
            store.add_untried(study.id, [untried])
            fail(store, study.id)
            store.tag_trial(ids[0], "reference")
            store.add_note(study.id, "steady machine", author="ann", trial_id=ids[0])

    def fail(store: Store, study_id: int) -> None:
        failed = (
            ("mbs16", {"micro_batch_size": 16, "dp": 4}, "infeasible", "oom"),
            (keyed[0][0], keyed[0][1], "infeasible", "oom"),
            ("mbs8", {"micro_batch_size": 8, "dp": 4}, "failed", "diverged"),
        )
        pairs = []
        for n, (key, knobs, status, kind) in enumerate(failed):
            trial = TrialRecord(
                study_id=study_id, config_key=key, knobs=knobs, repeat=7, queued_at=start,
                started_at=start, finished_at=start + timedelta(seconds=10 + n),
            )  # fmt: skip
            reason = FailureRow(
                kind=kind, phase="backward", message=f"{kind}!", rank=1, stage=1,
                peak_memory_bytes=5 * 2**30,
            )  # fmt: skip
            bad = StepRow(step=0, is_warmup=True, step_time_s=1.0, loss=math.nan, tokens=1)
            steps = (bad,) if kind == "diverged" else ()
            ranks = (sample_rank(1, {}),)
            pairs.append(
                (trial, TrialOutcome(status=TrialStatus(status), failure=reason, steps=steps,
                                     ranks=ranks))
            )  # fmt: skip
        store.add_results(study_id, pairs)
        running = store.add_trial(
            TrialRecord(study_id=study_id, config_key="ep2", knobs={"ep": 2, "dp": 4})
        )
        assert running.id is not None
        fixed = replace(lease, process_started_at=start, heartbeat_at=start)
        store.claim_trial(running.id, fixed, "trials/12")

    return fill
