"""Whole trials on real ranks: what is reported, and what is reported when things go wrong."""

import json
import subprocess
import sys

import pytest

from search_spaces.counts import num_parameters
from search_spaces.model_io import load_model_spec
from search_spaces.parallel_config import ParallelConfig
from search_spaces.training_spec import TrainingSpec
from trainer.contract import FailureKind, FaultSpec, MeasureSpec, Phase, TrialJob
from trainer.errors import JobError
from trainer.worker import read_job

pytestmark = pytest.mark.distributed


def test_a_trial_reports_what_it_ran(run_trial):
    output = run_trial(dp=2, pp=2, zero_stage=1)
    assert not output.failures
    result, model = output.result, load_model_spec("gpt2-tiny")
    assert result is not None
    assert result.num_parameters == num_parameters(model)
    assert result.num_layers == model.num_layers
    assert result.num_microbatches == 2
    assert result.tokens_per_step == 64
    assert len(result.step_times_s) == 2
    assert result.step_time_s > 0
    assert result.tokens_per_s == pytest.approx(64 / result.step_time_s)
    assert result.final_loss == pytest.approx(6.2, abs=0.3)
    assert result.peak_memory_bytes == max(rank.peak_memory_bytes for rank in output.ranks)
    assert [rank.rank for rank in output.ranks] == [0, 1, 2, 3]
    assert [rank.stages for rank in output.ranks] == [[0], [0], [1], [1]]
    assert sorted(i for rank in output.ranks for i in rank.layers) == sorted(
        2 * list(range(model.num_layers))
    )
    steps = output.steps
    assert [step.is_warmup for step in steps] == [True, False, False]
    assert all(step.tokens == 64 for step in steps)
    actions = [action[:3] for action in output.ranks[0].timeline]
    assert actions == [("F", 0, 0), ("F", 1, 0), ("B", 0, 0), ("B", 1, 0)]
    assert {"forward", "backward", "optimizer", "bubble"} <= set(output.ranks[0].breakdown_s)


def test_inference_runs_forward_alone(run_trial):
    training = TrainingSpec(sequence_length=16, global_batch_size=4, workload="inference")
    output = run_trial(pp=2, training=training)
    assert output.result is not None
    assert output.result.final_loss is None
    assert {action[0] for action in output.ranks[0].timeline} == {"F"}
    assert "backward" not in output.ranks[0].breakdown_s


def test_a_crash_is_reported_by_its_rank_and_ends_the_others(run_trial):
    fault = FaultSpec(kind="crash", rank=1, phase=Phase.BACKWARD, step=1)
    output = run_trial(dp=2, fault=fault)
    assert output.result is None
    first = output.failures[0]
    assert (first.failure, first.phase, first.rank) == (FailureKind.CRASH, Phase.BACKWARD, 1)
    assert (first.step, first.stage) == (1, 0)
    assert first.message.startswith("a crash was injected")
    assert output.failures[1].failure == FailureKind.COMM


def test_out_of_memory_is_never_taken_for_a_broken_connection(run_trial):
    output = run_trial(pp=2, fault=FaultSpec(kind="oom", rank=1, phase=Phase.FORWARD))
    first = output.failures[0]
    assert (first.failure, first.rank, first.stage) == (FailureKind.OOM, 1, 1)
    assert first.peak_memory_bytes is not None


def test_the_memory_limit_makes_a_rank_run_out_of_memory(run_trial):
    big = load_model_spec("gpt2-124m")
    output = run_trial(model=big, memory_limit_bytes=300 * 2**20)
    assert output.failures[0].failure == FailureKind.OOM
    assert output.failures[0].phase == Phase.BUILD


def test_a_limit_that_suffices_does_no_harm(run_trial):
    assert run_trial(memory_limit_bytes=512 * 2**20).result is not None


def test_a_loss_that_is_no_number_is_divergence(run_trial):
    output = run_trial(dp=2, fault=FaultSpec(kind="diverge", rank=1, phase=Phase.MEASURE))
    assert output.result is None
    assert {failure.failure for failure in output.failures} == {FailureKind.DIVERGED}


def test_a_rank_that_leaves_without_a_word_gives_no_result(run_trial):
    output = run_trial(dp=2, fault=FaultSpec(kind="exit_zero", rank=1, phase=Phase.OPTIMIZER))
    assert output.result is None
    assert [(f.rank, f.failure) for f in output.failures] == [(0, FailureKind.COMM)]


def test_a_killed_rank_is_noticed_by_the_others(run_trial):
    output = run_trial(dp=2, fault=FaultSpec(kind="sigkill", rank=0, phase=Phase.FORWARD))
    assert [(f.rank, f.failure) for f in output.failures] == [(1, FailureKind.COMM)]


def test_an_mfu_above_one_is_no_number(run_trial):
    output = run_trial(peak_flops_per_s=1.0)
    assert output.result is None
    assert output.failures[0].failure == FailureKind.IMPLAUSIBLE
    assert "MFU" in output.failures[0].message


def test_a_configuration_that_the_kernel_cannot_run_is_illegal(run_trial):
    output = run_trial(tp=3)
    assert {failure.failure for failure in output.failures} == {FailureKind.ILLEGAL}


def _job(tmp_path, **changes):
    job = TrialJob(
        trial_id="by-hand",
        model=load_model_spec("llama-tiny"),
        training=TrainingSpec(sequence_length=16, global_batch_size=2),
        config=ParallelConfig(),
        measure=MeasureSpec(warmup_steps=1, measured_steps=1),
    )
    path = tmp_path / "job.json"
    path.write_text(json.dumps({**job.model_dump(mode="json"), **changes}))
    return path


def test_a_trial_runs_by_hand_and_writes_a_trace(tmp_path):
    path = _job(tmp_path)
    command = [sys.executable, "-m", "trainer.worker", "--job", str(path), "--profile"]
    subprocess.run(command, check=True, cwd=tmp_path, timeout=100)
    assert '"kind":"result"' in (tmp_path / "report.0.jsonl").read_text()
    assert json.loads((tmp_path / "trace.0.json").read_text())["traceEvents"]


def test_bad_job_files_are_one_sentence(tmp_path):
    with pytest.raises(JobError, match="cannot read the job file"):
        read_job(tmp_path / "none.json")
    with pytest.raises(JobError, match="is not a job: extra: Extra inputs"):
        read_job(_job(tmp_path, extra=1))
    with pytest.raises(JobError, match="contract version 99"):
        read_job(_job(tmp_path, contract_version=99))
