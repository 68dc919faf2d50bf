"""Speed and size of the results database under many trials of 20 steps each.

    python -m benchmarks.database [--url URL | --postgres] [--trials N] [--quick] [--json]

Ingests N trials in batches of 1000 (durably: SQLite `synchronous=FULL`, PostgreSQL with
`synchronous_commit`; the private server has 1 GB of shared buffers), a tenth of them in one large
study and the rest in studies of 1000, then some one by one, and asks the leaderboards. The records
are built before the clock starts; every call of the store and every fetch of all rows is inside.
Queries are timed warm, medians of 7.

`leaderboard_one_study_ms` is the slowest of: the whole leaderboard of a study of 1000 trials (what
`tuner rank --all` asks: `results_db.queries.leaderboard`), its first 20, and the first 20 of the
largest study in SQL. `leaderboard_all_ms` is the slower of: the first positions of every study
(view `best_configs`) and the first 20 over all studies. The other queries have their own figures.
Ends with `tuner db check`'s laws.
"""

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import results_db
from benchmarks import harness
from results_db.checks import check
from results_db.knobs import config_key
from results_db.maintenance import analyze, info
from results_db.queries import QueryLimits, leaderboard, read_only_sql
from results_db.records import (
    Lease,
    MeasurementRow,
    StepRow,
    StudyRecord,
    TrialOutcome,
    TrialRecord,
    TrialStatus,
)
from results_db.store import Store
from results_db.testing.postgres import PostgresUnavailable, private_postgres

BATCH = 1000
NUM_STEPS = 20
ORDINARY = 1000
"""Trials of a study that is not the large one."""
START = datetime(2026, 1, 1, tzinfo=UTC)

WHOLE = "SELECT * FROM leaderboard WHERE study = 'study1' ORDER BY tokens_per_s DESC"
FIRST_20 = "SELECT * FROM leaderboard WHERE study = 'study1' ORDER BY tokens_per_s DESC LIMIT 20"
FIRST_20_OF_LARGEST = """
SELECT * FROM leaderboard WHERE study_id = (SELECT id FROM studies WHERE name = 'study0')
ORDER BY tokens_per_s DESC LIMIT 20
"""
BEST = "SELECT * FROM best_configs"
FIRST_20_OF_ALL = "SELECT * FROM leaderboard ORDER BY tokens_per_s DESC LIMIT 20"
FIRST_10_OF_EACH = """
SELECT s.name AS study, r.place, c.label AS config, r.tokens_per_s
FROM (SELECT study_id, config_id, tokens_per_s,
             ROW_NUMBER() OVER (PARTITION BY study_id ORDER BY tokens_per_s DESC) AS place
      FROM study_configs) r
JOIN studies s ON s.id = r.study_id
JOIN parallel_configs c ON c.id = r.config_id
WHERE r.place <= 10
"""


QUERIES = {
    "first_20_of_1000_ms": FIRST_20,
    "first_20_of_largest_ms": FIRST_20_OF_LARGEST,
    "sql_whole_of_1000_ms": WHOLE,
    "first_positions_of_all_ms": BEST,
    "first_20_of_all_ms": FIRST_20_OF_ALL,
    "first_10_of_each_ms": FIRST_10_OF_EACH,
}


def knobs_of(index: int) -> dict[str, Any]:
    """The configuration of this number; 38,400 different ones."""
    radix = (
        ("tp", (1, 2, 4, 8)), ("pp", (1, 2, 4, 8)), ("dp", (1, 2, 4, 8, 16)),
        ("micro_batch_size", (1, 2, 4, 8)), ("zero_stage", (0, 1, 2, 3)),
        ("recompute", ("none", "selective", "full")), ("virtual_stages", (1, 2)),
        ("compile", (False, True)), ("sequence_parallel", (False, True)),
        ("pipeline_schedule", ("1f1b", "gpipe", "interleaved", "zero_bubble", "zbv")),
    )  # fmt: skip
    knobs: dict[str, Any] = {}
    for name, values in radix:
        index, place = divmod(index, len(values))
        knobs[name] = values[place]
    return knobs


