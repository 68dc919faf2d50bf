"""A stored study with all that figures show: ties, failures, predictions, ranks, refusals."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import results_db
from results_db.records import (
    FailureRow,
    MeasurementRow,
    PredictionRow,
    Purpose,
    RankRow,
    StepRow,
    StudyRecord,
    StudyStatus,
    TrialOutcome,
    TrialRecord,
    TrialStatus,
    UntriedRow,
)
from search_spaces.cluster_spec import ClusterSpec
from search_spaces.model_io import load_model_spec
from search_spaces.parallel_config import ParallelConfig
from search_spaces.training_spec import TrainingSpec
from tuner.web.study_data import StudyData, load_study_data

HOSTILE = (
    "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
)
TOKENS = 4096
START = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)
BASELINE = ParallelConfig(dp=4)
CONFIGS = [
    BASELINE,
    *(
        ParallelConfig(tp=tp, pp=pp, dp=4 // (tp * pp), micro_batch_size=size, recompute=recompute)
        for tp, pp in ((1, 4), (2, 2), (4, 1), (1, 2))
        for size in (1, 2, 4)
        for recompute in ("none", "full")
    ),
]
BROKEN = ParallelConfig(dp=4, micro_batch_size=8)


def step_time_s(place: int) -> float:
    """The configuration before the last and the last are within the noise of each other."""
    return 0.2 + 0.01 * max(len(CONFIGS) - place, 2)


def outcome(place: int, config: ParallelConfig) -> TrialOutcome:
    time = step_time_s(place)
    peak = (300 + 5 * place) * 2**20
    measurement = MeasurementRow(
        step_time_s=time, step_time_iqr_s=0.01 * time, tokens_per_s=TOKENS / time,
        tokens_per_step=TOKENS, num_microbatches=4, num_parameters=449_000, num_layers=8,
        model_flops_per_step=1e9, hardware_flops_per_step=2e9,
        model_flops_per_s_per_device=1e9 / time, hardware_flops_per_s_per_device=2e9 / time,
        mfu=0.25, peak_memory_bytes=peak, final_loss=10.5, startup_s=0.5, overhead_s=0.8,
        versions={"torch": "2.13.0"},
    )  # fmt: skip
    steps = tuple(
        StepRow(step=i, is_warmup=i < 1, step_time_s=time, loss=10.6, tokens=TOKENS)
        for i in range(5)
    )
    ranks = tuple(rank_row(rank, config, time, peak) for rank in range(config.world_size))
    return TrialOutcome(
        status=TrialStatus.COMPLETED, measurement=measurement, steps=steps, ranks=ranks
    )


def rank_row(rank: int, config: ParallelConfig, time: float, peak: int) -> RankRow:
    pp_rank = rank // (config.tp * config.dp)
    places = {"pp": pp_rank, "dp": rank % config.dp, "tp": rank // config.dp % config.tp}
    shift = 0.05 * time * pp_rank
    timeline = tuple(
        (op, batch, pp_rank, shift + 0.1 * time * (2 * batch + turn),
         shift + 0.1 * time * (2 * batch + turn + 0.9))
        for batch in range(2)
        for turn, op in enumerate("FB")
    )  # fmt: skip
    return RankRow(
        rank=rank, hostname="node1", device="cpu", coordinates=places, stages=(pp_rank,),
        layers=(0, 1), num_parameters=224_500, peak_memory_bytes=peak - rank * 2**20,
        state_memory_bytes=100 * 2**20, timeline=timeline,
        breakdown_s={"forward": 0.3 * time, "backward": 0.5 * time, "optimizer": 0.05 * time,
                     "bubble": 0.15 * time},
        collectives={"tp.all_reduce": {"calls": 8, "bytes": 1e6, "seconds": 0.1 * time}},
    )  # fmt: skip


def new_study(name: str, *, launcher: str = "local", status: StudyStatus) -> StudyRecord:
    model = load_model_spec("gpt2-tiny")
    cluster = ClusterSpec(name="laptop", devices_per_node=4, memory_bytes=512 * 2**20)
    training = TrainingSpec(sequence_length=256, global_batch_size=16)
    return StudyRecord(
        name=name, searcher="random", launcher=launcher, status=status, max_trials=40,
        num_legal_points=60, config_hash="0" * 16, created_at=START,
        model=model.model_dump(mode="json") | {"num_parameters": 449_000},
        cluster=cluster.model_dump(mode="json"), training=training.model_dump(mode="json"),
        resolved_config=f'[model]\nsource = "gpt2-tiny"\n# {HOSTILE}\n',
        provenance={
            "versions": {"torch": "2.13.0"}, "host": HOSTILE,
            "refusals": [{"rule": "devices", "num_points": 900, "example": "5 > 4 devices"}],
        },
    )  # fmt: skip


def trial(study_id: int, config: ParallelConfig, place: int) -> TrialRecord:
    start = START + timedelta(minutes=place)
    return TrialRecord(
        study_id=study_id, config_key=config.config_key, knobs=config.model_dump(mode="json"),
        purpose=Purpose.BASELINE if config == BASELINE else Purpose.SEARCH, measured_steps=4,
        warmup_steps=1, source="random", started_at=start, finished_at=start + timedelta(seconds=9),
    )  # fmt: skip


def fill(store: results_db.Store, name: str) -> int:
    """Store the whole study; returns its id."""
    study = store.create_study(new_study(name, status=StudyStatus.COMPLETED))
    study_id = study.id or 0
    pairs = [
        (trial(study_id, config, place), outcome(place, config))
        for place, config in enumerate(CONFIGS)
    ]
    failure = FailureRow(kind="oom", phase="backward", message=HOSTILE, rank=1, traceback="...")
    lost = TrialOutcome(status=TrialStatus.INFEASIBLE, failure=failure)
    store.add_results(study_id, [*pairs, (trial(study_id, BROKEN, len(CONFIGS)), lost)])
    guesses = [
        PredictionRow(
            config_key=config.config_key, model_name=model, step_time_s=step_time_s(place) * factor,
            step_time_low_s=0.8 * step_time_s(place), step_time_high_s=1.3 * step_time_s(place),
            peak_memory_bytes=320e6,
        )
        for place, config in enumerate(CONFIGS)
        for model, factor in (("analytic", 1.5), ("calibrated", 1.1))
    ]  # fmt: skip
    store.add_predictions(study_id, guesses)
    rest = ParallelConfig(dp=2, tp=2, micro_batch_size=16)
    untried = UntriedRow(
        config_key=rest.config_key, knobs=rest.model_dump(mode="json"), rule="budget",
        reason=HOSTILE,
    )  # fmt: skip
    store.add_untried(study_id, [untried])
    return study_id


@pytest.fixture(scope="session")
def study_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A database with a full study `full` and one without a trial, `empty`."""
    path = tmp_path_factory.mktemp("web") / "results.db"
    with results_db.open(path) as store:
        fill(store, "full")
        store.create_study(new_study("empty", status=StudyStatus.RUNNING))
    return str(path)


@pytest.fixture(scope="session")
def full(study_url: str) -> StudyData:
    with results_db.open(study_url, read_only=True) as store:
        return load_study_data(store, "full")


@pytest.fixture(scope="session")
def empty(study_url: str) -> StudyData:
    with results_db.open(study_url, read_only=True) as store:
        return load_study_data(store, "empty")


@pytest.fixture
def fresh_store(tmp_path: Path) -> Iterator[results_db.Store]:
    with results_db.open(tmp_path / "fresh.db") as store:
        yield store
