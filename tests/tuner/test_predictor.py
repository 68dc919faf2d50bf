from results_db.records import PredictionRow
from search_spaces.cluster_spec import ClusterSpec
from search_spaces.model_io import load_model_spec
from search_spaces.parallel_config import ParallelConfig
from search_spaces.training_spec import TrainingSpec
from trainer.contract import FailureKind
from tuner.ports import Observation, ObservationState
from tuner.predictor import CALIBRATED, PRIOR, Predictor, median_error

CONFIGS = [ParallelConfig(dp=2, micro_batch_size=size) for size in (1, 2, 4)]


def make(memory_bytes: int = 2**33) -> Predictor:
    cluster = ClusterSpec(
        devices_per_node=2, memory_bytes=memory_bytes, peak_flops_per_s={"fp32": 1e11}
    )
    training = TrainingSpec(sequence_length=64, global_batch_size=8)
    return Predictor(load_model_spec("gpt2-tiny"), training, cluster)


def measured(config: ParallelConfig, step_time_s: float) -> Observation:
    return Observation(
        config=config,
        state=ObservationState.COMPLETED,
        step_time_s=step_time_s,
        tokens_per_s=512 / step_time_s,
        peak_memory_bytes=10**8,
    )


def test_predictions_move_towards_what_was_measured() -> None:
    predictor = make()
    (prior,) = predictor.predict(CONFIGS[:1])
    assert prior.model_name == PRIOR
    assert prior.step_time_s is not None
    truth = 5 * prior.step_time_s
    predictor.learn([measured(config, truth) for config in CONFIGS[1:]])
    rows = {row.model_name: row for row in predictor.predict(CONFIGS[:1])}
    assert rows[PRIOR] == prior
    calibrated = rows[CALIBRATED].step_time_s
    assert calibrated is not None
    assert abs(calibrated / truth - 1) < abs(prior.step_time_s / truth - 1) / 2


def test_out_of_memory_teaches_and_other_failures_do_not() -> None:
    predictor = make(memory_bytes=16 * 2**20)  # a little more than what is predicted
    failed = Observation(
        config=CONFIGS[0], state=ObservationState.FAILED, failure=FailureKind.CRASH
    )
    predictor.learn([failed])
    assert [row.model_name for row in predictor.predict(CONFIGS[:1])] == [PRIOR]
    oom = Observation(config=CONFIGS[0], state=ObservationState.INFEASIBLE, failure=FailureKind.OOM)
    predictor.learn([failed, oom])
    rows = {row.model_name: row for row in predictor.predict(CONFIGS[:1])}
    before, after = rows[PRIOR].probability_fits, rows[CALIBRATED].probability_fits
    assert before is not None
    assert after is not None
    assert after < before


def test_the_error_is_over_the_predicted_points_alone() -> None:
    rows = [
        PredictionRow(config_key=key, model_name=name, step_time_s=seconds)
        for key, name, seconds in [("a", "m", 1.1), ("b", "m", 2.0), ("c", "m", 9.0), ("a", "n", 7)]
    ]
    assert median_error(rows, {}, "m") is None
    error = median_error(rows, {"a": 1.0, "b": 1.0}, "m")
    assert error is not None
    assert abs(error[0] - 0.55) < 1e-9
    assert error[1] == 2