POINTS = [(config_key(knobs_of(index)), knobs_of(index)) for index in range(38_400)]


def outcome(generator: random.Random) -> TrialOutcome:
    """A completed trial of 20 steps whose throughput is log-normal."""
    step_time_s = 0.5 * generator.lognormvariate(0.0, 0.4)
    steps = tuple(
        StepRow(step=n, is_warmup=n < 5, loss=10.0 - 0.1 * n, tokens=65_536,
                step_time_s=step_time_s * generator.gauss(1.0, 0.01))
        for n in range(NUM_STEPS)
    )  # fmt: skip
    row = MeasurementRow(
        step_time_s=step_time_s,
        step_time_iqr_s=0.013 * step_time_s,
        tokens_per_s=65_536 / step_time_s,
        tokens_per_step=65_536,
        num_microbatches=8,
        num_parameters=124_439_808,
        num_layers=12,
        model_flops_per_step=5.4e13,
        hardware_flops_per_step=6.1e13,
        model_flops_per_s_per_device=5.4e13 / step_time_s,
        hardware_flops_per_s_per_device=6.1e13 / step_time_s,
        mfu=0.4,
        peak_memory_bytes=generator.randrange(2**30, 2**36),
        final_loss=8.0,
        startup_s=1.2,
        overhead_s=1.0,
        versions={"torch": "2.13.0", "python": "3.11.4"},
    )
    return TrialOutcome(status=TrialStatus.COMPLETED, measurement=row, steps=steps)


def batch(
    study_id: int, first: int, count: int, generator: random.Random
) -> list[tuple[TrialRecord, TrialOutcome]]:
    """Trials `first`... of a study; after all points each is repeated."""
    pairs = []
    for number in range(first, first + count):
        repeat, place = divmod(number, len(POINTS))
        key, knobs = POINTS[(place * 7919 + study_id) % len(POINTS)]
        began = START + timedelta(seconds=number)
        trial = TrialRecord(
            study_id=study_id, config_key=key, knobs=knobs, repeat=repeat, measured_steps=15,
            warmup_steps=5, source="cbo", seed=number, queued_at=began, started_at=began,
            finished_at=began + timedelta(seconds=30), folder=f"trials/{number}",
        )  # fmt: skip
        pairs.append((trial, outcome(generator)))
    return pairs


def make_study(store: Store, number: int) -> int:
    """A study with the usual inputs; returns its id."""
    study = store.create_study(
        StudyRecord(
            name=f"study{number}",
            searcher="cbo",
            launcher="ray",
            model={"name": f"model{number % 7}", "num_parameters": 124_439_808, "num_layers": 12},
            cluster={"name": f"cluster{number % 5}", "num_nodes": 1 << number % 5},
            training={"sequence_length": 1024, "global_batch_size": 64},
            resolved_config="",
            config_hash=str(number),
            provenance={"git": {"commit": "0" * 40}, "host": "node0"},
        )
    )
    assert study.id is not None
    return study.id


