"""Write the golden databases of the schema that is current: run once, when a version is released.

python tests/results_db/golden/make_golden.py   (needs a PostgreSQL server for the second file)
"""

import sqlite3
import subprocess
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

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
from results_db.schema import SCHEMA_VERSION
from results_db.testing.postgres import find_binaries, private_postgres

START = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)


def measurement(step_time_s: float) -> MeasurementRow:
    return MeasurementRow(
        step_time_s=step_time_s,
        step_time_iqr_s=0.02 * step_time_s,
        tokens_per_s=4096 / step_time_s,
        tokens_per_step=4096,
        num_microbatches=4,
        num_parameters=1_000_000_000_000,
        num_layers=4,
        model_flops_per_step=6e15,
        hardware_flops_per_step=8e15,
        model_flops_per_s_per_device=1e12,
        hardware_flops_per_s_per_device=1.3e12,
        mfu=0.41,
        peak_memory_bytes=3 * 2**30,
        final_loss=float("nan"),
        startup_s=1.5,
        overhead_s=0.5,
        versions={"torch": "2.13.0", "python": "3.11.4"},
    )


def outcome(step_time_s: float) -> TrialOutcome:
    steps = [
        StepRow(step=n, is_warmup=n < 2, step_time_s=step_time_s, loss=9.0 - n, tokens=4096)
        for n in range(5)
    ]
    ranks = [
        RankRow(
            rank=n,
            hostname="node0",
            device="cpu",
            coordinates={"dp": 0, "tp": 0, "pp": n},
            stages=(n,),
            layers=(2 * n, 2 * n + 1),
            num_parameters=500_000_000_000,
            peak_memory_bytes=(3 - n) * 2**30,
            state_memory_bytes=2**30,
            breakdown_s={"forward": 0.1, "backward": 0.2, "bubble": 0.05},
            collectives={"all_reduce": {"calls": 4.0, "bytes": 1e9, "seconds": 0.01}},
            timeline=(("F", 0, n, 0.0, 0.1), ("B", 0, n, 0.1, 0.3)),
        )
        for n in range(2)
    ]
    return TrialOutcome(
        status=TrialStatus.COMPLETED,
        measurement=measurement(step_time_s),
        steps=tuple(steps),
        ranks=tuple(ranks),
    )


def fill(url: str) -> None:
    with results_db.open(url) as store:
        study = store.create_study(
            StudyRecord(
                name="golden",
                searcher="cbo",
                launcher="local",
                model={"name": "tiny", "family": "gpt2", "num_layers": 4, "num_parameters": 10**12},
                cluster={
                    "name": "two",
                    "device_kind": "cpu",
                    "num_nodes": 1,
                    "devices_per_node": 2,
                },
                training={"sequence_length": 128, "global_batch_size": 32, "dtype": "fp32"},
                resolved_config="[model]\nname = 'tiny'\n",
                config_hash="c0ffee",
                num_legal_points=12,
                provenance={"git": {"commit": "abc", "is_dirty": True}, "host": "node0"},
                created_at=START,
            )
        )
        assert study.id is not None
        results = []
        for n, knobs in enumerate(({"pp": 2}, {"dp": 2}, {"tp": 2, "zero_stage": 1}, {"pp": 2})):
            trial = TrialRecord(
                study_id=study.id,
                config_key="-".join(f"{name}{value}" for name, value in knobs.items()),
                knobs=knobs,
                repeat=n // 3,
                measured_steps=3,
                source="cbo",
                queued_at=START + timedelta(seconds=n),
                started_at=START + timedelta(seconds=n + 1),
                finished_at=START + timedelta(seconds=n + 2),
            )
            results.append((trial, outcome(0.5 + 0.1 * n)))
        store.add_results(study.id, results)
        failed = store.add_trial(
            TrialRecord(study_id=study.id, config_key="mbs16", knobs={"micro_batch_size": 16})
        )
        now = datetime.now(UTC)
        lease = Lease(host="node0", pid=7, process_started_at=START, heartbeat_at=now)
        assert failed.id is not None
        store.claim_trial(failed.id, lease, "trials/5")
        oom = FailureRow(kind="oom", phase="backward", message="out of memory", rank=1, stage=1)
        store.finish_trial(failed.id, TrialOutcome(status=TrialStatus.INFEASIBLE, failure=oom))
        store.add_trial(TrialRecord(study_id=study.id, config_key="ep2", knobs={"ep": 2, "dp": 2}))
        store.add_predictions(
            study.id,
            [PredictionRow(config_key="pp2", model_name="analytic", step_time_s=0.45,
                           step_time_low_s=0.3, step_time_high_s=0.6, peak_memory_bytes=3e9,
                           probability_fits=0.9)],
        )  # fmt: skip
        untried = UntriedRow(config_key="tp4", knobs={"tp": 4}, rule="devices", reason="4 > 2")
        store.add_untried(study.id, [untried])


def main() -> None:
    folder = Path(__file__).parent
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "golden.db"
        fill(str(path))
        target = folder / f"{SCHEMA_VERSION}.db"
        target.unlink(missing_ok=True)
        with sqlite3.connect(path) as link:
            link.execute("PRAGMA journal_mode=DELETE")
            link.execute("PRAGMA page_size=1024")
            link.execute("VACUUM")
        target.write_bytes(path.read_bytes())
    with private_postgres() as server:
        fill(server.new_database("golden"))
        dump = subprocess.run(
            [str(find_binaries() / "pg_dump"), "--inserts", "--no-owner", "--no-privileges",
             "-h", str(server.folder), "-U", "postgres", "golden"],
            check=True, capture_output=True, text=True,
        ).stdout  # fmt: skip
    # psql's own commands (\restrict of later releases) are not SQL
    lines = [line for line in dump.splitlines() if not line.startswith(("\\", "--"))]
    text = "\n".join(line for line in lines if line).strip() + "\n"
    (folder / f"{SCHEMA_VERSION}.postgresql.sql").write_text(text)


if __name__ == "__main__":
    main()