def plan(num_trials: int) -> Iterator[tuple[int, int]]:
    """Study numbers with their sizes: the large one first."""
    large = max(num_trials // 10, min(num_trials, ORDINARY))
    yield 0, large
    left, number = num_trials - large, 1
    while left > 0:
        yield number, min(left, ORDINARY)
        left, number = left - ORDINARY, number + 1


def ingest(store: Store, num_trials: int) -> float:
    """Trials a second in batches."""
    generator, spent_s, done = random.Random(0), 0.0, 0
    for number, size in plan(num_trials):
        study_id = make_study(store, number)
        for first in range(0, size, BATCH):
            pairs = batch(study_id, first, min(BATCH, size - first), generator)
            start = time.perf_counter()
            store.add_results(study_id, pairs)
            spent_s += time.perf_counter() - start
            done += len(pairs)
        if sys.stderr.isatty():
            sys.stderr.write(f"\r{done} trials, {done / spent_s:.0f} a second ")
        elif number % 100 == 0:  # a log gets a line for every 100,000 trials
            print(f"{done} trials, {done / spent_s:.0f} a second", flush=True)
    return num_trials / spent_s


def ingest_single(store: Store, count: int) -> float:
    """Trials a second, one durable transaction each, into the loaded database."""
    study_id = make_study(store, 10**6)
    pairs = batch(study_id, 0, count, random.Random(1))
    start = time.perf_counter()
    for pair in pairs:
        store.add_results(study_id, [pair])
    return count / (time.perf_counter() - start)


def live_trials(store: Store, count: int) -> float:
    """Trials a second with three durable transactions each: queued, claimed, finished."""
    study_id = make_study(store, 10**6 + 1)
    pairs = batch(study_id, 0, count, random.Random(2))
    lease = Lease(host="node0", pid=1, process_started_at=START, heartbeat_at=START)
    start = time.perf_counter()
    for trial, result in pairs:
        added = store.add_trial(trial)
        assert added.id is not None
        store.claim_trial(added.id, lease, "trials/x")
        store.finish_trial(added.id, result)
    return count / (time.perf_counter() - start)


def timed_ms(store: Store, url: str, query: str) -> tuple[float, int]:
    """Median milliseconds of a query on an open connection, and its rows."""
    seconds, num_rows = [], 0
    with store.database.read() as connection:
        for _ in range(8):
            start = time.perf_counter()
            num_rows = len(connection.exec_driver_sql(query).fetchall())
            seconds.append(time.perf_counter() - start)
    read_only_sql(url, query, QueryLimits(max_rows=None))  # the command's way to ask works too
    return 1e3 * statistics.median(seconds[1:]), num_rows


def timed_python_ms(store: Store, study: str) -> float:
    """Median milliseconds of the leaderboard as typed records."""
    seconds = []
    for _ in range(8):
        start = time.perf_counter()
        leaderboard(store, study)
        seconds.append(time.perf_counter() - start)
    return 1e3 * statistics.median(seconds[1:])


def measure(url: str, num_trials: int, num_singles: int) -> dict[str, Any]:
    """All figures of one database."""
    with results_db.open(url) as store:
        figures: dict[str, Any] = {"database": info(store).kind, "num_trials": num_trials}
        figures["ingest_batch_per_s"] = ingest(store, num_trials)
        analyze(store)
        figures["bytes_per_trial"] = info(store).size_bytes / num_trials
        figures["ingest_single_per_s"] = ingest_single(store, num_singles)
        figures["live_trials_per_s"] = live_trials(store, num_singles)
        for name, query in QUERIES.items():
            figures[name], figures[name.replace("_ms", "_rows")] = timed_ms(store, url, query)
        figures["python_whole_of_1000_ms"] = timed_python_ms(store, "study1")
        figures["leaderboard_one_study_ms"] = max(
            figures["python_whole_of_1000_ms"],
            figures["first_20_of_1000_ms"],
            figures["first_20_of_largest_ms"],
        )
        figures["leaderboard_all_ms"] = max(
            figures["first_positions_of_all_ms"], figures["first_20_of_all_ms"]
        )
        figures["check_problems"] = len(check(store))
    return figures


def options() -> argparse.Namespace:
    """The command line."""
    parser = harness.parser(__doc__)
    parser.add_argument("--url", help="an empty database; a temporary SQLite file when absent")
    parser.add_argument("--postgres", action="store_true", help="a private PostgreSQL server")
    parser.add_argument("--trials", type=int, help="default 1,000,000; --quick 20,000")
    return parser.parse_args()


def main() -> None:
    """Measure and print."""
    args = options()
    num_trials = args.trials or (20_000 if args.quick else 1_000_000)
    with ExitStack() as stack:
        url = args.url
        if args.postgres:
            try:
                server = stack.enter_context(private_postgres(durable=True))
            except PostgresUnavailable as error:
                sys.exit(str(error))
            url = server.new_database("benchmark")
        elif url is None:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="tuner_db_"))
            url = str(Path(folder) / "results.db")
        figures = measure(url, num_trials, 200 if args.quick else 1000)
    harness.finish(args, figures)


if __name__ == "__main__":
    main()
